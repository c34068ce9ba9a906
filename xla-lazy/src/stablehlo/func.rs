//! The function under construction: its values and the elementwise operations.

use super::control::Calls;
use super::effect::Effects;
use super::outline::Functions;
use super::sharding::Partitioning;
use super::tensor_type;
use super::watch::Watch;
use crate::MatmulPrecision;
use crate::ty::{Ty, ty};
use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::hash::{Hash, Hasher};
use xla_core::{DType, Result, Shape};

/// An SSA value with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    id: u32,
    ty: Ty,
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl Value {
    /// Its type.
    pub fn ty(self) -> Ty {
        self.ty
    }

    /// Its element type.
    pub fn dtype(self) -> DType {
        self.ty.dtype()
    }

    /// Its axis lengths.
    pub fn shape(self) -> &'static Shape {
        self.ty.shape()
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "%{}", self.id)
    }
}

/// The comparison of [`Func::compare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Compare {
    fn mnemonic(self) -> &'static str {
        match self {
            Compare::Eq => "EQ",
            Compare::Ne => "NE",
            Compare::Lt => "LT",
            Compare::Le => "LE",
            Compare::Gt => "GT",
            Compare::Ge => "GE",
        }
    }
}

/// The combining operation of a reduction or a reducing collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    And,
    Or,
}

impl Reduction {
    /// The binary StableHLO operation.
    pub fn mnemonic(self) -> &'static str {
        match self {
            Reduction::Sum => "add",
            Reduction::Product => "multiply",
            Reduction::Max => "maximum",
            Reduction::Min => "minimum",
            Reduction::And => "and",
            Reduction::Or => "or",
        }
    }
}

/// An argument of the function.
#[derive(Debug)]
struct Argument {
    value: Value,
    /// The result whose buffer may reuse its memory.
    alias: Option<usize>,
    /// How it is spread over the devices, as an attribute.
    sharding: Option<String>,
}

/// A function under construction: arguments first, then operations in order.
#[derive(Debug, Default)]
pub struct Func {
    arguments: Vec<Argument>,
    pub(super) body: String,
    /// How the program is partitioned, if it is.
    pub(super) partitioning: Option<Partitioning>,
    next: u32,
    pub(super) effects: Option<Effects>,
    pub(super) calls: Calls,
    /// Where a scalar was taken from a vector of numbers.
    pub(super) numbers: HashMap<Value, (Value, usize)>,
    pub(super) functions: Functions,
    precision: MatmulPrecision,
    /// Collectives between the partitions so far.
    pub(super) channels: u32,
    pub(super) watch: Watch,
}

impl Func {
    /// An empty function.
    pub fn new() -> Self {
        Func::default()
    }

    /// Declares the next argument; `alias` names the result whose buffer may reuse its memory.
    pub fn argument(&mut self, ty: Ty, alias: Option<usize>) -> Value {
        let value = self.fresh(ty);
        self.arguments.push(Argument {
            value,
            alias,
            sharding: None,
        });
        value
    }

    /// Says how the last argument is spread over the devices.
    pub(super) fn annotate_argument(&mut self, sharding: String) {
        if let Some(argument) = self.arguments.last_mut() {
            argument.sharding = Some(sharding);
        }
    }

    /// The module's text, with `main` returning these results.
    pub fn finish(self, name: &str, results: &[Value]) -> String {
        let mut text = String::with_capacity(self.body.len() + 256);
        let _ = writeln!(text, "module @{name} {{");
        if let Some(partitioning) = &self.partitioning {
            text.push_str(&partitioning.prelude());
        }
        text.push_str("  func.func public @main(");
        for (i, argument) in self.arguments.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let Argument { value, .. } = argument;
            let _ = write!(text, "{comma}{value}: {}", text_of(value.ty));
            let alias = argument
                .alias
                .map(|r| format!("tf.aliasing_output = {r} : i32"));
            let attributes: Vec<&String> = alias.iter().chain(&argument.sharding).collect();
            if !attributes.is_empty() {
                let _ = write!(text, " {{{}}}", join(attributes));
            }
        }
        let types = join(results.iter().map(|v| text_of(v.ty)));
        let values = join(results);
        let annotated = match &self.partitioning {
            Some(partitioning) => partitioning.results(results),
            None => types.clone(),
        };
        let _ = write!(text, ") -> ({annotated}) {{\n{}    return", self.body);
        if !results.is_empty() {
            let _ = write!(text, " {values} : {types}");
        }
        text.push_str("\n  }\n");
        text.push_str(self.functions.text());
        text.push_str("}\n");
        text
    }

    pub(super) fn fresh(&mut self, ty: Ty) -> Value {
        let id = self.next;
        self.next += 1;
        Value { id, ty }
    }

    /// Appends `%n = <operation> : <signature>` with one result of type `out`. `operation` is
    /// everything between `=` and the last colon; operands print as `%id`.
    pub fn emit(&mut self, operation: impl Display, signature: impl Display, out: Ty) -> Value {
        let value = self.fresh(out);
        let _ = writeln!(self.body, "    {value} = {operation} : {signature}");
        value
    }

    /// [`Func::emit`] for an operation in generic or custom form whose signature is
    /// `(operand types) -> result type`.
    pub fn call(&mut self, operation: impl Display, operands: &[Value], out: Ty) -> Value {
        let types = join(operands.iter().map(|v| text_of(v.ty)));
        self.emit(
            operation,
            format_args!("({types}) -> {}", text_of(out)),
            out,
        )
    }

    /// Appends an operation with several results.
    pub fn call_many(
        &mut self,
        operation: impl Display,
        operands: &[Value],
        outs: &[Ty],
    ) -> Vec<Value> {
        let base = self.fresh(outs[0]).id;
        let types = join(operands.iter().map(|v| text_of(v.ty)));
        let results = join(outs.iter().map(|t| text_of(t)));
        let n = outs.len();
        let _ = writeln!(
            self.body,
            "    %{base}:{n} = {operation} : ({types}) -> ({results})"
        );
        // A value is a plain number, so each of the results is named by an operation of its own.
        outs.iter()
            .enumerate()
            .map(|(i, out)| {
                let value = self.fresh(out);
                let _ = writeln!(
                    self.body,
                    "    {value} = stablehlo.reshape %{base}#{i} : ({t}) -> {t}",
                    t = text_of(out)
                );
                value
            })
            .collect()
    }

    /// An elementwise operation of one operand, of the operand's type.
    pub fn unary(&mut self, mnemonic: &str, x: Value) -> Value {
        self.emit(
            format_args!("stablehlo.{mnemonic} {x}"),
            text_of(x.ty),
            x.ty,
        )
    }

    /// An elementwise `chlo` operation of one operand, of the operand's type.
    pub fn chlo_unary(&mut self, mnemonic: &str, x: Value) -> Value {
        let t = text_of(x.ty);
        self.emit(
            format_args!("chlo.{mnemonic} {x}"),
            format_args!("{t} -> {t}"),
            x.ty,
        )
    }

    /// An elementwise operation of two operands of one type.
    pub fn binary(&mut self, mnemonic: &str, a: Value, b: Value) -> Value {
        debug_assert_eq!(a.ty, b.ty, "{mnemonic}");
        self.emit(
            format_args!("stablehlo.{mnemonic} {a}, {b}"),
            text_of(a.ty),
            a.ty,
        )
    }

    /// An elementwise comparison; `bool`.
    pub fn compare(&mut self, direction: Compare, a: Value, b: Value) -> Value {
        debug_assert_eq!(a.ty, b.ty, "compare");
        let out = ty(DType::Bool, a.shape());
        self.call(
            format_args!("stablehlo.compare {}, {a}, {b}", direction.mnemonic()),
            &[a, b],
            out,
        )
    }

    /// `on_true` where `predicate`, else `on_false`; all of one shape.
    pub fn select(&mut self, predicate: Value, on_true: Value, on_false: Value) -> Value {
        debug_assert_eq!(on_true.ty, on_false.ty, "select");
        self.emit(
            format_args!("stablehlo.select {predicate}, {on_true}, {on_false}"),
            format_args!("{}, {}", text_of(predicate.ty), text_of(on_true.ty)),
            on_true.ty,
        )
    }

    /// The value as another dtype: floats to integers truncate, anything to `bool` is `!= 0`.
    pub fn convert(&mut self, x: Value, dtype: DType) -> Value {
        if x.dtype() == dtype {
            return x;
        }
        if dtype == DType::Bool {
            let zero = self.constant(x.dtype(), x.shape(), 0.0);
            return self.compare(Compare::Ne, x, zero);
        }
        self.call(
            format_args!("stablehlo.convert {x}"),
            &[x],
            ty(dtype, x.shape()),
        )
    }

    /// Operands converted to one dtype and broadcast to one shape.
    pub fn align(&mut self, inputs: &[Value], dtype: DType, shape: &Shape) -> Result<Vec<Value>> {
        inputs
            .iter()
            .map(|&x| {
                let x = self.convert(x, dtype);
                self.broadcast_to(x, shape)
            })
            .collect()
    }

    /// What `f` writes, with products of this precision. They are of the highest elsewhere.
    pub fn with_precision<T>(
        &mut self,
        precision: MatmulPrecision,
        f: impl FnOnce(&mut Func) -> T,
    ) -> T {
        let before = std::mem::replace(&mut self.precision, precision);
        let result = f(self);
        self.precision = before;
        result
    }

    /// The precision of products written now.
    pub(super) fn precision(&self) -> MatmulPrecision {
        self.precision
    }
}

/// A comma-separated list.
pub(super) fn join<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for item in items {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let _ = write!(text, "{item}");
    }
    text
}

/// `tensor<…>`.
pub(super) fn text_of(ty: Ty) -> String {
    tensor_type(ty.dtype(), ty.shape())
}
