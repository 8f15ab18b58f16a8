use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn definition(name: &str, kind: InstrumentKind, number: NumberType) -> Definition {
    let boundaries = if kind == InstrumentKind::Histogram { vec![1.0, 10.0] } else { Vec::new() };
    let [name, unit, description] = [name, "{order}", "Orders."].map(str::to_owned);
    Definition { name, unit, description, scope: "shop".into(), scope_version: String::new(), kind, number, boundaries }
}

fn of(key: &str, value: &str) -> Attributes {
    vec![(key.into(), AttributeValue::Text(value.into()))]
}

/// Takes a value at the series with these attributes.
fn measure(file: &InstrumentFile, definition: &Definition, attributes: &Attributes, bits: u64) -> Option<usize> {
    let instrument = file.define(definition).expect("there is room");
    let place = file.series(instrument, attributes).expect("there is room");
    file.measure(definition, place, bits, 1)
}

/// Returns kind and value of each series of a folder.
fn values(folder: &Path) -> Vec<(InstrumentKind, f64, bool)> {
    let all = read_folder(folder).unwrap();
    let mut values: Vec<_> = all
        .iter()
        .flat_map(|measured| {
            let definition = &measured.definition;
            let number = if definition.kind == InstrumentKind::Histogram { NumberType::F64 } else { definition.number };
            measured.series.iter().map(move |series| (definition.kind, number.value(series.bits), series.pid.is_some()))
        })
        .collect();
    values.sort_by_key(|(kind, ..)| *kind as u8);
    values
}

#[test]
fn sums_go_on_in_the_next_process_and_what_is_of_one_process_begins_anew() {
    use InstrumentKind::*;
    let folder = tempfile::tempdir().unwrap();
    let kinds = [Counter, UpDownCounter, Gauge, ObservableCounter, ObservableGauge];
    let take_all = |value: u64| {
        let file = InstrumentFile::open_free(folder.path()).unwrap();
        for kind in kinds {
            measure(&file, &definition("x", kind, NumberType::I64), &of("a", "b"), value);
        }
        measure(&file, &definition("h", Histogram, NumberType::U64), &of("a", "b"), value);
        file
    };
    let first = take_all(5);
    let of_one = [
        (Counter, 5.0, false),
        (UpDownCounter, 5.0, false),
        (Histogram, 5.0, false),
        (Gauge, 5.0, true),
        (ObservableCounter, 5.0, false),
        (ObservableGauge, 5.0, true),
    ];
    assert_eq!(values(folder.path()), of_one);
    // A process that lives beside it: sums are added up, gauges stand side by side (here they are of one process, and add up too).
    let second = take_all(2);
    assert_eq!(values(folder.path()).iter().map(|(_, value, _)| *value).collect::<Vec<_>>(), [7.0; 6]);
    drop((first, second));
    // The next one has the file of the first, and its sums.
    let third = InstrumentFile::open_free(folder.path()).unwrap();
    measure(&third, &definition("x", ObservableCounter, NumberType::I64), &of("a", "b"), 1);
    let after = values(folder.path());
    assert!(after.contains(&(Counter, 7.0, false)) && after.contains(&(ObservableCounter, 8.0, false)), "{after:?}");
    assert!(after.contains(&(UpDownCounter, 2.0, false)), "that of the second file is left: {after:?}");
    // A counter that an observer begins anew in one process goes on, too.
    measure(&third, &definition("x", ObservableCounter, NumberType::I64), &of("a", "b"), 10);
    measure(&third, &definition("x", ObservableCounter, NumberType::I64), &of("a", "b"), 4);
    assert!(values(folder.path()).contains(&(ObservableCounter, 7.0 + 10.0 + 4.0, false)));
}

#[test]
fn what_an_instrument_does_not_take_is_left_out() {
    use InstrumentKind::*;
    let folder = tempfile::tempdir().unwrap();
    let file = InstrumentFile::open_free(folder.path()).unwrap();
    let refused = |kind, number, bits| measure(&file, &definition("x", kind, number), &Vec::new(), bits).is_none();
    let minus_one = (-1.0_f64).to_bits();
    assert!(refused(Counter, NumberType::F64, minus_one) && refused(Histogram, NumberType::F64, minus_one));
    assert!(refused(Counter, NumberType::I64, (-1_i64).cast_unsigned()));
    assert!(refused(Gauge, NumberType::F64, f64::NAN.to_bits()));
    assert!(refused(Histogram, NumberType::F64, f64::INFINITY.to_bits()));
    assert!(!refused(UpDownCounter, NumberType::F64, minus_one) && !refused(Gauge, NumberType::F64, minus_one));
    let unsorted = Definition { boundaries: vec![2.0, 1.0], ..definition("y", Histogram, NumberType::F64) };
    assert_eq!(file.define(&unsorted), None);
    let too_many = Definition { boundaries: (0..500).map(f64::from).collect(), ..unsorted };
    assert_eq!(file.define(&too_many), None);
}

#[test]
fn values_are_in_the_first_bucket_whose_boundary_is_not_below_them_with_their_exemplars() {
    let folder = tempfile::tempdir().unwrap();
    let file = InstrumentFile::open_free(folder.path()).unwrap();
    let histogram = definition("h", InstrumentKind::Histogram, NumberType::F64);
    let place = file.series(file.define(&histogram).unwrap(), &of("a", "b")).unwrap();
    for (value, bucket) in [(0.5, 0), (1.0, 0), (1.5, 1), (10.0, 1), (11.0, 2)] {
        assert_eq!(file.measure(&histogram, place, f64::to_bits(value), 1), Some(bucket));
    }
    let exemplar = Exemplar { value: 11.0, unix_nano: 5_000_000_000, trace_id: [1; 16], span_id: [2; 8] };
    assert!(file.wants_exemplar(&histogram, place, 2, 5_000_000_000));
    file.set_exemplar(&histogram, place, 2, &exemplar);
    assert!(!file.wants_exemplar(&histogram, place, 2, 5_500_000_000));
    let all = read_folder(folder.path()).unwrap();
    assert_eq!((all[0].definition.clone(), all[0].series[0].buckets.clone()), (histogram, vec![2, 2, 1]));
    assert_eq!(all[0].series[0].exemplars, [None, None, Some(exemplar)]);
    assert_eq!(f64::from_bits(all[0].series[0].bits), 24.0);
}

#[test]
fn series_beyond_the_limit_share_one_that_says_so_and_no_value_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = InstrumentFile::open_free(folder.path()).unwrap();
    let counter = definition("x", InstrumentKind::Counter, NumberType::U64);
    for number in 0..SERIES_LIMIT + 100 {
        measure(&file, &counter, &of("user", &number.to_string()), 1);
    }
    measure(&file, &counter, &of("user", &"x".repeat(TEXT_LIMIT)), 1);
    let all = read_folder(folder.path()).unwrap();
    assert_eq!(all[0].series.len(), SERIES_LIMIT);
    let sum: u64 = all[0].series.iter().map(|series| series.bits).sum();
    assert_eq!(sum, SERIES_LIMIT as u64 + 101);
    let others = vec![(OVERFLOW.to_owned(), AttributeValue::Bool(true))];
    assert_eq!(all[0].series.iter().find(|series| series.attributes == others).unwrap().bits, 102);
    // A full file takes no further instruments, and its own still count.
    let wide = |number: usize| Definition {
        description: "x".repeat(TEXT_LIMIT - 100),
        ..definition(&number.to_string(), InstrumentKind::Counter, NumberType::U64)
    };
    let made = (0..INSTRUMENTS_LIMIT + 10).filter(|number| file.define(&wide(*number)).is_some()).count();
    assert_eq!(made, INSTRUMENTS_LIMIT - 1);
}

#[test]
fn the_order_of_attributes_makes_no_series_and_the_last_of_a_key_counts() {
    let folder = tempfile::tempdir().unwrap();
    let file = InstrumentFile::open_free(folder.path()).unwrap();
    let counter = definition("x", InstrumentKind::Counter, NumberType::U64);
    let [a, b] = [("a", AttributeValue::Int(-1)), ("b", AttributeValue::Bool(true))].map(|(k, v)| (k.to_owned(), v));
    let [c, again] = [("c", 0.5), ("c", 1.5)].map(|(k, v)| (k.to_owned(), AttributeValue::Float(v)));
    measure(&file, &counter, &vec![a.clone(), b.clone(), c.clone(), again.clone()], 1);
    measure(&file, &counter, &vec![again.clone(), b.clone(), a.clone()], 1);
    let all = read_folder(folder.path()).unwrap();
    assert_eq!(all[0].series.len(), 1);
    assert_eq!((all[0].series[0].attributes.clone(), all[0].series[0].bits), (vec![a, b, again], 2));
}

#[test]
fn threads_that_count_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(InstrumentFile::open_free(folder.path()).unwrap());
    let kinds = [(InstrumentKind::Counter, NumberType::F64), (InstrumentKind::Histogram, NumberType::U64)];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..5000_u64 {
                    for (kind, number_type) in kinds {
                        let bits = if number_type == NumberType::F64 { 1.0_f64.to_bits() } else { 1 };
                        measure(&file, &definition("x", kind, number_type), &of("n", &(number % 7).to_string()), bits);
                    }
                }
            });
        }
    });
    let all = read_folder(folder.path()).unwrap();
    for measured in all {
        let sum: f64 = measured.series.iter().map(|series| f64::from_bits(series.bits)).sum();
        assert_eq!((measured.series.len(), sum), (7, 20_000.0), "{:?}", measured.definition);
    }
}

#[test]
fn observers_are_asked_by_whoever_reads_and_what_they_no_longer_say_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(InstrumentFile::open_free(folder.path()).unwrap());
    let gauge = definition("depth", InstrumentKind::ObservableGauge, NumberType::U64);
    ask_observers(folder.path(), Duration::ZERO).unwrap();
    file.set_observers(1);
    let (own, described) = (Arc::clone(&file), gauge.clone());
    let observer = std::thread::spawn(move || {
        let instrument = own.define(&described).unwrap();
        for turn in 1..=2 {
            let round = own.wait_for_round();
            let keys: &[&str] = if turn == 1 { &["one", "two"] } else { &["two"] };
            for key in keys {
                let place = own.series(instrument, &of("queue", key)).unwrap();
                own.measure(&described, place, turn, round);
            }
            own.answer_round(round);
        }
    });
    let patience = Duration::from_secs(60);
    ask_observers(folder.path(), patience).unwrap();
    assert_eq!(values(folder.path()), [(gauge.kind, 1.0, true), (gauge.kind, 1.0, true)]);
    ask_observers(folder.path(), patience).unwrap();
    assert_eq!(values(folder.path()), [(gauge.kind, 2.0, true)]);
    observer.join().unwrap();
    // Nobody answers any more: what is there stays.
    ask_observers(folder.path(), Duration::from_millis(1)).unwrap();
    assert_eq!(values(folder.path()), [(gauge.kind, 2.0, true)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_file_has_is_read_and_taken_over_without_harm(seed in any::<u64>(), flips in 1_usize..60) {
        let folder = tempfile::tempdir().unwrap();
        let file = InstrumentFile::open_free(folder.path()).unwrap();
        for kind in 1..=7 {
            let described = definition("x", InstrumentKind::of(kind).unwrap(), NumberType::of(1 + kind % 3).unwrap());
            measure(&file, &described, &of("a", "b"), 1);
        }
        let used = file.header(USED_AT).load(Relaxed) as usize;
        let mut random = seed;
        for _ in 0..flips {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = 1 + (random >> 20) as usize % (HEADER + used);
            file.memory.words()[at].fetch_xor(1 << (random >> 58), Relaxed);
        }
        drop(file);
        read_folder(folder.path()).unwrap();
        let file = InstrumentFile::open_free(folder.path()).unwrap();
        let counter = definition("y", InstrumentKind::Counter, NumberType::U64);
        measure(&file, &counter, &of("a", "b"), 3);
        let all = read_folder(folder.path()).unwrap();
        let own = all.iter().find(|measured| measured.definition == counter).expect("it is there");
        prop_assert_eq!(own.series[0].bits, 3);
    }
}
