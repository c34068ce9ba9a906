//! The numbers of a formula at one step of a parameter.

use super::stepping::Memory;

/// One step of one parameter, as far as the host is concerned: what
/// [`Algorithm::numbers`](super::Algorithm::numbers) sets the formula's numbers by.
///
/// It is asked at every step, also where a compiled function runs and
/// [`Algorithm::update`](super::Algorithm::update) does not.
pub struct Moment<'a> {
    steps: u64,
    first: bool,
    remembered: &'a mut Vec<(&'static str, f64)>,
    pub(super) numbers: Vec<(&'static str, f64)>,
    pub(super) case: u32,
}

impl<'a> Moment<'a> {
    /// The step that a parameter with this memory has just begun.
    pub(super) fn of(memory: &'a mut Memory, first: bool) -> Self {
        Moment {
            steps: memory.steps,
            first,
            remembered: &mut memory.numbers,
            numbers: Vec::with_capacity(8),
            case: 0,
        }
    }

    /// Which step of this parameter this is, from 1.
    pub fn count(&self) -> f64 {
        self.steps as f64
    }

    /// Whether nothing is remembered of this parameter yet.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// A number that is remembered under a name, at first `initial`.
    pub fn remembered(&mut self, name: &'static str, initial: f64) -> &mut f64 {
        let numbers = &mut *self.remembered;
        let at = match numbers.iter().position(|(n, _)| *n == name) {
            Some(at) => at,
            None => {
                numbers.push((name, initial));
                numbers.len() - 1
            }
        };
        &mut numbers[at].1
    }

    /// Sets a number of the formula, for [`Step::number`](super::Step::number). It is data of the
    /// program. Parameters of a group that are at the same step share it.
    pub fn number(&mut self, name: &'static str, value: f64) {
        self.numbers.push((name, value));
    }

    /// Says which of several forms the formula has at this step, for
    /// [`Step::case`](super::Step::case): each is a program of its own. 0 unless set.
    pub fn case(&mut self, case: u32) {
        self.case = case;
    }
}
