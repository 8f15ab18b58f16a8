#[tracer_sdk::task(name = "other")]
fn named() {}

fn main() {
    named();
}
