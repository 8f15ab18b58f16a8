//! Sends anything as headers or variables: it is carried on valid, unchanged by a second hop, and never fails the caller.

use tracer::propagation::{Baggage, Carrier, TraceParent, TraceState};

/// The bytes are the lines of a request: `traceparent`, `tracestate` and `baggage` by turns.
pub(super) fn holds(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let of = |turn: usize| text.split('\n').skip(turn).step_by(3);
    let (carrier, _) = Carrier::from_headers(of(0), of(1), of(2));
    let variables = carrier.to_env();
    let (again, rejections) = Carrier::from_env(|name| {
        variables.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.clone()).map(Into::into)
    });
    assert_eq!(rejections, [], "what is sent is valid");
    let mut sent = carrier;
    if let Some(context) = &mut sent.trace_context {
        // Bits that have no meaning yet are not passed on.
        context.parent.flags &= 3;
    }
    assert_eq!(again, sent, "what is sent arrives");

    for line in text.split('\n') {
        if let Ok(parent) = TraceParent::parse(line) {
            let sent = parent.to_string();
            assert_eq!(sent.len(), 55);
            let received = TraceParent::parse(&sent).expect("what is sent is valid");
            assert_eq!((received.trace_id, received.span_id), (parent.trace_id, parent.span_id));
            assert_eq!(received.flags, parent.flags & 3);
        }
        if let Ok(mut state) = TraceState::parse([line]) {
            assert!(state.members().len() <= 32);
            state.insert("new", "1").expect("the member is valid");
            assert_eq!(state.members().next(), Some(("new", "1")));
            state.truncate(512);
            assert!(state.to_string().len() <= 512);
            assert_eq!(TraceState::parse([state.to_string().as_str()]), Ok(state));
        }
        let (mut baggage, _) = Baggage::parse([line]);
        assert!(baggage.entries().len() <= 64 && baggage.to_string().len() <= 8192);
        if baggage.insert("key", line).is_ok() {
            let (received, errors) = Baggage::parse([baggage.to_string().as_str()]);
            assert_eq!(errors, []);
            assert_eq!(received.get("key").as_deref(), Some(line), "any text survives");
        }
    }
}
