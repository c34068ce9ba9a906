//! Launching compiled programs. This is the hot path: checks compare numbers, pointers are gathered
//! in inline arrays, and no text is made unless something is wrong.

use crate::buffer::{Buffer, Claim};
use crate::call::Extended;
use crate::event::{Event, on_ready};
use crate::executable::{Executable, Placement, Program};
use crate::metrics::{self, Counter, Metric};
use crate::options::ExecuteOptions;
use crate::profiler;
use crate::signature::describe;
use pjrt_sys as sys;
use smallvec::{SmallVec, smallvec};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use xla_core::{Error, Result};

/// What one device's run of a program gives back at once, while it still computes.
#[derive(Debug)]
pub struct Execution {
    /// The results, in the program's order, to be waited for or used in further executions.
    pub outputs: Vec<Buffer>,
    /// Ready when the whole run is; carries its error.
    pub done: Event,
}

/// An id for the launch of a program on several devices: not zero, and different from those of all
/// launches still in flight.
pub fn fresh_launch_id() -> i32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (NEXT.fetch_add(1, Ordering::Relaxed) % i32::MAX as u32) as i32 + 1
}

/// The arguments of each device that takes part.
type Rows<'a, 'b> = [&'a [&'b Buffer]];

/// What each of them gives back.
type Executions = SmallVec<[Execution; 1]>;

impl Executable {
    /// Starts the program on one device and returns while it computes.
    ///
    /// A program on several devices is started on each of them, by a thread each, with the same
    /// launch id; XLA ends the process if one is not started for a long time.
    ///
    /// The donated arguments are gone afterwards, except those listed in `launch.non_donatable` and
    /// those that another thread reads at this moment: they are copied.
    ///
    /// # Errors
    /// All before anything is started: [`Error::ExecuteArgument`] for an argument of the wrong count,
    /// dtype, shape, device or client; [`Error::BufferDeleted`] for one that was donated before;
    /// [`Error::NoSuchDevice`] and [`Error::Argument`] for a device that the program was not compiled
    /// for or a launch id of 0 where several devices run together; [`Error::OutOfMemory`]
    /// ([`Executable::check_memory`]); [`Error::Pjrt`] with the plugin's
    /// words. An error of the computation itself is carried by the outputs and by `done`.
    pub fn execute(&self, args: &[&Buffer], launch: &ExecuteOptions<'_>) -> Result<Execution> {
        let program = &*self.0;
        let device = self.execute_device(launch)?;
        let mut executions = program.launch(&[args], &[launch.device], device, launch)?;
        executions.pop().ok_or_else(|| Error::Internal {
            what: "execute",
            expected: "one execution for one device".into(),
        })
    }

    /// Makes every check that [`Executable::execute`] would make, and starts nothing: for replicas
    /// that must not fail once the others have started.
    ///
    /// # Errors
    /// As [`Executable::execute`], but for the plugin's own.
    pub fn check(&self, args: &[&Buffer], launch: &ExecuteOptions<'_>) -> Result<()> {
        self.execute_device(launch)?;
        self.0.check_arguments(args, launch.device)?;
        self.0.check_non_donatable(launch.non_donatable)
    }

    /// The device to name to the plugin, if the program may run on the one asked for.
    fn execute_device(&self, launch: &ExecuteOptions<'_>) -> Result<*mut sys::PJRT_Device> {
        let program = &*self.0;
        let device = program.client.device_ptr(launch.device)?;
        Ok(match &program.placement {
            Placement::Anywhere => device,
            // Compiled for one device: naming it again is refused by some plugins.
            Placement::On(one) if *one == launch.device => ptr::null_mut(),
            Placement::Together(all) if all.contains(&launch.device) => {
                program.check_launch_id(launch)?;
                device
            }
            _ => {
                return Err(Error::argument(
                    "execute",
                    "device",
                    format!(
                        "one of {:?}, which the program was compiled for",
                        self.devices()
                    ),
                    launch.device,
                ));
            }
        })
    }

    /// Starts a program of several replicas or partitions on all its devices from one thread, and
    /// returns while it computes; `args` and the executions returned are in the order of
    /// [`Executable::devices`].
    ///
    /// # Errors
    /// As [`Executable::execute`], for each device's arguments.
    pub fn execute_sharded(
        &self,
        args: &[Vec<&Buffer>],
        launch: &ExecuteOptions<'_>,
    ) -> Result<Vec<Execution>> {
        let program = &*self.0;
        let devices = self.devices();
        if args.len() != devices.len() {
            return Err(Error::argument(
                "execute_sharded",
                "args",
                format!(
                    "one list for each of the program's {} devices",
                    devices.len()
                ),
                format_args!("{} lists", args.len()),
            ));
        }
        if devices.len() > 1 {
            program.check_launch_id(launch)?;
        }
        let rows: SmallVec<[&[&Buffer]; 8]> = args.iter().map(Vec::as_slice).collect();
        let executions = program.launch(&rows, devices, ptr::null_mut(), launch)?;
        Ok(executions.into_vec())
    }
}

/// `absl::StatusCode::kInvalidArgument`.
const INVALID_ARGUMENT: i32 = 3;

impl Program {
    fn check_launch_id(&self, launch: &ExecuteOptions<'_>) -> Result<()> {
        if launch.launch_id == 0 {
            return Err(Error::argument(
                "execute",
                "launch_id",
                "a number other than 0, the same on all devices of the launch",
                0,
            ));
        }
        Ok(())
    }

    fn launch(
        &self,
        rows: &Rows<'_, '_>,
        devices: &[usize],
        execute_device: *mut sys::PJRT_Device,
        launch: &ExecuteOptions<'_>,
    ) -> Result<Executions> {
        let _running = self.client.begin()?;
        for (args, device) in rows.iter().zip(devices) {
            self.check_arguments(args, *device)?;
        }
        // Where others wait for this one it is too late to refuse.
        if launch.launch_id == 0
            && let (Some(need), [device]) = (self.need, devices)
        {
            need.check(&self.client, *device, 1)?;
        }
        let kept = self.claim_donated(rows, launch.non_donatable)?;
        let launched = self.call(rows, devices, execute_device, launch.launch_id, &kept);
        if launched.is_err() {
            for args in rows {
                for (index, buffer) in args.iter().enumerate() {
                    let claimed = self.donated.contains(&index) && !kept.contains(&(index as i64));
                    buffer.reconcile(claimed);
                }
            }
        }
        launched.map_err(|error| self.explain(error, rows))
    }

    /// PJRT itself compares byte sizes only, and on several devices not even those.
    fn check_arguments(&self, args: &[&Buffer], device: usize) -> Result<()> {
        let inputs = &self.signature.inputs;
        if args.len() != inputs.len() {
            return Err(Error::ExecuteArgument {
                index: args.len().min(inputs.len()),
                expected: format!("{} arguments", inputs.len()),
                got: args.len().to_string(),
            });
        }
        for (index, (arg, (dtype, shape))) in args.iter().zip(inputs).enumerate() {
            if arg.dtype() != *dtype || arg.shape() != shape {
                return Err(Error::ExecuteArgument {
                    index,
                    expected: describe(*dtype, shape),
                    got: describe(arg.dtype(), arg.shape()),
                });
            }
            if arg.device() != device {
                return Err(Error::ExecuteArgument {
                    index,
                    expected: format!("a buffer on device {device}"),
                    got: format!("one on device {}", arg.device()),
                });
            }
            if !arg.client().same(&self.client) {
                return Err(Error::ExecuteArgument {
                    index,
                    expected: "a buffer of the program's client".into(),
                    got: "one of another client".into(),
                });
            }
            if arg.is_deleted() {
                return Err(Error::BufferDeleted { what: "execute" });
            }
        }
        Ok(())
    }

    fn check_non_donatable(&self, non_donatable: &[usize]) -> Result<()> {
        let count = self.signature.inputs.len();
        match non_donatable.iter().find(|index| **index >= count) {
            None => Ok(()),
            Some(index) => Err(Error::argument(
                "execute",
                "non_donatable",
                format!("positions below {count}"),
                index,
            )),
        }
    }

    /// Marks the donated arguments as gone, so that from here on no other thread can use them, and
    /// returns the positions of those that are to be copied instead.
    fn claim_donated(
        &self,
        rows: &Rows<'_, '_>,
        non_donatable: &[usize],
    ) -> Result<SmallVec<[i64; 16]>> {
        self.check_non_donatable(non_donatable)?;
        let mut kept: SmallVec<[i64; 16]> = non_donatable.iter().map(|i| *i as i64).collect();
        for (at, &index) in self.donated.iter().enumerate() {
            if non_donatable.contains(&index) {
                continue;
            }
            for (row, args) in rows.iter().enumerate() {
                match args[index].claim() {
                    Claim::Granted => {}
                    Claim::InUse => {
                        // Kept on every device: the plugin is told positions, not buffers.
                        rows[..row].iter().for_each(|args| args[index].release());
                        kept.push(index as i64);
                        metrics::add_with(Counter::DonationMissed, 1, || {
                            format!("argument {index} is being read, or a literal shows its memory")
                        });
                        break;
                    }
                    Claim::Gone => {
                        rows[..row].iter().for_each(|args| args[index].release());
                        for &earlier in &self.donated[..at] {
                            if !kept.contains(&(earlier as i64)) {
                                rows.iter().for_each(|args| args[earlier].release());
                            }
                        }
                        return Err(Error::BufferDeleted { what: "execute" });
                    }
                }
            }
        }
        Ok(kept)
    }

    fn call(
        &self,
        rows: &Rows<'_, '_>,
        devices: &[usize],
        execute_device: *mut sys::PJRT_Device,
        launch_id: i32,
        kept: &[i64],
    ) -> Result<Executions> {
        let (num_args, num_outputs) = (self.signature.inputs.len(), self.signature.outputs.len());
        let args: SmallVec<[*mut sys::PJRT_Buffer; 32]> = rows
            .iter()
            .flat_map(|row| row.iter().map(|b| b.as_ptr()))
            .collect();
        let mut outputs: SmallVec<[*mut sys::PJRT_Buffer; 32]> =
            smallvec![ptr::null_mut(); rows.len() * num_outputs];
        let mut events: SmallVec<[*mut sys::PJRT_Event; 8]> =
            smallvec![ptr::null_mut(); rows.len()];
        let first_output = outputs.as_mut_ptr();
        let arg_lists: SmallVec<[*const *mut sys::PJRT_Buffer; 8]> = (0..rows.len())
            .map(|row| args.as_ptr().wrapping_add(row * num_args))
            .collect();
        let output_lists: SmallVec<[*mut *mut sys::PJRT_Buffer; 8]> = (0..rows.len())
            .map(|row| first_output.wrapping_add(row * num_outputs))
            .collect();
        let mut options = Extended::<sys::PJRT_ExecuteOptions>::new(|o| {
            o.launch_id = launch_id;
            o.non_donatable_input_indices = kept.as_ptr();
            o.num_non_donatable_input_indices = kept.len();
        });
        let mut execute = Extended::<sys::PJRT_LoadedExecutable_Execute_Args>::new(|a| {
            a.executable = self.loaded.as_ptr();
            a.options = options.as_mut_ptr();
            a.argument_lists = arg_lists.as_ptr();
            a.num_devices = rows.len();
            a.num_args = num_args;
            a.output_lists = output_lists.as_ptr();
            a.device_complete_events = events.as_mut_ptr();
            a.execute_device = execute_device;
        });
        let watch = Metric::ExecuteTime.start();
        let began = watch.began();
        // SAFETY: executable, device and arguments are live and of one client; the arguments have the
        // program's count, dtypes and shapes; there is room for as many outputs as the compiled
        // program was found to have, and for an event a device. Arguments and executable may be
        // dropped while the program runs: the plugin keeps what it needs.
        unsafe {
            self.client
                .api()
                .PJRT_LoadedExecutable_Execute(&mut execute)
        }?;
        watch.stop();
        metrics::add(Counter::Execute, 1);
        metrics::add(Counter::Output, num_outputs as u64);
        let mut executions = Executions::with_capacity(rows.len());
        for (row, &device) in devices.iter().enumerate() {
            // SAFETY: the call succeeded, so it filled in events and outputs, all owned by the caller,
            // the outputs being what the signature says (checked when the program was compiled).
            unsafe {
                let done = Event::new(&self.client, "an execution", events[row])?;
                if profiler::is_running() {
                    // Where that cannot be arranged, the device's row lacks a span.
                    let _ = on_ready(done.handle(), move || {
                        profiler::record_on_device("program", "device", device, began, None);
                    });
                }
                self.client.in_flight().push(device, done.pending());
                let outputs = outputs[row * num_outputs..][..num_outputs]
                    .iter()
                    .zip(&self.signature.outputs)
                    .map(|(raw, (dtype, shape))| {
                        Buffer::new(&self.client, *raw, *dtype, shape.clone(), device)
                    })
                    .collect::<Result<Vec<_>>>()?;
                executions.push(Execution { outputs, done });
            }
        }
        Ok(executions)
    }

    /// What is behind the plugin's refusal, where the arguments tell.
    fn explain(&self, error: Error, rows: &Rows<'_, '_>) -> Error {
        for args in rows {
            for &index in &self.donated {
                if let Some(twin) = args
                    .iter()
                    .enumerate()
                    .position(|(i, b)| i != index && ptr::eq(*b, args[index]))
                {
                    return Error::ExecuteArgument {
                        index,
                        expected: "a donated buffer in one place only".into(),
                        got: format!("the same buffer as argument {twin}"),
                    };
                }
            }
            // A failed execution may have taken the donated buffers all the same; only where the
            // plugin complains of an argument is that the cause.
            let of_argument = matches!(
                error,
                Error::Pjrt {
                    code: INVALID_ARGUMENT,
                    ..
                }
            );
            if of_argument && args.iter().any(|b| b.is_deleted()) {
                return Error::BufferDeleted { what: "execute" };
            }
        }
        error
    }
}
