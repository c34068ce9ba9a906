//! Optimizers, against values that PyTorch 2.9 computes in `f64` (Lion: its paper's formula there).

use tests::check::{close, values};
use tests::with_devices;
use xla::nn::StateDict;
use xla::optim::{
    Adadelta, Adagrad, Adam, AdamOptions, AdamW, Lion, NAdam, Optimizer, ParamGroup, RAdam,
    RMSprop, Sgd, SgdOptions,
};
use xla::{Error, Result, Tensor, metrics};

/// A vector of 3 and a 2 by 2 matrix.
fn parameters() -> Result<Vec<Tensor>> {
    let a = Tensor::from_slice(&[1.0, -2.0, 0.5], [3], ())?;
    let b = Tensor::from_slice(&[0.3, -0.7, 1.5, 2.0], [2, 2], ())?;
    [a, b].iter().map(|x| x.requires_grad_(true)).collect()
}

/// `Σ c a² + (Σ b)² / 10 + Σ b² / 4`, and its gradients.
fn backward(p: &[Tensor]) -> Result<()> {
    let c = Tensor::from_slice(&[0.5, 1.0, 2.0], [3], ())?;
    let a = p[0].mul(&p[0])?.mul(&c)?.sum((), false)?;
    let b = p[1].sum((), false)?;
    let squares = p[1].mul(&p[1])?.sum((), false)?.mul(0.25)?;
    a.add(&b.mul(&b)?.mul(0.1)?)?.add(&squares)?.backward()
}

fn step(p: &[Tensor], optimizer: &mut dyn Optimizer) -> Result<()> {
    optimizer.zero_grad();
    backward(p)?;
    optimizer.step()?;
    xla::sync()?.wait()
}

fn all(p: &[Tensor]) -> Result<Vec<f64>> {
    Ok([values(&p[0])?, values(&p[1])?].concat())
}

type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

/// Optimizers, and the parameters after six steps, of which the last two are at half the rate.
#[rustfmt::skip]
fn runs() -> Vec<(Make, [f64; 7])> {
    vec![
            (|p| Box::new(Sgd::new(p, 0.1)), [0.59213025, -0.663552, 0.041472, 0.020364343299, -0.753925660607, 0.949512347986, 1.336657349939]),
            (|p| Box::new(Sgd::new(p, 0.1).momentum(0.9).dampening(0.3).weight_decay(0.05)), [0.102408873057, 0.814510395673, -0.35958910789, -0.290430284179, -0.768136554756, 0.282817240514, 0.521670375803]),
            (|p| Box::new(Sgd::new(p, 0.1).momentum(0.8).nesterov(true).maximize(true)), [3.152793968016, -14.634214391808, 13.256058052608, 2.319965548719, 0.438289977379, 4.577976234327, 5.518814019997]),
            (|p| Box::new(Adam::new(p, 0.1)), [0.508760985193, -1.503218216907, 0.031396127903, -0.178595176963, -0.999820752942, 1.007724551266, 1.505976700708]),
            (|p| Box::new(Adam::new(p, 0.1).betas((0.5, 0.6)).eps(0.01).weight_decay(0.2).amsgrad(true)), [0.529896800896, -1.507590989357, 0.089062726595, -0.133200668928, -0.626027397239, 1.01835229779, 1.512065818296]),
            (|p| Box::new(AdamW::new(p, 0.1)), [0.50491308392, -1.494339641838, 0.03015822558, -0.178880374368, -0.99506206101, 1.001373482348, 1.497118579689]),
            (|p| Box::new(AdamW::new(p, 0.1).weight_decay(0.5).amsgrad(true).maximize(true)), [1.227255645297, -1.999999998866, 0.840878985311, 0.686016967781, -0.092169705282, 1.61428664625, 2.001058101383]),
            (|p| Box::new(NAdam::new(p, 0.1)), [0.623057463158, -1.607596048919, 0.159930121954, -0.054429186925, -0.876014287067, 1.119589687593, 1.615131672334]),
            (|p| Box::new(NAdam::new(p, 0.1).weight_decay(0.3).decoupled_weight_decay(true).momentum_decay(0.1)), [0.518152132143, -1.361469201081, 0.125341343685, -0.060697718084, -0.750015979079, 0.944013478705, 1.368992509444]),
            (|p| Box::new(RAdam::new(p, 0.1).betas((0.8, 0.9)).weight_decay(0.1)), [0.547566993763, -0.48281996638, -0.087579647787, -0.011234099128, -0.741235178858, 0.883793653887, 1.256956183922]),
            (|p| Box::new(RMSprop::new(p, 0.07)), [0.004477672843, -0.366149607985, 0.000664878071, -0.173332473282, -0.252527561442, 0.177075302475, 0.48513880171]),
            (|p| Box::new(RMSprop::new(p, 0.1).alpha(0.7).momentum(0.6).centered(true).weight_decay(0.1).eps(0.01)), [-0.142009398741, -0.388401260211, -0.083695956035, -0.424953282674, -0.200533183559, 0.150565832747, 0.512190362436]),
            (|p| Box::new(Adagrad::new(p, 0.1)), [0.699412340994, -1.688576917362, 0.224209696865, 0.014972684916, -0.870144346215, 1.197221260238, 1.694081290124]),
            (|p| Box::new(Adagrad::new(p, 0.1).lr_decay(0.5).initial_accumulator_value(0.2).weight_decay(0.1)), [0.808190769863, -1.794921131171, 0.309452575923, 0.120875392742, -0.769112990516, 1.302244786733, 1.799543911682]),
            (|p| Box::new(Adadelta::new(p, 1.0)), [0.983617962869, -1.983584575443, 0.483684761516, 0.283663943215, -0.716122836874, 1.483614411934, 1.983604642847]),
            (|p| Box::new(Adadelta::new(p, 0.5).rho(0.6).eps(0.01).weight_decay(0.1)), [0.578984795967, -1.549391234121, 0.132588742307, -0.082293312457, -0.757372953285, 1.067576249054, 1.55984224304]),
            (|p| Box::new(Lion::new(p, 0.13)), [0.35, -1.35, -0.15, -0.35, -0.57, 0.85, 1.35]),
            (|p| Box::new(Lion::new(p, 0.1).betas((0.5, 0.8)).weight_decay(0.3)), [0.38871060519, -1.247643821772, -0.040756003101, -0.212542646418, -0.678930863, 0.818177213481, 1.247643821772]),
    ]
}

#[test]
fn steps_are_those_of_pytorch_and_one_program() {
    with_devices(1, || {
        for (index, (make, expected)) in runs().into_iter().enumerate() {
            let p = parameters().unwrap();
            xla::sync().unwrap();
            let mut optimizer = make(p.clone());
            let scope = metrics::Scope::new();
            for i in 0..6 {
                if i == 4 {
                    optimizer.set_lr(optimizer.lr() * 0.5);
                }
                step(&p, optimizer.as_mut()).unwrap();
            }
            // RAdam's first steps have another formula.
            let programs = if index == 9 { 2 } else { 1 };
            assert_eq!(scope.compiles(), programs, "optimizer {index}");
            assert_eq!(scope.executions(), 6, "optimizer {index}");
            let what = format!("optimizer {index}");
            close(&what, &all(&p).unwrap(), &expected, 1e-9);
        }
    });
}

#[test]
fn groups_have_their_own_options() {
    with_devices(1, || {
        let p = parameters().unwrap();
        let group = |x: &Tensor, lr| {
            let options = SgdOptions {
                lr,
                ..Default::default()
            };
            ParamGroup::new(vec![x.clone()], options)
        };
        let mut optimizer = Sgd::with_groups([group(&p[0], 0.1), group(&p[1], 0.0)]).unwrap();
        backward(&p).unwrap();
        optimizer.step().unwrap();
        // p - 0.1 · 2 c p, and no step.
        let expected = [0.9, -1.6, 0.3, 0.3, -0.7, 1.5, 2.0];
        close("", &all(&p).unwrap(), &expected, 1e-15);
        optimizer.set_hyperparameter(1, "momentum", 0.5).unwrap();
        let momentum = |g| optimizer.hyperparameter(g, "momentum");
        assert_eq!((momentum(0), momentum(1)), (Some(0.0), Some(0.5)));
        assert_eq!(optimizer.hyperparameter(2, "lr"), None);
        assert_eq!(optimizer.hyperparameter(0, "betas.0"), None);
    });
}

#[test]
fn a_restored_run_goes_on_as_if_it_had_never_stopped() {
    with_devices(1, || {
        let make = |p: &[Tensor]| NAdam::new(p.to_vec(), 0.1).weight_decay(0.1);
        let p = parameters().unwrap();
        let mut optimizer = make(&p);
        for _ in 0..3 {
            step(&p, &mut optimizer).unwrap();
        }
        optimizer.set_lr(0.03);
        let copy = |x: &Tensor| x.detach()?.copy()?.requires_grad_(true);
        let q: Vec<Tensor> = p.iter().map(copy).collect::<Result<_>>().unwrap();
        let file = std::env::temp_dir().join(format!("optimizer-{}", std::process::id()));
        optimizer.state_dict().unwrap().save(&file).unwrap();
        let state = StateDict::load(&file, ()).unwrap();
        std::fs::remove_file(&file).unwrap();
        let steps = state.get("state.1.step").unwrap();
        assert_eq!(steps.item::<f32>().unwrap(), 3.0);
        let mut restored = make(&q);
        restored.load_state_dict(&state).unwrap();
        assert_eq!(restored.lr(), 0.03);
        for _ in 0..3 {
            step(&p, &mut optimizer).unwrap();
            step(&q, &mut restored).unwrap();
        }
        assert_eq!(all(&p).unwrap(), all(&q).unwrap());

        // Another kind of optimizer, other groups, other shapes: errors, and nothing is changed.
        let before = restored.state_dict().unwrap();
        assert_eq!(
            argument(Adagrad::new(q.clone(), 0.1).load_state_dict(&state)),
            "param_groups"
        );
        assert_eq!(argument(make(&q[..1]).load_state_dict(&state)), "params");
        let swapped = [q[1].clone(), q[0].clone()];
        assert_eq!(argument(make(&swapped).load_state_dict(&state)), "state");
        assert_eq!(
            argument(restored.load_state_dict(&StateDict::new())),
            "param_groups"
        );
        assert_eq!(restored.state_dict().unwrap().metadata(), before.metadata());
    });
}

/// The argument that an error is about.
fn argument<T>(result: Result<T>) -> &'static str {
    match result.err() {
        Some(Error::Argument { argument, at, .. }) => {
            let file = at.location().map(|l| l.file());
            assert!(
                file.is_some_and(|f| f.ends_with("optimizers.rs")),
                "{file:?}"
            );
            argument
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_has_no_meaning_is_an_error_of_that_argument() {
    with_devices(1, || {
        let p = parameters().unwrap();
        let one = || vec![p[0].clone()];
        let group = |options| ParamGroup::new(one(), options);
        let invalid = |change: fn(&mut AdamOptions)| {
            let mut options = AdamOptions::default();
            change(&mut options);
            argument(Adam::with_groups([group(options)]))
        };
        assert_eq!(invalid(|o| o.lr = -1.0), "lr");
        assert_eq!(invalid(|o| o.lr = f64::NAN), "lr");
        assert_eq!(invalid(|o| o.betas.1 = 1.0), "betas");
        assert_eq!(invalid(|o| o.betas.0 = -0.1), "betas");
        assert_eq!(invalid(|o| o.eps = f64::NAN), "eps");
        assert_eq!(invalid(|o| o.weight_decay = f64::INFINITY), "weight_decay");
        assert_eq!(argument(Lion::new(one(), -0.1).step()), "lr");
        assert_eq!(
            argument(RMSprop::new(one(), 0.1).alpha(-1.0).step()),
            "alpha"
        );
        assert_eq!(argument(Adadelta::new(one(), 0.1).rho(1.1).step()), "rho");
        let mut adam = Adam::with_groups([group(AdamOptions::default())]).unwrap();
        // One parameter in two groups, or twice in one.
        assert_eq!(
            argument(adam.add_param_group(group(AdamOptions::default()))),
            "params"
        );
        let twice = ParamGroup::new([one(), one()].concat(), AdamOptions::default());
        assert_eq!(argument(Adam::with_groups([twice])), "params");
        let mut set = |group, name, value| argument(adam.set_hyperparameter(group, name, value));
        assert_eq!(set(1, "lr", 0.1), "group");
        assert_eq!(set(0, "momentum", 0.1), "name");
        assert_eq!(set(0, "betas", 0.1), "name");
        assert_eq!(set(0, "betas.1", 1.5), "betas");
        assert_eq!(set(0, "amsgrad", 0.5), "amsgrad");
        // Nothing was changed by any of these.
        assert_eq!(adam.hyperparameter(0, "betas.1"), Some(0.999));
    });
}
