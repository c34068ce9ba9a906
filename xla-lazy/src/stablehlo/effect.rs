//! Effects: calls out of the program that other processes wait for.
//!
//! A compiler may order operations as it likes where no value goes from one to the other. So each
//! effect takes the value that the effect before it returns, and the first one that of the program
//! before.

use super::func::{Func, Value, join};
use crate::ty::Ty;
use xla_core::{Error, Result};

/// Where a function stands among its effects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effects {
    /// What the next effect comes after.
    order: Value,
    /// Collectives begun.
    collectives: usize,
    /// Effects of the current collective.
    calls: usize,
}

impl Func {
    /// Declares the next argument as what the first effect comes after.
    pub(crate) fn begin_effects(&mut self, ty: Ty) {
        let order = self.argument(ty, None);
        self.effects = Some(Effects {
            order,
            collectives: 0,
            calls: 0,
        });
    }

    /// What comes now belongs to the next collective of the program.
    pub(crate) fn next_collective(&mut self) {
        if let Some(effects) = &mut self.effects {
            effects.collectives += 1;
            effects.calls = 0;
        }
    }

    /// Whether the function's program is run by a gang across processes. It is compiled for one
    /// device, so a collective in it is an effect, also one whose groups are each in one process.
    pub fn has_effects(&self) -> bool {
        self.effects.is_some()
    }

    /// What the next effect comes after, in a program that has effects.
    pub(crate) fn order(&self) -> Option<Value> {
        self.effects.map(|effects| effects.order)
    }

    /// Appends a call of a custom-call handler as an effect: it is executed, after all effects
    /// before it, whether or not its results are used. `attributes` are those of the handler's
    /// `backend_config`, each as `name = value`.
    ///
    /// Beside `operands` and `outs` the handler gets, as its last operand and result, an order
    /// value, to whose result it writes nothing but 0; and these attributes: `collective`, which
    /// collective of the program the call belongs to (from 0, in the order recorded), and `call`,
    /// which of that collective's effects it is.
    ///
    /// # Errors
    /// [`Error::Internal`] in a program that no gang across processes runs.
    pub fn effect(
        &mut self,
        target: &str,
        attributes: &[String],
        operands: &[Value],
        outs: &[Ty],
    ) -> Result<Vec<Value>> {
        let Some(mut effects) = self.effects else {
            return Err(Error::Internal {
                what: "lowering",
                expected: format!("a gang that spans processes, for {target}"),
            });
        };
        let mut operands = operands.to_vec();
        operands.push(effects.order);
        let mut outs = outs.to_vec();
        outs.push(effects.order.ty());
        let list = join(&operands);
        let mut config = vec![
            format!(
                "collective = {} : i64",
                effects.collectives.saturating_sub(1)
            ),
            format!("call = {} : i64", effects.calls),
        ];
        config.extend_from_slice(attributes);
        let mut results = self.call_many(
            format_args!(
                "stablehlo.custom_call @{target}({list}) {{has_side_effect = true, \
                 api_version = 4 : i32, backend_config = {{{}}}, operand_layouts = [{}], \
                 result_layouts = [{}]}}",
                join(config),
                join(operands.iter().map(|v| row_major(v.ty()))),
                join(outs.iter().map(|ty| row_major(ty))),
            ),
            &operands,
            &outs,
        );
        effects.calls += 1;
        effects.order = results.pop().unwrap_or(effects.order);
        self.effects = Some(effects);
        Ok(results)
    }
}

/// The layout of elements in the order of their indices. Where a call does not say it the compiler
/// chooses one: it hands over a transposed operand as it lies, with its axes in another order.
fn row_major(ty: Ty) -> String {
    let rank = ty.shape().rank();
    let axes: Vec<usize> = (0..rank).rev().collect();
    match rank {
        0 => "dense<> : tensor<0xindex>".into(),
        _ => format!("dense<{axes:?}> : tensor<{rank}xindex>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ty::ty;
    use xla_core::{DType, Shape};

    #[test]
    fn each_effect_takes_what_the_one_before_returned() -> Result<()> {
        let (order, pair) = (
            ty(DType::I32, &Shape::scalar()),
            ty(DType::F32, &Shape::new(&[2])),
        );
        let mut f = Func::new();
        let x = f.argument(pair, None);
        f.begin_effects(order);
        f.next_collective();
        let y = f.effect("send", &["kind = 1 : i64".into()], &[x], &[pair])?;
        f.next_collective();
        f.effect("send", &[], &[y[0]], &[])?;
        let last = f.order();
        let text = f.finish("test", &[last.unwrap()]);
        let body: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            body[2..body.len() - 3],
            [
                "%2:2 = stablehlo.custom_call @send(%0, %1) {has_side_effect = true, \
                 api_version = 4 : i32, backend_config = {collective = 0 : i64, \
                 call = 0 : i64, kind = 1 : i64}, operand_layouts = [dense<[0]> : tensor<1xindex>, \
                 dense<> : tensor<0xindex>], result_layouts = [dense<[0]> : tensor<1xindex>, \
                 dense<> : tensor<0xindex>]} : (tensor<2xf32>, tensor<i32>) -> \
                 (tensor<2xf32>, tensor<i32>)",
                "%3 = stablehlo.reshape %2#0 : (tensor<2xf32>) -> tensor<2xf32>",
                "%4 = stablehlo.reshape %2#1 : (tensor<i32>) -> tensor<i32>",
                "%5:1 = stablehlo.custom_call @send(%3, %4) {has_side_effect = true, \
                 api_version = 4 : i32, backend_config = {collective = 1 : i64, \
                 call = 0 : i64}, operand_layouts = [dense<[0]> : tensor<1xindex>, \
                 dense<> : tensor<0xindex>], result_layouts = [dense<> : tensor<0xindex>]} : \
                 (tensor<2xf32>, tensor<i32>) -> (tensor<i32>)",
                "%6 = stablehlo.reshape %5#0 : (tensor<i32>) -> tensor<i32>",
            ]
        );
        Ok(())
    }

    #[test]
    fn a_program_of_one_process_has_no_effects() {
        let error = Func::new().effect("send", &[], &[], &[]).unwrap_err();
        assert!(matches!(error, Error::Internal { .. }));
    }
}
