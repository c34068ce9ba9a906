//! Each row of the table, and what goes before what.

use super::*;
use expect_test::{Expect, expect};

/// What a launch of `options` plans with these variables, given as `NAME=value NAME=value`, on four
/// devices.
fn check(options: Options, variables: &str, expected: Expect) {
    check_in("trainer", None, options, variables, expected);
}

fn check_in(
    executable: &str,
    harness: Option<Harness>,
    options: Options,
    variables: &str,
    expected: Expect,
) {
    let lookup = |name: &str| {
        variables
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(n, value)| (n == name).then(|| value.to_owned()))
    };
    let surroundings = Surroundings {
        executable: executable.into(),
        harness,
        ..Surroundings::new(&lookup)
    };
    expected.assert_eq(&match plan(&options, &surroundings, || Ok(4)) {
        Ok(plan) => plan.to_string(),
        Err(error) => format!("error: {error}"),
    });
}

fn nothing() -> Options {
    Options::default()
}

fn start(method: StartMethod) -> Options {
    Options {
        start_method: Some(method),
        ..nothing()
    }
}

fn devices(n: usize) -> Options {
    Options {
        devices: Some(n),
        ..nothing()
    }
}

fn processes(n: usize) -> Options {
    Options {
        processes: Some(n),
        ..nothing()
    }
}

fn debug(debug: bool) -> Options {
    Options {
        debug_single_process: Some(debug),
        ..nothing()
    }
}

const TORCHRUN: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.7 \
                        MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=True";
const SLURM: &str =
    "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_NODELIST=n[01-02]";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1";
const KUBERNETES: &str = "JOB_COMPLETION_INDEX=1 WORLD_SIZE=3 MASTER_ADDR=job-0 MASTER_PORT=29500";

#[test]
fn nothing_found() {
    check(
        nothing(),
        "",
        expect!["4 thread(s), ranks 0 to 3 of 4 (no launcher, notebook or option says otherwise)"],
    );
    check(
        devices(2),
        "",
        expect!["2 thread(s), ranks 0 to 1 of 2 (no launcher, notebook or option says otherwise)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_DEVICES=2",
        expect!["2 thread(s), ranks 0 to 1 of 2 (no launcher, notebook or option says otherwise)"],
    );
    check(
        devices(1),
        "XLA_LAUNCH_DEVICES=2",
        expect!["1 thread(s), rank 0 of 1 (no launcher, notebook or option says otherwise)"],
    );
    check(
        devices(5),
        "",
        expect![
            "error: device xla:4 does not exist: this process addresses 4 device(s), xla:0 to xla:3; set CPU_NUM_DEVICES before the first use for more CPU devices"
        ],
    );
    check(
        devices(0),
        "",
        expect!["error: launch: devices: expected at least 1, got 0"],
    );
    check(
        processes(0),
        "",
        expect!["error: launch: processes: expected at least 1, got 0"],
    );
    check(
        processes(1),
        "",
        expect!["4 thread(s), ranks 0 to 3 of 4 (no launcher, notebook or option says otherwise)"],
    );
}

#[test]
fn processes_asked_for() {
    check(
        processes(2),
        "",
        expect!["2 spawned process(es) of 1 thread(s), ranks 0 to 1 of 2 (Launcher::processes)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_PROCESSES=2",
        expect!["2 spawned process(es) of 1 thread(s), ranks 0 to 1 of 2 (XLA_LAUNCH_PROCESSES)"],
    );
    check(
        processes(2),
        "CPU_NUM_DEVICES=4",
        expect!["2 spawned process(es) of 4 thread(s), ranks 0 to 7 of 8 (Launcher::processes)"],
    );
    check(
        processes(2),
        "XLA_LAUNCH_PROCESSES=3 XLA_LAUNCH_DEVICES=2",
        expect!["2 spawned process(es) of 2 thread(s), ranks 0 to 3 of 4 (Launcher::processes)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_MODE=processes CPU_NUM_DEVICES=4",
        expect!["4 spawned process(es) of 1 thread(s), ranks 0 to 3 of 4 (XLA_LAUNCH_MODE)"],
    );
    check(
        start(StartMethod::Spawn),
        "",
        expect!["1 spawned process(es) of 1 thread(s), rank 0 of 1 (Launcher::start_method)"],
    );
    check(
        start(StartMethod::Fork),
        "XLA_LAUNCH_PROCESSES=2",
        expect!["2 forked process(es) of 1 thread(s), ranks 0 to 1 of 2 (Launcher::start_method)"],
    );
    check(
        start(StartMethod::Spawn),
        "PJRT_DEVICE=CUDA",
        expect![
            "error: launch: processes are asked for without their number, which is not known before the runtime has started; set Launcher::processes or XLA_LAUNCH_PROCESSES"
        ],
    );
}

#[test]
fn where_a_program_cannot_be_run_again() {
    let test = Some(Harness::Libtest);
    check_in(
        "t",
        test,
        processes(2),
        "",
        expect![
            "error: launch: processes are asked for in a test, which running the executable again does not lead back to; name a program that makes the same launch with Launcher::worker_command, or use threads"
        ],
    );
    check_in(
        "t",
        Some(Harness::Doctest),
        nothing(),
        "XLA_LAUNCH_PROCESSES=2",
        expect![
            "error: launch: processes are asked for in an example in documentation, which running the executable again does not lead back to; name a program that makes the same launch with Launcher::worker_command, or use threads"
        ],
    );
    check(
        processes(2),
        "JPY_PARENT_PID=7",
        expect![
            "error: launch: processes are asked for in a notebook (Jupyter), which running the executable again does not lead back to; name a program that makes the same launch with Launcher::worker_command, or use threads"
        ],
    );
    let commanded = Options {
        worker_command: true,
        ..processes(2)
    };
    check_in(
        "t",
        test,
        commanded,
        "",
        expect!["2 spawned process(es) of 1 thread(s), ranks 0 to 1 of 2 (Launcher::processes)"],
    );
    check_in(
        "t",
        test,
        nothing(),
        "",
        expect!["4 thread(s), ranks 0 to 3 of 4 (no launcher, notebook or option says otherwise)"],
    );
}

#[test]
fn spmd() {
    check(
        nothing(),
        "XLA_USE_SPMD=1",
        expect!["spmd: one call, partitioned over all devices, rank 0 of 1 (XLA_USE_SPMD)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_MODE=spmd",
        expect!["spmd: one call, partitioned over all devices, rank 0 of 1 (XLA_LAUNCH_MODE)"],
    );
    check(
        nothing(),
        &format!("XLA_USE_SPMD=1 {TORCHRUN}"),
        expect!["spmd: one call, partitioned over all devices, rank 0 of 1 (XLA_USE_SPMD)"],
    );
    check(
        nothing(),
        "XLA_USE_SPMD=0",
        expect!["4 thread(s), ranks 0 to 3 of 4 (no launcher, notebook or option says otherwise)"],
    );
}

#[test]
fn other_launchers() {
    check(
        nothing(),
        TORCHRUN,
        expect!["external: 1 thread(s) of this process, rank 3 of 4 (torchrun)"],
    );
    check(
        devices(2),
        &format!("{TORCHRUN} CPU_NUM_DEVICES=2"),
        expect!["external: 2 thread(s) of this process, ranks 6 to 7 of 8 (torchrun)"],
    );
    check(
        devices(2),
        TORCHRUN,
        expect![
            "error: device xla:1 does not exist: this process addresses 1 device(s), xla:0 to xla:0; set CPU_NUM_DEVICES before the first use for more CPU devices"
        ],
    );
    check(
        nothing(),
        "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
        expect![
            "external: 1 thread(s) of this process, rank 0 of 2 (RANK, WORLD_SIZE and MASTER_ADDR)"
        ],
    );
    check(
        nothing(),
        "RANK=0 WORLD_SIZE=2 XLA_STORE_ADDR=a:1",
        expect!["external: 1 thread(s) of this process, rank 0 of 2 (xlarun)"],
    );
    check(
        nothing(),
        SLURM,
        expect!["external: 1 thread(s) of this process, rank 1 of 2 (Slurm)"],
    );
    check(
        nothing(),
        OPEN_MPI,
        expect!["external: 1 thread(s) of this process, rank 0 of 2 (Open MPI)"],
    );
    check(
        nothing(),
        KUBERNETES,
        expect!["external: 1 thread(s) of this process, rank 1 of 3 (Kubernetes)"],
    );
    // They go before the number of processes and before notebooks.
    check(
        processes(8),
        &format!("{TORCHRUN} JPY_PARENT_PID=7"),
        expect!["external: 1 thread(s) of this process, rank 3 of 4 (torchrun)"],
    );
    check(
        nothing(),
        "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
        expect![[r#"error: RANK: expected a rank below WORLD_SIZE, which is 2, got "2""#]],
    );
    check(
        nothing(),
        "XLA_LAUNCH_MODE=external",
        expect![[
            r#"error: XLA_LAUNCH_MODE: expected a launcher's RANK, WORLD_SIZE and MASTER_ADDR beside external, got "external""#
        ]],
    );
    check(
        nothing(),
        &format!("XLA_LAUNCH_MODE=external XLA_USE_SPMD=1 {SLURM}"),
        expect!["external: 1 thread(s) of this process, rank 1 of 2 (Slurm)"],
    );
}

#[test]
fn notebooks() {
    check(
        nothing(),
        "JPY_PARENT_PID=7",
        expect!["notebook: 4 thread(s), ranks 0 to 3 of 4 (Jupyter)"],
    );
    check(
        nothing(),
        "EVCXR_IS_RUNTIME=1 JPY_PARENT_PID=7",
        expect!["notebook: 4 thread(s), ranks 0 to 3 of 4 (Evcxr)"],
    );
    check_in(
        "evcxr_jupyter",
        None,
        nothing(),
        "",
        expect!["notebook: 4 thread(s), ranks 0 to 3 of 4 (Evcxr)"],
    );
    check(
        nothing(),
        "KAGGLE_KERNEL_RUN_TYPE=Interactive",
        expect!["notebook: 4 thread(s), ranks 0 to 3 of 4 (Kaggle)"],
    );
    check(
        nothing(),
        "COLAB_RELEASE_TAG=release-1",
        expect!["notebook: 4 thread(s), ranks 0 to 3 of 4 (Colab)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_MODE=notebook",
        expect!["notebook: 4 thread(s), ranks 0 to 3 of 4 (XLA_LAUNCH_MODE)"],
    );
    let fork = Options {
        processes: Some(2),
        ..start(StartMethod::Fork)
    };
    check(
        fork,
        "JPY_PARENT_PID=7",
        expect!["2 forked process(es) of 1 thread(s), ranks 0 to 1 of 2 (Launcher::start_method)"],
    );
}

#[test]
fn debugging() {
    check(
        nothing(),
        "XLA_LAUNCH_MODE=debug",
        expect!["debug: one call on the calling thread, rank 0 of 1 (XLA_LAUNCH_MODE)"],
    );
    check(
        debug(true),
        "",
        expect![
            "debug: one call on the calling thread, rank 0 of 1 (Launcher::debug_single_process)"
        ],
    );
    check(
        debug(true),
        &format!("XLA_LAUNCH_MODE=threads {TORCHRUN}"),
        expect![
            "debug: one call on the calling thread, rank 0 of 1 (Launcher::debug_single_process)"
        ],
    );
    check(
        debug(false),
        "XLA_LAUNCH_MODE=debug",
        expect!["4 thread(s), ranks 0 to 3 of 4 (no launcher, notebook or option says otherwise)"],
    );
    check(
        debug(false),
        &format!("XLA_LAUNCH_MODE=debug {TORCHRUN}"),
        expect!["external: 1 thread(s) of this process, rank 3 of 4 (torchrun)"],
    );
}

#[test]
fn what_is_asked_for_goes_before_what_is_found() {
    check(
        start(StartMethod::Threads),
        TORCHRUN,
        expect!["4 thread(s), ranks 0 to 3 of 4 (Launcher::start_method)"],
    );
    check(
        start(StartMethod::Threads),
        "XLA_LAUNCH_MODE=debug",
        expect!["4 thread(s), ranks 0 to 3 of 4 (Launcher::start_method)"],
    );
    check(
        nothing(),
        &format!("XLA_LAUNCH_MODE=threads {TORCHRUN}"),
        expect!["4 thread(s), ranks 0 to 3 of 4 (XLA_LAUNCH_MODE)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_MODE=threads XLA_USE_SPMD=1",
        expect!["4 thread(s), ranks 0 to 3 of 4 (XLA_LAUNCH_MODE)"],
    );
    check(
        nothing(),
        "XLA_LAUNCH_MODE=rockets",
        expect![[
            r#"error: XLA_LAUNCH_MODE: expected threads, debug, processes, external, notebook, spmd, got "rockets""#
        ]],
    );
}

#[test]
fn a_spawned_process_does_as_its_parent_says() {
    let inherited = Inherited {
        parent: 42,
        topology: Topology {
            processes: 2,
            process_index: 1,
            replicas: 2,
        },
    };
    expect!["processes: 2 thread(s) of this one, ranks 2 to 3 of 4 (spawned by process 42)"]
        .assert_eq(&Plan::of_child(&inherited).to_string());
}

#[test]
fn only_threads_start_a_client() {
    let never = || -> Result<usize> { unreachable!("not asked") };
    let lookup = |_: &str| None;
    let surroundings = Surroundings::new(&lookup);
    for options in [debug(true), processes(2)] {
        plan(&options, &surroundings, never).unwrap();
    }
}
