// A tracing hook in C, against nothing but tracer_abi.h and POSIX.
//
// It writes each span, as it ends, as one line of <folder>/<pid>.json, in the format of the default hook: one JSON
// object with the keys of the OpenTelemetry Python console exporter. The folder is what TRACER_SPANS_DIR says, else
// /tmp/spans.
//
//     cc -std=c11 -Wall -Wextra -pedantic -fPIC -shared -pthread -I ../../hooks/abi/include -o libhook_c.so hook_c.c
//     tracer start --head --tracing-startup-hook=./libhook_c.so:setup_tracing
//
// What it shows: the module's record, a hook that can fail and say why, the table of a provider that makes its own
// ids and follows its parent's sampling, and a task that makes a log record. What it leaves out, and the default hook
// has: rotation, mending a file that somebody left torn, and writing many spans at once.
//
// Rules that every hook keeps, in C or not (tracer_abi.h has all of them):
// - Texts are borrowed for one call, not NUL-terminated, and may hold anything. What is kept is copied.
// - Every function may be called from any thread. Calls for one span never overlap, so a span needs no lock.
// - Structs begin with their size so that they can grow. All fields that the hook uses are in version 1.0, so any
//   host has them; the log record is of version 1.6, for which its task looks.

#define _GNU_SOURCE // getrandom, O_NOFOLLOW

#include "tracer_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

// ---- text that grows ------------------------------------------------------------------------------------------------

// When memory runs out, `is_lost` is set and later appends do nothing; a lost text is never written to the file.
typedef struct {
    char *bytes;
    size_t len, capacity;
    bool is_lost;
} Text;

static void append(Text *text, const void *bytes, size_t len) {
    if (text->is_lost || len == 0) {
        return;
    }
    if (text->capacity - text->len < len) {
        size_t capacity = (text->len + len) * 2;
        char *grown = realloc(text->bytes, capacity);
        if (grown == NULL) {
            text->is_lost = true;
            return;
        }
        text->bytes = grown;
        text->capacity = capacity;
    }
    memcpy(text->bytes + text->len, bytes, len);
    text->len += len;
}

static void append_c(Text *text, const char *string) {
    append(text, string, strlen(string));
}

static void append_text(Text *text, const Text *other) {
    text->is_lost |= other->is_lost;
    append(text, other->bytes, other->len);
}

static void clear(Text *text) {
    free(text->bytes);
    *text = (Text){0};
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

// The length of the UTF-8 sequence at `at`, or 0 when there is none: a stray or cut-off byte, an overlong form, a
// surrogate.
static size_t utf8_len(const uint8_t *at, size_t left) {
    uint8_t first = at[0];
    size_t len = first < 0x80                    ? 1
                 : first >= 0xc2 && first < 0xe0 ? 2
                 : first >= 0xe0 && first < 0xf0 ? 3
                 : first >= 0xf0 && first < 0xf5 ? 4
                                                 : 0;
    if (len == 0 || len > left) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) || (first == 0xf0 && at[1] < 0x90) ||
        (first == 0xf4 && at[1] > 0x8f)) {
        return 0;
    }
    return len;
}

// The inside of a JSON string. What is not UTF-8 becomes U+FFFD.
static void append_escaped(Text *out, const uint8_t *bytes, size_t len) {
    for (size_t i = 0; i < len;) {
        size_t step = utf8_len(bytes + i, len - i);
        char escape[8];
        if (step == 0) {
            append_c(out, "\xef\xbf\xbd");
            step = 1;
        } else if (bytes[i] == '"' || bytes[i] == '\\') {
            append(out, "\\", 1);
            append(out, bytes + i, 1);
        } else if (bytes[i] < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", bytes[i]);
            append_c(out, escape);
        } else {
            append(out, bytes + i, step);
        }
        i += step;
    }
}

static void append_string(Text *out, TracerStr string) {
    append(out, "\"", 1);
    append_escaped(out, string.ptr, string.len);
    append(out, "\"", 1);
}

static void append_id(Text *out, const uint8_t *id, size_t len) {
    append_c(out, "\"0x");
    for (size_t i = 0; i < len; i++) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", id[i]);
        append(out, digits, 2);
    }
    append(out, "\"", 1);
}

static void append_time(Text *out, uint64_t unix_nano) {
    time_t second = (time_t)(unix_nano / 1000000000);
    struct tm utc;
    char day[32], whole[64];
    gmtime_r(&second, &utc);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(whole, sizeof whole, "\"%s.%06uZ\"", day, (unsigned)(unix_nano % 1000000000 / 1000));
    append_c(out, whole);
}

static void append_int(Text *out, int64_t value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    append_c(out, digits);
}

// JSON has no number for NaN and the infinities: they become strings.
static void append_double(Text *out, double value) {
    char digits[40];
    if (isnan(value)) {
        append_c(out, "\"NaN\"");
    } else if (isinf(value)) {
        append_c(out, value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
    } else {
        snprintf(digits, sizeof digits, "%.17g", value);
        append_c(out, digits);
        if (strpbrk(digits, ".e") == NULL) {
            append_c(out, ".0");
        }
    }
}

static void append_bool(Text *out, uint8_t value) {
    append_c(out, value != 0 ? "true" : "false");
}

// Returns false, having appended nothing, for a value of a kind that is newer than this file.
static bool append_value(Text *out, const TracerValue *value) {
    const TracerArray *array = &value->as_.array;
    switch (value->tag) {
    case TRACER_VALUE_BOOL:
        append_bool(out, value->as_.bool_);
        return true;
    case TRACER_VALUE_I64:
        append_int(out, value->as_.i64_);
        return true;
    case TRACER_VALUE_F64:
        append_double(out, value->as_.f64_);
        return true;
    case TRACER_VALUE_STR:
        append_string(out, value->as_.str_);
        return true;
    case TRACER_VALUE_BOOL_ARRAY:
    case TRACER_VALUE_I64_ARRAY:
    case TRACER_VALUE_F64_ARRAY:
    case TRACER_VALUE_STR_ARRAY:
        break;
    default:
        return false;
    }
    append(out, "[", 1);
    for (size_t i = 0; i < array->count; i++) {
        append_c(out, i == 0 ? "" : ", ");
        switch (value->tag) {
        case TRACER_VALUE_BOOL_ARRAY:
            append_bool(out, ((const uint8_t *)array->ptr)[i]);
            break;
        case TRACER_VALUE_I64_ARRAY:
            append_int(out, ((const int64_t *)array->ptr)[i]);
            break;
        case TRACER_VALUE_F64_ARRAY:
            append_double(out, ((const double *)array->ptr)[i]);
            break;
        default:
            append_string(out, ((const TracerStr *)array->ptr)[i]);
        }
    }
    append(out, "]", 1);
    return true;
}

// The W3C tracestate header as Python prints it: the text of a list of strings, here with the quotes of JSON around it.
static void append_trace_state(Text *out, TracerStr header) {
    append_c(out, "\"[");
    bool is_first = true;
    for (size_t at = 0; at < header.len;) {
        const uint8_t *member = header.ptr + at;
        const uint8_t *comma = memchr(member, ',', header.len - at);
        size_t len = comma == NULL ? header.len - at : (size_t)(comma - member);
        at += len + 1;
        while (len > 0 && (*member == ' ' || *member == '\t')) {
            member++;
            len--;
        }
        while (len > 0 && (member[len - 1] == ' ' || member[len - 1] == '\t')) {
            len--;
        }
        const uint8_t *equals = len == 0 ? NULL : memchr(member, '=', len);
        if (equals == NULL) {
            continue;
        }
        // Python quotes with ' unless the text has one and no ".
        bool has_single = memchr(member, '\'', len) != NULL, has_double = memchr(member, '"', len) != NULL;
        const char *quote = has_single && !has_double ? "\\\"" : "'";
        append_c(out, is_first ? "" : ", ");
        append_c(out, quote);
        append_c(out, "{key=");
        for (size_t i = 0; i < len; i++) {
            if (member + i == equals) {
                append_c(out, ", value=");
            } else if (member[i] == '\\' || (member[i] == '\'' && *quote == '\'')) {
                // An escape of Python's inside a string of JSON's.
                append_c(out, "\\\\");
                append_escaped(out, member + i, 1);
            } else {
                append_escaped(out, member + i, 1);
            }
        }
        append_c(out, "}");
        append_c(out, quote);
        is_first = false;
    }
    append_c(out, "]\"");
}

// ---- the file -------------------------------------------------------------------------------------------------------

static struct {
    pthread_mutex_t lock; // Guards all that follows, from the hook's run on.
    char path[4096];
    int fd; // -1 before the first span, so that a process without spans leaves no file.
    bool is_shut_down;
    uint64_t lost;  // Spans that could not be written since the last commit.
    int last_error; // What the system said of the last one.
    Text resource;  // Rendered once; constant after the hook has run.
} output = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

// Appends one line, or nothing of it.
static int write_line(const Text *line) {
    if (output.fd < 0) {
        output.fd = open(output.path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (output.fd < 0) {
            return errno;
        }
    }
    struct stat before;
    if (fstat(output.fd, &before) != 0) {
        return errno;
    }
    for (size_t written = 0; written < line->len;) {
        ssize_t count = write(output.fd, line->bytes + written, line->len - written);
        if (count < 0 && errno != EINTR) {
            int error = errno;
            if (written > 0 && ftruncate(output.fd, before.st_size) != 0) {
                error = errno;
            }
            return error;
        }
        written += count > 0 ? (size_t)count : 0;
    }
    return 0;
}

static void record(const Text *line) {
    pthread_mutex_lock(&output.lock);
    if (!output.is_shut_down) {
        int error = line->is_lost ? ENOMEM : write_line(line);
        if (error != 0) {
            output.lost++;
            output.last_error = error;
        }
    }
    pthread_mutex_unlock(&output.lock);
}

// Tells the host what went wrong: as much as fits, and how long it would have been.
static void explain(TracerTextBuffer *buffer, const char *format, ...) {
    if (buffer == NULL) {
        return;
    }
    char text[5000];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    buffer->len = len < 0 ? 0 : (size_t)len;
    size_t fits = buffer->len < sizeof text ? buffer->len : sizeof text - 1;
    fits = fits < buffer->capacity ? fits : buffer->capacity;
    if (fits > 0) {
        memcpy(buffer->ptr, text, fits);
    }
}

// ---- spans ----------------------------------------------------------------------------------------------------------

// A key with its value as JSON.
typedef struct {
    Text key, value;
} Attribute;

typedef struct {
    uint8_t trace_id[16], span_id[8], parent_id[8];
    bool has_parent, has_ended;
    uint32_t kind, status;
    uint64_t start_time;
    Text name, trace_state, description, events, links;
    Attribute *attributes;
    size_t attribute_count;
    bool is_lost; // Memory ran out: the span is not whole.
} Span;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

// An id may not be all zeros: that means that there is none.
static void random_id(uint8_t *id, size_t len) {
    do {
        for (size_t filled = 0; filled < len;) {
            ssize_t count = getrandom(id + filled, len - filled, 0);
            filled += count > 0 ? (size_t)count : 0;
        }
    } while (id[0] == 0 && memcmp(id, id + 1, len - 1) == 0);
}

static bool is_zero(const uint8_t *id, size_t len) {
    return id[0] == 0 && memcmp(id, id + 1, len - 1) == 0;
}

static void set(Text *text, TracerStr string) {
    text->len = 0;
    append(text, string.ptr, string.len);
}

static void set_attribute(Span *span, const TracerKeyValue *pair) {
    Text value = {0};
    if (!append_value(&value, &pair->value)) {
        return;
    }
    for (size_t i = 0; i < span->attribute_count; i++) {
        Attribute *known = &span->attributes[i];
        if (known->key.len == pair->key.len &&
            (pair->key.len == 0 || memcmp(known->key.bytes, pair->key.ptr, pair->key.len) == 0)) {
            clear(&known->value);
            known->value = value;
            return;
        }
    }
    Attribute *grown = realloc(span->attributes, (span->attribute_count + 1) * sizeof *grown);
    if (grown == NULL) {
        span->is_lost = true;
        clear(&value);
        return;
    }
    span->attributes = grown;
    grown += span->attribute_count++;
    *grown = (Attribute){.value = value};
    set(&grown->key, pair->key);
}

// The attributes of an event, a link or the resource, which do not change any more.
static void append_attributes(Text *out, const TracerKeyValue *attributes, size_t count) {
    Span holder = {0};
    for (size_t i = 0; i < count; i++) {
        set_attribute(&holder, &attributes[i]);
    }
    append(out, "{", 1);
    for (size_t i = 0; i < holder.attribute_count; i++) {
        Attribute *attribute = &holder.attributes[i];
        append_c(out, i == 0 ? "" : ", ");
        append_string(out, (TracerStr){(const uint8_t *)attribute->key.bytes, attribute->key.len});
        append_c(out, ": ");
        append_text(out, &attribute->value);
        clear(&attribute->key);
        clear(&attribute->value);
    }
    append(out, "}", 1);
    out->is_lost |= holder.is_lost;
    free(holder.attributes);
}

static void append_context(Text *out, const uint8_t *trace_id, const uint8_t *span_id, TracerStr trace_state) {
    append_c(out, "{\"trace_id\": ");
    append_id(out, trace_id, 16);
    append_c(out, ", \"span_id\": ");
    append_id(out, span_id, 8);
    append_c(out, ", \"trace_state\": ");
    append_trace_state(out, trace_state);
    append(out, "}", 1);
}

static TracerStr borrow(const Text *text) {
    return (TracerStr){(const uint8_t *)text->bytes, text->len};
}

static void append_span(Text *out, const Span *span, uint64_t end_time) {
    static const char *const kinds[] = {"INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"};
    static const char *const statuses[] = {"UNSET", "OK", "ERROR"};
    append_c(out, "{\"name\": ");
    append_string(out, borrow(&span->name));
    append_c(out, ", \"context\": ");
    append_context(out, span->trace_id, span->span_id, borrow(&span->trace_state));
    append_c(out, ", \"kind\": \"SpanKind.");
    append_c(out, kinds[span->kind]);
    append_c(out, "\", \"parent_id\": ");
    if (span->has_parent) {
        append_id(out, span->parent_id, 8);
    } else {
        append_c(out, "null");
    }
    append_c(out, ", \"start_time\": ");
    append_time(out, span->start_time);
    append_c(out, ", \"end_time\": ");
    append_time(out, end_time);
    append_c(out, ", \"status\": {\"status_code\": \"");
    append_c(out, statuses[span->status]);
    append(out, "\"", 1);
    if (span->status == TRACER_SPAN_STATUS_ERROR && span->description.len > 0) {
        append_c(out, ", \"description\": ");
        append_string(out, borrow(&span->description));
    }
    append_c(out, "}, \"attributes\": {");
    for (size_t i = 0; i < span->attribute_count; i++) {
        append_c(out, i == 0 ? "" : ", ");
        append_string(out, borrow(&span->attributes[i].key));
        append_c(out, ": ");
        append_text(out, &span->attributes[i].value);
        out->is_lost |= span->attributes[i].key.is_lost;
    }
    append_c(out, "}, \"events\": [");
    append_text(out, &span->events);
    append_c(out, "], \"links\": [");
    append_text(out, &span->links);
    append_c(out, "], \"resource\": ");
    append_text(out, &output.resource);
    append_c(out, "}\n");
    out->is_lost |= span->is_lost || span->name.is_lost || span->trace_state.is_lost || span->description.is_lost;
}

// ---- the table ------------------------------------------------------------------------------------------------------

// The format has no place for the scope, so all tracers are one.
static void *tracer(void *data, const TracerScope *scope) {
    (void)scope;
    return data;
}

static void span_add_event(void *handle, const TracerEvent *event) {
    Span *span = handle;
    if (span == NULL || span->has_ended) {
        return;
    }
    append_c(&span->events, span->events.len == 0 ? "{\"name\": " : ", {\"name\": ");
    append_string(&span->events, event->name);
    append_c(&span->events, ", \"timestamp\": ");
    append_time(&span->events, event->time_unix_nano == 0 ? now() : event->time_unix_nano);
    append_c(&span->events, ", \"attributes\": ");
    append_attributes(&span->events, event->attributes, event->attribute_count);
    append(&span->events, "}", 1);
}

static void span_add_link(void *handle, const TracerLink *link) {
    Span *span = handle;
    if (span == NULL || span->has_ended || is_zero(link->context.trace_id, 16) || is_zero(link->context.span_id, 8)) {
        return;
    }
    append_c(&span->links, span->links.len == 0 ? "{\"context\": " : ", {\"context\": ");
    append_context(&span->links, link->context.trace_id, link->context.span_id, link->context.trace_state);
    append_c(&span->links, ", \"attributes\": ");
    append_attributes(&span->links, link->attributes, link->attribute_count);
    append(&span->links, "}", 1);
}

static void span_set_attributes(void *handle, const TracerKeyValue *attributes, size_t count) {
    Span *span = handle;
    if (span == NULL || span->has_ended) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        set_attribute(span, &attributes[i]);
    }
}

static void *span_start(void *tracer_handle, const TracerSpanStart *start, TracerSpanStarted *started) {
    (void)tracer_handle;
    const TracerSpanContext *parent = start->parent;
    if (parent != NULL && (is_zero(parent->trace_id, 16) || is_zero(parent->span_id, 8))) {
        parent = NULL;
    }
    // A new trace is sampled; another is what its parent is.
    bool is_sampled = parent == NULL || (parent->trace_flags & 1) != 0;
    if (parent != NULL) {
        memcpy(started->trace_id, parent->trace_id, 16);
    } else {
        random_id(started->trace_id, 16);
    }
    random_id(started->span_id, 8);
    // Bit 1 says that the trace id is random: it is kept as it came, and ours are.
    started->trace_flags = (uint8_t)((parent != NULL ? parent->trace_flags & 2 : 2) | (is_sampled ? 1 : 0));
    started->is_recording = 0;
    started->has_trace_state = 0;

    // Without a sample, or without memory, there is no span, but what was said above travels on.
    Span *span = is_sampled ? calloc(1, sizeof *span) : NULL;
    if (span == NULL) {
        return NULL;
    }
    memcpy(span->trace_id, started->trace_id, 16);
    memcpy(span->span_id, started->span_id, 8);
    if (parent != NULL) {
        span->has_parent = true;
        memcpy(span->parent_id, parent->span_id, 8);
        set(&span->trace_state, parent->trace_state);
    }
    span->kind = start->kind <= TRACER_SPAN_KIND_CONSUMER ? start->kind : TRACER_SPAN_KIND_INTERNAL;
    span->start_time = start->start_time_unix_nano == 0 ? now() : start->start_time_unix_nano;
    set(&span->name, start->name);
    span_set_attributes(span, start->attributes, start->attribute_count);
#if TRACER_ABI_MINOR >= 6
    // A host before ABI 1.6 sends a shorter struct.
    if (start->size > offsetof(TracerSpanStart, request) && start->request != NULL) {
        const TracerKeyValue of_request = {
            .key = {.ptr = (const uint8_t *)"hook_c.request_id", .len = 17},
            .value = {.tag = TRACER_VALUE_STR, .as_ = {.str_ = start->request->request_id}},
        };
        span_set_attributes(span, &of_request, 1);
    }
#endif
    for (size_t i = 0; i < start->event_count; i++) {
        span_add_event(span, start->events[i]);
    }
    for (size_t i = 0; i < start->link_count; i++) {
        span_add_link(span, start->links[i]);
    }
    started->is_recording = 1;
    return span;
}

static void span_set_status(void *handle, uint32_t code, TracerStr description) {
    Span *span = handle;
    // Once a span is said to be fine, it stays so, and nothing said is nothing changed.
    if (span == NULL || span->has_ended || span->status == TRACER_SPAN_STATUS_OK || code == TRACER_SPAN_STATUS_UNSET ||
        code > TRACER_SPAN_STATUS_ERROR) {
        return;
    }
    span->status = code;
    set(&span->description, description);
}

static void span_update_name(void *handle, TracerStr name) {
    Span *span = handle;
    if (span != NULL && !span->has_ended) {
        set(&span->name, name);
    }
}

static void span_end(void *handle, uint64_t end_time_unix_nano) {
    Span *span = handle;
    if (span == NULL || span->has_ended) {
        return;
    }
    span->has_ended = true;
    Text line = {0};
    append_span(&line, span, end_time_unix_nano == 0 ? now() : end_time_unix_nano);
    record(&line);
    clear(&line);
}

static void span_release(void *handle) {
    Span *span = handle;
    if (span == NULL) {
        return;
    }
    span_end(span, 0);
    clear(&span->name);
    clear(&span->trace_state);
    clear(&span->description);
    clear(&span->events);
    clear(&span->links);
    for (size_t i = 0; i < span->attribute_count; i++) {
        clear(&span->attributes[i].key);
        clear(&span->attributes[i].value);
    }
    free(span->attributes);
    free(span);
}

// A span is with the kernel as soon as it has ended, out of reach of any SIGKILL. It is left to say what was lost.
static uint32_t commit(void *data, TracerTextBuffer *error) {
    (void)data;
    pthread_mutex_lock(&output.lock);
    uint64_t lost = output.lost;
    int last_error = output.last_error;
    output.lost = 0;
    pthread_mutex_unlock(&output.lock);
    if (lost == 0) {
        return TRACER_STATUS_OK;
    }
    explain(error, "%llu spans could not be written to `%s`: %s", (unsigned long long)lost, output.path,
            strerror(last_error));
    return TRACER_STATUS_FAILED;
}

static uint32_t flush(void *data, uint64_t timeout_ms, TracerTextBuffer *error) {
    (void)timeout_ms;
    pthread_mutex_lock(&output.lock);
    bool is_shut_down = output.is_shut_down;
    pthread_mutex_unlock(&output.lock);
    return is_shut_down ? TRACER_STATUS_ALREADY : commit(data, error);
}

// Handles stay valid: spans that end from now on are dropped.
static uint32_t shut_down(void *data, uint64_t timeout_ms, TracerTextBuffer *error) {
    uint32_t status = flush(data, timeout_ms, error);
    pthread_mutex_lock(&output.lock);
    output.is_shut_down = true;
    if (output.fd >= 0) {
        close(output.fd);
        output.fd = -1;
    }
    pthread_mutex_unlock(&output.lock);
    return status;
}

// ---- the hook -------------------------------------------------------------------------------------------------------

static char instance_id[37];

#define TEXT_VALUE(...) {.tag = TRACER_VALUE_STR, .as_ = {.str_ = __VA_ARGS__}}

static TracerKeyValue resource[] = {
    {.key = TEXT("process.pid"), .value = {.tag = TRACER_VALUE_I64, .as_ = {.i64_ = 0}}}, // Set by the hook.
    {.key = TEXT("service.instance.id"), .value = TEXT_VALUE({(const uint8_t *)instance_id, 36})},
    {.key = TEXT("service.name"), .value = TEXT_VALUE(TEXT("tracer"))},
    {.key = TEXT("telemetry.sdk.language"), .value = TEXT_VALUE(TEXT("c"))},
    {.key = TEXT("telemetry.sdk.name"), .value = TEXT_VALUE(TEXT("hook_c"))},
};

#define RESOURCE_COUNT (sizeof resource / sizeof resource[0])

static TracerTracing table = {
    .size = sizeof table,
    .data = &table,
    .tracer = tracer,
    // Null, where there is nothing to do: `tracer_release`, because no tracer was made, and `span_trace_state`, because
    // a span's is always its parent's.
    .span_start = span_start,
    .span_set_attributes = span_set_attributes,
    .span_add_event = span_add_event,
    .span_add_link = span_add_link,
    .span_set_status = span_set_status,
    .span_update_name = span_update_name,
    .span_end = span_end,
    .span_release = span_release,
    .commit = commit,
    .flush = flush,
    .shutdown = shut_down,
    .resource = resource,
    .resource_count = RESOURCE_COUNT,
};

// A folder that others could have prepared is not to be trusted with what programs do. Fails with a reason.
static bool prepare_folder(const char *dir, TracerTextBuffer *error) {
    struct stat found;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        explain(error, "span folder `%s` cannot be created: %s", dir, strerror(errno));
        return false;
    }
    if (lstat(dir, &found) != 0) {
        explain(error, "span folder `%s` cannot be used: %s", dir, strerror(errno));
        return false;
    }
    if (!S_ISDIR(found.st_mode)) {
        explain(error, "span folder `%s` is %s", dir, S_ISLNK(found.st_mode) ? "a symbolic link" : "not a folder");
        return false;
    }
    if (found.st_uid != geteuid()) {
        explain(error, "span folder `%s` belongs to user %u, but this process runs as user %u", dir,
                (unsigned)found.st_uid, (unsigned)geteuid());
        return false;
    }
    if (access(dir, W_OK | X_OK) != 0) {
        explain(error, "span folder `%s` cannot be written to: %s", dir, strerror(errno));
        return false;
    }
    return true;
}

static uint32_t setup_tracing(const TracerHook *hook, const TracerTracing **tracing, TracerTextBuffer *error) {
    (void)hook;
    const char *dir = getenv("TRACER_SPANS_DIR");
    if (dir == NULL || *dir == '\0') {
        dir = "/tmp/spans";
    }
    if (!prepare_folder(dir, error)) {
        return TRACER_STATUS_FAILED;
    }
    int len = snprintf(output.path, sizeof output.path, "%s/%ld.json", dir, (long)getpid());
    if (len < 0 || (size_t)len >= sizeof output.path) {
        explain(error, "span folder `%s` has too long a name", dir);
        return TRACER_STATUS_FAILED;
    }

    uint8_t id[16];
    random_id(id, sizeof id);
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    for (size_t i = 0, at = 0; i < sizeof id; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            instance_id[at++] = '-';
        }
        snprintf(instance_id + at, 3, "%02x", id[i]);
        at += 2;
    }
    resource[0].value.as_.i64_ = getpid();
    append_c(&output.resource, "{\"attributes\": ");
    append_attributes(&output.resource, resource, RESOURCE_COUNT);
    append_c(&output.resource, ", \"schema_url\": \"\"}");
    if (output.resource.is_lost) {
        explain(error, "out of memory");
        return TRACER_STATUS_FAILED;
    }
    table.description = (TracerStr){(const uint8_t *)output.path, (size_t)len};
    *tracing = &table;
    return TRACER_STATUS_OK;
}

// ---- a task that logs and counts -----------------------------------------------------------------------------------------------

// The host's table, from which a module takes what it needs.
static const TracerHost *host;

static uint32_t on_load(const TracerHost *lent, TracerTextBuffer *error) {
    (void)error;
    host = lent;
    return TRACER_STATUS_OK;
}

#if TRACER_ABI_MINOR >= 6
// Counts a greeting, with the span of the attempt as its exemplar. The instrument is the same one each time.
static void count_greeting(const TracerTaskCall *call, const TracerKeyValue *attribute) {
    if (host->size < offsetof(TracerHost, host_exemplar) || host->host_instrument == NULL) {
        return;
    }
    TracerInstrument greetings = {
        .size = sizeof greetings,
        .kind = TRACER_INSTRUMENT_COUNTER,
        .number = TRACER_NUMBER_U64,
        .name = TEXT("greetings"),
        .unit = TEXT("{greeting}"),
        .description = TEXT("Greetings said."),
        .scope = TEXT("hook_c"),
    };
    void *instrument = host->host_instrument(&greetings);
    TracerMeasurement one = {
        .size = sizeof one,
        .value = {.u64_ = 1},
        .attributes = attribute,
        .attribute_count = 1,
        .span_context = call->span_context,
    };
    host->host_measure(instrument, &one);
}
#endif

// Makes a log record in the span of its attempt, counts it, and returns nothing. A header before ABI 1.6 has neither.
static uint32_t greet(const TracerTask *task, const TracerTaskCall *call) {
    (void)task;
#if TRACER_ABI_MINOR >= 6
    static const TracerKeyValue attribute = {TEXT("language"), TEXT_VALUE(TEXT("C"))};
    TracerLogRecord record = {
        .size = sizeof record,
        .span_context = call->span_context,
        .severity = TRACER_SEVERITY_INFO,
        .target = TEXT("hook_c"),
        .body = TEXT("hello from C"),
        .attributes = &attribute,
        .attribute_count = 1,
    };
    // Hosts before that have a shorter table, and processes that are not traced take no records.
    if (host->size >= offsetof(TracerHost, log_severity) && host->host_log_record != NULL) {
        host->host_log_record(&record);
    }
    count_greeting(call, &attribute);
#endif
    call->host_result(call->data, (TracerBytes)TEXT("\xc0")); // nil of MessagePack
    return TRACER_STATUS_OK;
}

static const TracerTask greet_task = {.size = sizeof greet_task, .name = TEXT("greet"), .on_run = greet};

static const TracerTask *const tasks[] = {&greet_task};

// ---- the module -----------------------------------------------------------------------------------------------------

static const TracerHook hook = {
    .size = sizeof hook,
    .name = TEXT("setup_tracing"),
    .doc = TEXT("Writes spans to /tmp/spans/<pid>.json, from C."),
    .on_setup = setup_tracing,
};

static const TracerHook *const hooks[] = {&hook};

static const TracerModule module = {
    .magic = TRACER_MODULE_MAGIC,
    .size = sizeof module,
    .abi_major = TRACER_ABI_MAJOR,
    .abi_minor = TRACER_ABI_MINOR,
    .producer = TEXT("hook_c, compiled by cc " __VERSION__),
    .version = TEXT("0.1.0"),
    .hooks = hooks,
    .hook_count = 1,
    .tasks = tasks,
    .task_count = 1,
    .on_load = on_load,
};

const TracerModule *tracer_module(void) {
    return &module;
}
