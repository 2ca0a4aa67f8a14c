//! Words that the project does not use, and the width of comments.

use super::{Report, source, tree::Tree};

/// The longest line of a comment, in characters. `rustfmt` keeps code shorter, and does not touch comments.
const LINE_MAX: usize = 120;

/// Words that the project does not use, and what stands in their place.
const WORDS: [(&str, &str); 31] = [
    ("can not", "cannot"),
    ("for ever", "forever"),
    ("anew", "again"),
    ("afresh", "again"),
    ("in vain", "without success"),
    ("vainly", "without success"),
    ("unasked", "unsolicited"),
    ("unbidden", "unsolicited"),
    ("whoever", "the subject's name, as \"a replica that\""),
    ("whomever", "the subject's name"),
    ("whosoever", "the subject's name"),
    ("upon", "on"),
    ("whilst", "while"),
    ("amongst", "among"),
    ("hitherto", "until now"),
    ("henceforth", "from now on"),
    ("thereof", "of it"),
    ("thereby", "by that"),
    ("whereby", "by which"),
    ("whereupon", "and then"),
    ("utilize", "use"),
    ("obviously", "nothing: it says nothing"),
    ("actually", "nothing: it says nothing"),
    ("takes it that", "assumes"),
    ("takes note", "the verb, as \"records that\""),
    ("take note", "the verb, as \"record that\""),
    ("taking note", "the verb, as \"recording that\""),
    ("took note", "the verb, as \"recorded that\""),
    ("so many", "\"this many\", or the number's name"),
    ("blacklist", "the list's purpose"),
    // Pages that are no part of the project.
    ("design.md", "a page of this project"),
];

/// A comment that begins so has a question for its subject.
const BEGINNINGS: [&str; 3] = ["/// Who ", "//! Who ", "// Who "];

/// The file that names what it refuses.
const OWN: &str = "xtask/src/tidy/words.rs";

pub fn refused(tree: &Tree) -> Report {
    let mut report = Report::default();
    for (path, text) in tree.ending(&[".rs", ".md", ".txt", ".py"]).filter(|(path, _)| !path.ends_with(OWN)) {
        for (line, number) in text.lines().zip(1..) {
            report.looked += 1;
            if let Some(why) = refusal(line) {
                report.findings.push(format!("{path}:{number}: {why}"));
            }
        }
    }
    report
}

fn refusal(line: &str) -> Option<String> {
    let lower = line.to_lowercase();
    let word = WORDS.iter().find(|(word, _)| source::words(&lower, word).next().is_some());
    if let Some((word, better)) = word {
        return Some(format!("\"{word}\": write {better}"));
    }
    let beginning = BEGINNINGS.iter().any(|beginning| line.trim_start().starts_with(beginning));
    beginning.then(|| "a subject in place of \"Who\"".to_owned())
}

/// Code in strings may be as long as its text; a row of a table has to be one line.
pub fn widths(tree: &Tree) -> Report {
    let mut report = Report::default();
    for (path, text) in tree.ending(&[".rs"]) {
        for (line, number) in text.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with("//")) {
            let length = line.chars().count();
            let is_table = ["/// |", "//! |"].iter().any(|row| line.trim_start().starts_with(row));
            report.looked += 1;
            if length > LINE_MAX && !is_table {
                report.findings.push(format!("{path}:{number}: {length} columns; at most {LINE_MAX}"));
            }
        }
    }
    report
}

#[cfg(test)]
use super::tests::{Sample, bad, good};

#[cfg(test)]
pub const SAMPLES: &[Sample] = &[
    good("words", &[("a.md", "A scan note; begin_anew."), ("a.toml", "anew")]),
    bad("words", &[("a.md", "Good.\nIt Can not.")], "a.md:2: \"can not\": write cannot"),
    bad("words", &[("a.rs", "// whoever leads")], "\"whoever\""),
    bad("words", &[("a.rs", "    /// Who leads.")], "a subject"),
    bad("words", &[("a.rs", "/// Takes note that it is durable.")], "a.rs:1: \"takes note\": write the verb"),
    bad("words", &[("a.md", "It is sent after so many slots.")], "\"this many\""),
    good("words", &[("a.md", "It takes notes of this many slots, and not many more.")]),
    good("comments", &[("a.rs", concat!("// short\n//! | ", include_str!("wide.txt")))]),
    bad(
        "comments",
        &[("a.rs", concat!("a\n    // ", include_str!("wide.txt")))],
        "a.rs:2: 127 columns; at most 120",
    ),
];
