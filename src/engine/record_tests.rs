use super::*;

const A: Holder = Holder { place: PlaceId(1), life: 1 };
const B: Holder = Holder { place: PlaceId(2), life: 5 };
const C: Holder = Holder { place: PlaceId(3), life: 9 };
const TERMS: Terms = Terms { at_most_once: false, crash_limit: 2 };

fn mark(unix_nano: u64) -> Mark {
    Mark { node_id: "b".into(), unix_nano }
}

fn claim() -> Claim {
    Claim { attempt: 2, crashes: 1, ..Claim::first(B, mark(1)) }
}

/// One of each, in the order of the rows: what B has, or had.
fn rows() -> [(&'static str, Option<Record>); 6] {
    [
        ("none", None),
        ("claimed", Some(Record::Claimed(claim()))),
        ("suspected", Some(Record::Suspected { claim: claim(), by: A })),
        ("given back, unbegun", Some(Record::GivenBack { claim: claim(), has_begun: false })),
        ("given back, begun", Some(Record::GivenBack { claim: claim(), has_begun: true })),
        ("ended", Some(Record::Ended(End::Outcome { attempt: 2, holder: Some(B), outcome: b"first".to_vec() }))),
    ]
}

fn delivered(to: Holder, sight: Sight) -> Event {
    Event::Delivered { to, mark: mark(2), sight, terms: TERMS }
}

fn failed(attempt: u32, charge: Charge, report: &[u8]) -> Event {
    Event::AttemptFailed { by: B, attempt, charge, report: report.into(), unix_nano: 3 }
}

/// One of each, in the order of the columns below.
fn columns() -> [(&'static str, Event); 16] {
    [
        ("delivered to C", delivered(C, Sight::MayLive)),
        ("delivered to C, quiet", delivered(C, Sight::Quiet)),
        ("delivered to C, silent", delivered(C, Sight::Silent)),
        ("delivered to C, new life", delivered(C, Sight::NewLife)),
        ("delivered to B", delivered(B, Sight::MayLive)),
        ("ended unbegun", Event::EndedUnbegun { outcome: b"late".to_vec(), is_cancelled: false }),
        ("withdrawn by A", Event::Withdrawn { by: A, mark: mark(2), terms: TERMS }),
        ("B's attempt failed", failed(2, Charge::Own, b"r")),
        ("B's outcome", Event::Outcome { by: B, attempt: 2, outcome: b"one".to_vec() }),
        ("B's outcome, of an older attempt", Event::Outcome { by: B, attempt: 1, outcome: b"one".to_vec() }),
        ("outcome of a B before", Event::Outcome { by: Holder { life: 4, ..B }, attempt: 2, outcome: b"one".to_vec() }),
        ("given back by B", Event::GivenBack { by: B, attempt: 2, has_begun: true }),
        ("given back by C", Event::GivenBack { by: C, attempt: 2, has_begun: true }),
        ("not run by B", Event::NotRun { by: B }),
        ("spans written by B", Event::StoodIn { by: B, attempt: 2 }),
        ("spans written by B, of an older attempt", Event::StoodIn { by: B, attempt: 1 }),
    ]
}

/// Describes a change in a word or two.
fn word(changed: &Result<Record, Refusal>) -> String {
    let of_claim = |claim: &Claim| {
        let name = match claim.holder {
            A => "A",
            B => "B",
            C => "C",
            _ => "?",
        };
        format!("{name}{} -{}", claim.attempt, claim.crashes)
    };
    match changed {
        Ok(Record::Claimed(claim)) => of_claim(claim),
        Ok(Record::Suspected { claim, .. }) => format!("{}?", of_claim(claim)),
        Ok(Record::GivenBack { has_begun, .. }) => (if *has_begun { "back, begun" } else { "back" }).into(),
        Ok(Record::Ended(End::Outcome { .. })) => "ended".into(),
        Ok(Record::Ended(End::Lost(_))) => "lost".into(),
        Ok(Record::Ended(End::NodesLost(_))) => "nodes lost".into(),
        Err(refusal) => format!("{refusal:?}"),
    }
}

#[test]
fn every_pair_of_record_and_event_has_its_place_in_the_table() {
    // `B2 -1` is claimed by B, at attempt 2 with one attempt lost; `B2 -1?` is that and suspected.
    let table = [
        ["C1 -0", "C1 -0", "C1 -0", "C1 -0", "B1 -0", "ended", "A1 -0"],
        ["B2 -1?", "B2 -1?", "B2 -1?", "C3 -2", "HasIt", "Begun", "Begun"],
        ["TooEarly", "TooEarly", "C3 -2", "C3 -2", "B2 -1", "Begun", "Begun"],
        ["C2 -1", "C2 -1", "C2 -1", "C2 -1", "B2 -1", "ended", "A2 -1"],
        ["C3 -2", "C3 -2", "C3 -2", "C3 -2", "B3 -2", "ended", "A3 -2"],
        ["HasEnded"; 7],
    ];
    let of_holder = |spans_written: &'static str| {
        let not = "NotItsHolder";
        ["B3 -1", "ended", not, not, "back, begun", not, "back", spans_written, not]
    };
    let of_nobody = ["NotItsHolder"; 9];
    let of_holder = [of_nobody, of_holder("B2 -1"), of_holder("B2 -1?"), of_nobody, of_nobody, ["HasEnded"; 9]];
    for ((row, record), (of_others, of_holder)) in rows().iter().zip(table.iter().zip(of_holder)) {
        let expected = of_others.iter().chain(&of_holder);
        for ((column, event), expected) in columns().iter().zip(expected) {
            assert_eq!(word(&change(record.as_ref(), event)), *expected, "{row}: {column}");
        }
    }
}

#[test]
fn a_task_that_must_not_be_started_twice_is_lost_with_its_node_and_one_that_was_not_begun_goes_on() {
    let at_most_once = Terms { at_most_once: true, ..TERMS };
    let delivered = |sight| Event::Delivered { to: C, mark: mark(2), sight, terms: at_most_once };
    let expected = ["C1 -0", "B2 -1?", "TooEarly", "C2 -1", "lost", "HasEnded"];
    for ((row, record), expected) in rows().iter().zip(expected) {
        assert_eq!(word(&change(record.as_ref(), &delivered(Sight::MayLive))), expected, "{row}");
    }
    let claimed = Record::Claimed(claim());
    assert_eq!(word(&change(Some(&claimed), &delivered(Sight::NewLife))), "lost");
    let withdrawn = Event::Withdrawn { by: A, mark: mark(2), terms: at_most_once };
    let expected = ["A1 -0", "Begun", "Begun", "A2 -1", "lost", "HasEnded"];
    for ((row, record), expected) in rows().iter().zip(expected) {
        assert_eq!(word(&change(record.as_ref(), &withdrawn)), expected, "{row}");
    }
}

#[test]
fn the_budget_of_lost_attempts_is_kept_over_nodes() {
    let mut record = change(None, &delivered(B, Sight::MayLive)).unwrap();
    for (to, expected) in [(C, "C2 -1"), (A, "A3 -2"), (B, "nodes lost")] {
        record = change(Some(&record), &delivered(to, Sight::NewLife)).unwrap();
        assert_eq!(word(&Ok(record.clone())), expected);
    }
    let Record::Ended(End::NodesLost(claim)) = record else { panic!("{record:?}") };
    let past: Vec<_> = claim.past.iter().map(|past| (past.number, past.holder, past.report.is_some())).collect();
    assert_eq!(past, [(1, B, false), (2, C, false)]);
}

#[test]
fn nobody_begins_a_task_again_that_was_cancelled_whoever_dies() {
    let cancelled = Event::EndedUnbegun { outcome: b"cancelled".to_vec(), is_cancelled: true };
    let expected = ["ended", "B2 -1", "B2 -1?", "ended", "ended", "HasEnded"];
    for ((row, record), expected) in rows().iter().zip(expected) {
        let changed = change(record.as_ref(), &cancelled);
        assert_eq!(word(&changed), expected, "{row}");
        let Some(wanted) = changed.ok().filter(|record| record.claim().is_some()) else { continue };
        assert_eq!(change(Some(&wanted), &cancelled), Err(Refusal::Begun), "its holder is told again");
        // Its holder may still end it otherwise, and its next attempt has the wish too.
        assert_eq!(word(&change(Some(&wanted), &columns()[8].1)), "ended");
        let next = change(Some(&wanted), &failed(2, Charge::Crash, b"r")).unwrap();
        for record in [&wanted, &next] {
            for ended in [delivered(C, Sight::NewLife), Event::GivenBack { by: B, attempt: 2, has_begun: false }] {
                let Ok(ended) = change(Some(record), &ended) else { continue };
                let after = change(Some(&ended), &delivered(C, Sight::MayLive)).unwrap_or(ended);
                assert!(matches!(after, Record::Ended(End::Lost(_) | End::Outcome { attempt: 0, .. })), "{after:?}");
            }
        }
        let suspected = change(Some(&wanted), &delivered(C, Sight::MayLive)).unwrap_or(wanted);
        let Ok(Record::Ended(End::Lost(claim))) = change(Some(&suspected), &delivered(C, Sight::Silent)) else {
            panic!("{row}: it is begun again");
        };
        assert_eq!(claim.wish.as_deref(), Some(&b"cancelled"[..]));
    }
}

#[test]
fn failures_of_its_own_are_counted_apart() {
    let mut record = change(None, &delivered(B, Sight::MayLive)).unwrap();
    for (attempt, charge) in [(1, Charge::Own), (2, Charge::Crash), (3, Charge::Own), (4, Charge::Free)] {
        record = change(Some(&record), &failed(attempt, charge, &[attempt as u8])).unwrap();
    }
    let claim = record.claim().unwrap();
    assert_eq!((claim.attempt, claim.failures, claim.crashes, claim.past.len()), (5, 2, 1, 4));
}

#[test]
fn a_record_remembers_no_more_attempts_than_it_may() {
    let mut record = change(None, &delivered(B, Sight::MayLive)).unwrap();
    for attempt in 1..100 {
        record = change(Some(&record), &failed(attempt, Charge::Own, b"")).unwrap();
    }
    let past = &record.claim().unwrap().past;
    assert_eq!((past.len(), past[0].number, past[PAST_LIMIT - 1].number), (PAST_LIMIT, 68, 99));
}

fn past(number: u32, holder: Holder, report: Option<Vec<u8>>) -> PastAttempt {
    PastAttempt { number, holder, mark: mark(7), until_unix_nano: 8, report, has_span: false }
}

#[test]
fn the_span_of_a_lost_attempt_is_missing_until_it_is_written() {
    let missing = |record: &Record| -> Vec<(u32, String, u64, u64)> {
        let claim = record.claim().unwrap();
        let of =
            |past: &PastAttempt| (past.number, past.mark.node_id.clone(), past.mark.unix_nano, past.until_unix_nano);
        claim.without_span().map(of).collect()
    };
    let mut record = change(None, &delivered(B, Sight::MayLive)).unwrap();
    assert_eq!(missing(&record), []);
    record = change(Some(&record), &failed(1, Charge::Own, b"why")).unwrap();
    assert_eq!(missing(&record), [], "its own node has written that one");
    record = change(Some(&record), &delivered(C, Sight::NewLife)).unwrap();
    let of_second = (2, "b".to_owned(), 3, 2);
    assert_eq!(missing(&record), std::slice::from_ref(&of_second));
    // Lost before anybody knew that it had written a span for the one before.
    record = change(Some(&record), &delivered(A, Sight::NewLife)).unwrap();
    assert_eq!(missing(&record), [of_second, (3, "b".to_owned(), 2, 2)]);
    record = change(Some(&record), &Event::StoodIn { by: A, attempt: 4 }).unwrap();
    assert_eq!(missing(&record), []);
    // A node that stops closes the span of what it had begun, and then lets go of it.
    record = change(None, &delivered(B, Sight::MayLive)).unwrap();
    record = change(Some(&record), &Event::GivenBack { by: B, attempt: 1, has_begun: true }).unwrap();
    record = change(Some(&record), &delivered(C, Sight::MayLive)).unwrap();
    assert_eq!((record.claim().unwrap().attempt, missing(&record)), (2, Vec::new()));
}

#[test]
fn what_is_encoded_is_decoded() {
    let past = vec![past(1, A, Some(b"why".to_vec())), PastAttempt { has_span: true, ..past(2, C, None) }];
    let claim = Claim { past, failures: 3, ..claim() };
    let mut records: Vec<_> = rows().into_iter().filter_map(|(_, record)| record).collect();
    records.extend([Record::Claimed(claim.clone()), Record::Ended(End::Lost(claim.clone()))]);
    let wanted = Claim { wish: Some(Box::from(*b"cancelled")), ..claim.clone() };
    records.extend([Record::Ended(End::NodesLost(claim)), ended_unbegun(b"")]);
    records.extend([Record::Claimed(wanted.clone()), Record::Suspected { claim: wanted.clone(), by: C }]);
    records.extend([Record::GivenBack { claim: wanted.clone(), has_begun: true }, Record::Ended(End::Lost(wanted))]);
    for record in records {
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Ok(record.clone()));
        for length in 0..bytes.len() {
            assert!(Record::decode(&bytes[..length]).is_err(), "{record:?} cut to {length} bytes");
        }
    }
    assert_eq!(Record::decode(&[2, 1]), Err(WireError::UnknownValue("version of the record")));
}
