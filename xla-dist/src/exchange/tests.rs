//! Every collective against what it means, for groups that lie across processes in any way.

use super::Exchange;
use super::algorithm::{Setting, run};
use crate::gang::Layout;
use crate::transport::tests::among;
use std::time::{Duration, Instant};
use xla_core::DType;
use xla_lazy::stablehlo::Reduction;
use xla_runtime::meeting::Part;

/// The member's operand: small whole numbers.
fn operand(member: usize, length: usize) -> Vec<i32> {
    (0..length)
        .map(|i| ((i * 5 + member * 11) % 23) as i32)
        .collect()
}

/// What the members of `group` get, by the collective's definition.
fn meant(exchange: &Exchange, group: &[usize], length: usize) -> Vec<Vec<i32>> {
    let all: Vec<Vec<i32>> = group.iter().map(|m| operand(*m, length)).collect();
    let block = length / group.len();
    let sum = |i: usize| all.iter().map(|x| x[i]).sum();
    let each = |f: &dyn Fn(usize) -> Vec<i32>| (0..group.len()).map(f).collect();
    match exchange {
        Exchange::AllReduce(_) => each(&|_| (0..length).map(sum).collect()),
        Exchange::AllGather => each(&|_| all.concat()),
        Exchange::ReduceScatter(_) => each(&|m| (m * block..(m + 1) * block).map(sum).collect()),
        Exchange::AllToAll => each(&|m| {
            let blocks = all.iter().map(|x| &x[m * block..(m + 1) * block]);
            blocks.flatten().copied().collect()
        }),
        Exchange::Broadcast { source } => each(&|_| all[*source as usize].clone()),
        Exchange::Permute(pairs) => each(&|m| {
            let pair = pairs.iter().find(|(_, target)| *target as usize == m);
            pair.map_or(vec![0; length], |(source, _)| all[*source as usize].clone())
        }),
    }
}

/// Processes, the process of each rank, and the ranks of each group.
type Layouts = (usize, &'static [usize], &'static [&'static [usize]]);

#[test]
fn every_collective_is_what_it_means_however_its_members_lie() {
    let layouts: [Layouts; 3] = [
        (2, &[0, 0, 1, 1], &[&[0, 1, 2, 3]]),
        // Even and odd ranks, one group in descending order; each spans both processes.
        (2, &[0, 0, 1, 1], &[&[2, 0], &[1, 3]]),
        // Unequal numbers of members; one group lies in a process.
        (3, &[0, 1, 1, 1, 2, 0], &[&[0, 1, 4], &[2, 3, 5]]),
    ];
    for (processes, process_of, groups) in layouts {
        let size = groups[0].len();
        let last = size as u32 - 1;
        let exchanges = [
            Exchange::AllReduce(Reduction::Sum),
            Exchange::AllGather,
            Exchange::ReduceScatter(Reduction::Sum),
            Exchange::AllToAll,
            Exchange::Broadcast { source: last },
            Exchange::Permute((0..last).map(|m| (m, m + 1)).collect()),
        ];
        among(processes, |transport| {
            let ranks: Vec<usize> = (0..process_of.len()).collect();
            let layout = Layout::new(&ranks, |rank| process_of[rank], transport.index());
            let layout = layout.unwrap();
            let mut tag = 0;
            for length in [0, size, 3 * 1024 * size, 70_000 * size] {
                for exchange in &exchanges {
                    tag += 1;
                    for (number, group) in groups.iter().enumerate() {
                        let setting = Setting {
                            transport: &*transport,
                            layout: &layout,
                            group,
                            number,
                            tag,
                            end: Instant::now() + Duration::from_secs(60),
                        };
                        let meant = meant(exchange, group, length);
                        let mut own: Vec<(usize, Vec<i32>, Vec<i32>)> = group
                            .iter()
                            .zip(&meant)
                            .filter(|(m, _)| layout.local().contains(&(**m as u32)))
                            .map(|(m, out)| (*m, operand(*m, length), vec![-1; out.len()]))
                            .collect();
                        if own.is_empty() {
                            continue;
                        }
                        let parts = own.iter_mut().map(|(member, input, output)| Part {
                            member: *member,
                            input: bytemuck::cast_slice(input),
                            output: bytemuck::cast_slice_mut(output),
                        });
                        run(&setting, exchange, DType::I32, parts.collect()).unwrap();
                        for (member, _, output) in own {
                            let position = group.iter().position(|m| *m == member).unwrap();
                            let right = output == meant[position];
                            assert!(right, "{exchange:?} of {length} in {group:?} at {member}");
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn shapes_that_do_not_fit_are_a_failure_with_zeros() {
    among(2, |transport| {
        let layout = Layout::new(&[0, 1], |rank| rank, transport.index()).unwrap();
        let setting = Setting {
            transport: &*transport,
            layout: &layout,
            group: &[0, 1],
            number: 0,
            tag: 1,
            end: Instant::now() + Duration::from_secs(60),
        };
        let mut output = [7; 4];
        let part = Part {
            member: transport.index(),
            input: &[1; 4],
            output: &mut output,
        };
        let done = run(&setting, &Exchange::AllGather, DType::U8, vec![part]);
        assert!(done.is_err());
        assert_eq!(output, [0; 4]);
    });
}
