//! What launchers set, and what it means.

use std::collections::HashMap;

use xla_core::{Error, Result};
use xla_store::environment::external;
use xla_store::{External, Source};

fn read(variables: &str) -> Result<Option<External>> {
    let variables: HashMap<_, _> = variables
        .split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .collect();
    external(&|name| variables.get(name).map(|value| (*value).to_owned()))
}

/// Rank, world size, local rank, local world size, address, attempt.
fn place(external: &External) -> (usize, usize, usize, usize, String, u64) {
    (
        external.rank,
        external.world_size,
        external.local_rank,
        external.local_world_size,
        format!("{}:{}", external.master_addr, external.master_port),
        external.attempt,
    )
}

#[test]
fn each_launcher_is_understood() {
    let torchrun = Source::Torchrun {
        agent_store: true,
        run_id: Some("none".into()),
    };
    for (variables, source, expected) in [
        (
            "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
             MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 \
             TORCHELASTIC_USE_AGENT_STORE=True SLURM_PROCID=0 SLURM_NTASKS=9 SLURM_STEP_ID=0",
            torchrun,
            (3, 4, 1, 2, "127.0.0.1:29500", 2),
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=False",
            Source::Torchrun {
                agent_store: false,
                run_id: None,
            },
            (0, 2, 0, 1, "a:1", 0),
        ),
        (
            "RANK=1 WORLD_SIZE=2 XLA_STORE_ADDR=127.0.0.1:77",
            Source::XlaRun,
            (1, 2, 0, 1, "127.0.0.1:77", 0),
        ),
        (
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=5 LOCAL_RANK=1 XLA_RESTART_COUNT=1 \
             XLA_STORE_ADDR=127.0.0.1:77 TORCHELASTIC_RUN_ID=",
            Source::XlaRun,
            (1, 2, 1, 2, "h:5", 1),
        ),
        (
            "RANK=0 WORLD_SIZE=1 MASTER_ADDR=::1 MASTER_PORT=65535",
            Source::Plain,
            (0, 1, 0, 1, "::1:65535", 0),
        ),
        (
            "SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=1 SLURM_STEP_ID=0 SLURM_JOB_ID=4097 \
             SLURM_STEP_NODELIST=gpu[007-010,12]-a,b SLURM_NODEID=2 \
             SLURM_STEP_TASKS_PER_NODE=2(x3),1",
            Source::Slurm,
            (5, 7, 1, 2, "gpu007-a:61441", 0),
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=64 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=3 \
             SLURM_LAUNCH_NODE_IPADDR=10.0.0.1 MASTER_PORT=29500",
            Source::Slurm,
            (0, 2, 0, 1, "10.0.0.1:29500", 0),
        ),
        (
            "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID=1 \
             SLURM_STEP_NODELIST=alpha,beta",
            Source::Slurm,
            (1, 2, 0, 1, "alpha:61441", 0),
        ),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
             OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=head MASTER_PORT=4000",
            Source::OpenMpi,
            (1, 4, 1, 2, "head:4000", 0),
        ),
        (
            "JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 MASTER_ADDR=job-0.svc MASTER_PORT=4000",
            Source::Kubernetes,
            (2, 3, 0, 1, "job-0.svc:4000", 0),
        ),
    ] {
        let external = read(variables).unwrap().unwrap();
        let (rank, size, local_rank, local_size, address, attempt) = place(&external);
        assert_eq!(
            (
                rank,
                size,
                local_rank,
                local_size,
                address.as_str(),
                attempt
            ),
            expected,
            "{variables}"
        );
        assert_eq!(external.source, source, "{variables}");
    }
}

#[test]
fn a_process_that_nobody_launched_has_no_place() {
    for variables in [
        "",
        "RANK= WORLD_SIZE= MASTER_ADDR=",
        "RANK=1",
        "WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1",
        // A batch script under sbatch, which is no task.
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a",
        "JOB_COMPLETION_INDEX=0",
    ] {
        assert_eq!(read(variables).unwrap(), None, "{variables}");
    }
}

#[test]
fn a_contradiction_names_the_variable() {
    const MASTER: &str = "MASTER_ADDR=a MASTER_PORT=1";
    const SRUN: &str = "SLURM_STEP_ID=0 SLURM_JOB_ID=1";
    for (variables, name) in [
        (format!("RANK=2 WORLD_SIZE=2 {MASTER}"), "RANK"),
        (format!("RANK=-1 WORLD_SIZE=2 {MASTER}"), "RANK"),
        (format!("RANK=one WORLD_SIZE=2 {MASTER}"), "RANK"),
        (format!("RANK=0 WORLD_SIZE=0 {MASTER}"), "WORLD_SIZE"),
        (format!("RANK=0 WORLD_SIZE=2.5 {MASTER}"), "WORLD_SIZE"),
        (
            format!("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 {MASTER}"),
            "LOCAL_RANK",
        ),
        (
            format!("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3 {MASTER}"),
            "LOCAL_WORLD_SIZE",
        ),
        (
            format!("RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=x {MASTER}"),
            "TORCHELASTIC_RESTART_COUNT",
        ),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a".into(), "MASTER_PORT"),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0".into(),
            "MASTER_PORT",
        ),
        (
            "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65536".into(),
            "MASTER_PORT",
        ),
        ("RANK=0 WORLD_SIZE=2".into(), "MASTER_ADDR"),
        (
            "RANK=0 WORLD_SIZE=2 XLA_STORE_ADDR=localhost".into(),
            "XLA_STORE_ADDR",
        ),
        (
            format!("SLURM_PROCID=0 SLURM_STEP_NODELIST=a {SRUN}"),
            "SLURM_NTASKS",
        ),
        (
            format!("SLURM_PROCID=4 SLURM_NTASKS=4 SLURM_STEP_NODELIST=a {SRUN}"),
            "SLURM_PROCID",
        ),
        (
            format!("SLURM_PROCID=0 SLURM_NTASKS=4 {SRUN}"),
            "SLURM_STEP_NODELIST",
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=a".into(),
            "MASTER_PORT",
        ),
        (
            format!("OMPI_COMM_WORLD_RANK=0 {MASTER}"),
            "OMPI_COMM_WORLD_SIZE",
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 MASTER_PORT=1".into(),
            "MASTER_ADDR",
        ),
        (
            format!("JOB_COMPLETION_INDEX=3 WORLD_SIZE=3 {MASTER}"),
            "JOB_COMPLETION_INDEX",
        ),
    ] {
        match read(&variables) {
            Err(Error::Config { name: named, .. }) => assert_eq!(named, name, "{variables}"),
            other => panic!("{variables}: {other:?}"),
        }
    }
}
