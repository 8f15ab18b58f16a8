//! Every valid `tracestate` in the type that OpenTelemetry has for it.
//!
//! `TraceState` of the crate `opentelemetry` applies the rules of W3C Trace Context level 1 to keys: one `@` at most, and short names behind it.
//! Level 2 allows any number. A member that the crate refuses is therefore kept under a key that it takes, and turned back into what
//! it was wherever the text leaves the type:
//!
//! | member | as it is kept |
//! |---|---|
//! | `foo@@bar=1` | `tracer-level2/0=foo@@bar:1` |
//! | the same, with more than 256 characters in all | `tracer-level2/0k=foo@@bar…`, then `tracer-level2/0v=1…` |

use std::borrow::Cow;

/// Begins the keys of members that are not as they came.
const ESCAPED: &str = "tracer-level2/";
/// Upper bound of a value, in characters.
const VALUE_LIMIT: usize = 256;
/// Upper bound of members in a list.
const MEMBERS_LIMIT: usize = 32;

/// Returns the members of `header` in a form that OpenTelemetry takes; `is_taken` says whether it takes one. What is not valid by level 2 either
/// is left out.
pub(crate) fn escape(header: &str, is_taken: impl Fn(&str, &str) -> bool) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    let mut escaped: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::new();
    let members = header.split(',').filter_map(|member| member.trim_matches([' ', '\t']).split_once('='));
    for (number, (key, value)) in members.enumerate() {
        if is_taken(key, value) {
            escaped.push((key.into(), value.into()));
        } else if is_level_2_key(key) && is_taken("a", value) {
            if key.len() + 1 + value.len() <= VALUE_LIMIT {
                escaped.push((format!("{ESCAPED}{number}").into(), format!("{key}:{value}").into()));
            } else {
                escaped.push((format!("{ESCAPED}{number}k").into(), key.into()));
                escaped.push((format!("{ESCAPED}{number}v").into(), value.into()));
            }
        }
    }
    // Half a member is none.
    let is_half = |(key, _): &(Cow<'_, str>, _)| key.starts_with(ESCAPED) && key.ends_with('k');
    escaped.truncate(MEMBERS_LIMIT);
    if escaped.len() == MEMBERS_LIMIT && escaped.last().is_some_and(is_half) {
        escaped.pop();
    }
    escaped
}

/// Returns the header of a `TraceState`, with its members as they came.
pub(crate) fn unescape(header: String) -> String {
    if !header.contains(ESCAPED) {
        return header;
    }
    let mut whole = String::with_capacity(header.len());
    let mut members = header.split(',').peekable();
    let mut push = |parts: &[&str]| {
        if !whole.is_empty() {
            whole.push(',');
        }
        parts.iter().for_each(|part| whole.push_str(part));
    };
    while let Some(member) = members.next() {
        let Some((number, text)) = member.strip_prefix(ESCAPED).and_then(|rest| rest.split_once('=')) else {
            push(&[member]);
            continue;
        };
        if let (true, Some((key, value))) = (is_number(number), text.split_once(':')) {
            push(&[key, "=", value]);
        } else if let Some(number) = number.strip_suffix('k').filter(|number| is_number(number))
            && let Some(value) =
                members.peek().and_then(|next| next.strip_prefix(ESCAPED)?.strip_prefix(number)?.strip_prefix("v="))
        {
            push(&[text, "=", value]);
            members.next();
        } else {
            push(&[member]);
        }
    }
    whole
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// W3C Trace Context level 2, 3.3.1.3.1.
fn is_level_2_key(key: &str) -> bool {
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_further = |byte: u8| is_first(&byte) || b"_-*/@".contains(&byte);
    key.len() <= 256 && key.as_bytes().first().is_some_and(is_first) && key.bytes().all(is_further)
}

#[cfg(all(test, feature = "otel-0-33"))]
mod tests {
    use opentelemetry::trace::TraceState;

    use super::*;

    fn is_taken(key: &str, value: &str) -> bool {
        TraceState::from_key_value([(key, value)]).is_ok()
    }

    fn kept(header: &str) -> (String, String) {
        let state = TraceState::from_key_value(escape(header, is_taken)).expect("each member is taken");
        (state.header(), unescape(state.header()))
    }

    #[test]
    fn every_header_of_level_2_comes_back_as_it_went() {
        let long_tenant = format!("{}@v=1", "t".repeat(254));
        let long_vendor = format!("t@{}=1", "v".repeat(254));
        let all = |value: usize| format!("{}@{}={}", "t".repeat(241), "v".repeat(14), "x".repeat(value));
        let many: Vec<_> = (0..32).map(|number| format!("a{number}@@b={number}")).collect();
        for header in [
            "",
            "a=1,b=2",
            "foo@@bar=1,bar=2",
            "bar=2,foo@bar@baz=1",
            "foo@=1,0@0@0=2",
            "foo@@bar=:::,b=:",
            long_tenant.as_str(),
            long_vendor.as_str(),
            all(1).as_str(),
            &format!("a=1,{},b=2", all(256)),
            &many.join(","),
        ] {
            assert_eq!(kept(header).1, header);
        }
        // A level 1 header is kept as it is, also inside.
        assert_eq!(kept("rojo=1,congo=2").0, "rojo=1,congo=2");
        assert_eq!(kept("foo@@bar=1,bar=2").0, "tracer-level2/0=foo@@bar:1,bar=2");
    }

    #[test]
    fn one_bad_member_does_not_cost_the_others() {
        for (header, expected) in [
            ("a=1, b=2 ,,", "a=1,b=2"),
            ("UPPER=1,b=2", "b=2"),
            ("no equals sign,b=2", "b=2"),
            ("a@@b=1=2,b=2", "b=2"),
            ("nothing good", ""),
            ("averylongtenantname@averylongsystemname=1,b=2", "averylongtenantname@averylongsystemname=1,b=2"),
        ] {
            assert_eq!(kept(header).1, expected, "{header}");
        }
        let long = format!("a@@b={}", "x".repeat(256));
        let many = [vec!["a=1"; 31].join(","), long].join(",");
        assert_eq!(kept(&many).1, vec!["a=1"; 31].join(","), "half a member is none");
    }

    #[test]
    fn what_only_looks_escaped_is_left_alone() {
        for header in [
            "tracer-level2/=a:b",
            "tracer-level2/x=a:b",
            "tracer-level2/0=a",
            "tracer-level2/0k=a,b=1",
            "tracer-level2/0k=a,tracer-level2/1v=1",
            "tracer-level2/0v=1",
        ] {
            assert_eq!(unescape(header.to_owned()), header);
        }
    }
}
