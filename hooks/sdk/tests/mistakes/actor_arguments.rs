// The attribute takes a limit, and is put on the block of a type.
pub struct Counter;

#[tracer_sdk::actor(threads = 4)]
impl Counter {
    pub fn new() -> Self {
        Counter
    }
}

pub struct Idle;

#[tracer_sdk::actor(max_concurrency = 0)]
impl Idle {
    pub fn new() -> Self {
        Idle
    }
}

#[tracer_sdk::actor]
impl Default for Idle {
    fn default() -> Self {
        Idle
    }
}

#[tracer_sdk::actor]
fn not_an_actor() {}

fn main() {}
