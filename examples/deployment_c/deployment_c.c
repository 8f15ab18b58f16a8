// A deployment in C, against nothing but tracer_abi.h and POSIX: a replica answers HTTP requests from one loop.
//
//     cc -std=c11 -Wall -Wextra -pedantic -fPIC -shared -I ../../hooks/abi/include -o libdeployment_c.so deployment_c.c
//     tracer serve run ./libdeployment_c.so:echo
//     curl http://127.0.0.1:8000/hello/Ada
//     curl --data-binary @deployment_c.c http://127.0.0.1:8000/echo
//
// What it shows: the loop of a replica (poll, take events, flush), a small answer, a body that goes back as it comes, with its trailers, and
// without a copy, backpressure in both directions, a client that goes away, and the question whether the replica is well.
//
// Rules that every handler keeps, in C or not (tracer_abi.h has all of them):
// - A request ends with one call of host_end or host_fail, also when its client has gone.
// - Texts are borrowed, not NUL-terminated. An event and all that it points to is valid until the next host_take_events.
// - The piece of an event is the module's: it is released, or given to host_send, which then releases it.

#include "tracer_abi.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}
#define EVENTS 64

// ---- requests whose body goes back ----------------------------------------------------------------------------------

// A piece of a body that the host had no room for yet.
typedef struct Waiting {
    TracerPiece piece;
    struct Waiting *next;
} Waiting;

typedef struct Echo {
    uint64_t number;
    Waiting *first, **last;
    bool is_whole; // Nothing of the body follows.
    struct Echo *next;
} Echo;

typedef struct {
    const TracerServing *host;
    Echo *echoes;
} Replica;

static Echo **find(Replica *replica, uint64_t number) {
    Echo **at = &replica->echoes;
    while (*at != NULL && (*at)->number != number) {
        at = &(*at)->next;
    }
    return at;
}

static void release(const TracerPiece *piece) {
    if (piece->release != NULL) {
        piece->release(piece->owner);
    }
}

static void forget(Replica *replica, uint64_t number) {
    Echo **at = find(replica, number), *echo = *at;
    if (echo == NULL) {
        return;
    }
    *at = echo->next;
    while (echo->first != NULL) {
        Waiting *waiting = echo->first;
        echo->first = waiting->next;
        release(&waiting->piece);
        free(waiting);
    }
    free(echo);
}

static void fail(Replica *replica, uint64_t number, uint32_t kind, const char *type, const char *message) {
    TracerTaskError error = {
        .size = sizeof error,
        .kind = kind,
        .type_name = {(const uint8_t *)type, strlen(type)},
        .message = {(const uint8_t *)message, strlen(message)},
    };
    forget(replica, number);
    replica->host->host_fail(replica->host->data, number, &error);
}

// Gives back what waits, as far as the client reads it. As much more of the body may come as has gone.
static void pump(Replica *replica, Echo *echo) {
    const TracerServing *host = replica->host;
    while (echo->first != NULL) {
        Waiting *waiting = echo->first;
        size_t len = waiting->piece.bytes.len;
        uint32_t status = host->host_send(host->data, echo->number, &waiting->piece);
        if (status == TRACER_STATUS_FULL) {
            return; // TRACER_EVENT_ROOM follows.
        }
        if (status != TRACER_STATUS_OK) {
            fail(replica, echo->number, TRACER_TASK_ERROR_CANCELLED, "gone", "the client has gone");
            return;
        }
        // The piece is the host's now.
        echo->first = waiting->next;
        if (echo->first == NULL) {
            echo->last = &echo->first;
        }
        free(waiting);
        host->host_consumed(host->data, echo->number, len);
    }
    if (echo->is_whole) {
        uint64_t number = echo->number;
        forget(replica, number);
        host->host_end(host->data, number, NULL, 0);
    }
}

// A piece of a body has come, or its end. Trailers go back as they came, when there is nothing else to wait for.
static void take(Replica *replica, Echo *echo, const TracerRequestEvent *event) {
    const TracerServing *host = replica->host;
    if (event->piece.bytes.len == 0) {
        release(&event->piece);
    } else {
        Waiting *waiting = malloc(sizeof *waiting);
        if (waiting == NULL) {
            release(&event->piece);
            fail(replica, echo->number, TRACER_TASK_ERROR_RETURNED, "memory", "no memory for a piece of the body");
            return;
        }
        *waiting = (Waiting){.piece = event->piece};
        *echo->last = waiting;
        echo->last = &waiting->next;
    }
    if (event->is_last && event->trailer_count > 0 && echo->first == NULL) {
        uint64_t number = echo->number;
        forget(replica, number);
        host->host_end(host->data, number, event->trailers, event->trailer_count);
        return;
    }
    echo->is_whole = event->is_last != 0;
    pump(replica, echo);
}

// ---- answers --------------------------------------------------------------------------------------------------------

// The whole answer to a request, whose own body nobody reads.
static void answer(Replica *replica, uint64_t number, uint32_t status, const char *type, const char *body, size_t len) {
    const TracerServing *host = replica->host;
    char digits[24];
    int width = snprintf(digits, sizeof digits, "%zu", len);
    TracerHeader headers[] = {
        {.name = TEXT("content-type"), .value = {(const uint8_t *)type, strlen(type)}},
        {.name = TEXT("content-length"), .value = {(const uint8_t *)digits, (size_t)width}},
    };
    TracerResponseHead head = {.size = sizeof head, .status = status, .headers = headers, .header_count = 2};
    uint8_t *copy = malloc(len + 1);
    if (copy == NULL) {
        fail(replica, number, TRACER_TASK_ERROR_RETURNED, "memory", "no memory for the answer");
        return;
    }
    memcpy(copy, body, len);
    TracerPiece piece = {.bytes = {copy, len}, .owner = copy, .release = free};
    uint32_t taken = host->host_respond(host->data, number, &head);
    if (taken != TRACER_STATUS_OK || host->host_send(host->data, number, &piece) != TRACER_STATUS_OK) {
        free(copy);
        fail(replica, number, TRACER_TASK_ERROR_CANCELLED, "gone", "the client has gone");
        return;
    }
    host->host_end(host->data, number, NULL, 0);
}

static bool starts_with(TracerStr text, const char *prefix) {
    return text.len >= strlen(prefix) && memcmp(text.ptr, prefix, strlen(prefix)) == 0;
}

static bool is(TracerStr text, const char *other) {
    return text.len == strlen(other) && starts_with(text, other);
}

static void hello(Replica *replica, const TracerRequestEvent *event) {
    char text[256];
    TracerStr target = event->head->target;
    int name = (int)(target.len - strlen("/hello/"));
    int len = snprintf(text, sizeof text, "Hello, %.*s, from replica %.*s.\n", name > 100 ? 100 : name,
                       (const char *)target.ptr + strlen("/hello/"), (int)replica->host->replica.len,
                       (const char *)replica->host->replica.ptr);
    replica->host->host_set_route(replica->host->data, event->number, (TracerStr)TEXT("/hello/{name}"));
    size_t size = len < 0 ? 0 : (size_t)len < sizeof text ? (size_t)len : sizeof text - 1;
    answer(replica, event->number, 200, "text/plain; charset=utf-8", text, size);
}

static void begin_echo(Replica *replica, const TracerRequestEvent *event) {
    const TracerServing *host = replica->host;
    TracerHeader header = {.name = TEXT("content-type"), .value = TEXT("application/octet-stream")};
    TracerResponseHead head = {.size = sizeof head, .status = 200, .headers = &header, .header_count = 1};
    host->host_set_route(host->data, event->number, (TracerStr)TEXT("/echo"));
    Echo *echo = malloc(sizeof *echo);
    if (echo == NULL || host->host_respond(host->data, event->number, &head) != TRACER_STATUS_OK) {
        free(echo);
        release(&event->piece);
        fail(replica, event->number, TRACER_TASK_ERROR_CANCELLED, "gone", "the answer could not begin");
        return;
    }
    *echo = (Echo){.number = event->number, .next = replica->echoes};
    echo->last = &echo->first;
    replica->echoes = echo;
    take(replica, echo, event);
}

static void request(Replica *replica, const TracerRequestEvent *event) {
    TracerStr target = event->head->target;
    if (is(target, "/echo") && is(event->head->method, "POST")) {
        begin_echo(replica, event);
        return;
    }
    release(&event->piece);
    if (starts_with(target, "/hello/")) {
        hello(replica, event);
    } else {
        const char *text = "GET /hello/NAME or POST /echo\n";
        answer(replica, event->number, 404, "text/plain; charset=utf-8", text, strlen(text));
    }
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// Returns false when the replica is to end.
static bool handle(Replica *replica, const TracerRequestEvent *event) {
    const TracerServing *host = replica->host;
    Echo *echo = *find(replica, event->number);
    switch (event->kind) {
    case TRACER_EVENT_REQUEST:
        request(replica, event);
        return true;
    case TRACER_EVENT_BODY:
        if (echo != NULL) {
            take(replica, echo, event);
        } else {
            release(&event->piece); // Of a request that was answered without it.
        }
        return true;
    case TRACER_EVENT_ROOM:
        if (echo != NULL) {
            pump(replica, echo);
        }
        return true;
    case TRACER_EVENT_BODY_CUT:
    case TRACER_EVENT_GONE:
        if (echo != NULL) {
            fail(replica, event->number, TRACER_TASK_ERROR_CANCELLED, "gone", "the client has gone");
        }
        return true;
    case TRACER_EVENT_HEALTH:
        host->host_answer(host->data, event->number, TRACER_STATUS_OK, (TracerStr){0});
        return true;
    case TRACER_EVENT_STOP:
        return false;
    default:
        release(&event->piece);
        return true;
    }
}

static uint32_t on_serve(const TracerDeployment *deployment, const TracerServing *host, TracerTextBuffer *error) {
    (void)deployment;
    Replica replica = {.host = host};
    struct pollfd readable = {.fd = host->event_fd, .events = POLLIN};
    const TracerRequestEvent *events[EVENTS];
    host->host_ready(host->data);
    for (;;) {
        for (size_t count; (count = host->host_take_events(host->data, events, EVENTS)) > 0;) {
            for (size_t i = 0; i < count; i++) {
                if (!handle(&replica, events[i])) {
                    return TRACER_STATUS_OK;
                }
            }
        }
        host->host_flush(host->data);
        // While requests follow each other closely it takes less time to look for the next one than to be woken for it.
        int found = 0;
        while (found == 0 && host->host_look != NULL && host->host_look(host->data)) {
            found = poll(&readable, 1, 0);
        }
        if (found <= 0 && poll(&readable, 1, -1) < 0 && errno != EINTR) {
            const char *reason = "poll failed";
            error->len = strlen(reason);
            memcpy(error->ptr, reason, error->len < error->capacity ? error->len : error->capacity);
            return TRACER_STATUS_FAILED;
        }
    }
}

// ---- the module -----------------------------------------------------------------------------------------------------

static const TracerDeployment echo = {
    .size = sizeof echo,
    .name = TEXT("echo"),
    .doc = TEXT("Says hello, and gives bodies back as they come, from C."),
    .code_function_name = TEXT("on_serve"),
    .code_file_path = TEXT("deployment_c.c"),
    .flags = TRACER_DEPLOYMENT_HEALTH,
    .on_serve = on_serve,
};

static const TracerDeployment *const deployments[] = {&echo};

static const TracerModule module = {
    .magic = TRACER_MODULE_MAGIC,
    .size = sizeof module,
    .abi_major = TRACER_ABI_MAJOR,
    .abi_minor = TRACER_ABI_MINOR,
    .producer = TEXT("deployment_c, compiled by cc " __VERSION__),
    .version = TEXT("0.1.0"),
    .deployments = deployments,
    .deployment_count = 1,
};

const TracerModule *tracer_module(void) {
    return &module;
}
