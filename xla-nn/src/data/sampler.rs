//! Which samples a replica sees, and in which order: a pure function of lengths, seed and epoch.

/// The order in which one replica of `world_size` goes through a dataset: PyTorch's
/// `DistributedSampler`.
///
/// Every replica permutes the whole dataset with the same seed and epoch, so no communication is
/// needed; replica `rank` then takes every `world_size`-th sample. Where the dataset does not
/// divide evenly it is continued from its start, so that all replicas get equally many samples and
/// none waits in a collective for one that has finished.
///
/// Taking every `world_size`-th sample makes the replicas' `k`-th batches together exactly the
/// `k`-th batch that one replica with the whole batch size would see.
///
/// ```
/// use xla_nn::data::Sampler;
/// let sampler = Sampler::new(5).distributed(1, 2);
/// assert_eq!(sampler.order(0), [1, 3, 0]); // rank 0 sees 0, 2, 4
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    len: usize,
    seed: Option<u64>,
    rank: usize,
    world_size: usize,
}

impl Sampler {
    /// All of `len` samples, in order, on one replica.
    pub fn new(len: usize) -> Self {
        Sampler {
            len,
            seed: None,
            rank: 0,
            world_size: 1,
        }
    }

    /// A random order, another one each epoch. Replicas must give the same seed.
    #[must_use]
    pub fn shuffle(self, seed: u64) -> Self {
        Sampler {
            seed: Some(seed),
            ..self
        }
    }

    /// The share of replica `rank` of `world_size`. A rank beyond the world gets nothing.
    #[must_use]
    pub fn distributed(self, rank: usize, world_size: usize) -> Self {
        Sampler {
            rank,
            world_size,
            ..self
        }
    }

    /// Number of samples this replica sees in an epoch; the same on every replica.
    pub fn samples(&self) -> usize {
        if self.rank < self.world_size {
            self.len.div_ceil(self.world_size)
        } else {
            0
        }
    }

    /// The samples' indices for this epoch, in order.
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        let order: Vec<usize> = match self.seed {
            Some(seed) => permutation(self.len, seed.wrapping_add(epoch)),
            None => (0..self.len).collect(),
        };
        (0..self.samples())
            .map(|i| order[(self.rank + i * self.world_size) % self.len])
            .collect()
    }
}

/// A uniformly random permutation of `0..len` (Fisher and Yates), the same on every platform.
fn permutation(len: usize, seed: u64) -> Vec<usize> {
    // Seeds of successive epochs differ by one: mixing first keeps their streams apart.
    let mut state = mix(seed);
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The high word of the product is uniform in 0..=last, up to a bias of len / 2^64.
        let pick = (u128::from(mix(state)) * (last as u128 + 1)) >> 64;
        order.swap(last, pick as usize);
    }
    order
}

/// The finaliser of SplitMix64: each input bit changes each output bit with probability one half.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut order: Vec<usize>) -> Vec<usize> {
        order.sort_unstable();
        order
    }

    #[test]
    fn shuffling_permutes_differently_each_epoch_and_repeats_with_the_seed() {
        let sampler = Sampler::new(100).shuffle(7);
        let first = sampler.order(0);
        assert_eq!(sorted(first.clone()), (0..100).collect::<Vec<_>>());
        assert_ne!(first, (0..100).collect::<Vec<_>>());
        assert_ne!(first, sampler.order(1));
        assert_eq!(first, Sampler::new(100).shuffle(7).order(0));
        assert_ne!(first, Sampler::new(100).shuffle(8).order(0));
    }

    #[test]
    fn every_position_gets_every_sample_equally_often() {
        // 6000 permutations of 3: each of the 6 orders is expected 1000 times, standard deviation
        // 29; a shuffle that never leaves an element in place gives 0 for four of them.
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..6000 {
            *counts
                .entry(Sampler::new(3).shuffle(1).order(epoch))
                .or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(
            counts.values().all(|c| (850..1150).contains(c)),
            "{counts:?}"
        );
    }

    #[test]
    fn shares_cover_the_dataset_and_are_equally_long() {
        for (len, world_size) in [(10, 4), (8, 4), (3, 8), (1, 4), (0, 4), (2000, 3)] {
            let shares: Vec<Vec<usize>> = (0..world_size)
                .map(|rank| {
                    Sampler::new(len)
                        .shuffle(3)
                        .distributed(rank, world_size)
                        .order(2)
                })
                .collect();
            assert!(shares.iter().all(|s| s.len() == len.div_ceil(world_size)));
            let mut all = sorted(shares.concat());
            all.dedup();
            assert_eq!(all, (0..len).collect::<Vec<_>>(), "{len} over {world_size}");
        }
    }

    #[test]
    fn batches_of_all_ranks_make_the_batches_of_one() {
        let whole = Sampler::new(24).shuffle(5).order(1);
        let shares: Vec<Vec<usize>> = (0..4)
            .map(|rank| Sampler::new(24).shuffle(5).distributed(rank, 4).order(1))
            .collect();
        for step in 0..3 {
            let together = shares
                .iter()
                .flat_map(|s| s[step * 2..][..2].to_vec())
                .collect();
            assert_eq!(sorted(together), sorted(whole[step * 8..][..8].to_vec()));
        }
    }

    #[test]
    fn a_rank_outside_the_world_gets_nothing() {
        assert_eq!(Sampler::new(5).distributed(2, 2).order(0), [0usize; 0]);
        assert_eq!(Sampler::new(5).distributed(0, 0).order(0), [0usize; 0]);
    }
}
