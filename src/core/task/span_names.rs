//! Names of spans, by the target that is submitted. A process submits and runs the same few functions over and over, so
//! each name is put together once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::task::envelope::TaskSpec;
use crate::task::id::JobId;

/// Functions that are remembered. Beyond it all are forgotten, so that ever new ones do not fill the memory.
const KNOWN_LIMIT: usize = 1024;

/// The names of one target.
#[derive(Debug, PartialEq, Eq)]
pub struct SpanNames {
    /// Target in the form of [`TaskSpec::target`].
    pub target: String,
    /// The target and the suffix.
    pub span: String,
    /// Number among the functions of this process, from 1; 0 for a command.
    number: u32,
}

/// Number of functions that have been given names.
static FUNCTIONS: AtomicU32 = AtomicU32::new(0);

impl SpanNames {
    /// Returns the number of the attribute prefix that the spans of this function in this job start with, 0 for none. `is_known` tells spans
    /// apart whose prefix says where the function is defined.
    pub fn prefix_id(&self, job: JobId, is_known: bool) -> u64 {
        // All of it stands side by side in one number, or there is no promise.
        let (number, job) = (u64::from(self.number), job.0);
        if number == 0 || number >> 31 != 0 || job >> 32 != 0 {
            return 0;
        }
        // Whoever remembers some of them goes by the last bits.
        job << 32 | u64::from(is_known) << 31 | number
    }

    /// The same names with a number of their own, for a function of which something else is known.
    pub fn apart(&self) -> SpanNames {
        let number = if self.number == 0 { 0 } else { next_number() };
        SpanNames { target: self.target.clone(), span: self.span.clone(), number }
    }
}

/// Returns the number of the next function; 0 when there are none left.
fn next_number() -> u32 {
    // From the first number that would come again on, there are none.
    let before = FUNCTIONS.fetch_update(Relaxed, Relaxed, |count| count.checked_add(1));
    before.map_or(0, |before| before + 1)
}

/// Remembers the names of functions.
#[derive(Debug)]
pub struct SpanNameTable {
    suffix: &'static str,
    /// By module and function, so that a look-up needs no text of its own.
    functions: HashMap<Box<str>, HashMap<Box<str>, Arc<SpanNames>>>,
    len: usize,
    /// Last lookup, which mostly comes again.
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    /// Module and function; none for a command, which is not found again: a process costs so much more than its name.
    function: Option<(Box<str>, Box<str>)>,
    names: Arc<SpanNames>,
}

impl Last {
    fn is(&self, function: Option<(&str, &str)>) -> bool {
        match (&self.function, function) {
            (Some(own), Some(other)) => *own.1 == *other.1 && *own.0 == *other.0,
            _ => false,
        }
    }
}

impl SpanNameTable {
    /// Makes a table of spans that are named after their target and end in `suffix`.
    pub fn new(suffix: &'static str) -> SpanNameTable {
        SpanNameTable { suffix, functions: HashMap::new(), len: 0, last: None }
    }

    /// Returns the names for a task.
    pub fn of(&mut self, spec: &TaskSpec<'_>) -> &Arc<SpanNames> {
        let function = match spec {
            TaskSpec::Function(function) => Some((function.module, function.function)),
            TaskSpec::Command(_) => None,
        };
        if !self.last.as_ref().is_some_and(|last| last.is(function)) {
            let names = match function {
                Some((module, function)) => self.find(spec, module, function),
                None => self.make(spec, 0),
            };
            let function = function.map(|(module, function)| (module.into(), function.into()));
            self.last = Some(Last { function, names });
        }
        &self.last.as_ref().expect("it is there by now").names
    }

    fn find(&mut self, spec: &TaskSpec<'_>, module: &str, function: &str) -> Arc<SpanNames> {
        if let Some(known) = self.functions.get(module).and_then(|module| module.get(function)) {
            return Arc::clone(known);
        }
        if self.len >= KNOWN_LIMIT {
            self.functions.clear();
            self.len = 0;
        }
        let made = self.make(spec, next_number());
        self.functions.entry(module.into()).or_default().insert(function.into(), Arc::clone(&made));
        self.len += 1;
        made
    }

    fn make(&self, spec: &TaskSpec<'_>, number: u32) -> Arc<SpanNames> {
        let target = spec.target();
        let span = format!("{target} {}", self.suffix);
        Arc::new(SpanNames { target, span, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::envelope::{ActorRole, CommandSpec, FunctionSpec};
    use crate::task::id::TaskId;

    fn program() -> TaskSpec<'static> {
        TaskSpec::Command(CommandSpec {
            program: b"/bin/true",
            arguments: vec![],
            environment: vec![],
            replaces_environment: false,
            input: b"",
            directory: b"/",
        })
    }

    #[test]
    fn names_are_the_targets_with_the_suffix() {
        let mut table = SpanNameTable::new("suffix");
        let function = |module, function| TaskSpec::Function(FunctionSpec::of_task(module, function, &[]));
        for _ in 0..2 {
            assert_eq!(table.of(&function("a", "b.c")).span, "a.b.c suffix");
            assert_eq!(table.of(&function("/x/liba.so", "f")).span, "a.f suffix");
            assert_eq!(table.of(&function("a", "f")).target, "a.f");
        }
        assert_eq!(table.of(&program()).span, "true suffix");
        let method =
            FunctionSpec { actor: ActorRole::Call(TaskId(7)), ..FunctionSpec::of_task("a", "Type.method", &[]) };
        for _ in 0..2 {
            assert_eq!(table.of(&TaskSpec::Function(method)).span, "Type.method suffix");
        }
        assert_eq!(table.len, 4, "a function is remembered once, a command never");
    }

    #[test]
    fn a_prefix_is_of_one_function_in_one_job_of_which_the_same_is_known() {
        let (mut one, mut other) = (SpanNameTable::new("suffix"), SpanNameTable::new("suffix"));
        let function = |function| TaskSpec::Function(FunctionSpec::of_task("a", function, &[]));
        let mut names = |table: usize, name| Arc::clone([&mut one, &mut other][table].of(&function(name)));
        let all = [names(0, "f"), names(0, "g"), names(1, "f")];
        let ids: std::collections::HashSet<_> = all
            .iter()
            .flat_map(|names| {
                [(1, false), (2, false), (1, true)].map(|(job, is_known)| names.prefix_id(JobId(job), is_known))
            })
            .collect();
        assert_eq!(ids.len(), 9, "all are different");
        assert!(!ids.contains(&0));
        assert_eq!(one.of(&function("f")).prefix_id(JobId(1 << 32), true), 0, "no room for the job");
        assert_eq!(one.of(&program()).prefix_id(JobId(1), false), 0);
    }

    #[test]
    fn ever_new_functions_do_not_fill_the_memory() {
        let mut table = SpanNameTable::new("suffix");
        for number in 0..3 * KNOWN_LIMIT {
            let function = format!("f{number}");
            let spec = TaskSpec::Function(FunctionSpec::of_task("a", &function, &[]));
            assert_eq!(table.of(&spec).target, format!("a.{function}"));
            assert!(table.len <= KNOWN_LIMIT);
            assert_eq!(table.functions.values().map(HashMap::len).sum::<usize>(), table.len);
        }
    }
}
