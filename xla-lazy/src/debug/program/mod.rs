//! The program that a thread has recorded and not yet run, in forms for people.

mod drawing;

use crate::cache;
use crate::lower::{self, Lowered};
use crate::op::Number;
use crate::sync::{self, Placement};
use crate::trace::{Input, NumberClass, Recording, Trace, flag};
use crate::ty::Ty;
use std::fmt;
use std::panic::Location;
use xla_core::Result;

/// A copy of what was recorded, which further recording and running leave as it is.
pub struct Program {
    nodes: Vec<Node>,
    lowered: Lowered,
    placement: Placement,
}

/// A recorded operator, or a value that enters.
struct Node {
    /// The operator with its attributes.
    operator: String,
    operands: Vec<Operand>,
    ty: Ty,
    location: &'static Location<'static>,
    role: Role,
    /// Whether the next value of the tensor may overwrite this one.
    donated: bool,
}

enum Operand {
    Node(u32),
    /// As people write it.
    Number(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A value that was computed before.
    Parameter,
    /// What a tensor that somebody holds is waiting for.
    Kept,
    /// What others are computed from.
    Inner,
    /// What nothing needs: it is not part of the compiled program.
    Unused,
}

/// The program that the calling thread has recorded for its replica's device since the last sync:
/// what [`crate::sync`] would run now. Nothing is run.
///
/// Values that are kept only for a backward pass that may follow are not shown as kept.
///
/// ```no_run
/// use xla_lazy::{Tensor, debug};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
/// let y = x.mul(2.0)?.exp()?;
/// let program = debug::pending()?;
/// // %0 = parameter f32[2] (at src/main.rs:4:9)
/// // %1 = Mul(%0, 2) f32[2] (at src/main.rs:4:11)
/// // %2 = Exp(%1) f32[2], kept (at src/main.rs:4:20)
/// println!("{program}");
/// println!("{}", program.stablehlo());
/// println!("{}", program.optimized_hlo()?);
/// std::fs::write("program.svg", program.to_svg()).ok();
/// # drop(y);
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// What lowering an operator returns; [`xla_core::Error::NoReplicaContext`] on a thread that belongs
/// to no replica while a launch runs.
pub fn pending() -> Result<Program> {
    let device = crate::spmd::default_device("debug::pending")?;
    let pending = Trace::of_thread(device).snapshot();
    let recording = &pending.recording;
    let extent = sync::whole(&pending);
    let placement = sync::placement(device, recording, &extent, recording.gang.as_ref())?;
    let lowered = lower::lower(recording, &extent, &placement, cache::NAME)?;
    let needed = lower::reachable(recording, &extent);
    let mut donated = vec![false; extent.len];
    for &param in &extent.donors {
        donated[recording.params[param as usize].node as usize] = true;
    }
    let nodes = (0..extent.len).map(|index| {
        let node = &recording.nodes[index];
        let kept = extent.live.binary_search(&(index as u32)).is_ok();
        let role = match (node.has(flag::PARAM), kept, needed[index]) {
            (_, _, false) => Role::Unused,
            (true, _, _) => Role::Parameter,
            (_, true, _) => Role::Kept,
            _ => Role::Inner,
        };
        Node {
            operator: match node.has(flag::PARAM) {
                true => node.entry.name.into(),
                false => format!("{:?}", node.entry),
            },
            operands: operands(recording, index),
            ty: node.ty,
            location: node.location,
            role,
            donated: donated[index],
        }
    });
    Ok(Program {
        nodes: nodes.collect(),
        placement,
        lowered,
    })
}

fn operands(recording: &Recording, index: usize) -> Vec<Operand> {
    let inputs = recording.inputs(&recording.nodes[index]);
    inputs
        .map(|input| match input {
            Input::Node(of) => Operand::Node(of),
            Input::Number(class, slot) => {
                Operand::Number(match (class, recording.numbers.get(class, slot)) {
                    // Widened, it has digits that nobody wrote.
                    (NumberClass::F32, Number::Float(x)) => (x as f32).to_string(),
                    (_, Number::Float(x)) => x.to_string(),
                    (_, Number::Int(i)) => i.to_string(),
                })
            }
        })
        .collect()
}

impl Program {
    /// Operators recorded, values that enter included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The part of it that is needed as StableHLO's text form, as it goes to the compiler.
    pub fn stablehlo(&self) -> &str {
        &self.lowered.text
    }

    /// What XLA makes of it, in HLO's text form. Compiles the program.
    ///
    /// # Errors
    /// The compiler's; [`xla_core::Error::Pjrt`] where the plugin does not export its programs.
    pub fn optimized_hlo(&self) -> Result<String> {
        cache::optimized_hlo(&self.lowered, &self.placement)
    }
}

impl fmt::Display for Program {
    /// An operator a line, with operands, type, and the line that recorded it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "%{index} = {}", node.operator)?;
            if node.role != Role::Parameter {
                f.write_str("(")?;
                for (i, operand) in node.operands.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    match operand {
                        Operand::Node(of) => write!(f, "%{of}")?,
                        Operand::Number(number) => write!(f, "{number}")?,
                    }
                }
                f.write_str(")")?;
            }
            write!(f, " {}", node.ty)?;
            f.write_str(match (node.role, node.donated) {
                (Role::Kept, _) => ", kept",
                (Role::Unused, _) => ", unused",
                (_, true) => ", donated",
                _ => "",
            })?;
            writeln!(f, " (at {})", node.location)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("operators", &self.len())
            .finish_non_exhaustive()
    }
}
