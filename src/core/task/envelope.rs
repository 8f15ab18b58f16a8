//! The description of a task as it travels.
//!
//! The head keeps the bytes for as long as the task is open, and there may be very many: optional fields that are absent are not encoded.

mod older;

use std::time::Duration;

use super::ExtraOptions;
use crate::codec::{Put, Take, WireError, text};
use crate::place_id::{ClusterTaskId, PlaceId};
use crate::stored::Stored;
use crate::task::demand::Demand;
use crate::task::id::TaskId;
use crate::task::module_version::ModuleVersion;
use crate::task::policy::Policy;

/// Everything about a task that is known when it is submitted. Borrowed from the frame or from the head's copy of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<'a> {
    /// Function, method or command to run.
    pub spec: TaskSpec<'a>,
    /// The name given with `--name`; empty for none.
    pub name: &'a str,
    /// The longest an attempt may run.
    pub run_limit: Option<Duration>,
    /// Policy for an attempt that fails.
    pub policy: Policy<'a>,
    /// Slots and resources that it needs while it runs.
    pub demand: Demand<'a>,
    /// The version of the module that it runs; none where its submitter does not know it, and for what runs no module of its own.
    pub module_version: Option<ModuleVersion>,
    /// SHA-256 of the library of that version at the [`origin`](Self::origin), without which it is not encoded; none where that has no such library.
    pub module_digest: Option<[u8; 32]>,
    /// True if the driver wants to see the task's output while it runs.
    pub wants_output: bool,
    /// True if the runtime's own work for the task is traced too.
    pub traces_runtime: bool,
    /// The span that the attempts are children of.
    pub trace: Option<TraceLink<'a>>,
    /// The W3C baggage that comes with it; empty for none.
    pub baggage: &'a str,
    /// The task that submitted it; none for a driver's.
    pub submitter: Option<TaskId>,
    /// Arguments whose values are elsewhere, in their order; nil stands in their place.
    pub inputs: Vec<Input>,
    /// Its id in the cluster, if it has come over a queue.
    pub origin: Option<ClusterTaskId>,
    /// Offsets of the clocks of its two nodes, if it has come over a queue and one of them is worth saying. The agent of the node that runs it says so.
    pub clocks: Option<ClockOffsets>,
}

/// Offsets of the clocks that the times of a shared task are from, in nanoseconds: what each clock is ahead of the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffsets {
    /// Offset of the clock of its origin.
    pub origin_ns: i64,
    /// Offset of the clock of its holder.
    pub holder_ns: i64,
}

/// The beginning of an envelope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnvelopeHead<'a> {
    /// See [`Envelope::name`].
    pub name: &'a str,
    /// Trace id of [`Envelope::trace`]; all zero for none.
    pub trace_id: [u8; 16],
}

/// An argument whose value does not travel in the envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Index of the argument, from 0.
    pub argument: u32,
    /// Source of its value.
    pub source: InputSource,
}

/// Source of the value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// It is the result of this task. The task with this input starts when that one has ended.
    Task(TaskId),
    /// It is large, and in a file. The file goes with the task that has it as an input.
    Stored(Stored),
}

impl Input {
    /// Returns the task whose result it is.
    pub fn task(&self) -> Option<TaskId> {
        match self.source {
            InputSource::Task(task) => Some(task),
            InputSource::Stored(_) => None,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.argument);
        match &self.source {
            InputSource::Task(task) => {
                out.put_u8(OF_TASK);
                out.put_u64(task.0);
            }
            InputSource::Stored(stored) => {
                out.put_u8(OF_FILE);
                stored.put(out);
            }
        }
    }

    fn take(take: &mut Take<'_>) -> Result<Input, WireError> {
        let argument = take.u32()?;
        let source = match take.u8()? {
            OF_TASK => InputSource::Task(TaskId(take.u64()?)),
            OF_FILE => InputSource::Stored(Stored::take(take)?),
            _ => return Err(WireError::UnknownValue("input")),
        };
        Ok(Input { argument, source })
    }
}

const OF_TASK: u8 = 0;
const OF_FILE: u8 = 1;

/// Code that a task runs: a function or a program.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskSpec<'a> {
    /// A function of a module, called in the worker's process.
    Function(FunctionSpec<'a>),
    /// A program, run as a child of the worker.
    Command(CommandSpec<'a>),
}

/// A function of a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FunctionSpec<'a> {
    /// A module's name, or the path of its library.
    pub module: &'a str,
    /// The task's name in its module.
    pub function: &'a str,
    /// A MessagePack array.
    pub arguments: &'a [u8],
    /// Returns its relation to an actor.
    pub actor: ActorRole<'a>,
}

/// Relation of a function to an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActorRole<'a> {
    /// Nothing: the many.
    #[default]
    None,
    /// It makes one, whose id is the task's. The function is `Type.new`.
    Create(ActorOptions<'a>),
    /// It is a method of this actor, `Type.method`.
    Call(TaskId),
}

/// Options of an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActorOptions<'a> {
    /// Limit of how often it is made again when its worker was lost.
    pub max_restarts: u32,
    /// Limit of how often a call is begun again that was going on when the actor's worker was lost.
    pub max_call_retries: u32,
    /// True if it outlives the job that has created it.
    pub is_detached: bool,
    /// True if the living actor of the same name is given, if there is one.
    pub or_existing: bool,
    /// A name of its own, by which others find it; empty for none.
    pub name: &'a str,
}

impl<'a> From<&'a tracer_options::ActorOptions> for ActorOptions<'a> {
    fn from(options: &'a tracer_options::ActorOptions) -> ActorOptions<'a> {
        ActorOptions {
            max_restarts: options.max_restarts,
            max_call_retries: options.max_call_retries,
            is_detached: options.detached,
            or_existing: options.get_or_create,
            name: &options.name,
        }
    }
}

impl<'a> ActorOptions<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.max_restarts);
        out.put_u32(self.max_call_retries);
        out.put_u8(u8::from(self.is_detached) | u8::from(self.or_existing) << 1);
        out.put_str(self.name);
    }

    fn take(take: &mut Take<'a>) -> Result<ActorOptions<'a>, WireError> {
        let (max_restarts, max_call_retries) = (take.u32()?, take.u32()?);
        let flags = match take.u8()? {
            flags @ 0..=3 => flags,
            _ => return Err(WireError::UnknownValue("actor")),
        };
        let (is_detached, or_existing) = (flags & 1 != 0, flags & 2 != 0);
        Ok(ActorOptions { max_restarts, max_call_retries, is_detached, or_existing, name: take.str()? })
    }
}

/// A program with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandSpec<'a> {
    /// A path, or a name that is looked for in `PATH`. Paths, like all bytes here, are as the system has them: not
    /// always UTF-8.
    pub program: &'a [u8],
    /// The program's arguments, without its own name at their head.
    pub arguments: Vec<&'a [u8]>,
    /// Set on top of the environment that the worker had before its first task, or all that there is.
    pub environment: Vec<(&'a [u8], &'a [u8])>,
    /// True if [`environment`](Self::environment) stands in place of the worker's.
    pub replaces_environment: bool,
    /// The socket on which its submitter hands over the standard input; empty for no input.
    pub input: &'a [u8],
    /// The working directory.
    pub directory: &'a [u8],
}

impl<'a> TaskSpec<'a> {
    /// Describes a command without input, whose environment is the worker's with `environment` on top of it.
    pub fn command(
        program: &'a [u8],
        arguments: Vec<&'a [u8]>,
        environment: Vec<(&'a [u8], &'a [u8])>,
        directory: &'a [u8],
    ) -> TaskSpec<'a> {
        TaskSpec::Command(CommandSpec {
            program,
            arguments,
            environment,
            replaces_environment: false,
            input: b"",
            directory,
        })
    }
}

/// A span in another process, as W3C Trace Context describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLink<'a> {
    /// Trace id; all zero counts as none.
    pub trace_id: [u8; 16],
    /// Span id of the parent in that trace.
    pub span_id: [u8; 8],
    /// The W3C trace flags: bit 0 says sampled, bit 1 that the trace id is random.
    pub trace_flags: u8,
    /// The W3C `tracestate` header; empty for none.
    pub trace_state: &'a str,
}

impl<'a> TraceLink<'a> {
    /// Takes it from an encoded envelope with these flags.
    fn take(flags: u16, take: &mut Take<'a>) -> Result<TraceLink<'a>, WireError> {
        let (trace_id, span_id, trace_flags) = (take.array()?, take.array()?, take.u8()?);
        let trace_state = if flags & HAS_TRACE_STATE != 0 { take.short_str()? } else { "" };
        Ok(TraceLink { trace_id, span_id, trace_flags, trace_state })
    }
}

const FUNCTION: u8 = 0;
const COMMAND: u8 = 1;
const CREATE: u8 = 2;
const CALL: u8 = 3;
/// A command with input or with an environment of its own.
const COMMAND_AS_SUBMITTED: u8 = 4;

// What the flags say, which are the first two bytes. Those of the first byte are where they always were. Each bit has a meaning: one more flag needs a further byte.
const WANTS_OUTPUT: u16 = 1;
const HAS_TRACE: u16 = 2;
const HAS_SUBMITTER: u16 = 4;
const HAS_INPUTS: u16 = 8;
const HAS_POLICY: u16 = 16;
const HAS_DEMAND: u16 = 32;
const HAS_CLOCKS: u16 = 64;
const TRACES_RUNTIME: u16 = 128;
const HAS_NAME: u16 = 256;
const HAS_TRACE_STATE: u16 = 512;
const HAS_BAGGAGE: u16 = 1024;
const HAS_RUN_LIMIT: u16 = 2048;
const HAS_MODULE_VERSION: u16 = 4096;
const HAS_EXTRA: u16 = 8192;
const HAS_QUEUE: u16 = 16384;
const HAS_ORIGIN: u16 = 32768;
impl<'a> Envelope<'a> {
    /// Returns the description of a task of which nothing is said but what it runs.
    pub fn of(spec: TaskSpec<'a>) -> Envelope<'a> {
        Envelope {
            spec,
            name: "",
            run_limit: None,
            policy: Policy::default(),
            demand: Demand::default(),
            module_version: None,
            module_digest: None,
            wants_output: false,
            traces_runtime: false,
            trace: None,
            baggage: "",
            submitter: None,
            inputs: Vec::new(),
            origin: None,
            clocks: None,
        }
    }

    /// Appends the envelope to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Policy { extra, queue, .. } = self.policy;
        let has_policy = self.policy != Policy { extra, queue, ..Policy::default() };
        let (has_demand, has_extra) = (self.demand != Demand::default(), extra != ExtraOptions::NONE);
        let trace_state = self.trace.as_ref().map_or("", |trace| trace.trace_state);
        let run_limit = self.run_limit.filter(|limit| !limit.is_zero());
        let flags = [
            (WANTS_OUTPUT, self.wants_output),
            (HAS_TRACE, self.trace.is_some()),
            (HAS_SUBMITTER, self.submitter.is_some()),
            (HAS_INPUTS, !self.inputs.is_empty()),
            (HAS_POLICY, has_policy),
            (HAS_DEMAND, has_demand),
            (HAS_CLOCKS, self.clocks.is_some()),
            (TRACES_RUNTIME, self.traces_runtime),
            (HAS_NAME, !self.name.is_empty()),
            (HAS_TRACE_STATE, !trace_state.is_empty()),
            (HAS_BAGGAGE, !self.baggage.is_empty()),
            (HAS_RUN_LIMIT, run_limit.is_some()),
            (HAS_MODULE_VERSION, self.module_version.is_some()),
            (HAS_EXTRA, has_extra),
            (HAS_QUEUE, !queue.is_empty()),
            (HAS_ORIGIN, self.origin.is_some()),
        ];
        let flags = flags.into_iter().filter(|&(_, is_set)| is_set).fold(0, |flags, (flag, _)| flags | flag);
        out.put_exact(&u16::to_le_bytes(flags));
        if !self.name.is_empty() {
            out.put_short(self.name.as_bytes());
        }
        if let Some(trace) = &self.trace {
            out.put_exact(&trace.trace_id);
            out.put_exact(&trace.span_id);
            out.put_u8(trace.trace_flags);
        }
        for text in [trace_state, self.baggage] {
            if !text.is_empty() {
                out.put_short(text.as_bytes());
            }
        }
        if let Some(limit) = run_limit {
            out.put_u64(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        }
        if let Some(submitter) = self.submitter {
            out.put_u64(submitter.0);
        }
        if !self.inputs.is_empty() {
            out.put_u32(self.inputs.len() as u32);
            self.inputs.iter().for_each(|input| input.put(out));
        }
        if has_policy {
            self.policy.encode(out);
        }
        if has_demand {
            self.demand.encode(out);
        }
        if let Some(version) = self.module_version {
            out.put_u64(version.number());
        }
        if has_extra {
            let mut said = Vec::new();
            extra.put(&mut said);
            out.put_short(&said);
        }
        if !queue.is_empty() {
            out.put_short(queue.as_bytes());
        }
        if let Some(ClusterTaskId { place, task }) = self.origin {
            out.put_u64(place.0);
            out.put_u64(task.0);
            out.put_u8(self.module_digest.is_some().into());
            self.module_digest.iter().for_each(|digest| out.put_exact(digest));
        }
        if let Some(ClockOffsets { origin_ns, holder_ns }) = self.clocks {
            out.put_exact(&origin_ns.to_le_bytes());
            out.put_exact(&holder_ns.to_le_bytes());
        }
        self.spec.encode(out, Put::put_short);
    }

    /// Takes an envelope apart that fills `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Envelope<'a>, WireError> {
        let mut take = Take::new(bytes);
        let flags = u16::from_le_bytes(take.array()?);
        let has = |flag| flags & flag != 0;
        let text_if = |flag, take: &mut Take<'a>| if has(flag) { take.short_str() } else { Ok("") };
        let name = text_if(HAS_NAME, &mut take)?;
        let trace = if has(HAS_TRACE) { Some(TraceLink::take(flags, &mut take)?) } else { None };
        let baggage = text_if(HAS_BAGGAGE, &mut take)?;
        let run_limit = if has(HAS_RUN_LIMIT) { take_limit(&mut take)? } else { None };
        let submitter = has(HAS_SUBMITTER).then(|| take.u64().map(TaskId)).transpose()?;
        let inputs = if has(HAS_INPUTS) { take_inputs(&mut take)? } else { Vec::new() };
        let mut policy = if has(HAS_POLICY) { Policy::take(&mut take)? } else { Policy::default() };
        let demand = if has(HAS_DEMAND) { Demand::take(&mut take)? } else { Demand::default() };
        let module_version = if has(HAS_MODULE_VERSION) { ModuleVersion::of_number(take.u64()?) } else { None };
        if has(HAS_EXTRA) {
            policy.extra = ExtraOptions::take(take.short()?).map_err(|_| WireError::UnknownValue("options"))?;
        }
        policy.queue = text_if(HAS_QUEUE, &mut take)?;
        let (mut origin, mut module_digest) = (None, None);
        if has(HAS_ORIGIN) {
            origin = Some(ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) });
            module_digest = match take.u8()? {
                0 => None,
                1 => Some(take.array()?),
                _ => return Err(WireError::UnknownValue("digest of a module")),
            };
        }
        let mut offset = || take.array().map(i64::from_le_bytes);
        let clocks =
            if has(HAS_CLOCKS) { Some(ClockOffsets { origin_ns: offset()?, holder_ns: offset()? }) } else { None };
        let spec = TaskSpec::take(&mut take, Take::short)?;
        take.finish()?;
        let (wants_output, traces_runtime) = (has(WANTS_OUTPUT), has(TRACES_RUNTIME));
        Ok(Envelope {
            spec,
            name,
            run_limit,
            policy,
            demand,
            module_version,
            module_digest,
            wants_output,
            traces_runtime,
            trace,
            baggage,
            submitter,
            inputs,
            origin,
            clocks,
        })
    }

    /// Decodes the trace of an encoded envelope, without a look at what follows.
    pub fn trace_of(bytes: &'a [u8]) -> Option<TraceLink<'a>> {
        let mut take = Take::new(bytes);
        let flags = u16::from_le_bytes(take.array().ok()?);
        if flags & HAS_TRACE == 0 {
            return None;
        }
        if flags & HAS_NAME != 0 {
            take.short_str().ok()?;
        }
        TraceLink::take(flags, &mut take).ok()
    }

    /// Decodes the beginning of an encoded envelope, without a look at the rest.
    pub fn head_of(bytes: &'a [u8]) -> Option<EnvelopeHead<'a>> {
        let mut take = Take::new(bytes);
        let flags = u16::from_le_bytes(take.array().ok()?);
        let name = if flags & HAS_NAME != 0 { take.short_str().ok()? } else { "" };
        let trace_id = if flags & HAS_TRACE != 0 { take.array().ok()? } else { [0; 16] };
        Some(EnvelopeHead { name, trace_id })
    }

    /// Returns whether an encoded envelope has [`clocks`](Self::clocks).
    pub fn has_clocks(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|&flags| u16::from(flags) & HAS_CLOCKS != 0)
    }

    /// Returns whether an encoded envelope has [`inputs`](Self::inputs). True for what is too short to be one.
    pub fn has_inputs(bytes: &[u8]) -> bool {
        bytes.first_chunk().is_none_or(|flags| u16::from_le_bytes(*flags) & HAS_INPUTS != 0)
    }

    /// [`traces_runtime`](Self::traces_runtime) of an encoded envelope.
    pub fn traces_runtime_of(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|&flags| u16::from(flags) & TRACES_RUNTIME != 0)
    }
}

/// Zero is for no limit.
fn take_limit(take: &mut Take<'_>) -> Result<Option<Duration>, WireError> {
    Ok(Some(take.u64()?).filter(|&limit| limit != 0).map(Duration::from_nanos))
}

fn take_inputs(take: &mut Take<'_>) -> Result<Vec<Input>, WireError> {
    (0..take.u32()?).map(|_| Input::take(take)).collect()
}

impl<'a> FunctionSpec<'a> {
    /// Returns a function that has nothing to do with an actor.
    pub fn of_task(module: &'a str, function: &'a str, arguments: &'a [u8]) -> FunctionSpec<'a> {
        FunctionSpec { module, function, arguments, actor: ActorRole::None }
    }
}

impl<'a> TaskSpec<'a> {
    /// Stands for what is run, with its arguments: the same in every process and every version (FNV-1a of its bytes as they once went over the
    /// wire).
    pub fn fingerprint(&self) -> u64 {
        let mut bytes = Vec::new();
        self.encode(&mut bytes, Put::put_bytes);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// Appends it, with its parts as `put` does it.
    fn encode(&self, out: &mut Vec<u8>, put: impl Fn(&mut Vec<u8>, &[u8])) {
        match self {
            TaskSpec::Function(function) => {
                out.put_u8(match function.actor {
                    ActorRole::None => FUNCTION,
                    ActorRole::Create(_) => CREATE,
                    ActorRole::Call(_) => CALL,
                });
                put(out, function.module.as_bytes());
                put(out, function.function.as_bytes());
                put(out, function.arguments);
                match function.actor {
                    ActorRole::None => {}
                    ActorRole::Create(options) => options.put(out),
                    ActorRole::Call(actor) => out.put_u64(actor.0),
                }
            }
            TaskSpec::Command(command) => {
                let is_plain = command.input.is_empty() && !command.replaces_environment;
                out.put_u8(if is_plain { COMMAND } else { COMMAND_AS_SUBMITTED });
                put(out, command.program);
                out.put_u32(command.arguments.len() as u32);
                command.arguments.iter().for_each(|argument| put(out, argument));
                out.put_u32(command.environment.len() as u32);
                for (key, value) in &command.environment {
                    put(out, key);
                    put(out, value);
                }
                put(out, command.directory);
                if !is_plain {
                    out.put_u8(u8::from(command.replaces_environment));
                    put(out, command.input);
                }
            }
        }
    }

    /// Takes one whose parts `bytes` takes.
    fn take(
        take: &mut Take<'a>,
        bytes: impl Fn(&mut Take<'a>) -> Result<&'a [u8], WireError>,
    ) -> Result<TaskSpec<'a>, WireError> {
        Ok(match take.u8()? {
            kind @ (FUNCTION | CREATE | CALL) => TaskSpec::Function(FunctionSpec {
                module: text(bytes(take)?)?,
                function: text(bytes(take)?)?,
                arguments: bytes(take)?,
                actor: match kind {
                    CREATE => ActorRole::Create(ActorOptions::take(take)?),
                    CALL => ActorRole::Call(TaskId(take.u64()?)),
                    _ => ActorRole::None,
                },
            }),
            kind @ (COMMAND | COMMAND_AS_SUBMITTED) => {
                let program = bytes(take)?;
                let arguments = (0..take.u32()?).map(|_| bytes(take)).collect::<Result<_, _>>()?;
                let environment =
                    (0..take.u32()?).map(|_| Ok((bytes(take)?, bytes(take)?))).collect::<Result<_, WireError>>()?;
                let directory = bytes(take)?;
                let (replaces_environment, input): (_, &[u8]) = match kind {
                    COMMAND => (false, b""),
                    _ => match take.u8()? {
                        flag @ 0..=1 => (flag == 1, bytes(take)?),
                        _ => return Err(WireError::UnknownValue("command")),
                    },
                };
                TaskSpec::Command(CommandSpec {
                    program,
                    arguments,
                    environment,
                    replaces_environment,
                    input,
                    directory,
                })
            }
            _ => return Err(WireError::UnknownValue("task kind")),
        })
    }

    /// Returns its name for people: `module.function`, `Actor.method`, or the program's file name. Spans are named after it.
    pub fn target(&self) -> String {
        match self {
            TaskSpec::Function(function) if function.actor == ActorRole::None => {
                format!("{}.{}", module_stem(function.module), function.function)
            }
            TaskSpec::Function(function) => function.function.into(),
            TaskSpec::Command(command) => file_name(command.program),
        }
    }

    /// Returns its relation to an actor.
    pub fn actor(&self) -> ActorRole<'_> {
        match self {
            TaskSpec::Function(function) => function.actor,
            TaskSpec::Command(_) => ActorRole::None,
        }
    }

    /// Returns the short name that stands before lines of output.
    pub fn short_name(&self) -> String {
        match self {
            TaskSpec::Function(function) => function.function.into(),
            TaskSpec::Command(command) => file_name(command.program),
        }
    }
}

/// `wordcount` for `/path/libwordcount.so`, and a name as it is.
pub fn module_stem(module: &str) -> &str {
    let file = module.rsplit('/').next().unwrap_or(module);
    match file.strip_suffix(".so") {
        Some(stem) => stem.strip_prefix("lib").unwrap_or(stem),
        None => file,
    }
}

fn file_name(program: &[u8]) -> String {
    let program = String::from_utf8_lossy(program);
    let name = program.rsplit('/').next().filter(|name| !name.is_empty());
    name.unwrap_or(&program).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_options::TaskOptions;

    use super::*;
    use crate::hex::hex;

    #[test]
    fn an_option_that_few_have_takes_room_only_where_it_is_said() {
        let encoded = |priority| {
            let policy = Policy { extra: ExtraOptions { priority }, ..Policy::default() };
            let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "f", &[0x90]));
            let (envelope, mut bytes) = (Envelope { policy, ..Envelope::of(spec) }, Vec::new());
            envelope.encode(&mut bytes);
            assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
            bytes
        };
        let (silent, said) = (encoded(0), encoded(-7));
        assert_eq!(said.len(), silent.len() + 10, "its length, its number and its value");
        assert_eq!(u16::from_le_bytes([said[0], said[1]]) & HAS_POLICY, 0, "the rest of the policy is not said");
    }

    /// Options of a task, each with a value that is not its default.
    fn all_options() -> TaskOptions {
        TaskOptions {
            name: "n".into(),
            timeout: Some(Duration::from_millis(1)),
            trace_runtime: true,
            queue_timeout: Some(Duration::from_millis(2)),
            idle_timeout: Some(Duration::from_millis(3)),
            grace: Duration::from_millis(4),
            priority: -5,
            num_cpus: 6,
            resource: vec![("gpu".into(), 7)],
            memory: Some(8 << 20),
            retries: 9,
            retry_backoff: Duration::from_millis(10),
            retry_on: "panic".into(),
            crash_limit: 11,
            at_most_once: true,
            idempotency_key: "k".into(),
            queue: "q".into(),
        }
    }

    #[test]
    fn an_envelope_with_every_option_has_golden_bytes() {
        let options = all_options();
        let actor = ActorRole::Create(ActorOptions {
            max_restarts: 12,
            max_call_retries: 13,
            is_detached: true,
            or_existing: true,
            name: "a",
        });
        let spec = TaskSpec::Function(FunctionSpec { actor, ..FunctionSpec::of_task("m", "A.new", &[0x90]) });
        let envelope = Envelope {
            name: &options.name,
            run_limit: options.timeout,
            policy: Policy::of(&options),
            demand: Demand::of(&options),
            traces_runtime: options.trace_runtime,
            ..Envelope::of(spec)
        };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        // Flags, name and run limit; the policy; the demand; the rest of the options; the queue; the function and its actor.
        let expected = "b069 016e 40420f0000000000 \
            09000000 8096980000000000 0500000070616e6963 0b000000 01 010000006b 80841e0000000000 c0c62d0000000000 00093d0000000000 \
            06000000 01000000 03000000677075 0700000000000000 0000800000000000 \
            09 01 fbffffffffffffff \
            0171 \
            02 016d 05412e6e6577 0190 0c000000 0d000000 03 0100000061";
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
        assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
    }

    proptest! {
        #[test]
        fn an_envelope_survives_the_wire(
            module: String, function: String, arguments: Vec<u8>, name: String, limit: Option<u64>, wants_output: bool,
            traces_runtime: bool,
            trace: Option<([u8; 16], [u8; 8], u8, String)>, baggage: String, submitter: Option<u64>,
            inputs: Vec<(u32, Result<u64, u16>)>, policy: Option<(u32, u64, String, bool)>, demand: Option<(u32, u64)>,
            actor: Option<Result<u64, (u32, u32, bool, bool, String)>>,
        ) {
            let actor = match &actor {
                None => ActorRole::None,
                Some(Ok(actor)) => ActorRole::Call(TaskId(*actor)),
                Some(Err((max_restarts, max_call_retries, is_detached, or_existing, name))) => {
                    let (max_restarts, max_call_retries) = (*max_restarts, *max_call_retries);
                    let (is_detached, or_existing) = (*is_detached, *or_existing);
                    ActorRole::Create(ActorOptions { max_restarts, max_call_retries, is_detached, or_existing, name })
                }
            };
            let envelope = Envelope {
                spec: TaskSpec::Function(FunctionSpec {
                    module: &module, function: &function, arguments: &arguments, actor,
                }),
                name: &name,
                run_limit: limit.filter(|&limit| limit > 0).map(Duration::from_nanos),
                policy: policy.as_ref().map_or(Policy::default(), |(number, backoff, text, at_most_once)| Policy {
                    retries: *number,
                    retry_backoff: Duration::from_nanos(*backoff),
                    retry_on: text,
                    crash_limit: !number,
                    at_most_once: *at_most_once,
                    idempotency_key: text,
                    queue_limit: (*backoff != 0).then(|| Duration::from_nanos(*backoff)),
                    idle_limit: None,
                    grace: Duration::from_nanos(*backoff),
                    extra: ExtraOptions { priority: *number as i8 },
                    queue: text,
                }),
                demand: demand.map_or(Demand::default(), |(num_cpus, amount)| Demand {
                    num_cpus,
                    resources: vec![("gpu", amount.max(1))],
                    memory_bytes: Some(amount).filter(|&amount| amount > 0),
                }),
                module_version: submitter.and_then(ModuleVersion::of_number),
                module_digest: limit.map(|number| [number as u8; 32]),
                wants_output,
                traces_runtime,
                trace: trace.as_ref().map(|(trace_id, span_id, trace_flags, trace_state)| TraceLink {
                    trace_id: *trace_id, span_id: *span_id, trace_flags: *trace_flags, trace_state,
                }),
                baggage: &baggage,
                submitter: submitter.map(TaskId),
                inputs: inputs.iter().map(|&(argument, source)| Input { argument, source: match source {
                    Ok(task) => InputSource::Task(TaskId(task)),
                    Err(file) => InputSource::Stored(Stored { name: format!("{file}-1"), bytes: file.into() }),
                } }).collect(),
                origin: limit.map(|number| ClusterTaskId { place: PlaceId(!number), task: TaskId(number) }),
                clocks: limit.map(|number| ClockOffsets { origin_ns: number as i64, holder_ns: !number as i64 }),
            };
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            prop_assert_eq!(Envelope::trace_of(&bytes), envelope.trace);
            prop_assert_eq!(Envelope::traces_runtime_of(&bytes), traces_runtime);
            prop_assert_eq!(Envelope::has_clocks(&bytes), envelope.clocks.is_some());
            let trace_id = envelope.trace.map_or([0; 16], |trace| trace.trace_id);
            prop_assert_eq!(Envelope::head_of(&bytes), Some(EnvelopeHead { name: &name, trace_id }));
            prop_assert_eq!(Envelope::decode(&bytes).unwrap(), envelope);
            for length in 0..bytes.len() {
                prop_assert!(Envelope::decode(&bytes[..length]).is_err(), "cut at {}", length);
            }
        }

        #[test]
        fn a_command_survives_the_wire(
            program: Vec<u8>, arguments: Vec<Vec<u8>>, environment: Vec<(Vec<u8>, Vec<u8>)>, directory: Vec<u8>,
            replaces_environment: bool, input: Vec<u8>,
        ) {
            let command = Envelope::of(TaskSpec::Command(CommandSpec {
                program: &program,
                arguments: arguments.iter().map(Vec::as_slice).collect(),
                environment: environment.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect(),
                replaces_environment,
                input: &input,
                directory: &directory,
            }));
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            prop_assert_eq!(Envelope::decode(&bytes).unwrap(), command);
        }

        #[test]
        fn hostile_envelopes_are_refused_without_a_panic(bytes: Vec<u8>) {
            let _ = Envelope::decode(&bytes);
        }
    }

    #[test]
    fn what_most_tasks_have_not_takes_no_byte() {
        let length = |envelope: &Envelope<'_>| {
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            bytes.len()
        };
        let parts = ["demo", "function", "arguments"];
        let [module, function, arguments] = parts;
        let plain = Envelope::of(TaskSpec::Function(FunctionSpec::of_task(module, function, arguments.as_bytes())));
        let of_parts = parts.concat().len();
        assert_eq!(length(&plain) - of_parts, 6, "two of flags, the kind, and three lengths");
        let trace = Some(TraceLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1, trace_state: "" });
        assert_eq!(length(&Envelope { trace, ..plain }) - of_parts, 31, "and 25 of the trace");
    }

    #[test]
    fn targets_are_named_as_people_say_them() {
        let function = |module| TaskSpec::Function(FunctionSpec::of_task(module, "count", &[])).target();
        assert_eq!(function("wordcount"), "wordcount.count");
        assert_eq!(function("/opt/lib/libwordcount.so"), "wordcount.count");
        assert_eq!(function("./odd.so"), "odd.count");
        for actor in [ActorRole::Create(ActorOptions::default()), ActorRole::Call(TaskId(7))] {
            let method = FunctionSpec { actor, ..FunctionSpec::of_task("counter", "Counter.get", &[]) };
            assert_eq!(TaskSpec::Function(method).target(), "Counter.get");
        }
        let program = |program| {
            let spec = TaskSpec::command(program, vec![], vec![], b"/");
            spec.target()
        };
        assert_eq!(program(b"/bin/true"), "true");
        assert_eq!(program(b"bin/"), "bin/");
    }
}
