//! Every name on the spans that tracer makes, with its type and meaning.
//!
//! The names mirror Ray's (`ray.remote`, `ray.function` and so on) with the prefix `tracer.`; where OpenTelemetry's semantic
//! conventions 1.44 have a stable name, that one is used. The `messaging.*` names are still in development there, and would say again what
//! name, kind and `tracer.*` say, in a sixth of the bytes of a span: so there are none.

/// The suffix of the PRODUCER span of a submission: `<target> tracer.remote`.
pub const REMOTE_SUFFIX: &str = "tracer.remote";
/// The suffix of the CONSUMER span of an attempt: `<target> tracer.remote_worker`.
pub const REMOTE_WORKER_SUFFIX: &str = "tracer.remote_worker";
/// The INTERNAL span around what one driver submits, from the submission to the outcome.
pub const JOB_SPAN: &str = "tracer job";

// The runtime's own spans, made for a task that traces the runtime. All are INTERNAL.

/// From the submission until the head has read it; child of the PRODUCER span.
pub const ACCEPT_SPAN: &str = "tracer.accept";
/// The head writes the submission to its journal; child of the PRODUCER span.
pub const JOURNAL_SPAN: &str = "tracer.journal";
/// The attempt waits in the head's queue; child of the PRODUCER span, which has ended by then.
pub const QUEUE_SPAN: &str = "tracer.queue";
/// A worker has the lease and has not begun, because it runs others or hears of it only now; child of the PRODUCER span.
pub const LEASE_SPAN: &str = "tracer.lease";
/// The module is looked for and loaded, or found among those that are; child of the CONSUMER span.
pub const LOAD_SPAN: &str = "tracer.load";
/// The module decodes the arguments; child of the CONSUMER span.
pub const DECODE_SPAN: &str = "tracer.decode";
/// The function or the command runs; child of the CONSUMER span.
pub const RUN_SPAN: &str = "tracer.run";
/// The module encodes the result; child of the CONSUMER span.
pub const ENCODE_SPAN: &str = "tracer.encode";
/// From the end of the last attempt until the driver has its outcome; child of the PRODUCER span.
pub const DELIVER_SPAN: &str = "tracer.deliver";

/// String: what was submitted, [`REMOTE_FUNCTION`], [`REMOTE_ACTOR`] or [`REMOTE_COMMAND`].
pub const REMOTE: &str = "tracer.remote";
/// A value of [`REMOTE`]: a function of a module.
pub const REMOTE_FUNCTION: &str = "function";
/// A value of [`REMOTE`]: an actor, or a method of one.
pub const REMOTE_ACTOR: &str = "actor";
/// A value of [`REMOTE`]: a program.
pub const REMOTE_COMMAND: &str = "command";
/// String: `<module>.<function>`, `<Actor>.<method>`, or the program's name.
pub const FUNCTION: &str = "tracer.function";
/// String: the build of the module's library that the attempt runs: its build id in hexadecimal digits, or, where its linker noted none, a number made
/// from its contents. Not there for what is built into tracer.
pub const MODULE_VERSION: &str = "tracer.module.version";
/// String: the SHA-256 of the module's library, on the span of an attempt at a task of a queue whose origin has another one.
pub const MODULE_DIGEST: &str = "tracer.module.digest";
/// String: the SHA-256 of the module's library at the task's origin, where [`MODULE_DIGEST`] is.
pub const MODULE_ORIGIN_DIGEST: &str = "tracer.module.origin_digest";
/// String: the type of the actor, `<module>.<Type>`, on the spans of actors and their methods only.
pub const ACTOR_CLASS: &str = "tracer.actor_class";
/// String: the method, `new` for the creation, on the spans of actors and their methods only.
pub const ACTOR_METHOD: &str = "tracer.actor_method";
/// String: the name given with `--name`.
pub const TASK_NAME: &str = "tracer.task_name";
/// String: an argument, if `--record-arguments` asks for them. What follows the prefix is the parameter's name on the CONSUMER span of a function, and
/// the argument's number from 1 on its PRODUCER span and on those of a command. JSON for a function, text for a command; of a value with more than
/// 256 characters the first 256 and an ellipsis. At most 32 arguments are recorded.
pub const ARGUMENT_PREFIX: &str = "tracer.argument.";
/// Integer, bytes: how large the arguments of a function are, encoded, in place of the arguments, if they have more than 65,536.
pub const ARGUMENTS_SIZE: &str = "tracer.arguments_size";
/// Integer: the process that made the span.
pub const PID: &str = "tracer.pid";
/// Integer: what one driver submitted.
pub const JOB_ID: &str = "tracer.job_id";
/// Integer: how many tasks one `--map` submitted, on its job's span.
pub const TASK_COUNT: &str = "tracer.task_count";
/// Integer: the task.
pub const TASK_ID: &str = "tracer.task_id";
/// String: the task in its cluster, as `c3f9a2m4q7cxw-1042`; on spans of tasks of queues only.
pub const CLUSTER_TASK_ID: &str = "tracer.cluster_task_id";
/// String: the queue that the task was submitted to; on such tasks only.
pub const QUEUE: &str = "tracer.queue";
/// Integer: the actor that the task makes, or is a method of; on such tasks only.
pub const ACTOR_ID: &str = "tracer.actor_id";
/// Integer: the process that ran the attempt, as the head counts them.
pub const WORKER_ID: &str = "tracer.worker_id";
/// String: the machine, as the head names it.
pub const NODE_ID: &str = "tracer.node_id";
/// Integer: which attempt at the task this is, from 1.
pub const ATTEMPT: &str = "tracer.attempt";
/// String: the context of an attempt's span, as `traceparent` has it; an attribute of the resource of what a command sends by OTLP, where the
/// head receives it. Traces that begin in the command are read as parts of the attempt's trace.
pub const TRACEPARENT: &str = "tracer.traceparent";
/// Integer, nanoseconds: from the submission's acceptance to the beginning of the attempt. Of a task of a queue that another node accepted, the offsets of both
/// clocks are taken off.
pub const QUEUED_NS: &str = "tracer.queued_ns";
/// Integer, nanoseconds: what the clock of the node that ran the attempt was ahead of the engine's when it got the task; negative if it was behind. On attempts at
/// tasks of queues only, and only if one of the two nodes has more than a millisecond. The times of the span, and of those below it, are by that clock.
pub const CLOCK_OFFSET_NS: &str = "tracer.clock_offset_ns";
/// Integer, nanoseconds: the same of the clock of the node that the task was submitted on.
pub const ORIGIN_CLOCK_OFFSET_NS: &str = "tracer.origin_clock_offset_ns";
/// Integer: the slots that the attempt took, if it was submitted with `--num-cpus`.
pub const NUM_CPUS: &str = "tracer.num_cpus";
/// String: the named resources that the attempt took, as `gpu=1,license=2`, if it asked for any.
pub const RESOURCES: &str = "tracer.resources";
/// Integer, bytes: the most memory that the attempt might take, if it was submitted with `--memory`.
pub const MEMORY_LIMIT_BYTES: &str = "tracer.memory_limit_bytes";
// What an attempt used, as the kernel counts it, of the worker with all its threads and of the command that it waited for, with those of the
// command's children that it waited for in turn. OpenTelemetry has metrics of this kind and no attributes.
//
// They are on each attempt of a command. Of functions, attempts under 50 microseconds have none of them: asking the kernel takes an eighth of
// the time of the shortest. Such attempts in a row are passed over, so what they used is in the numbers of the next that has them, as far as
// they took at most a twentieth of its time; if they took more, that attempt has none either. From a millisecond on, all have them.

/// Integer, nanoseconds: cpu time of the attempt, user and system, of the worker and of the command it waited for.
pub const CPU_TIME_NS: &str = "tracer.cpu_time_ns";
/// Integer, bytes: the largest resident size of the worker up to the end of the attempt, or of the command.
pub const PEAK_MEMORY_BYTES: &str = "tracer.peak_memory_bytes";
/// Integer: pages that were in memory and had to be mapped.
pub const MINOR_PAGE_FAULTS: &str = "tracer.minor_page_faults";
/// Integer: pages that had to be read from a disk.
pub const MAJOR_PAGE_FAULTS: &str = "tracer.major_page_faults";
/// Integer: how often a thread gave up the processor to wait.
pub const VOLUNTARY_CONTEXT_SWITCHES: &str = "tracer.voluntary_context_switches";
/// Integer: how often a thread lost the processor to another.
pub const INVOLUNTARY_CONTEXT_SWITCHES: &str = "tracer.involuntary_context_switches";
/// String: who completed the span for a process that died: `head`, or `reader` for a `tracer trace` after the head had died too; on
/// such spans only.
pub const COMPLETED_BY: &str = "tracer.completed_by";
/// Boolean: true on the span that a node has written for an attempt that was lost with another node.
pub const STAND_IN: &str = "tracer.stand_in";
/// Integer: attributes, events and links that did not fit the spool, on spans that were completed from one.
pub const CUT: &str = "tracer.cut";
/// Integer: processes that a command left behind and that run on, when there are any.
pub const LEAKED_PROCESSES: &str = "tracer.leaked_processes";

/// Integer: the exit code of a command (`process.exit.code`).
pub const PROCESS_EXIT_CODE: &str = "process.exit.code";
/// String: how it failed, with few different values (`error.type`).
pub const ERROR_TYPE: &str = "error.type";
/// String: the function's qualified name (`code.function.name`).
pub const CODE_FUNCTION_NAME: &str = "code.function.name";
/// String: its source file (`code.file.path`).
pub const CODE_FILE_PATH: &str = "code.file.path";
/// Integer: its line there (`code.line.number`).
pub const CODE_LINE_NUMBER: &str = "code.line.number";

/// The span event of a failure.
pub const EXCEPTION_EVENT: &str = "exception";
/// String: the type of the error.
pub const EXCEPTION_TYPE: &str = "exception.type";
/// String: its message.
pub const EXCEPTION_MESSAGE: &str = "exception.message";
/// String: the stack at the time.
pub const EXCEPTION_STACKTRACE: &str = "exception.stacktrace";

// The span of a request to the HTTP API, of kind SERVER, named by its method and route: `POST /api/v1/tasks`. OpenTelemetry's stable names.

/// String: the method (`http.request.method`).
pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
/// Integer: the status of the answer (`http.response.status_code`).
pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
/// String: the path as it is documented, such as `/api/v1/tasks/{id}` (`http.route`).
pub const HTTP_ROUTE: &str = "http.route";
/// String: the path as it was asked for (`url.path`).
pub const URL_PATH: &str = "url.path";
/// String: the query, if the request has one, without the values that the conventions take for secrets (`url.query`).
pub const URL_QUERY: &str = "url.query";
/// String: always `http` (`url.scheme`).
pub const URL_SCHEME: &str = "url.scheme";
/// String: where the API listens (`server.address`).
pub const SERVER_ADDRESS: &str = "server.address";
/// Integer: its port (`server.port`).
pub const SERVER_PORT: &str = "server.port";
/// String: what the client says it is (`user_agent.original`).
pub const USER_AGENT_ORIGINAL: &str = "user_agent.original";
/// Returns what the span of a submission or of an attempt is of, from its name: the function, actor method or command.
pub fn target_of(span_name: &str) -> &str {
    let suffixes = [REMOTE_WORKER_SUFFIX, REMOTE_SUFFIX];
    let stripped = suffixes.iter().find_map(|suffix| span_name.strip_suffix(suffix));
    stripped.map_or(span_name, str::trim_end)
}
