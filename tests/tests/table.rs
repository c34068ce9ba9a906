//! What `device()` and its relatives answer in each mode, with four CPU devices.

use tests::{with_devices, with_env};
use xla::{Device, Error, Launcher, dist};

/// `device()`, `devices()`, `real_devices()`, `device_count()`, rank and world size.
type Row = (Device, Vec<String>, Vec<String>, usize, usize, usize);

/// The column of the table that the caller is in.
fn row() -> xla::Result<Row> {
    Ok((
        xla::device()?,
        xla::devices()?.iter().map(ToString::to_string).collect(),
        xla::real_devices()?
            .iter()
            .map(ToString::to_string)
            .collect(),
        xla::device_count()?,
        dist::get_rank()?,
        dist::get_world_size()?,
    ))
}

fn expected(rank: usize, world_size: usize) -> Row {
    let names = |prefix| (0..4).map(|i| format!("{prefix}:{i}")).collect();
    (
        Device::new(rank),
        names("xla"),
        names("CPU"),
        4,
        rank,
        world_size,
    )
}

#[test]
fn outside_a_launch() {
    with_devices(4, || assert_eq!(row().unwrap(), expected(0, 1)));
}

#[test]
fn inside_a_launch() {
    with_devices(4, || {
        let rows = Launcher::new()
            .run(|rank| row().map(|row| (rank, row)))
            .unwrap();
        assert_eq!(rows.len(), 4);
        for (i, (rank, row)) in rows.into_iter().enumerate() {
            assert_eq!(rank, i);
            assert_eq!(row, expected(i, 4));
        }
    });
}

#[test]
fn in_debug_mode_by_option() {
    with_devices(4, || {
        let caller = std::thread::current().id();
        let rows = Launcher::new()
            .debug_single_process(true)
            .run(|rank| row().map(|row| (rank, std::thread::current().id(), row)))
            .unwrap();
        assert_eq!(rows, [(0, caller, expected(0, 1))]);
    });
}

#[test]
fn in_debug_mode_by_environment() {
    with_env(
        &[("CPU_NUM_DEVICES", "4"), ("XLA_LAUNCH_MODE", "debug")],
        || {
            assert_eq!(Launcher::new().run(|_| row()).unwrap(), [expected(0, 1)]);
            let threads = Launcher::new()
                .debug_single_process(false)
                .run(|_| row())
                .unwrap();
            assert_eq!(threads.len(), 4);
        },
    );
}

#[test]
fn before_between_and_after_launches() {
    with_devices(4, || {
        assert_eq!(xla::devices().unwrap().len(), 4);
        for _ in 0..2 {
            let ranks =
                Launcher::new().run(|rank| xla::device().map(|d| (rank, d.ordinal().unwrap())));
            assert_eq!(ranks.unwrap(), [(0, 0), (1, 1), (2, 2), (3, 3)]);
            assert_eq!(row().unwrap(), expected(0, 1));
        }
    });
}

#[test]
fn some_of_the_devices() {
    with_devices(4, || {
        let rows = Launcher::new().devices(2).run(|_| row()).unwrap();
        assert_eq!(rows, [expected(0, 2), expected(1, 2)]);
    });
}

#[test]
fn devices_that_do_not_exist() {
    with_devices(4, || {
        assert_eq!(xla::device_at(3).unwrap(), Device::new(3));
        let missing = xla::device_at(10);
        assert!(
            matches!(
                missing,
                Err(Error::NoSuchDevice {
                    asked: 10,
                    count: 4
                })
            ),
            "{missing:?}"
        );
        let many = Launcher::new().devices(5).run(|_| Ok::<_, Error>(()));
        assert!(
            matches!(many, Err(Error::NoSuchDevice { asked: 4, count: 4 })),
            "{many:?}"
        );
        let none = Launcher::new().devices(0).run(|_| Ok::<_, Error>(()));
        assert!(
            matches!(
                none,
                Err(Error::Argument {
                    argument: "devices",
                    ..
                })
            ),
            "{none:?}"
        );
    });
}

#[test]
fn an_unknown_kind_of_device() {
    with_env(&[("PJRT_DEVICE", "ABACUS")], || {
        for failed in [
            xla::device().map(drop),
            xla::devices().map(drop),
            xla::launch(|_| Ok::<_, Error>(())),
        ] {
            match failed {
                Err(Error::Config {
                    name: "PJRT_DEVICE",
                    got,
                    ..
                }) => assert_eq!(got, "ABACUS"),
                other => panic!("{other:?}"),
            }
        }
    });
}
