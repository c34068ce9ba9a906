//! Shardings of eight devices as JAX 0.10.2 has them.

use super::super::PartitionSpec;

/// A mesh's shape and axis names.
pub(super) type Grid = (&'static [usize], &'static [&'static str]);

const M2X4: Grid = (&[2, 4], &["data", "model"]);
const M2X2X2: Grid = (&[2, 2, 2], &["x", "y", "z"]);

/// What JAX says of `NamedSharding(mesh, PartitionSpec(*spec))` on an array of this shape.
pub(super) struct Case {
    pub(super) mesh: Grid,
    pub(super) shape: &'static [usize],
    pub(super) spec: PartitionSpec,
    /// `shard_shape(shape)`.
    pub(super) shard: &'static [usize],
    /// `devices_indices_map(shape)` in the order of the mesh's devices, each with the `replica_id`
    /// of its shard.
    pub(super) blocks: &'static str,
    /// `str` of its `HloSharding`, and of that `tile_assignment_devices()`.
    pub(super) gspmd: &'static str,
    pub(super) assignment: &'static [usize],
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ().into(),
            shard: &[8, 8],
            blocks: "0:8,0:8#0 0:8,0:8#1 0:8,0:8#2 0:8,0:8#3 0:8,0:8#4 0:8,0:8#5 0:8,0:8#6 0:8,0:8#7",
            gspmd: "{replicated}",
            assignment: &[],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ("data",).into(),
            shard: &[4, 8],
            blocks: "0:4,0:8#0 0:4,0:8#1 0:4,0:8#2 0:4,0:8#3 4:8,0:8#0 4:8,0:8#1 4:8,0:8#2 4:8,0:8#3",
            gspmd: "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
            assignment: &[0, 1, 2, 3, 4, 5, 6, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ((), "model").into(),
            shard: &[8, 2],
            blocks: "0:8,0:2#0 0:8,2:4#0 0:8,4:6#0 0:8,6:8#0 0:8,0:2#1 0:8,2:4#1 0:8,4:6#1 0:8,6:8#1",
            gspmd: "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
            assignment: &[0, 4, 1, 5, 2, 6, 3, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ("data", "model").into(),
            shard: &[4, 2],
            blocks: "0:4,0:2#0 0:4,2:4#0 0:4,4:6#0 0:4,6:8#0 4:8,0:2#0 4:8,2:4#0 4:8,4:6#0 4:8,6:8#0",
            gspmd: "{devices=[2,4]<=[8]}",
            assignment: &[0, 1, 2, 3, 4, 5, 6, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ("model", "data").into(),
            shard: &[2, 4],
            blocks: "0:2,0:4#0 2:4,0:4#0 4:6,0:4#0 6:8,0:4#0 0:2,4:8#0 2:4,4:8#0 4:6,4:8#0 6:8,4:8#0",
            gspmd: "{devices=[4,2]<=[2,4]T(1,0)}",
            assignment: &[0, 4, 1, 5, 2, 6, 3, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: (("data", "model"),).into(),
            shard: &[1, 8],
            blocks: "0:1,0:8#0 1:2,0:8#0 2:3,0:8#0 3:4,0:8#0 4:5,0:8#0 5:6,0:8#0 6:7,0:8#0 7:8,0:8#0",
            gspmd: "{devices=[8,1]<=[8]}",
            assignment: &[0, 1, 2, 3, 4, 5, 6, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: (("model", "data"), ()).into(),
            shard: &[1, 8],
            blocks: "0:1,0:8#0 2:3,0:8#0 4:5,0:8#0 6:7,0:8#0 1:2,0:8#0 3:4,0:8#0 5:6,0:8#0 7:8,0:8#0",
            gspmd: "{devices=[8,1]<=[2,4]T(1,0)}",
            assignment: &[0, 4, 1, 5, 2, 6, 3, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ((), ("data", "model")).into(),
            shard: &[8, 1],
            blocks: "0:8,0:1#0 0:8,1:2#0 0:8,2:3#0 0:8,3:4#0 0:8,4:5#0 0:8,5:6#0 0:8,6:7#0 0:8,7:8#0",
            gspmd: "{devices=[1,8]<=[8]}",
            assignment: &[0, 1, 2, 3, 4, 5, 6, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[8, 8],
            spec: ((), ("model", "data")).into(),
            shard: &[8, 1],
            blocks: "0:8,0:1#0 0:8,2:3#0 0:8,4:5#0 0:8,6:7#0 0:8,1:2#0 0:8,3:4#0 0:8,5:6#0 0:8,7:8#0",
            gspmd: "{devices=[1,8]<=[2,4]T(1,0)}",
            assignment: &[0, 4, 1, 5, 2, 6, 3, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[16],
            spec: (("model", "data"),).into(),
            shard: &[2],
            blocks: "0:2#0 4:6#0 8:10#0 12:14#0 2:4#0 6:8#0 10:12#0 14:16#0",
            gspmd: "{devices=[8]<=[2,4]T(1,0)}",
            assignment: &[0, 4, 1, 5, 2, 6, 3, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[4, 6, 8],
            spec: ("data", (), "model").into(),
            shard: &[2, 6, 2],
            blocks: "0:2,0:6,0:2#0 0:2,0:6,2:4#0 0:2,0:6,4:6#0 0:2,0:6,6:8#0 2:4,0:6,0:2#0 2:4,0:6,2:4#0 2:4,0:6,4:6#0 2:4,0:6,6:8#0",
            gspmd: "{devices=[2,1,4]<=[8]}",
            assignment: &[0, 1, 2, 3, 4, 5, 6, 7],
        },
        Case {
            mesh: M2X4,
            shape: &[],
            spec: ().into(),
            shard: &[],
            blocks: "#0 #1 #2 #3 #4 #5 #6 #7",
            gspmd: "{replicated}",
            assignment: &[],
        },
        Case {
            mesh: M2X2X2,
            shape: &[8, 4],
            spec: ("x", "z").into(),
            shard: &[4, 2],
            blocks: "0:4,0:2#0 0:4,2:4#0 0:4,0:2#1 0:4,2:4#1 4:8,0:2#0 4:8,2:4#0 4:8,0:2#1 4:8,2:4#1",
            gspmd: "{devices=[2,2,2]<=[2,2,2]T(0,2,1) last_tile_dim_replicate}",
            assignment: &[0, 2, 1, 3, 4, 6, 5, 7],
        },
        Case {
            mesh: M2X2X2,
            shape: &[8, 4],
            spec: (("z", "x"), "y").into(),
            shard: &[2, 2],
            blocks: "0:2,0:2#0 4:6,0:2#0 0:2,2:4#0 4:6,2:4#0 2:4,0:2#0 6:8,0:2#0 2:4,2:4#0 6:8,2:4#0",
            gspmd: "{devices=[4,2]<=[4,2]T(1,0)}",
            assignment: &[0, 2, 4, 6, 1, 3, 5, 7],
        },
        Case {
            mesh: M2X2X2,
            shape: &[4, 8],
            spec: ((), ("y", "z")).into(),
            shard: &[4, 2],
            blocks: "0:4,0:2#0 0:4,2:4#0 0:4,4:6#0 0:4,6:8#0 0:4,0:2#1 0:4,2:4#1 0:4,4:6#1 0:4,6:8#1",
            gspmd: "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
            assignment: &[0, 4, 1, 5, 2, 6, 3, 7],
        },
        Case {
            mesh: M2X2X2,
            shape: &[8],
            spec: ("y",).into(),
            shard: &[4],
            blocks: "0:4#0 0:4#1 4:8#0 4:8#1 0:4#2 0:4#3 4:8#2 4:8#3",
            gspmd: "{devices=[2,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}",
            assignment: &[0, 1, 4, 5, 2, 3, 6, 7],
        },
    ]
}
