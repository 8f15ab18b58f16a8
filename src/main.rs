//! The `tracer` command: parse, run, turn the outcome into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracer::cli::main()
}
