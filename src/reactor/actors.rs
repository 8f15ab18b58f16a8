pub(crate) mod life;
pub(crate) mod line;
pub(crate) mod listing;
pub(crate) mod place;

#[cfg(test)]
#[path = "actors/random_tests.rs"]
mod random;
