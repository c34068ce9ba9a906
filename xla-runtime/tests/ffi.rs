//! Custom calls: Rust functions that programs of the real plugin call.

mod common;

use common::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;
use xla_core::{DType, Error, Literal, Shape};
use xla_runtime::ffi::{self, Call};
use xla_runtime::{Client, CompileOptions, Executable, ExecuteOptions, Signature};

/// As StableHLO writes the dtype.
fn mlir(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "i1",
        DType::U8 => "ui8",
        DType::U16 => "ui16",
        DType::U32 => "ui32",
        DType::U64 => "ui64",
        other => other.name(),
    }
}

fn tensor(dtype: DType, dims: &[usize]) -> String {
    let dims: String = dims.iter().map(|d| format!("{d}x")).collect();
    format!("tensor<{dims}{}>", mlir(dtype))
}

/// A dtype and lengths along axes.
type Ty<'a> = (DType, &'a [usize]);

/// One call from `input` to `output`, with these attributes.
fn program(
    client: &Client,
    name: &str,
    attributes: &str,
    (input, output): (Ty<'_>, Ty<'_>),
    options: &CompileOptions,
) -> Executable {
    let (a, b) = (tensor(input.0, input.1), tensor(output.0, output.1));
    let text = format!(
        "func.func @main(%a: {a}) -> {b} {{
           %0 = stablehlo.custom_call @{name}(%a) {{
             has_side_effect = true, api_version = 4 : i32, backend_config = {{{attributes}}}
           }} : ({a}) -> {b}
           return %0 : {b}
         }}"
    );
    let signature = Signature {
        inputs: vec![ty(input.0, input.1)],
        outputs: vec![ty(output.0, output.1)],
    };
    client.compile(&text, &signature, options).unwrap()
}

fn run(client: &Client, program: &Executable, input: Literal) -> Literal {
    let input = client.upload_owned(input, 0).unwrap();
    let run = program.execute(&[&input], &on(0)).unwrap();
    run.outputs[0].to_literal(LONG).unwrap()
}

/// The type of an argument or result, as a handler is shown it.
type Shown = (DType, Vec<i64>);

/// The types of the one argument and the one result of each call.
static SEEN: Mutex<Vec<[Shown; 2]>> = Mutex::new(Vec::new());

/// The elements in reverse order.
fn reverse(call: &mut Call<'_>) {
    let (inputs, outputs) = call.buffers();
    let (from, to) = (&inputs[0], &mut outputs[0]);
    let types = [
        (from.dtype, from.dims.to_vec()),
        (to.dtype, to.dims.to_vec()),
    ];
    SEEN.lock().unwrap().push(types);
    let size = from.dtype.size();
    let elements = from.bytes.chunks_exact(size).rev();
    for (to, from) in to.bytes.chunks_exact_mut(size).zip(elements) {
        to.copy_from_slice(from);
    }
}

#[test]
fn values_of_every_dtype_go_in_and_come_out() {
    let client = client(1);
    ffi::register(client.plugin(), "test_reverse", reverse).unwrap();
    for dtype in DType::ALL {
        let types = ((dtype, &[2, 3][..]), (dtype, &[3, 2][..]));
        let program = program(
            &client,
            "test_reverse",
            "",
            types,
            &CompileOptions::default(),
        );
        let numbers = |v: [i32; 6], dims: [usize; 2]| {
            Literal::from_vec(v.to_vec(), dims).unwrap().cast(dtype)
        };
        let reversed = run(&client, &program, numbers([0, 1, 2, 3, 0, 5], [2, 3]));
        let expected = numbers([5, 0, 3, 2, 1, 0], [3, 2]);
        assert_eq!(reversed.dtype(), dtype);
        assert_eq!(reversed.shape(), expected.shape());
        assert_eq!(reversed.bytes(), expected.bytes(), "{dtype}");
        let seen = SEEN.lock().unwrap().pop().unwrap();
        assert_eq!(seen, [(dtype, vec![2, 3]), (dtype, vec![3, 2])]);
    }
    // Without elements, and without axes.
    for dims in [&[0, 3][..], &[]] {
        let types = ((DType::F32, dims), (DType::F32, dims));
        let program = program(
            &client,
            "test_reverse",
            "",
            types,
            &CompileOptions::default(),
        );
        let numel: usize = dims.iter().product();
        let input = Literal::from_vec(vec![7.0f32; numel], Shape::new(dims)).unwrap();
        let output = run(&client, &program, input);
        assert_eq!(output.to_vec::<f32>().unwrap(), vec![7.0; numel]);
        let seen = SEEN.lock().unwrap().pop().unwrap();
        let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        assert_eq!(seen, [(DType::F32, dims.clone()), (DType::F32, dims)]);
    }
}

/// Checks the attributes that the test gives.
fn attributes(call: &mut Call<'_>) {
    let right = call.attribute_i64("k") == Some(-7)
        && call.attribute_i64s("v") == Some(&[1, -2, 1 << 40])
        && call.attribute_i64s("none") == Some(&[])
        && call.attribute_str("s") == Some("grüße")
        && call.attribute_bool("yes") == Some(true)
        && call.attribute_bool("no") == Some(false)
        // What is not there, or something else.
        && call.attribute_i64("missing").is_none()
        && call.attribute_i64("s").is_none()
        && call.attribute_i64("narrow").is_none()
        && call.attribute_i64s("floats").is_none()
        && call.attribute_str("k").is_none()
        && call.attribute_bool("k").is_none()
        && call.attribute_str("inner").is_none();
    call.outputs()[0].bytes[0] = u8::from(right);
}

#[test]
fn attributes_are_read_by_name_and_type() {
    let client = client(1);
    ffi::register(client.plugin(), "test_attributes", attributes).unwrap();
    let text = "k = -7 : i64, v = array<i64: 1, -2, 1099511627776>, none = array<i64>, \
                s = \"grüße\", yes = true, no = false, narrow = 3 : i32, \
                floats = array<f32: 1.0>, inner = {x = 1 : i64}";
    let types = ((DType::F32, &[1][..]), (DType::Bool, &[1][..]));
    let program = program(
        &client,
        "test_attributes",
        text,
        types,
        &CompileOptions::default(),
    );
    let input = Literal::from_vec(vec![0.0f32], [1]).unwrap();
    let right = run(&client, &program, input);
    assert_eq!(right.to_vec::<bool>().unwrap(), [true]);
}

/// A barrier with a deadline.
struct Meeting {
    came: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    const fn new() -> Self {
        Meeting {
            came: Mutex::new(0),
            changed: Condvar::new(),
        }
    }

    /// Whether everybody of this round has come in time.
    fn meet(&self, members: usize) -> bool {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        let wanted = came.div_ceil(members) * members;
        self.changed.notify_all();
        let waited = self
            .changed
            .wait_timeout_while(came, Duration::from_secs(20), |came| *came < wanted)
            .unwrap();
        !waited.1.timed_out()
    }
}

/// Waits until all four replicas are here; then 1000 times the device, and the run id.
fn meet(call: &mut Call<'_>) {
    static MEETING: Meeting = Meeting::new();
    let met = MEETING.meet(4);
    let numbers = [call.device_ordinal() as i64 * 1000, call.run_id()];
    for (to, number) in call.outputs()[0].bytes.chunks_exact_mut(8).zip(numbers) {
        to.copy_from_slice(&if met { number } else { -1 }.to_ne_bytes());
    }
}

#[test]
fn handlers_of_four_replicas_meet() {
    let client = client(4);
    ffi::register(client.plugin(), "test_meet", meet).unwrap();
    let types = ((DType::F32, &[1][..]), (DType::I64, &[2][..]));
    let program = program(
        &client,
        "test_meet",
        "",
        types,
        &CompileOptions::replicated(4),
    );
    thread::scope(|scope| {
        for device in 0..4 {
            let (client, program) = (&client, &program);
            scope.spawn(move || {
                let input = upload(client, &[0.0], device);
                for launch_id in 1..=50 {
                    let launch = ExecuteOptions {
                        device,
                        launch_id,
                        non_donatable: &[],
                    };
                    let run = program.execute(&[&input], &launch).unwrap();
                    let seen = run.outputs[0].to_literal(LONG).unwrap();
                    assert_eq!(
                        seen.to_vec::<i64>().unwrap(),
                        [device as i64 * 1000, i64::from(launch_id)]
                    );
                }
            });
        }
    });
}

/// Says whether the call of the other device came, too.
fn meet_another(call: &mut Call<'_>) {
    static MEETING: Meeting = Meeting::new();
    call.outputs()[0].bytes[0] = u8::from(MEETING.meet(2));
}

/// Collectives that wait for other processes depend on it: groups of this process's devices may start
/// their programs in any order.
#[test]
fn programs_of_one_device_do_not_wait_for_other_devices() {
    let client = client(2);
    ffi::register(client.plugin(), "test_meet_another", meet_another).unwrap();
    let types = ((DType::F32, &[1][..]), (DType::Bool, &[1][..]));
    let options = CompileOptions::default();
    let one = program(&client, "test_meet_another", "", types, &options);
    thread::scope(|scope| {
        for device in 0..2 {
            let (client, one) = (&client, &one);
            scope.spawn(move || {
                let input = upload(client, &[0.0], device);
                for step in 0..20 {
                    let launch = ExecuteOptions {
                        device,
                        launch_id: 100 * (device as i32 + 1) + step,
                        non_donatable: &[],
                    };
                    let run = one.execute(&[&input], &launch).unwrap();
                    let met = run.outputs[0].to_literal(LONG).unwrap();
                    assert_eq!(met.to_vec::<bool>().unwrap(), [true], "{device} {step}");
                }
            });
        }
    });
}

/// Fills half of its output, then panics at its first call.
fn careless(call: &mut Call<'_>) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let first = CALLS.fetch_add(1, Ordering::Relaxed) == 0;
    call.outputs()[0].bytes.fill(0xff);
    assert!(!first, "as the test asks");
    call.outputs()[0].bytes.fill(1);
}

#[test]
fn a_panic_leaves_zeros_and_an_intact_process() {
    let client = client(1);
    ffi::register(client.plugin(), "test_careless", careless).unwrap();
    let types = ((DType::F32, &[1][..]), (DType::U8, &[3][..]));
    let program = program(
        &client,
        "test_careless",
        "",
        types,
        &CompileOptions::default(),
    );
    for expected in [[0u8; 3], [1; 3]] {
        let input = Literal::from_vec(vec![0.0f32], [1]).unwrap();
        let output = run(&client, &program, input);
        assert_eq!(output.to_vec::<u8>().unwrap(), expected);
    }
}

fn nothing(_: &mut Call<'_>) {}

#[test]
fn a_name_belongs_to_one_function() {
    let plugin = plugin();
    ffi::register(&plugin, "test_taken", reverse).unwrap();
    ffi::register(&plugin, "test_taken", reverse).unwrap();
    match ffi::register(&plugin, "test_taken", nothing) {
        Err(Error::Argument { argument, got, .. }) => {
            assert_eq!((argument, got.as_str()), ("name", "test_taken"));
        }
        other => panic!("{other:?}"),
    }
}

static CALLED: AtomicUsize = AtomicUsize::new(0);

fn counted(_: &mut Call<'_>) {
    CALLED.fetch_add(1, Ordering::Relaxed);
}

/// What a handler could not be shown as Rust references is an error of the execution.
#[test]
fn what_no_handler_may_see_is_an_error() {
    let client = client(1);
    ffi::register(client.plugin(), "test_counted", counted).unwrap();
    let vector = "tensor<4xf32>";
    let shared = format!(
        "func.func @main(%a: {vector}) -> {vector} {{
           %b = stablehlo.add %a, %a : {vector}
           %0 = stablehlo.custom_call @test_counted(%b) {{
             has_side_effect = true, api_version = 4 : i32,
             output_operand_aliases = [#stablehlo.output_operand_alias<
               output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]
           }} : ({vector}) -> {vector}
           return %0 : {vector}
         }}"
    );
    let complex = format!(
        "func.func @main(%a: {vector}) -> {vector} {{
           %b = stablehlo.complex %a, %a : tensor<4xcomplex<f32>>
           %0 = stablehlo.custom_call @test_counted(%b) {{
             has_side_effect = true, api_version = 4 : i32
           }} : (tensor<4xcomplex<f32>>) -> {vector}
           return %0 : {vector}
         }}"
    );
    let signature = Signature {
        inputs: vec![f32s(4)],
        outputs: vec![f32s(4)],
    };
    for text in [shared, complex] {
        let program = client
            .compile(&text, &signature, &CompileOptions::default())
            .unwrap();
        let input = upload(&client, &[1.0; 4], 0);
        let outcome = program
            .execute(&[&input], &on(0))
            .and_then(|run| run.outputs[0].to_literal(LONG));
        match outcome {
            Err(Error::Pjrt { message, .. }) => {
                assert!(message.contains("custom call"), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(CALLED.load(Ordering::Relaxed), 0);
}
