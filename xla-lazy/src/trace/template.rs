//! A recording to be run again: what was recorded, without any value.

use super::recording::{Input, Node, NumberClass, Numbers, Param, Recording};
use crate::compiled::FunctionOptions;
use crate::gang::Gang;
use crate::hash::{self, Hash128};
use crate::op::Number;
use crate::sync::DeviceValue;
use std::sync::Arc;

/// What a recording holds but for its values and numbers.
pub(crate) struct Template {
    nodes: Vec<Node>,
    chain: Vec<Hash128>,
    operands: Vec<u32>,
    /// Of each parameter its node, and the one that its storage was rebound to.
    params: Vec<(u32, Option<u32>)>,
    /// Ascending.
    live: Vec<u32>,
    gang: Option<Arc<dyn Gang>>,
    function: Option<Arc<FunctionOptions>>,
}

impl Template {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Hash of all operators.
    pub(crate) fn chain(&self) -> Hash128 {
        self.chain.last().copied().unwrap_or(hash::SEED)
    }

    /// Of each parameter the node that its storage was rebound to, if it was.
    pub(crate) fn rebound(&self) -> impl Iterator<Item = Option<u32>> + '_ {
        self.params.iter().map(|(_, rebound)| *rebound)
    }

    /// The node of a parameter.
    pub(crate) fn param(&self, position: u32) -> Option<&Node> {
        let (node, _) = self.params.get(position as usize)?;
        self.nodes.get(*node as usize)
    }

    /// The nodes whose values are its results, ascending.
    pub(crate) fn live(&self) -> &[u32] {
        &self.live
    }

    /// Whether there are collectives.
    pub(crate) fn has_gang(&self) -> bool {
        self.gang.is_some()
    }

    /// The first operator that reads a number.
    pub(crate) fn reader(&self, class: NumberClass, slot: u32) -> Option<&Node> {
        let word = Input::Number(class, slot).encode();
        self.nodes.iter().find(|node| {
            let (first, count) = (node.first as usize, node.count as usize);
            self.operands[first..first + count].contains(&word)
        })
    }
}

impl Recording {
    /// What was recorded, to be loaded again, with these results.
    pub(crate) fn template(&self, live: Vec<u32>) -> Template {
        Template {
            nodes: self.nodes.clone(),
            chain: self.chain.clone(),
            operands: self.operands.clone(),
            params: self.params.iter().map(|p| (p.node, p.rebound)).collect(),
            live,
            gang: self.gang.clone(),
            function: self.function.clone(),
        }
    }

    /// Makes an empty recording what the template is of, with these values of its parameters.
    pub(crate) fn load(&mut self, template: &Template, values: Vec<DeviceValue>, numbers: Numbers) {
        self.nodes.extend_from_slice(&template.nodes);
        self.chain.extend_from_slice(&template.chain);
        self.operands.extend_from_slice(&template.operands);
        self.storages.resize_with(template.nodes.len(), || None);
        let params = template.params.iter().zip(values);
        self.params
            .extend(params.map(|((node, rebound), value)| Param {
                node: *node,
                value,
                rebound: *rebound,
            }));
        self.numbers = numbers;
        self.gang = template.gang.clone();
        self.function = template.function.clone();
    }
}

impl Numbers {
    /// Another number in the place of one.
    pub(crate) fn set(&mut self, class: NumberClass, slot: u32, number: Number) {
        let slot = slot as usize;
        match (class, number) {
            (NumberClass::F32, number) => self.f32[slot] = number.to_f64() as f32,
            (NumberClass::F64, number) => self.f64[slot] = number.to_f64(),
            (NumberClass::I64, Number::Int(number)) => self.i64[slot] = number,
            (NumberClass::I64, Number::Float(number)) => self.i64[slot] = number as i64,
        }
    }

    /// The places, among those that both have, of different numbers.
    pub(crate) fn differing(&self, other: &Numbers) -> Vec<(NumberClass, u32)> {
        let f32s = self.f32.iter().zip(&other.f32);
        let f32s = f32s.map(|(a, b)| a.to_bits() != b.to_bits());
        let f64s = self.f64.iter().zip(&other.f64);
        let f64s = f64s.map(|(a, b)| a.to_bits() != b.to_bits());
        let i64s = self.i64.iter().zip(&other.i64).map(|(a, b)| a != b);
        let mut places = Vec::new();
        let mut add = |class, differ: &mut dyn Iterator<Item = bool>| {
            places.extend(
                (0..)
                    .zip(differ)
                    .filter(|(_, d)| *d)
                    .map(|(slot, _)| (class, slot)),
            );
        };
        add(NumberClass::F32, &mut { f32s });
        add(NumberClass::F64, &mut { f64s });
        add(NumberClass::I64, &mut { i64s });
        places
    }
}
