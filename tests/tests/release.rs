//! The process's client can be given up, and what the library keeps of it does not stand in the way.

use std::time::Duration;
use tests::with_devices;
use xla::{Device, Tensor};
use xla_core::Error;
use xla_runtime::Client;

const LONG: Duration = Duration::from_secs(30);

fn tensor(values: [f32; 2]) -> Tensor {
    Tensor::from_slice(&values, [2], ()).unwrap()
}

#[test]
fn only_live_tensors_keep_the_client() {
    with_devices(2, || {
        let x = tensor([1.0, 2.0]);
        // Computed, pending and dead, and read; on both devices.
        let far = x.to(Device::new(1)).unwrap().mul(3.0).unwrap();
        assert_eq!(far.to_vec::<f32>().unwrap(), [3.0, 6.0]);
        drop((x.exp().unwrap(), far));
        let pending = x.add(1.0).unwrap();
        match Client::release_global(LONG) {
            Err(Error::Launch { reason, advice }) => {
                assert!(reason.contains("in use"), "{reason}");
                assert!(advice.contains("drop all tensors"), "{advice}");
            }
            other => panic!("{other:?}"),
        }
        // Refused, so both are what they were.
        assert_eq!(pending.to_vec::<f32>().unwrap(), [2.0, 3.0]);
        assert_eq!(
            x.add(&pending).unwrap().to_vec::<f32>().unwrap(),
            [3.0, 5.0]
        );
        drop((x, pending));
        for round in 0..3 {
            Client::release_global(LONG).unwrap();
            let y = tensor([round as f32, 1.0]).mul(2.0).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [2.0 * round as f32, 2.0]);
        }
    });
}

#[test]
fn random_numbers_go_on_where_they_were() {
    with_devices(1, || {
        let draw = || {
            let drawn = Tensor::rand([4], ()).unwrap();
            drawn.to_vec::<f32>().unwrap()
        };
        xla::manual_seed(7).unwrap();
        let expected = [draw(), draw(), draw()];
        xla::manual_seed(7).unwrap();
        let first = draw();
        Client::release_global(LONG).unwrap();
        let second = draw();
        Client::release_global(LONG).unwrap();
        assert_eq!([first, second, draw()], expected);
        Client::release_global(LONG).unwrap();
        xla::manual_seed(7).unwrap();
        assert_eq!(draw(), expected[0]);
    });
}
