//! Queues that many machines share: their names, and the most that a task of one may ask for.

use std::fmt;

use tracer_options::{Amounts, parse_resource, sort_resources};

use crate::count::Count;
use crate::task::Demand;

/// The longest name of a queue, in characters.
const LONGEST: usize = 64;

/// Says what is wrong with the name of a queue, as a clause behind it. It becomes a part of names in the engine, whatever that is.
pub fn check_queue_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > LONGEST {
        return Err(format!("must have 1 to {LONGEST} characters"));
    }
    match name.chars().find(|character| !(character.is_ascii_alphanumeric() || matches!(character, '-' | '_'))) {
        Some(character) => {
            let character = character.escape_default();
            Err(format!("has `{character}` in its name, which takes letters, digits, `-` and `_`"))
        }
        None => Ok(()),
    }
}

/// The most that a task of a queue may ask for. A node takes one from the queue only when it has that much to spare, so that whatever comes fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBound {
    /// Slots.
    pub num_cpus: u32,
    /// Amount of each named resource, in the order of their names.
    pub resources: Vec<(String, u64)>,
}

impl Default for QueueBound {
    fn default() -> QueueBound {
        QueueBound { num_cpus: 1, resources: Vec::new() }
    }
}

impl QueueBound {
    /// Returns as much as a task asks for. The memory of an attempt is a limit of it, which every node keeps.
    pub fn of(demand: &Demand<'_>) -> QueueBound {
        let resources = demand.resources.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        QueueBound { num_cpus: demand.num_cpus, resources }
    }

    /// Returns the amount of a named resource.
    pub fn amount_of(&self, name: &str) -> u64 {
        self.resources.iter().find(|(known, _)| known == name).map_or(0, |(_, amount)| *amount)
    }

    /// Returns whether all of the other one fits into this one.
    pub fn has(&self, other: &QueueBound) -> bool {
        self.num_cpus >= other.num_cpus && other.resources.iter().all(|(name, amount)| self.amount_of(name) >= *amount)
    }

    /// Returns the least into which both fit.
    #[must_use]
    pub fn with(&self, other: &QueueBound) -> QueueBound {
        let mut resources = self.resources.clone();
        for (name, amount) in &other.resources {
            match resources.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = (*known).max(*amount),
                None => resources.push((name.clone(), *amount)),
            }
        }
        resources.sort();
        QueueBound { num_cpus: self.num_cpus.max(other.num_cpus), resources }
    }

    /// Returns it as it is kept in the engine: `cpus=4 gpu=1,license=2`.
    pub fn encode(&self) -> String {
        let resources = self.resources.iter().map(|(name, amount)| format!("{name}={amount}"));
        format!("cpus={} {}", self.num_cpus, resources.collect::<Vec<_>>().join(","))
    }

    /// Takes apart what the engine keeps.
    pub fn decode(text: &str) -> Option<QueueBound> {
        let (cpus, resources) = text.split_once(' ')?;
        let num_cpus = cpus.strip_prefix("cpus=")?.parse().ok()?;
        let resources = resources.split(',').filter(|part| !part.is_empty()).map(parse_resource);
        let resources = sort_resources(resources.collect::<Result<_, _>>().ok()?).ok()?;
        Some(QueueBound { num_cpus, resources })
    }
}

/// Text for people: `4 cpus, gpu=1,license=2`.
impl fmt::Display for QueueBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Count(self.num_cpus as usize, "cpu"))?;
        if self.resources.is_empty() {
            return Ok(());
        }
        let amounts: Vec<_> = self.resources.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        write!(f, ", {}", Amounts(&amounts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(num_cpus: u32, resources: &[(&str, u64)]) -> QueueBound {
        QueueBound { num_cpus, resources: resources.iter().map(|(name, amount)| ((*name).into(), *amount)).collect() }
    }

    #[test]
    fn a_bound_is_kept_as_text_and_what_is_none_is_not_read() {
        for (bound, kept, said) in [
            (QueueBound::default(), "cpus=1 ", "1 cpu"),
            (bound(4, &[("a100:80gb", 1), ("gpu", 2)]), "cpus=4 a100:80gb=1,gpu=2", "4 cpus, a100:80gb=1,gpu=2"),
        ] {
            assert_eq!((&*bound.encode(), &*bound.to_string()), (kept, said));
            assert_eq!(QueueBound::decode(kept), Some(bound));
        }
        for text in
            ["", "cpus=1", "cpus=-1 ", "cpus=x gpu=1", "cpus=1 gpu=0", "cpus=1 gpu", "cpus=1 gpu=1,gpu=2", "gpu=1 "]
        {
            assert_eq!(QueueBound::decode(text), None, "{text}");
        }
    }

    #[test]
    fn a_bound_has_what_is_no_more_in_anything() {
        let (large, small) = (bound(4, &[("gpu", 2), ("license", 1)]), bound(2, &[("gpu", 1)]));
        assert!(large.has(&small) && large.has(&large) && !small.has(&large));
        assert!(
            !large.has(&bound(5, &[])) && !large.has(&bound(1, &[("gpu", 3)])) && !large.has(&bound(0, &[("tpu", 1)]))
        );
        let both = bound(8, &[("tpu", 1)]).with(&large);
        assert_eq!(both, bound(8, &[("gpu", 2), ("license", 1), ("tpu", 1)]));
        assert!(both.has(&large));
    }

    #[test]
    fn a_queue_has_a_plain_name() {
        for name in ["default", "gpu-a100", "Q_1", &"x".repeat(64)] {
            assert_eq!(check_queue_name(name), Ok(()), "{name}");
        }
        for (name, problem) in [
            ("", "must have 1 to 64 characters"),
            ("a.b", "has `.` in its name, which takes letters, digits, `-` and `_`"),
            ("a b", "has ` ` in its name, which takes letters, digits, `-` and `_`"),
            ("a\n", "has `\\n` in its name, which takes letters, digits, `-` and `_`"),
            ("ä", "has `\\u{e4}` in its name, which takes letters, digits, `-` and `_`"),
        ] {
            assert_eq!(check_queue_name(name), Err(problem.into()), "{name:?}");
        }
    }
}
