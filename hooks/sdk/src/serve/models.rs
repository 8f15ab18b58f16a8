//! Models of a replica: those used last are kept.

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

/// Models that a replica has loaded, at most so many: the one that was not used for longest goes when another is wanted.
///
/// A deployment that serves many models has one of these. Requests say which they are for in the header `x-model-id`, and callers by
/// [`DeploymentHandle::model`](super::DeploymentHandle::model); all callers prefer the same replica for the same model, so each replica gets requests of few of them. In the
/// handler it is [`RequestContext::model`](super::RequestContext::model).
///
/// ```
/// use tracer_sdk::serve::{Body, Models, Request, deployment, request_context};
///
/// pub struct Llama(String);
///
/// impl Llama {
///     async fn load(id: &str) -> Result<Llama, std::io::Error> {
///         Ok(Llama(format!("weights of {id}")))
///     }
/// }
///
/// pub struct Chat {
///     models: Models<Llama>,
/// }
///
/// #[deployment]
/// impl Chat {
///     pub fn new() -> Chat {
///         Chat { models: Models::keep(3) }
///     }
///
///     pub async fn handle(&self, _: Request<Body>) -> Result<String, std::io::Error> {
///         let context = request_context().expect("it runs for a request");
///         let model = self.models.get(context.model(), Llama::load).await?;
///         Ok(model.0.clone())
///     }
/// }
/// ```
///
/// A model that goes is dropped when the last request that has it has ended, and before the next one is loaded if none has it, so that no more than `max` are in memory beside those in
/// use. Requests for a model that is being loaded wait for it. It is loaded once: if that fails, or if the request that loads it is cancelled, the next one of
/// these tries. Nothing of a failure is kept.
pub struct Models<T> {
    max: NonZeroUsize,
    /// In the order of their last use, the latest last.
    kept: Mutex<Vec<Kept<T>>>,
}

struct Kept<T> {
    id: String,
    place: Arc<OnceCell<Arc<T>>>,
}

impl<T> Models<T> {
    /// Makes a place for so many models.
    ///
    /// # Panics
    ///
    /// If `max` is 0.
    pub fn keep(max: usize) -> Models<T> {
        let max = NonZeroUsize::new(max).expect("expected a place for one model at least, found `max` 0");
        Models { max, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept<T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a model, which `load` loads if it is not there.
    ///
    /// # Errors
    ///
    /// The error of `load`, and then the model is not kept: the next call loads it again.
    pub async fn get<'a, E, F>(&self, id: &'a str, load: impl FnOnce(&'a str) -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let place = self.place(id);
        let _unless_loaded = Forget { models: self, place: &place };
        let loaded = place.get_or_try_init(|| async { load(id).await.map(Arc::new) }).await?;
        Ok(Arc::clone(loaded))
    }

    /// Returns the place of a model, which counts as used now.
    fn place(&self, id: &str) -> Arc<OnceCell<Arc<T>>> {
        // Dropped without the lock: that may take long.
        let mut gone = Vec::new();
        let mut kept = self.kept();
        let found = match kept.iter().position(|known| known.id == id) {
            Some(at) => kept.remove(at),
            None => {
                let surplus = (kept.len() + 1).saturating_sub(self.max.get());
                gone.extend(kept.drain(..surplus));
                Kept { id: id.to_owned(), place: Arc::default() }
            }
        };
        let place = Arc::clone(&found.place);
        kept.push(found);
        drop(kept);
        drop(gone);
        place
    }

    /// Returns the models that are loaded, the one used last at the end.
    pub fn loaded(&self) -> Vec<String> {
        let kept = self.kept();
        kept.iter().filter(|known| known.place.initialized()).map(|known| known.id.clone()).collect()
    }
}

impl<T> fmt::Debug for Models<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models").field("max", &self.max).field("loaded", &self.loaded()).finish()
    }
}

/// Gives a place back in which there is no model after all, unless another request still loads it.
struct Forget<'a, T> {
    models: &'a Models<T>,
    place: &'a Arc<OnceCell<Arc<T>>>,
}

impl<T> Drop for Forget<'_, T> {
    fn drop(&mut self) {
        if self.place.initialized() {
            return;
        }
        let mut kept = self.models.kept();
        // One has the place here, one the list.
        if Arc::strong_count(self.place) == 2 {
            kept.retain(|known| !Arc::ptr_eq(&known.place, self.place));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    /// A model that counts those in memory.
    struct Counted(String, Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, SeqCst);
        }
    }

    #[derive(Default)]
    struct World {
        in_memory: Arc<AtomicUsize>,
        most: AtomicUsize,
        loads: AtomicUsize,
    }

    impl World {
        async fn load(&self, id: &str) -> Result<Counted, String> {
            tokio::task::yield_now().await;
            self.loads.fetch_add(1, SeqCst);
            if id.starts_with("no") {
                return Err(format!("there is no `{id}`"));
            }
            let now = self.in_memory.fetch_add(1, SeqCst) + 1;
            self.most.fetch_max(now, SeqCst);
            Ok(Counted(id.into(), Arc::clone(&self.in_memory)))
        }
    }

    #[tokio::test]
    async fn the_models_used_last_are_kept_and_no_more_are_in_memory() {
        let (models, world) = (Models::keep(2), World::default());
        for id in ["a", "b", "a", "c", "a", "b", "b"] {
            let model = models.get(id, |id| world.load(id)).await.expect("it loads");
            assert_eq!(model.0, id);
        }
        assert_eq!(models.loaded(), ["a", "b"]);
        assert_eq!((world.loads.load(SeqCst), world.most.load(SeqCst), world.in_memory.load(SeqCst)), (4, 2, 2));
        // One that a request still has is there until that ends.
        let held = models.get("a", |id| world.load(id)).await.expect("it is there");
        models.get("c", |id| world.load(id)).await.expect("it loads");
        models.get("d", |id| world.load(id)).await.expect("it loads");
        assert_eq!((held.0.as_str(), world.in_memory.load(SeqCst)), ("a", 3));
        drop(held);
        assert_eq!((models.loaded(), world.in_memory.load(SeqCst)), (vec!["c".to_owned(), "d".to_owned()], 2));
    }

    #[tokio::test]
    async fn requests_for_a_model_that_is_being_loaded_share_it_and_those_for_others_do_not_wait() {
        let (models, world) = (Arc::new(Models::keep(4)), Arc::new(World::default()));
        let ask = |id: &'static str| {
            let (models, world) = (Arc::clone(&models), Arc::clone(&world));
            tokio::spawn(async move { models.get(id, |id| world.load(id)).await.expect("it loads").0.clone() })
        };
        let asked: Vec<_> = ["a", "b", "a", "a", "b"].into_iter().map(ask).collect();
        for asked in asked {
            asked.await.expect("it ends");
        }
        assert_eq!(world.loads.load(SeqCst), 2);
        // Whose request is cancelled loads nothing, and the next one does.
        let mut pending = Box::pin(models.get("c", |_| std::future::pending::<Result<Counted, String>>()));
        assert!(futures_poll(&mut pending).is_none());
        let next = ask("c");
        tokio::task::yield_now().await;
        drop(pending);
        assert_eq!(next.await.expect("it ends"), "c");
    }

    fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn a_failure_is_told_and_takes_no_place() {
        let (models, world) = (Models::keep(2), World::default());
        models.get("a", |id| world.load(id)).await.map(drop).expect("it loads");
        models.get("b", |id| world.load(id)).await.map(drop).expect("it loads");
        for _ in 0..3 {
            let failed = models.get("no such", |id| world.load(id)).await.map(drop);
            assert_eq!(failed, Err("there is no `no such`".into()));
        }
        assert_eq!(models.loaded(), ["b"], "the other made room for it");
        assert_eq!(models.kept().len(), 1);
    }
}
