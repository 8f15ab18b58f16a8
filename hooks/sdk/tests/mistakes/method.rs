struct Counter;

impl Counter {
    #[tracer_sdk::task]
    fn count(&self, text: String) -> usize {
        text.len()
    }
}

fn main() {}
