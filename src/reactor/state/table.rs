//! The table of tasks.
//!
//! Ids are given out in order, so an id names its place: no hashing, and cost stays flat however many there are. Memory is taken and
//! given back in segments, so there is never a moment at which a doubling table holds everything twice.

use std::collections::{BTreeMap, VecDeque};

use crate::state::task::Task;
use tracer_core::task::TaskId;

/// Tasks in a segment: few enough that its memory is small, so that no task waits for a large allocation.
const SEGMENT: usize = 256;
/// Length of a gap in the ids beyond which the tasks before it leave the segments: empty ones would take more memory than the tasks.
const WIDE_GAP: u64 = 1 << 20;

/// Tasks by id.
#[derive(Debug)]
pub(crate) struct TaskTable {
    segments: VecDeque<Segment>,
    /// Tasks of ids before the first segment, far away from it. There are hardly ever any.
    distant: BTreeMap<u64, Task>,
    /// The id of the first entry of the first segment.
    first: u64,
    /// The id that the next task gets.
    next: u64,
    len: usize,
}

#[derive(Debug)]
struct Segment {
    entries: Vec<Option<Task>>,
    live: usize,
}

impl Segment {
    /// Gives back the memory of tasks that are all forgotten: those before it may stay for as long as there is a head.
    fn give_back(&mut self) {
        if self.live == 0 {
            self.entries = Vec::new();
        }
    }
}

impl Default for TaskTable {
    fn default() -> TaskTable {
        TaskTable { segments: VecDeque::new(), distant: BTreeMap::new(), first: 1, next: 1, len: 0 }
    }
}

impl TaskTable {
    /// Returns how many tasks there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the id that the next task gets.
    pub(crate) fn next_id(&self) -> TaskId {
        TaskId(self.next)
    }

    /// Adds a task and gives it the next id.
    pub(crate) fn insert(&mut self, task: Task) -> TaskId {
        if self.segments.back().is_none_or(|segment| segment.entries.len() == SEGMENT) {
            if let Some(last) = self.segments.back_mut() {
                last.give_back();
            }
            self.segments.push_back(Segment { entries: Vec::with_capacity(SEGMENT), live: 0 });
        }
        let segment = self.segments.back_mut().expect("a segment with room was pushed if there was none");
        segment.entries.push(Some(task));
        segment.live += 1;
        self.len += 1;
        let id = TaskId(self.next);
        self.next += 1;
        id
    }

    /// Adds a task under an id that was given to it before: a larger one than all others have.
    pub(crate) fn restore(&mut self, id: TaskId, task: Task) {
        self.reserve(id);
        self.insert(task);
    }

    /// Makes sure that ids below this one are not given out again.
    pub(crate) fn reserve(&mut self, next: TaskId) {
        if next.0 <= self.next {
            return;
        }
        if next.0 - self.next > WIDE_GAP {
            self.leave_behind();
        }
        if self.segments.is_empty() {
            self.first = next.0;
        } else {
            // Segments in between stay empty and cost next to nothing.
            let (segment, entry) = self.place(next).expect("it is not below the first");
            while self.segments.len() <= segment {
                self.segments.push_back(Segment { entries: Vec::new(), live: 0 });
            }
            let last = self.segments.back_mut().expect("there is one at least");
            last.entries.resize_with(entry, || None);
        }
        self.next = next.0;
    }

    /// Moves all tasks from the segments to the distant ones.
    fn leave_behind(&mut self) {
        let entries = std::mem::take(&mut self.segments).into_iter().enumerate();
        for (index, segment) in entries {
            let first = self.first + (index * SEGMENT) as u64;
            let live = (first..).zip(segment.entries).filter_map(|(id, task)| Some((id, task?)));
            self.distant.extend(live);
        }
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&Task> {
        let Some((segment, entry)) = self.place(id) else { return self.distant.get(&id.0) };
        self.segments.get(segment)?.entries.get(entry)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task> {
        let Some((segment, entry)) = self.place(id) else { return self.distant.get_mut(&id.0) };
        self.segments.get_mut(segment)?.entries.get_mut(entry)?.as_mut()
    }

    /// Forgets a task. Before that it is looked at a last time, in its place: moving it would take longer than all else.
    pub(crate) fn remove<R>(&mut self, id: TaskId, last_look: impl FnOnce(&mut Task) -> R) -> Option<R> {
        let Some((segment, entry)) = self.place(id) else {
            let mut task = self.distant.remove(&id.0)?;
            self.len -= 1;
            return Some(last_look(&mut task));
        };
        // The last segment is still filled.
        let is_filled = segment + 1 == self.segments.len();
        let segment = self.segments.get_mut(segment)?;
        let entry = segment.entries.get_mut(entry)?;
        let seen = last_look(entry.as_mut()?);
        *entry = None;
        segment.live -= 1;
        self.len -= 1;
        if !is_filled {
            segment.give_back();
        }
        while self.segments.len() > 1 && self.segments.front().is_some_and(|front| front.live == 0) {
            self.segments.pop_front();
            self.first += SEGMENT as u64;
        }
        Some(seen)
    }

    /// Returns every task, newest first.
    pub(crate) fn iter_newest_first(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.iter_before(TaskId(u64::MAX))
    }

    /// Returns every task with a smaller id, newest first.
    pub(crate) fn iter_before(&self, end: TaskId) -> impl Iterator<Item = (TaskId, &Task)> {
        let segments = self.place(end).map_or(0, |(segment, _)| (segment + 1).min(self.segments.len()));
        let near = self.segments.range(..segments).enumerate().rev().flat_map(move |(index, segment)| {
            let first = self.first + (index * SEGMENT) as u64;
            segment
                .entries
                .iter()
                .enumerate()
                .rev()
                .filter_map(move |(entry, task)| Some((TaskId(first + entry as u64), task.as_ref()?)))
        });
        let near = near.skip_while(move |(id, _)| *id >= end);
        near.chain(self.distant.range(..end.0).rev().map(|(id, task)| (TaskId(*id), task)))
    }

    fn place(&self, id: TaskId) -> Option<(usize, usize)> {
        let offset = usize::try_from(id.0.checked_sub(self.first)?).ok()?;
        Some((offset / SEGMENT, offset % SEGMENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_task_until_it_is_forgotten() {
        let mut table = TaskTable::default();
        let ids: Vec<_> = (0..3000).map(|tag| table.insert(Task::sample(tag))).collect();
        assert_eq!((ids[0], ids[2999]), (TaskId(1), TaskId(3000)));
        assert!(ids.iter().enumerate().all(|(tag, &id)| table.get(id).unwrap().tag == tag as u64));
        for &id in &ids[..2500] {
            assert!(table.remove(id, |_| ()).is_some());
            assert!(table.get(id).is_none() && table.remove(id, |_| ()).is_none());
        }
        let segments = 3000_usize.div_ceil(SEGMENT) - 2500 / SEGMENT;
        assert_eq!((table.len(), table.segments.len()), (500, segments), "empty segments are given back");
        assert_eq!(table.get(TaskId(2600)).unwrap().tag, 2599);
        assert!(table.get(TaskId(0)).is_none() && table.get(TaskId(3001)).is_none());
        let newest: Vec<_> = table.iter_newest_first().map(|(id, _)| id).take(2).collect();
        assert_eq!(newest, [TaskId(3000), TaskId(2999)]);
        assert_eq!(table.insert(Task::sample(7)), TaskId(3001));
    }

    #[test]
    fn tasks_come_back_under_their_ids_however_far_apart() {
        let mut table = TaskTable::default();
        let ids = [5, 6, 1000, 5_000, 5_001, 3_000_000].map(TaskId);
        ids.iter().for_each(|&id| table.restore(id, Task::sample(id.0)));
        assert!(ids.iter().all(|&id| table.get(id).unwrap().tag == id.0));
        assert!(table.get(TaskId(7)).is_none() && table.get(TaskId(2_999_999)).is_none());
        assert_eq!(table.insert(Task::sample(0)), TaskId(3_000_001));
        table.reserve(TaskId(3_000_500));
        assert_eq!(table.insert(Task::sample(0)), TaskId(3_000_500));
        let newest: Vec<_> = table.iter_newest_first().map(|(id, _)| id.0).collect();
        assert_eq!(newest, [3_000_500, 3_000_001, 3_000_000, 5_001, 5_000, 1000, 6, 5]);
        for end in [0, 5, 6, 7, 5_001, 2_999_999, 3_000_000, 3_000_001, 3_000_400, 3_000_501, u64::MAX] {
            let before: Vec<_> = table.iter_before(TaskId(end)).map(|(id, _)| id.0).collect();
            assert!(before.iter().eq(newest.iter().filter(|&&id| id < end)), "{before:?} before {end}");
        }
        ids.iter().for_each(|&id| table.remove(id, |_| ()).unwrap());
        assert_eq!(table.len(), 2);
        assert!(table.segments.len() <= 500 / SEGMENT + 2, "empty segments are given back");
    }

    #[test]
    fn ids_that_are_very_far_apart_take_no_memory_between_them() {
        let mut table = TaskTable::default();
        let ids = [1, 2, 1 << 40, (1 << 40) + 1, (1 << 47) + 7].map(TaskId);
        ids.iter().for_each(|&id| table.restore(id, Task::sample(id.0)));
        assert!(table.segments.len() <= 2, "{} segments", table.segments.len());
        assert_eq!(table.insert(Task::sample(3)), TaskId((1 << 47) + 8));
        assert!(ids.iter().all(|&id| table.get(id).unwrap().tag == id.0 && table.get_mut(id).is_some()));
        assert!(table.get(TaskId(3)).is_none() && table.get(TaskId(1 << 45)).is_none());
        let newest: Vec<_> = table.iter_newest_first().map(|(id, _)| id).skip(1).collect();
        assert_eq!(newest, ids.iter().rev().copied().collect::<Vec<_>>());
        for id in ids {
            assert_eq!(table.remove(id, |task| task.tag), Some(id.0));
            assert!(table.remove(id, |_| ()).is_none());
        }
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_task_that_stays_does_not_keep_the_memory_of_those_that_go() {
        let mut table = TaskTable::default();
        let first = table.insert(Task::sample(0));
        for tag in 1..100_000 {
            let id = table.insert(Task::sample(tag));
            assert!(table.remove(id, |_| ()).is_some());
            assert!(table.get(id).is_none() && table.remove(id, |_| ()).is_none());
        }
        let room: usize = table.segments.iter().map(|segment| segment.entries.capacity()).sum();
        assert!(room <= 2 * SEGMENT, "room for {room} tasks");
        assert_eq!((table.len(), table.get(first).unwrap().tag), (1, 0));
        assert_eq!(table.insert(Task::sample(7)), TaskId(100_001));
        assert!(table.remove(first, |_| ()).is_some());
        assert!(table.segments.len() <= 2, "all before the last task are given back");
        assert_eq!(table.iter_newest_first().map(|(id, _)| id).collect::<Vec<_>>(), [TaskId(100_001)]);
    }

    #[test]
    fn ids_that_were_given_out_in_another_life_are_not_given_out_again() {
        let mut table = TaskTable::default();
        table.reserve(TaskId(42));
        assert_eq!(table.insert(Task::sample(0)), TaskId(42));
        assert!(table.get(TaskId(41)).is_none());
    }
}
