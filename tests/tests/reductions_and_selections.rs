//! Values of reductions, arrangements, products, selections and creations against closed forms and
//! references computed on the host.

use tests::check::{close, counted, f32s, i64s, same, values};
use xla::{DType, Device, Generator, Result, Tensor};

#[test]
fn reductions() -> Result<()> {
    let x = counted(&[2, 3, 2]);
    let f = DType::F32;
    same(x.sum(1, false), &[2, 2], f, &[6.0, 9.0, 24.0, 27.0]);
    same(x.sum([0, -1], true), &[1, 3, 1], f, &[14.0, 22.0, 30.0]);
    same(x.mean([0, 2], false), &[3], f, &[3.5, 5.5, 7.5]);
    same(x.amax((), true), &[1, 1, 1], f, &[11.0]);
    same(
        x.neg()?.amin(-2, false),
        &[2, 2],
        f,
        &[-4.0, -5.0, -10.0, -11.0],
    );
    same(x.argmax(Some(1), true), &[2, 1, 2], DType::I64, &[2.0; 4]);
    same(x.argmin(None, true), &[1, 1, 1], DType::I64, &[0.0]);
    same(
        f32s(&[1.0, 5.0, 5.0]).argmax(Some(-1), false),
        &[],
        DType::I64,
        &[1.0],
    );
    same(x.all([1, 2], false), &[2], DType::Bool, &[0.0, 1.0]);
    same(x.gt(5)?.any([1, 2], false), &[2], DType::Bool, &[0.0, 1.0]);
    same(
        x.sum_to_size(x.select(0, 0)?.narrow(1, 0, 1)?.shape()),
        &[3, 1],
        f,
        &[14.0, 22.0, 30.0],
    );
    let scalar = Tensor::scalar(4.0, ())?;
    same(scalar.sum(0, false), &[], f, &[4.0]);
    same(scalar.amax(-1, true), &[], f, &[4.0]);
    same(scalar.argmax(Some(0), false), &[], DType::I64, &[0.0]);
    Ok(())
}

#[test]
fn softmax_of_large_numbers() -> Result<()> {
    let data = [1000.0f32, 1001.0, 999.0, -1000.0, 0.0, 0.0];
    let x = Tensor::from_slice(&data, [2, 3], ())?;
    for axis in [1usize, 0] {
        let group = |i: usize| {
            (0..6).filter(move |j| {
                if axis == 1 {
                    i / 3 == j / 3
                } else {
                    i % 3 == j % 3
                }
            })
        };
        let log: Vec<f64> = (0..6)
            .map(|i| {
                let top = group(i).map(|j| data[j]).fold(f32::MIN, f32::max);
                let sum: f64 = group(i).map(|j| f64::from(data[j] - top).exp()).sum();
                f64::from(data[i] - top) - sum.ln()
            })
            .collect();
        let plain: Vec<f64> = log.iter().map(|l| l.exp()).collect();
        close(
            "log_softmax",
            &values(&x.log_softmax(axis as i64)?)?,
            &log,
            1e-6,
        );
        close("softmax", &values(&x.softmax(axis as i64)?)?, &plain, 1e-6);
    }
    same(Tensor::scalar(3.0, ())?.softmax(0), &[], DType::F32, &[1.0]);
    same(i64s(&[5, 5]).softmax(-1), &[2], DType::F32, &[0.5; 2]);
    Ok(())
}

#[test]
fn arrangements() -> Result<()> {
    let x = counted(&[2, 3, 4]);
    let f = DType::F32;
    let at = |i: usize, j: usize, k: usize| (i * 12 + j * 4 + k) as f64;
    let mut expected = Vec::new();
    for k in 0..4 {
        for i in 0..2 {
            for j in 0..3 {
                expected.push(at(i, j, k));
            }
        }
    }
    same(x.permute([2, 0, 1]), &[4, 2, 3], f, &expected);
    same(
        x.permute([-1, 0, 1])?.permute([1, 2, 0]),
        &[2, 3, 4],
        f,
        &(0..24).map(f64::from).collect::<Vec<_>>(),
    );
    same(
        x.permute([2, 0, 1])?.reshape([-1, 4])?.select(0, 1),
        &[4],
        f,
        &[16.0, 20.0, 1.0, 5.0],
    );
    same(
        x.transpose(0, -1)?.select(0, 3)?.flatten(0, -1),
        &[6],
        f,
        &[3.0, 15.0, 7.0, 19.0, 11.0, 23.0],
    );
    same(
        x.narrow(1, -2, 1)?.squeeze(()),
        &[2, 4],
        f,
        &[4.0, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0, 19.0],
    );
    same(
        x.slice(2, 1, 100, 2)?.select(1, 0),
        &[2, 2],
        f,
        &[1.0, 3.0, 13.0, 15.0],
    );
    same(x.slice(0, 1, 1, 1), &[0, 3, 4], f, &[]);
    same(x.select(0, -1)?.select(1, -1), &[3], f, &[15.0, 19.0, 23.0]);
    let row = f32s(&[1.0, 2.0]);
    same(
        row.unsqueeze(-1)?.expand([2, -1, 3]),
        &[2, 2, 3],
        f,
        &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0],
    );
    same(
        Tensor::cat(&[&row, &row.mul(3)?, &counted(&[0])], -1),
        &[4],
        f,
        &[1.0, 2.0, 3.0, 6.0],
    );
    same(
        Tensor::stack(&[&row, &row.neg()?], 1),
        &[2, 2],
        f,
        &[1.0, -1.0, 2.0, -2.0],
    );
    same(Tensor::scalar(2.5, ())?.reshape([1, 1]), &[1, 1], f, &[2.5]);
    assert!(x.transpose(0, 1)?.view(24).is_err());
    assert_eq!(x.view([6, -1])?.dims(), [6, 4]);
    Ok(())
}

#[test]
fn matrix_products() -> Result<()> {
    let make = |dims: &[usize], seed: usize| -> (Tensor, Vec<f64>) {
        let n: usize = dims.iter().product();
        let data: Vec<f64> = (0..n)
            .map(|i| ((i * 7 + seed) % 11) as f64 / 8.0 - 0.5)
            .collect();
        (Tensor::from_slice(&data, dims, DType::F32).unwrap(), data)
    };
    // Batches broadcast: [2, 1, 3, 4] x [5, 4, 2].
    let ((a, da), (b, db)) = (make(&[2, 1, 3, 4], 1), make(&[5, 4, 2], 2));
    let mut expected = Vec::new();
    for p in 0..2 {
        for q in 0..5 {
            for i in 0..3 {
                for j in 0..2 {
                    expected.push(
                        (0..4)
                            .map(|k| da[p * 12 + i * 4 + k] * db[q * 8 + k * 2 + j])
                            .sum(),
                    );
                }
            }
        }
    }
    same(a.matmul(&b), &[2, 5, 3, 2], DType::F32, &expected);
    same(
        a.matmul(&b.select(0, 0)?)?.squeeze(1)?.select(0, 0),
        &[3, 2],
        DType::F32,
        &expected[..6],
    );
    let v = f32s(&[1.0, 2.0, 3.0]);
    let m = counted(&[3, 2]);
    same(v.matmul(&v), &[], DType::F32, &[14.0]);
    same(v.matmul(&m), &[2], DType::F32, &[16.0, 22.0]);
    same(m.t()?.matmul(&v), &[2], DType::F32, &[16.0, 22.0]);
    same(
        Tensor::zeros([2, 0], ())?.matmul(&Tensor::zeros([0, 3], ())?),
        &[2, 3],
        DType::F32,
        &[0.0; 6],
    );
    let whole = i64s(&[1 << 40, 3]);
    assert_eq!(whole.matmul(&i64s(&[5, 7]))?.item::<i64>()?, (5 << 40) + 21);
    let x = counted(&[64, 64]).div(64.0)?;
    let dot = |i: usize, j: usize| -> f64 {
        (0..64)
            .map(|k| ((i * 64 + k) * (k * 64 + j)) as f64 / 4096.0)
            .sum()
    };
    let expected: Vec<f64> = (0..4096).map(|n| dot(n / 64, n % 64)).collect();
    close("64 x 64", &values(&x.matmul(&x)?)?, &expected, 1e-6);
    Ok(())
}

#[test]
fn selection_by_indices() -> Result<()> {
    let x = counted(&[3, 2]);
    let f = DType::F32;
    same(
        x.index_select(0, &i64s(&[2, 0, 2])),
        &[3, 2],
        f,
        &[4.0, 5.0, 0.0, 1.0, 4.0, 5.0],
    );
    same(
        x.index_select(1, &Tensor::from_slice(&[1u8], (), ())?),
        &[3, 1],
        f,
        &[1.0, 3.0, 5.0],
    );
    same(x.index_select(0, &i64s(&[])), &[0, 2], f, &[]);
    let picks = Tensor::from_slice(&[0i32, 2, 1, 0], [2, 2], ())?;
    same(x.gather(0, &picks), &[2, 2], f, &[0.0, 5.0, 2.0, 1.0]);
    same(
        x.gather(-1, &i64s(&[1, 0, 1]).unsqueeze(1)?),
        &[3, 1],
        f,
        &[1.0, 2.0, 5.0],
    );
    same(
        i64s(&[2, 0]).one_hot(Some(4)),
        &[2, 4],
        DType::I64,
        &[0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0],
    );
    same(
        i64s(&[1, 0]).one_hot(None),
        &[2, 2],
        DType::I64,
        &[0.0, 1.0, 1.0, 0.0],
    );
    same(
        i64s(&[0, 1]).add(1)?.one_hot(None),
        &[2, 3],
        DType::I64,
        &[0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
    );
    Ok(())
}

#[test]
fn indices_out_of_range_on_the_device() -> Result<()> {
    // Computed ones: not known when the operator is recorded.
    let computed = i64s(&[0, 2, -2, 300]).add(1)?; // 1, 3, -1, 301
    let nan = f64::NAN;
    let x = f32s(&[5.0, 6.0, 7.0]);
    same(
        x.index_select(0, &computed),
        &[4],
        DType::F32,
        &[6.0, nan, nan, nan],
    );
    same(
        x.gather(0, &computed),
        &[4],
        DType::F32,
        &[6.0, nan, nan, nan],
    );
    same(
        x.exp()?.index_select(0, &computed)?.isnan(),
        &[4],
        DType::Bool,
        &[0.0, 1.0, 1.0, 1.0],
    );
    let least = f64::from(i32::MIN);
    same(
        x.to_dtype(DType::I32)?.gather(0, &computed),
        &[4],
        DType::I32,
        &[6.0, least, least, least],
    );
    same(
        x.to_dtype(DType::U8)?.index_select(0, &computed),
        &[4],
        DType::U8,
        &[6.0, 255.0, 255.0, 255.0],
    );
    same(
        x.to_dtype(DType::Bool)?.logical_not()?.gather(0, &computed),
        &[4],
        DType::Bool,
        &[0.0, 1.0, 1.0, 1.0],
    );
    same(
        computed.one_hot(Some(2)),
        &[4, 2],
        DType::I64,
        &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    );
    // An axis longer than the indices' dtype can name.
    let long = counted(&[300]);
    let byte = Tensor::from_slice(&[254u8], 1, ())?.add(1)?;
    same(long.index_select(0, &byte), &[1], DType::F32, &[255.0]);
    same(long.gather(0, &byte), &[1], DType::F32, &[255.0]);
    same(
        long.gather(0, &Tensor::from_slice(&[100i8], 1, ())?.add(0)?),
        &[1],
        DType::F32,
        &[100.0],
    );
    let wide = counted(&[2, 300]);
    let column = Tensor::from_slice(&vec![1i8; 300], [1, 300], ())?;
    let last = wide.gather(0, &column)?.select(1, 299)?;
    same(Ok(last), &[1], DType::F32, &[599.0]);
    let classes = Tensor::from_slice(&[1i8], 1, ())?.one_hot(Some(258))?;
    assert_eq!(classes.sum((), false)?.item::<i64>()?, 1);
    Ok(())
}

#[test]
fn no_elements() -> Result<()> {
    let f = DType::F32;
    let none = Tensor::zeros([0, 3], ())?;
    same(none.sum(0, false), &[3], f, &[0.0; 3]);
    same(none.sum(1, false), &[0], f, &[]);
    same(none.mean(0, false), &[3], f, &[f64::NAN; 3]);
    same(none.all((), false), &[], DType::Bool, &[1.0]);
    same(none.any((), false), &[], DType::Bool, &[0.0]);
    same(none.exp()?.mul(&Tensor::ones([1, 3], ())?), &[0, 3], f, &[]);
    same(none.softmax(0), &[0, 3], f, &[]);
    same(none.log_softmax(1), &[0, 3], f, &[]);
    same(none.transpose(0, 1)?.reshape([3, 0, 2]), &[3, 0, 2], f, &[]);
    same(none.argmax(Some(1), false), &[0], DType::I64, &[]);
    same(none.amax(1, true), &[0, 1], f, &[]);
    assert!(none.amax(0, false).is_err() && none.argmin(None, false).is_err());
    same(Tensor::arange(3, 3, 1, ()), &[0], DType::I64, &[]);
    same(Tensor::rand(0, ()), &[0], f, &[]);
    same(Tensor::randn([2, 0], ()), &[2, 0], f, &[]);
    same(i64s(&[]).one_hot(Some(3)), &[0, 3], DType::I64, &[]);
    same(none.slice(0, 0, 9, 2), &[0, 3], f, &[]);
    same(
        none.gather(1, &Tensor::zeros([0, 1], DType::I64)?),
        &[0, 1],
        f,
        &[],
    );
    same(none.mul_(2), &[0, 3], f, &[]);
    Ok(())
}

#[test]
fn made_from_nothing() -> Result<()> {
    same(
        Tensor::arange(5, -4, -3, ()),
        &[3],
        DType::I64,
        &[5.0, 2.0, -1.0],
    );
    same(
        Tensor::arange(0, 1, 0.25, ()),
        &[4],
        DType::F32,
        &[0.0, 0.25, 0.5, 0.75],
    );
    same(
        Tensor::arange(1, 4, 1, DType::BF16),
        &[3],
        DType::BF16,
        &[1.0, 2.0, 3.0],
    );
    same(Tensor::full([2], 7, ()), &[2], DType::I64, &[7.0; 2]);
    same(Tensor::full((), 0.5, ()), &[], DType::F32, &[0.5]);
    same(Tensor::full(1, 2.9, DType::I32), &[1], DType::I32, &[2.0]);
    same(counted(&[2]).ones_like(), &[2], DType::F32, &[1.0; 2]);
    same(i64s(&[4]).zeros_like(), &[1], DType::I64, &[0.0]);
    Ok(())
}

#[test]
fn random_numbers() -> Result<()> {
    // Known answers of Threefry-2x32 with 20 rounds, from its authors' distribution.
    for (state, words) in [
        ([0, 0], [0x6b20_0159u32, 0x99ba_4efe]),
        ([u64::MAX, u64::MAX], [0x1cb9_96fc, 0xbb00_2be7]),
        (
            [0x1319_8a2e_0370_7344, 0x243f_6a88_85a3_08d3],
            [0xc492_3a9c, 0x483d_f7a0],
        ),
    ] {
        let bits = Generator::from_state(&state, Device::new(0))?.bits(1)?;
        assert_eq!(bits.to_vec::<u32>()?, [words[0] ^ words[1]]);
    }
    xla::manual_seed(3)?;
    let n = 1 << 16;
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let u = values(&Tensor::rand(n, dtype)?)?;
        assert!(u.iter().all(|u| (0.0..1.0).contains(u)));
        let moment = |p: i32| u.iter().map(|u| u.powi(p)).sum::<f64>() / n as f64;
        close(
            "moments of rand",
            &[moment(1), moment(2)],
            &[0.5, 1.0 / 3.0],
            6e-3,
        );
        let z = values(&Tensor::randn(n, dtype)?)?;
        let moment = |p: i32| z.iter().map(|z| z.powi(p)).sum::<f64>() / n as f64;
        close(
            "moments of randn",
            &[moment(1), moment(2), moment(3) / 4.0],
            &[0.0, 1.0, 0.0],
            0.02,
        );
        close("kurtosis", &[moment(4)], &[3.0], 0.03);
    }
    let draw = || -> Result<[Vec<f32>; 2]> {
        xla::manual_seed(9)?;
        Ok([
            Tensor::rand(4, ())?.to_vec()?,
            Tensor::rand(4, ())?.to_vec()?,
        ])
    };
    let [first, second] = draw()?;
    assert_ne!(first, second);
    assert_eq!(draw()?, [first, second]);
    Ok(())
}
