//! Starts a program several times on each of several machines, as torchrun does, without Python.
//!
//! ```text
//! xlarun --nproc-per-node 4 ./train --epochs 10
//! xlarun --nnodes 2 --node-rank 0 --rdzv-endpoint 10.0.0.1:29500 --nproc-per-node 4 ./train
//! ```
#![forbid(unsafe_code)]

use clap::Parser;
use std::ffi::OsString;
use std::time::Duration;
use xla_launch::agent::{AgentOptions, Ended, run};

/// Starts a program several times on each of several machines and supervises it.
///
/// Run it once on every machine, with the same options but --node-rank. Each worker finds its place
/// in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The first worker
/// that fails ends the others everywhere; the exit code is then its own. Where the network is not
/// trusted, set XLA_STORE_TOKEN to the same secret on every machine.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Workers on this machine.
    #[arg(long, visible_alias = "nproc_per_node", default_value_t = 1)]
    nproc_per_node: usize,
    /// Machines.
    #[arg(long, default_value_t = 1)]
    nnodes: usize,
    /// Which of them this is, from 0.
    #[arg(long, visible_alias = "node_rank", default_value_t = 0)]
    node_rank: usize,
    /// host:port on node 0 where the machines meet.
    #[arg(long, visible_alias = "rdzv_endpoint", value_name = "HOST:PORT")]
    rdzv_endpoint: Option<String>,
    /// How often all workers are started again after one has failed.
    #[arg(long, visible_alias = "max_restarts", default_value_t = 0)]
    max_restarts: u64,
    /// Devices of each worker, each with a replica of its own.
    #[arg(long)]
    devices_per_process: Option<usize>,
    /// Seconds to wait for the other machines before each attempt
    /// [default: XLA_DEADLINE_SECONDS, or 1800].
    #[arg(long, value_name = "SECONDS")]
    rdzv_timeout: Option<u64>,
    /// The program.
    program: OsString,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn main() {
    let arguments = Arguments::parse();
    let options = AgentOptions {
        nproc_per_node: arguments.nproc_per_node,
        nnodes: arguments.nnodes,
        node_rank: arguments.node_rank,
        endpoint: arguments.rdzv_endpoint,
        max_restarts: arguments.max_restarts,
        devices_per_process: arguments.devices_per_process,
        deadline: arguments.rdzv_timeout.map(Duration::from_secs),
        program: arguments.program,
        arguments: arguments.arguments,
    };
    let code = match run(&options) {
        Ok(ended) => {
            if let Ended::Badly { reason, .. } = &ended {
                eprintln!("xlarun: {reason}");
            }
            ended.exit_code()
        }
        Err(error) => {
            eprintln!("xlarun: {error}");
            1
        }
    };
    std::process::exit(code)
}
