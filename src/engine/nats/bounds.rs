//! The most that a task of a queue may ask for. It is kept in the description of the queue's first stream, behind the version of the cluster: it lasts as long
//! as the queue, every version of the server has descriptions, and nobody but an admin changes one.

use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::{Config as StreamConfig, Info, Stream};
use tracer_core::causes::with_causes;
use tracer_core::queue::QueueBound;
use tracer_ipc::protocol::EngineAccess;

use super::{CLUSTER_VERSION, CLUSTER_VERSION_IS, Connected, Nats, is_not_there, queue_stream};
use crate::access::EngineError;
use crate::interface::{Answer, PutError, Tier};

/// Beginning of the bound in the description of a stream, behind the version.
pub(super) const BOUND_IS: &str = ", a task may ask for ";

/// Returns the description of a stream; with a bound that of the first one of a queue.
pub(super) fn description(bound: Option<&QueueBound>) -> String {
    let bound = bound.filter(|bound| **bound != QueueBound::default());
    let bound = bound.map_or(String::new(), |bound| format!("{BOUND_IS}{}", bound.encode()));
    format!("{CLUSTER_VERSION_IS}{CLUSTER_VERSION}{bound}")
}

/// Returns the bound that a description has, if it has one that can be read.
pub(super) fn of_description(description: &str) -> Option<QueueBound> {
    QueueBound::decode(description.split_once(BOUND_IS)?.1)
}

/// Failure to read the bound of a queue.
enum BoundError {
    /// A queue that does not exist.
    NoQueue,
    /// Anything else, in words.
    Unknown(String),
}

async fn stream(context: &Context, queue: &str) -> Result<Stream<Info>, BoundError> {
    context.get_stream(queue_stream(queue, Tier::First)).await.map_err(|error| match is_not_there(&error) {
        true => BoundError::NoQueue,
        false => BoundError::Unknown(with_causes(&error)),
    })
}

fn of_stream(stream: &Stream<Info>) -> QueueBound {
    stream.cached_info().config.description.as_deref().and_then(of_description).unwrap_or_default()
}

/// Reads the bounds of queues that there are.
pub(super) async fn read_all(context: &Context, queues: &[String]) -> Result<Vec<(String, QueueBound)>, EngineError> {
    let mut bounds = Vec::new();
    for queue in queues {
        match stream(context, queue).await {
            Ok(stream) => bounds.push((queue.clone(), of_stream(&stream))),
            Err(BoundError::NoQueue) => {}
            Err(BoundError::Unknown(reason)) => {
                return Err(EngineError::Asset { name: queue_stream(queue, Tier::First), reason });
            }
        }
    }
    Ok(bounds)
}

/// Says what tasks of a queue may ask for from now on, unless there is nothing to say, and returns what they may.
pub(crate) async fn bound(
    access: &EngineAccess,
    queue: &str,
    bound: Option<&QueueBound>,
) -> Result<QueueBound, EngineError> {
    let connected = Connected::to(access).await?;
    let Connected { context, address, .. } = &connected;
    let work = async {
        let stream = stream(context, queue).await.map_err(|error| match error {
            BoundError::NoQueue => EngineError::NoQueue { address: address.clone(), queue: queue.into() },
            BoundError::Unknown(reason) => EngineError::Asset { name: queue_stream(queue, Tier::First), reason },
        })?;
        let Some(bound) = bound else { return Ok(of_stream(&stream)) };
        let config = &stream.cached_info().config;
        let found = config.description.as_deref().and_then(super::cluster_version);
        if found != Some(CLUSTER_VERSION) {
            return Err(EngineError::ClusterVersion { stream: config.name.clone(), found, own: CLUSTER_VERSION });
        }
        let config = StreamConfig { description: Some(description(Some(bound))), ..config.clone() };
        let changed = context.update_stream(&config).await;
        changed.map_err(|error| EngineError::Asset { name: config.name, reason: with_causes(&error) })?;
        Ok(bound.clone())
    };
    connected.unless_violated(work).await
}

impl Nats {
    /// Returns the answer to a task that asks for more than those of its queue may, or of which that cannot be known; none if it may go there.
    pub(super) async fn refuses(&self, queue: &str, asks_for: Option<&QueueBound>) -> Option<Answer> {
        let asks_for = asks_for?;
        let bound = match stream(&self.context, queue).await {
            Ok(stream) => of_stream(&stream),
            Err(BoundError::NoQueue) => return Some(Answer::Put(Err(PutError::NoQueue))),
            Err(BoundError::Unknown(_)) => return Some(Answer::Unreachable),
        };
        if bound.has(asks_for) {
            return None;
        }
        let QueueBound { num_cpus, resources } = bound.with(asks_for);
        let flags = resources.iter().map(|(name, amount)| format!(" --resource {name}={amount}")).collect::<String>();
        let reason = format!(
            "the task asks for {asks_for}, but one of the queue `{queue}` may ask for {bound}\n\
             (hint: ask for less, or have it permitted: `tracer engine queue {queue} --address {} --num-cpus {num_cpus}{flags}`)",
            self.address
        );
        Some(Answer::Put(Err(PutError::AsksForTooMuch(reason))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_the_version_and_the_bound_of_its_queue() {
        let bound = QueueBound { num_cpus: 4, resources: vec![("gpu".into(), 1)] };
        assert_eq!(description(Some(&bound)), "tracer, cluster version 1, a task may ask for cpus=4 gpu=1");
        assert_eq!(description(Some(&QueueBound::default())), "tracer, cluster version 1");
        for (bound, read) in [(Some(&bound), Some(bound.clone())), (None, None)] {
            let description = description(bound);
            assert_eq!(super::super::cluster_version(&description), Some(CLUSTER_VERSION));
            assert_eq!(of_description(&description), read);
        }
        assert_eq!(of_description("tracer, cluster version 1, a task may ask for the moon"), None);
    }
}
