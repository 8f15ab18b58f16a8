//! What is submitted, by the names that its spans carry. A process submits and runs the same few functions over and over, so
//! their names are put together once.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ActorRole, FunctionSpec, TaskSpec};

/// Functions that are remembered. Beyond it all are forgotten, so that ever new ones do not fill the memory.
const KNOWN_LIMIT: usize = 1024;

/// The names of one target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpanNames {
    /// As [`TaskSpec::target`] has it.
    pub(crate) target: String,
    /// The target and the suffix.
    pub(crate) span: String,
}

/// Remembers the names of functions.
#[derive(Debug)]
pub(crate) struct SpanNameTable {
    suffix: &'static str,
    /// By module and function, so that a look-up needs no text of its own.
    functions: HashMap<Box<str>, HashMap<Box<str>, Arc<SpanNames>>>,
    len: usize,
    /// The function looked up last, which mostly comes again.
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    module: Box<str>,
    function: Box<str>,
    names: Arc<SpanNames>,
}

impl SpanNameTable {
    /// A table of spans that are named after their target and end in `suffix`.
    pub(crate) fn new(suffix: &'static str) -> SpanNameTable {
        SpanNameTable { suffix, functions: HashMap::new(), len: 0, last: None }
    }

    /// The names for a task.
    pub(crate) fn of(&mut self, spec: &TaskSpec<'_>) -> Arc<SpanNames> {
        match spec {
            TaskSpec::Function(function) => self.of_function(spec, function),
            // A process costs so much more that its name need not be remembered.
            TaskSpec::Command(_) => self.make(spec),
        }
    }

    fn of_function(&mut self, spec: &TaskSpec<'_>, function: &FunctionSpec<'_>) -> Arc<SpanNames> {
        // The names of an actor's methods do not have the module in them.
        let module = if function.actor == ActorRole::None { function.module } else { "" };
        if let Some(last) = &self.last
            && *last.function == *function.function
            && *last.module == *module
        {
            return Arc::clone(&last.names);
        }
        let names = self.find(spec, module, function);
        let (module, function) = (module.into(), function.function.into());
        self.last = Some(Last { module, function, names: Arc::clone(&names) });
        names
    }

    fn find(&mut self, spec: &TaskSpec<'_>, module: &str, function: &FunctionSpec<'_>) -> Arc<SpanNames> {
        if let Some(known) = self.functions.get(module).and_then(|module| module.get(function.function)) {
            return Arc::clone(known);
        }
        if self.len >= KNOWN_LIMIT {
            self.functions.clear();
            self.len = 0;
        }
        let made = self.make(spec);
        self.functions.entry(module.into()).or_default().insert(function.function.into(), Arc::clone(&made));
        self.len += 1;
        made
    }

    fn make(&self, spec: &TaskSpec<'_>) -> Arc<SpanNames> {
        let target = spec.target();
        let span = format!("{target} {}", self.suffix);
        Arc::new(SpanNames { target, span })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{CommandSpec, TaskId};

    #[test]
    fn names_are_the_targets_with_the_suffix() {
        let mut table = SpanNameTable::new("suffix");
        let function = |module, function| TaskSpec::Function(FunctionSpec::of_task(module, function, &[]));
        for _ in 0..2 {
            assert_eq!(table.of(&function("a", "b.c")).span, "a.b.c suffix");
            assert_eq!(table.of(&function("/x/liba.so", "f")).span, "a.f suffix");
            assert_eq!(table.of(&function("a", "f")).target, "a.f");
        }
        let program = CommandSpec { program: b"/bin/true", arguments: vec![], environment: vec![], directory: b"/" };
        assert_eq!(table.of(&TaskSpec::Command(program)).span, "true suffix");
        let method = FunctionSpec { actor: ActorRole::Call(TaskId(7)), ..FunctionSpec::of_task("a", "b.c", &[]) };
        for _ in 0..2 {
            assert_eq!(table.of(&TaskSpec::Function(method)).span, "b.c suffix");
        }
        assert_eq!(table.len, 4, "a function is remembered once, a command never");
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
