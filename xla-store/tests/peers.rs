//! Peers that die, stop, or were never friends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use xla_core::Error;
use xla_store::{ConnectOptions, Event, Membership, Server, ServerOptions, Store};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Set in a child: the server's address, or [`HOST`].
const CHILD: &str = "XLA_STORE_TEST_CHILD";

/// In place of an address: the child hosts the server itself, for two members of its own.
const HOST: &str = "host";

fn server(token: Option<&str>) -> Server {
    let options = ServerOptions::default().token(token.map(str::to_owned));
    Server::bind(&options).unwrap()
}

fn connect(address: &str, token: Option<&str>) -> Result<Store, Error> {
    let options = ConnectOptions::default().deadline(LONG);
    Store::connect(address, &options.token(token.map(str::to_owned)))
}

fn client(server: &Server) -> Store {
    connect(&server.address().to_string(), None).unwrap()
}

fn join(store: &Store, member: usize) -> (Membership, Receiver<Event>) {
    let (send, receive) = channel();
    let membership = store.join("scope", member, 3, move |event| drop(send.send(event)));
    (membership.unwrap(), receive)
}

/// A process of this test, killed when dropped.
struct Process {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Process {
    /// Starts one and waits until it has joined.
    fn start(role: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_child", "--nocapture"])
            .env(CHILD, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = Box::new(lines.map_while(Result::ok));
        let mut process = Process { child, lines };
        process.says("joined");
        process
    }

    /// Waits for a line with this in it, and returns the line.
    fn says(&mut self, text: &str) -> String {
        self.lines.find(|line| line.contains(text)).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a child runs; nothing in the parent.
#[test]
fn the_child() {
    let Ok(role) = std::env::var(CHILD) else {
        return;
    };
    if role == HOST {
        let server = server(None);
        let store = client(&server);
        let ((zero, _), (_one, to_one)) = (join(&store, 0), join(&store, 1));
        println!("joined");
        let event = to_one.recv_timeout(Duration::from_secs(10));
        println!("event: {event:?}");
        zero.send(b"well").unwrap();
        println!("event: {:?}", to_one.recv_timeout(LONG));
    } else {
        let store = connect(&role, None).unwrap();
        let (membership, events) = join(&store, 2);
        membership.send(b"ready").unwrap();
        println!("joined");
        println!("event: {:?}", events.recv_timeout(LONG));
    }
}

/// The reason for which both others are told that the child failed, and how long that took.
fn told(child: &Process, signal: Signal, events: &[Receiver<Event>]) -> (String, Duration) {
    for events in events {
        let ready = Event::Message {
            from: 2,
            bytes: b"ready".to_vec(),
        };
        assert_eq!(events.recv_timeout(LONG), Ok(ready));
    }
    let start = Instant::now();
    child.signal(signal);
    let mut reasons: Vec<_> = events
        .iter()
        .map(|events| match events.recv_timeout(LONG) {
            Ok(Event::Failed { member: 2, reason }) => reason,
            other => panic!("{other:?}"),
        })
        .collect();
    reasons.dedup();
    assert_eq!(reasons.len(), 1);
    (reasons.remove(0), start.elapsed())
}

#[test]
fn a_killed_process_has_failed_at_once() {
    let server = server(None);
    let store = client(&server);
    let (_zero, to_zero) = join(&store, 0);
    let (_one, to_one) = join(&store, 1);
    let child = Process::start(&server.address().to_string());
    let (reason, took) = told(&child, Signal::KILL, &[to_zero, to_one]);
    assert!(reason.contains("the process ended"), "{reason}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_stopped_process_has_failed_within_seven_seconds_and_learns_it() {
    let server = server(None);
    let store = client(&server);
    let (_zero, to_zero) = join(&store, 0);
    let (_one, to_one) = join(&store, 1);
    let mut child = Process::start(&server.address().to_string());
    let (reason, took) = told(&child, Signal::STOP, &[to_zero, to_one]);
    assert!(reason.contains("no sign of life for 5s"), "{reason}");
    assert!(took > Duration::from_secs(3), "{took:?}");
    assert!(took < Duration::from_secs(7), "{took:?}");
    child.signal(Signal::CONT);
    let event = child.says("event");
    assert!(
        event.contains("Lost") && event.contains("no sign of life"),
        "{event}"
    );
    // It is out: its place is not taken again, and the scope goes on without it.
    assert!(store.join("scope", 2, 3, |_| {}).is_err());
}

/// As when all of a run is suspended from the terminal: nobody is missed when it goes on.
#[test]
fn a_pause_of_all_is_no_death() {
    let mut child = Process::start(HOST);
    child.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(7));
    child.signal(Signal::CONT);
    let event = child.says("event");
    assert!(event.contains("Timeout"), "{event}");
    let event = child.says("event");
    assert!(event.contains("Message"), "{event}");
}

#[test]
fn a_wrong_or_missing_token_is_an_error_and_the_server_goes_on() {
    let guarded = server(Some("right"));
    let address = guarded.address().to_string();
    for (token, reason) in [
        (Some("wrong"), "is not the store's"),
        (Some("right "), "is not the store's"),
        (None, "this process has none"),
    ] {
        match connect(&address, token) {
            Err(error @ Error::StoreToken { .. }) => {
                assert!(error.to_string().contains(reason), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    connect(&address, Some("right"))
        .unwrap()
        .set("k", b"")
        .unwrap();
    let open = server(None);
    let error = connect(&open.address().to_string(), Some("right")).unwrap_err();
    assert!(error.to_string().contains("the store has none"), "{error}");
}

#[test]
fn garbage_harms_only_who_sends_it() {
    let server = server(None);
    let store = client(&server);
    store.set("k", b"v").unwrap();
    let hostile: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4096],
        // A handshake of the greatest length, of which nothing comes.
        &[0xff, 0xff, 0xff, 0x7f],
        &[],
    ];
    let mut kept = Vec::new();
    for bytes in hostile.iter().cycle().take(40) {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.write_all(bytes);
        kept.push(stream);
    }
    assert_eq!(store.get("k", LONG).unwrap(), b"v");
    for mut stream in kept {
        // Each gets the server's greeting and then the end, those that say nothing too.
        let mut greeting = Vec::new();
        let _ = stream.read_to_end(&mut greeting);
        assert!(greeting.len() < 100);
    }
    assert_eq!(store.get("k", LONG).unwrap(), b"v");
}

#[test]
fn what_is_too_long_is_refused_before_it_is_sent() {
    let server = server(None);
    for store in [client(&server), Store::local()] {
        let long = vec![0; xla_store::MAX_VALUE + 1];
        let key = "k".repeat(xla_store::MAX_KEY + 1);
        for result in [store.set("k", &long), store.set(&key, b"")] {
            assert!(matches!(result, Err(Error::Store { .. })), "{result:?}");
        }
        let (member, _) = join(&store, 0);
        assert!(member.send(&long).is_err());
        assert!(member.send(b"short").is_ok());
        store.set("k", &long[1..]).unwrap();
        assert_eq!(store.get("k", LONG).unwrap().len(), xla_store::MAX_VALUE);
    }
}

#[test]
fn a_member_that_does_not_read_fails_and_holds_nobody_up() {
    let server = server(None);
    for store in [client(&server), Store::local()] {
        let (zero, _) = join(&store, 0);
        let (_one, to_one) = join(&store, 1);
        let (release, held) = channel::<()>();
        let held = std::sync::Mutex::new(held);
        let stuck = store.join("scope", 2, 3, move |_| {
            let _ = held.lock().unwrap().recv_timeout(LONG);
        });
        let message = vec![1; 8 << 20];
        let start = Instant::now();
        let mut sent = 0;
        let failed = loop {
            zero.send(&message).unwrap();
            sent += 1;
            assert!(sent < 100, "nobody noticed");
            match to_one.recv_timeout(LONG).unwrap() {
                Event::Message { from: 0, .. } => {}
                Event::Failed { member: 2, reason } => break reason,
                other => panic!("{other:?}"),
            }
        };
        assert!(failed.contains("does not read"), "{failed}");
        assert!(start.elapsed() < LONG);
        drop(release);
        drop(stuck);
    }
}

#[test]
fn a_port_in_use_is_an_error() {
    let first = server(None);
    let options = ServerOptions::default().address(first.address());
    match Server::bind(&options) {
        Err(Error::Store { reason, advice, .. }) => {
            assert!(reason.contains("in use"), "{reason}");
            assert!(advice.contains("another port"), "{advice}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_there_is_an_error_at_the_deadline() {
    let address = server(None).address().to_string();
    let options = ConnectOptions::default().deadline(Duration::from_millis(200));
    let error = Store::connect(&address, &options).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn a_host_that_closes_waits_for_the_others() {
    let server = server(None);
    let store = client(&server);
    let (membership, events) = join(&store, 0);
    let closed = std::thread::spawn(move || server.close(LONG));
    std::thread::sleep(Duration::from_millis(200));
    store.set("still", b"there").unwrap();
    assert!(!closed.is_finished());
    membership.leave();
    drop((membership, store));
    closed.join().unwrap();
    assert!(events.try_recv().is_err());
}
