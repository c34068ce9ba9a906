//! What whoever asks is told of an execution that was just started.

use super::{Cause, StepInfo};
use crate::cache::Compiled;
use crate::debug::{self, MissedDonation, log};
use crate::lower::Argument;
use crate::ty::Ty;
use xla_core::Device;
use xla_runtime::metrics::{self, Counter};

/// A started execution.
pub(super) struct Started<'a> {
    pub(super) compiled: &'a Compiled,
    pub(super) withheld: &'a [usize],
    pub(super) info: StepInfo,
    pub(super) device: Device,
    pub(super) cause: Cause,
}

impl Started<'_> {
    /// Counts what was not donated; `replaced`, which is found out only for an audit or the log, is
    /// shown with it. `ty` is the type of a parameter of the recording.
    pub(super) fn report(
        &self,
        missed: &[MissedDonation],
        replaced: impl FnOnce() -> Vec<MissedDonation>,
        ty: impl Fn(u32) -> Option<Ty>,
    ) {
        for missed in missed {
            metrics::add_with(Counter::DonationMissed, 1, || missed.to_string());
        }
        let audited = debug::donation::audited();
        if !log::is_on() && !audited {
            return;
        }
        let mut missed = missed.to_vec();
        missed.extend(replaced());
        if audited {
            let donated = self.compiled.donated.iter();
            let overwritten = donated.filter(|at| !self.withheld.contains(at));
            let types = overwritten.filter_map(|&at| match self.compiled.arguments[at] {
                Argument::Param(position) => ty(position),
                Argument::Numbers(_) | Argument::Order => None,
            });
            debug::donation::note(debug::Part::of(types), &missed);
        }
        if log::is_on() {
            let (step, size) = (self.info.step, self.compiled.size);
            log::print(format_args!(
                "step {step} on {} started for {}: {size}",
                self.device, self.cause
            ));
            for missed in missed {
                log::print(format_args!("  not donated: {missed}"));
            }
        }
    }
}
