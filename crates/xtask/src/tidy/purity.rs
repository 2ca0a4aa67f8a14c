//! Pure crates: the same inputs give the same outputs, on every replica and in every run of a seed. They have no clock,
//! file, socket, thread, process or environment, and no order that depends on a random hash.
//!
//! An exception says why, in a comment above the line: `// Impure: REASON`. It excuses the one statement below it.

use super::{Report, source, tree::Tree};

/// Crates that compute, and whose sources without tests are looked at.
const PURE: [&str; 6] = ["wire", "model", "consensus", "replica", "host", "kv"];

/// Paths that a pure crate does not name, each with everything below it.
const IMPURE: [&str; 11] = [
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::env",
    "std::fs",
    "std::hash::RandomState",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// Modules that are named with what is taken of them, so that the check sees it.
const WHOLE: [&str; 3] = ["std::collections", "std::time", "std::time::self"];

/// What reads a map or a set in the order of its hashes.
const ORDERS: [&str; 10] = [
    "iter",
    "iter_mut",
    "into_iter",
    "keys",
    "into_keys",
    "values",
    "values_mut",
    "into_values",
    "drain",
    "retain",
];

/// What a comment with an exception begins with.
const EXCEPTION: &str = "// Impure: ";

pub fn impure(tree: &Tree) -> Report {
    let mut report = Report::default();
    for room in PURE {
        for (path, text, code) in source::shipped(tree, room) {
            report.looked += 1;
            let mut exceptions = exceptions(text);
            for (line, what) in standard(&code).into_iter().chain(random_orders(&code)) {
                // A statement with several is excused as a whole.
                match exceptions.iter_mut().find(|(excused, _)| *excused == line) {
                    Some((_, used)) => *used = true,
                    None => report
                        .findings
                        .push(format!("{path}:{line}: {what} in a pure crate, without \"{EXCEPTION}WHY\"")),
                }
            }
            let unused = exceptions.iter().filter(|(_, used)| !used);
            report
                .findings
                .extend(unused.map(|(line, _)| format!("{path}:{line}: nothing here is impure any more")));
        }
    }
    report
}

/// The lines that exceptions excuse, none of them used yet.
fn exceptions(text: &str) -> Vec<(usize, bool)> {
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    let begun = (0..lines.len()).filter(|at| lines[*at].starts_with(EXCEPTION));
    let excused = begun
        .map(|at| (at + lines[at..].iter().take_while(|line| line.starts_with("//")).count() + 1, false));
    excused.collect()
}

/// What a file names of the standard library that is not pure, each with its line.
fn standard(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in source::words(code, "std") {
        let mut paths = Vec::new();
        leaves("", &mut &code[at..], &mut paths);
        let impure = paths.into_iter().filter(|path| {
            let is_below = |whole: &str| path == whole || path.starts_with(&format!("{whole}::"));
            IMPURE.iter().any(|it| is_below(it)) || WHOLE.contains(&path.as_str())
        });
        found.extend(impure.map(|path| (source::line_of(code, at), path)));
    }
    found
}

/// Reads a path, or a tree of paths as in `use std::{fmt, io::{self, Read}}`, and adds each path to its end.
fn leaves(start: &str, code: &mut &str, found: &mut Vec<String>) {
    let name: String = code.chars().take_while(|it| source::in_word(*it)).collect();
    *code = code[name.len()..].trim_start();
    let path = if start.is_empty() { name } else { format!("{start}::{name}") };
    let Some(rest) = code.strip_prefix("::") else {
        found.push(path);
        return;
    };
    *code = rest.trim_start();
    let Some(rest) = code.strip_prefix('{') else {
        // Generic arguments and a star end a path.
        if code.starts_with(source::in_word) {
            leaves(&path, code, found)
        } else {
            found.push(path)
        }
        return;
    };
    *code = rest.trim_start();
    while !code.is_empty() && !code.starts_with('}') {
        let before = code.len();
        leaves(&path, code, found);
        // `as` with a name, and the comma.
        let skipped = code.find([',', '}']).unwrap_or(code.len());
        *code = code[skipped..].trim_start_matches(',').trim_start();
        if code.len() == before {
            return;
        }
    }
    *code = code.strip_prefix('}').unwrap_or(code).trim_start();
}

/// Where a file reads one of its own randomly hashed maps or sets in the order of their hashes.
fn random_orders(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for name in random_maps(code) {
        for at in source::words(code, name) {
            let rest = &code[at + name.len()..];
            let method = rest
                .trim_start()
                .strip_prefix('.')
                .and_then(|rest| rest.split(|it| !source::in_word(it)).next());
            let line = code[..at].rsplit('\n').next().unwrap_or_default();
            let is_loop =
                line.contains("for ") && line.contains(" in ") && rest.trim_start().starts_with('{');
            if is_loop || method.is_some_and(|method| ORDERS.contains(&method)) {
                found.push((source::line_of(code, at), format!("the order of {name}, which is random,")));
            }
        }
    }
    found
}

/// Names of fields and variables whose type is a map or a set with the standard, random hasher.
fn random_maps(code: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (kind, arguments) in [("HashMap", 2), ("HashSet", 1)] {
        for at in source::words(code, kind) {
            let rest = &code[at + kind.len()..];
            let before = code[..at].trim_end();
            let declared = before.strip_suffix(':').filter(|it| !it.ends_with(':'));
            let name = if rest.starts_with('<') && generic_arguments(rest) == arguments {
                declared
            } else if rest.starts_with("::new")
                || rest.starts_with("::with_capacity")
                || rest.starts_with("::from")
            {
                before.strip_suffix('=')
            } else {
                None
            };
            let name = name.and_then(|before| before.trim_end().rsplit(|it| !source::in_word(it)).next());
            names.extend(name.filter(|name| !name.is_empty()));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The number of generic arguments in the angle brackets with which `code` begins.
fn generic_arguments(code: &str) -> usize {
    let (mut depth, mut count) = (0, 1);
    for character in code.chars() {
        match character {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 1 => count += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    count
}

#[cfg(test)]
use super::tests::{Sample, bad, good};

#[cfg(test)]
pub const SAMPLES: &[Sample] = &[
    good(
        "purity",
        &[
            (
                "crates/kv/src/a.rs",
                "use std::{collections::BTreeMap, time::Duration};\n// std::fs\nlet a = \"std::fs\";",
            ),
            (
                "crates/kv/src/b.rs",
                "// Impure: an operator named the file,\n// not a client.\nuse std::{fs::File, io};",
            ),
            ("crates/kv/src/c.rs", "#[cfg(test)]\nmod tests {\n    use std::fs;\n}"),
            ("crates/node/src/d.rs", "use std::{fs, thread};"),
            (
                "crates/kv/src/e.rs",
                "let m: HashMap<u8, u8, Fixed>; m.iter(); let n: HashMap<u8, u8>; n.get(&1)",
            ),
        ],
    ),
    bad(
        "purity",
        &[("crates/kv/src/a.rs", "use std::{\n    io::{self, Read},\n    fs,\n};")],
        "a.rs:1: std::fs in",
    ),
    bad(
        "purity",
        &[("crates/wire/src/a.rs", "\nlet now = std::time::Instant::now();")],
        "a.rs:2: std::time::Instant::now",
    ),
    bad(
        "purity",
        &[("crates/replica/src/a.rs", "use std::{time::{Duration, SystemTime}};")],
        "std::time::SystemTime",
    ),
    bad("purity", &[("crates/consensus/src/a.rs", "use std::collections::{HashMap, VecDeque};")], "HashMap"),
    bad("purity", &[("crates/consensus/src/a.rs", "use std::time;")], "std::time in"),
    bad(
        "purity",
        &[("crates/kv/src/a.rs", "a: HashMap<u8, (u8, u8)>,\nself.a.values()")],
        "a.rs:2: the order of a",
    ),
    bad(
        "purity",
        &[("crates/kv/src/a.rs", "let a = HashSet::new();\nfor b in &a {")],
        "a.rs:2: the order of a",
    ),
    bad(
        "purity",
        &[("crates/kv/src/a.rs", "// Impure: none is left.\nuse std::io;")],
        "a.rs:2: nothing here is impure",
    ),
];
