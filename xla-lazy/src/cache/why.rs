//! Why a program was not found: how it differs from the nearest one that the same line has run.

use super::words::{Word, Words};
use crate::trace::Input;
use crate::ty::Ty;
use std::fmt;
use std::panic::Location;

/// The first difference between a program and an earlier one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    what: String,
    /// The line that recorded what differs.
    at: Option<&'static Location<'static>>,
    advice: &'static str,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(at) = self.at {
            write!(f, " (at {at})")?;
        }
        write!(f, "; {}", self.advice)
    }
}

const BATCH: &str = "each length of the first axis is another program: leave a shorter last batch out (drop_last), or pad it to the usual length";
const LENGTH: &str = "each shape is another program: pad to one length, or to a few lengths";
const DTYPE: &str = "each dtype is another program: convert to one dtype first";
const ATTRIBUTE: &str = "an attribute is part of the program: what varies is better passed as a number operand or as a tensor";
const PATH: &str = "another path was taken on the host: let where_ or lerp choose on the device, or call sync() where the paths part";
const ENTERED: &str = "a program ran in between, so a value that was part of this program now enters it: read values after sync(), not before";
const NUMBER: &str =
    "whole numbers, floats and doubles are passed apart: always pass the same kind";
const OPERANDS: &str = "each way of connecting operators is another program";
const GROWS: &str = "operators pile up while no sync() is called: call it once in each iteration, or use scan or while_loop";
const KEPT: &str =
    "a program returns the values that somebody holds: hold the same tensors each time";
const DONATED: &str = "which values may be overwritten is part of the program: change the same tensors in place each time";
const PLACED: &str = "each set of devices, way of spreading values over them, and set of the compiler's options is another program";

/// How `new` differs from `old`.
pub(super) fn difference(old: &Words, new: &Words) -> Difference {
    let at = old.common(new);
    match (old.nodes().get(at), new.nodes().get(at)) {
        (Some(was), Some(is)) => differing(old, was, new, is, at),
        (None, Some(next)) => Difference {
            what: format!(
                "it goes on where an earlier program of this line ended, after {at} operators, with {} more, the first of them {}",
                new.nodes().len() - at,
                next.entry.name,
            ),
            at: Some(next.location),
            advice: GROWS,
        },
        (Some(next), None) => Difference {
            what: format!(
                "it ends after {at} operators where an earlier program of this line went on with {}",
                next.entry.name,
            ),
            at: Some(next.location),
            advice: PATH,
        },
        (None, None) => results(old, new),
    }
}

fn differing(old: &Words, was: &Word, new: &Words, is: &Word, index: usize) -> Difference {
    let name = is.entry.name;
    let say = |what: String, advice| Difference {
        what: format!("operator {index}, {what}"),
        at: Some(is.location),
        advice,
    };
    if was.entry.name != name {
        let (before, now) = (was.entry.name, name);
        let what = format!("{now}, was {before} (at {})", was.location);
        let entered = [before, now].contains(&crate::trace::PARAMETER);
        return say(what, if entered { ENTERED } else { PATH });
    }
    if !std::ptr::eq(was.entry, is.entry) {
        let [now, before] = contrast([is, was].map(|word| format!("{:?}", word.entry)));
        let advice = match std::ptr::eq(was.ty, is.ty) {
            true => ATTRIBUTE,
            false => advice_on(was.ty, is.ty),
        };
        return say(format!("{now}, was {before}"), advice);
    }
    if !std::ptr::eq(was.ty, is.ty) {
        let what = format!("{name} of {}, was of {}", is.ty, was.ty);
        return say(what, advice_on(was.ty, is.ty));
    }
    let mut pairs = new.inputs(is).zip(old.inputs(was));
    let kinds = |pair: &(Input, Input)| match pair {
        (Input::Number(a, _), Input::Number(b, _)) => a != b,
        _ => false,
    };
    match pairs.find(kinds) {
        Some((now, before)) => {
            let what = format!("{name} takes {}, took {}", kind(now), kind(before));
            say(what, NUMBER)
        }
        None => say(format!("{name} takes other operands"), OPERANDS),
    }
}

/// Two texts, or what is around the place where they part if they are long, as those of an operator
/// with a body are.
fn contrast(texts: [String; 2]) -> [String; 2] {
    const LONG: usize = 160;
    if texts.iter().all(|text| text.len() <= LONG) {
        return texts;
    }
    let pairs = texts[0].chars().zip(texts[1].chars());
    let parted = pairs.take_while(|(a, b)| a == b).count();
    let from = parted.saturating_sub(LONG / 2);
    texts.map(|text| {
        let shown: String = text.chars().skip(from).take(LONG).collect();
        let name = text.split([' ', '(']).next().unwrap_or_default();
        match from {
            0 => format!("{shown}…"),
            _ => format!("{name} …{shown}…"),
        }
    })
}

fn kind(input: Input) -> &'static str {
    use crate::trace::NumberClass::{F32, F64, I64};
    match input {
        Input::Node(_) => "a tensor",
        Input::Number(I64, _) => "a whole number",
        Input::Number(F32, _) => "a float",
        Input::Number(F64, _) => "a double",
    }
}

fn advice_on(was: Ty, is: Ty) -> &'static str {
    let (before, now) = (was.shape().dims(), is.shape().dims());
    if was.dtype() != is.dtype() {
        DTYPE
    } else if before.len() == now.len() && before.len() > 1 && before[1..] == now[1..] {
        BATCH
    } else {
        LENGTH
    }
}

/// The operators are the same: what is made of their values differs.
fn results(old: &Words, new: &Words) -> Difference {
    let (before, now) = (&old.extent, &new.extent);
    let only = |here: &[u32], there: &[u32]| here.iter().copied().find(|i| !there.contains(i));
    let node = |index: u32| new.nodes().get(index as usize);
    for (here, there, kept) in [
        (&now.live, &before.live, "is kept, was not"),
        (&before.live, &now.live, "is not kept, was"),
    ] {
        if let Some(word) = only(here, there).and_then(node) {
            return Difference {
                what: format!("the value of {} {kept}", word.entry.name),
                at: Some(word.location),
                advice: KEPT,
            };
        }
    }
    if before.donors != now.donors || !old.same_rebound(new) {
        return Difference {
            what: "other values are overwritten".into(),
            at: None,
            advice: DONATED,
        };
    }
    Difference {
        what: "it is compiled for other devices or with other options".into(),
        at: None,
        advice: PLACED,
    }
}
