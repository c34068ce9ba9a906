//! The store's contract, held by the server's and by the one in the process alike.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use xla_core::Error;
use xla_store::{ConnectOptions, Event, Membership, Server, ServerOptions, Store};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

fn server() -> Server {
    Server::bind(&ServerOptions::default().token(None)).unwrap()
}

fn client(server: &Server) -> Store {
    let options = ConnectOptions::default().deadline(LONG).token(None);
    Store::connect(&server.address().to_string(), &options).unwrap()
}

/// Runs a test over TCP and in the process.
fn both(test: impl Fn(&Store)) {
    let server = server();
    test(&client(&server));
    test(&Store::local());
}

fn join(store: &Store, member: usize, size: usize) -> (Membership, Receiver<Event>) {
    let (send, receive) = channel();
    let membership = store.join("scope", member, size, move |event| drop(send.send(event)));
    (membership.unwrap(), receive)
}

fn message(from: usize, bytes: &[u8]) -> Event {
    let bytes = bytes.to_vec();
    Event::Message { from, bytes }
}

#[test]
fn values_counters_and_keys() {
    both(|store| {
        assert_eq!(store.try_get("a").unwrap(), None);
        store.set("a", b"1").unwrap();
        store.set("a", b"\0\xff").unwrap();
        assert_eq!(store.get("a", LONG).unwrap(), b"\0\xff");
        assert_eq!(store.add("n", 5).unwrap(), 5);
        assert_eq!(store.add("n", -7).unwrap(), -2);
        assert_eq!(store.get("n", LONG).unwrap(), b"-2");
        assert!(matches!(store.add("a", 1), Err(Error::Store { .. })));
        store.set("big", i64::MAX.to_string().as_bytes()).unwrap();
        assert!(store.add("big", 1).is_err());
        let inner = store.prefixed("p").prefixed("q");
        inner.set("x", b"").unwrap();
        inner.set("y", b"").unwrap();
        store.set("p0", b"").unwrap();
        assert_eq!(store.keys("p/").unwrap(), ["p/q/x", "p/q/y"]);
        assert_eq!(inner.keys("").unwrap(), ["x", "y"]);
        assert!(inner.delete("x").unwrap());
        assert!(!inner.delete("x").unwrap());
        assert_eq!(store.keys("p/").unwrap(), ["p/q/y"]);
    });
}

#[test]
fn compare_and_set_has_one_winner() {
    both(|store| {
        let results: Vec<_> = std::thread::scope(|scope| {
            let race = |i: u8| move || store.compare_and_set("leader", None, &[i]).unwrap();
            let racers: Vec<_> = (0..8).map(|i| scope.spawn(race(i))).collect();
            racers
                .into_iter()
                .map(|racer| racer.join().unwrap())
                .collect()
        });
        let winner = store.try_get("leader").unwrap();
        assert!(winner.is_some());
        assert!(results.iter().all(|result| *result == winner));
        let none = store.compare_and_set("absent", Some(b"x"), b"y").unwrap();
        assert_eq!((none, store.try_get("absent").unwrap()), (None, None));
        let swapped = store.compare_and_set("leader", winner.as_deref(), b"next");
        assert_eq!(swapped.unwrap().as_deref(), Some(&b"next"[..]));
    });
}

#[test]
fn what_is_not_set_in_time_is_an_error_that_names_it() {
    both(|store| {
        store.set("here", b"").unwrap();
        let short = Duration::from_millis(50);
        let waited = store.prefixed("p").wait(&["here", "there"], short);
        let text = waited.unwrap_err().to_string();
        assert!(text.contains(r#"["here", "there"]"#), "{text}");
        match store.get("there", short) {
            Err(Error::Deadline { what, after, .. }) => {
                assert!(what.contains("there"), "{what}");
                assert_eq!(after, short);
            }
            other => panic!("{other:?}"),
        }
        store.wait(&["here"], short).unwrap();
    });
}

#[test]
fn a_get_that_waits_keeps_no_other_thread_from_setting() {
    both(|store| {
        std::thread::scope(|scope| {
            let got = scope.spawn(|| store.get("late", LONG));
            std::thread::sleep(Duration::from_millis(50));
            store.set("other", b"").unwrap();
            store.set("late", b"now").unwrap();
            assert_eq!(got.join().unwrap().unwrap(), b"now");
        });
    });
}

#[test]
fn sixty_four_clients_count_and_meet() {
    let server = server();
    let started = Barrier::new(64);
    std::thread::scope(|scope| {
        for i in 0..64 {
            let (server, started) = (&server, &started);
            scope.spawn(move || {
                let store = client(server);
                started.wait();
                for _ in 0..10 {
                    store.add("count", 1).unwrap();
                }
                store.set(&format!("done/{i}"), &[]).unwrap();
                let names: Vec<String> = (0..64).map(|i| format!("done/{i}")).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                store.wait(&names, LONG).unwrap();
                assert_eq!(store.get("count", LONG).unwrap(), b"640");
            });
        }
    });
}

#[test]
fn messages_come_in_order_also_those_from_before() {
    both(|store| {
        let (zero, to_zero) = join(store, 0, 2);
        for i in 0..100_u8 {
            zero.send(&[i]).unwrap();
        }
        let (one, to_one) = join(store, 1, 2);
        zero.send(b"last").unwrap();
        for i in 0..100 {
            assert_eq!(to_one.recv_timeout(LONG), Ok(message(0, &[i])));
        }
        assert_eq!(to_one.recv_timeout(LONG), Ok(message(0, b"last")));
        one.send(b"back").unwrap();
        assert_eq!(to_zero.recv_timeout(LONG), Ok(message(1, b"back")));
        one.leave();
        assert_eq!(to_zero.recv_timeout(LONG), Ok(Event::Left { member: 1 }));
        zero.leave();
        assert!(zero.send(b"").is_err());
    });
}

#[test]
fn a_failure_reaches_all_those_to_come_included() {
    both(|store| {
        let (zero, _) = join(store, 0, 3);
        let (_one, to_one) = join(store, 1, 3);
        zero.send(b"soon").unwrap();
        zero.fail("loss is NaN");
        let (_two, to_two) = join(store, 2, 3);
        let failed = Event::Failed {
            member: 0,
            reason: "loss is NaN".into(),
        };
        for events in [to_one, to_two] {
            assert_eq!(events.recv_timeout(LONG), Ok(message(0, b"soon")));
            assert_eq!(events.recv_timeout(LONG), Ok(failed.clone()));
        }
    });
}

#[test]
fn a_membership_dropped_without_leaving_counts_as_failed() {
    both(|store| {
        let (zero, _) = join(store, 0, 2);
        let (_one, to_one) = join(store, 1, 2);
        drop(zero);
        let event = to_one.recv_timeout(LONG).unwrap();
        assert!(
            matches!(event, Event::Failed { member: 0, .. }),
            "{event:?}"
        );
    });
}

#[test]
fn a_member_joins_once_and_all_agree_on_their_number() {
    both(|store| {
        let (_zero, _) = join(store, 0, 2);
        for (member, size, reason) in [
            (0, 2, "has joined before"),
            (1, 3, "has 2 members, not 3"),
            (2, 2, "member 2 of 2"),
        ] {
            let error = store.join("scope", member, size, |_| {}).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
        // Another scope is another matter.
        store
            .prefixed("p")
            .join("scope", 0, 3, |_| {})
            .unwrap()
            .leave();
    });
}

#[test]
fn a_handler_that_panics_fails_its_member_alone() {
    both(|store| {
        let zero = store.join("scope", 0, 2, |event| {
            assert!(matches!(event, Event::Lost { .. }), "boom");
        });
        let (one, to_one) = join(store, 1, 2);
        one.send(b"hello").unwrap();
        let event = to_one.recv_timeout(LONG).unwrap();
        assert!(
            matches!(event, Event::Failed { member: 0, .. }),
            "{event:?}"
        );
        drop(zero);
    });
}

#[test]
fn leaving_from_the_handler_does_not_wait_for_itself() {
    both(|store| {
        let own: Arc<std::sync::OnceLock<Membership>> = Arc::default();
        let within = Arc::clone(&own);
        let zero = store.join("scope", 0, 2, move |_| {
            if let Some(own) = within.get() {
                own.leave();
            }
        });
        own.set(zero.unwrap()).unwrap();
        let (one, to_one) = join(store, 1, 2);
        let start = Instant::now();
        one.send(b"go").unwrap();
        assert_eq!(to_one.recv_timeout(LONG), Ok(Event::Left { member: 0 }));
        assert!(start.elapsed() < LONG);
    });
}

#[test]
fn a_server_that_ends_is_lost_to_members_and_an_error_to_callers() {
    let server = server();
    let store = client(&server);
    let (zero, to_zero) = join(&store, 0, 2);
    let (_one, _) = join(&store, 1, 2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("never", LONG));
        std::thread::sleep(Duration::from_millis(100));
        drop(server);
        assert!(matches!(waiting.join().unwrap(), Err(Error::Store { .. })));
    });
    let event = to_zero.recv_timeout(LONG).unwrap();
    assert!(matches!(event, Event::Lost { .. }), "{event:?}");
    assert!(matches!(zero.send(b""), Err(Error::Store { .. })));
    assert!(matches!(store.set("a", b""), Err(Error::Store { .. })));
}
