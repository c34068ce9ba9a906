//! The values of PyTorch and JAX that are committed.

use std::path::Path;
use tests::{conformance, with_devices};

fn agrees(path: &str) {
    with_devices(1, || {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
        let report = conformance::run(&data.join(path), None).unwrap();
        assert!(report.failed.is_empty(), "{} differ", report.failed.len());
        assert!(report.passed > 0);
    });
}

#[test]
fn operators_agree_with_pytorch() {
    agrees("torch_ops");
}

#[test]
fn operators_agree_with_pytorch_at_the_edges() {
    agrees("torch_more");
}

#[test]
fn training_runs_agree_with_pytorch() {
    agrees("train");
}

#[test]
fn random_bits_agree_with_jax() {
    agrees("threefry.json");
}
