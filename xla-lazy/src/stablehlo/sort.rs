//! Sorting.

use super::func::{Func, Value, text_of};
use crate::ty::ty;
use xla_core::Shape;

impl Func {
    /// `keys` in order along `axis`, and `values` in the order of their keys. Equal keys stay in their
    /// order. NaN counts as larger than any number: it is last, or first when `descending`.
    pub fn sort_by_key(
        &mut self,
        keys: Value,
        values: Value,
        axis: usize,
        descending: bool,
    ) -> (Value, Value) {
        let [key, value] = [keys, values].map(|v| text_of(ty(v.dtype(), &Shape::scalar())));
        let direction = if descending { "GT" } else { "LT" };
        let compare = |result: &str, direction: &str, a: &str, b: &str| {
            format!(
                "%{result} = stablehlo.compare {direction}, %{a}, %{b} : ({key}, {key}) -> tensor<i1> "
            )
        };
        let mut body = compare("before", direction, "a", "b");
        let mut result = "before";
        if keys.dtype().is_float() {
            let (nan, number) = if descending { ("a", "b") } else { ("b", "a") };
            body += &compare("nan", "NE", nan, nan);
            body += &compare("number", "EQ", number, number);
            body += "%edge = stablehlo.and %nan, %number : tensor<i1> ";
            body += "%either = stablehlo.or %before, %edge : tensor<i1> ";
            result = "either";
        }
        let outs = self.call_many(
            format_args!(
                "\"stablehlo.sort\"({keys}, {values}) <{{dimension = {axis} : i64, is_stable = true}}> ({{ ^bb0(%a: {key}, %b: {key}, %c: {value}, %d: {value}): {body}stablehlo.return %{result} : tensor<i1> }})"
            ),
            &[keys, values],
            &[keys.ty(), values.ty()],
        );
        (outs[0], outs[1])
    }
}
