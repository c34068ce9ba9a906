//! A program for which there is no memory: an error that names who has it, and nothing lost.

use tests::with_env;
use xla::{DType, Error, Tensor};

const N: usize = 1 << 20;

/// 4 MiB of ones, and the line that makes them.
fn ones() -> (Tensor, u32) {
    (Tensor::full([N], 1.0, DType::F32).unwrap(), line!())
}

#[test]
fn a_program_beyond_the_limit_names_the_largest_tensors() {
    let limit = [("CPU_NUM_DEVICES", "1"), ("XLA_MEMORY_LIMIT_MB", "16")];
    with_env(&limit, || {
        let few = Tensor::from_slice(&[3.0f32; 4], [4], ()).unwrap();
        let (large, line) = ones();
        xla::sync().unwrap().wait().unwrap();

        // 32 MiB, of which 16 less 4 are left.
        let eight = large.expand([8, N]).unwrap().add(1.0).unwrap();
        large.add_(2.0).unwrap();
        let error = xla::sync().map(drop).unwrap_err();
        let text = error.to_string();
        let Error::OutOfMemory {
            needed,
            available,
            largest,
            ..
        } = error
        else {
            panic!("{text}")
        };
        assert!(needed >= 32 << 20, "{text}");
        assert!(available.is_some_and(|left| left <= 12 << 20), "{text}");
        assert_eq!(largest.len(), 1, "{text}");
        assert_eq!(
            (&largest[0].shape[..], largest[0].bytes),
            (&[N][..], 4 << 20)
        );
        let location = largest[0].at.location().unwrap();
        assert!(location.file().ends_with("out_of_memory.rs"));
        assert_eq!(location.line(), line);
        assert!(
            text.contains("f32[1048576] (4.0 MiB), made by full"),
            "{text}"
        );

        // The tensor that was to be written over has its value, and the process goes on.
        let wanted = eight.to_vec::<f32>().unwrap_err();
        assert!(matches!(wanted, Error::OutOfMemory { .. }), "{wanted}");
        drop(eight);
        assert_eq!(large.to_vec::<f32>().unwrap(), vec![1.0; N]);
        large.add_(2.0).unwrap();
        assert_eq!(large.to_vec::<f32>().unwrap(), vec![3.0; N]);
        assert_eq!(few.to_vec::<f32>().unwrap(), [3.0; 4]);
    });
}

#[test]
fn more_than_the_machine_has_is_refused_before_it_is_tried() {
    with_env(&[("CPU_NUM_DEVICES", "1")], || {
        let one = Tensor::from_slice(&[1.0f32], [1], ()).unwrap();
        // 4 TiB.
        let huge = one.expand([1_i64 << 40]).unwrap().add(1.0).unwrap();
        let error = xla::sync().map(drop).unwrap_err();
        assert!(
            matches!(
                error,
                Error::OutOfMemory {
                    needed: 0x400_0000_0000..,
                    available: Some(_),
                    ..
                }
            ),
            "{error}"
        );
        drop(huge);
        assert_eq!(one.add(1.0).unwrap().to_vec::<f32>().unwrap(), [2.0]);
    });
}

#[test]
fn what_a_compiled_function_left_behind_is_named_by_its_lines() {
    let limit = [("CPU_NUM_DEVICES", "1"), ("XLA_MEMORY_LIMIT_MB", "16")];
    with_env(&limit, || {
        const LINE: u32 = line!() + 1;
        let mut double = xla::compile_fn(|x: Tensor| x.mul(2.0)?.add(1.0));
        let (x, _) = ones();
        xla::sync().unwrap().wait().unwrap();
        // Recorded and run, and run again without the function.
        drop(double.call(x.clone()).unwrap());
        let kept = double.call(x.clone()).unwrap();
        assert_eq!(double.recordings(), 1);

        let huge = kept.expand([8, N]).unwrap().add(1.0).unwrap();
        let error = xla::sync().map(drop).unwrap_err();
        let text = error.to_string();
        let Error::OutOfMemory { largest, .. } = error else {
            panic!("{text}")
        };
        let lines = largest.iter().map(|t| (t.op, t.at.location()));
        let made: Vec<_> = lines.map(|(op, at)| (op, at.map(|l| l.line()))).collect();
        assert!(made.contains(&("clone", Some(LINE))), "{text}");
        drop(huge);
        assert_eq!(kept.to_vec::<f32>().unwrap(), vec![3.0; N]);
    });
}
