//! `mlp` on 4 devices, one thread each: 32 of the batch's 128 on each, gradients averaged.

use super::{labels, mlp, training};
use crate::Options;
use crate::timing::{self, Measured};
use xla::nn::{DistributedDataParallel, Module, cross_entropy};
use xla::{Launcher, Result, StartMethod, Tensor, dist, optim};

const DEVICES: usize = 4;

/// What rank 0 measures; allocations are those of all ranks.
pub(super) fn run(options: &Options) -> std::result::Result<Measured, String> {
    crate::with_devices(DEVICES).map_err(|error| error.to_string())?;
    let launcher = Launcher::new()
        .start_method(StartMethod::Threads)
        .devices(DEVICES);
    let measured = launcher.run(|_| -> Result<Measured> {
        dist::init_process_group("xla", "xla://")?;
        let model = DistributedDataParallel::new(mlp::model()?)?;
        let batch = 128 / DEVICES;
        let (x, y) = (Tensor::rand([batch, 784], ())?, labels(batch, 10)?);
        let optimizer = optim::Sgd::new(model.parameters(), 0.05);
        let step = training(optimizer, move || cross_entropy(&model.forward(&x)?, &y))?;
        let measured = timing::repeated(step, options)?;
        dist::destroy_process_group()?;
        Ok(measured)
    });
    let measured = measured.map_err(|error| error.to_string())?;
    measured.first().copied().ok_or("no replica ran".into())
}
