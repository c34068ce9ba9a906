//! An optimised program as text, for people.

use crate::executable::OptimizedProgram;
use pjrt::protos::xla as proto;
use prost::Message;
use proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto};
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use xla_core::{Error, Result};

impl OptimizedProgram {
    /// The program in HLO's text form: its computations, callees first, each instruction with its
    /// shape, layout, operands, and what else decides how it runs. It is for reading: attributes
    /// that seldom matter are left out, and large constants are abbreviated.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format other than `hlo` and `hlo_with_config`;
    /// [`Error::Internal`] when the bytes are not what the format says.
    pub fn to_text(&self) -> Result<String> {
        let damaged = |_| Error::Internal {
            what: "an optimised program",
            expected: "the plugin's bytes to be the message that it names".into(),
        };
        let code = self.code.as_slice();
        let module = match self.format.as_str() {
            "hlo" => HloModuleProto::decode(code).map_err(damaged)?,
            "hlo_with_config" => proto::HloModuleProtoWithConfig::decode(code)
                .map_err(damaged)?
                .hlo_module
                .unwrap_or_default(),
            _ => {
                return Err(Error::Unsupported {
                    what: "optimised programs in this format",
                    since: (0, 0),
                });
            }
        };
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write_module(&mut text, &module);
        Ok(text)
    }
}

fn write_module(out: &mut String, module: &HloModuleProto) -> fmt::Result {
    let names: HashMap<i64, &str> = module
        .computations
        .iter()
        .map(|computation| (computation.id, computation.name.as_str()))
        .collect();
    writeln!(out, "HloModule {}", module.name)?;
    for computation in &module.computations {
        let entry = computation.id == module.entry_computation_id;
        write_computation(out, computation, entry, &names)?;
    }
    Ok(())
}

fn write_computation(
    out: &mut String,
    computation: &HloComputationProto,
    entry: bool,
    computations: &HashMap<i64, &str>,
) -> fmt::Result {
    let names: HashMap<i64, &str> = computation
        .instructions
        .iter()
        .map(|instruction| (instruction.id, instruction.name.as_str()))
        .collect();
    let prefix = if entry { "ENTRY " } else { "" };
    writeln!(out, "\n{prefix}%{} {{", computation.name)?;
    for instruction in &computation.instructions {
        let root = match instruction.id == computation.root_id {
            true => "ROOT ",
            false => "",
        };
        write!(out, "  {root}%{} = ", instruction.name)?;
        write_shape(out, instruction.shape.as_ref())?;
        write!(out, " {}(", instruction.opcode)?;
        match instruction.opcode.as_str() {
            "parameter" => write!(out, "{}", instruction.parameter_number)?,
            "constant" => write_literal(out, instruction.literal.as_ref())?,
            _ => write_names(out, &instruction.operand_ids, &names)?,
        }
        out.push(')');
        write_attributes(out, instruction, computations)?;
        out.push('\n');
    }
    out.push_str("}\n");
    Ok(())
}

fn write_names(out: &mut String, ids: &[i64], names: &HashMap<i64, &str>) -> fmt::Result {
    for (i, id) in ids.iter().enumerate() {
        let separator = if i > 0 { ", " } else { "" };
        match names.get(id) {
            Some(name) => write!(out, "{separator}%{name}")?,
            None => write!(out, "{separator}%{id}")?,
        }
    }
    Ok(())
}

fn write_shape(out: &mut String, shape: Option<&ShapeProto>) -> fmt::Result {
    let Some(shape) = shape else {
        return out.write_str("()");
    };
    if shape.element_type() == proto::PrimitiveType::Tuple {
        out.push('(');
        for (i, part) in shape.tuple_shapes.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            write_shape(out, Some(part))?;
        }
        out.push(')');
        return Ok(());
    }
    let dtype = shape.element_type().as_str_name().to_ascii_lowercase();
    write!(out, "{dtype}[{}]", list(&shape.dimensions))?;
    match &shape.layout {
        Some(layout) if !shape.dimensions.is_empty() => {
            write!(out, "{{{}}}", list(&layout.minor_to_major))
        }
        _ => Ok(()),
    }
}

/// Values of a constant that are written out.
const SHOWN: usize = 8;

fn write_literal(out: &mut String, literal: Option<&proto::LiteralProto>) -> fmt::Result {
    let Some(literal) = literal else {
        return Ok(());
    };
    fn values<T: fmt::Display>(values: &[T]) -> Option<String> {
        (1..=SHOWN)
            .contains(&values.len())
            .then(|| list_of(values.iter()))
    }
    let shown = values(&literal.f32s)
        .or_else(|| values(&literal.f64s))
        .or_else(|| values(&literal.s32s))
        .or_else(|| values(&literal.s64s))
        .or_else(|| values(&literal.u32s))
        .or_else(|| values(&literal.u64s))
        .or_else(|| values(&literal.preds));
    out.write_str(shown.as_deref().unwrap_or("…"))
}

fn write_attributes(
    out: &mut String,
    i: &HloInstructionProto,
    computations: &HashMap<i64, &str>,
) -> fmt::Result {
    if !i.dimensions.is_empty() {
        write!(out, ", dimensions={{{}}}", list(&i.dimensions))?;
    }
    if i.opcode == "get-tuple-element" {
        write!(out, ", index={}", i.tuple_index)?;
    }
    if !i.slice_dimensions.is_empty() {
        let ranges = i.slice_dimensions.iter();
        let ranges = list_of(ranges.map(|d| format!("[{}:{}:{}]", d.start, d.limit, d.stride)));
        write!(out, ", slice={{{ranges}}}")?;
    }
    if !i.dynamic_slice_sizes.is_empty() {
        write!(out, ", sizes={{{}}}", list(&i.dynamic_slice_sizes))?;
    }
    if let Some(padding) = &i.padding_config {
        let axes = padding.dimensions.iter().map(|d| {
            let (low, high) = (d.edge_padding_low, d.edge_padding_high);
            format!("{low}_{high}_{}", d.interior_padding)
        });
        write!(out, ", padding={}", axes.collect::<Vec<_>>().join("x"))?;
    }
    if let Some(dot) = &i.dot_dimension_numbers {
        let (left, right) = (
            &dot.lhs_contracting_dimensions,
            &dot.rhs_contracting_dimensions,
        );
        write!(out, ", contracting={{{}}}x{{{}}}", list(left), list(right))?;
        if !dot.lhs_batch_dimensions.is_empty() {
            let (left, right) = (&dot.lhs_batch_dimensions, &dot.rhs_batch_dimensions);
            write!(out, ", batch={{{}}}x{{{}}}", list(left), list(right))?;
        }
    }
    if let Some(window) = i.window.as_ref().filter(|w| !w.dimensions.is_empty()) {
        write_window(out, window)?;
    }
    if let Some(convolution) = &i.convolution_dimension_numbers {
        write_convolution(out, convolution)?;
    }
    if i.feature_group_count > 1 {
        write!(out, ", feature_group_count={}", i.feature_group_count)?;
    }
    for (name, value) in [
        ("kind", &i.fusion_kind),
        ("direction", &i.comparison_direction),
        ("custom_call_target", &i.custom_call_target),
    ] {
        if !value.is_empty() {
            write!(out, ", {name}={value}")?;
        }
    }
    if i.channel_id > 0 {
        write!(out, ", channel_id={}", i.channel_id)?;
    }
    if !i.called_computation_ids.is_empty() {
        out.push_str(", calls=");
        write_names(out, &i.called_computation_ids, computations)?;
    }
    match &i.metadata {
        Some(metadata) if !metadata.op_name.is_empty() => {
            write!(out, ", op_name={:?}", metadata.op_name)
        }
        _ => Ok(()),
    }
}

/// An attribute of a window's axes and the value that says nothing.
type Facet = (&'static str, fn(&proto::WindowDimension) -> String, String);

fn write_window(out: &mut String, window: &proto::Window) -> fmt::Result {
    let facets: [Facet; 5] = [
        ("size", |d| d.size.to_string(), String::new()),
        ("stride", |d| d.stride.to_string(), "1".into()),
        (
            "pad",
            |d| format!("{}_{}", d.padding_low, d.padding_high),
            "0_0".into(),
        ),
        ("dilate", |d| d.window_dilation.to_string(), "1".into()),
        ("base_dilate", |d| d.base_dilation.to_string(), "1".into()),
    ];
    let mut said = Vec::new();
    for (name, of, usual) in facets {
        let axes: Vec<String> = window.dimensions.iter().map(of).collect();
        if axes.iter().any(|axis| *axis != usual) {
            said.push(format!("{name}={}", axes.join("x")));
        }
    }
    write!(out, ", window={{{}}}", said.join(" "))
}

/// As `b01f_01io->b01f`: what each axis is.
fn write_convolution(out: &mut String, c: &proto::ConvolutionDimensionNumbers) -> fmt::Result {
    let axes = |first: (i64, char), second: (i64, char), spatial: &[i64]| -> String {
        let mut named: Vec<(i64, String)> = [first, second]
            .map(|(axis, name)| (axis, name.to_string()))
            .into();
        named.extend((0..).zip(spatial).map(|(i, axis)| (*axis, i.to_string())));
        named.sort();
        named.into_iter().map(|(_, name)| name).collect()
    };
    let input = axes(
        (c.input_batch_dimension, 'b'),
        (c.input_feature_dimension, 'f'),
        &c.input_spatial_dimensions,
    );
    let kernel = axes(
        (c.kernel_input_feature_dimension, 'i'),
        (c.kernel_output_feature_dimension, 'o'),
        &c.kernel_spatial_dimensions,
    );
    let output = axes(
        (c.output_batch_dimension, 'b'),
        (c.output_feature_dimension, 'f'),
        &c.output_spatial_dimensions,
    );
    write!(out, ", dim_labels={input}_{kernel}->{output}")
}

fn list(numbers: &[i64]) -> String {
    list_of(numbers.iter())
}

fn list_of(items: impl Iterator<Item = impl fmt::Display>) -> String {
    let mut text = String::new();
    for (i, item) in items.enumerate() {
        let separator = if i > 0 { "," } else { "" };
        let _ = write!(text, "{separator}{item}");
    }
    text
}
