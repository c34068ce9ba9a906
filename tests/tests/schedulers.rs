//! Schedules of the learning rate, against values that PyTorch 2.9 computes.

use tests::check::close;
use xla::optim::lr_scheduler::{
    Anneal, ConstantLR, CosineAnnealingLR, CosineAnnealingWarmRestarts, ExponentialLR, LambdaLR,
    LinearLR, Mode, MultiStepLR, OneCycleLR, PlateauOptions, PolynomialLR, ReduceLROnPlateau,
    Schedule, Scheduler, SequentialLR, StepLR, ThresholdMode,
};
use xla::optim::{Adam, Optimizer, Sgd};
use xla::{Error, Result};

/// The learning rates of steps 0 to 12, from 0.4, and the momenta.
fn run(optimizer: &mut dyn Optimizer, schedule: impl Schedule) -> (Vec<f64>, Vec<f64>) {
    let mut scheduler = Scheduler::new(optimizer, schedule).unwrap();
    let momentum = |optimizer: &dyn Optimizer| {
        let beta = optimizer.hyperparameter(0, "betas.0");
        beta.or(optimizer.hyperparameter(0, "momentum")).unwrap()
    };
    let mut momenta = vec![momentum(optimizer)];
    let mut rates = vec![optimizer.lr()];
    for _ in 0..12 {
        scheduler.step(optimizer).unwrap();
        assert_eq!(scheduler.get_last_lr(), [optimizer.lr()]);
        rates.push(optimizer.lr());
        momenta.push(momentum(optimizer));
    }
    (rates, momenta)
}

#[track_caller]
fn check(schedule: impl Schedule, expected: [f64; 13]) {
    let what = format!("{schedule:?}");
    let rates = run(&mut Sgd::new(vec![], 0.4), schedule).0;
    close(&what, &rates, &expected, 1e-9);
}

#[rustfmt::skip]
#[test]
fn rates_are_those_of_pytorch() {
    check(StepLR { step_size: 3, gamma: 0.5 }, [0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025]);
    check(MultiStepLR { milestones: vec![7, 2, 7], gamma: 0.5 }, [0.4, 0.4, 0.2, 0.2, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05]);
    check(ExponentialLR { gamma: 0.9 }, [0.4, 0.36, 0.324, 0.2916, 0.26244, 0.236196, 0.2125764, 0.19131876, 0.172186884, 0.1549681956, 0.139471376, 0.1255242384, 0.1129718146]);
    check(ConstantLR { factor: 0.25, total_iters: 4 }, [0.1, 0.1, 0.1, 0.1, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]);
    check(LinearLR { start_factor: 0.1, end_factor: 0.9, total_iters: 4 }, [0.04, 0.12, 0.2, 0.28, 0.36, 0.36, 0.36, 0.36, 0.36, 0.36, 0.36, 0.36, 0.36]);
    check(PolynomialLR { total_iters: 6, power: 2.0 }, [0.4, 0.2777777778, 0.1777777778, 0.1, 0.0444444444, 0.0111111111, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    check(CosineAnnealingLR { t_max: 4, eta_min: 0.1 }, [0.4, 0.3560660172, 0.25, 0.1439339828, 0.1, 0.1439339828, 0.25, 0.3560660172, 0.4, 0.3560660172, 0.25, 0.1439339828, 0.1]);
    check(CosineAnnealingWarmRestarts { t_0: 2, t_mult: 2, eta_min: 0.1 }, [0.4, 0.25, 0.4, 0.3560660172, 0.25, 0.1439339828, 0.4, 0.3885819299, 0.3560660172, 0.3074025149, 0.25, 0.1925974851, 0.1439339828]);
    check(CosineAnnealingWarmRestarts::new(5), [0.4, 0.3618033989, 0.2618033989, 0.1381966011, 0.0381966011, 0.4, 0.3618033989, 0.2618033989, 0.1381966011, 0.0381966011, 0.4, 0.3618033989, 0.2618033989]);
    check(LambdaLR::new(|t| 1.0 / (1.0 + t as f64)), [0.4, 0.2, 0.1333333333, 0.1, 0.08, 0.0666666667, 0.0571428571, 0.05, 0.0444444444, 0.04, 0.0363636364, 0.0333333333, 0.0307692308]);
    let sequence = SequentialLR::new(vec![3, 8])
        .then(LinearLR { total_iters: 3, ..Default::default() })
        .then(CosineAnnealingLR::new(5))
        .then(ExponentialLR { gamma: 0.5 });
    check(sequence, [0.1333333333, 0.2222222222, 0.3111111111, 0.4, 0.3618033989, 0.2618033989, 0.1381966011, 0.0381966011, 0.4, 0.2, 0.1, 0.05, 0.025]);
}

#[rustfmt::skip]
#[test]
fn one_cycle_sets_rate_and_momentum() {
    let three_phases = OneCycleLR {
        pct_start: 0.4, anneal_strategy: Anneal::Linear, three_phase: true, div_factor: 10.0,
        final_div_factor: 100.0, base_momentum: 0.6, max_momentum: 0.9, ..OneCycleLR::new(1.0, 12)
    };
    let cycles = [
        (OneCycleLR::new(1.0, 12),
            [0.04, 0.3497896542, 0.8792851591, 0.9944154355, 0.9330129698, 0.8117456539, 0.6473789977, 0.4626371027, 0.2830609982, 0.1334775302, 0.0345669874, 4e-06, 0.0345669874],
            [0.95, 0.9177302444, 0.8625744626, 0.8505584587, 0.8566987298, 0.8688255099, 0.8852622413, 0.9037365047, 0.921694187, 0.9366525936, 0.9465436874, 0.95, 0.9465436874]),
        // PyTorch's last one is -0.0281176471, which is no rate.
        (three_phases,
            [0.1, 0.3368421053, 0.5736842105, 0.8105263158, 0.9526315789, 0.7157894737, 0.4789473684, 0.2421052632, 0.0883529412, 0.0592352941, 0.0301176471, 0.001, 0.0],
            [0.9, 0.8210526316, 0.7421052632, 0.6631578947, 0.6157894737, 0.6947368421, 0.7736842105, 0.8526315789, 0.9, 0.9, 0.9, 0.9, 0.9]),
    ];
    for (cycle, rates, momenta) in cycles {
        for optimizer in [
            &mut Sgd::new(vec![], 0.4).momentum(0.5) as &mut dyn Optimizer,
            &mut Adam::new(vec![], 0.4),
        ] {
            let got = run(optimizer, cycle.clone());
            close("rates", &got.0, &rates, 1e-9);
            close("momenta", &got.1, &momenta, 1e-9);
        }
    }
}

#[test]
fn a_plateau_reduces_the_rate() {
    let run = |options, metrics: &[f64]| -> Vec<f64> {
        let mut optimizer = Sgd::new(vec![], 1.0);
        let mut scheduler = ReduceLROnPlateau::new(&optimizer, options).unwrap();
        let step = |metric: &f64| {
            scheduler.step(&mut optimizer, *metric).unwrap();
            optimizer.lr()
        };
        metrics.iter().map(step).collect()
    };
    let losses = [
        1.0,
        0.95,
        0.85,
        0.84,
        0.83,
        0.82,
        0.81,
        f64::NAN,
        0.8,
        0.79,
        0.2,
        0.3,
        0.3,
        0.3,
    ];
    let options = PlateauOptions {
        factor: 0.5,
        patience: 1,
        cooldown: 1,
        threshold: 0.1,
        min_lr: 0.2,
        ..Default::default()
    };
    let expected = [
        1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.2, 0.2,
    ];
    assert_eq!(run(options, &losses), expected);
    let options = PlateauOptions {
        mode: Mode::Max,
        factor: 0.5,
        patience: 0,
        threshold: 0.1,
        threshold_mode: ThresholdMode::Abs,
        ..Default::default()
    };
    let expected = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625];
    assert_eq!(run(options, &losses[..7]), expected);
}

#[test]
fn a_restored_schedule_goes_on() {
    let mut optimizer = Sgd::new(vec![], 0.4);
    let schedule = CosineAnnealingLR::new(7);
    let mut scheduler = Scheduler::new(&mut optimizer, schedule.clone()).unwrap();
    for _ in 0..3 {
        scheduler.step(&mut optimizer).unwrap();
    }
    let mut other = Sgd::new(vec![], 0.1);
    let mut restored = Scheduler::new(&mut other, schedule).unwrap();
    let state = scheduler.state_dict();
    restored.load_state_dict(&mut other, &state).unwrap();
    assert_eq!(other.lr(), optimizer.lr());
    scheduler.step(&mut optimizer).unwrap();
    restored.step(&mut other).unwrap();
    assert_eq!(other.lr(), optimizer.lr());
    let nothing = xla::nn::StateDict::new();
    assert!(restored.load_state_dict(&mut other, &nothing).is_err());

    let mut plateau = ReduceLROnPlateau::new(&optimizer, PlateauOptions::default()).unwrap();
    plateau.step(&mut optimizer, 3.0).unwrap();
    let mut again = ReduceLROnPlateau::new(&optimizer, PlateauOptions::default()).unwrap();
    again.load_state_dict(&plateau.state_dict()).unwrap();
    assert_eq!((again.best(), again.last_epoch()), (3.0, 1));
}

#[test]
fn what_has_no_meaning_is_an_error_of_that_argument() {
    let argument = |result: Result<()>| match result {
        Err(Error::Argument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    fn made(schedule: impl Schedule) -> Result<()> {
        Scheduler::new(&mut Sgd::new(vec![], 0.1), schedule).map(drop)
    }
    assert_eq!(argument(made(StepLR::new(0))), "step_size");
    assert_eq!(argument(made(ExponentialLR { gamma: f64::NAN })), "gamma");
    assert_eq!(argument(made(CosineAnnealingLR::new(0))), "T_max");
    assert_eq!(argument(made(CosineAnnealingWarmRestarts::new(0))), "T_0");
    assert_eq!(argument(made(OneCycleLR::new(1.0, 0))), "total_steps");
    let factor = ConstantLR {
        factor: 2.0,
        ..Default::default()
    };
    assert_eq!(argument(made(factor)), "factor");
    let start = LinearLR {
        start_factor: 0.0,
        ..Default::default()
    };
    assert_eq!(argument(made(start)), "start_factor");
    assert_eq!(argument(made(SequentialLR::new(vec![3]))), "schedulers");
    let unordered = SequentialLR::new(vec![3, 2])
        .then(StepLR::new(1))
        .then(StepLR::new(1))
        .then(StepLR::new(1));
    assert_eq!(argument(made(unordered)), "milestones");
    assert_eq!(
        argument(made(LambdaLR::new(|_| 1.0).and(|_| 2.0))),
        "lr_lambda"
    );
    // A rate that is none comes from the function itself.
    assert_eq!(argument(made(LambdaLR::new(|_| -1.0))), "lr");
    // Beyond the end of a cycle.
    let mut optimizer = Sgd::new(vec![], 0.1);
    let mut cycle = Scheduler::new(&mut optimizer, OneCycleLR::new(1.0, 2)).unwrap();
    cycle.step(&mut optimizer).unwrap();
    cycle.step(&mut optimizer).unwrap();
    assert_eq!(argument(cycle.step(&mut optimizer)), "steps");
    // An optimizer without momentum.
    let mut adagrad = xla::optim::Adagrad::new(vec![], 0.1);
    let cycle = Scheduler::new(&mut adagrad, OneCycleLR::new(1.0, 2));
    assert_eq!(argument(cycle.map(drop)), "name");
}
