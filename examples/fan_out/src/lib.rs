//! A task that hands its work out to other tasks, which run wherever there is room, and sums what they return. It is all one
//! trace, across the processes: each inner task hangs below the one that has submitted it.
//!
//! ```text
//! $ cargo build -p fan_out -p wordcount
//! $ export TRACER_MODULE_PATH=$PWD/target/debug
//! $ tracer submit task fan_out:count_lines '["to be or", "not to be"]'
//! 6
//! $ tracer trace show last
//! ```

use tracer_sdk::{RemoteError, get_all, remote, task, wait_any};

/// Counts the words of many lines, each in a task of its own. If one fails, so does this, and says which.
#[task]
fn count_lines(lines: Vec<String>) -> Result<u64, RemoteError> {
    let submit = |line| remote("wordcount:count").arg(line).submit();
    // All are submitted before the first is waited for.
    let tasks = lines.iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    Ok(get_all::<u64>(tasks)?.iter().sum())
}

/// The first line with more than `least` words, as soon as one is known; the others are not waited for.
#[task]
fn find_line(lines: Vec<String>, least: u64) -> Result<Option<u64>, RemoteError> {
    let mut tasks = Vec::new();
    for line in &lines {
        tasks.push(remote("wordcount:count").arg(line).submit()?);
    }
    while let Some(task) = wait_any(&mut tasks)? {
        let words: u64 = task.get()?;
        if words > least {
            return Ok(Some(words));
        }
    }
    Ok(None)
}
