//! Functions beside `main`, for operations that a program holds many times.
//!
//! XLA optimizes a function once, however often it is called, and kernels that are alike it compiles
//! once. So a function is kept apart from its callers, and what distinguishes its calls comes to it as
//! values that the compiler does not see through: where it sees a constant, or which element of a
//! vector a number is, each caller gets a kernel of its own, at some 15 ms each on a CPU.

use super::func::{Func, Value, join, text_of};
use crate::ty::Ty;
use std::collections::HashMap;
use std::fmt::Write;
use xla_core::{DType, Result, Shape};

/// Keeps XLA from putting a function's operations in place of its call.
const APART: &str = "{mhlo.frontend_attributes = {inlineable = \"false\"}}";

/// The functions beside `main`.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// By what follows the name in their text.
    names: HashMap<String, String>,
    /// Their texts, in order of first use.
    text: String,
}

impl Functions {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The name of the function with this text after its name.
    fn name(&mut self, stem: &str, definition: String) -> String {
        if let Some(name) = self.names.get(&definition) {
            return name.clone();
        }
        let name = format!("{stem}_{}", self.names.len());
        let _ = write!(self.text, "  func.func private @{name}{definition}");
        self.names.insert(definition, name.clone());
        name
    }
}

impl Func {
    /// An element of a vector of numbers, as a scalar.
    pub(crate) fn number(&mut self, packed: Value, position: usize) -> Value {
        let one = self.slice(packed, &[position], &[position + 1], &[1]);
        let number = self.reshape(one, &Shape::scalar());
        self.numbers.insert(number, (packed, position));
        number
    }

    /// The value, as one of which the compiler knows nothing but the type. The partitioner sees it as it
    /// is.
    pub(crate) fn opaque(&mut self, x: Value) -> Value {
        if self.partitioning.is_some() {
            return x;
        }
        let Some(&(packed, position)) = self.numbers.get(&x) else {
            return self.emit(
                format_args!("stablehlo.optimization_barrier {x}"),
                text_of(x.ty()),
                x.ty(),
            );
        };
        let position = self.constant_int(DType::I32, &Shape::scalar(), position as i64);
        let position = self.opaque(position);
        let one = self.dynamic_slice(packed, &[position], &[1]);
        self.reshape(one, &Shape::scalar())
    }

    /// What `block` gives for these operands, by a call of a function that all calls with the same
    /// operations share. A partitioned program has the operations themselves, since each call may be
    /// spread over the devices in its own way.
    ///
    /// # Errors
    /// Those of `block`.
    pub(crate) fn outlined(
        &mut self,
        name: &str,
        operands: &[Value],
        block: impl FnOnce(&mut Func, &[Value]) -> Result<Value>,
    ) -> Result<Value> {
        if self.partitioning.is_some() {
            return block(self, operands);
        }
        let mut function = Func::new();
        let parameters: Vec<Value> = operands
            .iter()
            .map(|x| function.argument(x.ty(), None))
            .collect();
        let result = block(&mut function, &parameters)?;
        let out: Ty = result.ty();
        let declared = join(
            parameters
                .iter()
                .map(|p| format!("{p}: {}", text_of(p.ty()))),
        );
        let definition = format!(
            "({declared}) -> {out} {{\n{body}    return {result} : {out}\n  }}\n",
            out = text_of(out),
            body = function.body,
        );
        let name = self.functions.name(name, definition);
        let operands: Vec<Value> = operands.iter().map(|&x| self.as_operand(x)).collect();
        let list = join(&operands);
        Ok(self.call(
            format_args!("func.call @{name}({list}) {APART}"),
            &operands,
            out,
        ))
    }

    /// A number by a value that says nothing of its place.
    fn as_operand(&mut self, x: Value) -> Value {
        match self.numbers.contains_key(&x) {
            true => self.opaque(x),
            false => x,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ty::ty;

    #[test]
    fn calls_with_the_same_operations_share_a_function() -> Result<()> {
        let mut f = Func::new();
        let numbers = f.argument(ty(DType::F32, &Shape::new(&[4])), None);
        let mut results = Vec::new();
        for (position, mnemonic) in [(0, "negate"), (1, "negate"), (2, "sine")] {
            let x = f.number(numbers, position);
            results.push(f.outlined("of", &[x], |f, x| Ok(f.unary(mnemonic, x[0])))?);
        }
        let text = f.finish("test", &results);
        assert_eq!(text.matches("func.func private").count(), 2);
        assert_eq!(text.matches("call @of_0(").count(), 2);
        assert_eq!(text.matches("call @of_1(").count(), 1);
        Ok(())
    }
}
