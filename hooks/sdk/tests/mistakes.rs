//! Messages of the compiler about mistakes: a program for each in `mistakes`, with the words beside it.
//!
//! `TRYBUILD=overwrite cargo test -p tracer-sdk --test mistakes` writes the words anew; look at the difference before it
//! is committed. The words of the compiler's own part may change with its version; ours may not.

#[test]
fn mistakes_are_named_at_their_place() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
