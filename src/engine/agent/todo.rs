//! A queue that nearly always has one element, and allocates nothing for it.

use std::collections::VecDeque;

/// Elements in their order.
#[derive(Debug)]
pub(super) struct Todo<T> {
    first: Option<T>,
    /// Elements behind the first; empty if there is none.
    rest: VecDeque<T>,
}

impl<T> Default for Todo<T> {
    fn default() -> Todo<T> {
        Todo { first: None, rest: VecDeque::new() }
    }
}

impl<T> Todo<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    pub(super) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    /// Returns the first element, if there is no other.
    pub(super) fn only(&self) -> Option<&T> {
        self.first.as_ref().filter(|_| self.rest.is_empty())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub(super) fn push_back(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.rest.push_back(element),
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<T> {
        std::mem::replace(&mut self.first, self.rest.pop_front())
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.rest.retain(&mut keep);
        if self.first.as_ref().is_some_and(|first| !keep(first)) {
            self.first = self.rest.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Todo;

    fn all(todo: &Todo<u32>) -> Vec<u32> {
        todo.iter().copied().collect()
    }

    #[test]
    fn elements_leave_in_the_order_in_which_they_came() {
        let mut todo = Todo::default();
        assert!(todo.is_empty() && todo.pop_front().is_none());
        (1..=3).for_each(|element| todo.push_back(element));
        assert_eq!((todo.front(), todo.only(), all(&todo)), (Some(&1), None, vec![1, 2, 3]));
        assert_eq!(todo.pop_front(), Some(1));
        todo.push_back(4);
        assert_eq!(all(&todo), [2, 3, 4]);
        assert_eq!([(); 3].map(|()| todo.pop_front()), [Some(2), Some(3), Some(4)]);
        assert!(todo.is_empty());
        todo.push_back(5);
        assert_eq!(todo.only(), Some(&5));
    }

    #[test]
    fn what_is_not_kept_leaves_the_order_of_the_others() {
        let of = |elements: &[u32]| {
            let mut todo = Todo::default();
            elements.iter().for_each(|element| todo.push_back(*element));
            todo
        };
        for (elements, kept) in [(&[1, 2, 3, 4][..], &[2, 4][..]), (&[2, 1], &[2]), (&[1, 3, 2], &[2]), (&[1], &[])] {
            let mut todo = of(elements);
            todo.retain(|element| element % 2 == 0);
            assert_eq!(all(&todo), kept);
            assert_eq!(todo.is_empty(), kept.is_empty());
        }
    }
}
