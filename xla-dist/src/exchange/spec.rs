//! What a collective does, and how that is written into the call's attributes and read from them.

use crate::ops::ReplicaGroups;
use xla_lazy::stablehlo::Reduction;
use xla_runtime::ffi::Call;

/// A collective of the members of a group. Members are named by their position in the group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Exchange {
    /// The combination of all operands.
    AllReduce(Reduction),
    /// All operands, one after the other.
    AllGather,
    /// One block each of the combination of all operands.
    ReduceScatter(Reduction),
    /// Block `j` goes to member `j`; what comes from member `i` becomes block `i`.
    AllToAll,
    /// One member's operand.
    Broadcast {
        /// That member.
        source: u32,
    },
    /// The operand of the member that a pair (source, target) names; zeros where none does.
    Permute(Vec<(u32, u32)>),
}

const REDUCTIONS: [Reduction; 6] = [
    Reduction::Sum,
    Reduction::Product,
    Reduction::Max,
    Reduction::Min,
    Reduction::And,
    Reduction::Or,
];

impl Exchange {
    /// A number for the kind, and the numbers that say the rest.
    fn numbers(&self) -> (i64, Vec<i64>) {
        let reduction = |op: &Reduction| REDUCTIONS.iter().position(|r| r == op).unwrap_or(0);
        match self {
            Exchange::AllReduce(op) => (0, vec![reduction(op) as i64]),
            Exchange::AllGather => (1, vec![]),
            Exchange::ReduceScatter(op) => (2, vec![reduction(op) as i64]),
            Exchange::AllToAll => (3, vec![]),
            Exchange::Broadcast { source } => (4, vec![i64::from(*source)]),
            Exchange::Permute(pairs) => {
                let flat = pairs
                    .iter()
                    .flat_map(|(s, t)| [i64::from(*s), i64::from(*t)]);
                (5, flat.collect())
            }
        }
    }

    fn of(kind: i64, numbers: &[i64]) -> Option<Exchange> {
        let reduction = || {
            REDUCTIONS
                .get(usize::try_from(*numbers.first()?).ok()?)
                .copied()
        };
        let member = |number: i64| u32::try_from(number).ok();
        Some(match kind {
            0 => Exchange::AllReduce(reduction()?),
            1 => Exchange::AllGather,
            2 => Exchange::ReduceScatter(reduction()?),
            3 => Exchange::AllToAll,
            4 => Exchange::Broadcast {
                source: member(*numbers.first()?)?,
            },
            5 => {
                let (pairs, _) = numbers.as_chunks::<2>();
                let pair = |[s, t]: &[i64; 2]| Some((member(*s)?, member(*t)?));
                Exchange::Permute(pairs.iter().map(pair).collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    /// The kind's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Exchange::AllReduce(_) => "all_reduce",
            Exchange::AllGather => "all_gather",
            Exchange::ReduceScatter(_) => "reduce_scatter",
            Exchange::AllToAll => "all_to_all",
            Exchange::Broadcast { .. } => "broadcast",
            Exchange::Permute(_) => "collective_permute",
        }
    }

    /// What tells this collective from others, whose messages must not meet its own.
    pub(super) fn words(&self) -> Vec<u64> {
        let (kind, numbers) = self.numbers();
        std::iter::once(kind)
            .chain(numbers)
            .map(|n| n as u64)
            .collect()
    }
}

/// The attributes of a call.
pub(super) fn attributes(exchange: &Exchange, groups: &ReplicaGroups) -> Vec<String> {
    let (kind, numbers) = exchange.numbers();
    let members: Vec<i64> = groups.members().map(i64::from).collect();
    vec![
        format!("kind = {kind} : i64"),
        format!("numbers = {}", array(&numbers)),
        format!("group_size = {} : i64", groups.size()),
        format!("members = {}", array(&members)),
    ]
}

/// At least one number: StableHLO's parser and the plugin's differ about arrays of none.
fn array(numbers: &[i64]) -> String {
    let list: Vec<String> = numbers.iter().map(i64::to_string).collect();
    match list.is_empty() {
        true => "array<i64: -1>".into(),
        false => format!("array<i64: {}>", list.join(", ")),
    }
}

/// A call as one member sees it.
pub(super) struct Spec<'c> {
    pub(super) exchange: Exchange,
    /// Which collective of the program it belongs to, and which of that one's calls it is.
    pub(super) collective: usize,
    pub(super) call: usize,
    group_size: usize,
    members: &'c [i64],
}

impl<'c> Spec<'c> {
    /// `None` for attributes that nobody wrote.
    pub(super) fn read(call: &Call<'c>) -> Option<Self> {
        let count = |name| usize::try_from(call.attribute_i64(name)?).ok();
        let numbers = match call.attribute_i64s("numbers")? {
            [-1] => &[],
            numbers => numbers,
        };
        Some(Spec {
            exchange: Exchange::of(call.attribute_i64("kind")?, numbers)?,
            collective: count("collective")?,
            call: count("call")?,
            group_size: count("group_size").filter(|size| *size > 0)?,
            members: call.attribute_i64s("members")?,
        })
    }

    /// The group of a member: its number, and who is in it.
    pub(super) fn group_of(&self, member: usize) -> Option<(usize, Vec<usize>)> {
        let mut groups = self.members.chunks_exact(self.group_size).enumerate();
        let (number, group) = groups.find(|(_, group)| group.contains(&(member as i64)))?;
        Some((
            number,
            group.iter().map(|member| *member as usize).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for exchange in [
            Exchange::AllReduce(Reduction::Max),
            Exchange::AllGather,
            Exchange::ReduceScatter(Reduction::Sum),
            Exchange::AllToAll,
            Exchange::Broadcast { source: 3 },
            Exchange::Permute(vec![(0, 1), (2, 0)]),
            Exchange::Permute(vec![]),
        ] {
            let (kind, numbers) = exchange.numbers();
            assert_eq!(Exchange::of(kind, &numbers), Some(exchange));
        }
        assert_eq!(Exchange::of(0, &[6]), None);
        assert_eq!(Exchange::of(6, &[]), None);
    }

    #[test]
    fn attributes_are_stablehlos() {
        let halves = ReplicaGroups::partition(&[vec![0, 2], vec![1, 3]]);
        let written = attributes(&Exchange::AllGather, &halves);
        assert_eq!(
            written,
            [
                "kind = 1 : i64",
                "numbers = array<i64: -1>",
                "group_size = 2 : i64",
                "members = array<i64: 0, 2, 1, 3>"
            ]
        );
    }

    #[test]
    fn a_member_finds_its_group() {
        let spec = Spec {
            exchange: Exchange::AllGather,
            collective: 0,
            call: 0,
            group_size: 2,
            members: &[0, 2, 3, 1],
        };
        assert_eq!(spec.group_of(1), Some((1, vec![3, 1])));
        assert_eq!(spec.group_of(4), None);
    }
}
