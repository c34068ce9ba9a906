//! What the tests of the runtime share: the real CPU plugin and small programs.
#![allow(dead_code)] // each test binary uses a part

use std::time::Duration;
use xla_core::{Config, DType, Literal, Shape};
use xla_runtime::{
    Buffer, Client, ClientOptions, CompileOptions, Executable, ExecuteOptions, Plugin, Signature,
};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The plugin that the environment leads to. Without one the tests fail.
pub(crate) fn plugin() -> Plugin {
    let config = Config::from_lookup(|name| std::env::var(name).ok()).unwrap();
    Plugin::load(&Plugin::find(&config).unwrap()).unwrap()
}

pub(crate) fn client(devices: usize) -> Client {
    let options = ClientOptions {
        cpu_device_count: Some(devices),
        ..ClientOptions::default()
    };
    Client::create(&plugin(), &options).unwrap()
}

pub(crate) fn ty(dtype: DType, dims: &[usize]) -> (DType, Shape) {
    (dtype, Shape::new(dims))
}

pub(crate) fn f32s(n: usize) -> (DType, Shape) {
    ty(DType::F32, &[n])
}

/// `a + b` on vectors of `n`; the first argument's memory becomes the result's if `donate`.
pub(crate) fn add(client: &Client, n: usize, donate: bool) -> Executable {
    let attribute = if donate {
        " {tf.aliasing_output = 0 : i32}"
    } else {
        ""
    };
    let text = format!(
        "module @add {{
           func.func @main(%a: tensor<{n}xf32>{attribute}, %b: tensor<{n}xf32>) -> tensor<{n}xf32> {{
             %0 = stablehlo.add %a, %b : tensor<{n}xf32>
             return %0 : tensor<{n}xf32>
           }}
         }}"
    );
    let signature = Signature {
        inputs: vec![f32s(n), f32s(n)],
        outputs: vec![f32s(n)],
    };
    let options = CompileOptions {
        donated: if donate { vec![0] } else { vec![] },
        ..CompileOptions::default()
    };
    client.compile(&text, &signature, &options).unwrap()
}

/// A product of two square matrices of ones: slow, with a known result.
pub(crate) fn matmul(client: &Client, n: usize) -> Executable {
    let m = format!("tensor<{n}x{n}xf32>");
    let text = format!(
        "func.func @main(%a: {m}) -> {m} {{
           %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : ({m}, {m}) -> {m}
           return %0 : {m}
         }}"
    );
    let matrix = ty(DType::F32, &[n, n]);
    let signature = Signature {
        inputs: vec![matrix.clone()],
        outputs: vec![matrix],
    };
    client
        .compile(&text, &signature, &CompileOptions::default())
        .unwrap()
}

pub(crate) fn upload(client: &Client, data: &[f32], device: usize) -> Buffer {
    let literal = Literal::from_slice(data, [data.len()]).unwrap();
    client.upload_owned(literal, device).unwrap()
}

pub(crate) fn read(buffer: &Buffer) -> Vec<f32> {
    buffer.to_literal(LONG).unwrap().to_vec().unwrap()
}

pub(crate) fn on(device: usize) -> ExecuteOptions<'static> {
    ExecuteOptions {
        device,
        ..ExecuteOptions::default()
    }
}
