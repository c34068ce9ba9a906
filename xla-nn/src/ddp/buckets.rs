//! Which gradients travel together.

use xla_core::DType;

/// Indices of tensors that travel together: of one dtype, in order, a bucket closed once it holds
/// `cap` bytes (the first of each dtype `first_cap`). Buckets are ordered by their first tensor.
pub(super) fn buckets(
    tensors: impl Iterator<Item = (DType, usize)>,
    first_cap: usize,
    cap: usize,
) -> Vec<Vec<usize>> {
    struct Open {
        dtype: DType,
        bucket: usize,
        bytes: usize,
        cap: usize,
    }
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for (index, (dtype, bytes)) in tensors.enumerate() {
        let at = match open.iter().position(|o| o.dtype == dtype) {
            Some(at) => at,
            None => {
                open.push(Open {
                    dtype,
                    bucket: usize::MAX,
                    bytes: 0,
                    cap: first_cap,
                });
                open.len() - 1
            }
        };
        let current = &mut open[at];
        if current.bucket == usize::MAX {
            current.bucket = buckets.len();
            buckets.push(Vec::new());
        }
        buckets[current.bucket].push(index);
        current.bytes = current.bytes.saturating_add(bytes);
        if current.bytes >= current.cap {
            *current = Open {
                dtype,
                bucket: usize::MAX,
                bytes: 0,
                cap,
            };
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_closes_when_it_is_full() {
        let sizes = [40, 40, 40, 100, 10, 10].map(|bytes| (DType::F32, bytes));
        let first_is_small = buckets(sizes.into_iter(), 40, 100);
        assert_eq!(first_is_small, [vec![0], vec![1, 2, 3], vec![4, 5]]);
        let one = buckets(sizes.into_iter(), usize::MAX, usize::MAX);
        assert_eq!(one, [vec![0, 1, 2, 3, 4, 5]]);
        let each = buckets(sizes.into_iter(), 0, 0);
        assert_eq!(each.len(), 6);
        assert!(buckets(std::iter::empty(), 1, 1).is_empty());
    }

    #[test]
    fn dtypes_do_not_share_a_bucket() {
        let tensors = [
            (DType::F32, 4),
            (DType::BF16, 2),
            (DType::F32, 4),
            (DType::BF16, 2),
        ];
        assert_eq!(
            buckets(tensors.into_iter(), 64, 64),
            [vec![0, 2], vec![1, 3]]
        );
    }
}
