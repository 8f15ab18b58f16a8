// What an actor is and has, and all that is wrong with one at once.
pub struct Counter<T> {
    count: T,
}

#[tracer_sdk::actor]
impl<T: Clone> Counter<T> {
    pub fn count(self) -> u32 {
        1
    }

    pub fn add(&mut self, by: &mut u32, shown: impl std::fmt::Display) {
        let _ = (by, shown);
    }

    pub fn each<U: Default>(&self) -> U {
        U::default()
    }
}

fn main() {}
