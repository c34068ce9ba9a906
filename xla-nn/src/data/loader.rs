//! Batches of a dataset, decoded on rayon and uploaded by a background thread ahead of use.

use crate::data::dataset::{Dataset, Sample, stack};
use crate::data::sampler::Sampler;
use crossbeam::channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use rayon::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use xla_core::{Device, Error, Result};
use xla_lazy::spmd::{self, NamedSharding};
use xla_lazy::{Tensor, TensorOptions};
use xla_runtime::context::{self, ReplicaContext};
use xla_runtime::metrics;

/// How long dropping an unfinished iterator waits for its thread. The thread stops at the next
/// sample; one that takes longer than this to decode must not hold up the program.
const PATIENCE: Duration = Duration::from_secs(2);

/// Goes through a dataset in batches, as pairs of tensors on the replica's device.
///
/// Each iteration starts a background thread. It decodes the samples of a batch in parallel, stacks
/// them along a new first axis, uploads the batch, and stays [`DataLoader::prefetch`] batches ahead:
/// by the time the program asks for a batch it is on the device. Dropping the iterator early stops
/// the thread.
///
/// The last batch is smaller where the samples do not divide evenly. On a compiled device another
/// shape is another program: training loops want [`DataLoader::drop_last`].
///
/// ```no_run
/// use xla_nn::data::{DataLoader, IdxDataset};
/// let digits = IdxDataset::open("train-images.gz", "train-labels.gz")?;
/// let mut loader = DataLoader::new(digits).batch_size(64).shuffle(42).drop_last(true);
/// for epoch in 0..3 {
///     loader.set_epoch(epoch);
///     for batch in &loader {
///         let (images, labels) = batch?;
///         // …
///     }
/// }
/// # Ok::<(), xla_core::Error>(())
/// ```
pub struct DataLoader {
    dataset: Arc<dyn Dataset>,
    batch_size: usize,
    seed: Option<u64>,
    drop_last: bool,
    rank: usize,
    world_size: usize,
    /// Where batches go; the replica's device where nothing is said.
    destination: Option<TensorOptions>,
    prefetch: usize,
    epoch: u64,
}

impl DataLoader {
    /// The samples of `dataset` in order, one a batch, for one replica. To share a dataset between
    /// loaders, give each an `Arc` of it.
    pub fn new(dataset: impl Dataset + 'static) -> Self {
        DataLoader {
            dataset: Arc::new(dataset),
            batch_size: 1,
            seed: None,
            drop_last: false,
            rank: 0,
            world_size: 1,
            destination: None,
            prefetch: 2,
            epoch: 0,
        }
    }

    /// Samples a batch on this replica; 0 is an error when iterating.
    #[must_use]
    pub fn batch_size(self, batch_size: usize) -> Self {
        DataLoader { batch_size, ..self }
    }

    /// A random order, another one each epoch. Replicas must give the same seed.
    #[must_use]
    pub fn shuffle(self, seed: u64) -> Self {
        DataLoader {
            seed: Some(seed),
            ..self
        }
    }

    /// Leaves out the last batch when it would be smaller than the others.
    #[must_use]
    pub fn drop_last(self, drop_last: bool) -> Self {
        DataLoader { drop_last, ..self }
    }

    /// Only the share of replica `rank` of `world_size`, as [`Sampler::distributed`] deals it out:
    /// every replica gets equally many samples.
    #[must_use]
    pub fn sampler(self, rank: usize, world_size: usize) -> Self {
        DataLoader {
            rank,
            world_size,
            ..self
        }
    }

    /// Uploads to this device instead of the replica's own.
    #[must_use]
    pub fn device(self, device: &Device) -> Self {
        DataLoader {
            destination: Some(device.into()),
            ..self
        }
    }

    /// Spreads each batch over a mesh: each device is sent its share, and nothing else. A last batch
    /// whose samples do not divide evenly is spread too.
    ///
    /// ```no_run
    /// # fn demo(points: xla_nn::data::TensorDataset) -> xla_core::Result<()> {
    /// use xla_lazy::spmd::{Mesh, NamedSharding};
    /// use xla_nn::data::DataLoader;
    /// let mesh = Mesh::all("data")?;
    /// let loader = DataLoader::new(points).sharding(&NamedSharding::new(&mesh, "data")?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn sharding(self, sharding: &NamedSharding) -> Self {
        DataLoader {
            destination: Some(sharding.into()),
            ..self
        }
    }

    /// How many batches may be ready before they are asked for: 2 unless set. Each takes memory on
    /// the device.
    #[must_use]
    pub fn prefetch(self, batches: usize) -> Self {
        DataLoader {
            prefetch: batches,
            ..self
        }
    }

    /// Which epoch the next iteration is: it chooses the random order. Replicas must agree on it.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Number of batches in an epoch.
    pub fn len(&self) -> usize {
        let samples = self.order().samples();
        match self.batch_size {
            0 => 0,
            size if self.drop_last => samples / size,
            size => samples.div_ceil(size),
        }
    }

    /// Whether an epoch has no batch at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts an epoch. Whatever goes wrong, here or on the background thread, is an `Err` from the
    /// iterator, which then ends.
    pub fn iter(&self) -> Batches {
        match self.start() {
            Ok(batches) => batches,
            Err(error) => Batches {
                state: State::Failed(error),
                remaining: 0,
            },
        }
    }

    fn order(&self) -> Sampler {
        let sampler = Sampler::new(self.dataset.len()).distributed(self.rank, self.world_size);
        match self.seed {
            Some(seed) => sampler.shuffle(seed),
            None => sampler,
        }
    }

    fn start(&self) -> Result<Batches> {
        if self.batch_size == 0 {
            return Err(Error::argument("DataLoader", "batch_size", "at least 1", 0));
        }
        if self.rank >= self.world_size {
            return Err(Error::argument(
                "DataLoader",
                "sampler",
                format!("a rank below the world size {}", self.world_size),
                self.rank,
            ));
        }
        let context = context::current("DataLoader")?;
        // Asked here: the loader's thread is in no scope.
        let destination = match self.destination {
            Some(destination) => destination,
            None => spmd::default_device("DataLoader")?.into(),
        };
        let deadline = context.launch().deadline();
        let remaining = self.len();
        let (sender, receiver) = bounded(self.prefetch.max(1));
        let stop = Arc::new(AtomicBool::new(false));
        let producer = Producer {
            dataset: Arc::clone(&self.dataset),
            batches: self
                .order()
                .order(self.epoch)
                .chunks(self.batch_size)
                .take(remaining)
                .map(<[usize]>::to_vec)
                .collect(),
            destination,
            deadline,
            sender,
            stop: Arc::clone(&stop),
        };
        // Never sent to: it disconnects when the thread ends, which a wait with a deadline can see.
        let (alive, ended) = bounded(0);
        let counts = metrics::inherit();
        std::thread::Builder::new()
            .name(format!("loader-{}", context.rank()))
            .spawn(move || {
                let _alive: Sender<()> = alive;
                counts.adopt();
                producer.run(&context);
            })
            .map_err(|e| Error::io("the data loader's thread", e))?;
        Ok(Batches {
            state: State::Running(Running {
                receiver,
                ended,
                stop,
                deadline,
            }),
            remaining,
        })
    }
}

impl IntoIterator for &DataLoader {
    type Item = Result<(Tensor, Tensor)>;
    type IntoIter = Batches;

    fn into_iter(self) -> Batches {
        self.iter()
    }
}

/// One epoch of a [`DataLoader`]: pairs of samples and targets, stacked along the first axis.
///
/// After an `Err` there is nothing more.
pub struct Batches {
    state: State,
    remaining: usize,
}

enum State {
    Running(Running),
    Failed(Error),
    Done,
}

struct Running {
    receiver: Receiver<Result<(Tensor, Tensor)>>,
    ended: Receiver<()>,
    stop: Arc<AtomicBool>,
    deadline: Duration,
}

impl Iterator for Batches {
    type Item = Result<(Tensor, Tensor)>;

    fn next(&mut self) -> Option<Self::Item> {
        let running = match std::mem::replace(&mut self.state, State::Done) {
            State::Running(running) if self.remaining > 0 => running,
            State::Failed(error) => return Some(Err(error)),
            State::Running(_) | State::Done => return None,
        };
        let received = running
            .receiver
            .recv_timeout(running.deadline)
            .unwrap_or_else(|error| {
                let (what, advice) = match error {
                    RecvTimeoutError::Timeout => (
                        "reading a batch of the data loader",
                        "; Dataset::get may be stuck, or set a longer deadline",
                    ),
                    RecvTimeoutError::Disconnected => (
                        "taking a batch from the data loader",
                        "; its thread gave up waiting for the loop to take the next batch",
                    ),
                };
                Err(Error::Deadline {
                    what: what.into(),
                    after: running.deadline,
                    advice,
                })
            });
        if received.is_ok() {
            self.remaining -= 1;
            self.state = State::Running(running);
        }
        Some(received)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.state {
            State::Running(_) => (self.remaining.min(1), Some(self.remaining)),
            State::Failed(_) => (1, Some(1)),
            State::Done => (0, Some(0)),
        }
    }
}

impl std::iter::FusedIterator for Batches {}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A full channel would hold the thread: with no receiver left its send fails at once.
        drop(std::mem::replace(
            &mut self.receiver,
            crossbeam::channel::never(),
        ));
        // Waiting keeps a finished program from leaving while its thread still uploads. Nothing is
        // ever sent, so the only outcomes are "ended" and "still busy with one sample".
        let _: Result<(), RecvTimeoutError> = self.ended.recv_timeout(PATIENCE);
    }
}

/// The background thread's side.
struct Producer {
    dataset: Arc<dyn Dataset>,
    batches: Vec<Vec<usize>>,
    destination: TensorOptions,
    deadline: Duration,
    sender: Sender<Result<(Tensor, Tensor)>>,
    stop: Arc<AtomicBool>,
}

impl Producer {
    fn run(self, context: &Arc<ReplicaContext>) {
        let _entered = context.enter();
        for indices in &self.batches {
            let Some(batch) = self.make(indices).transpose() else {
                return;
            };
            let failed = batch.is_err();
            match self.sender.send_timeout(batch, self.deadline) {
                Ok(()) if !failed => {}
                // The iterator is gone, or has been told the error; or nobody came for the batch,
                // which the iterator reports when it finds the channel closed before the end.
                Ok(()) | Err(SendTimeoutError::Disconnected(_) | SendTimeoutError::Timeout(_)) => {
                    return;
                }
            }
        }
    }

    /// The batch of these samples on the device; `None` when the iterator is gone.
    fn make(&self, indices: &[usize]) -> Result<Option<(Tensor, Tensor)>> {
        let decoded: Result<Option<Vec<Sample>>> = indices
            .par_iter()
            .map(|index| match self.stop.load(Ordering::Relaxed) {
                true => Ok(None),
                false => self.decode(*index).map(Some),
            })
            .collect();
        let Some(decoded) = decoded? else {
            return Ok(None);
        };
        let samples = stack("samples", decoded.iter().map(|s| &s.0))?;
        let targets = stack("targets", decoded.iter().map(|s| &s.1))?;
        let upload = || -> Result<(Tensor, Tensor)> {
            Ok((
                Tensor::from_literal(samples, self.destination)?,
                Tensor::from_literal(targets, self.destination)?,
            ))
        };
        upload().map(Some)
    }

    /// One sample. A panic becomes an error: on a background thread nobody would see it, and the
    /// loop would wait for a batch that never comes.
    fn decode(&self, index: usize) -> Result<Sample> {
        catch_unwind(AssertUnwindSafe(|| self.dataset.get(index))).unwrap_or_else(|panic| {
            Err(Error::argument(
                "DataLoader",
                "dataset",
                format!("Dataset::get({index}) to return"),
                format!("a panic: {}", message(&*panic)),
            ))
        })
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic
            .downcast_ref::<String>()
            .map_or("without a message", String::as_str),
    }
}
