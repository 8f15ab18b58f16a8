//! Footprint of a service that does nothing: memory of its processes, of an idle connection, and processor time.

use std::fs;
use std::thread;
use std::time::Duration;

use super::Failure;
use super::client::Client;
use super::cpu_time::cpu_ns;
use super::load::Load;
use super::service::{Service, one};

/// Connections that have had an answer, and nothing to do since.
const IDLE: usize = 2_000;

/// Measures memory and shows.
pub(crate) fn memory(seconds: u32, _runs: usize) -> Result<(), Failure> {
    let service = Service::start(&one("handlers:app"), true, &[])?;
    Load::get(32, "/").run(&service, seconds)?;
    println!("\nmemory: PSS in KiB, traced, after {seconds} s of requests over 32 connections");
    let mut sum = 0;
    for (name, pid) in service.all_processes() {
        let pss = pss_kib(pid)?;
        println!("{name:<26}{pss:>10}");
        sum += pss;
    }
    println!("{:<26}{sum:>10}", "together");
    let proxy = service.all_processes().into_iter().find(|(name, _)| name == "proxy").ok_or("no proxy")?.1;
    let mut clients = Vec::new();
    let connect = || -> Result<Client, Failure> {
        let mut client = Client::connect(service.address())?;
        client.get("/")?;
        Ok(client)
    };
    // The allocator's steps are large, so a part of them comes before.
    for _ in 0..IDLE / 10 {
        clients.push(connect()?);
    }
    let before = pss_kib(proxy)?;
    for _ in 0..IDLE {
        clients.push(connect()?);
    }
    println!("{:<26}{:>10.1}", "an idle connection", (pss_kib(proxy)? - before) as f64 / IDLE as f64);
    Ok(())
}

/// Measures an idle service and shows.
pub(crate) fn idle(seconds: u32, _runs: usize) -> Result<(), Failure> {
    let service = Service::start(&one("handlers:app"), true, &[])?;
    let mut client = Client::connect(service.address())?;
    for _ in 0..1_000 {
        client.get("/")?;
    }
    // What was begun comes to its end.
    thread::sleep(Duration::from_secs(2));
    println!("\nidle: in {seconds} s, with one connection that asks for nothing");
    let look = || -> Result<Vec<(u64, u64)>, Failure> {
        service.all_processes().iter().map(|(_, pid)| Ok((cpu_ns(*pid)?, switches(*pid)?))).collect()
    };
    let before = look()?;
    thread::sleep(Duration::from_secs(seconds.into()));
    println!("{:<26}{:>10}{:>10}", "", "CPU µs", "wake-ups");
    for ((name, _), ((cpu, woken), (cpu_before, woken_before))) in
        service.all_processes().into_iter().zip(look()?.into_iter().zip(before))
    {
        println!("{name:<26}{:>10.0}{:>10}", (cpu - cpu_before) as f64 / 1e3, woken - woken_before);
    }
    Ok(())
}

fn pss_kib(pid: u32) -> Result<i64, Failure> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let pss = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse().ok());
    pss.ok_or_else(|| format!("process {pid} does not say its PSS").into())
}

/// Times that the threads of a process have gone to sleep.
fn switches(pid: u32) -> Result<u64, Failure> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("status"))?;
        let count =
            text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok());
        sum += count.ok_or("a thread does not say how often it slept")?;
    }
    Ok(sum)
}
