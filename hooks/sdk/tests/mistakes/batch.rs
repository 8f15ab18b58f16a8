//! Batches that cannot be.

use tracer_sdk::serve::{Body, Request, batch, deployment};

#[batch]
async fn without_a_size(inputs: Vec<u8>) -> Vec<u8> {
    inputs
}

#[batch(max_size = 0)]
async fn of_nothing(inputs: Vec<u8>) -> Vec<u8> {
    inputs
}

#[batch(max_size = 8, wait = "5 apples")]
async fn with_a_wait_that_is_none(inputs: Vec<u8>) -> Vec<u8> {
    inputs
}

#[batch(max_size = 8, size = 3)]
async fn with_an_unknown_setting(inputs: Vec<u8>) -> Vec<u8> {
    inputs
}

#[batch(max_size = 8)]
async fn of_one(input: u8) -> Vec<u8> {
    vec![input]
}

#[batch(max_size = 8)]
async fn of_two_lists(inputs: Vec<u8>, more: Vec<u8>) -> Vec<u8> {
    inputs
}

#[batch(max_size = 8)]
fn into_nothing(inputs: Vec<u8>) {}

#[batch(max_size = 8)]
fn into_one(inputs: Vec<u8>) -> Result<u8, String> {
    Ok(0)
}

#[batch(max_size = 8)]
fn generic<T>(inputs: Vec<T>) -> Vec<T> {
    inputs
}

#[batch(max_size = 8)]
struct NotCode;

pub struct Alone;

impl Alone {
    #[batch(max_size = 8)]
    async fn predict(&self, inputs: Vec<u8>) -> Vec<u8> {
        inputs
    }
}

pub struct Model;

#[deployment(max_ongoing_requests = 16)]
impl Model {
    pub fn new() -> Self {
        Model
    }

    pub async fn handle(&self, request: Request<Body>) {}

    #[batch(max_size = 8)]
    async fn changes(&mut self, inputs: Vec<u8>) -> Vec<u8> {
        inputs
    }

    #[batch(max_size = 32)]
    async fn never_full(&self, inputs: Vec<u8>) -> Vec<u8> {
        inputs
    }

    #[batch(max_size = 8)]
    pub async fn health(&self, inputs: Vec<u8>) -> Vec<u8> {
        inputs
    }
}

fn main() {}
