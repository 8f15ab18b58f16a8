//! Atomics and locks of a `box_ring`; its model has those of loom.

pub(super) use std::sync::{Mutex, PoisonError, atomic};
