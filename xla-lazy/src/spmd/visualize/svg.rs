//! The picture as a drawing.

use super::text::{name, range, shortened};
use super::{Grid, Picture};
use std::fmt::{self, Write as _};

/// Lengths in pixels.
const CELL: (usize, usize) = (112, 48);
const MARGIN: usize = 16;
/// Room for a row's range, and for a line of text.
const LABEL: usize = 80;
const LINE: usize = 24;

pub(super) fn draw(picture: &Picture) -> String {
    let columns = picture.grids.iter().map(|grid| grid.columns.len()).max();
    // The title is about 8 pixels a character.
    let width = (LABEL + columns.unwrap_or(0) * CELL.0).max(picture.title.len() * 8) + 2 * MARGIN;
    let height = LINE + picture.grids.iter().map(height).sum::<usize>() + 2 * MARGIN;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, picture, width, height);
    out
}

/// A heading, the columns' ranges, the rows, and some space.
fn height(grid: &Grid) -> usize {
    let place = if grid.place.is_some() { LINE } else { 0 };
    place + LINE + grid.rows.len() * CELL.1 + MARGIN
}

fn write(out: &mut String, picture: &Picture, width: usize, height: usize) -> fmt::Result {
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="monospace" font-size="13">"#
    )?;
    writeln!(
        out,
        r#"<rect width="{width}" height="{height}" fill="white"/>"#
    )?;
    let mut top = MARGIN;
    text(out, MARGIN, top + LINE / 2, "start", &picture.title)?;
    top += LINE;
    for grid in &picture.grids {
        write_grid(out, grid, top)?;
        top += self::height(grid);
    }
    writeln!(out, "</svg>")
}

fn write_grid(out: &mut String, grid: &Grid, mut top: usize) -> fmt::Result {
    if let Some(place) = &grid.place {
        text(out, MARGIN, top + LINE / 2, "start", place)?;
        top += LINE;
    }
    let left = MARGIN + LABEL;
    for (i, column) in grid.columns.iter().enumerate() {
        let label = column.as_ref().map(range).unwrap_or_default();
        text(
            out,
            left + i * CELL.0 + CELL.0 / 2,
            top + LINE / 2,
            "middle",
            &label,
        )?;
    }
    top += LINE;
    for (row, cells) in grid.rows.iter().zip(&grid.cells) {
        let middle = top + CELL.1 / 2;
        let label = row.as_ref().map(range).unwrap_or_default();
        text(out, left - 8, middle, "end", &label)?;
        for (i, devices) in cells.iter().enumerate() {
            let x = left + i * CELL.0;
            // By the golden angle, so that neighbours differ however many there are.
            let hue = devices.first().map_or(0, |first| first * 137 % 360);
            writeln!(
                out,
                r#"<rect x="{x}" y="{top}" width="{}" height="{}" fill="hsl({hue},60%,80%)" stroke="black"><title>{}</title></rect>"#,
                CELL.0,
                CELL.1,
                name(devices)
            )?;
            text(out, x + CELL.0 / 2, middle, "middle", &shortened(devices))?;
        }
        top += CELL.1;
    }
    Ok(())
}

fn text(out: &mut String, x: usize, y: usize, anchor: &str, text: &str) -> fmt::Result {
    if text.is_empty() {
        return Ok(());
    }
    // The names of axes are the user's.
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    writeln!(
        out,
        r#"<text x="{x}" y="{y}" text-anchor="{anchor}" dominant-baseline="central">{text}</text>"#
    )
}
