//! The set of operators is open: this one is written outside of the library.

use tests::with_devices;
use xla::{DType, Error, Result, Tensor};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, OpEntry, Operator, Saves, Ty, record};

/// `log(1 + e^x)`, safe for large `x`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Softplus;

impl Operator for Softplus {
    const NAME: &'static str = "softplus";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |_, vjp| vjp.only(vjp.grad().mul(&vjp.input(0)?.sigmoid()?)),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        match x.dtype().is_float() {
            true => Ok(x),
            false => Err(Error::dtype(
                Self::NAME,
                "a floating-point dtype",
                x.dtype(),
            )),
        }
    }

    /// `max(x, 0) + log(1 + e^-|x|)`.
    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let x = inputs[0];
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        let positive = f.binary("maximum", x, zero);
        let distance = f.unary("abs", x);
        let negative = f.unary("negate", distance);
        let exponential = f.unary("exponential", negative);
        let rest = f.unary("log_plus_one", exponential);
        Ok(f.binary("add", positive, rest))
    }
}

#[track_caller]
fn softplus(x: &Tensor) -> Result<Tensor> {
    static ENTRY: OpEntry = OpEntry::of(&Softplus);
    record(&ENTRY, &[x.into()])
}

#[test]
fn an_operator_from_outside_is_like_any_other() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let points = [-100.0f64, -1.0, 0.0, 2.5, 800.0];
            let x = Tensor::from_slice(&points, [5], ())?.requires_grad_(true)?;
            let y = softplus(&x)?;
            y.sum((), false)?.backward()?;
            let slope = x.grad().expect("a gradient").to_vec::<f64>()?;
            for ((x, y), slope) in points.iter().zip(y.to_vec::<f64>()?).zip(slope) {
                let expected = if *x > 30.0 { *x } else { x.exp().ln_1p() };
                assert!((y - expected).abs() < 1e-12, "softplus({x}) = {y}");
                assert!(
                    (slope - 1.0 / (1.0 + (-x).exp())).abs() < 1e-12,
                    "slope at {x}: {slope}"
                );
            }
            Ok(())
        };
        run().unwrap();
    });
}

#[test]
fn its_errors_carry_the_callers_line() {
    with_devices(1, || {
        let x = Tensor::zeros([2], DType::I32).unwrap();
        let line = line!() + 1;
        let error = softplus(&x).unwrap_err();
        assert!(matches!(
            error,
            Error::DTypeMismatch {
                op: "softplus",
                got: DType::I32,
                ..
            }
        ));
        let location = error.location().expect("a line");
        assert_eq!((location.file(), location.line()), (file!(), line));
    });
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Panics;

impl Operator for Panics {
    const NAME: &'static str = "panics";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, _: &mut Func, _: &[Value], _: Ty) -> Result<Value> {
        panic!("an operator with a bug")
    }
}

#[test]
fn a_panic_while_lowering_leaves_errors_behind() {
    with_devices(1, || {
        static ENTRY: OpEntry = OpEntry::of(&Panics);
        let x = Tensor::from_slice(&[1.0f32], 1, ()).unwrap();
        let bad = record(&ENTRY, &[(&x).into()]).unwrap();
        let good = x.add(1.0).unwrap();
        let read = std::panic::AssertUnwindSafe(|| bad.to_vec::<f32>());
        assert!(std::panic::catch_unwind(read).is_err());
        assert!(bad.to_vec::<f32>().is_err());
        assert!(good.to_vec::<f32>().is_err());
        assert_eq!(x.add(1.0).unwrap().to_vec::<f32>().unwrap(), [2.0]);
    });
}
