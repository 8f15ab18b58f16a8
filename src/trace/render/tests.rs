use std::sync::LazyLock;

use super::super::fixture::{EPOCH, SpanText, TRACE_ID, loaded, span, trace};
use super::*;
use crate::Filter;

const WIDTH: usize = 80;

#[track_caller]
fn assert_shown(spans: &[(u32, SpanText)], width: usize, expected: &str) {
    let shown = show(&trace(spans), &Details::default(), width, false);
    let expected = expected.strip_prefix('\n').expect("the expectation begins on a line of its own");
    assert!(shown == expected, "\n--- shown:\n{shown}--- expected:\n{expected}---");
}

fn wordcount() -> Vec<(u32, SpanText)> {
    vec![
        (4700, span("tracer job", 1, None, (0, 12_400))),
        (4700, span("wordcount.count tracer.remote", 2, 1, (1_100, 1_400)).kind("PRODUCER")),
        (4711, span("wordcount.count tracer.remote_worker", 3, 2, (1_500, 11_600)).kind("CONSUMER")),
        (4711, span("split", 4, 3, (2_000, 5_200))),
        (4711, span("sum", 5, 3, (5_200, 11_500))),
    ]
}

#[test]
fn a_trace_is_shown_as_a_tree_with_a_waterfall() {
    assert_shown(
        &wordcount(),
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  5 spans  2 processes  12.4 ms  ok
* tracer job                                     +0  12.4 ms  ████████  pid 4700
* └─ wordcount.count tracer.remote          +1.1 ms   300 µs  ▏
*    └─ wordcount.count t…er.remote_worker  +1.5 ms  10.1 ms   ██████▌  pid 4711
*       ├─ split                              +2 ms   3.2 ms   ██▍
*       └─ sum                              +5.2 ms   6.3 ms     ▐███▍

* The critical path, which the end of the trace waited for: 12.3 ms in its
spans, 100 µs queued.
",
    );
}

#[test]
fn a_wide_terminal_shows_whole_names() {
    assert_shown(
        &wordcount(),
        120,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  5 spans  2 processes  12.4 ms  ok
* tracer job                                       +0  12.4 ms  ██████████████████████████████████████████████  pid 4700
* └─ wordcount.count tracer.remote            +1.1 ms   300 µs      █▎
*    └─ wordcount.count tracer.remote_worker  +1.5 ms  10.1 ms       ▐█████████████████████████████████████     pid 4711
*       ├─ split                                +2 ms   3.2 ms         ▐███████████▎
*       └─ sum                                +5.2 ms   6.3 ms                     ███████████████████████▋

* The critical path, which the end of the trace waited for: 12.3 ms in its spans, 100 µs queued.
",
    );
}

#[test]
fn without_a_terminal_nothing_is_cut() {
    assert_shown(&wordcount(), usize::MAX, "
trace 4bf92f3577b34da6a3ce929d0e0e4736  5 spans  2 processes  12.4 ms  ok
* tracer job                                       +0  12.4 ms  ████████████████████████████████████████████████████████████  pid 4700
* └─ wordcount.count tracer.remote            +1.1 ms   300 µs       ▐▊
*    └─ wordcount.count tracer.remote_worker  +1.5 ms  10.1 ms         █████████████████████████████████████████████████▏     pid 4711
*       ├─ split                                +2 ms   3.2 ms           ▐███████████████▏
*       └─ sum                                +5.2 ms   6.3 ms                           ██████████████████████████████▋

* The critical path, which the end of the trace waited for: 12.3 ms in its spans, 100 µs queued.
");
}

#[test]
fn a_narrow_terminal_keeps_names_and_figures() {
    assert_shown(
        &wordcount(),
        60,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736
  5 spans  2 processes  12.4 ms  ok
* tracer job                 +0  12.4 ms  ████████  pid 4700
* └─ wordcoun…r.remote  +1.1 ms   300 µs  ▏
*    └─ wordcou…worker  +1.5 ms  10.1 ms   ██████▌  pid 4711
* …   ├─ split            +2 ms   3.2 ms   ██▍
* …   └─ sum            +5.2 ms   6.3 ms     ▐███▍

* The critical path, which the end of the trace waited for:
12.3 ms in its spans, 100 µs queued.
",
    );
    assert_shown(
        &wordcount(),
        46,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736
  5 spans  2 processes  12.4 ms  ok
* tracer job             +0  12.4 ms  pid 4700
* └─ wordco…remote  +1.1 ms   300 µs
*    └─ wordc…rker  +1.5 ms  10.1 ms  pid 4711
* …  ├─ split         +2 ms   3.2 ms
* …  └─ sum         +5.2 ms   6.3 ms

* The critical path, which the end of the
trace waited for: 12.3 ms in its spans, 100 µs
queued.
",
    );
    assert_shown(
        &wordcount(),
        20,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736
  5 spans  2 processes  12.4 ms  ok
* tracer job             +0  12.4 ms
* └─ wordco…remote  +1.1 ms   300 µs
*    └─ wordc…rker  +1.5 ms  10.1 ms
* …  ├─ split         +2 ms   3.2 ms
* …  └─ sum         +5.2 ms   6.3 ms

* The critical path,
which the end of the
trace waited for:
12.3 ms in its
spans, 100 µs
queued.
",
    );
}

fn retried() -> Vec<(u32, SpanText)> {
    let attempt = |span_id, attempt: u64, micros| {
        span("shop.charge tracer.remote_worker", span_id, 2, micros)
            .kind("CONSUMER")
            .attributes(&format!(r#"{{"tracer.attempt": {attempt}}}"#))
    };
    vec![
        (100, span("tracer job", 1, None, (0, 3_000_000)).failed("shop::Declined: the card was declined")),
        (100, span("shop.charge tracer.remote", 2, 1, (50, 90)).kind("PRODUCER")),
        (
            101,
            attempt(3, 1, (1_000, 900_000))
                .failed("killed by signal 9, which nobody in this process sent: it was probably out of memory"),
        ),
        (
            102,
            attempt(4, 2, (1_100_000, 2_990_000))
                .failed("Declined: the card was declined")
                .exception("shop::Declined", "the card was declined"),
        ),
        (102, span("connect", 5, 4, (1_200_000, 1_900_000)).failed("")),
    ]
}

#[test]
fn failures_are_marked_and_explained_below() {
    assert_shown(
        &retried(),
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  5 spans  3 processes  3 s  4 errors
* ✗ tracer job                          +0     3 s  ████████  pid 100
* └─ shop.charge tracer.remote      +50 µs   40 µs  ▏
*    ├─ ✗ shop.charge …mote_worker   +1 ms  899 ms  ██▍       pid 101
*    └─ ✗ shop.charge …mote_worker  +1.1 s   1.9 s    ▕█████  pid 102, attempt 2
*       └─ ✗ connect                +1.2 s  700 ms     ██▏

✗ tracer job  (span 0000000000000001, pid 100, at +0)
    shop::Declined: the card was declined

✗ shop.charge tracer.remote_worker  (span 0000000000000003, pid 101, at +1 ms)
    killed by signal 9, which nobody in this process sent: it was probably out
    of memory

✗ shop.charge tracer.remote_worker  (span 0000000000000004, pid 102, at +1.1 s)
    shop::Declined: the card was declined

✗ connect  (span 0000000000000005, pid 102, at +1.2 s)
    no description

* The critical path, which the end of the trace waited for: 2.8 s in its spans,
201 ms queued.
",
    );
}

/// Returns a task that waited for long in the queue, then failed, and waited for its second attempt; beside it one that nobody waited for.
fn queued() -> Vec<(u32, SpanText)> {
    let attempt = |span_id, attempt: u64, micros| {
        span("shop.charge tracer.remote_worker", span_id, 2, micros)
            .kind("CONSUMER")
            .attributes(&format!(r#"{{"tracer.attempt": {attempt}}}"#))
    };
    vec![
        (100, span("tracer job", 1, None, (0, 20_000_000))),
        (100, span("shop.charge tracer.remote", 2, 1, (50, 400_000)).kind("PRODUCER")),
        (101, attempt(3, 1, (12_700_000, 13_500_000)).failed("it was declined")),
        (102, attempt(4, 2, (19_000_000, 19_900_000))),
        (102, span("connect", 5, 4, (19_200_000, 19_900_000))),
        (100, span("log", 6, 1, (19_100_000, 19_300_000))),
    ]
}

#[test]
fn time_in_which_nothing_runs_is_folded_and_told_in_the_tree() {
    assert_shown(
        &queued(),
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  6 spans  3 processes  20 s  1 error
* tracer job                            +0    20 s  ██⋯██⋯██  pid 100
* ├─ shop.charge tracer.remote      +50 µs  400 ms  █▏⋯  ⋯
  │  │  ⋯ 12.3 s queued ⋯
* │  ├─ ✗ shop.charge…mote_worker  +12.7 s  800 ms    ⋯█▎⋯    pid 101
  │  │  ⋯ 5.5 s queued ⋯
* │  └─ shop.charge …emote_worker    +19 s  900 ms    ⋯  ⋯█▊  pid 102, attempt 2
* │     └─ connect                 +19.2 s  700 ms    ⋯  ⋯█▊
  └─ log                           +19.1 s  200 ms    ⋯  ⋯▏

✗ shop.charge tracer.remote_worker  (span 0000000000000003, pid 101, at +12.7 s)
    it was declined

* The critical path, which the end of the trace waited for: 2.2 s in its spans,
17.8 s queued.
",
    );
    // Too narrow for a waterfall.
    assert_shown(
        &queued(),
        50,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736
  6 spans  3 processes  20 s  1 error
* tracer job                            +0    20 s
* ├─ shop.charge tracer.remote      +50 µs  400 ms
  │  │  ⋯ 12.3 s queued ⋯
* │  ├─ ✗ shop.charge…mote_worker  +12.7 s  800 ms
  │  │  ⋯ 5.5 s queued ⋯
* │  └─ shop.charge …emote_worker    +19 s  900 ms
* │     └─ connect                 +19.2 s  700 ms
  └─ log                           +19.1 s  200 ms

✗ shop.charge tracer.remote_worker
    (span 0000000000000003, pid 101, at +12.7 s)
    it was declined

* The critical path, which the end of the trace
waited for: 2.2 s in its spans, 17.8 s queued.
",
    );
}

#[test]
fn what_is_folded_has_one_column_and_all_others_stand_for_the_same_time() {
    for width in 70..200 {
        let shown = show(&trace(&queued()), &Details::default(), width, false);
        let bars: Vec<Vec<char>> =
            shown.lines().take_while(|line| !line.is_empty()).map(|line| line.chars().collect()).collect();
        let folds = |line: &Vec<char>| -> Vec<usize> {
            line.iter().enumerate().filter(|(_, c)| **c == '⋯').map(|(column, _)| column).collect()
        };
        let spans: Vec<_> = bars.iter().filter(|line| line.iter().any(|c| ('█'..='▕').contains(c))).collect();
        assert_eq!(spans.len(), 6, "{width} columns:\n{shown}");
        let columns = folds(spans[0]);
        assert_eq!(columns.len(), 2, "{width} columns:\n{shown}");
        spans.iter().for_each(|line| assert_eq!(folds(line), columns, "{width} columns:\n{shown}"));
    }
}

#[test]
fn a_queue_that_is_short_beside_the_rest_is_not_folded() {
    let shown = show(&trace(&wordcount()), &Details::default(), WIDTH, false);
    assert!(!shown.contains('⋯'), "{shown}");
}

#[test]
fn the_whole_name_of_what_failed_is_told_however_long_it_is() {
    let name = "payments_of_customers.charge_the_card_and_send_the_receipt tracer.remote_worker";
    assert_shown(
        &[
            (7, span(name, 1, None, (0, 10)).failed("no")),
            (7, span(&format!("{name} once more"), 2, 1, (0, 9)).failed("no")),
        ],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  2 spans  1 process  10 µs  2 errors
* ✗ payments_of_customers.ch…pt tracer.remote_worker  +0  10 µs  ████████  pid 7
* └─ ✗ payments_of_customers.…emote_worker once more  +0   9 µs  ███████▎

✗ payments_of_customers.charge_the_card_and_send_the_receipt
  tracer.remote_worker
    (span 0000000000000001, pid 7, at +0)
    no

✗ payments_of_customers.charge_the_card_and_send_the_receipt
  tracer.remote_worker once more
    (span 0000000000000002, pid 7, at +0)
    no

* The critical path, which the end of the trace waited for: 10 µs in its spans.
",
    );
}

#[test]
fn a_parent_that_is_not_found_is_shown_as_such() {
    assert_shown(
        &[
            (7, span("b", 2, 9, (100, 200))),
            (8, span("c", 3, 9, (150, 300))),
            (7, span("d", 4, 2, (120, 130))),
            (7, span("other root", 5, None, (400, 500))),
        ],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  4 spans  2 processes  400 µs  ok
  parent 0x0000000000000009 not found
  ├─ b             +0  100 µs  ██████████▌                                 pid 7
  …└─ d        +20 µs   10 µs    █▏
* └─ c         +50 µs  150 µs       ████████████████                       pid 8
* other root  +300 µs  100 µs                                 ▐██████████  pid 7

* The critical path, which the end of the trace waited for: 250 µs in its spans,
150 µs between spans.
A parent that is not found has not ended yet, was not recorded, or is in another
folder.
",
    );
}

#[test]
fn circles_are_shown_once() {
    assert_shown(
        &[(7, span("a", 1, 2, (0, 10))), (7, span("b", 2, 1, (5, 10)))],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  2 spans  1 process  10 µs  ok
* a        +0  10 µs  █████████████████████████████████  pid 7, its own ancestor
* └─ b  +5 µs   5 µs                  ▐████████████████

* The critical path, which the end of the trace waited for: 10 µs in its spans.
",
    );
}

#[test]
fn a_trace_without_duration_has_bars() {
    assert_shown(
        &[(7, span("a", 1, None, (0, 0))), (7, span("b", 2, 1, (0, 0)))],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  2 spans  1 process  0 ns  ok
* a     +0  0 ns  ███████████████████████████████████████████████████████  pid 7
* └─ b  +0  0 ns  ███████████████████████████████████████████████████████

* The critical path, which the end of the trace waited for.
",
    );
}

#[test]
fn a_deep_chain_keeps_its_names() {
    let spans: Vec<_> = (1..=12)
        .map(|id| (7, span(&format!("level {id}"), id, id.checked_sub(1).filter(|id| *id > 0), (id, 30 - id))))
        .collect();
    assert_shown(
        &spans,
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  12 spans  1 process  28 µs  ok
* level 1                                        +0  28 µs  █████████████  pid 7
* └─ level 2                                  +1 µs  26 µs  ▐███████████▌
*    └─ level 3                               +2 µs  24 µs  ▕███████████▏
*       └─ level 4                            +3 µs  22 µs   ▐█████████▋
*          └─ level 5                         +4 µs  20 µs   ▕█████████▏
*             └─ level 6                      +5 µs  18 µs    ▐███████▋
*                └─ level 7                   +6 µs  16 µs    ▐███████▎
*                   └─ level 8                +7 µs  14 µs     ██████▊
*                      └─ level 9             +8 µs  12 µs     ▐█████▎
*                         └─ level 10         +9 µs  10 µs      ████▉
*                            └─ level 11     +10 µs   8 µs      ▐███▍
*                               └─ level 12  +11 µs   6 µs       ██▉

* The critical path, which the end of the trace waited for: 28 µs in its spans.
",
    );
}

#[test]
fn names_cannot_steer_the_terminal() {
    assert_shown(
        &[(7, span("a\u{1b}[2J\nb\u{202e}c\u{7}", 1, None, (0, 10)).failed("x\u{1b}]0;title\u{7}\n\u{9b}31my"))],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  1 span  1 process  10 µs  1 error
  ✗ a\\u{1b}[2J\\nb\\u{202e}c\\u{7}  +0  10 µs  █████████████████████████████  pid 7

✗ a\\u{1b}[2J\\nb\\u{202e}c\\u{7}  (span 0000000000000001, pid 7, at +0)
    x\\u{1b}]0;title\\u{7}
    \\u{9b}31my
",
    );
}

#[test]
fn wide_characters_take_two_columns() {
    assert_shown(
        &[(7, span("数える", 1, None, (0, 10))), (7, span("とても長い名前のとても長い名前のスパン", 2, 1, (5, 10)))],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  2 spans  1 process  10 µs  ok
* 数える                                        +0  10 µs  ██████████████  pid 7
* └─ とても長い名前のとても長い名前のスパン  +5 µs   5 µs         ███████

* The critical path, which the end of the trace waited for: 10 µs in its spans.
",
    );
}

#[test]
fn long_messages_are_wrapped_and_cut() {
    let message: Vec<String> = (1..=14).map(|line| format!("line {line}")).collect();
    let failed = span("a", 1, None, (0, 10)).failed(&message.join("\n"));
    assert_shown(
        &[(7, failed)],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  1 span  1 process  10 µs  1 error
  ✗ a  +0  10 µs  ███████████████████████████████████████████████████████  pid 7

✗ a  (span 0000000000000001, pid 7, at +0)
    line 1
    line 2
    line 3
    line 4
    line 5
    line 6
    line 7
    line 8
    line 9
    line 10
    line 11
    line 12
    … 2 more lines
",
    );
}

#[test]
fn duplicates_are_counted() {
    let record = (7, span("a", 1, None, (0, 10)));
    assert_shown(
        &[record.clone(), record.clone(), record],
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  1 span  1 process  10 µs  ok
  a  +0  10 µs  █████████████████████████████████████████████████████████  pid 7

2 duplicate records left out.
",
    );
}

#[test]
fn colours_follow_processes_and_failures() {
    let shown = show(&trace(&retried()), &Details::default(), WIDTH, true);
    assert_painted(
        &shown,
        "
trace <1>4bf92f3577b34da6a3ce929d0e0e4736<>  5 spans  3 processes  3 s  <31>4 errors<>
* <31>✗ <>tracer job                      <2>    +0<>     3 s  <31>████████<>  <2>pid 100<>
* <2>└─ <>shop.charge tracer.remote      <2>+50 µs<>   40 µs  <36>▏<>
* <2>   ├─ <><31>✗ <>shop.charge …mote_worker  <2> +1 ms<>  899 ms  <31>██▍<>       <2>pid 101<>
* <2>   └─ <><31>✗ <>shop.charge …mote_worker  <2>+1.1 s<>   1.9 s    <31>▕█████<>  <2>pid 102, attempt 2<>
* <2>      └─ <><31>✗ <>connect                <2>+1.2 s<>  700 ms     <31>██▏<>

<31>✗<> tracer job  <2>(span 0000000000000001, pid 100, at +0)<>
    shop::Declined: the card was declined

<31>✗<> shop.charge tracer.remote_worker  <2>(span 0000000000000003, pid 101, at +1 ms)<>
    killed by signal 9, which nobody in this process sent: it was probably out
    of memory

<31>✗<> shop.charge tracer.remote_worker  <2>(span 0000000000000004, pid 102, at +1.1 s)<>
    shop::Declined: the card was declined

<31>✗<> connect  <2>(span 0000000000000005, pid 102, at +1.2 s)<>
    no description

<2>* The critical path, which the end of the trace waited for: 2.8 s in its spans,<>
<2>201 ms queued.<>
",
    );
}

/// Compares with colours written as `<1>`, and their end as `<>`.
#[track_caller]
fn assert_painted(painted: &str, expected: &str) {
    let mut painted = painted.replace("\x1b[0m", "<>");
    for style in ["1", "2", "31", "32", "33", "34", "35", "36"] {
        painted = painted.replace(&format!("\x1b[{style}m"), &format!("<{style}>"));
    }
    let expected = expected.strip_prefix('\n').expect("the expectation begins on a line of its own");
    assert!(painted == expected, "\n--- shown:\n{painted}--- expected:\n{expected}---");
}

static LOADED: LazyLock<crate::Loaded> = LazyLock::new(|| {
    let spans = [
        span("tracer job", 1, None, (0, 12_400)),
        span("wordcount.count tracer.remote", 2, 1, (1_100, 1_400)),
        span("tracer job", 1, None, (4_000_000, 130_000_000)).trace(TRACE_ID ^ 1 << 100).failed("no"),
        span(
            "a name that is longer than what a terminal of eighty columns has room for",
            3,
            9,
            (7_200_000_000, 7_200_000_500),
        )
        .trace(0xc0ffee << 104 | 7),
    ];
    loaded([("1.json", spans.iter().map(SpanText::line).collect::<String>().into())])
});

#[track_caller]
fn assert_listed(limit: Option<usize>, width: usize, expected: &str) {
    let now = EPOCH + 7_260_000_000_000;
    let listed = list(&LOADED.list(&Filter::default(), limit), now, width, false);
    let expected = expected.strip_prefix('\n').expect("the expectation begins on a line of its own");
    assert!(listed == expected, "\n--- shown:\n{listed}--- expected:\n{expected}---");
}

#[test]
fn traces_are_listed_the_newest_first() {
    assert_listed(
        None,
        WIDTH,
        "
TRACE ID           STARTED  DURATION  SPANS  ERRORS  ROOT
c0ffee000000  1 m 00 s ago    500 µs      1       -  a name that is longer than…
4bf92f2577b3  2 h 01 m ago  2 m 06 s      1       1  tracer job
4bf92f3577b3  2 h 01 m ago   12.4 ms      2       -  wordcount.count  tracer job
",
    );
}

#[test]
fn a_wide_list_has_whole_ids() {
    assert_listed(None, usize::MAX, "
TRACE ID                               STARTED  DURATION  SPANS  ERRORS  ROOT
c0ffee00000000000000000000000007  1 m 00 s ago    500 µs      1       -  a name that is longer than what a terminal of eighty columns has room for
4bf92f2577b34da6a3ce929d0e0e4736  2 h 01 m ago  2 m 06 s      1       1  tracer job
4bf92f3577b34da6a3ce929d0e0e4736  2 h 01 m ago   12.4 ms      2       -  wordcount.count  tracer job
");
}

#[test]
fn a_limit_says_what_it_left_out() {
    assert_listed(
        Some(1),
        WIDTH,
        "
TRACE ID           STARTED  DURATION  SPANS  ERRORS  ROOT
c0ffee000000  1 m 00 s ago    500 µs      1       -  a name that is longer than…
2 older traces not shown
",
    );
    assert_listed(
        Some(0),
        WIDTH,
        "
TRACE ID  STARTED  DURATION  SPANS  ERRORS  ROOT
3 older traces not shown
",
    );
}

#[test]
fn an_empty_folder_lists_nothing() {
    assert_eq!(list(&loaded([]).list(&Filter::default(), None), EPOCH, WIDTH, true), "no traces\n");
}

#[test]
fn a_list_in_colour_marks_errors() {
    assert_painted(
        &list(&LOADED.list(&Filter::default(), None), EPOCH, WIDTH, true),
        "
<1>TRACE ID      STARTED  DURATION  SPANS  ERRORS  ROOT<>
c0ffee000000      now    500 µs      1  <2>     -<>  a name that is longer than what…
4bf92f2577b3      now  2 m 06 s      1  <31>     1<>  tracer job
4bf92f3577b3      now   12.4 ms      2  <2>     -<>  wordcount.count  tracer job
",
    );
}

#[test]
fn lines_stay_within_any_sensible_width() {
    for spans in [wordcount(), retried(), queued()] {
        for width in 64..200 {
            let shown = show(&trace(&spans), &Details::default(), width, false);
            let widest = shown.lines().map(UnicodeWidthStr::width).max();
            assert!(widest <= Some(width), "{width} columns:\n{shown}");
        }
    }
}

#[test]
fn colours_change_nothing_else() {
    for (width, spans) in [20, 60, 80, 200].into_iter().flat_map(|width| [(width, retried()), (width, queued())]) {
        let painted = show(&trace(&spans), &Details::default(), width, true);
        let mut plain = String::new();
        let mut parts = painted.split('\x1b');
        plain += parts.next().expect("there is a first part");
        for part in parts {
            plain += part.split_once('m').expect("a style ends with m").1;
        }
        assert_eq!(plain, show(&trace(&spans), &Details::default(), width, false));
    }
}

#[test]
fn texts_are_wrapped_at_spaces() {
    for (text, width, expected) in [
        ("", 5, vec![""]),
        ("abc", 5, vec!["abc"]),
        ("abcde fgh", 5, vec!["abcde", "fgh"]),
        ("abc def ghi", 7, vec!["abc def", "ghi"]),
        ("abcdefghij", 4, vec!["abcd", "efgh", "ij"]),
        ("a  b   ", 2, vec!["a", "b"]),
        ("    abc", 4, vec!["abc"]),
        ("名前名前", 5, vec!["名前", "名前"]),
        ("名前", 1, vec!["名", "前"]),
    ] {
        assert_eq!(wrap(text, width), expected, "{text:?} in {width}");
    }
}

#[test]
fn a_filtered_list_says_what_it_holds_back() {
    let errors = Filter { errors: true, ..Filter::default() };
    let two =
        [span("good", 1, None, (0, 1)).trace(1).line(), span("bad", 2, None, (2, 3)).trace(2).failed("no").line()];
    let loaded_two = loaded([("1.json", two.concat().into())]);
    let text = list(&loaded_two.list(&errors, None), EPOCH, WIDTH, false);
    assert!(text.ends_with("bad\n1 trace does not match\n"), "{text}");
    let none = Filter { name: Some("other".into()), ..errors };
    assert_eq!(list(&loaded_two.list(&none, None), EPOCH, WIDTH, false), "no trace matches; 2 traces do not\n");
}

/// Returns the time for which this thread has had a processor, in nanoseconds.
fn on_processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("the first figure is the time")
}

#[test]
fn the_time_to_show_a_trace_grows_with_its_spans() {
    let time_of = |tasks: u64| {
        let task = |task: u64| {
            let (id, at) = (2 + 2 * task, 100 * task);
            let submission = span("m.f tracer.remote", id, 1, (at, at + 10)).kind("PRODUCER").line();
            submission + &span("m.f tracer.remote_worker", id + 1, id, (at + 20, at + 90)).kind("CONSUMER").line()
        };
        let lines = (0..tasks).map(task).collect::<String>() + &span("job", 1, None, (0, 100 * tasks)).line();
        let loaded = loaded([("1.json", lines.into_bytes())]);
        let begun = on_processor_ns();
        let text = show(&loaded.traces[0], &Details::default(), WIDTH, false);
        assert!(text.contains(&format!("{tasks} × m.f tracer.remote_worker")), "{text}");
        on_processor_ns() - begun
    };
    let (few, many) = (time_of(2_000), time_of(16_000));
    assert!(many < 20 * few, "2,000 tasks took {few} ns, and 16,000 took {many}");
}

#[test]
fn figures_are_shown_name_by_name() {
    let spans = [
        span("job", 1, None, (0, 5_000)),
        span("step", 2, 1, (0, 2_000)),
        span("step", 3, 1, (2_000, 2_500)).failed("no"),
        span("a rather long name of a span that needs a column of its own", 4, 1, (3_000, 3_100)),
    ];
    let lines: String = spans.iter().map(SpanText::line).collect();
    let loaded = loaded([("1.json", lines.into_bytes())]);
    assert_eq!(
        stats(&loaded.stats(Some(2)), WIDTH, false),
        "  SELF  COUNT     P50   P95   MAX  ERRORS  NAME
2.5 ms      2  500 µs  2 ms  2 ms       1  step
2.4 ms      1    5 ms  5 ms  5 ms       -  job
1 further name not shown
"
    );
    let narrow = stats(&loaded.stats(None), 60, false);
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    assert!(narrow.contains("…"), "{narrow}");
}

/// Returns a map of 30 tasks, one of which fails; it lasts for 3 ms.
fn mapped() -> Vec<(u32, SpanText)> {
    let mut spans = vec![(100, span("tracer job", 1, None, (0, 3_000)))];
    for task in 0..30 {
        let (id, start) = (10 + 10 * task, 100 * task);
        let attempt =
            span("pix.tree tracer.remote_worker", id + 1, id, (start + 20, start + 40 + task)).kind("CONSUMER");
        let attempt = if task == 3 { attempt.failed("it broke") } else { attempt };
        spans.push((100, span("pix.tree tracer.remote", id, 1, (start, start + 10)).kind("PRODUCER")));
        spans.push((101, attempt));
    }
    spans
}

#[test]
fn equal_siblings_are_folded_and_what_failed_is_not() {
    assert_shown(
        &mapped(),
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  61 spans  2 processes  3 ms  1 error
* tracer job                                     +0   3 ms  ███████████  pid 100
* ├─ 29 × pix.tree tracer.remote                 +0  p50 10 µs, max 10 µs
* │  └─ 29 × pix.tree tracer.remote_worker   +20 µs  p50 35 µs, max 49 µs
* └─ pix.tree tracer.remote                 +300 µs  10 µs   ▏
*    └─ ✗ pix.tree tracer.remote_worker     +320 µs  23 µs   ▏           pid 101

✗ pix.tree tracer.remote_worker  (span 0000000000000029, pid 101, at +320 µs)
    it broke

* The critical path, which the end of the trace waited for: 2.7 ms in its spans,
300 µs queued.
N × stands for N spans of one name; --no-fold shows each.
",
    );
    assert_shown(
        &mapped(),
        50,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736
  61 spans  2 processes  3 ms  1 error
* tracer job                    +0   3 ms  pid 100
* ├─ 29 × pix.t…er.remote       +0
  │  │  p50 10 µs, max 10 µs
* │  └─ 29 × pix…e_worker   +20 µs
  │        p50 35 µs, max 49 µs
* └─ pix.tree t…er.remote  +300 µs  10 µs
*    └─ ✗ pix.tre…_worker  +320 µs  23 µs  pid 101

✗ pix.tree tracer.remote_worker
    (span 0000000000000029, pid 101, at +320 µs)
    it broke

* The critical path, which the end of the trace
waited for: 2.7 ms in its spans, 300 µs queued.
N × stands for N spans of one name; --no-fold
shows each.
",
    );
    let all = show(&trace(&mapped()), &Details { folds: false, ..Details::default() }, WIDTH, false);
    assert_eq!(all.lines().filter(|line| line.contains("└─ pix.tree") || line.contains("├─ pix.tree")).count(), 59);
}

#[test]
fn names_stay_different_at_depth_in_eighty_columns() {
    let mut spans = vec![(100, span("tracer job", 1, None, (0, 9_000)))];
    for depth in 0..8 {
        let (id, micros) = (10 + 10 * depth, (100 * depth, 9_000 - 100 * depth));
        let parent = if depth == 0 { 1 } else { id - 9 };
        spans.push((100, span("pix.tree tracer.remote", id, parent, (micros.0, micros.0 + 50)).kind("PRODUCER")));
        spans.push((
            101 + u32::try_from(depth).expect("it is small"),
            span("pix.tree tracer.remote_worker", id + 1, id, micros).kind("CONSUMER"),
        ));
    }
    assert_shown(
        &spans,
        WIDTH,
        "
trace 4bf92f3577b34da6a3ce929d0e0e4736  17 spans  9 processes  9 ms  ok
* tracer job                                       +0    9 ms  ████████  pid 100
* └─ pix.tree tracer.remote                        +0   50 µs  ▏
*    └─ pix.tree tracer.remote_worker              +0    9 ms  ████████  pid 101
*       └─ pix.tree tracer.remote             +100 µs   50 µs  ▏         pid 100
*          └─ pix.tree tracer.remote_worker   +100 µs  8.8 ms  ███████▉  pid 102
*             └─ pix.tree tracer.remote       +200 µs   50 µs  ▏         pid 100
*                └─ pix.tree tra…mote_worker  +200 µs  8.6 ms  ███████▉  pid 103
* …              └─ pix.tree tracer.remote    +300 µs   50 µs  ▏         pid 100
* …              └─ pix.tree tra…mote_worker  +300 µs  8.4 ms  ███████▊  pid 104
* …              └─ pix.tree tracer.remote    +400 µs   50 µs  ▏         pid 100
* …              └─ pix.tree tra…mote_worker  +400 µs  8.2 ms  ▐██████▋  pid 105
* …              └─ pix.tree tracer.remote    +500 µs   50 µs  ▏         pid 100
* …              └─ pix.tree tra…mote_worker  +500 µs    8 ms  ▐██████▌  pid 106
* …              └─ pix.tree tracer.remote    +600 µs   50 µs  ▏         pid 100
* …              └─ pix.tree tra…mote_worker  +600 µs  7.8 ms  ▐██████▌  pid 107
* …              └─ pix.tree tracer.remote    +700 µs   50 µs  ▏         pid 100
* …              └─ pix.tree tra…mote_worker  +700 µs  7.6 ms  ▐██████▍  pid 108

* The critical path, which the end of the trace waited for: 9 ms in its spans.
",
    );
}

#[test]
fn attributes_and_events_stand_below_their_spans() {
    let long = serde_json::Value::from("a word and ".repeat(9));
    let spans = [
        (7, span("job", 1, None, (0, 10)).attributes(&format!(r#"{{"count": 3, "text": {long}, "list": [1, 2]}}"#))),
        (7, span("a", 2, 1, (1, 5)).attributes(r#"{"steer\u001b": "x\u001b[2J\n\u009b31m\u202e"}"#)),
        (7, span("b", 3, 1, (5, 9)).exception("io::Error", "no such file")),
    ];
    let shown = show(&trace(&spans), &Details { attributes: true, events: true, ..Details::default() }, WIDTH, false);
    let expected = "
trace 4bf92f3577b34da6a3ce929d0e0e4736  3 spans  1 process  10 µs  ok
* job      +0  10 µs  ███████████████████████████████████████████████████  pid 7
  │  count = 3
  │  text = \"a word and a word and a word and a word and a word and a word and
  │    a word and a word and a word and \"
  │  list = [1,2]
* ├─ a  +1 µs   4 µs       ████████████████████▌
  │     steer\\u{1b} = \"x\\u001b[2J\\n\\u{9b}31m\\u{202e}\"
* └─ b  +5 µs   4 µs                           ▐███████████████████▉
        ◆ +9 µs exception
          exception.type = \"io::Error\"
          exception.message = \"no such file\"

* The critical path, which the end of the trace waited for: 10 µs in its spans.
";
    let expected = expected.strip_prefix('\n').expect("the expectation begins on a line of its own");
    assert!(shown == expected, "\n--- shown:\n{shown}--- expected:\n{expected}---");
    assert_eq!(shown.lines().filter(|line| line.width() > WIDTH).count(), 0, "{shown}");
    let ended = ended(&trace(&spans).spans[2], EPOCH, &Details { events: true, ..Details::default() }, false);
    assert!(ended.contains("◆ +9 µs exception\n") && ended.contains("exception.type = \"io::Error\"\n"), "{ended}");
}

#[test]
fn log_records_stand_below_their_spans_and_those_without_one_below_the_tree() {
    use crate::{Attributes, LogRecord, SpanId};

    let record = |after: u64, severity: &str, body: serde_json::Value, span_id: Option<u64>| LogRecord {
        time_unix_nano: EPOCH + after * 1000,
        severity: severity.into(),
        body,
        span_id: span_id.map(SpanId),
        attributes: Attributes(vec![("line".into(), 7.into())]),
    };
    let records = [
        record(2, "INFO", "steer\u{1b}[2J\nand on".into(), Some(2)),
        record(3, "WARN", serde_json::json!({"a": [1]}), Some(2)),
        record(4, "ERROR", "of nobody".into(), None),
        record(5, "", "of a span that is not here".into(), Some(9)),
    ];
    let spans = [(7, span("job", 1, None, (0, 10))), (7, span("a", 2, 1, (1, 5)))];
    let shown = |logs: &[LogRecord], attributes| {
        show(&trace(&spans), &Details { logs: Some(logs), attributes, ..Details::default() }, WIDTH, false)
    };
    let expected = "
trace 4bf92f3577b34da6a3ce929d0e0e4736  2 spans  1 process  10 µs  ok
* job      +0  10 µs  ███████████████████████████████████████████████████  pid 7
* └─ a  +1 µs   4 µs       ████████████████████▌
        ▸ +2 µs INFO steer\\u{1b}[2J
          and on
        ▸ +3 µs WARN {\"a\":[1]}

Log records without a span that is shown:
  ▸ +4 µs ERROR of nobody
  ▸ +5 µs of a span that is not here

* The critical path, which the end of the trace waited for: 10 µs in its spans.
";
    let found = shown(&records, false);
    assert!(format!("\n{found}") == expected, "\n--- shown:\n{found}--- expected:\n{expected}---");
    assert!(shown(&records, true).contains("▸ +4 µs ERROR of nobody\n    line = 7\n"), "{}", shown(&records, true));
    assert!(shown(&[], false).contains("\nNo log records.\n"));
}
