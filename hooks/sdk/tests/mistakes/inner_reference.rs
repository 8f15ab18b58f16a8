#[tracer_sdk::task]
fn longest(texts: Vec<&str>, first: Option<&'static str>, kept: &'static str) -> usize {
    texts.len() + first.map_or(0, str::len) + kept.len()
}

fn main() {}
