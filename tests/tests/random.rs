//! Random numbers against the distributions they are of, and against JAX's bits.

use std::collections::HashSet;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tests::check::values;
use tests::{conformance, with_devices};
use xla::metrics::Scope;
use xla::spmd::Mesh;
use xla::{DType, Device, Error, Generator, Result, Tensor, default_generator};

const N: usize = 20_000;

/// Asserts that a sample's distribution function is nowhere far from `cdf` (Kolmogorov and Smirnov):
/// a correct one is further away once in 10⁴ samples, and the seeds here are fixed.
#[track_caller]
fn distributed(what: &str, sample: &Tensor, cdf: impl Fn(f64) -> f64) {
    let mut sample = values(sample).unwrap();
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let far = (0..).zip(&sample).fold(0f64, |far, (i, &x)| {
        let (below, at) = (f64::from(i) / n, f64::from(i + 1) / n);
        far.max((cdf(x) - below).abs()).max((cdf(x) - at).abs())
    });
    assert!(far < 2.23 / n.sqrt(), "{what}: {far}");
}

/// Asserts observed frequencies (Pearson): at most as far from those expected as `5 + 5 sqrt(2 k)` for
/// `k` degrees of freedom.
#[track_caller]
fn frequent(what: &str, sample: &Tensor, probabilities: &[f64]) {
    let mut counts = vec![0f64; probabilities.len()];
    let sample = values(sample).unwrap();
    for x in &sample {
        counts[*x as usize] += 1.0;
    }
    let n = sample.len() as f64;
    let mut far = 0.0;
    for (i, (count, p)) in counts.iter().zip(probabilities).enumerate() {
        match *p {
            0.0 => assert_eq!(*count, 0.0, "{what}: {i} has probability 0"),
            p => far += (count - n * p).powi(2) / (n * p),
        }
    }
    let k = probabilities.len() as f64;
    assert!(far < k + 5.0 * (2.0 * k).sqrt(), "{what}: {far}");
}

/// The normal distribution function (Abramowitz and Stegun, 7.1.26), to 10⁻⁷.
fn normal(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let terms = [
        1.061_405_429,
        -1.453_152_027,
        1.421_413_741,
        -0.284_496_736,
        0.254_829_592,
    ];
    let erf = 1.0 - terms.iter().fold(0.0, |sum, c| sum * t + c) * t * (-z * z).exp();
    0.5 * (1.0 + erf.copysign(x))
}

#[test]
fn bits_and_keys_are_those_of_jax() {
    let report = conformance::run(Path::new("data/threefry.json"), None).unwrap();
    assert!(report.failed.is_empty() && report.passed > 0);
}

#[test]
fn continuous_distributions() -> Result<()> {
    xla::manual_seed(11)?;
    for dtype in [DType::F32, DType::F64] {
        let uniform = |x: f64| x.clamp(0.0, 1.0);
        distributed("rand", &Tensor::rand(N, dtype)?, uniform);
        let wide = Tensor::uniform(-2.0, 3.0, [N / 2, 2], dtype)?;
        distributed("uniform", &wide, |x| uniform((x + 2.0) / 5.0));
        distributed("randn", &Tensor::randn(N, dtype)?, normal);
        let moved = Tensor::normal(1.0, 2.0, N, dtype)?;
        distributed("normal", &moved, |x| normal((x - 1.0) / 2.0));
        let waits = Tensor::exponential(0.5, N, dtype)?;
        distributed("exponential", &waits, |x| 1.0 - (-x / 2.0).exp());
        let cut = Tensor::zeros(N, dtype)?;
        xla::nn::init::trunc_normal_(&cut, 1.0, 2.0, -1.0, 2.0)?;
        let (low, high) = (normal(-1.0), normal(0.5));
        distributed("trunc_normal", &cut, |x| {
            (normal((x - 1.0) / 2.0) - low) / (high - low)
        });
    }
    let means = Tensor::from_slice(&[-3.0f32, 3.0], [2, 1], ())?;
    let deviations = Tensor::full([1, N], 0.5, ())?;
    let both = Tensor::normal_of(&means, &deviations)?;
    distributed("normal_of", &both.select(0, 0)?, |x| {
        normal((x + 3.0) / 0.5)
    });
    distributed("normal_of", &both.select(0, 1)?, |x| {
        normal((x - 3.0) / 0.5)
    });
    // Half precision never reaches 1.
    for dtype in [DType::F16, DType::BF16] {
        let x = values(&Tensor::rand(N, dtype)?)?;
        let mean = x.iter().sum::<f64>() / N as f64;
        assert!(x.iter().all(|x| (0.0..1.0).contains(x)) && (mean - 0.5).abs() < 0.01);
    }
    Ok(())
}

#[test]
fn discrete_distributions() -> Result<()> {
    xla::manual_seed(5)?;
    let die = Tensor::randint(-1, 5, N, ())?;
    assert_eq!(die.dtype(), DType::I64);
    frequent("randint", &die.add(1)?, &[1.0 / 6.0; 6]);
    let all = Tensor::randint(i64::MIN, i64::MAX, N, ())?;
    frequent("randint", &all.lt(0)?, &[0.5; 2]);
    let bytes = Tensor::zeros(N, DType::U8)?.random_(0, None)?;
    frequent("random_", &bytes, &[1.0 / 256.0; 256]);
    let coins = Tensor::full(N, 0.3, ())?.bernoulli()?;
    frequent("bernoulli", &coins, &[0.7, 0.3]);
    let p = Tensor::from_slice(&[0.0f32, 1.0], [2, 1], ())?;
    let sure = Tensor::zeros([2, 100], DType::I32)?.bernoulli_(&p)?;
    assert_eq!(values(&sure.sum(1, false)?)?, [0.0, 100.0]);

    let weights = Tensor::from_slice(&[1.0f32, 0.0, 3.0, 4.0], 4, ())?;
    let drawn = weights.multinomial(N, true)?;
    frequent("multinomial", &drawn, &[0.125, 0.0, 0.375, 0.5]);
    let rows = weights.expand([N, 4])?.multinomial(3, false)?;
    assert_eq!(rows.dims(), [N, 3]);
    frequent("first", &rows.select(1, 0)?, &[0.125, 0.0, 0.375, 0.5]);
    // The second is 0 after 2 or 3, and 3 after 0 or 2: the weights left are then 5, 4, 7 and 5.
    let (zero, three) = (3.0 / 8.0 / 5.0 + 1.0 / 8.0, 1.0 / 14.0 + 3.0 / 10.0);
    let second = [zero, 0.0, 1.0 - zero - three, three];
    frequent("second", &rows.select(1, 1)?, &second);
    let set = values(&rows.sum(1, false)?)?;
    assert!(set.iter().all(|sum| *sum == 5.0), "0, 2 and 3, each once");

    let order = Tensor::randperm(1000, DType::I32)?.to_vec::<i32>()?;
    let distinct: HashSet<i32> = order.iter().copied().collect();
    assert!(distinct.len() == 1000 && order.iter().all(|i| (0..1000).contains(i)));
    assert!(order != (0..1000).collect::<Vec<i32>>());
    let firsts: Vec<i64> = (0..600)
        .map(|_| Tensor::randperm(3, ())?.select(0, 0)?.item())
        .collect::<Result<_>>()?;
    frequent(
        "randperm",
        &Tensor::from_vec(firsts, 600, ())?,
        &[1.0 / 3.0; 3],
    );
    Ok(())
}

#[test]
fn what_was_drawn_can_be_drawn_again() -> Result<()> {
    let generator = Generator::from_key([7, 9], xla::device()?)?;
    assert_eq!(generator.key()?, [7, 9]);
    let first = generator.rand(10, DType::F32)?;
    let saved = generator.get_state()?;
    let second = generator.rand(10, DType::F32)?.to_vec::<f32>()?;
    assert_ne!(first.to_vec::<f32>()?, second);
    generator.set_state(&saved)?;
    assert_eq!(generator.rand(10, DType::F32)?.to_vec::<f32>()?, second);
    let kept = Generator::from_state(&[7 << 32 | 9, 10], xla::device()?)?;
    assert_eq!(kept.rand(10, DType::F32)?.to_vec::<f32>()?, second);
    assert!(generator.set_state(&Tensor::zeros(2, ())?).is_err());
    assert_ne!(generator.seed()?, generator.seed()?);

    xla::manual_seed(3)?;
    let x = Tensor::zeros([2, 3], ())?;
    let drawn = [x.rand_like()?, x.randn_like()?, x.randint_like(0, 9)?];
    xla::manual_seed(3)?;
    let again = [x.rand_like()?, x.randn_like()?, x.randint_like(0, 9)?];
    for (a, b) in drawn.iter().zip(&again) {
        assert_eq!((a.dims(), values(a)?), (&[2, 3][..], values(b)?));
    }
    Ok(())
}

/// What three draws of one length become, each between bounds of its own: on the host, of the bits
/// that follow each other.
#[test]
fn draws_of_one_length_have_their_own_bounds_and_numbers() {
    let bounds = [(-1.0, 2.0), (5.0, 5.5), (0.0, 1e-3)];
    let drawn = |device: Device| -> Result<[Vec<f32>; 2]> {
        let generator = Generator::from_key([1, 2], device)?;
        let parts = bounds.map(|(low, high)| generator.uniform(low, high, [3, 4], DType::F32));
        let parts = parts.into_iter().collect::<Result<Vec<Tensor>>>()?;
        let normal = generator.randn([36], DType::F32)?;
        let parts: Vec<&Tensor> = parts.iter().collect();
        Ok([Tensor::cat(&parts, 0)?.to_vec()?, normal.to_vec()?])
    };
    with_devices(4, || {
        let [uniform, normal] = drawn(xla::device().unwrap()).unwrap();
        let source = Generator::from_key([1, 2], xla::device().unwrap()).unwrap();
        let bits = source.bits([36]).unwrap().to_vec::<u32>().unwrap();
        let bounds = bounds.iter().flat_map(|b| [*b; 12]);
        for ((word, (low, high)), x) in bits.iter().zip(bounds).zip(&uniform) {
            let expected = f64::from(word >> 8) * (-24f64).exp2() * (high - low) + low;
            assert!(
                (f64::from(*x) - expected).abs() < 1e-6 * high,
                "{x}: {expected}"
            );
        }
        let mesh = Mesh::all("x").unwrap();
        assert_eq!(drawn(mesh.device()).unwrap(), [uniform, normal]);
    });
}

#[test]
fn two_threads_never_draw_the_same() -> Result<()> {
    let device = xla::device()?;
    let generator = Generator::from_key([1, 2], device)?;
    let draw = || -> Result<Vec<u32>> {
        let parts = (0..20).map(|_| generator.bits(50));
        let parts: Vec<Tensor> = parts.collect::<Result<_>>()?;
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?.to_vec()
    };
    let mut drawn = std::thread::scope(|scope| -> Result<Vec<u32>> {
        let other = scope.spawn(draw);
        let mut all = draw()?;
        all.extend(other.join().expect("it does not panic")?);
        Ok(all)
    })?;
    let mut expected = Generator::from_key([1, 2], device)?
        .bits(2000)?
        .to_vec::<u32>()?;
    drawn.sort_unstable();
    expected.sort_unstable();
    assert_eq!(drawn, expected);
    Ok(())
}

#[test]
fn numbers_are_data_and_each_step_draws_others() -> Result<()> {
    default_generator(xla::device()?)?.manual_seed(1)?;
    let x = Tensor::zeros(1000, ())?.copy()?;
    xla::sync()?;
    let scope = Scope::new();
    let mut seen = Vec::new();
    for step in 1..4 {
        let bound = step as f64;
        x.uniform_(-bound, bound)?;
        let y = Tensor::normal(bound, 1.0, 2, ())?.add(&Tensor::randint(0, step, 2, ())?)?;
        xla::sync()?;
        let mut values = values(&x)?;
        assert!(
            values.iter().all(|v| v.abs() <= bound) && values.iter().any(|v| v.abs() > 0.9 * bound)
        );
        values.extend(self::values(&y)?);
        assert!(!seen.contains(&values));
        seen.push(values);
    }
    assert_eq!(scope.compiles(), 1);
    Ok(())
}

#[test]
fn what_cannot_be_drawn() -> Result<()> {
    let x = Tensor::zeros(3, ())?;
    let counts = Tensor::zeros(3, DType::I64)?;
    let argument = [
        Tensor::uniform(2.0, 1.0, 3, ()),
        Tensor::uniform(0.0, f64::NAN, 3, ()),
        Tensor::normal(0.0, -1.0, 3, ()),
        Tensor::normal_of(0.0, 1.0),
        Tensor::exponential(0.0, 3, ()),
        Tensor::randint(4, 4, 3, ()),
        Tensor::randint(0, 300, 3, DType::U8),
        x.bernoulli_(1.5),
        x.random_(5, Some(5)),
        x.multinomial(0, true),
        x.multinomial(4, false),
        Tensor::rand([-1], ()),
    ];
    for (i, result) in argument.into_iter().enumerate() {
        assert!(
            matches!(result, Err(Error::Argument { .. })),
            "{i}: {result:?}"
        );
    }
    let dtype = [
        Tensor::rand(3, DType::I32),
        counts.bernoulli(),
        counts.multinomial(1, true),
        counts.normal_(0, 1),
        Tensor::randperm(3, DType::Bool),
    ];
    for (i, result) in dtype.into_iter().enumerate() {
        assert!(
            matches!(result, Err(Error::DTypeMismatch { .. })),
            "{i}: {result:?}"
        );
    }
    let cube = Tensor::ones([2, 2, 2], ())?;
    let shape = [
        cube.multinomial(1, true),
        Tensor::zeros([2, 0], ())?.multinomial(1, true),
        x.bernoulli_(&Tensor::ones([2, 3], ())?),
    ];
    for (i, result) in shape.into_iter().enumerate() {
        assert!(
            matches!(result, Err(Error::ShapeMismatch { .. })),
            "{i}: {result:?}"
        );
    }
    // Nothing is drawn of nothing.
    assert!(Tensor::randperm(0, ())?.to_vec::<i64>()?.is_empty());
    assert!(Tensor::randn([0, 2], ())?.to_vec::<f32>()?.is_empty());
    let none = Tensor::ones([0, 3], ())?.multinomial(2, false)?;
    assert_eq!((none.dims(), none.to_vec::<i64>()?), (&[0, 2][..], vec![]));
    let leaf = x.requires_grad_(true)?;
    assert!(matches!(
        leaf.uniform_(0, 1),
        Err(Error::Autograd { op: "uniform_", .. })
    ));
    Ok(())
}

/// Seeding a generator whose state another thread has pending waits for that thread's backward pass,
/// which draws meanwhile.
#[test]
fn a_backward_pass_draws_while_another_thread_seeds() {
    let variables = [("CPU_NUM_DEVICES", "1"), ("XLA_DEADLINE_SECONDS", "8")];
    tests::with_env(&variables, || {
        let leaf = Tensor::zeros(2, ()).unwrap().requires_grad_(true).unwrap();
        let doubled = leaf.mul(2.0).unwrap();
        let (seeds, seeded) = mpsc::channel();
        let _hook = doubled.register_hook(move |_| {
            let seeds = seeds.clone();
            thread::spawn(move || seeds.send(xla::manual_seed(3)));
            thread::sleep(Duration::from_secs(1));
            Tensor::rand(2, ()).map(Some)
        });
        let _pending = Tensor::rand(3, ()).unwrap();
        doubled.sum((), false).unwrap().backward().unwrap();
        let seeded = seeded.recv_timeout(Duration::from_secs(60));
        seeded.unwrap().unwrap();
        assert!(leaf.grad().is_some());
    });
}
