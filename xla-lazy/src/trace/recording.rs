//! What was recorded since the last sync: nodes with their operands, hashes and storages.

use super::region::Enclosing;
use crate::compiled::FunctionOptions;
use crate::gang::Gang;
use crate::grad::{Function, Hooks, Leaf};
use crate::hash::{self, Hash128, Map};
use crate::op::{InputType, Number, OpEntry, Operator};
use crate::storage::{History, Storage};
use crate::sync::DeviceValue;
use crate::ty::{Ty, ty};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use xla_core::{DType, Error, Result, Shape};

/// A node of a trace in one epoch: the epoch above, the node's index plus one below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u64);

const INDEX_BITS: u32 = 24;

impl Slot {
    pub(crate) const NONE: Slot = Slot(0);

    pub(crate) fn new(epoch: u64, index: u32) -> Self {
        Slot(epoch << INDEX_BITS | u64::from(index + 1))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Slot(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The node's index, if the slot is of this epoch.
    #[inline]
    pub(crate) fn in_epoch(self, epoch: u64) -> Option<u32> {
        (self.0 >> INDEX_BITS == epoch).then(|| (self.0 & ((1 << INDEX_BITS) - 1)) as u32 - 1)
    }
}

/// Most operators that one trace holds: the index's bits, less some room.
pub(super) const MAX_NODES: usize = (1 << INDEX_BITS) - (1 << 16);

/// Facts about a node that are not part of the program.
pub(crate) mod flag {
    /// A gradient flows to the value.
    pub(crate) const GRAD: u8 = 1;
    /// The value is a leaf of the gradient graph.
    pub(crate) const LEAF: u8 = 2;
    /// A backward pass has gone through the node and freed it.
    pub(crate) const FREED: u8 = 4;
    /// The value enters from a buffer.
    pub(crate) const PARAM: u8 = 8;
    /// A collective.
    pub(crate) const COLLECTIVE: u8 = 16;
    /// What a view shows of its first operand, whose changes it shares.
    pub(crate) const VIEW: u8 = 32;
}

/// One recorded operator.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    pub(crate) entry: &'static OpEntry,
    pub(crate) ty: Ty,
    pub(crate) location: &'static Location<'static>,
    pub(super) first: u32,
    pub(super) count: u16,
    pub(crate) flags: u8,
}

impl Node {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A buffer that entered the program.
#[derive(Clone)]
pub(crate) struct Param {
    pub(crate) node: u32,
    pub(crate) value: DeviceValue,
    /// The node that its storage was rebound to by an in-place operator.
    pub(crate) rebound: Option<u32>,
}

/// A change in place: by which operator, called where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overwrite {
    pub(crate) op: &'static str,
    pub(crate) location: &'static Location<'static>,
}

/// Which packed vector a number travels in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NumberClass {
    F32 = 1,
    F64 = 2,
    I64 = 3,
}

/// An operand of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Input {
    Node(u32),
    Number(NumberClass, u32),
}

const TAG: u32 = 30;

impl Input {
    pub(super) fn encode(self) -> u32 {
        match self {
            Input::Node(index) => index,
            Input::Number(class, slot) => (class as u32) << TAG | slot,
        }
    }

    #[inline]
    pub(crate) fn decode(word: u32) -> Self {
        let slot = word & ((1 << TAG) - 1);
        match word >> TAG {
            0 => Input::Node(word),
            1 => Input::Number(NumberClass::F32, slot),
            2 => Input::Number(NumberClass::F64, slot),
            _ => Input::Number(NumberClass::I64, slot),
        }
    }
}

/// The numbers of a program, in the order recorded; slots are never merged.
#[derive(Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) f32: Vec<f32>,
    pub(crate) f64: Vec<f64>,
    pub(crate) i64: Vec<i64>,
}

impl Numbers {
    /// A whole number stays one, whatever it meets; a float is as wide as what it meets.
    pub(super) fn push(&mut self, meets: DType, number: Number) -> Input {
        let slot = |len: usize| (len - 1) as u32;
        match number {
            Number::Int(i) => {
                self.i64.push(i);
                Input::Number(NumberClass::I64, slot(self.i64.len()))
            }
            Number::Float(x) if meets == DType::F64 => {
                self.f64.push(x);
                Input::Number(NumberClass::F64, slot(self.f64.len()))
            }
            Number::Float(x) => {
                self.f32.push(x as f32);
                Input::Number(NumberClass::F32, slot(self.f32.len()))
            }
        }
    }

    /// How many of a class.
    pub(crate) fn len(&self, class: NumberClass) -> usize {
        match class {
            NumberClass::F32 => self.f32.len(),
            NumberClass::F64 => self.f64.len(),
            NumberClass::I64 => self.i64.len(),
        }
    }

    pub(crate) fn get(&self, class: NumberClass, slot: u32) -> Number {
        let slot = slot as usize;
        match class {
            NumberClass::F32 => Number::Float(self.f32[slot].into()),
            NumberClass::F64 => Number::Float(self.f64[slot]),
            NumberClass::I64 => Number::Int(self.i64[slot]),
        }
    }
}

/// What was recorded since the last sync.
#[derive(Default)]
pub(crate) struct Recording {
    pub(crate) epoch: u64,
    pub(crate) nodes: Vec<Node>,
    /// Hash of the program up to and including each node.
    pub(crate) chain: Vec<Hash128>,
    pub(super) operands: Vec<u32>,
    /// For each node the storage that it is the value of, if any.
    pub(crate) storages: Vec<Option<Arc<Storage>>>,
    pub(crate) params: Vec<Param>,
    entered: Map<u64, u32>,
    pub(crate) numbers: Numbers,
    pub(crate) leaves: Map<u32, Arc<Leaf>>,
    pub(crate) histories: Map<u32, History>,
    /// Nodes whose storage became the value of another node.
    overwrites: Map<u32, Overwrite>,
    pub(crate) hooks: Map<u32, Arc<Hooks>>,
    /// Nodes with a derivative of their own instead of their operator's.
    pub(crate) functions: Map<u32, Arc<dyn Function>>,
    /// The nodes, ascending, that views were derived as once more, and the views' first ones.
    pub(crate) derived_again: Vec<(u32, Slot)>,
    pub(crate) gang: Option<Arc<dyn Gang>>,
    /// While a region is recorded: what it interrupts.
    pub(crate) enclosing: Option<Box<Enclosing>>,
    /// While a compiled function is recorded: the storage that each parameter is the value of.
    pub(crate) origins: Option<Vec<Weak<Storage>>>,
    /// The compiled function that is recorded, or whose recording this is.
    pub(crate) function: Option<Arc<FunctionOptions>>,
}

/// The name of the nodes that are buffers.
pub(crate) const PARAMETER: &str = Parameter::NAME;

/// The leaf node of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parameter;

static ENTRY: OpEntry = OpEntry::of(&Parameter);

impl Operator for Parameter {
    const NAME: &'static str = "parameter";
    const DERIVATIVE: crate::Derivative<Self> = crate::Derivative::Zero;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Err(Error::Internal {
            what: "parameter",
            expected: "a type from its buffer".into(),
        })
    }

    fn lower(
        &self,
        _: &mut crate::stablehlo::Func,
        _: &[crate::stablehlo::Value],
        _: Ty,
    ) -> Result<crate::stablehlo::Value> {
        Err(Error::Internal {
            what: "parameter",
            expected: "an argument of the program".into(),
        })
    }
}

impl Recording {
    /// An empty recording of an epoch of its own.
    pub(crate) fn new() -> Self {
        Recording {
            epoch: next_epoch(),
            ..Recording::default()
        }
    }

    /// Where the chain of hashes begins.
    #[cold]
    fn seed(&self) -> Hash128 {
        self.function.as_ref().map_or(hash::SEED, |f| f.seed())
    }

    pub(crate) fn inputs(&self, node: &Node) -> impl ExactSizeIterator<Item = Input> + '_ {
        let first = node.first as usize;
        self.operands[first..first + node.count as usize]
            .iter()
            .map(|w| Input::decode(*w))
    }

    /// The encoded operands of all nodes, for comparing two programs.
    pub(crate) fn operand_words(&self) -> &[u32] {
        &self.operands
    }

    pub(crate) fn operand_range(&self, node: &Node) -> (u32, u16) {
        (node.first, node.count)
    }

    pub(crate) fn push(
        &mut self,
        entry: &'static OpEntry,
        ty: Ty,
        inputs: &[Input],
        flags: u8,
        location: &'static Location<'static>,
    ) -> u32 {
        let index = self.nodes.len() as u32;
        let first = self.operands.len() as u32;
        let mut state = match self.chain.last() {
            Some(state) => *state,
            None => self.seed(),
        };
        // Both are 128 bits of hash; turned, so that an operator's cannot cancel a type's.
        let [first_lane, second_lane] = ty.hash().map(|lane| lane.rotate_left(29));
        let [operator, attributes] = entry.hash;
        state = hash::fold(
            state,
            operator ^ first_lane,
            attributes ^ second_lane ^ inputs.len() as u64,
        );
        for pair in inputs.chunks(2) {
            let second = pair.get(1).map_or(u32::MAX, |i| i.encode());
            state = hash::fold(state, pair[0].encode().into(), second.into());
        }
        self.operands.extend(inputs.iter().map(|i| i.encode()));
        self.nodes.push(Node {
            entry,
            ty,
            location,
            first,
            count: inputs.len() as u16,
            flags,
        });
        self.chain.push(state);
        self.storages.push(None);
        index
    }

    /// The two references to the storage of a node, its own and that of the handle that was dropped,
    /// if there are no others.
    #[inline]
    pub(super) fn take_spent(&mut self, spent: Arc<Storage>) -> Option<[Arc<Storage>; 2]> {
        let node = spent.slot().in_epoch(self.epoch)?;
        // A parameter's storage holds a buffer.
        let pending = !self.nodes[node as usize].has(flag::PARAM);
        let own = self.storages[node as usize]
            .take_if(|own| pending && Arc::ptr_eq(own, &spent) && Storage::is_only_spent(&spent))?;
        Some([own, spent])
    }

    /// The parameter node of a computed value.
    pub(super) fn enter(
        &mut self,
        storage: &Arc<Storage>,
        value: &DeviceValue,
        location: &'static Location<'static>,
    ) -> u32 {
        // In a compiled function each storage stands for itself: with its next value it may be another's
        // no more.
        if let Some(origins) = &mut self.origins {
            origins.push(Arc::downgrade(storage));
        } else if let Some(&index) = self.entered.get(&value.id()) {
            storage.set_slot(Slot::new(self.epoch, index));
            return index;
        }
        let index = self.push(&ENTRY, storage.ty(), &[], flag::PARAM, location);
        self.params.push(Param {
            node: index,
            value: value.clone(),
            rebound: None,
        });
        self.entered.insert(value.id(), index);
        self.storages[index as usize] = Some(Arc::clone(storage));
        storage.set_slot(Slot::new(self.epoch, index));
        index
    }

    /// Notes what autograd knows of a value that enters or changes its status.
    pub(crate) fn note_autograd(
        &mut self,
        index: u32,
        leaf: Option<&Arc<Leaf>>,
        history: Option<&History>,
    ) {
        let node = &mut self.nodes[index as usize];
        node.flags &= !(flag::GRAD | flag::LEAF);
        self.leaves.remove(&index);
        self.histories.remove(&index);
        if let Some(leaf) = leaf {
            node.flags |= flag::GRAD | flag::LEAF;
            self.leaves.insert(index, Arc::clone(leaf));
        } else if let Some(history) = history {
            node.flags |= flag::GRAD;
            self.histories.insert(index, history.clone());
        }
    }

    /// The first node of the view that this node was derived as.
    pub(crate) fn identity(&self, node: u32) -> Slot {
        match self.derived_again.binary_search_by_key(&node, |(n, _)| *n) {
            Ok(at) => self.derived_again[at].1,
            Err(_) => Slot::new(self.epoch, node),
        }
    }

    /// The node whose value this one shows.
    pub(crate) fn shown(&self, mut node: u32) -> u32 {
        while let view = &self.nodes[node as usize]
            && view.has(flag::VIEW)
            && let Some(Input::Node(base)) = self.inputs(view).next()
        {
            node = base;
        }
        node
    }

    /// How the value of a node was changed in place afterwards.
    pub(crate) fn overwrite_of(&self, node: u32) -> Option<Overwrite> {
        self.overwrites.get(&self.shown(node)).copied()
    }

    /// Whether any value was changed in place.
    pub(crate) fn has_overwrites(&self) -> bool {
        !self.overwrites.is_empty()
    }

    pub(super) fn note_overwrite(&mut self, node: u32, by: Overwrite) {
        self.overwrites.insert(node, by);
    }

    pub(crate) fn param_of(&self, node: u32) -> Option<&Param> {
        let at = self.params.binary_search_by_key(&node, |p| p.node).ok()?;
        self.params.get(at)
    }

    /// The gang of a node that is a collective.
    pub(crate) fn gang_of(&self, node: u32) -> Option<Arc<dyn Gang>> {
        let gang = self.gang.as_ref();
        gang.filter(|_| self.nodes[node as usize].has(flag::COLLECTIVE))
            .cloned()
    }

    /// A number of another recording, as a number of this one.
    pub(crate) fn renumber(&mut self, class: NumberClass, from: &Recording, slot: u32) -> Input {
        self.numbers
            .push(number_type(class).dtype(), from.numbers.get(class, slot))
    }

    /// Records that a parameter's storage now is the value of another node.
    pub(crate) fn rebind_param(&mut self, from: u32, to: u32) {
        // A storage that was rebound before is found by the node it was rebound to.
        if let Ok(at) = self.params.binary_search_by_key(&from, |p| p.node) {
            self.params[at].rebound = Some(to);
        } else if let Some(param) = self.params.iter_mut().find(|p| p.rebound == Some(from)) {
            param.rebound = Some(to);
        }
    }

    /// What is lowered of it. Its values are held by the copy, too, so for as long as it lives they
    /// are not donated.
    pub(super) fn without_storages(&self) -> Recording {
        Recording {
            epoch: self.epoch,
            nodes: self.nodes.clone(),
            chain: self.chain.clone(),
            operands: self.operands.clone(),
            storages: vec![None; self.nodes.len()],
            params: self.params.clone(),
            numbers: self.numbers.clone(),
            gang: self.gang.clone(),
            ..Recording::default()
        }
    }

    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.chain.clear();
        self.operands.clear();
        self.storages.clear();
        self.params.clear();
        self.entered.clear();
        self.numbers.f32.clear();
        self.numbers.f64.clear();
        self.numbers.i64.clear();
        self.leaves.clear();
        self.histories.clear();
        self.overwrites.clear();
        self.hooks.clear();
        self.functions.clear();
        self.derived_again.clear();
        self.gang = None;
        self.enclosing = None;
        self.origins = None;
        self.function = None;
    }
}

/// The type of the scalar that a number of this class arrives as.
pub(crate) fn number_type(class: NumberClass) -> Ty {
    let dtype = match class {
        NumberClass::F32 => DType::F32,
        NumberClass::F64 => DType::F64,
        NumberClass::I64 => DType::I64,
    };
    ty(dtype, &Shape::scalar())
}

/// Epochs of all traces come from here, so that a slot names its trace as well.
pub(crate) fn next_epoch() -> u64 {
    static EPOCH: AtomicU64 = AtomicU64::new(1);
    EPOCH.fetch_add(1, Ordering::Relaxed)
}
