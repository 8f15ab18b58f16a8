struct Opaque;

#[tracer_sdk::task]
fn plain() -> Opaque {
    Opaque
}

#[tracer_sdk::task]
fn fallible() -> Result<Opaque, String> {
    Ok(Opaque)
}

fn main() {}
