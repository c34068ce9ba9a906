//! Processes that meet, each played by a thread with what its environment would say.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::Duration;

use xla_core::{Error, Result};
use xla_store::environment::external;
use xla_store::{
    LaunchInfo, Rendezvous, Server, ServerOptions, Store, register_rendezvous_handler, rendezvous,
};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn launched(variables: &[(&str, &str)], token: Option<&str>) -> LaunchInfo {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    let lookup = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    LaunchInfo {
        external: external(&lookup).unwrap(),
        token: token.map(str::to_owned),
    }
}

/// A port that was free a moment ago.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// What each of these processes gets, all at once.
fn all<'a>(
    processes: impl IntoIterator<Item = (String, LaunchInfo)> + 'a,
    deadline: Duration,
) -> Vec<Result<Rendezvous>> {
    let threads: Vec<_> = processes
        .into_iter()
        .map(|(url, launch)| std::thread::spawn(move || rendezvous(&url, &launch, deadline)))
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// All have met: they are whom they should be and read what one of them writes.
fn met(results: Vec<Result<Rendezvous>>) -> Vec<Rendezvous> {
    let met: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    for (index, meeting) in met.iter().enumerate() {
        assert_eq!(
            (meeting.process_index, meeting.processes),
            (index, met.len())
        );
        meeting.store.add("sum", 1 << index).unwrap();
    }
    let all = ((1 << met.len()) - 1).to_string();
    for meeting in &met {
        assert_eq!(meeting.store.get("sum", LONG).unwrap(), all.as_bytes());
    }
    met
}

#[test]
fn by_the_environment() {
    let port = free_port();
    let launch = |rank: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "3"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &port),
        ];
        launched(&variables, Some("secret"))
    };
    for url in ["env://", "xla://"] {
        let processes = ["0", "1", "2"].map(|rank| (url.to_owned(), launch(rank)));
        let mut met = met(all(processes, LONG));
        assert!(met[0].is_host() && !met[1].is_host());
        let host = met.remove(0);
        drop(met);
        host.close(LONG);
    }
}

#[test]
fn by_the_launchers_store() {
    let server = Server::bind(&ServerOptions::default().token(Some("t".into()))).unwrap();
    let address = server.address().to_string();
    let launch = |rank: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("XLA_STORE_ADDR", &address),
        ];
        launched(&variables, Some("t"))
    };
    let processes = ["0", "1"].map(|rank| ("xla://".to_owned(), launch(rank)));
    assert!(met(all(processes, LONG)).iter().all(|m| !m.is_host()));
}

#[test]
fn by_an_address() {
    let port = free_port();
    let url = |rank| format!("tcp://127.0.0.1:{port}?rank={rank}&world_size=2");
    met(all(
        [0, 1].map(|rank| (url(rank), LaunchInfo::default())),
        LONG,
    ));
}

#[test]
fn by_a_file_twice_and_over_an_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    // What a run that was killed leaves: an address where nobody is, or somebody else.
    let stranger = Server::bind(&ServerOptions::default().token(None)).unwrap();
    std::fs::write(&path, format!("{} 00ff", stranger.address())).unwrap();
    let url = |rank| format!("file://{}?rank={rank}&world_size=3", path.display());
    for _ in 0..2 {
        met(all(
            [0, 1, 2].map(|rank| (url(rank), LaunchInfo::default())),
            LONG,
        ));
        assert!(!path.exists());
    }
}

#[test]
fn who_is_missing_is_named_on_every_process() {
    let port = free_port();
    let url = |rank| format!("tcp://127.0.0.1:{port}?rank={rank}&world_size=4");
    let here = [0, 2].map(|rank| (url(rank), LaunchInfo::default()));
    for result in all(here, Duration::from_secs(3)) {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
        assert!(error.to_string().contains("in time: 1, 3;"), "{error}");
    }
}

#[test]
fn without_process_zero_it_ends_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let urls = [
        format!("tcp://127.0.0.1:{}?rank=1&world_size=2", free_port()),
        format!("file://{}/f?rank=1&world_size=2", folder.path().display()),
    ];
    for url in urls {
        let alone = rendezvous(&url, &LaunchInfo::default(), Duration::from_millis(300));
        match alone.unwrap_err() {
            Error::Deadline { .. } => {}
            Error::Rendezvous { reason, .. } => assert!(reason.contains("process 0"), "{reason}"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn another_token_and_a_port_in_use_are_errors() {
    let server = Server::bind(&ServerOptions::default().token(Some("t".into()))).unwrap();
    let port = server.address().port();
    let launch = LaunchInfo {
        external: None,
        token: Some("another".into()),
    };
    let url = |rank| format!("tcp://127.0.0.1:{port}?rank={rank}&world_size=2");
    let refused = rendezvous(&url(1), &launch, LONG).unwrap_err();
    assert!(matches!(refused, Error::StoreToken { .. }), "{refused}");
    let taken = rendezvous(&url(0), &launch, LONG).unwrap_err();
    assert!(taken.to_string().contains("another port"), "{taken}");
}

#[test]
fn a_url_that_does_not_say_what_is_needed_is_an_error() {
    for (url, reason) in [
        ("nonsense", "relative URL"),
        ("carrier-pigeon://x", "no method has this scheme"),
        ("tcp://127.0.0.1?rank=0&world_size=1", "no host:port"),
        ("tcp://127.0.0.1:1?world_size=1", "rank"),
        ("tcp://127.0.0.1:1?rank=0", "world size"),
        (
            "tcp://127.0.0.1:1?rank=2&world_size=2",
            "rank 2 is not below",
        ),
        (
            "tcp://127.0.0.1:1?rank=-1&world_size=2",
            "rank=-1 is no whole number",
        ),
        ("env://", "RANK"),
    ] {
        let error = rendezvous(url, &LaunchInfo::default(), LONG).unwrap_err();
        assert!(error.to_string().contains(reason), "{url}: {error}");
    }
}

#[test]
fn a_method_can_be_added_once() {
    let handler = |_: &str, _: &LaunchInfo, _| Ok(Rendezvous::new(Store::local(), 0, 1, None));
    register_rendezvous_handler("pigeon", handler).unwrap();
    assert_eq!(
        met(all([("pigeon://x".into(), LaunchInfo::default())], LONG)).len(),
        1
    );
    for scheme in ["pigeon", "xla", "tcp"] {
        assert!(register_rendezvous_handler(scheme, handler).is_err());
    }
}
