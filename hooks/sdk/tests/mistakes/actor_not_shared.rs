// Calls that run beside each other share the state.
pub struct Cached {
    last: std::cell::Cell<u32>,
}

#[tracer_sdk::actor]
impl Cached {
    pub fn new() -> Self {
        Cached { last: std::cell::Cell::new(0) }
    }

    pub async fn last(&self) -> u32 {
        self.last.get()
    }
}

/// The same is fine where calls run one at a time.
pub struct Alone {
    last: std::rc::Rc<u32>,
}

#[tracer_sdk::actor]
impl Alone {
    pub fn new() -> Self {
        Alone { last: std::rc::Rc::new(0) }
    }

    pub async fn last(&mut self) -> u32 {
        *self.last
    }
}

fn main() {}
