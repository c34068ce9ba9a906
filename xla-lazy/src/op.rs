//! The operator contract: what one block of code says about one operator.
//!
//! The set of operators is open. Any crate implements [`Operator`] for a type of its own and calls
//! [`crate::record`]; recording, hashing, lowering and autograd know operators only through this
//! contract. A node of the trace holds one pointer to an [`OpEntry`]: attributes are interned, so
//! equal operators are the same pointer, and recording neither allocates nor copies them.

use crate::grad::{Gradients, Vjp};
use crate::hash::{self, Hash128};
use crate::stablehlo::{Func, Value};
use crate::view::ViewRule;
use crate::{Tensor, Ty};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, OnceLock, PoisonError};
use xla_core::{Category, DType, Result};

/// A number that the user passed as an operand. It is data of the program, never part of its key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
}

impl Number {
    /// `Integer` or `Float`.
    pub fn category(self) -> Category {
        match self {
            Number::Int(_) => Category::Integer,
            Number::Float(_) => Category::Float,
        }
    }

    /// As `f64`.
    pub fn to_f64(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Float(f) => f,
        }
    }
}

macro_rules! number {
    ($($t:ty => $variant:ident),*) => {$(
        impl From<$t> for Number {
            fn from(value: $t) -> Self { Number::$variant(value.into()) }
        }
        impl From<$t> for Operand<'_> {
            fn from(value: $t) -> Self { Operand::Number(value.into()) }
        }
    )*};
}

number!(f32 => Float, f64 => Float, i8 => Int, i16 => Int, i32 => Int, i64 => Int, u8 => Int, u16 => Int, u32 => Int);

// What no `i64` holds is a floating-point number, as it is larger than any length or index.
macro_rules! wide {
    ($($t:ty),*) => {$(
        impl From<$t> for Number {
            fn from(value: $t) -> Self {
                i64::try_from(value).map_or(Number::Float(value as f64), Number::Int)
            }
        }
        impl From<$t> for Operand<'_> {
            fn from(value: $t) -> Self { Operand::Number(value.into()) }
        }
    )*};
}

wide!(u64, usize);

/// What an operator is applied to: a tensor or a number.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number.
    Number(Number),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<Number> for Operand<'_> {
    fn from(number: Number) -> Self {
        Operand::Number(number)
    }
}

/// The type of an operand, as a shape rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputType {
    /// A tensor of this type.
    Tensor(Ty),
    /// A number, which never promotes a tensor within its category.
    Number(Category),
}

impl InputType {
    /// The tensor's type; an internal error for a number.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] when the operand is a number.
    pub fn tensor(self, op: &'static str) -> Result<Ty> {
        match self {
            InputType::Tensor(ty) => Ok(ty),
            InputType::Number(_) => Err(xla_core::Error::argument(
                op, "operand", "a tensor", "a number",
            )),
        }
    }
}

/// Which values an operator's derivative reads. They are kept when a program executes between the
/// forward and the backward pass; the others are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saves {
    inputs: u32,
    output: bool,
    crosswise: bool,
}

impl Saves {
    /// Shapes and dtypes only.
    pub const NONE: Saves = Saves {
        inputs: 0,
        output: false,
        crosswise: false,
    };
    /// The output only.
    pub const OUTPUT: Saves = Saves {
        inputs: 0,
        output: true,
        crosswise: false,
    };
    /// All inputs, not the output.
    pub const INPUTS: Saves = Saves {
        inputs: u32::MAX,
        output: false,
        crosswise: false,
    };
    /// Each input for the gradients of the others, as in a product: it is not kept when no other
    /// input wants a gradient.
    pub const CROSSWISE: Saves = Saves {
        inputs: 0,
        output: false,
        crosswise: true,
    };

    /// Also this input.
    #[must_use]
    pub const fn and_input(self, index: u32) -> Saves {
        Saves {
            inputs: self.inputs | 1 << index,
            ..self
        }
    }

    /// Also the output.
    #[must_use]
    pub const fn and_output(self) -> Saves {
        Saves {
            output: true,
            ..self
        }
    }

    /// Whether input `index` is read, given which inputs want a gradient.
    pub(crate) fn reads_input(self, index: usize, wants: &[bool]) -> bool {
        self.inputs == u32::MAX
            || index < 32 && self.inputs >> index & 1 == 1
            || self.crosswise
                && wants
                    .iter()
                    .enumerate()
                    .any(|(other, w)| other != index && *w)
    }

    pub(crate) fn reads_output(self) -> bool {
        self.output
    }
}

/// How an operator is differentiated. There is no default: each operator says one of the three.
pub enum Derivative<O> {
    /// The vector-Jacobian product: from the output's gradient to the inputs'.
    Rule {
        /// The values that `rule` reads.
        saves: Saves,
        /// One gradient an input, `None` where there is none or it is not wanted.
        rule: fn(&O, &Vjp<'_>) -> Result<Gradients>,
    },
    /// Zero wherever it exists (`floor`, `sign`): gradients of zeros flow on.
    Zero,
    /// No gradient passes, and the result does not require one (comparisons, `argmax`).
    NotDifferentiable,
}

/// One operator: shape rule, lowering and derivative, next to each other.
///
/// Attributes are the fields of the implementing type; what differs between two programs must be
/// in them, and nothing that may change from step to step (that is an operand). Floats are kept by
/// their bits so that `Eq` and `Hash` can be derived.
pub trait Operator: fmt::Debug + Clone + Eq + Hash + Send + Sync + 'static {
    /// The name that users, errors and metrics read: PyTorch's.
    const NAME: &'static str;

    /// The derivative.
    const DERIVATIVE: Derivative<Self>;

    /// The output's type from the operands'. Called when recording, so an error here is an error
    /// at the caller's line.
    ///
    /// # Errors
    /// Whatever makes the operands unfit, with their shapes or dtypes.
    fn infer(&self, inputs: &[InputType]) -> Result<Ty>;

    /// The operator as StableHLO. `out` is what `infer` returned; numbers arrive as scalars of
    /// `f32`, `f64` or `i64`.
    ///
    /// # Errors
    /// Only what cannot be known when recording.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value>;

    /// How a write through this operator's result reaches its input, when it is a view operator.
    fn view(&self) -> Option<&dyn ViewRule> {
        None
    }
}

/// [`Operator`] with the type erased.
pub(crate) trait DynOperator: Send + Sync {
    fn infer(&self, inputs: &[InputType]) -> Result<Ty>;
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value>;
    /// `None` where the operator is not differentiable.
    fn saves(&self) -> Option<Saves>;
    /// The inputs' gradients; `None` where they are zero.
    fn vjp(&self, vjp: &Vjp<'_>) -> Result<Option<Gradients>>;
    fn view(&self) -> Option<&dyn ViewRule>;
    fn as_any(&self) -> &dyn Any;
    fn describe(&self) -> String;
}

impl<O: Operator> DynOperator for O {
    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        Operator::infer(self, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Operator::lower(self, f, inputs, out)
    }

    fn saves(&self) -> Option<Saves> {
        match O::DERIVATIVE {
            Derivative::Rule { saves, .. } => Some(saves),
            Derivative::Zero => Some(Saves::NONE),
            Derivative::NotDifferentiable => None,
        }
    }

    fn vjp(&self, vjp: &Vjp<'_>) -> Result<Option<Gradients>> {
        match O::DERIVATIVE {
            Derivative::Rule { rule, .. } => rule(self, vjp).map(Some),
            Derivative::Zero | Derivative::NotDifferentiable => Ok(None),
        }
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Operator::view(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// An operator with its attributes, as nodes refer to it.
pub struct OpEntry {
    pub(crate) name: &'static str,
    pub(crate) hash: Hash128,
    pub(crate) differentiable: bool,
    pub(crate) op: &'static dyn DynOperator,
}

impl OpEntry {
    /// The entry of an operator without attributes, to be kept in a `static`: recording it then
    /// needs no look-up.
    pub const fn of<O: Operator>(op: &'static O) -> OpEntry {
        assert!(
            size_of::<O>() == 0,
            "an operator with attributes is interned by `entry`"
        );
        OpEntry {
            name: O::NAME,
            hash: hash::name(O::NAME),
            differentiable: !matches!(O::DERIVATIVE, Derivative::NotDifferentiable),
            op,
        }
    }

    /// The name that users read.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl PartialEq for OpEntry {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for OpEntry {}

impl Hash for OpEntry {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl OpEntry {
    /// The type of the result, by the operator's shape rule.
    #[inline]
    pub(crate) fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let out = self.op.infer(inputs)?;
        if out.is_too_large() {
            return Err(xla_core::Error::shape(
                self.name,
                "a result of less than 2^63 bytes",
                out,
            ));
        }
        Ok(out)
    }
}

impl fmt::Debug for OpEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.op.describe())
    }
}

const NEAR: usize = 128;

thread_local! {
    // Direct-mapped: a step asks for the same operators as the step before.
    static RECENT: RefCell<[Option<&'static OpEntry>; NEAR]> = const { RefCell::new([None; NEAR]) };
}

/// The entry of an operator, interned by its attributes. It lives as long as the process: each
/// distinct attribute is part of programs whose compiled code is far larger.
pub fn entry<O: Operator>(op: O) -> &'static OpEntry {
    let hash = hash::extend(hash::name(O::NAME), &op);
    let slot = hash[0] as usize % NEAR;
    let same = |e: &&'static OpEntry| {
        e.hash == hash && e.op.as_any().downcast_ref::<O>().is_some_and(|o| *o == op)
    };
    if let Some(found) = RECENT.with_borrow(|recent| recent[slot].filter(same)) {
        return found;
    }
    static ALL: OnceLock<Mutex<HashMap<Hash128, Vec<&'static OpEntry>>>> = OnceLock::new();
    let mut all = ALL
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let bucket = all.entry(hash).or_default();
    let found = match bucket.iter().copied().find(|e| same(e)) {
        Some(found) => found,
        None => {
            let new: &'static OpEntry = Box::leak(Box::new(OpEntry {
                name: O::NAME,
                hash,
                differentiable: !matches!(O::DERIVATIVE, Derivative::NotDifferentiable),
                op: Box::leak(Box::new(op)),
            }));
            bucket.push(new);
            new
        }
    };
    drop(all);
    RECENT.with_borrow_mut(|recent| recent[slot] = Some(found));
    found
}

/// The dtype that operands compute in, by PyTorch's rule: tensors with axes promote each other;
/// scalar tensors, and after them numbers, only raise the category.
pub fn promote(inputs: &[InputType]) -> DType {
    let mut shaped: Option<DType> = None;
    let mut scalar: Option<DType> = None;
    let mut number: Option<DType> = None;
    for input in inputs {
        let (slot, dtype) = match *input {
            InputType::Tensor(ty) if ty.rank() > 0 => (&mut shaped, ty.dtype()),
            InputType::Tensor(ty) => (&mut scalar, ty.dtype()),
            InputType::Number(Category::Float) => (&mut number, DType::F32),
            InputType::Number(Category::Integer) => (&mut number, DType::I64),
            InputType::Number(Category::Bool) => (&mut number, DType::Bool),
        };
        *slot = Some(slot.map_or(dtype, |d| d.promote(dtype)));
    }
    let mut result = shaped;
    for lower in [scalar, number].into_iter().flatten() {
        result = match result {
            Some(kept) if kept.category() >= lower.category() => Some(kept),
            _ => Some(lower),
        };
    }
    result.unwrap_or(DType::F32)
}
