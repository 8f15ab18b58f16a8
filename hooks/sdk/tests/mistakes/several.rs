// Everything that is wrong is said at once.
#[tracer_sdk::task]
unsafe extern "C" fn several<T: Default>(
    (a, b): (u8, u8),
    text: &mut String,
    shown: impl std::fmt::Display,
    _: u8,
) -> T {
    let _ = (a, b, text, shown);
    T::default()
}

fn main() {}
