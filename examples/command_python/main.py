"""Counts the words of files, in Python, as part of a trace that began elsewhere.

`tracer submit command` puts the context of the attempt's span into the environment: TRACEPARENT, TRACESTATE and BAGGAGE.
OpenTelemetry's own propagators read it from there, so a program in any language that has an OpenTelemetry SDK continues
the trace with a few lines. This one writes its spans where tracer's processes write theirs, `<folder>/<pid>.json`, and so
`tracer trace show last` shows them in the one tree:

    pip install opentelemetry-sdk
    tracer submit command -- python3 examples/command_python/main.py LICENSE README.md
    tracer trace show last

Its entries of baggage, given by whoever submitted (`BAGGAGE=customer=ada tracer submit command -- ...`), become attributes.
"""

import os
import sys

from opentelemetry import baggage, propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def environment_carrier():
    """The headers `traceparent`, `tracestate` and `baggage`, as the environment has them."""
    return {name: os.environ[name.upper()] for name in propagate.get_global_textmap().fields if name.upper() in os.environ}


def set_up_tracing():
    """Every span becomes a line of this process's span file, in one write each."""
    folder = os.environ.get("TRACER_SPANS_DIR") or "/tmp/spans"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor = os.open(f"{folder}/{os.getpid()}.json", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    exporter = ConsoleSpanExporter(
        out=os.fdopen(descriptor, "a", encoding="utf-8"),
        # Without indentation a span is one line, and the file is one that tools for JSON lines take.
        formatter=lambda span: span.to_json(indent=None) + "\n",
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "command_python", "process.pid": os.getpid()}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def count(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return sum(len(line.split()) for line in file)


def main(paths):
    provider = set_up_tracing()
    tracer = trace.get_tracer("command_python")
    parent = propagate.extract(environment_carrier())
    try:
        with tracer.start_as_current_span("count files", context=parent, attributes={"files": len(paths)}) as span:
            for key, value in baggage.get_all(parent).items():
                span.set_attribute(f"baggage.{key}", str(value))
            for path in paths:
                with tracer.start_as_current_span("count file", attributes={"file.path": path}) as file_span:
                    words = count(path)
                    file_span.set_attribute("words", words)
                print(f"{words:8} {path}")
    except OSError as error:
        print(f"cannot read `{error.filename}`: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        provider.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
