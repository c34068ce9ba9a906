//! How a process ended, in words.

use std::fmt;

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exit {
    /// What it returned, if it ended by itself.
    pub(crate) code: Option<i32>,
    /// The signal that killed it, if one did.
    pub(crate) signal: Option<i32>,
    /// The last lines that it wrote to its standard error, where that went through here.
    pub(crate) last_words: String,
}

impl Exit {
    /// Whether it ended by itself with code 0.
    pub(crate) fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// The code that a shell gives to such an end.
    pub(crate) fn shell_code(&self) -> i32 {
        match (self.code, self.signal) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 1,
        }
    }
}

impl Exit {
    /// How it ended, without its last words.
    pub(crate) fn manner(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(signal)) => format!("was killed by {}", signal_name(signal)),
            (None, None) => "ended, and something else has taken its exit status".into(),
        }
    }

    /// Its last words, as they follow a sentence.
    pub(crate) fn quote(&self) -> String {
        match self.last_words.as_str() {
            "" => String::new(),
            words => format!("; its last words were:\n{words}"),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.manner(), self.quote())
    }
}

/// A signal's name, or its number where it has none.
pub(crate) fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal)
        .map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_what_a_shell_would() {
        let exit = |code, signal, last_words: &str| Exit {
            code,
            signal,
            last_words: last_words.into(),
        };
        let all = [
            (exit(Some(3), None, ""), 3, "ended with exit code 3"),
            (exit(None, Some(9), ""), 137, "was killed by SIGKILL"),
            (
                exit(None, Some(6), "free(): invalid pointer"),
                134,
                "was killed by SIGABRT; its last words were:\nfree(): invalid pointer",
            ),
        ];
        for (exit, code, text) in all {
            assert_eq!((exit.shell_code(), exit.to_string().as_str()), (code, text));
            assert!(!exit.success());
        }
    }
}
