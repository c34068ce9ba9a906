//! Random arguments from a sequence of choices.
//!
//! A case is a list of numbers; what an operator is called with is read off it. A smaller number
//! stands for something simpler, so that whoever shortens and lowers the list simplifies the case.

use super::Depth;
use ndarray::{ArrayD, IxDyn};
use xla::{DType, Literal, Number, Result, Tensor};

/// The choices of one case, read from the front; beyond the end all are 0.
#[derive(Debug)]
pub struct Draw<'a> {
    choices: &'a [u32],
    next: usize,
    depth: Depth,
}

/// So many numbers of an array are drawn; the others repeat them, so that what is drawn after a
/// large array is not always 0.
const DRAWN: usize = 24;

/// Lengths that no memory holds, where nothing is executed.
const HUGE: [usize; 4] = [1 << 40, i64::MAX as usize, 1 << 31, 1 << 62];

impl<'a> Draw<'a> {
    /// Reads from these choices. Lengths that cannot be executed are drawn only for
    /// [`Depth::Recorded`].
    pub fn new(choices: &'a [u32], depth: Depth) -> Self {
        Draw {
            choices,
            next: 0,
            depth,
        }
    }

    /// True once in `n` times where nothing is executed.
    fn unbounded(&mut self, n: usize) -> bool {
        self.depth == Depth::Recorded && self.once_in(n)
    }

    fn choice(&mut self) -> u32 {
        let choice = self.choices.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        choice
    }

    /// Whether to call what reads a value to the host, and so executes: seldom where nothing else
    /// is executed.
    pub fn reads(&mut self) -> bool {
        self.depth == Depth::Executed || self.once_in(16)
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.choice() as usize % n.max(1)
    }

    /// True once in `n` times, and never for the simplest case.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of these, the first being the simplest.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// An integer from -`reach` to `reach`, 0 the simplest.
    pub fn around(&mut self, reach: usize) -> i64 {
        let distance = self.below(2 * reach + 1);
        let half = distance.div_ceil(2) as i64;
        if distance % 2 == 1 { half } else { -half }
    }

    /// An argument that counts or measures: mostly from 1 to `most`, sometimes 0 or more.
    pub fn size(&mut self, most: usize) -> usize {
        if self.unbounded(24) {
            return self.pick(&HUGE);
        }
        match self.once_in(12) {
            true => self.pick(&[0, most + 1, most + 6]),
            false => 1 + self.below(most),
        }
    }

    /// As [`Draw::around`], sometimes at the ends of the range of `i64`.
    pub fn int(&mut self, reach: usize) -> i64 {
        match self.unbounded(24) {
            true => self.pick(&[i64::MAX, i64::MIN, 1 << 40, -(1 << 40), i64::MIN + 1]),
            false => self.around(reach),
        }
    }

    /// A number operand, whole or not.
    pub fn operand(&mut self) -> Number {
        let small = self.around(12);
        match self.below(4) {
            0 | 1 => Number::Int(small),
            2 => Number::Float(small as f64 / 4.0),
            _ => Number::Float(self.number(DType::F64)),
        }
    }

    /// The length of an axis: small, sometimes 0.
    pub fn length(&mut self) -> usize {
        match self.unbounded(48) {
            true => self.pick(&HUGE),
            false => self.pick(&[2, 1, 3, 4, 5, 0, 7]),
        }
    }

    /// Axis lengths, of at most this many axes.
    pub fn dims(&mut self, most: usize) -> Vec<usize> {
        let rank = self.below(most + 1);
        (0..rank).map(|_| self.length()).collect()
    }

    /// Axis lengths that usually broadcast with these.
    pub fn dims_like(&mut self, dims: &[usize]) -> Vec<usize> {
        let dropped = self.below(dims.len() + 1);
        let mut like = dims[dropped..].to_vec();
        for length in &mut like {
            match self.below(8) {
                6 => *length = 1,
                7 => *length = self.length(),
                _ => {}
            }
        }
        like
    }

    /// An axis of a tensor of this rank, sometimes one that it has not.
    pub fn axis(&mut self, rank: usize) -> i64 {
        let rank = rank as i64;
        if self.once_in(12) {
            return self.around(9);
        }
        let axis = self.below(rank.max(1) as usize) as i64;
        if self.once_in(2) { axis - rank } else { axis }
    }

    /// A dtype, `f32` the simplest.
    pub fn dtype(&mut self) -> DType {
        self.pick(&[
            DType::F32,
            DType::F32,
            DType::I64,
            DType::F64,
            DType::Bool,
            DType::BF16,
            DType::F16,
            DType::I32,
            DType::U8,
            DType::I8,
            DType::I16,
            DType::U16,
            DType::U32,
            DType::U64,
        ])
    }

    /// A floating-point dtype, and sometimes another.
    pub fn float(&mut self) -> DType {
        match self.once_in(10) {
            true => self.dtype(),
            false => self.pick(&[DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16]),
        }
    }

    /// An integer dtype, and sometimes another.
    pub fn integer(&mut self) -> DType {
        match self.once_in(10) {
            true => self.dtype(),
            false => self.pick(&[DType::I64, DType::I64, DType::I32, DType::U8]),
        }
    }

    /// A number that the dtype holds exactly: of a small range, sometimes special.
    pub fn number(&mut self, dtype: DType) -> f64 {
        let small = self.around(16) as f64;
        match dtype {
            DType::Bool => f64::from(u8::from(small > 0.0)),
            d if d.is_float() => match self.below(24) {
                20 => f64::NAN,
                21 => f64::INFINITY,
                22 => f64::NEG_INFINITY,
                23 => -0.0,
                _ => small / 4.0,
            },
            d if d.is_signed() => small,
            _ => small.abs(),
        }
    }

    /// An array of such numbers.
    pub fn array(&mut self, dtype: DType, dims: &[usize]) -> Array {
        let draw = |draw: &mut Self| draw.number(dtype);
        self.filled(dtype, dims, draw)
    }

    /// An array of finite numbers.
    pub fn finite(&mut self, dtype: DType, dims: &[usize]) -> Array {
        let draw = |draw: &mut Self| match draw.number(dtype) {
            special if !special.is_finite() => 0.5,
            number => number,
        };
        self.filled(dtype, dims, draw)
    }

    fn filled(
        &mut self,
        dtype: DType,
        dims: &[usize],
        mut number: impl FnMut(&mut Self) -> f64,
    ) -> Array {
        let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let values = n.filter(|&n| n <= MOST).map(|n| {
            let drawn: Vec<f64> = (0..n.min(DRAWN)).map(|_| number(self)).collect();
            let value = |i: usize| drawn[(i + i / DRAWN) % drawn.len()];
            (0..n).map(value).collect()
        });
        Array {
            dtype,
            dims: dims.to_vec(),
            values,
            compared: self.depth == Depth::Executed,
        }
    }

    /// An array of integers in `low..high`; once in 16 times one that is out of that range.
    pub fn indices(&mut self, dims: &[usize], low: i64, high: i64) -> Array {
        let dtype = self.pick(&[DType::I64, DType::I64, DType::I32]);
        let width = usize::try_from(high.saturating_sub(low)).unwrap_or(0);
        let draw = |draw: &mut Self| low.saturating_add(draw.below(width) as i64) as f64;
        let mut array = self.filled(dtype, dims, draw);
        if self.once_in(16)
            && let Some(last) = array.values.as_mut().and_then(|v| v.last_mut())
        {
            let beyond = [high, high.saturating_add(5), low.saturating_sub(1)];
            *last = self.pick(&beyond) as f64;
        }
        array
    }
}

/// An array of more elements is not held.
const MOST: usize = 1 << 14;

/// A host array: what a tensor holds, as numbers.
#[derive(Debug, Clone)]
pub struct Array {
    /// Element type.
    pub dtype: DType,
    /// Axis lengths.
    pub dims: Vec<usize>,
    /// Row-major elements; none where they are too many to be held, which then are 0.
    pub values: Option<Vec<f64>>,
    /// Whether the case is executed.
    compared: bool,
}

impl Array {
    /// One number without axes.
    pub fn number(value: f64) -> Self {
        Array {
            dtype: DType::F64,
            dims: Vec::new(),
            values: Some(vec![value]),
            compared: true,
        }
    }

    /// As a tensor on the device.
    ///
    /// # Errors
    /// Whatever keeps it from being sent.
    pub fn tensor(&self) -> Result<Tensor> {
        match &self.values {
            Some(values) => {
                let literal = Literal::from_slice(values, self.dims.as_slice())?;
                Tensor::from_literal(literal.cast(self.dtype), ())
            }
            None => Tensor::zeros(self.dims.as_slice(), self.dtype),
        }
    }

    /// As a tensor that requires a gradient, if its dtype can have one.
    ///
    /// # Errors
    /// As [`Array::tensor`].
    pub fn leaf(&self) -> Result<Tensor> {
        let tensor = self.tensor()?;
        if self.dtype.is_float() {
            tensor.requires_grad_(true)?;
        }
        Ok(tensor)
    }

    /// As an `ndarray` array of `f64`, where results are compared and its elements are held.
    pub fn nd(&self) -> Option<ArrayD<f64>> {
        if !self.compared {
            return None;
        }
        ArrayD::from_shape_vec(IxDyn(&self.dims), self.values.clone()?).ok()
    }
}
