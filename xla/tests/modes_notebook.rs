//! The digits example, unchanged, as a module of a notebook's session; and what one cell makes,
//! another uses.

mod digits;

use digits::{ARGUMENTS, Running, assert_same_as_one_device, installed};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The session compiles the workspace once more, into a library.
const DEADLINE: Duration = Duration::from_secs(540);

/// Each line is a cell: a library of its own, loaded into the session.
const CELLS: &str = r#"
:dep xla = { package = "xla-notebook", path = "ROOT/xla-notebook" }
:dep clap = { version = "4", features = ["derive"] }
:dep indicatif = "0.18"
:dep serde = { version = "1", features = ["derive"] }
use xla::{Launcher, Tensor, dist};
let kept: Tensor = Tensor::from_slice(&[1.0f32, 2.0], [2], ()).unwrap();
dist::init_process_group("xla", "xla://").unwrap();
println!("cell sees {:?}", (&kept + &kept).unwrap().to_vec::<f32>().unwrap());
println!("cell sees rank {} of {}", dist::get_rank().unwrap(), dist::get_world_size().unwrap());
println!("cell sees {:?}", dist::all_reduce(&kept, dist::ReduceOp::Sum).unwrap().to_vec::<f32>().unwrap());
let ranks: Vec<usize> = Launcher::new().run(|rank| Ok::<_, xla::Error>(rank)).unwrap();
println!("cell sees ranks {ranks:?}");
#[path = "ROOT/xla/examples/digits.rs"] mod digits;
digits::main()
"#;

#[test]
fn a_session_of_evcxr() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = root.expect("a package of a workspace lies in its folder");
    // Not below the workspace, which would claim the session's package as one of its own; with the
    // versions that the workspace has.
    let temporary = tempfile::tempdir().expect("temporary folders can be made");
    let folder = temporary.path();
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("versions are locked");
    let cells = folder.join("cells.txt");
    let text = CELLS.replace("ROOT", &root.to_string_lossy());
    std::fs::write(&cells, text).expect("the tests' folder can be written to");

    let mut command = Command::new(installed("XLA_TEST_EVCXR"));
    command.args(["--opt", "0", "--"]);
    command.args(ARGUMENTS).arg("--data");
    command.arg(root.join("xla/examples/data/mnist"));
    command.env("EVCXR_TMPDIR", folder);
    // Not the user's own start-up file.
    command.env("EVCXR_CONFIG_DIR", folder);
    command.env("CPU_NUM_DEVICES", "4");
    // Where cargo has the tests look for libraries, another build of the session's may lie.
    command.env_remove("LD_LIBRARY_PATH");
    let cells = File::open(cells).expect("it has just been written");
    let printed = Running::reading(&mut command, cells).printed_within(DEADLINE);
    for seen in [
        "[2.0, 4.0]",
        "rank 0 of 1",
        "[1.0, 2.0]",
        "ranks [0, 1, 2, 3]",
    ] {
        let line = format!("cell sees {seen}");
        assert!(
            printed.text.contains(&line),
            "no {line:?} in\n{}",
            printed.text
        );
    }
    assert_same_as_one_device(&printed, 4);
}
