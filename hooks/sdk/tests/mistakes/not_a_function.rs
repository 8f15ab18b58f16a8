#[tracer_sdk::task]
struct Counter;

fn main() {
    let _ = Counter;
}
