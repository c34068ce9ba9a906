//! Rust source as tokens, enough to see which items of a crate it names.
//!
//! Comments and the contents of literals are not tokens. Macros are not expanded and paths not
//! resolved: what this finds is what a reader sees.

/// A file's tokens.
pub(super) struct Code {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    /// An identifier, `::`, or one character.
    text: String,
    /// Counted from 1.
    line: usize,
}

/// An item of a crate, by the first path segment after the crate's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// Empty if the crate itself is named, as in `use xla_runtime as rt`.
    pub(super) segment: String,
    pub(super) line: usize,
    /// Named by a `use` with any `pub`.
    pub(super) reexported: bool,
}

impl Code {
    pub(super) fn new(source: &str) -> Code {
        Code {
            tokens: tokens(source),
        }
    }

    /// The line of the first `unsafe`.
    pub(super) fn first_unsafe(&self) -> Option<usize> {
        let token = self.tokens.iter().find(|token| token.text == "unsafe")?;
        Some(token.line)
    }

    /// Whether the crate attribute `#![level(unsafe_code)]` is there, alone or in a list.
    pub(super) fn restricts_unsafe(&self, level: &str) -> bool {
        let texts: Vec<&str> = self
            .tokens
            .iter()
            .map(|token| token.text.as_str())
            .collect();
        let start = ["#", "!", "[", level, "("];
        texts
            .windows(start.len())
            .enumerate()
            .any(|(index, window)| {
                let lints = texts[index..].iter().skip(start.len());
                window == start
                    && lints
                        .take_while(|text| **text != ")")
                        .any(|text| *text == "unsafe_code")
            })
    }

    /// Every place where something of the crate `root` is named by a path that starts there.
    pub(super) fn named_of(&self, root: &str) -> Vec<Named> {
        let mut named = Vec::new();
        for index in 0..self.tokens.len() {
            if self.text(index) != root || !self.starts_path(index) {
                continue;
            }
            let reexported = self.is_reexport(index);
            let mut add = |at: usize, segment: &str| {
                named.push(Named {
                    segment: segment.to_owned(),
                    line: self.tokens[at].line,
                    reexported,
                });
            };
            match (self.text(index + 1), self.text(index + 2)) {
                ("::", "{") => {
                    for first in self.group(index + 2) {
                        add(first, self.text(first));
                    }
                }
                ("::", segment) => add((index + 2).min(self.tokens.len() - 1), segment),
                _ => add(index, ""),
            }
        }
        named
    }

    /// The token's text, empty outside the file.
    fn text(&self, index: usize) -> &str {
        self.tokens
            .get(index)
            .map_or("", |token| token.text.as_str())
    }

    /// Whether a path starts at `index`, with or without a leading `::`; a field, or a segment
    /// further inside a path, is something else of the same name.
    fn starts_path(&self, index: usize) -> bool {
        let before = |distance: usize| index.checked_sub(distance).map_or("", |at| self.text(at));
        match before(1) {
            "." => false,
            // `<A>::name` goes on with a path; `-> ::name` and `=> ::name` start one.
            "::" if before(2) == ">" => matches!(before(3), "-" | "="),
            "::" => !is_name(before(2)),
            _ => true,
        }
    }

    /// Whether the statement that `index` is in is a `use` with a visibility.
    fn is_reexport(&self, index: usize) -> bool {
        let statement = self.tokens[..index].iter().rev();
        let words: Vec<&str> = statement
            .map(|token| token.text.as_str())
            .take_while(|text| !matches!(*text, ";" | "}" | "]"))
            .collect();
        let used = words.iter().position(|text| *text == "use");
        // `)` ends a restricted visibility such as `pub(crate)`.
        used.is_some_and(|used| matches!(words.get(used + 1), Some(&("pub" | ")"))))
    }

    /// The first tokens of the elements of the group that opens at `open`.
    fn group(&self, open: usize) -> Vec<usize> {
        let mut firsts = Vec::new();
        let mut depth = 0_usize;
        let mut expected = false;
        for index in open..self.tokens.len() {
            match self.text(index) {
                "{" => {
                    depth += 1;
                    expected = depth == 1;
                }
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                "," if depth == 1 => expected = true,
                _ if expected => {
                    firsts.push(index);
                    expected = false;
                }
                _ => {}
            }
        }
        firsts
    }
}

fn is_name(text: &str) -> bool {
    // `use ::std` and `return ::std::…` have a keyword before the path, not a segment.
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
        && !matches!(
            text,
            "use"
                | "return"
                | "in"
                | "as"
                | "dyn"
                | "impl"
                | "mut"
                | "else"
                | "match"
                | "for"
                | "pub"
        )
}

/// Splits source into tokens, leaving out comments and the contents of literals.
fn tokens(source: &str) -> Vec<Token> {
    let characters: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let (mut index, mut line) = (0, 1);
    while index < characters.len() {
        let rest = &characters[index..];
        let (length, text) = next(rest);
        if let Some(text) = text {
            tokens.push(Token { text, line });
        }
        line += rest[..length]
            .iter()
            .filter(|character| **character == '\n')
            .count();
        index += length;
    }
    tokens
}

/// The length of what `rest` starts with, at least 1, and its text if it is a token.
fn next(rest: &[char]) -> (usize, Option<String>) {
    if let Some(length) = raw_string(rest) {
        return (length, None);
    }
    match (rest[0], rest.get(1)) {
        ('/', Some('/')) => (until(rest, |rest| rest[0] == '\n'), None),
        ('/', Some('*')) => (block_comment(rest), None),
        ('"', _) => (quoted(rest, '"'), None),
        ('\'', Some('\\')) => (quoted(rest, '\''), None),
        ('\'', Some(_)) if rest.get(2) == Some(&'\'') => (3, None),
        (':', Some(':')) => (2, Some("::".to_owned())),
        (first, _) if first.is_whitespace() => (1, None),
        (first, _) if first.is_alphanumeric() || first == '_' => {
            let length = until(rest, |rest| !(rest[0].is_alphanumeric() || rest[0] == '_'));
            (length, Some(rest[..length].iter().collect()))
        }
        (first, _) => (1, Some(first.to_string())),
    }
}

/// How many characters come before the first place where `end` holds.
fn until(rest: &[char], end: impl Fn(&[char]) -> bool) -> usize {
    (0..rest.len())
        .find(|&at| end(&rest[at..]))
        .unwrap_or(rest.len())
}

/// The length of a literal in quotes with backslash escapes.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The length of a block comment; they nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < rest.len() {
        match (rest[at], rest.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    break;
                }
            }
            _ => at += 1,
        }
    }
    at.min(rest.len())
}

/// The length of a raw string with its prefix, if `rest` starts with one.
fn raw_string(rest: &[char]) -> Option<usize> {
    let prefix = match (rest[0], rest.get(1)) {
        ('r', _) => 1,
        ('b' | 'c', Some('r')) => 2,
        _ => return None,
    };
    let hashes = rest[prefix..]
        .iter()
        .take_while(|character| **character == '#')
        .count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let body = &rest[open + 1..];
    let closes = |rest: &[char]| {
        rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|c| *c == '#')
    };
    Some((open + 1 + until(body, closes) + 1 + hashes).min(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(source: &str, root: &str) -> Vec<(usize, String)> {
        let named = Code::new(source).named_of(root);
        named
            .into_iter()
            .map(|named| (named.line, named.segment))
            .collect()
    }

    fn segments(source: &str) -> Vec<String> {
        named(source, "rt")
            .into_iter()
            .map(|(_, segment)| segment)
            .collect()
    }

    #[test]
    fn every_way_to_name_an_item_is_seen() {
        assert_eq!(segments("use rt::Buffer;"), ["Buffer"]);
        assert_eq!(segments("use ::rt::Buffer;"), ["Buffer"]);
        assert_eq!(
            segments("fn f(b: &rt::Buffer) -> ::rt::Event {}"),
            ["Buffer", "Event"]
        );
        assert_eq!(
            segments("use rt::{context, metrics::{self, X}, Buffer as B};"),
            ["context", "metrics", "Buffer"]
        );
        assert_eq!(segments("use {rt::Client, other::rt::Not};"), ["Client"]);
        assert_eq!(segments("use rt::*;"), ["*"]);
        assert_eq!(segments("use rt as other; extern crate rt;"), ["", ""]);
        assert_eq!(segments("rt :: Client"), ["Client"]);
    }

    #[test]
    fn what_only_looks_like_it_is_not() {
        assert_eq!(
            segments("self.rt; a::rt::B; <A>::rt::B; start; rt_else::B"),
            [""; 0]
        );
        assert_eq!(
            segments("// rt::A\n/* rt::B /* rt::C */ rt::D */ //! rt::E"),
            [""; 0]
        );
        assert_eq!(
            segments("\"rt::A \\\" rt::B\" r#\"rt::C \" rt::D\"# b\"rt::E\" br\"rt::F\""),
            [""; 0]
        );
    }

    #[test]
    fn literals_end_where_they_end() {
        assert_eq!(segments("'\"' rt::A '\\'' rt::B '\"'"), ["A", "B"]);
        assert_eq!(segments("fn f<'a>(x: &'a rt::A, y: &'a str) {}"), ["A"]);
        assert_eq!(segments("r#type rt::A \"\\\\\" rt::B"), ["A", "B"]);
        assert_eq!(segments("let quote = b'\"'; rt::A"), ["A"]);
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let source = "/* a\nb */\nlet s = \"x\ny\";\n// c\nuse rt::{\n    A,\n    B,\n};\n";
        assert_eq!(
            named(source, "rt"),
            [(7, "A".to_owned()), (8, "B".to_owned())]
        );
    }

    #[test]
    fn a_re_export_is_told_from_a_use() {
        let reexported = |source: &str| Code::new(source).named_of("rt")[0].reexported;
        assert!(reexported("use a::b; pub use rt::A;"));
        assert!(reexported("#[doc(inline)]\npub(crate) use rt::{A};"));
        assert!(reexported("pub use {rt::A};"));
        assert!(!reexported("use rt::A;"));
        assert!(!reexported("pub fn f(a: rt::A) {}"));
        assert!(!reexported("pub struct S { a: u8 } use rt::A;"));
        assert!(!reexported("pub mod m { use rt::A; }"));
    }

    #[test]
    fn only_the_attribute_forbids_unsafe() {
        let forbids = |source: &str| Code::new(source).restricts_unsafe("forbid");
        assert!(forbids("//! Doc.\n\n#![forbid(unsafe_code)]\n"));
        assert!(forbids("#![forbid(missing_docs, unsafe_code)]"));
        assert!(!forbids("// #![forbid(unsafe_code)]"));
        assert!(!forbids("//! `#![forbid(unsafe_code)]`"));
        assert!(!forbids("#![deny(unsafe_code)]"));
        assert!(!forbids("#![forbid(missing_docs)] fn unsafe_code() {}"));
        assert!(Code::new("#![deny(unsafe_code)]").restricts_unsafe("deny"));
    }

    #[test]
    fn unsafe_code_is_found() {
        let line = |source: &str| Code::new(source).first_unsafe();
        assert_eq!(
            line("// unsafe\n#![deny(unsafe_code)]\nunsafe fn f() {}"),
            Some(3)
        );
        assert_eq!(line("fn f() { g(\"unsafe\") }"), None);
    }
}
