//! ARCHITECTURE.md's code map has a row for each crate, with the folders of its sources and the file to begin with.

use super::{
    Report,
    tree::{Tree, resolve},
};

const PAGE: &str = "ARCHITECTURE.md";

pub fn code_map(tree: &Tree) -> Report {
    let mut report = Report::default();
    let map =
        tree.text(PAGE).split("\n## ").find(|section| section.starts_with("Code map")).unwrap_or_default();
    let rows = map.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<Vec<_>> = rows.map(|line| line.trim_matches('|').split('|').collect()).collect();
    let mut crates: Vec<_> = rows.iter().filter_map(|row| quoted(row[0]).first().copied()).collect();
    crates.sort_unstable();
    let there = tree.folders("crates");
    if crates != there {
        report.findings.push(format!("{PAGE}: the code map has {crates:?}, and crates/ {there:?}"));
        return report;
    }
    for row in rows {
        report.looked += 1;
        report.findings.extend(wrong(tree, &row).map(|why| format!("{PAGE}: {why}")));
    }
    report
}

/// What is wrong with a row.
fn wrong(tree: &Tree, row: &[&str]) -> Option<String> {
    let [name, _, folders, begin] = row else { return Some(format!("{row:?}: four cells")) };
    let name = quoted(name)[0];
    let sources = format!("crates/{name}/src");
    let mut named = quoted(folders);
    named.sort_unstable();
    let there = tree.folders(&sources);
    if named != there {
        return Some(format!("the row of {name} names the folders {named:?}, and {sources} has {there:?}"));
    }
    let begin = quoted(begin).first().copied().unwrap_or_default();
    let is_there = !begin.is_empty()
        && [&sources, &format!("crates/{name}")]
            .iter()
            .any(|folder| tree.has(&resolve(&format!("{folder}/"), begin)));
    (!is_there).then(|| format!("the row of {name} begins at {begin:?}, which is not there"))
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
use super::tests::{Sample, bad, good};

#[cfg(test)]
pub const SAMPLES: &[Sample] = &[
    good(
        "code map",
        &[
            (
                PAGE,
                "# A\n\n## Code map\n\n| crate |\n| `kv` | a store | `b`, `watch`: c | `proto/` |\n\n## More\n| `none` |\n",
            ),
            ("crates/kv/src/b/c.rs", ""),
            ("crates/kv/src/watch/mod.rs", ""),
            ("crates/kv/proto/kv.proto", ""),
        ],
    ),
    bad("code map", &[(PAGE, "\n## Code map\n"), ("crates/kv/src/a.rs", "")], "and crates/ [\"kv\"]"),
    bad(
        "code map",
        &[(PAGE, "\n## Code map\n| `kv` | a | | `a.rs` |"), ("crates/kv/src/b/a.rs", "")],
        "has [\"b\"]",
    ),
    bad(
        "code map",
        &[(PAGE, "\n## Code map\n| `kv` | a | | `b.rs` |"), ("crates/kv/src/a.rs", "")],
        "begins at \"b.rs\"",
    ),
];
