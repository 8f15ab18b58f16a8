//! Named resources, as people write them.

use std::fmt;

/// Characters of a resource's name.
const NAME_LIMIT: usize = 64;
/// The most resources that a head may have, and a task may ask for.
pub const RESOURCES_LIMIT: usize = 64;

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

/// Checks the name of a resource. Says what is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
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
}
