//! Compiled programs kept in a folder, seen by clients that share it. Each client behaves as a process
//! of its own would; what needs real processes is in the workspace's integration tests.

mod common;

use common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use xla_runtime::metrics::{Counter, Scope};
use xla_runtime::{
    Client, ClientOptions, CompileOptions, Executable, PersistentCache, Signature, ffi,
};

fn sharing(folder: &Path, devices: usize) -> Client {
    let options = ClientOptions {
        cpu_device_count: Some(devices),
        persistent_cache: Some(PersistentCache {
            folder: folder.to_owned(),
            max_bytes: 1 << 30,
        }),
        ..ClientOptions::default()
    };
    Client::create(&plugin(), &options).unwrap()
}

/// What is in the folder, once nothing is being written any more.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let end = Instant::now() + LONG;
    loop {
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|file| file.unwrap().path())
            .collect();
        let busy = |path: &PathBuf| path.extension().is_none_or(|e| e == "lock");
        if !found.iter().any(busy) {
            found.sort();
            return found;
        }
        assert!(Instant::now() < end, "{found:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `f`'s value, and how often it compiled, loaded and looked in vain.
fn counted<T>(f: impl FnOnce() -> T) -> (T, [u64; 3]) {
    let scope = Scope::new();
    let value = f();
    let counters = [
        Counter::Compile,
        Counter::PersistentCacheHit,
        Counter::PersistentCacheMiss,
    ];
    (value, counters.map(|counter| scope.count(counter)))
}

const COMPILED: [u64; 3] = [1, 0, 1];
const LOADED: [u64; 3] = [0, 1, 0];

fn sum_of(client: &Client, program: &Executable) -> Vec<f32> {
    let (a, b) = (upload(client, &[1.0; 5], 0), upload(client, &[0.5; 5], 0));
    read(&program.execute(&[&a, &b], &on(0)).unwrap().outputs[0])
}

#[test]
fn another_client_loads_what_one_has_compiled() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("made/when/needed");
    for expected in [COMPILED, LOADED, LOADED] {
        let client = sharing(&folder, 1);
        let (program, counts) = counted(|| add(&client, 5, true));
        assert_eq!(counts, expected);
        let (a, b) = (upload(&client, &[1.0; 5], 0), upload(&client, &[0.5; 5], 0));
        let run = program.execute(&[&a, &b], &on(0)).unwrap();
        assert_eq!(read(&run.outputs[0]), [1.5; 5]);
        assert!(a.is_deleted(), "donation is kept");
    }
    assert_eq!(entries(&folder).len(), 1);
    // The compile count of a scope is that of programs made, wherever they came from.
    let scope = Scope::new();
    add(&sharing(&folder, 1), 5, true);
    assert_eq!(scope.compiles(), 1);
}

#[test]
fn what_makes_another_program_is_another_entry() {
    let folder = tempfile::tempdir().unwrap();
    let client = sharing(folder.path(), 2);
    let text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.negate %a : tensor<2xf32>
      return %0 : tensor<2xf32>
    }";
    let signature = Signature {
        inputs: vec![f32s(2)],
        outputs: vec![f32s(2)],
    };
    let on_device = |ordinal| CompileOptions {
        portable: false,
        device_assignment: vec![ordinal],
        ..CompileOptions::default()
    };
    let variants = [
        CompileOptions::default(),
        CompileOptions::default().optimization_level(0),
        on_device(0),
        on_device(1),
    ];
    for expected in [COMPILED, LOADED] {
        for options in &variants {
            let (program, counts) = counted(|| client.compile(text, &signature, options).unwrap());
            assert_eq!(counts, expected);
            assert_eq!(program.devices(), options.device_assignment);
            let device = options.device_assignment.first().copied().unwrap_or(1);
            let a = upload(&client, &[3.0, 4.0], device);
            let run = program.execute(&[&a], &on(device)).unwrap();
            assert_eq!(read(&run.outputs[0]), [-3.0, -4.0]);
        }
    }
    // A dump is asked of the compiler, so it has to run.
    let dumps = tempfile::tempdir().unwrap();
    let mut options = CompileOptions::default();
    options.overrides.insert(
        "xla_dump_to".into(),
        xla_runtime::OptionValue::String(dumps.path().display().to_string()),
    );
    for _ in 0..2 {
        let (_, counts) = counted(|| client.compile(text, &signature, &options).unwrap());
        assert_eq!(counts, [1, 0, 0]);
    }
}

#[test]
fn replicas_and_custom_calls_are_kept_too() {
    fn twice(call: &mut ffi::Call<'_>) {
        let (inputs, outputs) = call.buffers();
        for (to, from) in outputs[0].bytes.iter_mut().zip(inputs[0].bytes) {
            *to = 2 * from;
        }
    }
    ffi::register(&plugin(), "disk_cache_twice", twice).unwrap();
    let call = "func.func @main(%a: tensor<3xui8>) -> tensor<3xui8> {
      %0 = stablehlo.custom_call @disk_cache_twice(%a)
          {has_side_effect = true, api_version = 4 : i32} : (tensor<3xui8>) -> tensor<3xui8>
      return %0 : tensor<3xui8>
    }";
    let bytes = ty(xla_core::DType::U8, &[3]);
    let call_signature = Signature {
        inputs: vec![bytes.clone()],
        outputs: vec![bytes],
    };
    let reduce = r#"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = "stablehlo.all_reduce"(%a) ({
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %s = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }"#;
    let reduce_signature = Signature {
        inputs: vec![f32s(2)],
        outputs: vec![f32s(2)],
    };
    let folder = tempfile::tempdir().unwrap();
    for expected in [COMPILED, LOADED] {
        let client = sharing(folder.path(), 2);
        let options = CompileOptions::default();
        let (program, counts) =
            counted(|| client.compile(call, &call_signature, &options).unwrap());
        assert_eq!(counts, expected);
        let x = xla_core::Literal::from_vec(vec![1u8, 2, 3], [3]).unwrap();
        let x = client.upload_owned(x, 0).unwrap();
        let y = program.execute(&[&x], &on(0)).unwrap().outputs[0]
            .to_literal(LONG)
            .unwrap();
        assert_eq!(y.to_vec::<u8>().unwrap(), [2, 4, 6]);

        let options = CompileOptions::replicated(2);
        let (program, counts) =
            counted(|| client.compile(reduce, &reduce_signature, &options).unwrap());
        assert_eq!(counts, expected);
        assert_eq!(program.devices(), [0, 1]);
        let (a, b) = (
            upload(&client, &[1.0, 2.0], 0),
            upload(&client, &[10.0, 20.0], 1),
        );
        let launch = xla_runtime::ExecuteOptions {
            launch_id: 1,
            ..on(0)
        };
        for run in program
            .execute_sharded(&[vec![&a], vec![&b]], &launch)
            .unwrap()
        {
            assert_eq!(read(&run.outputs[0]), [11.0, 22.0]);
        }
    }
}

#[test]
fn damaged_entries_are_compiled_anew_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    add(&sharing(folder.path(), 1), 5, false);
    let [entry] = entries(folder.path()).try_into().unwrap();
    let good = fs::read(&entry).unwrap();
    let flipped = |position: usize| {
        let mut bytes = good.clone();
        bytes[position] ^= 1;
        bytes
    };
    let bad = [
        Vec::new(),
        b"junk".to_vec(),
        good[..good.len() / 2].to_vec(),
        flipped(7),              // another version of the entry's form
        flipped(8),              // another program's entry
        flipped(40 + 7),         // another version of the executable's envelope
        flipped(40 + 8),         // another build of the plugin
        flipped(good.len() - 1), // one bit of machine code
    ];
    for bytes in bad {
        fs::write(&entry, bytes).unwrap();
        let client = sharing(folder.path(), 1);
        let (program, counts) = counted(|| add(&client, 5, false));
        assert_eq!(counts, COMPILED);
        assert_eq!(sum_of(&client, &program), [1.5; 5]);
        drop((program, client));
        // Its turn comes when the entry is written.
        let (_, counts) = counted(|| add(&sharing(folder.path(), 1), 5, false));
        assert_eq!(counts, LOADED, "the entry is good again");
    }
    assert_eq!(entries(folder.path()), [entry]);
}

#[test]
fn a_folder_that_cannot_be_used_costs_no_run() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "the user's").unwrap();
    for folder in [file.clone(), file.join("below"), "/proc/nowhere".into()] {
        let client = sharing(&folder, 1);
        for _ in 0..2 {
            let (program, counts) = counted(|| add(&client, 5, false));
            assert_eq!(counts, COMPILED);
            assert_eq!(sum_of(&client, &program), [1.5; 5]);
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "the user's");
    // An entry that is no file.
    let folder = tempfile::tempdir().unwrap();
    add(&sharing(folder.path(), 1), 5, false);
    let [entry] = entries(folder.path()).try_into().unwrap();
    fs::remove_file(&entry).unwrap();
    fs::create_dir(&entry).unwrap();
    let client = sharing(folder.path(), 1);
    assert_eq!(sum_of(&client, &add(&client, 5, false)), [1.5; 5]);
}

#[test]
fn a_small_cache_keeps_what_was_used_last() {
    let folder = tempfile::tempdir().unwrap();
    add(&sharing(folder.path(), 1), 64, false);
    let size = fs::metadata(&entries(folder.path())[0]).unwrap().len();
    // Room for two, and a little, since entries differ by a few bytes.
    let options = ClientOptions {
        cpu_device_count: Some(1),
        persistent_cache: Some(PersistentCache {
            folder: folder.path().to_owned(),
            max_bytes: 2 * size + size / 2,
        }),
        ..ClientOptions::default()
    };
    let made = |n: usize| {
        let client = Client::create(&plugin(), &options).unwrap();
        let counts = counted(|| add(&client, n, false)).1;
        eprintln!(
            "{n} {:?} {:?}",
            client.devices(),
            client.global_device_count()
        );
        entries(folder.path());
        counts
    };
    let now = SystemTime::now();
    let age = |seconds: u64| {
        for entry in entries(folder.path()) {
            let file = fs::File::options().write(true).open(entry).unwrap();
            let used = file.metadata().unwrap().modified().unwrap();
            file.set_modified(used.min(now - Duration::from_secs(seconds)))
                .unwrap();
        }
    };
    age(200);
    assert_eq!(made(128), COMPILED);
    age(100);
    assert_eq!(made(64), LOADED);
    assert_eq!(made(192), COMPILED);
    assert_eq!(entries(folder.path()).len(), 2);
    assert_eq!(made(64), LOADED, "used after 128");
    assert_eq!(made(128), COMPILED, "made room for 192");
}
