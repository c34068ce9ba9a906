//! A tensor's reference to its storage, and what becomes of it when the tensor is dropped.

use crate::storage::Storage;
use crate::trace;
use std::ops::Deref;
use std::sync::Arc;

/// A reference to a storage that gives itself back: most values are dropped by the thread that
/// recorded them as soon as the next ones are made of them. Such a reference is spent, not dropped:
/// the next value recorded takes it over with the storage, and nothing is counted.
pub(crate) struct Handle(Option<Arc<Storage>>);

impl Handle {
    pub(crate) fn new(storage: Arc<Storage>) -> Self {
        Handle(Some(storage))
    }
}

impl Deref for Handle {
    type Target = Arc<Storage>;

    #[inline]
    fn deref(&self) -> &Arc<Storage> {
        match &self.0 {
            Some(storage) => storage,
            None => unreachable!("only `drop` takes the storage"),
        }
    }
}

impl Clone for Handle {
    #[inline]
    fn clone(&self) -> Self {
        Handle(self.0.clone())
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        let Some(storage) = self.0.take() else {
            return;
        };
        match storage.is_spent_by_drop() {
            true => trace::spend(storage),
            false => storage.handle_dropped(),
        }
    }
}
