#[derive(Debug)]
struct Opaque;

#[tracer_sdk::task]
fn fails() -> Result<u8, Opaque> {
    Err(Opaque)
}

fn main() {}
