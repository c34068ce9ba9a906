//! Who holds a device's memory.

use crate::{DType, Site};
use std::fmt;

/// A tensor that holds memory on a device, for whoever looks for what to drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveTensor {
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The memory it takes.
    pub bytes: u64,
    /// The operator that made it.
    pub op: &'static str,
    /// The line that called the operator.
    pub at: Site,
}

impl fmt::Display for LiveTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape) = (self.dtype, &self.shape);
        let bytes = Bytes(self.bytes);
        write!(
            f,
            "{dtype}{shape:?} ({bytes}), made by {}{}",
            self.op, self.at
        )
    }
}

/// A number of bytes, printed in the largest binary unit that it reaches: `1.5 GiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1 << 10 {
            return write!(f, "{} B", self.0);
        }
        let unit = (self.0.ilog2() / 10) as usize;
        let amount = self.0 as f64 / (1u64 << (10 * unit)) as f64;
        write!(f, "{amount:.1} {}", UNITS[unit - 1])
    }
}

/// What [`Error::OutOfMemory`](crate::Error::OutOfMemory) says, without its advice.
pub(crate) fn shortage(
    needed: u64,
    available: Option<u64>,
    message: &str,
    largest: &[LiveTensor],
) -> String {
    let mut text = match available {
        Some(available) => format!(
            "the program needs {} and {} are left",
            Bytes(needed),
            Bytes(available)
        ),
        None => message.to_owned(),
    };
    for (i, tensor) in largest.iter().enumerate() {
        text += if i == 0 {
            "; the largest tensors there are "
        } else {
            ", "
        };
        text += &tensor.to_string();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_by_people() {
        let shown = |bytes| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1536), "1.5 KiB");
        assert_eq!(shown(4 << 40), "4.0 TiB");
        assert_eq!(shown(u64::MAX), "16.0 EiB");
    }
}
