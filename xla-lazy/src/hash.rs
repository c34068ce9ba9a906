//! A 128-bit hash that is the same on every run, rank and machine: the key of a program.
//!
//! Two 64-bit lanes, each bijective in its state. A pair of words is premixed by two independent
//! folded multiplications, so the lanes' difference varies with the input and the pair is a true
//! 128-bit key. Equal keys are nevertheless compared word by word before a program is reused; the
//! hash only has to make that comparison rare.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The two lanes.
pub(crate) type Hash128 = [u64; 2];

const K: [u64; 6] = [
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
];

const fn folded(a: u64, b: u64) -> u64 {
    let wide = (a as u128).wrapping_mul(b as u128);
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Where every chain begins.
pub(crate) const SEED: Hash128 = [K[2], K[3]];

/// Folds two words into a chain.
#[inline]
pub(crate) const fn fold(state: Hash128, a: u64, b: u64) -> Hash128 {
    let p = folded(a ^ K[0], b ^ K[1]);
    let q = folded(a ^ K[4], b.rotate_left(32) ^ K[5]);
    [
        (state[0].rotate_left(23) ^ p).wrapping_mul(K[0]),
        (state[1].rotate_left(29) ^ q).wrapping_mul(K[3]),
    ]
}

/// The hash of a name, computable at compile time.
pub(crate) const fn name(text: &str) -> Hash128 {
    let bytes = text.as_bytes();
    let mut state = fold(SEED, bytes.len() as u64, 0);
    let mut i = 0;
    while i < bytes.len() {
        state = fold(state, bytes[i] as u64, i as u64);
        i += 1;
    }
    state
}

/// [`Hasher`] over the same fold, so that attributes can derive `Hash`.
pub(crate) struct Stable(Hash128);

/// A map with keys that no user chooses: one that defends against chosen ones is several times as
/// slow.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Stable>>;

impl Default for Stable {
    fn default() -> Self {
        Stable(SEED)
    }
}

impl Stable {
    pub(crate) fn new(state: Hash128) -> Self {
        Stable(state)
    }

    pub(crate) fn lanes(&self) -> Hash128 {
        self.0
    }
}

impl Hasher for Stable {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = fold(self.0, bytes.len() as u64, 1);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = fold(self.0, u64::from_le_bytes(word), 2);
        }
    }

    fn write_u8(&mut self, i: u8) {
        self.write_u64(i.into());
    }

    fn write_u32(&mut self, i: u32) {
        self.write_u64(i.into());
    }

    fn write_u64(&mut self, i: u64) {
        self.0 = fold(self.0, i, 3);
    }

    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }

    fn write_isize(&mut self, i: isize) {
        self.write_u64(i as u64);
    }

    fn finish(&self) -> u64 {
        self.0[0]
    }
}

/// `state` continued with everything that `value` hashes.
pub(crate) fn extend<T: Hash + ?Sized>(state: Hash128, value: &T) -> Hash128 {
    let mut hasher = Stable::new(state);
    value.hash(&mut hasher);
    hasher.lanes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn order_and_position_matter() {
        let a = fold(fold(SEED, 1, 2), 3, 4);
        assert_ne!(a, fold(fold(SEED, 3, 4), 1, 2));
        assert_ne!(fold(SEED, 1, 2), fold(SEED, 2, 1));
    }

    /// Birthday bound: 2^16 chains that differ in one small word never share even one lane of 64
    /// bits, and the lanes' difference is not constant (which would make it a 64-bit key).
    #[test]
    fn lanes_are_independent() {
        let chains: Vec<_> = (0..1u64 << 16).map(|i| fold(SEED, i, 7)).collect();
        let distinct = |f: fn(&Hash128) -> u64| chains.iter().map(f).collect::<HashSet<_>>().len();
        assert_eq!(distinct(|h| h[0]), chains.len());
        assert_eq!(distinct(|h| h[1]), chains.len());
        assert_eq!(distinct(|h| h[0] ^ h[1]), chains.len());
    }

    #[test]
    fn the_same_everywhere() {
        assert_eq!(name("add"), name("add"));
        assert_ne!(name("add"), name("and"));
        assert_eq!(extend(name("add"), &()), name("add"));
    }
}
