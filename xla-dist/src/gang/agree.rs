//! What a set of proposals settles on: a pure function, so that every rule is tested without
//! threads.

use std::collections::BTreeSet;
use std::sync::Arc;
use xla_core::Error;
use xla_lazy::{Proposal, Settlement};

/// The answer to one round of proposals.
#[derive(Debug)]
pub(super) enum Agreement {
    /// All run the same.
    Run(Settlement),
    /// Some members first run a part alone (how many operators), the others wait for them.
    Align(Vec<Option<usize>>),
    /// The programs differ.
    Diverged(Error),
}

/// Settles the proposals of all members; `ranks` are their global ranks, for errors.
///
/// The program is the shortest of the proposals, if it is a prefix of all others: a replica that is
/// further ahead cuts there. Else it is what all have in common, if that holds a collective. Every value that some replica needs is an output on all, and
/// a buffer is overwritten only where all replicas allow it, since one compiled program serves all.
pub(super) fn agree(proposals: &[Arc<dyn Proposal>], ranks: &[usize]) -> Agreement {
    let len = proposals.iter().map(|p| p.len()).min().unwrap_or(0);
    if len == 0 {
        return Agreement::Diverged(Error::Internal {
            what: "gang",
            expected: "proposals with at least one operator".into(),
        });
    }
    let chain = proposals[0].chain(len);
    if proposals.iter().all(|p| p.chain(len) == chain) {
        return Agreement::Run(merge(proposals, len));
    }
    let steps: Vec<Option<usize>> = (0..proposals.len())
        .map(|m| catch_up(proposals, m))
        .collect();
    if steps.iter().any(Option::is_some) {
        return Agreement::Align(steps);
    }
    // What one rank goes on to compute by itself, of a loss it has reduced say, is its own business
    // as long as the collectives before it are the same: all run up to where they part.
    let common = common_prefix(proposals);
    if proposals[0].has_collective(common) {
        return Agreement::Run(merge(proposals, common));
    }
    Agreement::Diverged(divergence(proposals, ranks))
}

/// How many operators all members have recorded alike.
fn common_prefix(proposals: &[Arc<dyn Proposal>]) -> usize {
    let members = 1..proposals.len();
    members
        .map(|member| equal_operators(proposals, member))
        .min()
        .unwrap_or(proposals[0].len())
}

/// How many operators a member has recorded like the first member, up to the shortest proposal.
fn equal_operators(proposals: &[Arc<dyn Proposal>], member: usize) -> usize {
    let len = proposals.iter().map(|p| p.len()).min().unwrap_or(0);
    let (first, member) = (&proposals[0], &proposals[member]);
    if member.chain(len) == first.chain(len) {
        return len;
    }
    // Chains agree up to the first difference and never again: search for it by halves.
    let (mut same, mut differ) = (0, len);
    while differ - same > 1 {
        let middle = same + (differ - same) / 2;
        if member.chain(middle) == first.chain(middle) {
            same = middle;
        } else {
            differ = middle;
        }
    }
    same
}

fn merge(proposals: &[Arc<dyn Proposal>], len: usize) -> Settlement {
    let live: BTreeSet<u32> = proposals.iter().flat_map(|p| p.live(len)).collect();
    let mut donors = proposals[0].donors(len);
    for other in &proposals[1..] {
        let allowed: BTreeSet<u32> = other.donors(len).into_iter().collect();
        donors.retain(|donor| allowed.contains(donor));
    }
    Settlement::Run {
        len,
        live: live.into_iter().collect(),
        donors,
    }
}

/// How many operators `member` must run alone to stand where some other member stands, which ran
/// them already: one that read a value before the collective, say.
///
/// Only programs that the member has not run itself count, so members cannot chase each other:
/// each answer brings it one program closer to what the gang as a whole has run.
fn catch_up(proposals: &[Arc<dyn Proposal>], member: usize) -> Option<usize> {
    let own = &proposals[member];
    let others = proposals
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != member);
    others.into_iter().find_map(|(_, other)| {
        let mut done = own.flushed().to_vec();
        let mut ahead = other.flushed().iter().filter(|program| {
            match done.iter().position(|ran| ran == *program) {
                Some(at) => {
                    done.swap_remove(at);
                    false
                }
                None => true,
            }
        });
        let next = ahead.find(|(len, hash)| *len < own.len() && own.chain(*len) == *hash);
        next.map(|(len, _)| *len)
    })
}

/// The first operator that a member recorded otherwise than the first member.
fn divergence(proposals: &[Arc<dyn Proposal>], ranks: &[usize]) -> Error {
    let len = proposals.iter().map(|p| p.len()).min().unwrap_or(0);
    let first = &proposals[0];
    let found = (1..proposals.len())
        .map(|member| (equal_operators(proposals, member), member))
        .min()
        .filter(|(equal, _)| *equal < len);
    match found {
        Some((index, member)) => Error::Divergence {
            index,
            rank: ranks[member],
            left: proposals[member].describe(index),
            other_rank: ranks[0],
            right: first.describe(index),
        },
        None => Error::Internal {
            what: "gang",
            expected: "a member that differs".into(),
        },
    }
}

#[cfg(test)]
pub(in crate::gang) mod tests {
    use super::*;
    use xla_lazy::Collective;

    /// A proposal made of operator names.
    #[derive(Clone, Default)]
    pub(in crate::gang) struct Fake {
        pub(in crate::gang) names: Vec<&'static str>,
        pub(in crate::gang) live: Vec<u32>,
        pub(in crate::gang) donors: Vec<u32>,
        pub(in crate::gang) flushed: Vec<(usize, [u64; 2])>,
    }

    impl Fake {
        pub(in crate::gang) fn of(names: &[&'static str]) -> Self {
            Fake {
                names: names.to_vec(),
                ..Fake::default()
            }
        }

        /// The same, after having run these programs alone.
        pub(in crate::gang) fn after(mut self, programs: &[&[&'static str]]) -> Self {
            self.flushed = programs
                .iter()
                .map(|names| (names.len(), Fake::of(names).chain(names.len())))
                .collect();
            self
        }

        pub(in crate::gang) fn share(self) -> Arc<dyn Proposal> {
            Arc::new(self)
        }
    }

    impl Proposal for Fake {
        fn len(&self) -> usize {
            self.names.len()
        }

        fn has_collective(&self, n: usize) -> bool {
            !self.collectives(n).is_empty()
        }

        fn collectives(&self, n: usize) -> Vec<Collective> {
            let names = self.names[..n].iter().enumerate();
            names
                .filter(|(_, name)| name.starts_with("all_reduce"))
                .map(|(index, name)| Collective {
                    index,
                    fingerprint: Fake::of(&[name]).chain(1),
                    location: std::panic::Location::caller(),
                })
                .collect()
        }

        fn chain(&self, n: usize) -> [u64; 2] {
            let mut chain = [1, 2];
            for byte in self.names[..n]
                .iter()
                .flat_map(|name| name.bytes().chain([0]))
            {
                chain[0] = (chain[0] ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                chain[1] = (chain[1] ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            chain
        }

        fn describe(&self, index: usize) -> String {
            format!("{} f32[2] at train.rs:7", self.names[index])
        }

        fn live(&self, n: usize) -> Vec<u32> {
            self.live
                .iter()
                .copied()
                .filter(|i| (*i as usize) < n)
                .collect()
        }

        fn donors(&self, n: usize) -> Vec<u32> {
            self.donors
                .iter()
                .copied()
                .filter(|i| (*i as usize) < n)
                .collect()
        }

        fn flushed(&self) -> &[(usize, [u64; 2])] {
            &self.flushed
        }
    }

    fn check(proposals: &[Fake]) -> Agreement {
        let shared: Vec<_> = proposals.iter().cloned().map(Fake::share).collect();
        let ranks: Vec<usize> = (0..shared.len()).collect();
        agree(&shared, &ranks)
    }

    #[test]
    fn the_shortest_prefix_runs_with_all_live_and_common_donors() {
        let names = ["parameter x", "mul", "all_reduce", "add", "exp"];
        let a = Fake {
            live: vec![2, 4],
            donors: vec![0, 1],
            ..Fake::of(&names)
        };
        let b = Fake {
            live: vec![1, 2],
            donors: vec![0],
            ..Fake::of(&names[..3])
        };
        let c = Fake {
            live: vec![2, 3],
            donors: vec![0, 2],
            ..Fake::of(&names[..4])
        };
        match check(&[a, b, c]) {
            Agreement::Run(settlement) => assert_eq!(
                settlement,
                Settlement::Run {
                    len: 3,
                    live: vec![1, 2],
                    donors: vec![0]
                }
            ),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let a = Fake::of(&["parameter x", "mul", "exp", "all_reduce"]);
        let b = Fake::of(&["parameter x", "mul", "exp", "all_reduce", "add"]);
        let c = Fake::of(&["parameter x", "mul", "log", "all_reduce"]);
        match check(&[a, b, c]) {
            Agreement::Diverged(Error::Divergence {
                index,
                rank,
                left,
                other_rank,
                right,
            }) => {
                assert_eq!((index, rank, other_rank), (2, 2, 0));
                assert!(
                    left.starts_with("log") && right.starts_with("exp"),
                    "{left} {right}"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_the_last_common_collective_may_differ() {
        let a = Fake::of(&["parameter x", "all_reduce", "mul", "narrow"]);
        let b = Fake::of(&["parameter x", "all_reduce", "mul", "exp", "log"]);
        match check(&[a, b]) {
            Agreement::Run(Settlement::Run { len, .. }) => assert_eq!(len, 3),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_difference_at_either_end_is_found() {
        for (at, length) in [(0, 1), (0, 5), (4, 5), (1, 2)] {
            let mut names = vec!["same"; length];
            let a = Fake::of(&names);
            names[at] = "other";
            match check(&[a, Fake::of(&names)]) {
                Agreement::Diverged(Error::Divergence { index, .. }) => assert_eq!(index, at),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn who_lags_behind_an_early_read_catches_up() {
        // Rank 1 ran the product alone; it is a parameter in what that rank proposes.
        let early = ["parameter x", "mul"];
        let a = Fake::of(&["parameter x", "mul", "exp", "all_reduce", "log"]);
        let b = Fake::of(&["parameter product", "exp", "all_reduce"]).after(&[&early]);
        match check(&[a.clone(), b, a]) {
            Agreement::Align(steps) => assert_eq!(steps, [Some(2), None, Some(2)]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn early_reads_are_caught_up_with_one_by_one() {
        let (first, second) = (["parameter x", "mul"], ["parameter product", "exp"]);
        let b = Fake::of(&["parameter v", "all_reduce"]).after(&[&first, &second]);
        let a = Fake::of(&["parameter product", "exp", "all_reduce"]).after(&[&first]);
        match check(&[a, b]) {
            Agreement::Align(steps) => assert_eq!(steps, [Some(2), None]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_that_both_have_run_is_not_run_again() {
        let common = ["parameter x", "mul"];
        let a = Fake::of(&["parameter x", "mul", "exp", "all_reduce"]).after(&[&common]);
        let b = Fake::of(&["parameter x", "all_reduce"]).after(&[&common]);
        assert!(matches!(
            check(&[a, b]),
            Agreement::Diverged(Error::Divergence { .. })
        ));
    }

    #[test]
    fn an_early_read_does_not_excuse_a_difference() {
        let a = Fake::of(&["parameter x", "mul", "exp", "all_reduce"]);
        let b = Fake::of(&["parameter v", "log", "all_reduce"]).after(&[&["parameter x", "div"]]);
        assert!(matches!(
            check(&[a, b]),
            Agreement::Diverged(Error::Divergence { .. })
        ));
    }
}
