//! The picture in a terminal.

use super::{Grid, Picture};
use std::ops::Range;

/// Backgrounds on which black is read well, of the 256 colours of terminals.
const COLORS: [u8; 12] = [117, 150, 222, 210, 183, 159, 186, 217, 146, 114, 180, 211];

/// The widest name of a block's devices that is written in full.
const WIDEST: usize = 24;

pub(super) fn draw(picture: &Picture, colors: bool) -> String {
    let mut lines = vec![picture.title.clone()];
    for grid in &picture.grids {
        lines.extend(grid.place.clone());
        draw_grid(grid, colors, &mut lines);
    }
    lines.join("\n")
}

fn draw_grid(grid: &Grid, colors: bool, lines: &mut Vec<String>) {
    let optional = |r: &Option<Range<usize>>| r.as_ref().map(range).unwrap_or_default();
    let rows: Vec<String> = grid.rows.iter().map(optional).collect();
    let columns: Vec<String> = grid.columns.iter().map(optional).collect();
    let names: Vec<Vec<String>> = grid
        .cells
        .iter()
        .map(|row| row.iter().map(|devices| shortened(devices)).collect())
        .collect();
    let widest = |texts: &mut dyn Iterator<Item = &String>| texts.map(|t| t.chars().count()).max();
    let width = widest(&mut names.iter().flatten().chain(&columns)).unwrap_or(0) + 2;
    let margin = widest(&mut rows.iter()).unwrap_or(0);
    let gap = usize::from(margin > 0);

    let rule = |left: &str, middle: &str, right: &str| {
        let cells = vec!["─".repeat(width); columns.len()].join(middle);
        format!("{}{left}{cells}{right}", " ".repeat(margin + gap))
    };
    if columns.iter().any(|column| !column.is_empty()) {
        let columns: Vec<_> = columns.iter().map(|c| format!("{c:^width$}")).collect();
        let heading = format!("{} {}", " ".repeat(margin + gap), columns.join(" "));
        lines.push(heading.trim_end().to_owned());
    }
    lines.push(rule("┌", "┬", "┐"));
    for (i, (row, cells)) in rows.iter().zip(&names).enumerate() {
        if i > 0 {
            lines.push(rule("├", "┼", "┤"));
        }
        let cells: Vec<_> = cells
            .iter()
            .zip(&grid.cells[i])
            .map(|(name, devices)| cell(&format!("{name:^width$}"), devices, colors))
            .collect();
        lines.push(format!(
            "{row:>margin$}{}│{}│",
            " ".repeat(gap),
            cells.join("│")
        ));
    }
    lines.push(rule("└", "┴", "┘"));
}

/// The same devices have the same colour in every picture.
fn cell(text: &str, devices: &[usize], colors: bool) -> String {
    match devices.first() {
        Some(first) if colors => {
            format!(
                "\x1b[30;48;5;{}m{text}\x1b[0m",
                COLORS[first % COLORS.len()]
            )
        }
        _ => text.to_owned(),
    }
}

pub(super) fn range(range: &Range<usize>) -> String {
    format!("{}:{}", range.start, range.end)
}

/// `xla:0`, `xla:0,4`, `xla:0-3`.
pub(super) fn name(devices: &[usize]) -> String {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &device in devices {
        match runs.last_mut() {
            Some(run) if run.end == device => run.end += 1,
            _ => runs.push(device..device + 1),
        }
    }
    let run = |run: &Range<usize>| match run.len() {
        1 => run.start.to_string(),
        2 => format!("{},{}", run.start, run.end - 1),
        _ => format!("{}-{}", run.start, run.end - 1),
    };
    let runs: Vec<_> = runs.iter().map(run).collect();
    format!("xla:{}", runs.join(","))
}

/// The name, or its beginning and how many devices there are.
pub(super) fn shortened(devices: &[usize]) -> String {
    let name = name(devices);
    if name.len() <= WIDEST {
        return name;
    }
    let whole = name[..WIDEST].rfind(',').unwrap_or(WIDEST);
    format!("{},… ({} devices)", &name[..whole], devices.len())
}
