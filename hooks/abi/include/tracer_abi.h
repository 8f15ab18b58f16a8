/*
 * The contract between tracer and the shared libraries it loads, for authors in C.
 *
 * Generated from hooks/abi/src/lib.rs by its test `header`: change that, not this.
 *
 * Compatibility
 * -------------
 *
 * The first five fields of `TracerModule` never change. They let a host of any age read which version
 * of the rest a module speaks. A module works with a host of the same `TRACER_ABI_MAJOR`; the host reads
 * modules of an older or newer `TRACER_ABI_MINOR`.
 *
 * Rules that hold for every item here
 * -----------------------------------
 *
 * 1. Every struct that may grow begins with `size`, the size its writer compiled. A reader uses
 *    the smaller of that and its own, and treats what is missing as zero. Fields are appended,
 *    never moved or renumbered. Arrays of such structs are arrays of pointers, so that an
 *    element may grow too.
 * 2. Function pointers are nullable. A null entry means that the operation is not offered.
 * 3. `TracerStr` and `TracerBytes` are borrowed for the duration of the call and copied by the callee if it
 *    keeps them. `TracerStr` is UTF-8 without a terminating NUL; invalid UTF-8 is decoded lossily.
 *    Strings in `TracerModule` and what it points to live as long as the process.
 * 4. Whoever allocates frees: each handle has its own release function in the table that made it.
 * 5. No panic, exception or `longjmp` crosses the boundary, in either direction.
 * 6. Times are nanoseconds since the Unix epoch; 0 means now. Timeouts are milliseconds.
 * 7. Enumerations are `uint32_t`. A reader maps a value it does not know to the documented default.
 * 8. A module is never unloaded.
 * 9. Modules are trusted: they run in the process and may do whatever it may do.
 *
 * Who calls whom
 * --------------
 *
 * Functions that the host calls in a module begin with `on_`; functions that a module calls in the host begin
 * with `host_`. The functions of `TracerTracing` have no prefix, because the same table serves in both
 * directions: a hook hands one to the host, and the host lends a table of its own to the modules.
 */

#ifndef TRACER_ABI_H
#define TRACER_ABI_H

#include <stddef.h>
#include <stdint.h>

// The major version of this contract. A host refuses a module whose major version differs.
#define TRACER_ABI_MAJOR 1

// The minor version of this contract. It grows with every appended field.
#define TRACER_ABI_MINOR 6

// The first field of every `TracerModule`: the bytes `TRACERMO`, read as a little-endian integer.
#define TRACER_MODULE_MAGIC 5714313959637602900

// Done.
#define TRACER_STATUS_OK 0

// It failed; where the function takes a `TracerTextBuffer`, the reason is there.
#define TRACER_STATUS_FAILED 1

// The code behind the function panicked; the panic was caught on the side where it happened.
#define TRACER_STATUS_PANICKED 2

// It was not done within the time given.
#define TRACER_STATUS_TIMED_OUT 3

// There was nothing left to do: it was shut down before.
#define TRACER_STATUS_ALREADY 4

// `TracerTracing.commit` only: the spans are not on this machine's disk, they go to an exporter at its own pace.
#define TRACER_STATUS_NOT_DURABLE 5

// Spans only: they were not taken, because as many are under way as there may be. Whoever has them keeps them.
#define TRACER_STATUS_FULL 6

// Spans only: whoever was to have them will never take them, so nobody need try again.
#define TRACER_STATUS_REFUSED 7

// `TracerHost.host_wait` only: the attempt that waits is to end, because it was cancelled or has run for too long.
#define TRACER_STATUS_CANCELLED 8

// `TracerTracing.commit` only: it is done, but for spans that the table has given up. `TracerTracing.lost` counts them, and the reason is where
// that of a failure would be. Since ABI 1.6.
#define TRACER_STATUS_LOST 9

// `TracerHost.host_measure` only: it is done, and the current span would be welcome. Since ABI 1.6.
#define TRACER_STATUS_WANTS_SPAN 10

// A sum that only grows.
#define TRACER_INSTRUMENT_COUNTER 1

// A sum that grows and shrinks.
#define TRACER_INSTRUMENT_UP_DOWN_COUNTER 2

// A distribution of values.
#define TRACER_INSTRUMENT_HISTOGRAM 3

// The latest value.
#define TRACER_INSTRUMENT_GAUGE 4

// A sum that only grows, which an observer measures whole.
#define TRACER_INSTRUMENT_OBSERVABLE_COUNTER 5

// A sum that grows and shrinks, which an observer measures whole.
#define TRACER_INSTRUMENT_OBSERVABLE_UP_DOWN_COUNTER 6

// The latest value, which an observer measures.
#define TRACER_INSTRUMENT_OBSERVABLE_GAUGE 7

// Values are integers of 64 bits without a sign.
#define TRACER_NUMBER_U64 1

// Values are integers of 64 bits.
#define TRACER_NUMBER_I64 2

// Values are floating-point numbers of 64 bits.
#define TRACER_NUMBER_F64 3

// The answer begins.
#define TRACER_CALL_HEAD 1

// A piece of its body has come.
#define TRACER_CALL_BODY 2

// Trailers have come.
#define TRACER_CALL_TRAILERS 3

// The answer is whole, and the spans of the call have ended.
#define TRACER_CALL_ENDED 4

// There is no answer, or no more of it.
#define TRACER_CALL_FAILED 5

// Nothing follows, and the data of the call is not used any more.
#define TRACER_CALL_RELEASED 6

// An event of a library for tracing becomes a log record with the ids of its span.
#define TRACER_EVENTS_AS_LOG_RECORDS 1

// An event of a library for tracing becomes an event of its span.
#define TRACER_EVENTS_AS_SPAN_EVENTS 2

// OpenTelemetry's severity number of TRACE.
#define TRACER_SEVERITY_TRACE 1

// OpenTelemetry's severity number of DEBUG.
#define TRACER_SEVERITY_DEBUG 5

// OpenTelemetry's severity number of INFO.
#define TRACER_SEVERITY_INFO 9

// OpenTelemetry's severity number of WARN.
#define TRACER_SEVERITY_WARN 13

// OpenTelemetry's severity number of ERROR.
#define TRACER_SEVERITY_ERROR 17

// OpenTelemetry's severity number of FATAL.
#define TRACER_SEVERITY_FATAL 21

// The actor outlives the job that makes it.
#define TRACER_ACTOR_DETACHED 1

// A living actor of this type with the name is taken, if there is one.
#define TRACER_ACTOR_OR_EXISTING 2

// Something is lost or will not work.
#define TRACER_LOG_ERROR 1

// Something works less well than asked for.
#define TRACER_LOG_WARN 2

// Worth knowing once.
#define TRACER_LOG_INFO 3

// A startup hook: it says all of how the process is traced.
#define TRACER_HOOK_STARTUP 0

// An exporter: it says where spans go, and nothing else. Ids, sampling and resource are the product's.
#define TRACER_HOOK_EXPORTER 1

// The objects of OpenTelemetry's Python console exporter, one a line.
#define TRACER_SPAN_FILE_CONSOLE 1

// OTLP in JSON, one `TracesData` with one span a line.
#define TRACER_SPAN_FILE_OTLP 2

// Wherever the hook sends spans.
#define TRACER_SINK_ALL 0

// Only where it sends spans over a network: what it keeps on this machine's disk has them.
#define TRACER_SINK_EXPORTERS 1

// See `TracerValueUnion.bool_`.
#define TRACER_VALUE_BOOL 1

// See `TracerValueUnion.i64_`.
#define TRACER_VALUE_I64 2

// See `TracerValueUnion.f64_`.
#define TRACER_VALUE_F64 3

// See `TracerValueUnion.str_`.
#define TRACER_VALUE_STR 4

// An array of `uint8_t`, 0 or 1.
#define TRACER_VALUE_BOOL_ARRAY 5

// An array of `int64_t`.
#define TRACER_VALUE_I64_ARRAY 6

// An array of `double`.
#define TRACER_VALUE_F64_ARRAY 7

// An array of `TracerStr`.
#define TRACER_VALUE_STR_ARRAY 8

// The default: a step inside a process.
#define TRACER_SPAN_KIND_INTERNAL 0

// Span that answers a remote call.
#define TRACER_SPAN_KIND_SERVER 1

// Span that makes a remote call.
#define TRACER_SPAN_KIND_CLIENT 2

// Span that sends work that is done later.
#define TRACER_SPAN_KIND_PRODUCER 3

// Span that does work that was sent.
#define TRACER_SPAN_KIND_CONSUMER 4

// Nothing was said.
#define TRACER_SPAN_STATUS_UNSET 0

// Explicitly fine.
#define TRACER_SPAN_STATUS_OK 1

// It failed.
#define TRACER_SPAN_STATUS_ERROR 2

// Of an actor's method: calls of it, and of others with this flag, may run beside each other, each on a thread of its own. They begin in
// the order of their submission: the next one when the one before waits for the first time (`TRACER_TASK_PHASE_WAIT`) or has ended. All other calls of an actor, and its creation, run one at a time, on the worker's main thread.
#define TRACER_TASK_CONCURRENT 1

// The module decodes the arguments.
#define TRACER_TASK_PHASE_DECODE 1

// The function runs.
#define TRACER_TASK_PHASE_RUN 2

// The module encodes the result or the error.
#define TRACER_TASK_PHASE_ENCODE 3

// Something else, which nobody needs to know about.
#define TRACER_TASK_PHASE_END 4

// The function of a call with `TRACER_TASK_CONCURRENT` waits for the first time. It ends no part; the host lets the next call begin. A
// function that never waits need not say so. Since ABI 1.2.
#define TRACER_TASK_PHASE_WAIT 5

// The function returned an error.
#define TRACER_TASK_ERROR_RETURNED 1

// The function panicked.
#define TRACER_TASK_ERROR_PANICKED 2

// The arguments do not fit the parameters; the function was not called.
#define TRACER_TASK_ERROR_ARGUMENTS 3

// The result could not be encoded.
#define TRACER_TASK_ERROR_RESULT 4

// The task did not get to an end of its own: it timed out, or its process died. Only from the host.
#define TRACER_TASK_ERROR_RUNTIME 5

// The task was to end, and did. From the host: it was cancelled; an older host says `TRACER_TASK_ERROR_RUNTIME` of that.
#define TRACER_TASK_ERROR_CANCELLED 6

// The handler can be asked whether it is healthy (`TRACER_EVENT_HEALTH`); one that cannot is healthy while it takes events.
#define TRACER_DEPLOYMENT_HEALTH 1

// The handler takes settings while it runs (`TRACER_EVENT_CONFIGURE`); one that does not is replaced when they change.
#define TRACER_DEPLOYMENT_CONFIGURE 2

// The handler takes calls of its methods: requests of the version 0 of HTTP, whose target is the name of the method and whose body is a MessagePack
// array of arguments. They are answered with a status 200 and a MessagePack value as body; what fails one goes to the caller with type and message.
#define TRACER_DEPLOYMENT_CALL 4

// A request begins: its head, and the first piece of its body.
#define TRACER_EVENT_REQUEST 1

// A piece of a request's body.
#define TRACER_EVENT_BODY 2

// The rest of a request's body will not come.
#define TRACER_EVENT_BODY_CUT 3

// There is room again for the response's body.
#define TRACER_EVENT_ROOM 4

// The client has gone, or time is up: nobody wants the response any more. The module drops what handles the request, then calls `host_fail`.
#define TRACER_EVENT_GONE 5

// Asks whether the handler is healthy.
#define TRACER_EVENT_HEALTH 6

// Gives the handler settings.
#define TRACER_EVENT_CONFIGURE 7

// No request is open and none will come.
#define TRACER_EVENT_STOP 8

// A borrowed string: UTF-8, not NUL-terminated. Empty when `len` is 0, whatever `ptr` is.
typedef struct TracerStr {
    // Owner: whoever filled the struct in. Valid until the call returns (rule 3).
    const uint8_t *ptr;
    // In bytes.
    size_t len;
} TracerStr;

// A borrowed array; the element type follows from the tag.
typedef struct TracerArray {
    // Owner: whoever filled the struct in. Valid until the call returns.
    const void *ptr;
    // Number of elements.
    size_t count;
} TracerArray;

// The members of a `TracerValue`.
typedef union TracerValueUnion {
    // `TRACER_VALUE_BOOL`: 0 or 1.
    uint8_t bool_;
    // `TRACER_VALUE_I64`.
    int64_t i64_;
    // `TRACER_VALUE_F64`.
    double f64_;
    // `TRACER_VALUE_STR`.
    struct TracerStr str_;
    // `TRACER_VALUE_BOOL_ARRAY` (bytes, 0 or 1), `TRACER_VALUE_I64_ARRAY`, `TRACER_VALUE_F64_ARRAY` and `TRACER_VALUE_STR_ARRAY` (`TracerStr`s).
    struct TracerArray array;
} TracerValueUnion;

// An attribute's value. Values of an unknown `tag` are dropped.
typedef struct TracerValue {
    // One of the `VALUE_` constants: says which member of `as_` holds the value.
    uint32_t tag;
    // The value.
    union TracerValueUnion as_;
} TracerValue;

// A key and a value.
typedef struct TracerKeyValue {
    // The key.
    struct TracerStr key;
    // The value.
    struct TracerValue value;
} TracerKeyValue;

// An instrumentation scope.
typedef struct TracerScope {
    // The size of this struct, as the caller compiled it.
    size_t size;
    // The name of the instrumented library.
    struct TracerStr name;
    // Its version; empty for none.
    struct TracerStr version;
    // The schema URL; empty for none.
    struct TracerStr schema_url;
    // `attribute_count` attributes.
    const struct TracerKeyValue *attributes;
    // Number of attributes.
    size_t attribute_count;
} TracerScope;

// The identity of a span, as it travels. All-zero ids mean that there is none.
typedef struct TracerSpanContext {
    // The size of this struct, as the writer compiled it.
    size_t size;
    // Most significant byte first.
    uint8_t trace_id[16];
    // Most significant byte first.
    uint8_t span_id[8];
    // W3C trace flags: bit 0 sampled, bit 1 random trace id.
    uint8_t trace_flags;
    // 1 when the context came from another process.
    uint8_t is_remote;
    // The W3C tracestate header; empty for none.
    struct TracerStr trace_state;
} TracerSpanContext;

// A link to another span.
typedef struct TracerLink {
    // The size of this struct, as the caller compiled it.
    size_t size;
    // The span linked to.
    struct TracerSpanContext context;
    // `attribute_count` attributes.
    const struct TracerKeyValue *attributes;
    // Number of attributes.
    size_t attribute_count;
} TracerLink;

// A span event.
typedef struct TracerEvent {
    // The size of this struct, as the caller compiled it.
    size_t size;
    // The event's name.
    struct TracerStr name;
    // Time of the event, in nanoseconds since the Unix epoch; 0 for now.
    uint64_t time_unix_nano;
    // `attribute_count` attributes.
    const struct TracerKeyValue *attributes;
    // Number of attributes.
    size_t attribute_count;
} TracerEvent;

// The task that a process runs, for span processors that put its ids on every span.
typedef struct TracerRuntime {
    // The size of this struct, as the host compiled it.
    size_t size;
    // The task's id.
    uint64_t task_id;
    // The id of the job that the task belongs to.
    uint64_t job_id;
    // The id of the worker that runs it.
    uint64_t worker_id;
    // The machine, as spans name it.
    struct TracerStr node_id;
    // Number of the attempt at the task, from 1.
    uint32_t attempt;
    // The actor that is made, or whose method this is; 0 for other tasks. Since ABI 1.2.
    uint64_t actor_id;
} TracerRuntime;

// Callbacks for what a hook adds to a span that is starting, beyond what it was asked to start it with.
//
// Called from: the thread in `span_start`, before that returns. Everything is borrowed for the call. Since ABI 1.6.
typedef struct TracerSpanAdditions {
    // The size of this struct, as the host compiled it.
    size_t size;
    // Handed back in every call. Owner: the host.
    void *data;
    // Attributes that were set. A key that was set before is replaced.
    void (*host_set_attributes)(void *data, const struct TracerKeyValue *attributes, size_t count);
    // An event that was added.
    void (*host_add_event)(void *data, const struct TracerEvent *event);
    // A link that was added.
    void (*host_add_link)(void *data, const struct TracerLink *link);
    // The status that was set.
    void (*host_set_status)(void *data, uint32_t code, struct TracerStr description);
    // The name that the span has now.
    void (*host_update_name)(void *data, struct TracerStr name);
} TracerSpanAdditions;

// The request to a service that a replica handles, for span processors that put its ids on every span. Everything is borrowed for the call.
// Since ABI 1.6.
typedef struct TracerRunningRequest {
    // The size of this struct, as its maker compiled it.
    size_t size;
    // The id that the client and the access log see. A client may choose it, so two requests may have the same.
    struct TracerStr request_id;
    // The name of the application.
    struct TracerStr application;
    // The deployment's name in the application.
    struct TracerStr deployment;
    // The replica that handles it.
    struct TracerStr replica;
    // The prefix under which the application is served; `/` for all.
    struct TracerStr route_prefix;
    // The client's address, as `address:port`; empty when unknown.
    struct TracerStr client;
    // Time after which the answer is not wanted, in nanoseconds since the Unix epoch; 0 for none.
    uint64_t deadline_unix_nano;
    // The model that the request is for, as its header `x-model-id` or its caller says; empty if neither does.
    struct TracerStr model;
} TracerRunningRequest;

// Everything a span begins with.
typedef struct TracerSpanStart {
    // The size of this struct, as the caller compiled it.
    size_t size;
    // The span's name.
    struct TracerStr name;
    // One of the `SPAN_KIND_` constants; an unknown one is taken as `TRACER_SPAN_KIND_INTERNAL`.
    uint32_t kind;
    // Time of its start, in nanoseconds since the Unix epoch; 0 for now.
    uint64_t start_time_unix_nano;
    // The parent, or null for a new trace.
    const struct TracerSpanContext *parent;
    // `attribute_count` attributes.
    const struct TracerKeyValue *attributes;
    // Number of attributes.
    size_t attribute_count;
    // `link_count` pointers.
    const struct TracerLink *const *links;
    // Number of links.
    size_t link_count;
    // `event_count` pointers.
    const struct TracerEvent *const *events;
    // Number of events.
    size_t event_count;
    // The W3C baggage header of the parent context; empty for none. For span processors that copy baggage to attributes.
    struct TracerStr baggage;
    // The task that the process runs, filled in by the host for hooks; null when it runs none. Modules leave it null.
    const struct TracerRuntime *runtime;
    // Not 0 when the name and the first `prefix_count` of the attributes are the same for all spans of the process with this
    // number, so that what was made of them once may be used again. Only the host says so, to hooks. Since ABI 1.4.
    uint64_t prefix_id;
    // Number of these attributes. Since ABI 1.4.
    size_t prefix_count;
    // Receiver of what a hook's sampler and its span processors put on the span while it starts, so that whoever completes the span has it too. Null
    // when nobody wants to know. Only the host fills it in, for hooks. Since ABI 1.6.
    const struct TracerSpanAdditions *additions;
    // The request to a service for which the span is made: a module fills it in for its handler's spans, the host for the span around the handler, and
    // hooks get both. Null outside of requests. Since ABI 1.6.
    const struct TracerRunningRequest *request;
} TracerSpanStart;

// Answer of the maker of a span about it.
typedef struct TracerSpanStarted {
    // The size of this struct, as the caller compiled it.
    size_t size;
    // Most significant byte first.
    uint8_t trace_id[16];
    // Most significant byte first.
    uint8_t span_id[8];
    // W3C trace flags.
    uint8_t trace_flags;
    // 1 when attributes, events and so on are kept. When 0, the caller need not send them.
    uint8_t is_recording;
    // 1 when the span's tracestate is not its parent's; `span_trace_state` returns it.
    uint8_t has_trace_state;
} TracerSpanStarted;

// A buffer lent by the caller, for a text that the callee writes.
typedef struct TracerTextBuffer {
    // Owner: the caller. The callee writes at most `capacity` bytes.
    uint8_t *ptr;
    // In bytes.
    size_t capacity;
    // Set by the callee: the length of the whole text, which may exceed `capacity`; the text is then cut.
    size_t len;
} TracerTextBuffer;

// Trace id and span id of a span.
typedef struct TracerSpanIdentity {
    // Most significant byte first.
    uint8_t trace_id[16];
    // Most significant byte first.
    uint8_t span_id[8];
} TracerSpanIdentity;

// Listener of the host, which a hook tells about the spans that its exporters have dealt with.
typedef struct TracerDeliveryListener {
    // The size of this struct, as the host compiled it.
    size_t size;
    // Handed back in every call. Owner: the host.
    void *data;
    // Most ended spans that may be under way at once; a further one is given back with `TRACER_STATUS_FULL`. 0 for any number.
    size_t in_flight_max;
    // Says of ended spans, each once, that every exporter has them (`TRACER_STATUS_OK`), that they could not be delivered
    // (`TRACER_STATUS_FAILED`), that they were not even tried (`TRACER_STATUS_FULL`), or that they never can be delivered
    // (`TRACER_STATUS_REFUSED`). The host keeps those of the two in the middle and offers them again to a span sink.
    //
    // Called from: any thread, also from within a call that ends a span. `count` identities at `spans`.
    void (*host_delivered)(void *data, const struct TracerSpanIdentity *spans, size_t count, uint32_t status);
    // For so many milliseconds from now on, a table that has `hand_back` begins no delivery: it gives each ended span back at once, with
    // `TRACER_STATUS_FULL`. For processes that are likely to exit before an answer could come. 0 for none. Since ABI 1.6.
    uint64_t quiet_ms;
    // Tells that the receiver of the spans is not to be asked for `pause_ms` milliseconds: it has asked for that, when `failures` is 0,
    // or has failed so many times in a row. 0 and 0 when it has taken spans again. It counts for all processes of the session. Null in a
    // host that does not pass it on. Since ABI 1.6.
    //
    // Called from: any thread.
    void (*host_pause)(void *data, uint64_t pause_ms, uint32_t failures);
    // Returns the milliseconds that are left of the pause that a process of the session has told of, 0 when the receiver may be asked, and
    // writes to `failures`, unless that is null, what was told of failures with it. Since ABI 1.6.
    //
    // Called from: any thread, before spans are sent.
    uint64_t (*host_pause_left)(void *data, uint32_t *failures);
    // Counts log records that the table has taken and given up: no receiver gets them. The host has them on the disk. Null in a host that does not
    // count them. Since ABI 1.6.
    //
    // Called from: any thread.
    void (*host_log_records_given_up)(void *data, uint64_t count);
} TracerDeliveryListener;

// Borrowed bytes. Empty when `len` is 0, whatever `ptr` is.
typedef struct TracerBytes {
    // Owner: whoever filled the struct in. Valid until the call returns (rule 3).
    const uint8_t *ptr;
    // In bytes.
    size_t len;
} TracerBytes;

// Finished spans on their way into a span sink.
typedef struct TracerFinishedSpans {
    // The size of this struct, as the host compiled it.
    size_t size;
    // An OTLP `ExportTraceServiceRequest` (`opentelemetry/proto/collector/trace/v1`), encoded.
    struct TracerBytes request;
    // One of the `SINK_` constants; an unknown one is taken as `TRACER_SINK_ALL`.
    uint32_t wanted;
    // Handed back in `host_delivered`. Owner: the host.
    void *data;
    // Says what became of the spans: `TRACER_STATUS_OK`, `TRACER_STATUS_FAILED`, `TRACER_STATUS_REFUSED`, or `TRACER_STATUS_ALREADY` when the
    // table was shut down before.
    //
    // Called from: any thread.
    void (*host_delivered)(void *data, uint32_t status);
    // Says how many of the spans never will be taken by their receiver although it took the others, before `host_delivered` says
    // `TRACER_STATUS_OK`. The host counts them as lost. A host that is older than ABI 1.1 has not got it.
    //
    // Called from: the thread that calls `host_delivered`.
    void (*host_refused)(void *data, uint64_t count);
} TracerFinishedSpans;

// The OpenTelemetry tracing API as a table: provider, tracer and span.
//
// Threads: every function may be called from any thread. Calls for one span handle never overlap: the host
// sees to that for hooks, and a module that uses the host's table from several threads must do so itself
// for its own spans, save for the task's span, which the host guards.
//
// A handle stays valid after `TracerTracing.shutdown`; what happens to spans from then on is up to the table.
typedef struct TracerTracing {
    // The size of this struct, as its maker compiled it.
    size_t size;
    // Handed back in every call that takes `data`. Owner: the table's maker.
    void *data;
    // Returns a tracer for an instrumentation scope, or null when nothing it makes would be recorded.
    // Owner of the handle: the caller, until `tracer_release`.
    void *(*tracer)(void *data, const struct TracerScope *scope);
    // Gives a tracer back. Spans it made stay valid.
    void (*tracer_release)(void *tracer);
    // Starts a span. Fills in `started` and returns a handle; null for a span that is not recorded and
    // needs no handle (`started` is valid all the same, and says what to propagate). The host never passes a
    // null `started`; a module that passes one gets its handle, and does not learn the span's ids.
    // Owner of the handle: the caller, until `span_release` or `span_end_and_release`.
    void *(*span_start)(void *tracer, const struct TracerSpanStart *span, struct TracerSpanStarted *started);
    // Copies the span's tracestate into `text`. Null when tracers never change it: it is then the parent's.
    void (*span_trace_state)(void *span, struct TracerTextBuffer *text);
    // Sets attributes. A key that was set before is replaced.
    void (*span_set_attributes)(void *span, const struct TracerKeyValue *attributes, size_t count);
    // Adds a span event.
    void (*span_add_event)(void *span, const struct TracerEvent *event);
    // Adds a link.
    void (*span_add_link)(void *span, const struct TracerLink *link);
    // Sets the status: one of the `SPAN_STATUS_` constants; an unknown one is ignored.
    void (*span_set_status)(void *span, uint32_t code, struct TracerStr description);
    // Replaces the name.
    void (*span_update_name)(void *span, struct TracerStr name);
    // Ends the span. A second call does nothing.
    void (*span_end)(void *span, uint64_t end_time_unix_nano);
    // Gives the handle back; ends the span if it has not ended.
    void (*span_release)(void *span);
    // Puts every span that has ended before this call where a SIGKILL of the process cannot reach it. Returns
    // `TRACER_STATUS_OK` when that is done, `TRACER_STATUS_NOT_DURABLE` when this table sends spans over a network and
    // keeps no file, `TRACER_STATUS_FAILED` when it should have worked and is to be tried again, `TRACER_STATUS_LOST` when it is done but for
    // spans that nobody will have. Null means `TRACER_STATUS_NOT_DURABLE`.
    //
    // Called from: the thread that sends results, before every batch of them. It must not wait for a network.
    uint32_t (*commit)(void *data, struct TracerTextBuffer *error);
    // Delivers what is still queued.
    uint32_t (*flush)(void *data, uint64_t timeout_ms, struct TracerTextBuffer *error);
    // Delivers what is still queued and ends. A second call returns `TRACER_STATUS_ALREADY`.
    uint32_t (*shutdown)(void *data, uint64_t timeout_ms, struct TracerTextBuffer *error);
    // The OpenTelemetry resource of the spans. Owner: the table's maker; lives as long as the process.
    const struct TracerKeyValue *resource;
    // Number of attributes of the resource; 0 when the maker does not say.
    size_t resource_count;
    // Description of what the table does with spans, in a few words for people to read, such as `/tmp/spans/<pid>.json`.
    struct TracerStr description;
    // Takes the listener that is to hear which ended spans were delivered. Null for a table that sends nothing over a
    // network, or cannot tell: the host then takes a span as delivered once `commit` has covered it.
    //
    // Called from: the thread that sets up tracing, once, before the first span. `listener` lives as long as the process.
    uint32_t (*listen)(void *data, const struct TracerDeliveryListener *listener);
    // The span sink: takes finished spans that did not begin in this table, of another process or under another hook, and
    // delivers them at its own pace, with the resource and the ids that they have. Returns `TRACER_STATUS_OK` when it has
    // them: then `TracerFinishedSpans.host_delivered` is called, once, perhaps before this returns. Any other status, with the
    // reason in `error`, means that it did not take them. Null for a table that cannot take such spans.
    //
    // Called from: any thread. It must not wait for a network.
    uint32_t (*sink_export)(void *data, const struct TracerFinishedSpans *spans, struct TracerTextBuffer *error);
    // The file in which this table keeps the spans of its process, when `span_file_format` says in which form; its name begins
    // with the process id and a dot. When the process has died, the host appends what it completes.
    // Owner: the table's maker; lives as long as the process.
    struct TracerStr span_file;
    // One of the `SPAN_FILE_` constants. 0, and a format that the host does not know, mean that the host writes to a file of its own.
    uint32_t span_file_format;
    // Ends the span at this time, if it has not ended, and gives the handle back: `span_end` and `span_release` in one call, as
    // nearly every span needs them. Null where the two are to be called. Since ABI 1.5.
    void (*span_end_and_release)(void *span, uint64_t end_time_unix_nano);
    // Ends the table in a process that is about to exit and leaves its undelivered spans to the host: begins no further delivery, and
    // waits for those that are under way no longer than `timeout_ms`. The host brings on every span of which its listener was not told.
    // Null for a table that has deliveries of which it does not tell; then `shutdown` is called. Since ABI 1.6.
    //
    // Called from: any thread, once, in place of `shutdown`.
    uint32_t (*hand_back)(void *data, uint64_t timeout_ms, struct TracerTextBuffer *error);
    // Counts the ended spans that this table has given up since it was made: they are not on the disk, and nobody will try again. Null for
    // a table that gives up none, or does not count them. Since ABI 1.6.
    //
    // Called from: whichever thread has called `commit`, when that returned neither `TRACER_STATUS_OK` nor `TRACER_STATUS_NOT_DURABLE`.
    uint64_t (*lost)(void *data);
    // Takes log records of this process, to be delivered at the table's own pace: an OTLP `ExportLogsServiceRequest`
    // (`opentelemetry/proto/collector/logs/v1`), encoded. `flush` and `shutdown` count for them too. The host keeps them on the disk whatever this
    // returns. Null for a table that takes none. Since ABI 1.6.
    //
    // Called from: any thread, one at a time. It must not wait for a network. `request` is borrowed for the call.
    uint32_t (*log_export)(void *data, struct TracerBytes request, struct TracerTextBuffer *error);
} TracerTracing;

// A tracing hook: the function that sets up tracing in a process.
typedef struct TracerHook {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The attribute in `module:attribute`.
    struct TracerStr name;
    // Description of the hook, for people to read; its first line is a summary.
    struct TracerStr doc;
    // Sets up tracing and returns the table to use.
    //
    // Called from: a thread of the host's choosing, once per process. It may take its time up to the host's
    // limit (10 s by default) and may start threads.
    // On failure: returns a status other than `TRACER_STATUS_OK` with the reason in `error`, and leaves `tracing` alone.
    // Owner of the table: the module. It lives as long as the process.
    uint32_t (*on_setup)(const struct TracerHook *hook,
                         const struct TracerTracing **tracing,
                         struct TracerTextBuffer *error);
    // Contract of the function: one of the `HOOK_` constants; an unknown one is taken as `TRACER_HOOK_STARTUP`.
    uint32_t contract;
} TracerHook;

// A parameter of a task.
typedef struct TracerParameter {
    // The size of this struct, as the module compiled it.
    size_t size;
    // Its name.
    struct TracerStr name;
    // Its type, in the words of its language.
    struct TracerStr type_name;
    // 1 when it may be left out.
    uint32_t is_optional;
} TracerParameter;

// Error for which a task failed.
typedef struct TracerTaskError {
    // The size of this struct, as the module compiled it.
    size_t size;
    // One of the `TASK_ERROR_` constants; an unknown one is taken as `TRACER_TASK_ERROR_RETURNED`.
    uint32_t kind;
    // The type of the error in its language (`exception.type`); low cardinality.
    struct TracerStr type_name;
    // Message of the error, for people to read (`exception.message`).
    struct TracerStr message;
    // Location of a panic, as `file:line:column`; empty when unknown.
    struct TracerStr location;
    // The stack at that time (`exception.stacktrace`); empty when it was not captured.
    struct TracerStr stacktrace;
} TracerTaskError;

// One call of a task.
typedef struct TracerTaskCall {
    // The size of this struct, as the host compiled it.
    size_t size;
    // A MessagePack array of the arguments, in order.
    struct TracerBytes arguments;
    // The span of this attempt, a handle of the host's table, or null when it is not recorded. Borrowed: the
    // module uses it while the call lasts, and neither ends nor releases it.
    void *span;
    // The context of that span, or of the submission when this process is not traced, or null when there is none.
    const struct TracerSpanContext *span_context;
    // The W3C baggage header that came with the submission; empty for none.
    struct TracerStr baggage;
    // The task's id.
    uint64_t task_id;
    // Number of the attempt at the task, from 1.
    uint32_t attempt;
    // The id of the job that the task belongs to.
    uint64_t job_id;
    // The id of this worker.
    uint64_t worker_id;
    // Handed back in the callbacks. Owner: the host.
    void *data;
    // Takes the result, a MessagePack value, and copies it.
    void (*host_result)(void *data, struct TracerBytes value);
    // Takes the error and copies it.
    void (*host_error)(void *data, const struct TracerTaskError *error);
    // The machine, as spans name it; empty when the host does not say.
    struct TracerStr node_id;
    // Takes note that the module begins one of the `TASK_PHASE_` parts of the call, which ends the one before. Null when the
    // host does not ask. Called from one thread at a time, while the call lasts.
    void (*host_phase)(void *data, uint32_t phase);
    // The actor that is made, or whose method this is; 0 for other tasks. Since ABI 1.2.
    uint64_t actor_id;
    // Place of the actor's state: a creation that goes well puts it there, methods find it. Null for other tasks. Since ABI 1.2.
    void **state;
    // The arguments, each a MessagePack value, in order; null when they are in `arguments`, which is empty otherwise. A host gives them in this way
    // to modules of ABI 1.3 and later, when some are large. Since ABI 1.3.
    const struct TracerBytes *argument_values;
    // Number of arguments.
    size_t argument_value_count;
    // Takes the next bytes of a large result; those that are left, none perhaps, go to `host_result`, which ends it. `host_error` drops what came
    // before. Null when the host takes a result in one piece only. Since ABI 1.3.
    void (*host_result_part)(void *data, struct TracerBytes part);
} TracerTaskCall;

// A task: a function that can be submitted.
typedef struct TracerTask {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The function's name, as in `module:function`.
    struct TracerStr name;
    // Description of the task, for people to read; its first line is a summary.
    struct TracerStr doc;
    // The fully qualified name of the function in its language (`code.function.name`).
    struct TracerStr code_function_name;
    // The source file (`code.file.path`); empty when unknown.
    struct TracerStr code_file_path;
    // The line in it, from 1 (`code.line.number`); 0 when unknown.
    uint32_t code_line_number;
    // 1 when the function is asynchronous in its language. For people to read; the call is the same.
    uint32_t is_async;
    // `parameter_count` pointers, in the order of the call.
    const struct TracerParameter *const *parameters;
    // Number of parameters.
    size_t parameter_count;
    // The type of the result, in the words of its language.
    struct TracerStr result_type;
    // Runs the task: decodes the arguments, calls the function, and hands the result or the error to the
    // callbacks in `call`, exactly one of which is called, at most once, before it returns.
    //
    // Called from: the worker's main thread, one call at a time; while a task waits for others (`host_wait`), another one
    // may be called from a thread of the host's.
    // On failure: returns `TRACER_STATUS_FAILED` after `host_error`; `TRACER_STATUS_PANICKED` when not even that was possible.
    uint32_t (*on_run)(const struct TracerTask *task, const struct TracerTaskCall *call);
    // The `TASK_` flags, added up. Since ABI 1.2.
    uint32_t flags;
} TracerTask;

// An argument whose value is the result of another task.
typedef struct TracerReference {
    // Index of the argument, from 0.
    size_t argument;
    // The ticket of the task.
    uint64_t ticket;
} TracerReference;

// Options of an actor.
typedef struct TracerActorOptions {
    // The size of this struct, as the module compiled it.
    size_t size;
    // A name of its own, by which others find it; empty for none.
    struct TracerStr name;
    // Limit of how often it is made again after its worker was lost.
    uint32_t max_restarts;
    // Limit of how often a call is run again that was going on when its worker was lost.
    uint32_t max_call_retries;
    // The `ACTOR_` constants, added up.
    uint32_t flags;
} TracerActorOptions;

// Policy for an attempt at a task that fails. Since ABI 1.2.
typedef struct TracerPolicy {
    // The size of this struct, as the module compiled it.
    size_t size;
    // Limit of how often it is tried again after failures of its own.
    uint32_t retries;
    // Limit of how often it is started again after its worker was lost.
    uint32_t crash_limit;
    // The wait before the first retry, in milliseconds. It doubles with each further one, up to a minute.
    uint64_t retry_backoff_ms;
    // Failures of its own that are tried again: kinds as `tracer submit task --retry-on` takes them; empty for the usual ones.
    struct TracerStr retry_on;
    // Submissions with the same key are one task; empty for none.
    struct TracerStr idempotency_key;
    // The longest it may wait until its first attempt begins, in milliseconds; 0 for no limit.
    uint64_t queue_limit_ms;
    // 1 if it must never be started a second time, else 0.
    uint8_t at_most_once;
} TracerPolicy;

// An amount of a resource of the head. Since ABI 1.3.
typedef struct TracerResource {
    // The resource's name. Since ABI 1.3.
    struct TracerStr name;
    // Amount of it; at least 1. Since ABI 1.3.
    uint64_t amount;
} TracerResource;

// Slots and resources that a task needs while it runs. Since ABI 1.3.
typedef struct TracerDemand {
    // The size of this struct, as the module compiled it. Since ABI 1.3.
    size_t size;
    // Number of slots that it takes. With 0 it takes none, and runs as soon as there is a process for it. Since ABI 1.3.
    uint32_t num_cpus;
    // `resource_count` resources that it takes, each once. Since ABI 1.3.
    const struct TracerResource *resources;
    // Number of resources. Since ABI 1.3.
    size_t resource_count;
    // The most memory of an attempt, in bytes: that of its worker process with everything that it starts; 0 for what every
    // worker may take. Since ABI 1.3.
    uint64_t memory_bytes;
} TracerDemand;

// A task to submit from a task.
typedef struct TracerSubmission {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The task that submits: `TracerTaskCall.task_id`, or 0 for the one that the process runs.
    uint64_t submitter;
    // The name of the module, or the path of its library.
    struct TracerStr module;
    // The function's name in it.
    struct TracerStr function;
    // A MessagePack array of the arguments, in order; nil where a reference stands.
    struct TracerBytes arguments;
    // `reference_count` arguments whose values are the results of other tasks.
    const struct TracerReference *references;
    // Number of references.
    size_t reference_count;
    // A name for the task, for people; empty for none.
    struct TracerStr name;
    // The longest an attempt may run, in milliseconds; 0 for no limit.
    uint64_t run_limit_ms;
    // The current span of the caller, or null; the submission's span is then a child of the submitter's.
    const struct TracerSpanContext *parent;
    // The current W3C baggage header of the caller; empty for none. Read with `parent` only.
    struct TracerStr baggage;
    // The actor that the task is a method of, with `function` as `Type.method`; 0 for none. Since ABI 1.2.
    uint64_t actor_id;
    // Not null if the task makes an actor, with `function` as `Type.new`. Since ABI 1.2.
    const struct TracerActorOptions *actor_options;
    // Policy for an attempt that fails, or null for the default one. Since ABI 1.2.
    const struct TracerPolicy *policy;
    // Slots and resources that it needs while it runs, or null for a slot and nothing else. A host that is older gives it a slot, so whoever says
    // something else looks at `TracerHost.abi_minor`. Not for actors. Since ABI 1.3.
    const struct TracerDemand *demand;
    // Options of the task that have no field here or in `TracerPolicy` and `TracerDemand`: a MessagePack map from their names to their values, which are
    // those of the HTTP API, such as `grace_ms`; empty for none. What the host does not know is refused. A host that is older ignores
    // them, so whoever says something here looks at `TracerHost.abi_minor`. Since ABI 1.6.
    struct TracerBytes options;
} TracerSubmission;

// An actor, as the head knows it.
typedef struct TracerActorIdentity {
    // The size of this struct, as the host compiled it.
    size_t size;
    // Its id, which is that of the task that makes it.
    uint64_t actor_id;
    // The name of its module, or the path of the library.
    struct TracerStr module;
    // The name of its type in it.
    struct TracerStr type_name;
    // Reason why it is dead; empty while it is not.
    struct TracerStr death;
} TracerActorIdentity;

// A log record, as OpenTelemetry's data model for logs has it. Since ABI 1.6.
typedef struct TracerLogRecord {
    // The size of this struct, as the module compiled it.
    size_t size;
    // Time of the event, in nanoseconds since the Unix epoch; 0 for now.
    uint64_t time_unix_nano;
    // The span that it is in; null for none. In a task, `TracerTaskCall.span_context` is that of the attempt.
    const struct TracerSpanContext *span_context;
    // OpenTelemetry's severity number, 1 to 24, of which the `SEVERITY_` constants are the first of their names; 0 when it has none.
    uint32_t severity;
    // Name of the severity in the module's language; empty for OpenTelemetry's.
    struct TracerStr severity_text;
    // The instrumentation scope: which part of the program says it.
    struct TracerStr target;
    // The message. More than 32 KiB are cut.
    struct TracerStr body;
    // `attribute_count` attributes. All of a record has room in 64 KiB; attributes beyond that are counted as dropped.
    const struct TracerKeyValue *attributes;
    // Number of attributes.
    size_t attribute_count;
} TracerLogRecord;

// A header or a trailer.
typedef struct TracerHeader {
    // Its name; in lower case from the host.
    struct TracerStr name;
    // Its value: bytes without CR, LF and NUL.
    struct TracerBytes value;
} TracerHeader;

// A call of a deployment. Everything in it is borrowed for the call of `TracerHost.host_call`. Since ABI 1.6.
typedef struct TracerCall {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The deployment: its name, `application/name` or `service/application/name`. The caller's own application is searched first.
    struct TracerStr deployment;
    // The method of HTTP; empty for a call of a method of the deployment, whose name is `target` and whose arguments are the body.
    struct TracerStr method;
    // Path and query, or the name of the method.
    struct TracerStr target;
    // The host that the request is for; empty for none.
    struct TracerStr authority;
    // `header_count` headers, with names in lower case.
    const struct TracerHeader *headers;
    // Number of headers.
    size_t header_count;
    // The whole body.
    struct TracerBytes body;
    // The id of the request that the call is made for; empty for a new one.
    struct TracerStr request_id;
    // The current span of the caller, or null; the call's span is then the first of a trace.
    const struct TracerSpanContext *parent;
    // The current W3C baggage header of the caller; empty for none. Read with `parent` only.
    struct TracerStr baggage;
    // Time after which the answer is not wanted, in nanoseconds since the Unix epoch; 0 for never.
    uint64_t deadline_unix_nano;
    // The model that the call is for; empty for none. A replica that has it is preferred.
    struct TracerStr model;
} TracerCall;

// Something has come of a call. Everything in it is borrowed for the call of `on_event`. Since ABI 1.6.
typedef struct TracerCallEvent {
    // The size of this struct, as the host compiled it.
    size_t size;
    // One of the `CALL_` constants.
    uint32_t kind;
    // The status of the answer, with `TRACER_CALL_HEAD`.
    uint32_t status;
    // `header_count` headers of the answer, or trailers.
    const struct TracerHeader *headers;
    // Number of headers.
    size_t header_count;
    // A piece of the body.
    struct TracerBytes bytes;
    // With `TRACER_CALL_FAILED`, what became of the call in a word, as the attribute `tracer.outcome` says it.
    struct TracerStr outcome;
    // With `TRACER_CALL_FAILED`, the reason for people.
    struct TracerStr message;
} TracerCallEvent;

// An instrument of metrics, as OpenTelemetry's API has it. Since ABI 1.6.
typedef struct TracerInstrument {
    // The size of this struct, as the module compiled it.
    size_t size;
    // Kind of the instrument: one of the `INSTRUMENT_` constants.
    uint32_t kind;
    // Type of its values: one of the `NUMBER_` constants.
    uint32_t number;
    // Its name. Not empty.
    struct TracerStr name;
    // Unit by UCUM, such as `s` or `By`; empty for none.
    struct TracerStr unit;
    // Description for people; empty for none.
    struct TracerStr description;
    // Name of the instrumentation scope.
    struct TracerStr scope;
    // Version of the scope; empty for none.
    struct TracerStr scope_version;
    // Upper boundaries of the buckets of a histogram, each above the one before, at most 200; null for those of OpenTelemetry's specification.
    const double *boundaries;
    // Number of boundaries.
    size_t boundary_count;
} TracerInstrument;

// A number in the type of its instrument.
typedef union TracerNumber {
    // `TRACER_NUMBER_U64`.
    uint64_t u64_;
    // `TRACER_NUMBER_I64`.
    int64_t i64_;
    // `TRACER_NUMBER_F64`.
    double f64_;
} TracerNumber;

// A value of an instrument. Since ABI 1.6.
typedef struct TracerMeasurement {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The value, in the instrument's type.
    union TracerNumber value;
    // `attribute_count` attributes. Arrays are left out.
    const struct TracerKeyValue *attributes;
    // Number of attributes.
    size_t attribute_count;
    // The span in which it was measured; null for none, or to be asked for it.
    const struct TracerSpanContext *span_context;
} TracerMeasurement;

// Functions and values that the host lends to a module for as long as the process lives.
typedef struct TracerHost {
    // The size of this struct, as the host compiled it.
    size_t size;
    // `TRACER_ABI_MAJOR` of the host.
    uint32_t abi_major;
    // `TRACER_ABI_MINOR` of the host.
    uint32_t abi_minor;
    // Tracing table that the module's spans go to, or null when this process is not traced.
    // Owner: the host. Lives as long as the process.
    const struct TracerTracing *tracing;
    // Writes a line to the host's log. `level` is one of the `LOG_` constants; unknown ones are taken as `TRACER_LOG_INFO`.
    //
    // Called from: any thread.
    void (*host_log)(uint32_t level, struct TracerStr text);
    // Submits a task for the one that runs, and fills in a *ticket*, which names it in this process. It need not be
    // accepted yet when this returns.
    // Owner of the ticket: the caller, until `host_forget`.
    //
    // Called from: any thread, while the task that submits runs.
    uint32_t (*host_submit)(const struct TracerSubmission *submission, uint64_t *ticket, struct TracerTextBuffer *error);
    // Waits until `wanted` of the `count` tasks have ended, however they ended, and at most `timeout_ms`, where the largest value is
    // for ever. `ended`, unless it is null, is filled with a 1 for each that has ended and a 0 for each other.
    //
    // While it waits, the process gives its slot back, and the head may run another task in its place, or in this
    // very process on a thread of the host's.
    //
    // Called from: any thread. Returns `TRACER_STATUS_TIMED_OUT` when time was up; a timeout of 0 only looks. Returns `TRACER_STATUS_CANCELLED`, at
    // once, when the attempt that submitted the first of the tasks is to end and had not been told so when the wait began: this tells
    // it, as `host_is_cancelled` does. What has been told may wait again, for what it cleans up.
    uint32_t (*host_wait)(const uint64_t *tickets,
                          size_t count,
                          size_t wanted,
                          uint64_t timeout_ms,
                          uint8_t *ended,
                          struct TracerTextBuffer *error);
    // Hands the outcome of a task that has ended to one of the callbacks, exactly one of which is called, before this returns. An
    // outcome can be taken once. Returns `TRACER_STATUS_TIMED_OUT`, and calls neither, when the task has not ended.
    //
    // Called from: any thread. `data` is handed back.
    uint32_t (*host_take)(uint64_t ticket,
                          void *data,
                          void (*on_value)(void *data, struct TracerBytes value),
                          void (*on_error)(void *data, const struct TracerTaskError *error));
    // Calls `on_ended` exactly once: when the task has ended, which may be before this returns, or when its ticket is given
    // back. When this fails, `on_ended` is not called. It must not block.
    //
    // Called from: any thread; so is `on_ended`.
    uint32_t (*host_watch)(uint64_t ticket, void *data, void (*on_ended)(void *data), struct TracerTextBuffer *error);
    // Returns the task's id, and waits until it is accepted if need be. 0 when it was refused.
    //
    // Called from: any thread.
    uint64_t (*host_task_id)(uint64_t ticket);
    // Gives a ticket back. The task runs on; nobody in this process can get its result any more.
    //
    // Called from: any thread.
    void (*host_forget)(uint64_t ticket);
    // Returns 1 if the attempt at that task is to end: because it was cancelled, or has run for too long; else 0, also for one that does not run. An
    // attempt that was told 1, and ends, is cancelled, whatever it returns.
    //
    // Called from: any thread.
    uint8_t (*host_is_cancelled)(uint64_t task_id, uint32_t attempt);
    // Finds an actor by its name, or by its id in decimal digits, and hands it to `on_found` before this returns. Returns
    // `TRACER_STATUS_FAILED` with the reason when there is none.
    //
    // Called from: any thread. `data` is handed back.
    uint32_t (*host_find_actor)(struct TracerStr wanted,
                                void *data,
                                void (*on_found)(void *data, const struct TracerActorIdentity *actor),
                                struct TracerTextBuffer *error);
    // Ends an actor: what waits for it fails, what runs may take `grace_ms`, where 0 ends it at once. One that has ended is none.
    //
    // Called from: any thread.
    uint32_t (*host_end_actor)(uint64_t actor_id, uint64_t grace_ms, struct TracerTextBuffer *error);
    // Takes a log record: when this returns, the end of the process cannot lose it. One below `log_severity` is left out. Null where nobody takes
    // records: in an older host, and in a process that is not traced.
    //
    // Called from: any thread. Everything is borrowed for the call. Returns `TRACER_STATUS_FULL` for a record that is lost because the disk takes no more.
    uint32_t (*host_log_record)(const struct TracerLogRecord *record);
    // Least severity that is wanted, by OpenTelemetry's numbers (`SEVERITY_`).
    uint32_t log_severity;
    // Forms that events of a library for logging and tracing take, such as those of Rust's `tracing`: `EVENTS_AS_` constants, added. 0 in an
    // older host, which takes span events.
    uint32_t log_events;
    // Calls a deployment of a service, without waiting: `on_event` is told what comes of it, and `number` is filled with a number that names the call
    // in this process. A deployment that there is not fails the call by an event.
    //
    // Called from: any thread. `on_event` is called from any thread, also before this returns, from one at a time for one call. It must not block.
    // Its last event is `TRACER_CALL_RELEASED`, after which `data` is not used any more; when this fails, the only one.
    uint32_t (*host_call)(const struct TracerCall *call,
                          void *data,
                          void (*on_event)(void *data, const struct TracerCallEvent *event),
                          uint64_t *number,
                          struct TracerTextBuffer *error);
    // Says that so many bytes of an answer's body were used, so that more of it may come.
    //
    // Called from: any thread.
    void (*host_call_consumed)(uint64_t number, size_t bytes);
    // Gives a call up, if it has not ended: the replica's request is cancelled.
    //
    // Called from: any thread.
    void (*host_call_cancel)(uint64_t number);
    // Returns an instrument, the same one for the same description; null when it cannot be made, with the reason in the host's log.
    // Owner: the host. It lives as long as the process.
    //
    // Called from: any thread. Everything is borrowed for the call.
    void *(*host_instrument)(const struct TracerInstrument *instrument);
    // Takes a value: when this returns, the end of the process cannot lose it. One of an observable instrument is taken in an observer only.
    //
    // Called from: any thread. Everything is borrowed for the call. Returns `TRACER_STATUS_WANTS_SPAN` when the value is taken and no span was
    // named, where one would be welcome as an exemplar: `host_exemplar` takes it. Returns `TRACER_STATUS_REFUSED` for a value
    // that the instrument does not take: below zero for a sum that grows or a distribution, or no finite number.
    uint32_t (*host_measure)(void *instrument, const struct TracerMeasurement *measurement);
    // Takes the span of a value that was taken before, as an exemplar. One that is not sampled is left out.
    //
    // Called from: any thread. Everything is borrowed for the call.
    void (*host_exemplar)(void *instrument, const struct TracerMeasurement *measurement);
    // Adds an observer: a function that measures with observable instruments, whenever somebody wants their values. What it does not measure at
    // one time has no value then. Returns `TRACER_STATUS_FAILED` when the process has no thread for it.
    //
    // Called from: any thread. `observe` is called from a thread of the host's, one at a time, as long as the process lives; `data` is handed back.
    uint32_t (*host_observe)(void *data, void (*observe)(void *data));
} TracerHost;

// A type of actors: a state in a worker of its own, and the methods that work on it.
typedef struct TracerActor {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The type's name.
    struct TracerStr name;
    // Description of the actor, for people to read; its first line is a summary.
    struct TracerStr doc;
    // Makes the state and leaves it in `TracerTaskCall.state`; the result is nil. Its name is `Type.new`.
    const struct TracerTask *creation;
    // `method_count` pointers. Their names are `Type.method`.
    const struct TracerTask *const *methods;
    // Number of methods.
    size_t method_count;
    // Most calls of methods with `TRACER_TASK_CONCURRENT` that run at a time; at least 1.
    uint32_t max_concurrency;
    // Releases the state, when the actor ends in good order.
    // Owner of the state: the module, which has made it. The host only keeps the pointer.
    //
    // Called from: the worker's main thread, once, when no call is going on and none will be.
    void (*on_drop)(const struct TracerActor *actor, void *state);
} TracerActor;

// The head of a request. It is valid, with all that it points to, as long as its event.
typedef struct TracerRequestHead {
    // The size of this struct, as the host compiled it.
    size_t size;
    // Such as `GET`.
    struct TracerStr method;
    // The target: path and query, or `*`.
    struct TracerStr target;
    // `http` or `https`.
    struct TracerStr scheme;
    // The authority that the client named (`TracerHost`); empty for none.
    struct TracerStr authority;
    // The version of HTTP that the client speaks: 10, 11, 20; 0 for a call of a method (`TRACER_DEPLOYMENT_CALL`).
    uint32_t version;
    // 1 when the head says how long the body is, in a header `content-length`.
    uint32_t has_length;
    // `header_count` headers, with names in lower case, without those that belong to the client's connection.
    const struct TracerHeader *headers;
    // Number of headers.
    size_t header_count;
    // Names the request in logs; not unique, because clients may choose it.
    struct TracerStr request_id;
    // The prefix under which the application is served; `/` for all.
    struct TracerStr route_prefix;
    // The client's address, as `address:port`; empty when unknown.
    struct TracerStr client;
    // Time after which the answer is not wanted; 0 for never.
    uint64_t deadline_unix_nano;
    // The span of this request in the replica, a handle of the host's table, or null when it is not recorded. Borrowed until the request
    // is ended: the module neither ends nor releases it.
    void *span;
    // The context of that span, or of the request when this process is not traced, or null when there is none.
    const struct TracerSpanContext *span_context;
    // The W3C baggage header of the request; empty for none.
    struct TracerStr baggage;
} TracerRequestHead;

// Bytes with an owner, which cross the boundary without a copy.
typedef struct TracerPiece {
    // The bytes, until they are released.
    struct TracerBytes bytes;
    // Handed to `release`.
    void *owner;
    // Gives the bytes back to whoever made them; null when there is nothing to give back.
    //
    // Called from: any thread, once.
    void (*release)(void *owner);
} TracerPiece;

// Something that happened to a request, or to the replica.
typedef struct TracerRequestEvent {
    // The size of this struct, as the host compiled it.
    size_t size;
    // One of the `EVENT_` constants; an unknown one is passed over.
    uint32_t kind;
    // `TRACER_EVENT_REQUEST`, `TRACER_EVENT_BODY`: 1 when nothing of the body follows.
    uint32_t is_last;
    // The number of the request; of the order for `TRACER_EVENT_HEALTH` and `TRACER_EVENT_CONFIGURE`.
    uint64_t number;
    // `TRACER_EVENT_REQUEST` only; null for others.
    const struct TracerRequestHead *head;
    // The next bytes of the body, perhaps none; the MessagePack value of the settings for `TRACER_EVENT_CONFIGURE`.
    // Owner: the module, from the moment the event is taken.
    struct TracerPiece piece;
    // The trailers of the request, with the last of its body.
    const struct TracerHeader *trailers;
    // Number of trailers.
    size_t trailer_count;
} TracerRequestEvent;

// The head of a response.
typedef struct TracerResponseHead {
    // The size of this struct, as the module compiled it.
    size_t size;
    // From 200 to 999.
    uint32_t status;
    // 1 when there is neither body nor trailers; `host_end` is called all the same.
    uint32_t is_last;
    // `header_count` headers. Those of the connection, such as `connection` and `transfer-encoding`, are dropped.
    const struct TracerHeader *headers;
    // Number of headers.
    size_t header_count;
} TracerResponseHead;

// Table that the host lends to a replica: its settings, its requests as events, and the functions that answer them.
//
// The module runs a loop of its own: it waits until `event_fd` is readable, takes all events, handles them, and calls `host_flush`
// before it waits again. Nobody wakes a thread for a request. While requests follow each other closely, `host_look` keeps it from sleeping.
//
// A request begins with `TRACER_EVENT_REQUEST` and ends with the one call of `host_end` or `host_fail` that the module owes for it, also
// when the client has gone (`TRACER_EVENT_GONE`). Its number is used for nothing else while the process lives. The span of the request is
// lent until that call.
//
// Threads: `host_take_events` is called from one thread at a time; all other functions may be called from any thread. Calls for one
// request do not overlap.
typedef struct TracerServing {
    // The size of this struct, as the host compiled it.
    size_t size;
    // Handed back in every call. Owner: the host.
    void *data;
    // A MessagePack array of the arguments of the handler's creation, in order.
    struct TracerBytes arguments;
    // The name of the application that the deployment belongs to.
    struct TracerStr application;
    // The deployment's name in it.
    struct TracerStr deployment;
    // The replica's name, unique in the service.
    struct TracerStr replica;
    // Most requests that are handled at a time.
    uint32_t max_ongoing_requests;
    // Number of threads that run handlers; at least 1.
    uint32_t threads;
    // Readable while there are events. Owner: the host; the module neither reads from it nor closes it.
    int32_t event_fd;
    // Says that the handler is made and takes requests. None arrive before.
    void (*host_ready)(void *data);
    // Writes pointers to the next events to `events`, at most `capacity`, and returns how many. They are the host's, and valid until the
    // next call. 0 when there are none; then `event_fd` is not readable until there are.
    size_t (*host_take_events)(void *data, const struct TracerRequestEvent **events, size_t capacity);
    // Begins the response of a request, once, before its body. Informational responses (1xx) are not taken. Returns `TRACER_STATUS_CANCELLED` when
    // the client has gone, `TRACER_STATUS_FAILED` when the response cannot be sent as it is: the host then answers in its place.
    uint32_t (*host_respond)(void *data, uint64_t request, const struct TracerResponseHead *response);
    // Takes the next piece of the response's body. With `TRACER_STATUS_OK` the piece is the host's, which releases it. With `TRACER_STATUS_FULL` it
    // stays the module's, because the client reads too slowly: `TRACER_EVENT_ROOM` says when to offer it again. `TRACER_STATUS_CANCELLED` when the client
    // has gone.
    uint32_t (*host_send)(void *data, uint64_t request, const struct TracerPiece *piece);
    // Ends the request in good order, with `count` trailers. The response has begun.
    uint32_t (*host_end)(void *data, uint64_t request, const struct TracerHeader *trailers, size_t count);
    // Ends the request without a whole response: the handler returned an error, panicked, or was cancelled. The host answers with status 500 if
    // the response has not begun, and cuts it short if it has.
    uint32_t (*host_fail)(void *data, uint64_t request, const struct TracerTaskError *error);
    // Says that the handler has used so many bytes of the request's body, so that as many more may arrive.
    void (*host_consumed)(void *data, uint64_t request, size_t bytes);
    // Says which of its routes the handler has found, such as `/users/{id}` (`http.route`). Of several the last counts.
    void (*host_set_route)(void *data, uint64_t request, struct TracerStr route);
    // Answers `TRACER_EVENT_HEALTH` or `TRACER_EVENT_CONFIGURE`, once, by the number of the event: a status, and the reason unless it is `TRACER_STATUS_OK`.
    void (*host_answer)(void *data, uint64_t order, uint32_t status, struct TracerStr reason);
    // Sends what was answered since the last call.
    void (*host_flush)(void *data);
    // Says whether to look for events once more before sleeping: 1 while requests follow each other so closely that looking takes less time than being
    // woken, else 0. A module that has nothing to do calls it after `host_flush`, and again each time that it has looked whether `event_fd` is readable,
    // without waiting, and found that it is not. It lets other processes run. Null for a host that does not say, for which a module sleeps at once.
    // Since ABI 1.6.
    uint32_t (*host_look)(void *data);
} TracerServing;

// A deployment: a handler of requests. A *replica* is one process that runs it. Since ABI 1.6, as everything about requests.
typedef struct TracerDeployment {
    // The size of this struct, as the module compiled it.
    size_t size;
    // The name in `module:name`.
    struct TracerStr name;
    // Description of the deployment, for people to read; its first line is a summary.
    struct TracerStr doc;
    // The fully qualified name of the function or type in its language (`code.function.name`).
    struct TracerStr code_function_name;
    // The source file (`code.file.path`); empty when unknown.
    struct TracerStr code_file_path;
    // The line in it, from 1 (`code.line.number`); 0 when unknown.
    uint32_t code_line_number;
    // The `DEPLOYMENT_` flags, added up.
    uint32_t flags;
    // `parameter_count` pointers: the arguments of its creation, in order.
    const struct TracerParameter *const *parameters;
    // Number of parameters.
    size_t parameter_count;
    // Most requests that a replica handles at a time, by its author; 0 to leave it to the service.
    uint32_t max_ongoing_requests;
    // Size of the largest batch that a function of the handler collects requests into; 0 for none. The host refuses limits with which such a batch
    // would never be full.
    uint32_t max_batch_size;
    // The name of that function; empty for none.
    struct TracerStr batch_function;
    // Runs a replica: makes the handler, calls `TracerServing.host_ready`, and handles requests until it takes an event
    // `TRACER_EVENT_STOP`; then it drops the handler and returns.
    //
    // Called from: the replica's main thread, once. `serving` and what it points to live as long as the process.
    // On failure: returns a status other than `TRACER_STATUS_OK` with the reason in `error`; the host answers the requests that are still open.
    uint32_t (*on_serve)(const struct TracerDeployment *deployment,
                         const struct TracerServing *serving,
                         struct TracerTextBuffer *error);
} TracerDeployment;

// Record of a module: its description, and the functions that it exports.
typedef struct TracerModule {
    // `TRACER_MODULE_MAGIC`.
    uint64_t magic;
    // The size of this struct, as the module compiled it.
    size_t size;
    // `TRACER_ABI_MAJOR`, as the module compiled it.
    uint32_t abi_major;
    // `TRACER_ABI_MINOR`, as the module compiled it.
    uint32_t abi_minor;
    // Builder of the module: SDK, compiler and OpenTelemetry with their versions, for people to read.
    struct TracerStr producer;
    // The version of the module itself.
    struct TracerStr version;
    // `hook_count` pointers.
    const struct TracerHook *const *hooks;
    // Number of hooks that the module exports.
    size_t hook_count;
    // `task_count` pointers.
    const struct TracerTask *const *tasks;
    // Number of tasks that the module exports.
    size_t task_count;
    // Makes the module ready to run tasks: its OpenTelemetry provider becomes a proxy for the table that
    // the host lends. Null when there is nothing to do.
    //
    // Called from: the host's loading thread, once, before the first task runs, and after the
    // process's hook has run. `host` lives as long as the process.
    // On failure: returns a status other than `TRACER_STATUS_OK` with the reason in `error`; no task of the module is run.
    uint32_t (*on_load)(const struct TracerHost *host, struct TracerTextBuffer *error);
    // `actor_count` pointers. Since ABI 1.2, as what follows.
    const struct TracerActor *const *actors;
    // Number of types of actors that the module exports.
    size_t actor_count;
    // `deployment_count` pointers. Since ABI 1.6, as what follows.
    const struct TracerDeployment *const *deployments;
    // Number of deployments that the module exports.
    size_t deployment_count;
} TracerModule;

// Entry function of a module, which it exports under the name `tracer_module`. Returns the module's record, which lives as long as the process, or
// null when it cannot be made.
//
// Called from: the host's loading thread, any number of times; every call returns the same record.
typedef const struct TracerModule *(*TracerModuleEntry)(void);

#endif  /* TRACER_ABI_H */

#ifdef __cplusplus
extern "C" {
#endif

// The one symbol that a module exports. See TracerModuleEntry.
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const TracerModule *tracer_module(void);

#ifdef __cplusplus
}
#endif
