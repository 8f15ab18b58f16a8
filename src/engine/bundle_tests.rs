use tracer_core::PlaceId;

use super::*;

const A: Holder = Holder { place: PlaceId(1), life: 1 };
const B: Holder = Holder { place: PlaceId(2), life: 5 };
const C: Holder = Holder { place: PlaceId(3), life: 9 };
const COUNT: u32 = 3;

fn mark(unix_nano: u64) -> Mark {
    Mark { node_id: "b".into(), unix_nano }
}

fn terms(crash_limit: u32) -> Terms {
    Terms { at_most_once: false, crash_limit }
}

fn settled() -> BundleRecord {
    let members = vec![Member::Ended(1, b"done".to_vec()), Member::Kept, Member::GivenBack];
    BundleRecord::Settled { claim: Some(Claim::first(B, mark(1))), members }
}

/// One of each, in the order of the rows: what B has.
fn rows() -> [(&'static str, Option<BundleRecord>); 4] {
    let claim = Claim::first(B, mark(1));
    [
        ("none", None),
        ("claimed", Some(BundleRecord::Claimed { claim: claim.clone(), count: COUNT })),
        ("suspected", Some(BundleRecord::Suspected { claim, count: COUNT, by: A })),
        ("settled", Some(settled())),
    ]
}

fn delivered(to: Holder, sight: Sight, crash_limit: u32) -> BundleEvent {
    BundleEvent::Delivered { to, mark: mark(2), sight, terms: terms(crash_limit), count: COUNT }
}

/// One of each, in the order of the columns below.
fn columns() -> [(&'static str, BundleEvent); 12] {
    let members = vec![Member::Ended(1, b"one".to_vec()), Member::Kept, Member::Unbegun];
    let older = Holder { life: 4, ..B };
    [
        ("delivered to C", delivered(C, Sight::MayLive, 2)),
        ("delivered to C, quiet", delivered(C, Sight::Quiet, 2)),
        ("delivered to C, silent", delivered(C, Sight::Silent, 2)),
        ("delivered to C, new life", delivered(C, Sight::NewLife, 2)),
        ("delivered to C, new life, and no more may be lost", delivered(C, Sight::NewLife, 0)),
        ("delivered to B", delivered(B, Sight::MayLive, 2)),
        ("ended unbegun", BundleEvent::EndedUnbegun { ended: vec![(1, b"cancelled".to_vec())], count: COUNT }),
        ("settled by B", BundleEvent::Settled { by: B, members: members.clone() }),
        ("settled by C", BundleEvent::Settled { by: C, members: members.clone() }),
        ("settled by a B before", BundleEvent::Settled { by: older, members }),
        ("not run by B", BundleEvent::NotRun { by: B }),
        ("not run by C", BundleEvent::NotRun { by: C }),
    ]
}

/// Describes a change in a word or two.
fn word(changed: &Result<BundleRecord, Refusal>) -> String {
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
        Ok(BundleRecord::Claimed { claim, count: COUNT }) => of_claim(claim),
        Ok(BundleRecord::Suspected { claim, count: COUNT, .. }) => format!("{}?", of_claim(claim)),
        Ok(BundleRecord::Settled { claim, members }) => {
            let letter = |member: &Member| match member {
                Member::Unbegun => 'u',
                Member::Kept => 'k',
                Member::GivenBack => 'g',
                Member::NodesLost => 'l',
                Member::Ended(..) => 'e',
            };
            let claim = claim.as_ref().map_or_else(|| "nobody".to_owned(), of_claim);
            format!("{}: {claim}", members.iter().map(letter).collect::<String>())
        }
        Ok(other) => format!("{other:?}"),
        Err(refusal) => format!("{refusal:?}"),
    }
}

#[test]
fn every_pair_of_record_and_event_has_its_place_in_the_table() {
    let not = "NotItsHolder";
    // `B1 -0` is claimed by B, at attempt 1 with none lost; `B1 -0?` is that and suspected; `eku: B1 -0` is settled, with the state of each task.
    let table = [
        ["C1 -0", "C1 -0", "C1 -0", "C1 -0", "C1 -0", "B1 -0", "ueu: nobody", not, not, not, not, not],
        [
            "B1 -0?",
            "B1 -0?",
            "B1 -0?",
            "kkk: C2 -1",
            "lll: B1 -0",
            "HasIt",
            "Begun",
            "eku: B1 -0",
            not,
            not,
            "uuu: nobody",
            not,
        ],
        [
            "TooEarly",
            "TooEarly",
            "kkk: C2 -1",
            "kkk: C2 -1",
            "lll: B1 -0",
            "B1 -0",
            "Begun",
            "eku: B1 -0",
            not,
            not,
            "uuu: nobody",
            not,
        ],
        ["HasEnded"; 12],
    ];
    for ((row, record), expected) in rows().iter().zip(table) {
        for ((column, event), expected) in columns().iter().zip(expected) {
            assert_eq!(word(&change_bundle(record.as_ref(), event.clone())), expected, "{row}: {column}");
        }
    }
}

#[test]
fn the_state_of_a_task_follows_from_that_of_its_bundle() {
    let claim = Claim::first(B, mark(1));
    let [_, (_, claimed), (_, suspected), _] = rows();
    assert_eq!(claimed.unwrap().of(1), Some(Record::Claimed(claim.clone())));
    assert_eq!(suspected.unwrap().of(2), Some(Record::Suspected { claim: claim.clone(), by: A }));
    let ended = End::Outcome { attempt: 1, holder: Some(B), outcome: b"done".to_vec() };
    let expected = [
        Some(Record::Ended(ended)),
        Some(Record::Claimed(claim.clone())),
        Some(Record::GivenBack { claim: claim.clone(), has_begun: true }),
        None,
    ];
    assert_eq!([0, 1, 2, 3].map(|place| settled().of(place)), expected);
    let event = BundleEvent::EndedUnbegun { ended: vec![(0, b"no".to_vec())], count: 2 };
    let cancelled = change_bundle(None, event).unwrap();
    let ended = End::Outcome { attempt: 0, holder: None, outcome: b"no".to_vec() };
    assert_eq!([0, 1].map(|place| cancelled.of(place)), [Some(Record::Ended(ended)), None]);
    let [_, (_, claimed), ..] = rows();
    let taken_over = change_bundle(claimed.as_ref(), delivered(C, Sight::NewLife, 2)).unwrap();
    let Some(Record::Claimed(next)) = taken_over.of(0) else { panic!("{taken_over:?}") };
    let missing: Vec<_> = next.without_span().map(|past| (past.number, past.holder)).collect();
    assert_eq!((next.holder, next.attempt, missing), (C, 2, vec![(1, B)]), "the lost attempt of each has no span yet");
    let lost = change_bundle(claimed.as_ref(), delivered(C, Sight::NewLife, 0)).unwrap();
    assert_eq!(lost.of(2), Some(Record::Ended(End::NodesLost(claim))));
}

#[test]
fn what_is_encoded_is_decoded() {
    let claim = Claim::first(B, mark(1));
    let all = vec![Member::Unbegun, Member::Kept, Member::GivenBack, Member::NodesLost, Member::Ended(2, vec![7])];
    let mut records: Vec<_> = rows().into_iter().filter_map(|(_, record)| record).collect();
    records.push(BundleRecord::Settled { claim: None, members: vec![Member::Ended(0, Vec::new()); 2] });
    records.push(BundleRecord::Settled { claim: Some(claim.clone()), members: all });
    for record in records {
        let bytes = record.encode();
        assert_eq!(BundleRecord::decode(&bytes), Ok(record.clone()));
        let ended: Option<Vec<(u32, &[u8])>> = match &record {
            BundleRecord::Settled { members, .. } => {
                let outcome = |member| match member {
                    &Member::Ended(attempt, ref outcome) => Some((attempt, &**outcome)),
                    _ => None,
                };
                members.iter().map(outcome).collect()
            }
            BundleRecord::Claimed { .. } | BundleRecord::Suspected { .. } => None,
        };
        assert_eq!(BundleRecord::all_ended(&bytes), ended);
        for length in 0..bytes.len() {
            assert!(BundleRecord::decode(&bytes[..length]).is_err(), "{record:?} cut to {length} bytes");
            assert_eq!(BundleRecord::all_ended(&bytes[..length]), None, "{record:?} cut to {length} bytes");
        }
    }
    for count in [0, 1, BUNDLE_LIMIT + 1, u32::MAX] {
        let record = BundleRecord::Claimed { claim: claim.clone(), count };
        assert!(BundleRecord::decode(&record.encode()).is_err(), "{count}");
    }
}
