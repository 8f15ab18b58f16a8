//! Demand of a task: its share of the machine while it runs.

use std::fmt;

use crate::codec::{Put, Take, WireError};

/// Characters of a resource's name.
const NAME_LIMIT: usize = 64;
/// How many resources a head may have, and a task may ask for.
const RESOURCES_LIMIT: usize = 64;

/// Resources that a task needs. Borrowed from its [`Envelope`](super::Envelope).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand<'a> {
    /// Slots that it takes. With 0 it takes none, and runs as soon as there is a process for it.
    pub num_cpus: u32,
    /// How much of each named resource, in the order of their names; each once, and at least 1.
    pub resources: Vec<(&'a str, u64)>,
    /// The most memory of its attempt, in bytes; none for what every worker has.
    pub memory_bytes: Option<u64>,
}

impl Default for Demand<'_> {
    fn default() -> Self {
        Demand { num_cpus: 1, resources: Vec::new(), memory_bytes: None }
    }
}

impl<'a> Demand<'a> {
    /// The resources as people write them: `gpu=1,license=2`; empty for none.
    pub fn resources_text(&self) -> String {
        Amounts(&self.resources).to_string()
    }

    /// Appends the demand.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.num_cpus);
        out.put_u32(self.resources.len() as u32);
        for (name, amount) in &self.resources {
            out.put_str(name);
            out.put_u64(*amount);
        }
        out.put_u64(self.memory_bytes.unwrap_or(0));
    }

    /// Takes a demand. What is not in order is refused, so that equal demands are equal bytes.
    pub(super) fn take(take: &mut Take<'a>) -> Result<Demand<'a>, WireError> {
        let num_cpus = take.u32()?;
        let mut resources: Vec<(&'a str, u64)> = Vec::new();
        for _ in 0..take.u32()? {
            let (name, amount) = (take.str()?, take.u64()?);
            let is_next = resources.last().is_none_or(|(last, _)| *last < name);
            if !is_next || amount == 0 || check_name(name).is_err() || resources.len() == RESOURCES_LIMIT {
                return Err(WireError::UnknownValue("demand"));
            }
            resources.push((name, amount));
        }
        Ok(Demand { num_cpus, resources, memory_bytes: Some(take.u64()?).filter(|&bytes| bytes != 0) })
    }
}

/// Amounts of resources with their names, as people write them.
pub struct Amounts<'a, N>(pub &'a [(N, u64)]);

impl<N: fmt::Display> fmt::Display for Amounts<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, amount)) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}={amount}")?;
        }
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_fit = |character: char| character.is_ascii_alphanumeric() || "_-.:/".contains(character);
    if name.is_empty() || name.len() > NAME_LIMIT || !name.chars().all(is_fit) {
        let expected = format!("a name of 1 to {NAME_LIMIT} letters, digits and `_-.:/`");
        return Err(format!("expected {expected}, found `{name}`"));
    }
    // They have flags of their own, and would be counted twice.
    if let Some(flag) = match name {
        "cpu" | "cpus" | "num_cpus" => Some("--num-cpus"),
        "memory" => Some("--memory"),
        _ => None,
    } {
        return Err(format!("`{name}` is no resource by name\n(hint: a task asks for it with {flag})"));
    }
    Ok(())
}

/// Checks one resource and its amount, which must be at least 1. Says what is wrong.
pub fn check_resource(name: &str, amount: i64) -> Result<(String, u64), String> {
    check_name(name)?;
    match u64::try_from(amount) {
        Ok(amount @ 1..) => Ok((name.to_owned(), amount)),
        _ => Err(format!("expected a whole number from 1, found {amount} for `{name}`")),
    }
}

/// Reads `name=amount` with a whole amount from 1, as `--resource` takes it.
pub fn parse_resource(text: &str) -> Result<(String, u64), String> {
    let (name, amount) = text.split_once('=').ok_or_else(|| format!("expected NAME=AMOUNT, found `{text}`"))?;
    let amount = amount
        .trim()
        .parse()
        .map_err(|_| format!("expected a whole number from 1, found `{}` for `{}`", amount.trim(), name.trim()))?;
    check_resource(name.trim(), amount)
}

/// Puts resources into the order of their names. Each may be there once.
pub fn sort_resources(mut resources: Vec<(String, u64)>) -> Result<Vec<(String, u64)>, String> {
    resources.sort();
    if let Some(twice) = resources.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("expected each resource once, found `{}` twice", twice[0].0));
    }
    if resources.len() > RESOURCES_LIMIT {
        return Err(format!("expected up to {RESOURCES_LIMIT} resources, found {}", resources.len()));
    }
    Ok(resources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_as_people_write_them() {
        assert_eq!(parse_resource("gpu=2"), Ok(("gpu".into(), 2)));
        assert_eq!(parse_resource(" a100:80gb = 1"), Ok(("a100:80gb".into(), 1)));
        for (text, expected) in [
            ("gpu", "expected NAME=AMOUNT, found `gpu`"),
            ("gpu=0", "expected a whole number from 1, found 0 for `gpu`"),
            ("gpu=-1", "expected a whole number from 1, found -1 for `gpu`"),
            ("gpu=half", "expected a whole number from 1, found `half` for `gpu`"),
            ("=1", "expected a name of 1 to 64 letters, digits and `_-.:/`, found ``"),
            ("my gpu=1", "expected a name of 1 to 64 letters, digits and `_-.:/`, found `my gpu`"),
            ("cpu=1", "`cpu` is no resource by name\n(hint: a task asks for it with --num-cpus)"),
            ("memory=1", "`memory` is no resource by name\n(hint: a task asks for it with --memory)"),
        ] {
            assert_eq!(parse_resource(text).unwrap_err(), expected);
        }
        let sorted = sort_resources(vec![("b".into(), 1), ("a".into(), 2)]).unwrap();
        assert_eq!(Amounts(&sorted).to_string(), "a=2,b=1");
        let twice = sort_resources(vec![("a".into(), 1), ("a".into(), 2)]).unwrap_err();
        assert_eq!(twice, "expected each resource once, found `a` twice");
    }

    #[test]
    fn a_demand_survives_the_wire_and_disorder_is_refused() {
        let whole = |resources| Demand { num_cpus: 2, resources, memory_bytes: Some(7) };
        let bytes = |demand: &Demand<'_>| {
            let mut out = Vec::new();
            demand.encode(&mut out);
            out
        };
        for demand in [whole(vec![("a", 1), ("b", u64::MAX)]), whole(Vec::new()), Demand::default()] {
            assert_eq!(Demand::take(&mut Take::new(&bytes(&demand))), Ok(demand.clone()));
        }
        for resources in [vec![("b", 1), ("a", 1)], vec![("a", 1), ("a", 1)], vec![("a", 0)], vec![("cpu", 1)]] {
            assert!(Demand::take(&mut Take::new(&bytes(&whole(resources)))).is_err());
        }
    }
}
