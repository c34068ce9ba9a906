//! Views: a tensor that shows part of another's value, or its value in another arrangement.
//!
//! A view holds no value. Reading it records the operators that derive it from its storage;
//! writing through it records the operators that put the change back into its storage, so the base
//! and all sibling views see it.

use crate::grad::{Hooks, Leaf};
use crate::op::{Number, OpEntry, Operand};
use crate::trace::Slot;
use crate::{Tensor, Ty};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use xla_core::{Result, Shape};

/// Strides in elements, one an axis; a broadcast axis has 0.
pub type Strides = SmallVec<[i64; 6]>;

/// What makes an operator a view operator.
pub trait ViewRule: Send + Sync {
    /// The input with its part that this operator shows replaced by `value`.
    ///
    /// # Errors
    /// When the view cannot be written through (an expanded one).
    fn write(&self, input: &Tensor, value: &Tensor, numbers: &[Number]) -> Result<Tensor>;

    /// Whether the result is the whole input as it is, so that reading it needs no program.
    fn shows_all(&self) -> bool {
        false
    }

    /// The result's strides, from the input's. `None` where elements in this order would not lie
    /// at constant strides, so that PyTorch would copy.
    fn strides(&self, input: &Shape, strides: &[i64], output: &Shape) -> Option<Strides>;

    /// How far the first element lies behind the input's first, in elements of the storage, given
    /// the input's strides.
    fn offset(&self, strides: &[i64], numbers: &[Number]) -> i64 {
        let _ = (strides, numbers);
        0
    }
}

/// One step of a view chain, from the storage outwards.
pub(crate) struct View {
    pub(crate) parent: Option<Arc<View>>,
    pub(crate) entry: &'static OpEntry,
    pub(crate) numbers: SmallVec<[Number; 2]>,
    pub(crate) ty: Ty,
    pub(crate) strides: Strides,
    /// The place of the first element in the storage.
    offset: i64,
    /// The node that this view was last derived from, and the node derived. Written under the lock
    /// of the trace.
    pub(crate) derived_from: AtomicU64,
    pub(crate) derived: AtomicU64,
    /// The first node that the view was derived as from this version of its storage. It names what
    /// the view showed then, for gradients that are asked for after later derivations too.
    identity: AtomicU64,
    version: AtomicU64,
    /// What is called with the view's gradient.
    pub(crate) hooks: OnceLock<Arc<Hooks>>,
    /// Where the view's gradient is kept, if it was asked to be.
    pub(crate) retained: OnceLock<Arc<Leaf>>,
    /// Set where the view, which is not differentiable, is a leaf itself: `x.detach()` that
    /// requires a gradient.
    leaf: Mutex<Option<Arc<Leaf>>>,
}

/// Where the gradient of a tensor goes.
pub(crate) enum Origin {
    /// To the value of its storage.
    Storage,
    /// To a view that is a leaf.
    Leaf,
    /// Nowhere: a view on the way is not differentiable.
    Detached,
}

impl View {
    pub(crate) fn new(
        parent: Option<Arc<View>>,
        entry: &'static OpEntry,
        numbers: &[Number],
        ty: Ty,
        strides: Strides,
        offset: i64,
    ) -> Self {
        View {
            parent,
            entry,
            numbers: numbers.into(),
            ty,
            strides,
            offset,
            derived_from: AtomicU64::new(Slot::NONE.bits()),
            derived: AtomicU64::new(Slot::NONE.bits()),
            identity: AtomicU64::new(Slot::NONE.bits()),
            version: AtomicU64::new(0),
            hooks: OnceLock::new(),
            retained: OnceLock::new(),
            leaf: Mutex::default(),
        }
    }

    /// The same view, of another storage of the type.
    pub(crate) fn afresh(&self) -> Arc<View> {
        let parent = self.parent.as_ref().map(|parent| parent.afresh());
        Arc::new(View::new(
            parent,
            self.entry,
            &self.numbers,
            self.ty,
            self.strides.clone(),
            self.offset,
        ))
    }

    pub(crate) fn leaf(&self) -> Option<Arc<Leaf>> {
        self.lock_leaf().clone()
    }

    /// Makes the view a leaf that gradients accumulate into, or no longer one.
    pub(crate) fn set_leaf(&self, is: bool) {
        let mut leaf = self.lock_leaf();
        *leaf = is.then(|| leaf.take().unwrap_or_default());
    }

    fn lock_leaf(&self) -> MutexGuard<'_, Option<Arc<Leaf>>> {
        self.leaf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the gradient of what this view shows goes.
    pub(crate) fn origin(&self) -> Origin {
        let mut view = Some(self);
        while let Some(step) = view {
            if !step.entry.differentiable {
                return match step.leaf() {
                    Some(_) => Origin::Leaf,
                    None => Origin::Detached,
                };
            }
            view = step.parent.as_deref();
        }
        Origin::Storage
    }
}

impl View {
    /// The first node that showed what the view shows.
    pub(crate) fn identity(&self) -> Slot {
        Slot::from_bits(self.identity.load(Ordering::Acquire))
    }

    /// The first node that showed this version of the storage, which is `node` if none did.
    pub(crate) fn identify(&self, version: u64, node: Slot) -> Slot {
        let same = self.version.swap(version, Ordering::AcqRel) == version;
        match self.identity() {
            first if same && first != Slot::NONE => first,
            _ => {
                self.identity.store(node.bits(), Ordering::Release);
                node
            }
        }
    }

    /// Smallest and largest of the elements shown, given all of the storage's.
    pub(crate) fn range_in(&self, whole: &[i64]) -> Option<(i64, i64)> {
        let shape = self.ty.shape();
        let places = (0..shape.numel()).map(|mut index| {
            let mut place = self.offset;
            for (&len, &stride) in shape.iter().zip(&self.strides).rev() {
                place += (index % len) as i64 * stride;
                index /= len;
            }
            usize::try_from(place).ok().and_then(|p| whole.get(p))
        });
        let mut range: Option<(i64, i64)> = None;
        for value in places {
            let &value = value?;
            let (low, high) = range.unwrap_or((value, value));
            range = Some((low.min(value), high.max(value)));
        }
        range
    }

    /// Whether the view is its storage's value as it is.
    pub(crate) fn shows_all(&self) -> bool {
        self.entry.op.view().is_some_and(ViewRule::shows_all)
            && self.parent.as_deref().is_none_or(View::shows_all)
    }
}

/// Row-major strides as [`Strides`].
pub(crate) fn contiguous(shape: &Shape) -> Strides {
    shape
        .strides()
        .iter()
        .map(|&s| i64::try_from(s).unwrap_or(i64::MAX))
        .collect()
}

impl Tensor {
    /// A view of this tensor by a view operator with these numbers as further operands. Where
    /// PyTorch would copy (reshaping what does not lie at constant strides), the result is an
    /// ordinary tensor.
    #[track_caller]
    pub(crate) fn view_by(&self, entry: &'static OpEntry, numbers: &[Number]) -> Result<Tensor> {
        let location = std::panic::Location::caller();
        let input = self.ty();
        let mut types: SmallVec<[crate::InputType; 4]> =
            smallvec::smallvec![crate::InputType::Tensor(input)];
        types.extend(
            numbers
                .iter()
                .map(|n| crate::InputType::Number(n.category())),
        );
        let out = entry.infer(&types).map_err(|e| e.at(location))?;
        let strides = match &self.view {
            Some(view) => view.strides.clone(),
            None => contiguous(input.shape()),
        };
        let start = self.view.as_ref().map_or(0, |view| view.offset);
        let kept = entry.op.view().and_then(|v| {
            let out = v.strides(input.shape(), &strides, out.shape())?;
            Some((out, start.saturating_add(v.offset(&strides, numbers))))
        });
        match kept {
            Some((strides, offset)) => {
                let parent = self.view.clone();
                Ok(self.with_view(View::new(parent, entry, numbers, out, strides, offset)))
            }
            None => {
                let mut operands: SmallVec<[Operand<'_>; 4]> =
                    smallvec::smallvec![Operand::Tensor(self)];
                operands.extend(numbers.iter().map(|n| Operand::Number(*n)));
                crate::trace::record_at(entry, &operands, location)
            }
        }
    }

    /// The storage's new value when this view of it becomes `value`.
    #[track_caller]
    pub(crate) fn write_back(&self, value: Tensor) -> Result<Tensor> {
        let mut value = value;
        let mut view = self.view.clone();
        while let Some(step) = view {
            let parent = Tensor {
                storage: self.storage.clone(),
                view: step.parent.clone(),
            };
            let rule = step
                .entry
                .op
                .view()
                .ok_or_else(|| xla_core::Error::Internal {
                    what: "view",
                    expected: format!("{} to be a view operator", step.entry.name),
                })?;
            value = rule.write(&parent, &value, &step.numbers)?;
            view = step.parent.clone();
        }
        Ok(value)
    }
}
