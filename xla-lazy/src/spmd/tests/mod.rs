//! Meshes and shardings against JAX's, and against what their definitions say.

mod jax;
mod pictures;

use super::{Mesh, NamedSharding, PartitionSpec};
use std::hash::{Hash, Hasher};
use xla_core::{Error, Shape, Tiling};

fn mesh_of(shape: &[usize], names: &[&str]) -> Mesh {
    let devices: Vec<usize> = (0..shape.iter().product()).collect();
    Mesh::among(devices.len(), &devices, shape, names).unwrap()
}

fn sharding(shape: &[usize], names: &[&str], spec: impl Into<PartitionSpec>) -> NamedSharding {
    NamedSharding::new(&mesh_of(shape, names), spec).unwrap()
}

fn tiling(dims: &[usize], devices: &[usize], replicate_last: bool) -> Tiling {
    Tiling {
        dims: dims.to_vec(),
        devices: devices.to_vec(),
        replicate_last,
    }
}

/// The tiles by which the partitions hold the blocks that the sharding gives them.
fn tiles_of(sharding: &NamedSharding, rank: usize) -> Tiling {
    let mut dims = sharding.tiles(rank);
    let count = sharding.mesh().len();
    let place = |position: &usize| {
        let block = sharding.block(rank, *position);
        let block = block
            .iter()
            .zip(&dims)
            .fold(0, |place, (at, n)| place * n + at);
        (block, sharding.replica_id(rank, *position))
    };
    let mut devices: Vec<usize> = (0..count).collect();
    devices.sort_by_key(place);
    dims.push(count / dims.iter().product::<usize>());
    Tiling {
        dims,
        devices,
        replicate_last: true,
    }
}

#[test]
fn shards_and_programs_are_as_jax_has_them() {
    for case in jax::cases() {
        let (grid, names) = case.mesh;
        let sharding = sharding(grid, names, &case.spec);
        let shape = Shape::new(case.shape);
        assert_eq!(
            sharding.shard_shape(&shape).dims(),
            case.shard,
            "{sharding}"
        );
        assert_eq!(sharding.padded_shape(&shape), shape);
        let blocks: Vec<String> = (0..8)
            .map(|position| {
                let index = sharding.shard_index(&shape, position);
                let index: Vec<_> = index
                    .iter()
                    .map(|r| format!("{}:{}", r.start, r.end))
                    .collect();
                let replica = sharding.replica_id(shape.rank(), position);
                format!("{}#{replica}", index.join(","))
            })
            .collect();
        assert_eq!(blocks.join(" "), case.blocks, "{sharding}");
        assert_eq!(sharding.to_gspmd(shape.rank()), case.gspmd, "{sharding}");
        assert_eq!(sharding.is_replicated(), case.assignment.is_empty());
        assert_eq!(
            NamedSharding::from_tiles(&sharding.mesh(), &of_text(case.gspmd, case.assignment)),
            Some(sharding)
        );
    }
}

/// The tiling that a text like `{devices=[2,4]<=[8]}` is of; the devices are given, since they are
/// what a reader of the text could get wrong.
fn of_text(text: &str, assignment: &[usize]) -> Tiling {
    let dims = text
        .strip_prefix("{devices=[")
        .and_then(|rest| rest.split(']').next());
    let numbers = dims.into_iter().flat_map(|dims| dims.split(','));
    let dims: Vec<usize> = numbers.map(|n| n.parse().unwrap()).collect();
    tiling(&dims, assignment, text.contains("last_tile_dim_replicate"))
}

#[test]
fn uneven_axes_are_in_blocks_of_the_length_rounded_up() {
    // torch.arange(10).chunk(4) has 3, 3, 3 and 1 elements.
    let rows = sharding(&[4], &["x"], "x");
    let index = |sharding: &NamedSharding, shape: &[usize]| -> Vec<_> {
        let shape = Shape::new(shape);
        (0..4)
            .map(|p| sharding.shard_index(&shape, p)[0].clone())
            .collect()
    };
    assert_eq!(index(&rows, &[10, 2]), [0..3, 3..6, 6..9, 9..10]);
    assert_eq!(rows.shard_shape(&Shape::new(&[10, 2])).dims(), [3, 2]);
    assert_eq!(rows.padded_shape(&Shape::new(&[10, 2])).dims(), [12, 2]);
    // Two devices would do: the others have nothing.
    assert_eq!(index(&rows, &[2]), [0..1, 1..2, 2..2, 2..2]);
    assert_eq!(index(&rows, &[5]), [0..2, 2..4, 4..5, 5..5]);
    assert_eq!(index(&rows, &[0]), [0..0, 0..0, 0..0, 0..0]);
    assert_eq!(rows.padded_shape(&Shape::new(&[0])).dims(), [0]);
}

#[test]
fn parts_of_an_axis_are_found_and_written() {
    let mesh = mesh_of(&[4], &["x"]);
    let ordered = [0, 1, 2, 3];
    let swapped = [0, 2, 1, 3];
    for (tiles, sdy, gspmd) in [
        // What a reshape of 4 elements, one on each device, to 2 × 2 is spread by.
        (
            tiling(&[2, 2], &ordered, false),
            r#"<@mesh, [{"x":(1)2}, {"x":(2)2}]>"#,
            "{devices=[2,2]<=[4]}",
        ),
        (
            tiling(&[2, 2], &swapped, false),
            r#"<@mesh, [{"x":(2)2}, {"x":(1)2}]>"#,
            "{devices=[2,2]<=[2,2]T(1,0)}",
        ),
        (
            tiling(&[2, 1, 2], &ordered, true),
            r#"<@mesh, [{"x":(1)2}, {}]>"#,
            "{devices=[2,1,2]<=[4] last_tile_dim_replicate}",
        ),
        (
            tiling(&[1, 2, 2], &swapped, true),
            r#"<@mesh, [{}, {"x":(2)2}]>"#,
            "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
        ),
        (
            tiling(&[4, 1], &swapped, false),
            r#"<@mesh, [{"x":(2)2, "x":(1)2}, {}]>"#,
            "{devices=[4,1]<=[2,2]T(1,0)}",
        ),
    ] {
        let found = NamedSharding::from_tiles(&mesh, &tiles).unwrap();
        assert_eq!(found.to_sdy(2), sdy);
        assert_eq!(found.to_gspmd(2), gspmd);
        assert_eq!(found.tiles(2), tiles.tiles());
    }
    // Of axes with several prime factors, too.
    let mesh = mesh_of(&[6, 2], &["x", "y"]);
    let columns = tiling(&[3, 4], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], false);
    let found = NamedSharding::from_tiles(&mesh, &columns).unwrap();
    assert_eq!(
        found.to_string(),
        r#"("x":(1)3, ("x":(3)2, "y")) over 12 devices: x=6, y=2"#
    );
    assert_eq!(found.to_gspmd(2), "{devices=[3,4]<=[12]}");
}

#[test]
fn what_no_axes_say_is_none() {
    let mesh = mesh_of(&[4], &["x"]);
    for tiles in [
        // In no order that digits have.
        tiling(&[4], &[0, 1, 3, 2], false),
        tiling(&[4], &[1, 0, 2, 3], false),
        // Another number of partitions; one that is there twice; one that is not there.
        tiling(&[2], &[0, 1], false),
        tiling(&[4], &[0, 1, 1, 3], false),
        tiling(&[4], &[0, 1, 2, 4], false),
        tiling(&[4], &[0, 1, 2], false),
    ] {
        assert_eq!(NamedSharding::from_tiles(&mesh, &tiles), None, "{tiles:?}");
    }
    // A diagonal: one step along the mesh is one along both axes.
    let mesh = mesh_of(&[2, 2], &["x", "y"]);
    let diagonal = tiling(&[2, 2], &[0, 2, 3, 1], false);
    assert_eq!(NamedSharding::from_tiles(&mesh, &diagonal), None);
}

#[test]
fn every_sharding_of_a_mesh_is_found_again_from_its_tiles() {
    let names = ["x", "y", "z"];
    let mesh = mesh_of(&[2, 3, 4], &names);
    let mut seen = 0;
    // Each axis of the mesh is left out, or splits one of two axes, in every order.
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        for choice in 0..27 {
            let mut axes = [vec![], vec![]];
            for (i, axis) in order.into_iter().enumerate() {
                if let Some(axes) = axes.get_mut(choice / 3usize.pow(i as u32) % 3) {
                    axes.push(names[axis]);
                }
            }
            let spec = PartitionSpec::new(axes.iter().map(Vec::as_slice));
            let sharding = NamedSharding::new(&mesh, spec).unwrap();
            let tiles = tiles_of(&sharding, 2);
            assert_eq!(
                NamedSharding::from_tiles(&mesh, &tiles).as_ref(),
                Some(&sharding)
            );
            seen += 1;
        }
    }
    assert_eq!(seen, 6 * 27);
}

#[test]
fn meshes_of_the_same_devices_are_one() {
    let mesh = mesh_of(&[2, 2], &["data", "model"]);
    assert_eq!(mesh, mesh_of(&[2, 2], &["data", "model"]));
    assert_eq!(mesh.device(), mesh_of(&[2, 2], &["data", "model"]).device());
    assert_eq!(Mesh::of(mesh.device()), Some(mesh));
    assert_eq!(Mesh::of(xla_core::Device::new(0)), None);
    let reversed = Mesh::among(4, &[3, 2, 1, 0], &[2, 2], &["data", "model"]).unwrap();
    assert_ne!(mesh, reversed);
    assert_ne!(mesh.device(), reversed.device());
    assert_eq!(mesh.to_string(), "4 devices: data=2, model=2");
    assert_eq!(mesh.to_sdy(), r#"sdy.mesh @mesh = <["data"=2, "model"=2]>"#);
    assert_eq!(mesh.coordinates(2), [1, 0]);
    assert_eq!(mesh.axis_size("model").unwrap(), 2);
}

#[test]
fn specifications_that_mean_the_same_are_equal() {
    let hash = |spec: &PartitionSpec| {
        let mut hasher = std::hash::DefaultHasher::new();
        spec.hash(&mut hasher);
        hasher.finish()
    };
    let short = PartitionSpec::from("data");
    for same in [
        ("data", ()).into(),
        [Some("data"), None].into(),
        PartitionSpec::new([["data"].as_slice(), &[], &[]]),
    ] {
        assert_eq!(short, same);
        assert_eq!(hash(&short), hash(&same));
    }
    assert_ne!(short, ((), "data").into());
    assert_ne!(PartitionSpec::from([("x", "y")]), [("y", "x")].into());
    assert_eq!(PartitionSpec::replicated(), ((), ()).into());
}

#[test]
fn what_does_not_fit_says_both_sides() {
    let mesh_error = |devices: &[usize], shape: &[usize], names: &[&str]| {
        let error = Mesh::among(4, devices, shape, names).unwrap_err();
        assert!(matches!(error, Error::Mesh { .. }));
        error.to_string()
    };
    let all = [0, 1, 2, 3];
    for (error, both) in [
        (
            mesh_error(&[0, 1, 2, 3, 4, 5, 6, 7], &[2, 4], &["x", "y"]),
            ["this process has 4", "8 devices with xla:4"],
        ),
        (
            mesh_error(&[0, 4], &[2], &["x"]),
            ["this process has 4", "xla:4"],
        ),
        (
            mesh_error(&[0, 1, 0], &[3], &["x"]),
            ["each device once", "xla:0 twice"],
        ),
        (
            mesh_error(&all, &[2, 4], &["x", "y"]),
            ["4 devices given", "[2, 4], which holds 8"],
        ),
        (
            mesh_error(&[], &[0], &["x"]),
            ["0 devices given", "which holds 0"],
        ),
        (
            mesh_error(&all, &[], &[]),
            ["4 devices given", "[], which holds 1"],
        ),
        (
            mesh_error(&all, &[2, usize::MAX], &["x", "y"]),
            ["4 devices", "more than there can be"],
        ),
        (
            mesh_error(&all, &[2, 2], &["x"]),
            ["2 axis names", r#"["x"]"#],
        ),
        (
            mesh_error(&all, &[2, 2], &["x", "x"]),
            ["names that differ", r#""x" twice"#],
        ),
        (
            mesh_error(&all, &[4], &[""]),
            ["at least one character", r#""""#],
        ),
        (
            mesh_error(&all, &[4], &["a\"b"]),
            ["without quotation marks", r#"a\"b"#],
        ),
    ] {
        assert!(both.iter().all(|part| error.contains(part)), "{error}");
    }

    let mesh = mesh_of(&[2, 2], &["x", "y"]);
    let line = line!() + 1;
    let unknown = NamedSharding::new(&mesh, ("x", "z")).unwrap_err();
    assert_eq!(unknown.location().map(|at| at.line()), Some(line));
    let twice = NamedSharding::new(&mesh, ("x", ("y", "x"))).unwrap_err();
    let long = NamedSharding::new(&mesh, ("x", "y", ())).unwrap();
    let long = long
        .check("mark_sharding", &Shape::new(&[8, 4]))
        .unwrap_err();
    for (error, both) in [
        (
            unknown,
            [
                r#"("x", "z") does not fit the mesh of 4 devices: x=2, y=2"#,
                r#"no axis "z""#,
            ],
        ),
        (
            twice,
            [
                r#"("x", ("y", "x")) does not fit the mesh of 4 devices"#,
                r#""x" twice"#,
            ],
        ),
        (
            long,
            [
                r#"("x", "y", None) does not fit shape [8, 4]"#,
                "of 3 axes, the tensor has 2",
            ],
        ),
    ] {
        assert!(matches!(error, Error::Sharding { .. }));
        let error = error.to_string();
        assert!(both.iter().all(|part| error.contains(part)), "{error}");
    }
}
