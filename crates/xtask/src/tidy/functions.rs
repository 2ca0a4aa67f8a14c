//! A function fits on a screen: at most 70 lines of code. Comments are free, so that none is dropped for the limit.

use super::{Report, source, tree::Tree};

/// The most lines of code between a function's braces.
const LENGTH_MAX: usize = 70;

/// Longer functions that are still to be divided, each with path and name. A line without its function is refused, so
/// the list can only shrink.
const LONG: &str = "crates/xtask/src/tidy/long.txt";

pub fn long(tree: &Tree) -> Report {
    let mut report = Report::default();
    let lines = tree.text(LONG).lines().filter(|line| !line.starts_with('#'));
    let mut awaited: Vec<_> = lines.filter_map(|line| line.split_once(' ')).collect();
    for (path, text) in tree.ending(&[".rs"]) {
        for function in source::functions(&source::code(text)) {
            report.looked += 1;
            if function.length <= LENGTH_MAX {
                continue;
            }
            let place = awaited.iter().position(|it| *it == (path, function.name));
            if let Some(place) = place {
                awaited.remove(place);
            } else {
                let source::Function { name, line, length } = function;
                report
                    .findings
                    .push(format!("{path}:{line}: {name} has {length} lines of code; at most {LENGTH_MAX}"));
            }
        }
    }
    let gone = awaited
        .into_iter()
        .map(|(path, name)| format!("{path}: {name} is not long any more: remove it from {LONG}"));
    report.findings.extend(gone);
    report
}

#[cfg(test)]
use super::tests::{Sample, bad, good};

/// A function of 71 lines of code.
#[cfg(test)]
const FUNCTION: &str = concat!("fn long() {\n    // Why.\n\n", include_str!("long_body.txt"), "}\n");

#[cfg(test)]
pub const SAMPLES: &[Sample] = &[
    good("functions", &[("a.rs", "fn short() {\n}\n")]),
    good("functions", &[("a.rs", FUNCTION), (LONG, "# Why.\na.rs long\n")]),
    bad("functions", &[("a.rs", FUNCTION)], "a.rs:1: long has 71 lines of code; at most 70"),
    bad("functions", &[("a.rs", FUNCTION), ("b.rs", FUNCTION), (LONG, "b.rs long\n")], "a.rs:1"),
    bad("functions", &[("a.rs", "fn short() {\n}\n"), (LONG, "a.rs short\n")], "short is not long any more"),
];
