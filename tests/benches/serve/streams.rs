//! Event streams: a thousand connections, on each of which an event comes every tenth of a second, beside a bare hyper server of the same events.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

use super::client::median;
use super::load::cpu_of;
use super::service::{Service, one};
use super::{Failure, Server, floors};

const STREAMS: usize = 1_000;
const EVENT: &[u8] = b"data: hello\n\n";

/// Measures and shows.
pub(crate) fn measure(seconds: u32, runs: usize) -> Result<(), Failure> {
    let servers: [(&str, Box<dyn Server>); 3] = [
        ("bare hyper", floors::bare()?),
        ("tracer serve, untraced", serve(false)?),
        ("tracer serve, traced", serve(true)?),
    ];
    let mut found = [const { Vec::new() }; 3];
    for _ in 0..runs {
        for ((name, server), found) in servers.iter().zip(&mut found) {
            found.push(run(&**server, seconds).map_err(|error| format!("{name}: {error}"))?);
        }
    }
    println!("\nstreams: {STREAMS} connections with an event each 100 ms");
    println!("{:<26}{:>12}{:>14}{:>10}", "", "events/s", "CPU µs/event", "ratio");
    let mut floor = None;
    for ((name, _), found) in servers.iter().zip(found) {
        let (rates, cpu): (Vec<f64>, Vec<f64>) = found.into_iter().unzip();
        let cpu = median(cpu);
        let floor = *floor.get_or_insert(cpu);
        println!("{name:<26}{:>12.0}{cpu:>14.1}{:>10.2}", median(rates), cpu / floor);
    }
    Ok(())
}

/// Starts a service whose replica takes as many requests at a time as there are streams.
fn serve(is_traced: bool) -> Result<Box<dyn Server>, Failure> {
    let deployment = format!("import_path = \"handlers:app\"\nmax_ongoing_requests = {STREAMS}\n");
    let applications = format!("{}[[applications.deployments]]\n{deployment}", one("handlers:app"));
    Ok(Box::new(Service::start(&applications, is_traced, &[])?))
}

/// Returns events per second, and the CPU time of the server's processes for an event, in microseconds.
fn run(server: &dyn Server, seconds: u32) -> Result<(f64, f64), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let url = server.url();
    let address = url.strip_prefix("http://").ok_or("no address")?.to_owned();
    let bytes = Rc::new(Cell::new(0_usize));
    LocalSet::new().block_on(&runtime, async {
        let mut beginnings = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(b"GET /events HTTP/1.1\r\nhost: bench\r\n\r\n").await?;
            let bytes = Rc::clone(&bytes);
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            beginnings.push(has_begun);
            spawn_local(async move {
                let (mut begun, mut buffer) = (Some(begun), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    // The head of the answer comes first, and alone or with the first event.
                    match begun.take() {
                        Some(begun) => drop(begun.send(())),
                        None => bytes.set(bytes.get() + count),
                    }
                }
            });
        }
        for begun in beginnings {
            begun.await?;
        }
        let (before, bytes_before) = (cpu_of(server)?, bytes.get());
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        // An event in a chunk.
        let events = (bytes.get() - bytes_before) as f64 / (EVENT.len() + "d\r\n\r\n".len()) as f64;
        let cpu: u64 = cpu_of(server)?.iter().zip(&before).map(|((_, after), (_, before))| after - before).sum();
        let expected = (STREAMS as u32 * seconds * 10) as f64;
        if events < expected * 0.9 {
            return Err(format!("{events:.0} events have come, expected {expected:.0}").into());
        }
        Ok((events / f64::from(seconds), cpu as f64 / 1e3 / events))
    })
}
