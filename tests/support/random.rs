//! Choices that look random and can be made again.

use super::Cluster;

/// The variable that repeats the choices of a run.
const SEED: &str = "TRACER_TEST_SEED";

/// Numbers that look random (SplitMix64); the same seed gives the same.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Returns numbers from the seed that the environment variable `TRACER_TEST_SEED` names, else from one of this run; a test that fails prints it
    /// with the logs of its cluster.
    pub fn of_test(cluster: &Cluster) -> Random {
        let random = Random::from_environment();
        cluster.note(format!("{SEED}={} repeats the choices of this run", random.0));
        random
    }

    /// The same for a test without a cluster, which says the seed itself.
    pub fn of_test_alone() -> Random {
        let random = Random::from_environment();
        eprintln!("{SEED}={} repeats the choices of this run", random.0);
        random
    }

    fn from_environment() -> Random {
        Random(match std::env::var(SEED) {
            Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("{SEED} is a whole number, and not `{seed}`")),
            Err(_) => {
                let since = std::time::UNIX_EPOCH.elapsed().expect("the clock is right");
                u64::from(since.subsec_nanos()) << 22 ^ u64::from(std::process::id())
            }
        })
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Spoils bytes: changes some, cuts, repeats, or adds some that mean nothing.
    pub fn spoil(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len() as u64 + 1) as usize;
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..at, (0..self.below(40)).map(|number| (number * 37) as u8))),
                2 => bytes.extend_from_within(at..),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
    }

    /// One of `choices`; none of none.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        (!choices.is_empty()).then(|| &choices[self.below(choices.len() as u64) as usize])
    }
}
