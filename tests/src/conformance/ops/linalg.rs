//! Products and linear algebra.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional;
use xla::{Number, Result, SolveTriangularOptions, Tensor};

/// A factor of 1 where none is given, of the number's own kind.
fn factor(k: &Kwargs, name: &'static str) -> Result<Number> {
    match k.is_int(name) {
        true => Ok(k.i64(name)?.into()),
        false => Ok(k.f64_or(name, 1.0)?.into()),
    }
}

fn tensordot(x: &[Tensor], k: &Kwargs) -> Result<Tensor> {
    if k.is_int("dims") {
        let count = k.i64("dims")?;
        let last: Vec<i64> = (-count..0).collect();
        let first: Vec<i64> = (0..count).collect();
        return x[0].tensordot(&x[1], last.as_slice(), first.as_slice());
    }
    let (mine, theirs) = k.pair_of_ints("dims")?;
    x[0].tensordot(&x[1], mine.as_slice(), theirs.as_slice())
}

fn solve_triangular(x: &[Tensor], k: &Kwargs) -> Result<Tensor> {
    let options = SolveTriangularOptions {
        upper: k.bool_or("upper", true)?,
        left: k.bool_or("left", true)?,
        unitriangular: k.bool_or("unitriangular", false)?,
    };
    x[0].solve_triangular(&x[1], options)
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "addmm" => |x, k| {
            let (beta, alpha) = (factor(k, "beta")?, factor(k, "alpha")?);
            one(x[0].addmm(&x[1], &x[2], beta, alpha))
        },
        "addmv" => |x, k| {
            let (beta, alpha) = (factor(k, "beta")?, factor(k, "alpha")?);
            one(x[0].addmv(&x[1], &x[2], beta, alpha))
        },
        "baddbmm" => |x, k| {
            let (beta, alpha) = (factor(k, "beta")?, factor(k, "alpha")?);
            one(x[0].baddbmm(&x[1], &x[2], beta, alpha))
        },
        "bmm" => |x, _| one(x[0].bmm(&x[1])),
        "cdist" => |x, k| one(x[0].cdist(&x[1], k.f64_or("p", 2.0)?)),
        "cholesky" => |x, k| one(x[0].cholesky(k.bool_or("upper", false)?)),
        "cholesky_solve" => |x, k| one(x[0].cholesky_solve(&x[1], k.bool_or("upper", false)?)),
        "cross" => |x, k| one(x[0].cross(&x[1], k.i64_or("dim", -1)?)),
        "dot" => |x, _| one(x[0].dot(&x[1])),
        "einsum" => |x, k| {
            let operands: Vec<&Tensor> = x.iter().collect();
            one(Tensor::einsum(&k.str("equation")?, &operands))
        },
        "kron" => |x, _| one(x[0].kron(&x[1])),
        "linear" => |x, _| one(functional::linear(&x[0], &x[1], x.get(2))),
        "matmul" => |x, _| one(x[0].matmul(&x[1])),
        "mm" => |x, _| one(x[0].mm(&x[1])),
        "mv" => |x, _| one(x[0].mv(&x[1])),
        "outer" => |x, _| one(x[0].outer(&x[1])),
        "solve_triangular" => |x, k| one(solve_triangular(x, k)),
        "tensordot" => |x, k| one(tensordot(x, k)),
        "trace" => |x, _| one(x[0].trace()),
    }
}
