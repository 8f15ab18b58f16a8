"""Writes python_console.jsonl beside itself: what the OpenTelemetry Python SDK makes of the spans in ../lines.rs.

Run once by hand, with opentelemetry-sdk 1.45.2:  python make.py
"""

import pathlib

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
resource = Resource(
    {
        "telemetry.sdk.language": "rust",
        "service.name": "tracer",
        "service.instance.id": "5f1c2f6e-2a4b-4c36-9d1c-000000000001",
        "process.pid": 4242,
    }
)


def context(span_id, state=""):
    return SpanContext(TRACE, span_id, False, TraceFlags(1), TraceState.from_header([state]))


spans = [
    ReadableSpan(
        name="plain",
        context=context(0xB7AD6B7169203331),
        resource=resource,
        kind=SpanKind.INTERNAL,
        attributes={},
        start_time=1_795_203_275_000_000_000,
        end_time=1_795_203_275_000_250_000,
    ),
    ReadableSpan(
        name="quote \" backslash \\ line\nfeed tab\t end\x01",
        context=context(0xB7AD6B7169203332, "rojo=1,congo=t61rcWkgMzE"),
        parent=context(0x0000000000000001),
        resource=resource,
        kind=SpanKind.CONSUMER,
        attributes={
            "bool": True,
            "int": -9223372036854775808,
            "float": 0.1,
            "text": "a/b",
            "bools": (True, False),
            "ints": (1, -2),
            "floats": (1.5, -0.25),
            "texts": ("a", 'b"'),
            "none of them": (),
        },
        events=[
            Event("exception", {"exception.type": "E"}, timestamp=1_795_203_275_500_000_000),
            Event("bare", {}, timestamp=1_795_203_276_000_001_000),
        ],
        links=[Link(context(0x00000000000000FF, "rojo=1"), {"why": "retry"}), Link(context(0xFE), {})],
        status=Status(StatusCode.ERROR, "it 'broke'"),
        start_time=1_795_203_275_123_456_000,
        end_time=1_795_203_277_999_999_000,
    ),
    ReadableSpan(
        name="quoted state",
        context=context(0x0102030405060708, "a=it's,b=\"x\",c='\"\\"),
        resource=resource,
        kind=SpanKind.SERVER,
        attributes={},
        status=Status(StatusCode.OK),
        start_time=0 + 1_000,
        end_time=4_102_444_800_000_000_000,
    ),
    ReadableSpan(
        name="no description",
        context=context(0x0102030405060709),
        resource=resource,
        kind=SpanKind.PRODUCER,
        attributes={},
        status=Status(StatusCode.ERROR),
        start_time=1_000,
        end_time=2_000,
    ),
    ReadableSpan(
        name="client",
        context=context(0x010203040506070A),
        resource=resource,
        kind=SpanKind.CLIENT,
        attributes={"language": "日本語 é"},
        start_time=1_000,
        end_time=2_000,
    ),
]

with open(pathlib.Path(__file__).with_name("python_console.jsonl"), "w") as out:
    for span in spans:
        out.write(span.to_json(indent=None) + "\n")
