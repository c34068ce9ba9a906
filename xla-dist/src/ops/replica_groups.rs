//! Which members of a gang, or devices of a mesh, communicate with which.

use std::sync::Arc;
use xla_core::Result;
use xla_lazy::spmd::{Mesh, SpecAxes};
use xla_lazy::stablehlo::Func;

/// A partition of the gang's members (their positions) into groups of one size, each of which
/// communicates within itself. Or one of a mesh's devices, into groups within which they differ along
/// some axes only.
///
/// It is an attribute of every collective: the same on all members, and cheap to clone, since each
/// record clones it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ReplicaGroups {
    groups: Arc<[Vec<u32>]>,
    /// The axes of the mesh; `None` between the replicas of a gang.
    axes: Option<SpecAxes>,
}

impl ReplicaGroups {
    /// One group of all `size` members.
    pub(crate) fn all(size: usize) -> Self {
        ReplicaGroups {
            groups: Arc::new([(0..size as u32).collect()]),
            axes: None,
        }
    }

    /// These groups, which have one size and together hold each member of the gang once.
    pub(crate) fn partition(groups: &[Vec<usize>]) -> Self {
        let group = |members: &Vec<usize>| members.iter().map(|m| *m as u32).collect();
        ReplicaGroups {
            groups: groups.iter().map(group).collect(),
            axes: None,
        }
    }

    /// The devices of a mesh, grouped along these axes.
    ///
    /// # Errors
    /// As [`Mesh::groups`].
    #[track_caller]
    pub(crate) fn along(mesh: &Mesh, axes: &SpecAxes) -> Result<Self> {
        Ok(ReplicaGroups {
            axes: Some(axes.clone()),
            ..Self::partition(&mesh.groups(axes.clone())?)
        })
    }

    /// The axes of a mesh that the groups are along, if they are devices of one.
    pub(crate) fn axes(&self) -> Option<&SpecAxes> {
        self.axes.as_ref()
    }

    /// Members of each group.
    pub(crate) fn size(&self) -> usize {
        self.groups.first().map_or(0, Vec::len)
    }

    /// The members, group after group.
    pub(crate) fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.iter().flatten().copied()
    }

    /// The attributes of a collective that say who communicates. Members are numbered by replica or,
    /// in a partitioned program, by partition, which takes a channel.
    pub(crate) fn attributes(&self, f: &mut Func) -> String {
        match self.axes {
            None => self.attribute(),
            Some(_) => format!("{}, use_global_device_ids", self.exchange_attributes(f)),
        }
    }

    /// [`ReplicaGroups::attributes`] of `all_to_all`, which takes all numbers as those of partitions
    /// where it has a channel.
    pub(crate) fn exchange_attributes(&self, f: &mut Func) -> String {
        match self.axes {
            None => self.attribute(),
            Some(_) => format!("{}, {}", f.next_channel(), self.attribute()),
        }
    }

    /// The `replica_groups` attribute.
    fn attribute(&self) -> String {
        format!(
            "replica_groups = dense<{:?}> : tensor<{}x{}xi64>",
            self.groups,
            self.groups.len(),
            self.size()
        )
    }

    /// The attributes of a permutation: pairs of positions in a group, for every group.
    pub(crate) fn pairs_attributes(&self, f: &mut Func, pairs: &[(u32, u32)]) -> String {
        match self.axes {
            None => self.pairs_attribute(pairs),
            Some(_) => format!("{}, {}", f.next_channel(), self.pairs_attribute(pairs)),
        }
    }

    fn pairs_attribute(&self, pairs: &[(u32, u32)]) -> String {
        let all: Vec<[u32; 2]> = self
            .groups
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
