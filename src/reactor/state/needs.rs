use tracer_core::task::Demand;
use tracer_ipc::protocol::DemandReport;

/// Resources that a task needs, if that is not just a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needs {
    /// Number of slots.
    pub cpus: u32,
    /// Amounts of named resources.
    pub resources: Box<[(Box<str>, u64)]>,
}

impl Needs {
    /// Returns what a demand needs of the head; none for a slot.
    pub fn of(demand: &Demand<'_>) -> Option<Needs> {
        let is_plain = demand.num_cpus == 1 && demand.resources.is_empty();
        let resources = demand.resources.iter().map(|&(name, amount)| (name.into(), amount)).collect();
        (!is_plain).then_some(Needs { cpus: demand.num_cpus, resources })
    }
}

impl Needs {
    /// For people and programs.
    pub fn report(&self) -> DemandReport {
        let resources = self.resources.iter().map(|(name, amount)| (name.as_ref().into(), *amount));
        DemandReport { num_cpus: self.cpus, resources: resources.collect(), memory_bytes: None }
    }
}

/// A named resource of the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: Box<str>,
    /// Amount that the head has of it.
    pub total: u64,
}
