// `new` makes the state, and is public.
pub struct Counter;

#[tracer_sdk::actor]
impl Counter {
    fn new() -> Self {
        Counter
    }
}

pub struct Nothing;

#[tracer_sdk::actor]
impl Nothing {
    pub fn new() {}
}

pub struct Late;

#[tracer_sdk::actor]
impl Late {
    pub fn new(&self) -> Self {
        Late
    }
}

pub struct Other;

#[tracer_sdk::actor]
impl Other {
    pub fn new() -> Option<Self> {
        None
    }
}

fn main() {}
