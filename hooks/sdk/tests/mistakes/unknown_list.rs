#[tracer_sdk::task]
fn one() -> u8 {
    1
}

tracer_sdk::builtin_module!(fn module, actors = [one]);
tracer_sdk::export!(tasks = [one], tasks = [one]);

fn main() {}
