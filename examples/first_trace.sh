#!/usr/bin/env bash
# The main job from a fresh clone, in one command: builds tracer and the examples, starts a head with two workers and the
# default tracing hook, counts the words of a text, shows the trace as it was read back from the span files, and stops
# everything. It works in a temporary folder of its own, leaves nothing running and nothing behind, and fails if any of it fails.
#
#     bash examples/first_trace.sh [TEXT-FILE]

set -Eeuo pipefail

text_file=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/rabbit_hole.txt}")
[ -r "$text_file" ] || { echo "cannot read \`$text_file\`" >&2; exit 1; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# Nothing of the caller's settings is meant for this head.
for variable in $(compgen -e | grep -E '^(TRACER_|OTEL_)|^(TRACEPARENT|TRACESTATE|BAGGAGE)$' || true); do
    unset "$variable"
done
place=$(mktemp -d "${TMPDIR:-/tmp}/first_trace.XXXXXX")
export TRACER_TEMP_DIR=$place/head TRACER_SPANS_DIR=$place/spans
tracer=$target/debug/tracer
bold=$'\e[1m' plain=$'\e[0m'
# What is not a terminal has no bold letters, and no width: room enough for the names of the spans.
[ -t 1 ] || { bold='' plain=''; export COLUMNS=110; }

# Prints what is run, as one would type it, and runs it.
run() {
    printf '\n%s$ %s%s\n' "$bold" "$1" "$plain"
    shift
    "$@"
}

# The processes that were started here: those that have the folder in their command line or environment.
left_running() {
    local folder
    for folder in /proc/[0-9]*; do
        [ "${folder#/proc/}" != $$ ] && [ "${folder#/proc/}" != "$BASHPID" ] || continue
        # A process that has ended in between cannot be read, and is not left running.
        if grep -qaF "$place" "$folder/environ" "$folder/cmdline" 2>/dev/null; then
            echo "${folder#/proc/}"
        fi
    done
}

clean_up() {
    local code=$?
    trap - EXIT
    if [ "$code" -ne 0 ]; then
        printf '\nfirst_trace failed with code %s\n' "$code" >&2
        cat "$place"/head/sessions/*/logs/* >&2 2>/dev/null || true
    fi
    # Ends with 3 when no head is left, which is what it should find.
    "$tracer" stop --force >/dev/null 2>&1 || true
    rm -rf "$place"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

run 'cargo build --workspace' cargo build --workspace --quiet

hook=local_tmp_tracing:setup_tracing
# The start must have found the library; the same hook is also built into the executable, and that is not what is shown here.
run "tracer start --head --tracing-startup-hook=$hook --num-workers 2" \
    "$tracer" start --head --tracing-startup-hook=$hook --num-workers 2
"$tracer" status | grep -qF "from $target/debug/liblocal_tmp_tracing.so"

run "tracer submit task wordcount:count_file '\"$(basename "$text_file")\"'" \
    "$tracer" submit task wordcount:count_file "\"$text_file\""
words=$(wc -w <"$text_file")
counted=$("$tracer" get 1 | awk '$1 == "result" { print $2 }')
[ "$counted" = "$words" ] || { echo "wordcount says $counted words, but wc says $words" >&2; exit 1; }
run 'tracer trace show last' "$tracer" trace show last

# The text goes in as an argument this time: as JSON, a text in quotes.
text=$(<"$text_file")
text=${text//\\/\\\\} text=${text//\"/\\\"} text=${text//$'\n'/\\n} text=${text//$'\t'/\\t} text=${text//$'\r'/\\r}
run "tracer submit task wordcount:frequencies \"<the text>\" 8" \
    "$tracer" submit task wordcount:frequencies "\"$text\"" 8
run 'tracer trace show last' "$tracer" trace show last

run 'tracer stop' "$tracer" stop
left=$(left_running)
[ -z "$left" ] || { echo "still running: $left" >&2; exit 1; }
printf '\nAll went well, and nothing is left running.\n'
