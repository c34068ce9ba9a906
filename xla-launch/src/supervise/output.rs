//! What workers print, line by line, with their names before it.

use crossbeam::channel::{Receiver, bounded};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use xla_core::{Error, Result};

/// A line longer than this is cut, since all of it must be held until its end comes.
const LONGEST_LINE: usize = 1 << 20;

/// As many lines are kept of what a worker printed last.
const LAST_LINES: usize = 20;

/// What the lines of a process with these ranks begin with.
pub(crate) fn prefix(ranks: Range<usize>) -> String {
    match ranks.len() {
        1 => format!("[{}] ", ranks.start),
        _ => format!("[{}-{}] ", ranks.start, ranks.end - 1),
    }
}

/// Where a worker's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    /// This process's standard output.
    Stdout,
    /// This process's standard error.
    Stderr,
}

impl Sink {
    /// Writes whole lines. If nobody reads ours any more, workers should not wait for that: what
    /// they print then goes nowhere.
    fn write(self, lines: &[u8]) {
        let written = match self {
            Sink::Stdout => io::stdout().lock().write_all(lines),
            Sink::Stderr => io::stderr().lock().write_all(lines),
        };
        drop(written);
    }
}

/// A thread that passes on what one pipe of a worker brings.
#[derive(Debug)]
pub(crate) struct Pump {
    done: Receiver<()>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Pump {
    /// Passes `source` on to `sink`, each line behind `prefix`.
    ///
    /// # Errors
    /// [`Error::System`] when there can be no further thread.
    pub(crate) fn start(
        mut source: impl Read + Send + 'static,
        sink: Sink,
        prefix: &str,
    ) -> Result<Self> {
        let (sender, done) = bounded(0);
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let mut lines = Lines::new(prefix, Arc::clone(&last));
        thread::Builder::new()
            .name("output".into())
            .spawn(move || {
                let _done = sender;
                let mut chunk = vec![0; 64 << 10];
                loop {
                    match source.read(&mut chunk) {
                        Ok(0) => break,
                        Ok(n) => sink.write(&lines.push(&chunk[..n])),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
                sink.write(&lines.finish());
            })
            .map_err(|error| Error::system("start a thread", error))?;
        Ok(Pump { done, last })
    }

    /// Waits until everything is passed on, or until `end`: the pipe stays open as long as some
    /// process holds it, and this process's own output may be blocked.
    pub(crate) fn finish(&self, end: Instant) {
        let _ = self.done.recv_deadline(end);
    }

    /// The last lines passed on.
    pub(crate) fn last_lines(&self) -> String {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Cuts a stream of bytes into lines. No byte is lost or changed; a last line without an end gets
/// one, so that another worker's does not continue it.
struct Lines {
    prefix: Vec<u8>,
    pending: Vec<u8>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Lines {
    fn new(prefix: &str, last: Arc<Mutex<VecDeque<String>>>) -> Self {
        Lines {
            prefix: prefix.as_bytes().to_vec(),
            pending: Vec::new(),
            last,
        }
    }

    /// The lines that are complete with these bytes.
    fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.pending.len() >= LONGEST_LINE {
                self.flush(&mut out);
            }
        }
        out
    }

    /// What is left when the stream ends.
    fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.pending.is_empty() {
            self.flush(&mut out);
        }
        out
    }

    fn flush(&mut self, out: &mut Vec<u8>) {
        let line = self.pending.strip_suffix(b"\n").unwrap_or(&self.pending);
        out.extend_from_slice(&self.prefix);
        out.extend_from_slice(line);
        out.push(b'\n');
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(String::from_utf8_lossy(line).into_owned());
        drop(last);
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_on(chunks: &[&[u8]]) -> (Vec<u8>, Vec<String>) {
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let mut lines = Lines::new("[3] ", Arc::clone(&last));
        let mut out: Vec<u8> = chunks.iter().flat_map(|chunk| lines.push(chunk)).collect();
        out.extend(lines.finish());
        let last = last.lock().unwrap().iter().cloned().collect();
        (out, last)
    }

    #[test]
    fn every_line_has_its_prefix_however_the_bytes_come() {
        let text = b"one\n\ntwo \xff\r\nthree";
        let expected = b"[3] one\n[3] \n[3] two \xff\r\n[3] three\n";
        for size in 1..=text.len() {
            let chunks: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(passed_on(&chunks).0, expected, "in pieces of {size}");
        }
        assert_eq!(passed_on(&[]).0, b"");
    }

    #[test]
    fn the_last_lines_are_kept() {
        let text: String = (0..50).map(|i| format!("line {i}\n")).collect();
        let (_, last) = passed_on(&[text.as_bytes()]);
        assert_eq!(last.len(), LAST_LINES);
        assert_eq!(last.last().map(String::as_str), Some("line 49"));
    }

    #[test]
    fn a_line_without_end_is_cut_and_not_lost() {
        let long = vec![b'x'; LONGEST_LINE + 10];
        let (out, _) = passed_on(&[&long]);
        assert_eq!(out.iter().filter(|byte| **byte == b'x').count(), long.len());
    }
}
