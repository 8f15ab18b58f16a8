//! Demand of a task: its share of the machine while it runs.

use tracer_options::{Amounts, RESOURCES_LIMIT, TaskOptions, check_name};

use crate::codec::{Put, Take, WireError};

/// Resources that a task needs. Borrowed from its [`Envelope`](super::Envelope).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand<'a> {
    /// Slots that it takes. With 0 it takes none, and runs as soon as there is a process for it.
    pub num_cpus: u32,
    /// Amount of each named resource, in the order of their names; each once, and at least 1.
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
    /// Returns the demand that the options of a task make, whose resources are [sorted](tracer_options::sort_resources).
    pub fn of(options: &'a TaskOptions) -> Demand<'a> {
        Demand {
            num_cpus: options.num_cpus,
            resources: options.resource.iter().map(|(name, amount)| (name.as_str(), *amount)).collect(),
            memory_bytes: options.memory,
        }
    }

    /// Returns the resources as people write them: `gpu=1,license=2`; empty for none.
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

#[cfg(test)]
mod tests {
    use super::*;

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
