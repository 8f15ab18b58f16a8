//! An actor: a count that lives in a worker of its own, which whoever knows its name or has its handle adds to. Calls are spans below whoever
//! has made them, in whichever process that was.
//!
//! ```text
//! $ cargo build -p counter
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer submit actor counter:Counter 40 --name hits --max-restarts 3
//! 1
//! $ tracer submit call hits increment 2
//! 42
//! $ tracer submit task counter:count_words '["to be or", "not to be"]' hits
//! 48
//! $ tracer list actors
//! ```

use tracer_sdk::{ActorHandle, RemoteError, actor, find_actor, get_all, remote, task};

/// A count.
pub struct Counter {
    count: i64,
}

/// Counts, one call at a time.
#[actor]
impl Counter {
    /// Begins to count at `start`.
    pub fn new(start: Option<i64>) -> Counter {
        Counter { count: start.unwrap_or(0) }
    }

    /// Adds to the count, and returns it.
    pub fn increment(&mut self, by: i64) -> i64 {
        self.count += by;
        self.count
    }

    /// The count.
    pub async fn get(&self) -> i64 {
        self.count
    }

    /// Returns the sum of several counts. It has no `self`, so it is a task, `counter:Counter.sum`, and runs anywhere.
    pub fn sum(counts: Vec<i64>) -> i64 {
        counts.iter().sum()
    }
}

/// Adds the words of a text to a counter: a handle is an argument like any other.
#[task]
fn count_into(counter: ActorHandle, text: String) -> Result<(), RemoteError> {
    let words = i64::try_from(text.split_whitespace().count()).unwrap_or(i64::MAX);
    counter.call("increment").arg(words).submit()?.get::<i64>().map(drop)
}

/// Adds the words of many texts to the counter with this name, each in a task of its own, and returns the count.
#[task]
fn count_words(texts: Vec<String>, name: &str) -> Result<i64, RemoteError> {
    let counter = find_actor(name)?;
    let submit = |text| remote("counter:count_into").arg(&counter).arg(text).submit();
    get_all::<()>(texts.iter().map(submit).collect::<Result<Vec<_>, _>>()?)?;
    counter.call("get").submit()?.get()
}
