//! Which members of a group are in which process.

/// The members of a group (their positions, ascending by global rank), by the process that each is
/// in. A process may have any of them; one that has none is not in the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// One list a process of the set, each ascending and not empty.
    processes: Vec<Vec<u32>>,
    /// Where each of them stands among all processes of the world.
    in_world: Vec<usize>,
    /// Global ranks, in member order.
    ranks: Vec<usize>,
    /// Which process of the set this one is.
    own: usize,
}

impl Layout {
    /// The layout of the group of `ranks`, which are ascending. `process_of` says in which process a
    /// global rank is; `own` is this process. `None` if this process has no member.
    pub(crate) fn new(
        ranks: &[usize],
        process_of: impl Fn(usize) -> usize,
        own: usize,
    ) -> Option<Layout> {
        let mut all: Vec<usize> = ranks.iter().map(|rank| process_of(*rank)).collect();
        let of_member = all.clone();
        all.sort_unstable();
        all.dedup();
        let members_of = |process: &usize| {
            (0_u32..)
                .zip(&of_member)
                .filter(|(_, of)| *of == process)
                .map(|(member, _)| member)
                .collect()
        };
        Some(Layout {
            in_world: all.clone(),
            own: all.binary_search(&own).ok()?,
            processes: all.iter().map(members_of).collect(),
            ranks: ranks.to_vec(),
        })
    }

    /// How many processes have members.
    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Which of them this one is.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// The process of the set that has this place among all processes of the world.
    pub(crate) fn of_world(&self, process: usize) -> Option<usize> {
        self.in_world.binary_search(&process).ok()
    }

    /// The members in a process of the set.
    pub(crate) fn members(&self, process: usize) -> &[u32] {
        self.processes.get(process).map_or(&[], Vec::as_slice)
    }

    /// The members in this process.
    pub(crate) fn local(&self) -> &[u32] {
        self.members(self.own)
    }

    /// Global ranks of all members.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Global ranks of the members in a process of the set.
    pub(crate) fn ranks_in(&self, process: usize) -> impl Iterator<Item = usize> + '_ {
        self.members(process)
            .iter()
            .filter_map(|member| self.ranks.get(*member as usize).copied())
    }

    /// Which process of the set has a global rank.
    pub(crate) fn process_of(&self, rank: usize) -> Option<usize> {
        (0..self.processes()).find(|process| self.ranks_in(*process).any(|r| r == rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_by_process_whatever_the_group() {
        // Three processes of two replicas each; the group has none of the second process.
        let layout = Layout::new(&[0, 1, 5], |rank| rank / 2, 2);
        let layout = layout.as_ref().unwrap();
        assert_eq!((layout.processes(), layout.own()), (2, 1));
        assert_eq!(layout.members(0), [0, 1]);
        assert_eq!(layout.local(), [2]);
        assert_eq!(layout.ranks_in(1).collect::<Vec<_>>(), [5]);
        assert_eq!(layout.process_of(5), Some(1));
        assert_eq!((layout.of_world(2), layout.of_world(1)), (Some(1), None));
        assert_eq!(layout.process_of(4), None);
        assert_eq!(Layout::new(&[0, 1, 5], |rank| rank / 2, 1), None);
    }
}
