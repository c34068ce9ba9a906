//! Which processor this is: machine code made for one may not run on another.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// What the kernel says of the first processor that bears on the choice of instructions, by the names
/// that it uses on x86 and on ARM.
const TELLING: [&str; 10] = [
    "vendor_id",
    "cpu family",
    "model",
    "flags",
    "Features",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "isa",
];

/// The processor's kind and its features; `None` where the system does not say. Another machine with
/// the same text runs the same machine code.
pub(super) fn processor() -> Option<String> {
    let lines = BufReader::new(File::open("/proc/cpuinfo").ok()?).lines();
    describe(lines.map_while(Result::ok))
}

/// The telling lines of the first processor. The rest of the file is not read: it grows with the
/// number of cores, and holds numbers that change by the second.
fn describe(lines: impl Iterator<Item = String>) -> Option<String> {
    let mut text = String::from(std::env::consts::ARCH);
    let empty = text.len();
    for line in lines.take_while(|line| !line.trim().is_empty()) {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if TELLING.contains(&name.trim()) {
            text.push('\n');
            text.push_str(value.trim());
        }
    }
    (text.len() > empty).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Option<String> {
        describe(text.lines().map(str::to_owned))
    }

    #[test]
    fn kind_and_features_of_the_first_processor_count() {
        let one = "vendor_id\t: X\nmodel\t\t: 7\nmodel name\t: n\ncpu MHz\t: 1.0\nflags\t: a b\n";
        let text = described(one).unwrap();
        assert!(text.ends_with("\nX\n7\na b"), "{text}");
        assert_eq!(described(&format!("{one}\nvendor_id: Y\n")), Some(text));
        assert_eq!(described("cpu MHz: 1.0\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_one_is_known() {
        assert_eq!(processor(), processor());
        assert!(processor().is_some());
    }
}
