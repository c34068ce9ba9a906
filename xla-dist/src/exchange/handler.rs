//! The custom call's handler.

use super::algorithm::{self, Setting};
use super::spec::Spec;
use crate::gang::Launched;
use crate::transport::Failure;
use std::time::Instant;
use xla_runtime::ffi::Call;
use xla_runtime::meeting::{Met, Part};
use xla_runtime::profiler;

/// Does one member's part of a collective. The last operand and the last result of a call only keep
/// the order of effects.
pub(super) fn handle(call: &mut Call<'_>) {
    if !exchanged(call) {
        for output in call.outputs() {
            output.bytes.fill(0);
        }
    } else if let Some(order) = call.outputs().last_mut() {
        order.bytes.fill(0);
    }
}

/// Whether the results are there. If not, the execution is marked as failed, or is over.
fn exchanged(call: &mut Call<'_>) -> bool {
    let Some(launched) = Launched::find(call.run_id()) else {
        return false;
    };
    let profiled = profiler::is_running().then(Instant::now);
    let device = call.device_ordinal();
    let wrong = |collective: usize, what: &str| {
        launched.fail(collective, &Failure::Aborted(what.into()));
        false
    };
    let found = Spec::read(call).and_then(|spec| {
        let member = launched.member(device)?;
        let (number, group) = spec.group_of(member)?;
        Some((spec, member, number, group))
    });
    let Some((spec, member, number, group)) = found else {
        return wrong(0, "an exchange with unknown attributes");
    };
    let collective = spec.collective;
    let (inputs, outputs) = call.buffers();
    let ([input, ..], [output, ..]) = (inputs, outputs) else {
        return wrong(collective, "an exchange of nothing");
    };
    let local = launched.layout().local();
    let is_here = |member: &&usize| local.contains(&(**member as u32));
    let here = group.iter().filter(is_here).count();
    let meeting = launched
        .meetings()
        .join((collective, spec.call, number), here);
    let dtype = input.dtype;
    let part = Part {
        member,
        input: input.bytes,
        output: &mut *output.bytes,
    };
    let met = meeting.meet(part, launched.end(), |parts| {
        let setting = Setting {
            transport: &**launched.transport(),
            layout: launched.layout(),
            group: &group,
            number,
            tag: launched.tag(collective, spec.call),
            end: launched.end(),
        };
        if let Err(failure) = algorithm::run(&setting, &spec.exchange, dtype, parts) {
            launched.fail(collective, &failure);
        }
    });
    if met == Met::Not && Instant::now() >= launched.end() {
        let process = launched.layout().own();
        launched.fail(collective, &Failure::Late { process });
    }
    if let Some(began) = profiled {
        let operator = Some(("operator", launched.text(collective)));
        let name = spec.exchange.name();
        profiler::record_on_device(name, "collective", device, began, operator);
    }
    met == Met::All
}
