//! The collectives of members in several processes, as one thread of each process does them for all
//! its members.

use super::Exchange;
use crate::gang::Layout;
use crate::transport::collectives::{self, Block, Party};
use crate::transport::reduce::Reduce;
use crate::transport::{Channel, Failure, Transport};
use std::time::Instant;
use xla_core::DType;
use xla_lazy::stablehlo::Reduction;
use xla_runtime::meeting::Part;

/// Where a collective takes place.
pub(super) struct Setting<'a> {
    pub(super) transport: &'a dyn Transport,
    pub(super) layout: &'a Layout,
    /// The members of the gang that communicate, in the group's order.
    pub(super) group: &'a [usize],
    /// Which of the groups it is.
    pub(super) number: usize,
    /// The call's, common to all groups.
    pub(super) tag: u32,
    pub(super) end: Instant,
}

/// A member of this process: its position in the group, and its memory.
struct Own<'p> {
    position: usize,
    input: &'p [u8],
    output: &'p mut [u8],
}

/// What is sent to other processes and received from them.
#[derive(Default)]
struct Mail<'p> {
    sends: Vec<(usize, &'p [u8])>,
    receives: Vec<(usize, &'p mut [u8])>,
}

impl Mail<'_> {
    fn exchange(self, party: &Party<'_>) -> Result<(), Failure> {
        collectives::exchange(party, &self.sends, self.receives)
    }
}

/// Fills in the outputs of `parts`, which are all members of the group in this process. After a
/// failure the outputs are zeros.
pub(super) fn run(
    setting: &Setting<'_>,
    exchange: &Exchange,
    dtype: DType,
    mut parts: Vec<Part<'_>>,
) -> Result<(), Failure> {
    let done = attempt(setting, exchange, dtype, &mut parts);
    if done.is_err() {
        for part in &mut parts {
            part.output.fill(0);
        }
    }
    done
}

fn attempt(
    setting: &Setting<'_>,
    exchange: &Exchange,
    dtype: DType,
    parts: &mut [Part<'_>],
) -> Result<(), Failure> {
    let owners = owners(setting).ok_or_else(|| malformed("members that the gang lacks"))?;
    let mut processes = owners.clone();
    processes.sort_unstable();
    processes.dedup();
    let length = parts.first().map_or(0, |part| part.input.len());
    let mut words = exchange.words();
    words.extend([setting.number as u64, dtype as u64, length as u64]);
    let party = Party {
        transport: setting.transport,
        processes: &processes,
        channel: Channel::new(setting.tag, &words),
        end: setting.end,
    };
    let position = |member: usize| setting.group.iter().position(|m| *m == member);
    let mut own: Vec<Own<'_>> = parts
        .iter_mut()
        .filter_map(|part| {
            Some(Own {
                position: position(part.member)?,
                input: part.input,
                output: &mut *part.output,
            })
        })
        .collect();
    own.sort_unstable_by_key(|member| member.position);
    let size = setting.group.len();
    check(exchange, size, &own)?;
    let reduce = |op: &Reduction| {
        Reduce::new(dtype, *op).ok_or_else(|| malformed("a reduction that floats do not have"))
    };
    match exchange {
        Exchange::AllReduce(op) => {
            let inputs: Vec<&[u8]> = own.iter().map(|member| member.input).collect();
            let outputs = own.into_iter().map(|member| member.output).collect();
            collectives::all_reduce(&party, reduce(op)?, &inputs, outputs)
        }
        Exchange::ReduceScatter(op) => {
            let block = length / size;
            let blocks: Vec<Block> = (owners.iter().enumerate())
                .map(|(position, process)| Block {
                    process: *process,
                    range: position * block..(position + 1) * block,
                })
                .collect();
            let inputs: Vec<&[u8]> = own.iter().map(|member| member.input).collect();
            let outputs = own.into_iter().map(|member| member.output).collect();
            collectives::reduce_scatter(&party, reduce(op)?, &inputs, &blocks, outputs)
        }
        Exchange::AllGather => all_gather(&party, &owners, own),
        Exchange::AllToAll => all_to_all(&party, &owners, own),
        Exchange::Broadcast { source } => broadcast(&party, &owners, *source as usize, own),
        Exchange::Permute(pairs) => permute(&party, &owners, pairs, own),
    }
}

/// The process of each member of the group.
fn owners(setting: &Setting<'_>) -> Option<Vec<usize>> {
    let layout = setting.layout;
    let owner = |member: &usize| {
        (0..layout.processes()).find(|p| layout.members(*p).contains(&(*member as u32)))
    };
    setting.group.iter().map(owner).collect()
}

fn malformed(what: &str) -> Failure {
    Failure::Aborted(format!("an exchange of {what}"))
}

/// Whether the lengths are such as the collective has.
fn check(exchange: &Exchange, size: usize, own: &[Own<'_>]) -> Result<(), Failure> {
    let Some(first) = own.first() else {
        return Err(malformed("no member"));
    };
    let (input, output) = (first.input.len(), first.output.len());
    let fits = match exchange {
        Exchange::AllGather => output == input * size,
        Exchange::ReduceScatter(_) => input == output * size,
        Exchange::AllToAll => input == output && input % size == 0,
        Exchange::Broadcast { source } => input == output && (*source as usize) < size,
        Exchange::AllReduce(_) | Exchange::Permute(_) => input == output,
    };
    let alike = |m: &Own<'_>| m.input.len() == input && m.output.len() == output;
    match fits && own.iter().all(alike) {
        true => Ok(()),
        false => Err(malformed("shapes that do not fit")),
    }
}

/// The memory as `count` blocks, each to be taken once; none if they are empty.
fn blocks(memory: &mut [u8], count: usize) -> Vec<Option<&mut [u8]>> {
    let mut blocks: Vec<Option<&mut [u8]>> = match memory.len() / count {
        0 => Vec::new(),
        block => memory.chunks_exact_mut(block).map(Some).collect(),
    };
    blocks.resize_with(count, || None);
    blocks
}

fn all_gather(party: &Party<'_>, owners: &[usize], mut own: Vec<Own<'_>>) -> Result<(), Failure> {
    let here = party.transport.index();
    let inputs: Vec<(usize, &[u8])> = own.iter().map(|m| (m.position, m.input)).collect();
    let Some((first, others)) = own.split_first_mut() else {
        return Ok(());
    };
    let mut mail = Mail::default();
    for process in party.others() {
        mail.sends
            .extend(inputs.iter().map(|(_, input)| (process, *input)));
    }
    let mut gathered = blocks(first.output, owners.len());
    for (position, input) in &inputs {
        if let Some(block) = &mut gathered[*position] {
            block.copy_from_slice(input);
        }
    }
    for (block, process) in gathered.into_iter().zip(owners) {
        if let Some(block) = block.filter(|_| *process != here) {
            mail.receives.push((*process, block));
        }
    }
    mail.exchange(party)?;
    for member in others {
        member.output.copy_from_slice(first.output);
    }
    Ok(())
}

fn all_to_all(party: &Party<'_>, owners: &[usize], own: Vec<Own<'_>>) -> Result<(), Failure> {
    let here = party.transport.index();
    let count = owners.len();
    let block = own.first().map_or(0, |member| member.input.len() / count);
    let range = |of: usize| of * block..(of + 1) * block;
    let inputs: Vec<(usize, &[u8])> = own.iter().map(|m| (m.position, m.input)).collect();
    let mut outputs: Vec<(usize, Vec<Option<&mut [u8]>>)> = own
        .into_iter()
        .map(|member| (member.position, blocks(member.output, count)))
        .collect();
    let mut mail = Mail::default();
    // By source and then by target, as the other side lists them.
    for (_, input) in &inputs {
        let away = owners
            .iter()
            .enumerate()
            .filter(|(_, process)| **process != here);
        mail.sends
            .extend(away.map(|(to, process)| (*process, &input[range(to)])));
    }
    for (from, process) in owners.iter().enumerate() {
        let input = inputs.iter().find(|(position, _)| *position == from);
        for (to, output) in &mut outputs {
            match (output[from].take(), input) {
                (Some(output), Some((_, input))) => output.copy_from_slice(&input[range(*to)]),
                (Some(output), None) => mail.receives.push((*process, output)),
                (None, _) => {}
            }
        }
    }
    mail.exchange(party)
}

fn broadcast(
    party: &Party<'_>,
    owners: &[usize],
    source: usize,
    mut own: Vec<Own<'_>>,
) -> Result<(), Failure> {
    let input = own.iter().find(|m| m.position == source).map(|m| m.input);
    let mut mail = Mail::default();
    if let Some(input) = input {
        mail.sends = party.others().map(|process| (process, input)).collect();
        for member in &mut own {
            member.output.copy_from_slice(input);
        }
        return mail.exchange(party);
    }
    let Some((first, others)) = own.split_first_mut() else {
        return Ok(());
    };
    mail.receives.push((owners[source], &mut *first.output));
    mail.exchange(party)?;
    for member in others {
        member.output.copy_from_slice(first.output);
    }
    Ok(())
}

fn permute(
    party: &Party<'_>,
    owners: &[usize],
    pairs: &[(u32, u32)],
    own: Vec<Own<'_>>,
) -> Result<(), Failure> {
    let here = party.transport.index();
    let inputs: Vec<(usize, &[u8])> = own.iter().map(|m| (m.position, m.input)).collect();
    let input_of = |position: usize| inputs.iter().find(|(p, _)| *p == position).map(|i| i.1);
    let mut outputs: Vec<(usize, Option<&mut [u8]>)> = own
        .into_iter()
        .map(|member| (member.position, Some(member.output)))
        .collect();
    let mut mail = Mail::default();
    for (source, target) in pairs {
        let (source, target) = (*source as usize, *target as usize);
        let (Some(from), Some(to)) = (owners.get(source), owners.get(target)) else {
            return Err(malformed("members that the group lacks"));
        };
        if *to == here {
            let output = outputs.iter_mut().find(|(position, _)| *position == target);
            let Some(output) = output.and_then(|(_, output)| output.take()) else {
                return Err(malformed("two sources for one member"));
            };
            match input_of(source) {
                Some(input) => output.copy_from_slice(input),
                None => mail.receives.push((*from, output)),
            }
        } else if let Some(input) = input_of(source) {
            mail.sends.push((*to, input));
        }
    }
    for output in outputs.into_iter().filter_map(|(_, output)| output) {
        output.fill(0);
    }
    mail.exchange(party)
}
