//! How a program is spread over the devices of a mesh: annotations in Shardy's dialect or, without it,
//! as GSPMD's attributes.

use super::func::{Func, Value, join, text_of};
use crate::spmd::{Mesh, NamedSharding};
use crate::ty::ty;
use xla_core::Shape;

/// The way in which a program says how its values are spread.
#[derive(Debug)]
pub(super) struct Partitioning {
    pub(super) mesh: Mesh,
    pub(super) shardy: bool,
    /// Of the results, as attributes; `None` where the partitioner chooses.
    results: Vec<Option<String>>,
}

impl Partitioning {
    fn attribute(&self, sharding: &NamedSharding, rank: usize) -> String {
        match self.shardy {
            true => format!("sdy.sharding = #sdy.sharding{}", sharding.to_sdy(rank)),
            false => format!("mhlo.sharding = \"{}\"", sharding.to_gspmd(rank)),
        }
    }

    /// What comes before the function.
    pub(super) fn prelude(&self) -> String {
        match self.shardy {
            true => format!("  {}\n", self.mesh.to_sdy()),
            false => String::new(),
        }
    }

    /// The types of the results with their attributes.
    pub(super) fn results(&self, results: &[Value]) -> String {
        let attributes = self.results.iter().map(Option::as_ref);
        let attributes = attributes.chain(std::iter::repeat(None));
        join(results.iter().zip(attributes).map(|(value, attribute)| {
            let attribute = attribute.map_or(String::new(), |text| format!(" {{{text}}}"));
            format!("{}{attribute}", text_of(value.ty()))
        }))
    }
}

impl Func {
    /// Makes this a program for all devices of a mesh, annotated for Shardy or for GSPMD.
    pub(crate) fn begin_partitioned(&mut self, mesh: Mesh, shardy: bool) {
        self.partitioning = Some(Partitioning {
            mesh,
            shardy,
            results: Vec::new(),
        });
    }

    /// Says how the last argument is spread, and returns its value without the padding that makes its
    /// shards equal: an argument of `shape` arrives padded.
    pub(crate) fn shard_argument(
        &mut self,
        argument: Value,
        sharding: &NamedSharding,
        shape: &Shape,
    ) -> Value {
        if let Some(partitioning) = &self.partitioning {
            let attribute = partitioning.attribute(sharding, shape.rank());
            self.annotate_argument(attribute);
        }
        if argument.shape() == shape {
            return argument;
        }
        let (start, step) = (vec![0; shape.rank()], vec![1; shape.rank()]);
        self.slice(argument, &start, shape.dims(), &step)
    }

    /// Says how results are spread, padding those whose shards would not be equal; `None` where the
    /// partitioner chooses.
    pub(crate) fn shard_results(
        &mut self,
        results: &mut [Value],
        shardings: &[Option<NamedSharding>],
    ) {
        let mut attributes = Vec::with_capacity(results.len());
        for (result, sharding) in results.iter_mut().zip(shardings) {
            let Some(sharding) = sharding else {
                attributes.push(None);
                continue;
            };
            let padded = sharding.padded_shape(result.shape());
            *result = self.pad_to(*result, &padded);
            let rank = padded.rank();
            let partitioning = self.partitioning.as_ref();
            attributes.push(partitioning.map(|p| p.attribute(sharding, rank)));
        }
        if let Some(partitioning) = &mut self.partitioning {
            partitioning.results = attributes;
        }
    }

    /// The value with zeros after it along each axis, up to this shape.
    fn pad_to(&mut self, x: Value, shape: &Shape) -> Value {
        if x.shape() == shape {
            return x;
        }
        let none = vec![0; shape.rank()];
        let lengths = shape.dims().iter().zip(x.shape().dims());
        let high: Vec<i64> = lengths.map(|(to, from)| (to - from) as i64).collect();
        let zero = self.constant(x.dtype(), &Shape::scalar(), 0.0);
        self.pad(x, zero, &none, &high, &none)
    }

    /// The value, spread over the devices like this. Outside a partitioned program it is as it is.
    pub(crate) fn sharding_constraint(&mut self, x: Value, sharding: &NamedSharding) -> Value {
        let Some(partitioning) = &self.partitioning else {
            return x;
        };
        let rank = x.shape().rank();
        let out = ty(x.dtype(), x.shape());
        if partitioning.shardy {
            let text = sharding.to_sdy(rank);
            self.emit(
                format_args!("sdy.sharding_constraint {x} {text}"),
                text_of(out),
                out,
            )
        } else {
            let attribute = partitioning.attribute(sharding, rank);
            self.call(
                format_args!("stablehlo.custom_call @Sharding({x}) {{{attribute}}}"),
                &[x],
                out,
            )
        }
    }
}
