//! Random arguments from a sequence of choices.
//!
//! A case is a list of numbers; what an operator is called with is read off it. A smaller number
//! stands for something simpler, so that whoever shortens and lowers the list simplifies the case.

use xla::{DType, Literal, Result, Tensor};

/// The choices of one case, read from the front; beyond the end all are 0.
#[derive(Debug)]
pub struct Draw<'a> {
    choices: &'a [u32],
    next: usize,
}

impl<'a> Draw<'a> {
    /// Reads from these choices.
    pub fn new(choices: &'a [u32]) -> Self {
        Draw { choices, next: 0 }
    }

    fn choice(&mut self) -> u32 {
        let choice = self.choices.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        choice
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

    /// The length of an axis: small, sometimes 0.
    pub fn length(&mut self) -> usize {
        self.pick(&[2, 1, 3, 4, 5, 0, 7])
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
        let n = dims.iter().product();
        let values = (0..n).map(|_| self.number(dtype)).collect();
        Array {
            dtype,
            dims: dims.to_vec(),
            values,
        }
    }

    /// An array of integers in `low..high`; once in 16 times one that is out of that range.
    pub fn indices(&mut self, dims: &[usize], low: i64, high: i64) -> Array {
        let dtype = self.pick(&[DType::I64, DType::I64, DType::I32]);
        let n: usize = dims.iter().product();
        let width = usize::try_from(high - low).unwrap_or(0);
        let mut values: Vec<f64> = (0..n)
            .map(|_| (low + self.below(width) as i64) as f64)
            .collect();
        if self.once_in(16)
            && let Some(last) = values.last_mut()
        {
            *last = self.pick(&[high, high + 5, low - 1]) as f64;
        }
        Array {
            dtype,
            dims: dims.to_vec(),
            values,
        }
    }
}

/// A host array: what a tensor holds, as numbers.
#[derive(Debug, Clone)]
pub struct Array {
    /// Element type.
    pub dtype: DType,
    /// Axis lengths.
    pub dims: Vec<usize>,
    /// Row-major elements.
    pub values: Vec<f64>,
}

impl Array {
    /// As a tensor on the device.
    ///
    /// # Errors
    /// Whatever keeps it from being sent.
    pub fn tensor(&self) -> Result<Tensor> {
        let literal = Literal::from_slice(&self.values, self.dims.as_slice())?;
        Tensor::from_literal(literal.cast(self.dtype), ())
    }
}

impl Array {
    /// As an `ndarray` array of `f64`.
    pub fn nd(&self) -> ndarray::ArrayD<f64> {
        ndarray::ArrayD::from_shape_vec(self.dims.as_slice(), self.values.clone())
            .expect("an array has as many elements as its axes say")
    }
}
