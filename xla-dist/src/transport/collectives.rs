//! Collectives of processes, built on single messages.
//!
//! Each process brings the parts of all its members at once and takes the results of all of them.
//! Everything goes straight from one process to the other: a reduction's result is computed at one
//! place for each piece of it, or always in the same order, so that all get the same bits.

use super::reduce::Reduce;
use super::{Channel, Failure, Messages, Ticket, Transport};
use std::collections::VecDeque;
use std::ops::Range;
use std::slice::ChunksMut;
use std::time::Instant;

/// Up to this many bytes one process combines them all.
const SMALL: usize = 16 << 10;
/// The largest piece that is on the way while others are computed on.
const PIECE: usize = 1 << 20;
/// And the least that is worth a message.
const LEAST_PIECE: usize = 64 << 10;
/// Rows of pieces between the start of a phase and its end.
const AHEAD: usize = 2;

/// The processes that take part, as one of them sees it.
#[derive(Clone, Copy)]
pub(crate) struct Party<'a> {
    /// What connects them.
    pub(crate) transport: &'a dyn Transport,
    /// Their indices, ascending; this process is among them.
    pub(crate) processes: &'a [usize],
    /// Where the messages of this collective meet.
    pub(crate) channel: Channel,
    /// The deadline.
    pub(crate) end: Instant,
}

impl Party<'_> {
    /// The other processes.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + Clone {
        // From the next one on, so that not all begin with the same.
        let own = self.transport.index();
        let start = self.processes.partition_point(|process| *process <= own);
        let (before, after) = self.processes.split_at(start);
        after
            .iter()
            .chain(before)
            .copied()
            .filter(move |process| *process != own)
    }
}

/// Sends and receives, with processes by their index; both ends list the messages between them in
/// the same order.
pub(crate) fn exchange<'env>(
    party: &Party<'_>,
    sends: &[(usize, &'env [u8])],
    receives: Vec<(usize, &'env mut [u8])>,
) -> Result<(), Failure> {
    let channel = party.channel;
    let mut receives = Some(receives);
    party.transport.call(party.end, &mut |messages| {
        let receives = receives.take().unwrap_or_default();
        let mut tickets = Vec::with_capacity(sends.len() + receives.len());
        for (process, into) in receives {
            tickets.push(messages.receive(process, channel, into)?);
        }
        for (process, data) in sends {
            tickets.push(messages.send(*process, channel, data)?);
        }
        wait_all(messages, tickets)
    })
}

fn wait_all<'env>(
    messages: &mut dyn Messages<'env>,
    tickets: impl IntoIterator<Item = Ticket>,
) -> Result<(), Failure> {
    for ticket in tickets {
        messages.wait(ticket)?;
    }
    Ok(())
}

/// Each of `outputs` becomes the combination of all processes' `inputs`, of which each process has
/// at least one. All are of one length.
pub(crate) fn all_reduce(
    party: &Party<'_>,
    reduce: Reduce,
    inputs: &[&[u8]],
    outputs: Vec<&mut [u8]>,
) -> Result<(), Failure> {
    let length = inputs.first().map_or(0, |input| input.len());
    if length <= SMALL || party.processes.len() < 2 {
        small_all_reduce(party, reduce, inputs, outputs)
    } else {
        large_all_reduce(party, reduce, inputs, outputs)
    }
}

/// The first process combines for all: messages cost more than bytes here, and this takes the fewest.
/// Two processes send to each other instead, which takes as many but no second trip.
fn small_all_reduce(
    party: &Party<'_>,
    reduce: Reduce,
    inputs: &[&[u8]],
    mut outputs: Vec<&mut [u8]>,
) -> Result<(), Failure> {
    let length = inputs.first().map_or(0, |input| input.len());
    let Some((result, copies)) = outputs.split_first_mut() else {
        return Ok(());
    };
    let (index, first) = (party.transport.index(), party.processes.first().copied());
    let (two, combines) = (party.processes.len() == 2, first == Some(index));
    let mut own = vec![0; length];
    reduce.combine(&mut own, false, inputs);
    if combines || two {
        let mut received = vec![0; length * (party.processes.len() - 1)];
        let sends = party.others().filter(|_| two).map(|p| (p, &*own));
        let receives = party.others().zip(received.chunks_exact_mut(length.max(1)));
        exchange(party, &sends.collect::<Vec<_>>(), receives.collect())?;
        // In the order of the processes, so that two get the same bits.
        let mut parts: Vec<(usize, &[u8])> = party
            .others()
            .zip(received.chunks_exact(length.max(1)))
            .collect();
        parts.push((index, &own));
        parts.sort_unstable_by_key(|(process, _)| *process);
        let parts: Vec<&[u8]> = parts.into_iter().map(|(_, part)| part).collect();
        reduce.combine(result, false, &parts);
        if !two {
            let sends: Vec<(usize, &[u8])> = party.others().map(|p| (p, &**result)).collect();
            exchange(party, &sends, Vec::new())?;
        }
    } else if let Some(first) = first {
        exchange(party, &[(first, &own)], vec![(first, &mut **result)])?;
    }
    for output in copies {
        output.copy_from_slice(result);
    }
    Ok(())
}

/// A block of a vector, and the process that computes it.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The process's index.
    pub(crate) process: usize,
    /// Its bytes in each input.
    pub(crate) range: Range<usize>,
}

/// Computes each block at its process: those of this process go into `outputs`, in their order in
/// `blocks`. Inputs are of one length and blocks whole elements, the same everywhere.
pub(crate) fn reduce_scatter(
    party: &Party<'_>,
    reduce: Reduce,
    inputs: &[&[u8]],
    blocks: &[Block],
    mut outputs: Vec<&mut [u8]>,
) -> Result<(), Failure> {
    let own = party.transport.index();
    if party.processes.len() < 2 {
        for (block, output) in blocks.iter().zip(outputs) {
            let sources: Vec<&[u8]> = inputs.iter().map(|i| &i[block.range.clone()]).collect();
            reduce.combine(output, false, &sources);
        }
        return Ok(());
    }
    let largest = blocks.iter().map(|block| block.range.len()).max();
    let piece = piece(largest.unwrap_or(0), reduce.size());
    let mut memory = Scatter::spare(party, blocks, inputs.len(), piece);
    let owned = blocks.iter().filter(|block| block.process == own).count();
    outputs.truncate(owned);
    let mut scatter = Some(Scatter {
        party,
        reduce,
        inputs,
        blocks,
        piece,
        outputs: outputs.into_iter().map(|o| o.chunks_mut(piece)).collect(),
        spare: memory.chunks_exact_mut(piece).collect(),
        rows: VecDeque::new(),
    });
    party.transport.call(party.end, &mut |messages| {
        let Some(mut scatter) = scatter.take() else {
            return Ok(());
        };
        for row in 0..scatter.rows() {
            scatter.start(messages, row)?;
            if row >= AHEAD {
                scatter.finish(messages)?;
            }
        }
        while !scatter.rows.is_empty() {
            scatter.finish(messages)?;
        }
        Ok(())
    })
}

fn large_all_reduce(
    party: &Party<'_>,
    reduce: Reduce,
    inputs: &[&[u8]],
    mut outputs: Vec<&mut [u8]>,
) -> Result<(), Failure> {
    let (own, count) = (party.transport.index(), party.processes.len());
    let length = inputs.first().map_or(0, |input| input.len());
    let Some((first, mut copies)) = outputs.split_first_mut() else {
        return Ok(());
    };
    // Every process computes one block of the result.
    let segment = (length / reduce.size()).div_ceil(count) * reduce.size();
    let piece = piece(segment, reduce.size());
    let blocks: Vec<Block> = (party.processes.iter().enumerate())
        .map(|(position, process)| Block {
            process: *process,
            range: length.min(position * segment)..length.min((position + 1) * segment),
        })
        .collect();
    let mut memory = Scatter::spare(party, &blocks, inputs.len(), piece);
    let (mut outputs, mut foreign) = (Vec::new(), Vec::new());
    let mut segments = first.chunks_mut(segment);
    for block in &blocks {
        let pieces = segments.next().unwrap_or_default().chunks_mut(piece);
        if block.process == own {
            outputs.push(pieces);
        } else {
            foreign.push((block, pieces));
        }
    }
    let mut scatter = Some((
        Scatter {
            party,
            reduce,
            inputs,
            blocks: &blocks,
            piece,
            outputs,
            spare: memory.chunks_exact_mut(piece).collect(),
            rows: VecDeque::new(),
        },
        foreign,
    ));
    let channel = party.channel.part(1);
    party.transport.call(party.end, &mut |messages| {
        let Some((mut scatter, mut foreign)) = scatter.take() else {
            return Ok(());
        };
        let rows = scatter.rows();
        let mut told = VecDeque::new();
        for step in 0..rows + 2 * AHEAD {
            if step < rows {
                scatter.start(messages, step)?;
            }
            if let Some(row) = step.checked_sub(AHEAD).filter(|row| *row < rows) {
                let (mut sent, mut results) = (Vec::new(), Vec::new());
                for (at, result) in scatter.finish(messages)? {
                    copy(result, at, &mut copies);
                    let result: &[u8] = result;
                    for process in party.others() {
                        sent.push(messages.send(process, channel, result)?);
                    }
                }
                for (block, pieces) in &mut foreign {
                    let into = pieces.next().unwrap_or_default();
                    let at = block.range.start + row * piece;
                    results.push((at, messages.receive(block.process, channel, into)?));
                }
                told.push_back((sent, results));
            }
            if step >= 2 * AHEAD
                && let Some((sent, results)) = told.pop_front()
            {
                for (at, ticket) in results {
                    copy(messages.wait(ticket)?, at, &mut copies);
                }
                wait_all(messages, sent)?;
            }
        }
        Ok(())
    })
}

/// Puts a part of the first output into the others.
fn copy(part: &[u8], at: usize, copies: &mut &mut [&mut [u8]]) {
    for output in copies.iter_mut() {
        output[at..at + part.len()].copy_from_slice(part);
    }
}

/// The length of the pieces of a block.
fn piece(block: usize, element: usize) -> usize {
    (block / 4).clamp(LEAST_PIECE, PIECE).div_ceil(element) * element
}

/// A reduction of which each process computes its blocks, piece by piece: while one row of pieces (one
/// of each block) is computed, the next are on their way.
struct Scatter<'w, 'env> {
    party: &'w Party<'w>,
    reduce: Reduce,
    inputs: &'w [&'env [u8]],
    blocks: &'w [Block],
    piece: usize,
    /// What is left of the memory of this process's blocks.
    outputs: Vec<ChunksMut<'env, u8>>,
    /// Memory for pieces that are not results.
    spare: Vec<&'env mut [u8]>,
    /// Those under way.
    rows: VecDeque<Row>,
}

/// What is under way for one piece of each block.
#[derive(Default)]
struct Row {
    /// For each piece that is computed here: where it is, and what the others add to it. The first of
    /// these is received where the result will be.
    parts: Vec<(Range<usize>, Vec<Ticket>)>,
    /// What this process adds to the other pieces.
    given: Vec<Ticket>,
}

impl<'env> Scatter<'_, 'env> {
    /// Memory for as many pieces as are under way at once.
    fn spare(party: &Party<'_>, blocks: &[Block], inputs: usize, piece: usize) -> Vec<u8> {
        let own = party.transport.index();
        let here = blocks.iter().filter(|block| block.process == own).count();
        let summed = if inputs > 1 { blocks.len() - here } else { 0 };
        vec![0; (here * (party.processes.len() - 2) + summed) * (AHEAD + 1) * piece]
    }

    fn rows(&self) -> usize {
        let rows = |block: &Block| block.range.len().div_ceil(self.piece);
        self.blocks.iter().map(rows).max().unwrap_or(0)
    }

    /// Sends what the others need for a row, and begins to receive.
    fn start(&mut self, messages: &mut dyn Messages<'env>, row: usize) -> Result<(), Failure> {
        let (own, channel) = (self.party.transport.index(), self.party.channel);
        let (mut here, mut started) = (0, Row::default());
        for block in self.blocks {
            let start = block.range.start + row * self.piece;
            let range = start..block.range.end.min(start + self.piece);
            let is_own = block.process == own;
            here += usize::from(is_own);
            if range.is_empty() {
                continue;
            }
            if is_own {
                let mut tickets = Vec::with_capacity(self.party.processes.len());
                for process in self.party.others() {
                    let into = match tickets.is_empty() {
                        true => self.outputs.get_mut(here - 1).and_then(ChunksMut::next),
                        false => self.spare.pop(),
                    };
                    let into = sized(into, range.len())?;
                    tickets.push(messages.receive(process, channel, into)?);
                }
                started.parts.push((range, tickets));
            } else if let [input] = self.inputs {
                let part = &input[range];
                started
                    .given
                    .push(messages.send(block.process, channel, part)?);
            } else {
                let sum = sized(self.spare.pop(), range.len())?;
                self.reduce.combine(sum, false, &self.parts_of(&range));
                started
                    .given
                    .push(messages.lend(block.process, channel, sum)?);
            }
        }
        self.rows.push_back(started);
        Ok(())
    }

    /// Completes the row that was started first, and returns where this process's results are in the
    /// vector, and the results.
    fn finish(
        &mut self,
        messages: &mut dyn Messages<'env>,
    ) -> Result<Vec<(usize, &'env mut [u8])>, Failure> {
        let row = self.rows.pop_front().unwrap_or_default();
        let mut results = Vec::with_capacity(row.parts.len());
        for (range, tickets) in row.parts {
            let mut received = Vec::with_capacity(tickets.len());
            for ticket in tickets {
                received.push(messages.wait(ticket)?);
            }
            let mut received = received.into_iter();
            let result = received.next().unwrap_or_default();
            let others: Vec<&mut [u8]> = received.collect();
            let mut parts = self.parts_of(&range);
            parts.extend(others.iter().map(|part| &**part));
            self.reduce.combine(result, true, &parts);
            self.keep(others);
            results.push((range.start, result));
        }
        for ticket in row.given {
            let lent = messages.wait(ticket)?;
            self.keep([lent]);
        }
        Ok(results)
    }

    /// Keeps memory for later pieces. The last piece of a block may have been short; what it used is
    /// not needed again.
    fn keep(&mut self, memory: impl IntoIterator<Item = &'env mut [u8]>) {
        let whole = memory.into_iter().filter(|m| m.len() == self.piece);
        self.spare.extend(whole);
    }

    fn parts_of(&self, range: &Range<usize>) -> Vec<&'env [u8]> {
        self.inputs.iter().map(|i| &i[range.clone()]).collect()
    }
}

/// The beginning of this memory.
fn sized(memory: Option<&mut [u8]>, length: usize) -> Result<&mut [u8], Failure> {
    let memory = memory.and_then(|memory| memory.get_mut(..length));
    memory.ok_or_else(|| Failure::Aborted("the pieces of a reduction do not fit its memory".into()))
}
