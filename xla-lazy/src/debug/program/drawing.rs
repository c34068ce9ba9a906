//! A program as a graph: for Graphviz, and drawn as it is.

use super::{Node, Operand, Program, Role};
use std::fmt::{self, Write as _};
use std::path::Path;

/// Characters of an operator with its attributes that a drawing shows.
const SHOWN: usize = 48;

/// Height of a layer and of a box, width of a character, and the gap between two boxes, in pixels.
const LAYER: f64 = 84.0;
const BOX: f64 = 52.0;
const CHARACTER: f64 = 7.0;
const GAP: f64 = 18.0;

impl Role {
    fn colour(self) -> &'static str {
        match self {
            Role::Parameter => "#d7e8fa",
            Role::Kept => "#c8e6c4",
            Role::Inner => "#f7f7f7",
            Role::Unused => "#e0e0e0",
        }
    }
}

impl Node {
    /// What a drawing says of it, a line each: operator, type, line of the program.
    fn label(&self) -> [String; 3] {
        let mut operator = self.operator.clone();
        let mut numbers = self.operands.iter().filter_map(|operand| match operand {
            Operand::Number(number) => Some(number),
            Operand::Node(_) => None,
        });
        if let Some(first) = numbers.next() {
            let _ = write!(operator, " ({first}");
            for number in numbers {
                let _ = write!(operator, ", {number}");
            }
            operator.push(')');
        }
        if operator.chars().count() > SHOWN {
            operator = operator.chars().take(SHOWN - 1).collect();
            operator.push('…');
        }
        let file = Path::new(self.location.file()).file_name();
        let file = file.map_or_else(Default::default, |name| name.to_string_lossy());
        let mut ty = self.ty.to_string();
        if self.donated {
            ty.push_str(", donated");
        }
        [operator, ty, format!("{file}:{}", self.location.line())]
    }

    fn operand_nodes(&self) -> impl Iterator<Item = usize> {
        self.operands.iter().filter_map(|operand| match operand {
            Operand::Node(of) => Some(*of as usize),
            Operand::Number(_) => None,
        })
    }
}

impl Program {
    /// The program as a graph in Graphviz's DOT language: values that enter in blue, those that are
    /// kept in green, and in grey what nothing needs.
    pub fn to_dot(&self) -> String {
        let mut out = String::from("digraph program {\n  node [shape=box, style=filled];\n");
        for (index, node) in self.nodes.iter().enumerate() {
            let label = node
                .label()
                .map(|l| l.replace('\\', "\\\\").replace('"', "\\\""));
            let _ = writeln!(
                out,
                "  n{index} [label=\"{}\", fillcolor=\"{}\"];",
                label.join("\\n"),
                node.role.colour()
            );
            for of in node.operand_nodes() {
                let _ = writeln!(out, "  n{of} -> n{index};");
            }
        }
        out.push_str("}\n");
        out
    }

    /// The graph drawn: each operator in a layer below its operands. The picture of a large program
    /// is made as fast as that of a small one, but it is Graphviz that untangles it, from
    /// [`Program::to_dot`].
    pub fn to_svg(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_svg(&mut out);
        out
    }

    /// Below the operands; a value that enters right above what first reads it.
    fn layers(&self) -> Vec<usize> {
        let mut layer = vec![0; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            layer[index] = node
                .operand_nodes()
                .map(|of| layer[of] + 1)
                .max()
                .unwrap_or(0);
        }
        let mut first_read = vec![usize::MAX; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for of in node.operand_nodes() {
                first_read[of] = first_read[of].min(layer[index]);
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.operand_nodes().next().is_none() && first_read[index] != usize::MAX {
                layer[index] = first_read[index] - 1;
            }
        }
        layer
    }

    /// Where each box is: the middle of its upper edge, and its width.
    fn places(&self, labels: &[[String; 3]]) -> Vec<(f64, f64, f64)> {
        let layer = self.layers();
        let width = |index: usize| {
            let longest = labels[index].iter().map(|line| line.chars().count()).max();
            longest.unwrap_or(0) as f64 * CHARACTER + 2.0 * GAP
        };
        let depth = layer.iter().max().map_or(0, |last| last + 1);
        let mut rows: Vec<Vec<usize>> = vec![Vec::new(); depth];
        for (index, at) in layer.iter().enumerate() {
            rows[*at].push(index);
        }
        let mut places = vec![(0.0, 0.0, 0.0); self.nodes.len()];
        for (at, row) in rows.iter_mut().enumerate() {
            // Under the middle of what they read, so that lines seldom cross.
            let wish = |index: usize| {
                let operands = self.nodes[index].operand_nodes();
                let (sum, count) = operands.fold((0.0, 0), |(s, n), of| (s + places[of].0, n + 1));
                if count == 0 {
                    0.0
                } else {
                    sum / f64::from(count)
                }
            };
            let wishes: Vec<(f64, usize)> = row.iter().map(|&index| (wish(index), index)).collect();
            let mut wishes = wishes;
            wishes.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut free = GAP;
            for (wish, index) in wishes {
                let width = width(index);
                let left = (wish - width / 2.0).max(free);
                places[index] = (left + width / 2.0, GAP + at as f64 * LAYER, width);
                free = left + width + GAP;
            }
        }
        places
    }

    fn write_svg(&self, out: &mut String) -> fmt::Result {
        let labels: Vec<[String; 3]> = self.nodes.iter().map(Node::label).collect();
        let places = self.places(&labels);
        let right = places
            .iter()
            .map(|(x, _, w)| x + w / 2.0)
            .fold(0.0, f64::max);
        let bottom = places.iter().map(|(_, y, _)| y + BOX).fold(0.0, f64::max);
        let (right, bottom) = (right + GAP, bottom + GAP);
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{right:.0}\" height=\"{bottom:.0}\" \
             font-family=\"monospace\" font-size=\"11\" text-anchor=\"middle\">"
        )?;
        writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>")?;
        for (index, node) in self.nodes.iter().enumerate() {
            let (x, y, _) = places[index];
            for of in node.operand_nodes() {
                let (from_x, from_y, _) = places[of];
                let from_y = from_y + BOX;
                let bend = (y - from_y) / 2.0;
                writeln!(
                    out,
                    "<path d=\"M{from_x:.1} {from_y:.1}C{from_x:.1} {:.1} {x:.1} {:.1} {x:.1} {y:.1}\" \
                     fill=\"none\" stroke=\"#888\"/>",
                    from_y + bend,
                    y - bend,
                )?;
            }
        }
        for ((node, label), (x, y, width)) in self.nodes.iter().zip(&labels).zip(places) {
            writeln!(
                out,
                "<g><title>{}</title><rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                 height=\"{BOX}\" rx=\"4\" fill=\"{}\" stroke=\"#555\"/>",
                escaped(&format!("{} at {}", node.operator, node.location)),
                x - width / 2.0,
                node.role.colour(),
            )?;
            for (line, row) in label.iter().zip([16.0, 31.0, 46.0]) {
                let text = escaped(line);
                writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\">{text}</text>", y + row)?;
            }
            out.push_str("</g>\n");
        }
        out.push_str("</svg>\n");
        Ok(())
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
