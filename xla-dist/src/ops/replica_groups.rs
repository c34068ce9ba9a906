//! Which members of a gang communicate with which.

use std::sync::Arc;

/// A partition of the gang's members (their positions) into groups of one size, each of which
/// communicates within itself.
///
/// It is an attribute of every collective: the same on all members, and cheap to clone, since each
/// record clones it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ReplicaGroups(Arc<[Vec<u32>]>);

impl ReplicaGroups {
    /// One group of all `size` members.
    pub(crate) fn all(size: usize) -> Self {
        ReplicaGroups(Arc::new([(0..size as u32).collect()]))
    }

    /// These groups, which have one size and together hold each member of the gang once.
    pub(crate) fn partition(groups: &[Vec<usize>]) -> Self {
        let group = |members: &Vec<usize>| members.iter().map(|m| *m as u32).collect();
        ReplicaGroups(groups.iter().map(group).collect())
    }

    /// Members of each group.
    pub(crate) fn size(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// The members, group after group.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flatten().copied()
    }

    /// The `replica_groups` attribute.
    pub(crate) fn attribute(&self) -> String {
        format!(
            "replica_groups = dense<{:?}> : tensor<{}x{}xi64>",
            self.0,
            self.0.len(),
            self.size()
        )
    }

    /// The `source_target_pairs` attribute: pairs of positions in a group, for every group.
    pub(crate) fn pairs_attribute(&self, pairs: &[(u32, u32)]) -> String {
        let all: Vec<[u32; 2]> = self
            .0
            .iter()
            .flat_map(|group| {
                let member = |position: u32| group[position as usize];
                pairs.iter().map(move |&(s, t)| [member(s), member(t)])
            })
            .collect();
        format!(
            "source_target_pairs = dense<{all:?}> : tensor<{}x2xi64>",
            all.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_holds_all_members() {
        let attribute = "replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>";
        assert_eq!(ReplicaGroups::all(3).attribute(), attribute);
    }

    #[test]
    fn pairs_of_positions_are_pairs_of_members_in_every_group() {
        let halves = ReplicaGroups::partition(&[vec![0, 2], vec![1, 3]]);
        assert_eq!(
            halves.pairs_attribute(&[(1, 0)]),
            "source_target_pairs = dense<[[2, 0], [3, 1]]> : tensor<2x2xi64>"
        );
    }
}
