//! Items that the attributes make and register: tasks, types of actors, hooks, functions that run when the module is loaded.

use tracer_abi::Tracing;

use crate::task::{Arguments, Outcome};

/// A task, as [`task`](crate::task) describes it.
#[derive(Debug)]
pub struct TaskItem {
    /// The function's name.
    pub name: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// The crate it is in.
    pub crate_name: &'static str,
    /// The version of that crate.
    pub crate_version: &'static str,
    /// Its name with the path to it.
    pub function_name: &'static str,
    /// The file it is in.
    pub file: &'static str,
    /// The line in it, from 1.
    pub line: u32,
    /// True if it is an `async fn`.
    pub is_async: bool,
    /// Parameters, in order.
    pub parameters: &'static [ParameterItem],
    /// Type of its result, as written.
    pub result_type: &'static str,
    /// Decodes the arguments, calls it and encodes the result.
    pub run: fn(&mut Arguments<'_>) -> Outcome,
}

/// A type of actors, as [`actor`](macro@crate::actor) describes it. What makes one is named `Type.new`, methods are `Type.method`.
#[derive(Debug)]
pub struct ActorItem {
    /// The type's name.
    pub name: &'static str,
    /// The documentation of the `impl` block.
    pub doc: &'static str,
    /// The crate it is in.
    pub crate_name: &'static str,
    /// The version of that crate.
    pub crate_version: &'static str,
    /// Its name with the path to it.
    pub function_name: &'static str,
    /// The file it is in.
    pub file: &'static str,
    /// The line in it, from 1.
    pub line: u32,
    /// Number of calls of concurrent methods that run at a time; at least 1.
    pub max_concurrency: u32,
    /// Task that makes an actor of the type.
    pub creation: &'static TaskItem,
    /// Methods that can be called.
    pub methods: &'static [MethodItem],
}

/// A method of an actor.
#[derive(Debug)]
pub struct MethodItem {
    /// The method, as a task that finds a state.
    pub task: TaskItem,
    /// True if calls of it may run beside each other.
    pub is_concurrent: bool,
}

/// A parameter of a task.
#[derive(Debug)]
pub struct ParameterItem {
    /// Its name.
    pub name: &'static str,
    /// Its type, as written.
    pub type_name: &'static str,
    /// True if it may be left out.
    pub is_optional: bool,
}

/// A tracing hook, as `startup_hook` or `tracing_exporter` describes it.
#[derive(Debug)]
pub struct HookItem {
    /// The function's name.
    pub name: &'static str,
    /// Its documentation.
    pub doc: &'static str,
    /// The crate it is in.
    pub crate_name: &'static str,
    /// The version of that crate.
    pub crate_version: &'static str,
    /// Its name with the path to it.
    pub function_name: &'static str,
    /// The file it is in.
    pub file: &'static str,
    /// The line in it, from 1.
    pub line: u32,
    /// `HOOK_STARTUP` or `HOOK_EXPORTER` of the contract.
    pub contract: u32,
    /// Calls it and turns what it returns into a table that lives as long as the process.
    pub setup: fn() -> Result<*const Tracing, String>,
}

/// A function that runs when the module is loaded, as [`on_load`](crate::on_load) describes it.
#[derive(Debug)]
pub struct LoadItem {
    /// Its name with the path to it.
    pub function_name: &'static str,
    /// The crate it is in.
    pub crate_name: &'static str,
    /// The version of that crate.
    pub crate_version: &'static str,
    /// The file it is in.
    pub file: &'static str,
    /// The line in it, from 1.
    pub line: u32,
    /// Calls it.
    pub run: fn() -> Result<(), String>,
}

inventory::collect!(ActorItem);
inventory::collect!(TaskItem);
inventory::collect!(HookItem);
inventory::collect!(LoadItem);
