//! Inputs of a batch that cannot go to the thread that runs it.

use std::rc::Rc;

use tracer_sdk::serve::batch;

#[batch(max_size = 8)]
async fn counted(inputs: Vec<Rc<u8>>) -> Vec<u8> {
    inputs.iter().map(|input| **input).collect()
}

fn main() {}
