//! A process that ends, in the way its argument says, while its device still computes: run by
//! `tests/process.rs`. Its exit status says whether the end waited: 7 if so, 8 if not.

#[path = "mod.rs"]
mod common;

use common::*;
use std::sync::OnceLock;
use xla_core::Literal;
use xla_runtime::Event;

static LAST: OnceLock<Event> = OnceLock::new();

extern "C" fn report() {
    let waited = LAST.get().is_some_and(|e| matches!(e.is_ready(), Ok(true)));
    // SAFETY: ends the process at once; there is no state to keep.
    unsafe { libc::_exit(if waited { 7 } else { 8 }) };
}

fn main() {
    let how = std::env::args().nth(1).unwrap_or_default();
    // Exit handlers run last to first: this one after the client's, which is to wait, and before the
    // destructors that the plugin registers when it is loaded.
    plugin();
    // SAFETY: a plain function without arguments that does not unwind.
    assert_eq!(unsafe { libc::atexit(report) }, 0);
    let client = client(1);
    let n = 2048;
    let program = matmul(&client, n);
    let ones = Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap();
    let ones = client.upload_owned(ones, 0).unwrap();
    let run = program.execute(&[&ones], &on(0)).unwrap();
    assert!(!run.done.is_ready().unwrap());
    println!("still computing");
    LAST.set(run.done).unwrap();
    match how.as_str() {
        "return" => {}
        "exit" => std::process::exit(0),
        _ => panic!("as asked"),
    }
}
