//! Running a capsule again, and comparing with what it gave before.

use super::Capsule;
use crate::buffer::Buffer;
use crate::client::Client;
use crate::options::ExecuteOptions;
use std::cmp::Ordering;
use std::time::{Duration, Instant};
use xla_core::{DType, Literal, Result};

/// What became of a capsule's program when it was run again.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Replay {
    /// How long compiling it took.
    pub compile: Duration,
    /// How long each execution took, from the start until its results were computed.
    pub runs: Vec<Duration>,
    /// The results of the last run, on the device that runs what was recorded.
    pub outputs: Vec<Literal>,
    /// For each result how it differs from the recorded one, `None` if in no bit. Nothing where none
    /// was recorded, or where more devices run the program than there are arguments for.
    pub differences: Option<Vec<Option<Difference>>>,
}

/// How a result differs from the recorded one.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// Number of elements that differ.
    pub elements: usize,
    /// Of how many.
    pub of: usize,
    /// The largest absolute difference; infinite where only one of the two is a number.
    pub largest: f64,
    /// The same, as a part of the largest magnitude that was recorded.
    pub relative: f64,
    /// Which element differs most, counted row by row.
    pub at: usize,
}

impl Capsule {
    /// Compiles the program and runs it so many times, at least once. A device whose arguments were
    /// not recorded gets those of the one that was.
    ///
    /// # Errors
    /// Those of [`Client::compile`] and [`Executable::execute`](crate::Executable::execute), above all
    /// the one that the capsule was made for; [`xla_core::Error::Deadline`] when a run does not end
    /// within `deadline`.
    pub fn replay(&self, client: &Client, runs: usize, deadline: Duration) -> Result<Replay> {
        let mut options = self.options.clone();
        // Those of this client, which may be fewer than there were.
        options.device_assignment.clear();
        let devices = options.device_count();
        let began = Instant::now();
        let program = client.compile(&self.program, &self.signature(), &options)?;
        let compile = began.elapsed();
        let mut times = Vec::new();
        let mut outputs = Vec::new();
        for run in 0..runs.max(1) {
            // Anew each time: a run may overwrite its arguments.
            let arguments = (0..devices)
                .map(|device| self.upload(client, device))
                .collect::<Result<Vec<_>>>()?;
            let rows: Vec<Vec<&Buffer>> = arguments.iter().map(|a| a.iter().collect()).collect();
            let launch = ExecuteOptions {
                launch_id: i32::try_from(run).unwrap_or(0).saturating_add(1),
                ..ExecuteOptions::default()
            };
            let began = Instant::now();
            let executions = if devices == 1 {
                vec![program.execute(&rows[0], &launch)?]
            } else {
                program.execute_sharded(&rows, &launch)?
            };
            for execution in &executions {
                execution.done.wait(deadline)?;
            }
            times.push(began.elapsed());
            if let Some(own) = executions.get(self.replica) {
                outputs = own
                    .outputs
                    .iter()
                    .map(|output| output.to_literal(deadline))
                    .collect::<Result<Vec<_>>>()?;
            }
        }
        let complete = devices == self.peers.len() + 1;
        let recorded = self.outputs.as_ref().filter(|_| complete);
        let differences = recorded.map(|recorded| {
            let pairs = recorded.iter().zip(&outputs);
            pairs.map(|(was, is)| difference(was, is)).collect()
        });
        Ok(Replay {
            compile,
            runs: times,
            outputs,
            differences,
        })
    }

    fn upload(&self, client: &Client, device: usize) -> Result<Vec<Buffer>> {
        let upload = |input: &Literal| client.upload_owned(input.clone(), device);
        let peer = match device.cmp(&self.replica) {
            Ordering::Less => self.peers.get(device),
            Ordering::Equal => None,
            Ordering::Greater => self.peers.get(device - 1),
        };
        peer.unwrap_or(&self.inputs).iter().map(upload).collect()
    }
}

fn difference(was: &Literal, is: &Literal) -> Option<Difference> {
    if was.bytes() == is.bytes() {
        return None;
    }
    let (was, is) = (was.cast(DType::F64), is.cast(DType::F64));
    let (was, is) = (was.as_slice::<f64>().ok()?, is.as_slice::<f64>().ok()?);
    let mut found = Difference {
        elements: 0,
        of: was.len(),
        largest: 0.0,
        relative: 0.0,
        at: 0,
    };
    let mut scale = 0.0f64;
    for (at, (&a, &b)) in was.iter().zip(is).enumerate() {
        if a.is_finite() {
            scale = scale.max(a.abs());
        }
        if a == b || (a.is_nan() && b.is_nan()) {
            continue;
        }
        found.elements += 1;
        let gap = (a - b).abs();
        let gap = if gap.is_nan() { f64::INFINITY } else { gap };
        if gap > found.largest {
            (found.largest, found.at) = (gap, at);
        }
    }
    found.relative = if scale > 0.0 {
        found.largest / scale
    } else {
        found.largest
    };
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(was: &[f32], is: &[f32]) -> Option<Difference> {
        let literal = |data: &[f32]| Literal::from_slice(data, [data.len()]).unwrap();
        difference(&literal(was), &literal(is))
    }

    #[test]
    fn the_largest_difference_is_found() {
        assert_eq!(of(&[1.0, f32::NAN], &[1.0, f32::NAN]), None);
        let found = of(&[1.0, -8.0, 3.0], &[1.5, -8.0, 5.0]).unwrap();
        assert_eq!((found.elements, found.of, found.at), (2, 3, 2));
        assert_eq!((found.largest, found.relative), (2.0, 0.25));
        let found = of(&[f32::NAN, 1.0], &[0.0, 1.0]).unwrap();
        assert_eq!((found.largest, found.at), (f64::INFINITY, 0));
    }
}
