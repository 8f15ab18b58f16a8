//! Batched functions and methods outside of a replica, as in the tests of a library: each call is a batch of its own.

// What is exported has to be `pub`, though nobody else sees it here.
#![allow(unreachable_pub, missing_docs)]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use tracer_sdk::serve::{Body, Json, Request, batch, deployment};

/// Doubles.
#[batch(max_size = 8, wait = "1h")]
async fn doubles(inputs: Vec<u32>) -> Vec<u32> {
    inputs.into_iter().map(|input| 2 * input).collect()
}

#[batch(max_size = 8)]
fn halves(inputs: Vec<u32>) -> Result<Vec<u32>, String> {
    let half = |input: u32| if input.is_multiple_of(2) { Ok(input / 2) } else { Err(format!("{input} is odd")) };
    inputs.into_iter().map(half).collect()
}

#[batch(max_size = 8)]
async fn nothing(_inputs: Vec<u32>) -> Vec<u32> {
    Vec::new()
}

#[batch(max_size = 8)]
fn panics(inputs: Vec<u32>) -> Vec<u32> {
    panic!("no {}", inputs[0])
}

/// Each request is a part of a batch; here in the other order of attributes.
#[batch(max_size = 8)]
#[deployment]
fn lengths(inputs: Vec<String>) -> Vec<Json<usize>> {
    inputs.iter().map(|input| Json(input.len())).collect()
}

pub struct Counter {
    batches: AtomicUsize,
}

#[deployment]
impl Counter {
    pub fn new() -> Self {
        Counter { batches: AtomicUsize::new(0) }
    }

    pub async fn handle(&self, request: Request<Body>) -> String {
        format!("{:?}", self.number(request.uri().path().len()).await)
    }

    /// Returns the number of the batch and the input.
    #[batch(max_size = 2)]
    #[allow(clippy::unused_async)]
    async fn number(&self, inputs: Vec<usize>) -> Vec<(usize, usize)> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        inputs.into_iter().map(|input| (number, input)).collect()
    }
}

/// Runs a future that has nothing to wait for, without a runtime.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn each_call_is_a_batch_of_its_own_and_waits_for_nobody() {
    assert_eq!(ready(doubles(4)), Ok(8));
    assert_eq!(ready(halves(4)), Ok(2));
    let counter = Counter::new();
    assert_eq!(ready(counter.number(7)), Ok((0, 7)));
    assert_eq!(ready(counter.number(8)), Ok((1, 8)));
    assert_eq!(ready(lengths("tea".into())), Ok(Json(3)));
}

#[test]
fn the_pool_of_a_runtime_runs_a_function_that_is_not_async() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    assert_eq!(runtime.block_on(halves(4)), Ok(2));
    let error = runtime.block_on(panics(3)).expect_err("it panics").to_string();
    assert!(error.starts_with("the batch of `panics` panicked: no 3"), "{error}");
}

#[test]
fn an_error_names_the_function_and_what_was_expected() {
    let text = |outcome: Result<u32, tracer_sdk::serve::BatchError>| outcome.expect_err("it fails").to_string();
    assert_eq!(text(ready(halves(3))), "the batch of `halves` failed: 3 is odd");
    assert_eq!(
        text(ready(nothing(3))),
        "the batch of `nothing` failed: expected as many outputs as inputs, 1, found 0"
    );
}
