//! Output of commands that run at the same time: standard output of each in one piece, standard error by whole lines.

use std::collections::HashMap;

use tracer_client::driver::TaskOutput;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::Stream;

use super::super::super::report;

/// Bytes of standard output that are kept of a command that runs, unless the order of the lines is.
const KEPT: usize = 1 << 20;
/// Bytes of a line without an end.
const LINE: usize = 64 << 10;

/// Output of commands that was not printed yet.
pub(super) struct Outputs {
    name: String,
    keeps_all: bool,
    open: HashMap<TaskId, Open>,
}

#[derive(Default)]
struct Open {
    prefix: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Output that is to be printed now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    /// Name and process, before each line of standard error.
    pub(super) prefix: String,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl Outputs {
    /// Begins without any, of commands of this name.
    pub(super) fn of(name: &str, keeps_all: bool) -> Outputs {
        Outputs { name: report::name(name), keeps_all, open: HashMap::new() }
    }

    /// Adds what a command has written, and returns what of it need not wait.
    pub(super) fn add(&mut self, output: TaskOutput) -> Ready {
        let open = self.open.entry(output.id).or_default();
        open.prefix = match &*output.node_id {
            "" => format!("({} pid={}) ", self.name, output.worker_pid),
            node => format!("({} pid={} node={}) ", self.name, output.worker_pid, report::name(node)),
        };
        let mut ready = Ready { prefix: open.prefix.clone(), ..Ready::default() };
        if output.lost.bytes > 0 {
            ready.stderr = format!("[{} bytes of its output did not arrive]\n", output.lost.bytes).into_bytes();
        }
        match output.stream {
            Stream::Stdout => {
                open.stdout.extend_from_slice(&output.bytes);
                if !self.keeps_all && open.stdout.len() > KEPT {
                    ready.stdout = take_lines(&mut open.stdout, KEPT);
                }
            }
            Stream::Stderr => {
                open.stderr.extend_from_slice(&output.bytes);
                ready.stderr.extend(take_lines(&mut open.stderr, LINE));
            }
        }
        ready
    }

    /// Returns the rest of a command that has ended.
    pub(super) fn end(&mut self, task: TaskId) -> Ready {
        let Open { prefix, stdout, stderr } = self.open.remove(&task).unwrap_or_default();
        Ready { prefix, stdout, stderr }
    }
}

/// Takes out the whole lines; all of it if it has none in so many bytes.
fn take_lines(text: &mut Vec<u8>, limit: usize) -> Vec<u8> {
    let end = match memchr::memrchr(b'\n', text) {
        Some(end) => end + 1,
        None if text.len() > limit => text.len(),
        None => 0,
    };
    text.drain(..end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(id: u64, stream: Stream, bytes: &[u8]) -> TaskOutput {
        TaskOutput {
            id: TaskId(id),
            worker_pid: 7,
            stream,
            is_shared: false,
            node_id: "".into(),
            lost: Default::default(),
            bytes: bytes.into(),
        }
    }

    #[test]
    fn what_two_write_at_a_time_is_not_mixed() {
        let mut outputs = Outputs::of("wc", false);
        assert_eq!(outputs.add(output(1, Stream::Stdout, b"a\nb")).stdout, b"");
        assert_eq!(outputs.add(output(2, Stream::Stdout, b"c\n")).stdout, b"");
        let ready = outputs.add(output(1, Stream::Stderr, b"e1\ne"));
        assert_eq!((ready.prefix.as_str(), ready.stderr.as_slice()), ("(wc pid=7) ", &b"e1\n"[..]));
        let rest = outputs.end(TaskId(1));
        assert_eq!((rest.stdout.as_slice(), rest.stderr.as_slice()), (&b"a\nb"[..], &b"e"[..]));
        assert_eq!((outputs.end(TaskId(2)).stdout, outputs.end(TaskId(2))), (b"c\n".to_vec(), Ready::default()));
    }

    #[test]
    fn one_that_writes_without_end_is_passed_on_by_whole_lines() {
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let (mut outputs, mut passed) = (Outputs::of("yes", false), 0);
        for _ in 0..50_000 {
            let ready = outputs.add(output(1, Stream::Stdout, &line));
            passed += ready.stdout.len();
            assert!(ready.stdout.len() % 100 == 0 && outputs.open[&TaskId(1)].stdout.len() <= KEPT);
        }
        assert!(passed > 3 << 20);
    }
}
