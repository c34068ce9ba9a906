//! The pictures, drawn by hand.

use super::sharding;
use crate::spmd::visualize::in_text;
use crate::spmd::{PartitionSpec, visualize_sharding_svg};
use xla_core::Shape;

const NAMES: [&str; 2] = ["data", "model"];

fn picture(spec: impl Into<PartitionSpec>, shape: &[usize]) -> String {
    in_text(&sharding(&[2, 4], &NAMES, spec), &Shape::new(shape), false)
}

#[test]
fn a_grid_of_two_split_axes() {
    let expected = r#"
[8, 6] as ("data", "model") over 8 devices: data=2, model=4
       0:2     2:4     4:6     6:6
    ┌───────┬───────┬───────┬───────┐
0:4 │ xla:0 │ xla:1 │ xla:2 │ xla:3 │
    ├───────┼───────┼───────┼───────┤
4:8 │ xla:4 │ xla:5 │ xla:6 │ xla:7 │
    └───────┴───────┴───────┴───────┘"#;
    assert_eq!(picture(("data", "model"), &[8, 6]), expected.trim_start());
}

#[test]
fn replicas_share_a_cell() {
    let expected = r#"
[8, 6] as ("data",) over 8 devices: data=2, model=4
        0:6
    ┌─────────┐
0:4 │ xla:0-3 │
    ├─────────┤
4:8 │ xla:4-7 │
    └─────────┘"#;
    assert_eq!(picture("data", &[8, 6]), expected.trim_start());
    let expected = r#"
[16] as ("model",) over 8 devices: data=2, model=4
    0:4       4:8      8:12      12:16
┌─────────┬─────────┬─────────┬─────────┐
│ xla:0,4 │ xla:1,5 │ xla:2,6 │ xla:3,7 │
└─────────┴─────────┴─────────┴─────────┘"#;
    assert_eq!(picture("model", &[16]), expected.trim_start());
    let expected = "
[] as () over 8 devices: data=2, model=4
┌─────────┐
│ xla:0-7 │
└─────────┘";
    assert_eq!(picture((), &[]), expected.trim_start());
}

#[test]
fn a_block_has_the_color_of_the_first_device_that_holds_it() {
    let drawn = |spec: PartitionSpec| {
        let drawn = in_text(&sharding(&[2, 4], &NAMES, spec), &Shape::new(&[8, 8]), true);
        drawn.lines().nth(3).unwrap().to_owned()
    };
    let escape = "\x1b[30;48;5;";
    assert_eq!(
        drawn("data".into()),
        format!("0:4 │{escape}117m xla:0-3 \x1b[0m│")
    );
    let columns = drawn(((), "model").into());
    assert!(columns.starts_with(&format!("0:8 │{escape}117m xla:0,4 \x1b[0m│{escape}150m")));
}

#[test]
fn a_third_split_axis_takes_a_grid_for_each_of_its_blocks() {
    let sharding = sharding(&[2, 2, 2], &["x", "y", "<z>"], ("x", (), "y", "<z>"));
    let shape = Shape::new(&[2, 3, 2, 4]);
    let drawn = in_text(&sharding, &shape, false);
    let headings = drawn.lines().filter(|line| line.starts_with("[:"));
    assert_eq!(
        headings.collect::<Vec<_>>(),
        ["[:, :, :, 0:2]", "[:, :, :, 2:4]"]
    );

    let svg = visualize_sharding_svg(&sharding, &shape);
    assert!(svg.contains(r#"("x", None, "y", "&lt;z&gt;")"#), "{svg}");
    // The background, and a block for each device.
    assert_eq!(svg.matches("<rect").count(), 1 + 8);
    for device in 0..8 {
        assert_eq!(
            svg.matches(&format!("<title>xla:{device}</title>")).count(),
            1
        );
    }
}
