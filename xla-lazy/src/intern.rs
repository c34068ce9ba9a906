//! Values kept once for all operators that have them as an attribute.

use crate::hash::{self, Hash128};
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Mutex, OnceLock, PoisonError};

type Kept = &'static (dyn Any + Send + Sync);

/// A large attribute, interned: equal ones are the same reference, so to compare and to hash one costs
/// nothing however large it is. It lives as long as the process, as every operator with attributes
/// does.
pub(crate) struct Interned<T: 'static> {
    value: &'static T,
    hash: Hash128,
}

impl<T: Eq + Hash + Send + Sync + 'static> Interned<T> {
    /// The value; `kind` goes into its hash.
    pub(crate) fn new(kind: &str, new: T) -> Self {
        static ALL: OnceLock<Mutex<HashMap<Hash128, Vec<Kept>>>> = OnceLock::new();
        let hash = hash::extend(hash::name(kind), &new);
        let mut all = ALL
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let bucket = all.entry(hash).or_default();
        let mut of_type = bucket.iter().filter_map(|&kept| kept.downcast_ref::<T>());
        let known = of_type.find(|known| **known == new);
        let value = known.unwrap_or_else(|| {
            let new: &'static T = Box::leak(Box::new(new));
            bucket.push(new);
            new
        });
        Interned { value, hash }
    }
}

impl<T> Interned<T> {
    pub(crate) fn get(self) -> &'static T {
        self.value
    }

    /// A number that names the value in this process.
    pub(crate) fn number(self) -> usize {
        std::ptr::from_ref(self.value).addr()
    }
}

impl<T> Clone for Interned<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Interned<T> {}

impl<T> Deref for Interned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> PartialEq for Interned<T> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.value, other.value)
    }
}

impl<T> Eq for Interned<T> {}

impl<T> Hash for Interned<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl<T: fmt::Debug> fmt::Debug for Interned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
