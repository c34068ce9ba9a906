//! Gradients through every collective. Rank `r`'s loss weighs what it got by `r + 1`, so a gradient
//! says to which ranks a value went.

use super::Checks;
use xla::dist::{self, AllToAllOptions, ReduceOp};
use xla::{DType, Tensor};

type Collective<'a> = &'a dyn Fn(&Tensor) -> xla::Result<Tensor>;

/// `[1, 2, …]`.
fn ramp(len: usize) -> xla::Result<Tensor> {
    Tensor::arange(1, len + 1, 1, DType::F32)
}

struct Pass {
    rank: usize,
    checks: Checks,
}

impl Pass {
    /// The gradient for `x` of this rank's loss, `(rank + 1) Σᵢ (i + 1) collective(x)ᵢ`.
    fn check(
        &mut self,
        what: &str,
        x: &Tensor,
        collective: Collective<'_>,
        expected: impl IntoIterator<Item = f64>,
    ) -> xla::Result<()> {
        let x = x.detach()?.requires_grad_(true)?;
        let y = collective(&x)?.reshape([-1_i64])?;
        let loss = (&y * &ramp(y.numel())?)?.sum((), false)?;
        (&loss * (self.rank as f64 + 1.0))?.backward()?;
        let gradient = x.grad().expect("a leaf that was used");
        self.checks.expect(what, &gradient, expected);
        Ok(())
    }
}

/// Closed forms of the gradients.
///
/// # Errors
/// Those of the collectives and the backward passes.
pub fn gradients(rank: usize, world: usize) -> xla::Result<()> {
    let (r, n) = (rank, world);
    let own = r as f64 + 1.0;
    // Σ (r + 1): the weight of what went to all.
    let total = (n * (n + 1)) as f64 / 2.0;
    let only = |root: usize, value: f64| if r == root { value } else { 0.0 };
    let mut pass = Pass {
        rank,
        checks: Checks::default(),
    };
    let x = Tensor::full([2], own, DType::F32)?;
    let both = |value: f64| [value, 2.0 * value];

    let sum = |op: ReduceOp| move |x: &Tensor| dist::all_reduce(x, op);
    pass.check("sum", &x, &sum(ReduceOp::Sum), both(total))?;
    pass.check("mean", &x, &sum(ReduceOp::Mean), both(total / n as f64))?;
    pass.check("max", &x, &sum(ReduceOp::Max), both(only(n - 1, total)))?;
    pass.check("min", &x, &sum(ReduceOp::Min), both(only(0, total)))?;
    let others: f64 = (1..=n).map(|i| i as f64).product::<f64>() / own;
    let product = sum(ReduceOp::Product);
    pass.check("product", &x, &product, both(total * others))?;
    let from_zero = (&x - 1.0)?;
    let others: f64 = (1..n).map(|i| i as f64).product();
    let expected = both(only(0, total * others));
    pass.check("product with a zero", &from_zero, &product, expected)?;
    let scaled = |x: &Tensor| dist::all_reduce(x, ReduceOp::Sum.scale(0.5));
    pass.check("scaled sum", &x, &scaled, both(total / 2.0))?;

    // Part r of the gathered tensor is x: its elements are numbered from 2 r + 1.
    let part = [2 * r + 1, 2 * r + 2].map(|i| total * i as f64);
    let gather = |x: &Tensor| dist::all_gather_into_tensor(x, 0);
    pass.check("all_gather_into_tensor", &x, &gather, part)?;
    let list = |x: &Tensor| Tensor::cat(&dist::all_gather(x)?.iter().collect::<Vec<_>>(), 0);
    pass.check("all_gather", &x, &list, part)?;

    let long = Tensor::full([2 * n], own, DType::F32)?;
    let to_each = || (0..n).flat_map(|j| both(j as f64 + 1.0));
    let scatter = |op: ReduceOp| move |x: &Tensor| dist::reduce_scatter_tensor(x, 0, op);
    pass.check("reduce_scatter", &long, &scatter(ReduceOp::Sum), to_each())?;
    let mean = to_each().map(|g| g / n as f64);
    pass.check("scattered mean", &long, &scatter(ReduceOp::Mean), mean)?;
    let most = to_each().map(|g| only(n - 1, g));
    pass.check("scattered maximum", &long, &scatter(ReduceOp::Max), most)?;
    let whole = |x: &Tensor| {
        let part = dist::reduce_scatter_tensor(x, 0, ReduceOp::Sum)?;
        dist::all_gather_into_tensor(&part, 0)
    };
    let expected = (1..=2 * n).map(|i| total * i as f64);
    pass.check("reduce_scatter and all_gather", &long, &whole, expected)?;

    // Part j is part r of what rank j gets.
    let even = AllToAllOptions::default();
    let exchange = |x: &Tensor| dist::all_to_all_single(x, &even);
    let expected = (0..n).flat_map(|j| [2 * r + 1, 2 * r + 2].map(|i| (j as f64 + 1.0) * i as f64));
    pass.check("all_to_all", &long, &exchange, expected)?;

    let ring: Vec<(usize, usize)> = (0..n).map(|s| (s, (s + 1) % n)).collect();
    let next = ((r + 1) % n) as f64 + 1.0;
    let permute = |x: &Tensor| dist::collective_permute(x, &ring);
    pass.check("ring", &x, &permute, both(next))?;
    let one = |x: &Tensor| dist::collective_permute(x, &[(0, n - 1)]);
    pass.check("one pair", &x, &one, both(only(0, n as f64)))?;

    let root = n - 1;
    let broadcast = |x: &Tensor| dist::broadcast(x, root);
    pass.check("broadcast", &x, &broadcast, both(only(root, total)))?;
    let reduce = |x: &Tensor| dist::reduce(x, root, ReduceOp::Sum);
    pass.check("reduce", &x, &reduce, both(n as f64))?;
    let gather = |x: &Tensor| Tensor::cat(&dist::gather(x, root)?.iter().collect::<Vec<_>>(), 0);
    let expected = [2 * r + 1, 2 * r + 2].map(|i| (n * i) as f64);
    pass.check("gather", &x, &gather, expected)?;

    // In groups: only what went to the own group counts, also where the default group's collectives
    // come between forward and backward pass.
    let parities: Vec<Vec<usize>> = (0..n.min(2))
        .map(|parity| (parity..n).step_by(2).collect())
        .collect();
    let weight: f64 = parities[r % 2].iter().map(|s| *s as f64 + 1.0).sum();
    let (parts, _) = dist::new_subgroups_by_enumeration(&parities)?;
    let parts = parts.expect("each rank is even or odd");
    let in_part = |x: &Tensor| parts.all_reduce(x, ReduceOp::Sum);
    pass.check("sum in a part", &x, &in_part, both(weight))?;
    pass.checks.verify()?;

    let mut pass = Pass {
        rank,
        checks: Checks::default(),
    };
    let mut own_group = None;
    for ranks in &parities {
        let group = dist::new_group(ranks)?;
        own_group = own_group.or(group.is_member().then_some(group));
    }
    let group = own_group.expect("each rank is even or odd");
    let in_group = |x: &Tensor| group.all_reduce(x, ReduceOp::Sum);
    pass.check("sum in a group", &x, &in_group, both(weight))?;
    // The gradient comes back through the world, then through the group.
    let through = |x: &Tensor| {
        let y = group.all_reduce(x, ReduceOp::Sum)?;
        dist::all_reduce(&y, ReduceOp::Sum)
    };
    let expected = both(total * parities[r % 2].len() as f64);
    pass.check("sum in a group and the world", &x, &through, expected)?;
    let read = |x: &Tensor| {
        let y = group.all_gather_into_tensor(x, 0)?;
        y.to_vec::<f32>()?;
        Ok(y)
    };
    let me = group.group_rank(rank)?;
    let expected = [2 * me + 1, 2 * me + 2].map(|i| weight * i as f64);
    pass.check("a read before the backward pass", &x, &read, expected)?;
    pass.checks.verify()?;
    scatter_back(rank, world)
}

/// `scatter`: the source's tensors get the gradients, the receivers' zeros.
fn scatter_back(rank: usize, world: usize) -> xla::Result<()> {
    let root = world - 1;
    let template = Tensor::zeros([2], DType::F32)?.requires_grad_(true)?;
    let sent = Tensor::full([world, 2], 1.0, DType::F32)?.requires_grad_(true)?;
    let list = sent.unbind(0)?;
    let list: Vec<&Tensor> = list.iter().collect();
    let given = (rank == root).then_some(list.as_slice());
    let y = dist::scatter(&template, given, root)?;
    let loss = (&(&y * &ramp(2)?)?.sum((), false)? * (rank as f64 + 1.0))?;
    loss.backward()?;
    let mut checks = Checks::default();
    if rank == root {
        let gradient = sent.grad().expect("a leaf that was used");
        let expected = (0..world).flat_map(|j| [j as f64 + 1.0, 2.0 * j as f64 + 2.0]);
        checks.expect("scatter", &gradient, expected);
    } else {
        let gradient = template.grad().expect("a leaf that was used");
        checks.expect("the receiver's template", &gradient, [0.0; 2]);
    }
    checks.verify()
}
