//! Bad arguments of shapes, views and indices are errors of the call, with its line.

use tests::check::{counted, f32s, i64s};
use tests::with_devices;
use xla::{Index, PadMode, Tensor};

/// Asserts that each is an error that says so, and where it was called.
macro_rules! say {
    ($($call:expr => $said:expr;)*) => {$(
        let error = $call.map(|_| ()).expect_err(stringify!($call)).to_string();
        assert!(error.contains($said), "{}: {error}", stringify!($call));
        assert!(error.contains("index_errors.rs"), "{}: {error}", stringify!($call));
    )*};
}

#[test]
fn indices_that_came_from_the_host_are_checked_at_the_call() {
    with_devices(1, || {
        let x = counted(&[3, 2]);
        let seven = i64s(&[0, 7]);
        let far = seven.unsqueeze(1).unwrap().expand([2, 2]).unwrap();
        let rows = counted(&[2, 2]);
        // Only what a part shows counts, also after a widening cast.
        let bytes = Tensor::from_slice(&[9u8, 1, 7], [3], ()).unwrap();
        let wide = bytes
            .narrow(0, 1, 2)
            .unwrap()
            .to_dtype(xla::DType::I64)
            .unwrap();
        say! {
            x.index_select(0, &seven) => "index_select: index 7 is out of range for axis 0 of size 3";
            x.gather(0, &far) => "gather: index 7";
            x.take_along_dim(&far, Some(0)) => "take_along_dim: index 7";
            x.scatter(0, &far, 1.0) => "scatter: index 7";
            x.scatter_add(0, &far, &rows) => "scatter_add: index 7";
            x.index_add(0, &seven, &rows, None) => "index_add: index 7";
            x.index_copy(0, &seven, &rows) => "index_copy: index 7";
            x.index_fill(0, &seven, 1.0) => "index_fill: index 7";
            x.index(&[(&i64s(&[-4])).into()]) => "index: index -4 is out of range for axis 0 of size 3";
            x.index_put_(&[(..).into(), (&seven).into()], 1.0, false) => "index_put_: index 7 is out of range for axis 1 of size 2";
            xla::nn::functional::embedding(&x, &seven, Default::default()) => "embedding: index 7";
            x.index_select(0, &bytes.narrow(0, 0, 2).unwrap()) => "index 9";
            x.index_select(0, &wide) => "index 7";
            x.select(0, -4) => "select: index -4";
            x.index(&[3.into()]) => "index: index 3";
        }
        assert!(x.index_select(0, &bytes.slice(0, 1, 2, 1).unwrap()).is_ok());
        assert!(x.index(&[(&i64s(&[-3])).into()]).is_ok());
    });
}

#[test]
fn other_arguments() {
    with_devices(1, || {
        let (x, row) = (counted(&[3, 2]), f32s(&[1.0, 2.0]));
        let mask = row.gt(1.0).unwrap();
        say! {
            Tensor::stack(&[&x, &row], 0) => "stack: ";
            Tensor::stack(&[], 0) => "stack: ";
            x.view([2, 2]) => "view";
            x.t().unwrap().view([6]) => "view: ";
            x.unflatten(0, [2, 2]) => "unflatten: ";
            x.split(0, 0) => "split: split_size";
            x.split_with_sizes(&[1, 1], 0) => "split_with_sizes: ";
            x.chunk(0, 0) => "chunk: ";
            x.tensor_split(0, 0) => "tensor_split: ";
            x.pad([1], 0.0) => "pad: ";
            x.pad([-3, 2], 0.0) => "pad: ";
            x.pad([i64::MAX, i64::MAX], 0.0) => "pad: ";
            x.pad([2, 0], PadMode::Reflect) => "pad: ";
            x.pad([3, 0], PadMode::Circular) => "pad: ";
            counted(&[1, 0]).pad([1, 0], PadMode::Replicate) => "pad: ";
            x.repeat([2]) => "repeat: ";
            x.repeat([-1, 1]) => "repeat: ";
            x.repeat([i64::MAX, i64::MAX]) => "repeat: ";
            x.roll([1, 2], 0) => "roll: ";
            x.movedim([0, 1], 0) => "movedim: ";
            row.tril(0) => "tril: ";
            x.diagonal(0, 1, -1) => "diagonal: ";
            row.diag_embed(i64::MAX, 0, 1) => "diag_embed: ";
            x.unfold(0, 4, 1) => "unfold: size";
            x.unfold(0, 2, 0) => "unfold: step";
            x.unfold(0, 2, 1).unwrap().zero_() => "unfold: ";
            row.expand([3, 2]).unwrap().add_(1) => "expand: ";
            x.index_add(0, &i64s(&[0]), &row, None) => "index_add: ";
            x.scatter(0, &i64s(&[0]), 1.0) => "scatter: ";
            x.scatter(0, &i64s(&[0]).unsqueeze(0).unwrap(), &row) => "scatter: ";
            x.masked_fill(&x, 0) => "masked_fill: ";
            x.masked_fill(&mask, &row) => "masked_fill: ";
            row.masked_fill_(&x.gt(0).unwrap(), 0) => "masked_fill_: ";
            x.index(&[(&mask).into()]) => "index: ";
            x.index(&[(&row).into()]) => "index: ";
            x.index(&[0.into(), 0.into(), 0.into()]) => "index: ";
            x.index(&[Index::Ellipsis, Index::Ellipsis]) => "index: ";
            x.index_put_(&[0.into()], &counted(&[3]), false) => "";
        }
    });
}
