//! Data loading: datasets, samplers, and a loader that decodes and uploads ahead of use.

mod dataset;
mod idx;
mod loader;
mod sampler;

pub use dataset::{Dataset, IdxDataset, Sample, TensorDataset};
pub use idx::read_idx;
pub use loader::{Batches, DataLoader};
pub use sampler::Sampler;
