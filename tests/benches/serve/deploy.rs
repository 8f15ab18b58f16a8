//! `tracer serve deploy` until new code answers: from the start of the command to the first answer of the new handler.

use std::process::Stdio;
use std::time::Instant;

use super::Failure;
use super::client::{Client, median};
use super::service::{Service, one};

/// Handlers that answer differently at `/`.
const HANDLERS: [(&str, &[u8]); 2] = [("handlers:inner", b"/"), ("handlers:app", b"hello")];

/// Measures and shows.
pub(crate) fn measure(_seconds: u32, runs: usize) -> Result<(), Failure> {
    let service = Service::start(&one("handlers:app"), true, &[])?;
    let (mut answers, mut commands) = (Vec::new(), Vec::new());
    // The first one does not count.
    for number in 0..=4 * runs {
        let (handler, answer) = HANDLERS[number % 2];
        let mut deploy = service.deploy(&one(handler))?;
        let begun = Instant::now();
        let mut deploying = deploy.stdout(Stdio::null()).spawn()?;
        let mut client = Client::connect(service.address())?;
        // A proxy that is replaced says so, and closes the connection.
        while !client.get("/").map(|(body, _)| body == answer)? {}
        let answered = begun.elapsed();
        if !deploying.wait()?.success() {
            return Err("a deploy has failed".into());
        }
        if number > 0 {
            answers.push(answered.as_secs_f64() * 1e3);
            commands.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    println!("\ndeploy: from the start of `tracer serve deploy` on");
    println!("new code answers after     {:>8.1} ms", median(answers));
    println!("the command has ended after{:>8.1} ms", median(commands));
    Ok(())
}
