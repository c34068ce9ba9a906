//! Processes that cut the same collectives into different programs, with messages that take their
//! time; and processes that execute something else.

use super::*;
use proptest::prelude::*;

fn collective(name: u8) -> Collective {
    Collective {
        index: usize::from(name),
        fingerprint: [name.into(), 7],
        location: Location::caller(),
    }
}

fn text(index: usize) -> String {
    format!("all_reduce {index}")
}

/// One simulated process.
struct Process {
    comparison: Comparison,
    /// Its programs still to come.
    programs: VecDeque<Vec<u8>>,
    /// Announced and waiting for the others, whose place is given.
    waits: Option<u64>,
    /// Places up to which its programs are started, one entry a program under way.
    in_flight: VecDeque<u64>,
    started: u64,
    /// Messages to each process that have not arrived.
    outbox: Vec<VecDeque<Announcement>>,
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Done,
    Rejected(Rejected),
}

fn processes(programs: Vec<Vec<Vec<u8>>>) -> Vec<Process> {
    let count = programs.len();
    let process = |(own, programs): (usize, Vec<Vec<u8>>)| Process {
        comparison: Comparison::new(own, count),
        programs: programs.into(),
        waits: None,
        in_flight: VecDeque::new(),
        started: 0,
        outbox: vec![VecDeque::new(); count],
    };
    programs.into_iter().enumerate().map(process).collect()
}

/// What a process does next: deliver one message to another, or go on with its own programs, of
/// which two are in flight at most.
fn act(all: &mut [Process], own: usize, deliver_to: Option<usize>) -> Step {
    if let Some(to) = deliver_to.filter(|to| *to != own) {
        let Some(message) = all[own].outbox[to].pop_front() else {
            return Step::Nothing;
        };
        return match all[to].comparison.receive(own, message) {
            Ok(()) => Step::Done,
            Err(rejected) => Step::Rejected(rejected),
        };
    }
    let executed = all.iter().map(|p| p.started).min().unwrap_or(0);
    let process = &mut all[own];
    process.in_flight.retain(|end| *end > executed);
    if let Some(place) = process.waits {
        if process.comparison.without(place).next().is_some() {
            return Step::Nothing;
        }
        process.waits = None;
        process.started = process.comparison.next();
        process.in_flight.push_back(process.started);
        return Step::Done;
    }
    if process.in_flight.len() == 2 {
        return Step::Nothing;
    }
    let Some(program) = process.programs.pop_front() else {
        return Step::Nothing;
    };
    let collectives: Vec<Collective> = program.into_iter().map(collective).collect();
    let base = process.comparison.next();
    let (announcing, compared) = process.comparison.announce(&collectives, text);
    for outbox in &mut process.outbox {
        outbox.push_back(announcing.announcement.clone());
    }
    if announcing.first_use {
        process.waits = Some(base);
    } else {
        process.started = process.comparison.next();
        process.in_flight.push_back(process.started);
    }
    compared.map_or_else(Step::Rejected, |()| Step::Done)
}

/// Lets the processes go on in the order that `choices` says, then round after round until nothing
/// moves. Returns what was rejected, by whom it was noticed.
fn run(all: &mut [Process], choices: &[(usize, usize)]) -> Vec<(usize, Rejected)> {
    let mut rejected: Vec<(usize, Rejected)> = Vec::new();
    let count = all.len();
    let mut one = |all: &mut [Process], own: usize, to: Option<usize>| {
        let noticed_by = to.filter(|to| *to != own).unwrap_or(own);
        let step = act(all, own, to);
        let moved = step != Step::Nothing;
        if let Step::Rejected(why) = step {
            rejected.push((noticed_by, why));
        }
        moved
    };
    for (own, to) in choices {
        let to = (*to < count).then_some(*to);
        one(all, own % count, to);
    }
    loop {
        let mut moved = false;
        for own in 0..count {
            for to in (0..count).map(Some).chain([None]) {
                moved |= one(all, own, to);
            }
        }
        if !moved {
            return rejected;
        }
    }
}

/// `sequence` cut where `cuts` says.
fn cut(sequence: &[u8], cuts: &[bool]) -> Vec<Vec<u8>> {
    let mut programs = vec![Vec::new()];
    for (name, cut) in sequence.iter().zip(cuts) {
        if let Some(last) = programs.last_mut() {
            last.push(*name);
        }
        if *cut {
            programs.push(Vec::new());
        }
    }
    programs.retain(|program| !program.is_empty());
    programs
}

const LENGTH: usize = 24;

/// A common sequence, where each process cuts it, and who acts when.
type World = (Vec<u8>, Vec<Vec<bool>>, Vec<(usize, usize)>);

fn world() -> impl Strategy<Value = World> {
    (
        prop::collection::vec(0_u8..4, LENGTH),
        prop::collection::vec(prop::collection::vec(any::<bool>(), LENGTH), 2..5),
        prop::collection::vec((0_usize..8, 0_usize..8), 0..300),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// However each process cuts the common sequence, and whenever messages arrive: nobody waits for
    /// ever, nobody is blamed, and nothing is kept.
    #[test]
    fn one_sequence_is_executed_whatever_the_cuts((sequence, cuts, choices) in world()) {
        let mut all = processes(cuts.iter().map(|cuts| cut(&sequence, cuts)).collect());
        prop_assert_eq!(run(&mut all, &choices), []);
        for process in &all {
            prop_assert_eq!(process.started, LENGTH as u64);
            prop_assert!(process.comparison.own.log.is_empty());
            for peer in process.comparison.peers.iter().flatten() {
                prop_assert!(peer.announced.log.is_empty());
            }
        }
    }

    /// A process that executes something else at one place is found, and at that place, by each
    /// process that has come there.
    #[test]
    fn a_difference_is_found_at_its_place(
        (sequence, cuts, choices) in world(),
        at in 0..LENGTH,
        who in 0_usize..5,
    ) {
        let who = who % cuts.len();
        let mut other = sequence.clone();
        other[at] = 9;
        let programs = cuts.iter().enumerate().map(|(process, cuts)| {
            cut(if process == who { &other } else { &sequence }, cuts)
        });
        let mut all = processes(programs.collect());
        let rejected = run(&mut all, &choices);
        prop_assert!(!rejected.is_empty());
        for (by, why) in rejected {
            let Rejected::Mismatch(found) = why else {
                return Err(TestCaseError::fail(format!("{why:?}")));
            };
            prop_assert_eq!(found.sequence, at as u64);
            prop_assert!(by == who || found.process == who);
            let odd = text(9);
            prop_assert_eq!(if by == who { &found.ours } else { &found.theirs }, &odd);
        }
    }
}

#[test]
fn a_repeated_program_costs_a_number() {
    let mut comparison = Comparison::new(0, 2);
    let names: Vec<Collective> = (0..20).map(collective).collect();
    let (first, _) = comparison.announce(&names, text);
    assert!(first.first_use);
    assert_eq!(first.announcement.entries.len(), 20);
    let (again, _) = comparison.announce(&names, text);
    assert!(!again.first_use);
    assert_eq!(again.announcement.base, 20);
    assert!(again.announcement.entries.is_empty() && again.announcement.defines.is_none());
    assert_eq!(comparison.text(0, 3), Some("all_reduce 3"));
}

#[test]
fn who_has_not_come_is_known() {
    let mut comparison = Comparison::new(1, 3);
    let (_, compared) = comparison.announce(&[collective(1)], text);
    assert_eq!(compared, Ok(()));
    assert_eq!(comparison.without(0).collect::<Vec<_>>(), [0, 2]);
    let (announcing, _) = Comparison::new(2, 3).announce(&[collective(1), collective(2)], text);
    assert_eq!(comparison.receive(2, announcing.announcement), Ok(()));
    assert_eq!(comparison.without(0).collect::<Vec<_>>(), [0]);
}

#[test]
fn one_that_runs_far_ahead_is_held_back_and_then_goes_on() {
    let (mut ahead, mut behind) = (Comparison::new(0, 2), Comparison::new(1, 2));
    for _ in 0..=BACKLOG {
        assert!(!ahead.is_far_ahead());
        let (announcing, _) = ahead.announce(&[collective(1)], text);
        assert_eq!(behind.receive(0, announcing.announcement), Ok(()));
    }
    assert!(ahead.is_far_ahead());
    let (announcing, compared) = behind.announce(&[collective(1); 2], text);
    assert_eq!(compared, Ok(()));
    assert_eq!(ahead.receive(1, announcing.announcement), Ok(()));
    assert!(!ahead.is_far_ahead());
}

#[test]
fn what_does_not_follow_is_refused() {
    let malformed = |announcement| {
        matches!(
            Comparison::new(0, 2).receive(1, announcement),
            Err(Rejected::Malformed(_))
        )
    };
    let good = Announcement {
        base: 0,
        list: 0,
        defines: Some(vec![0]),
        entries: vec![Entry {
            fingerprint: [1, 2],
            text: "all_reduce".into(),
        }],
    };
    assert!(!malformed(good.clone()));
    assert!(malformed(Announcement {
        base: 1,
        ..good.clone()
    }));
    assert!(malformed(Announcement {
        list: 1,
        ..good.clone()
    }));
    assert!(malformed(Announcement {
        defines: None,
        ..good.clone()
    }));
    assert!(malformed(Announcement {
        entries: vec![],
        ..good.clone()
    }));
    assert!(matches!(
        Comparison::new(0, 2).receive(2, good),
        Err(Rejected::Malformed(_))
    ));
}
