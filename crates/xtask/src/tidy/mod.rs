//! What a reader of the tree would have to nag about, each kind a check.
//!
//! A check reads files as text alone: it takes a moment, and code can hide from it. It is for habits, not for enemies.
//! Each one stands in `CHECKS` and has samples, which are trees of a few lines that it passes or refuses. So a check
//! that finds nothing any more is noticed.

mod functions;
mod map;
mod pages;
mod purity;
mod rooms;
mod source;
mod tree;
mod words;

pub use tree::{Tree, root};

/// What a check has found.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of things that it has looked at.
    looked: usize,
    /// What is wrong, each with its place and what to do.
    findings: Vec<String>,
}

/// One habit.
struct Check {
    name: &'static str,
    /// The check finds at least this many things to look at in the project: else it has lost sight of them.
    least: usize,
    run: fn(&Tree) -> Report,
}

const CHECKS: [Check; 14] = [
    Check { name: "words", least: 100_000, run: words::refused },
    Check { name: "comments", least: 20_000, run: words::widths },
    Check { name: "functions", least: 7_000, run: functions::long },
    Check { name: "purity", least: 100, run: purity::impure },
    Check { name: "rooms", least: 15, run: rooms::dependencies },
    Check { name: "code map", least: 15, run: map::code_map },
    Check { name: "links", least: 300, run: pages::links },
    Check { name: "shelves", least: 60, run: pages::shelves },
    Check { name: "short pages", least: 4, run: pages::lengths },
    Check { name: "the example of the README", least: 10, run: pages::example },
    Check { name: "pages that code names", least: 30, run: pages::pointers },
    Check { name: "titles that code names", least: 4, run: pages::titles },
    Check { name: "alerts", least: 10, run: pages::alerts },
    Check { name: "messages of protocols", least: 20, run: pages::messages },
];

/// Everything that is wrong in this tree, as lines for a reader.
pub fn findings(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for Check { name, least, run } in CHECKS {
        let report = run(tree);
        lines.extend(report.findings.into_iter().map(|finding| format!("{name}: {finding}")));
        if report.looked < least {
            lines.push(format!(
                "{name}: the check sees only {}, not {least}, things to look at",
                report.looked
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    type Files = &'static [(&'static str, &'static str)];

    /// The project itself.
    #[test]
    fn the_tree_is_tidy() {
        let findings = findings(&Tree::read(&root()).unwrap());
        assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
    }

    /// Each check has a sample that it passes and at least one that it refuses.
    #[test]
    fn each_check_tells_good_from_bad() {
        let samples = [
            words::SAMPLES,
            functions::SAMPLES,
            purity::SAMPLES,
            rooms::SAMPLES,
            map::SAMPLES,
            pages::SAMPLES,
        ];
        let samples: Vec<&Sample> = samples.into_iter().flatten().collect();
        for Check { name, run, .. } in CHECKS {
            let own = || samples.iter().filter(|sample| sample.check == name);
            assert!(
                own().any(|it| it.finds.is_none()) && own().any(|it| it.finds.is_some()),
                "{name}: no samples"
            );
            for Sample { files, finds, .. } in own() {
                let Report { looked, findings } = run(&Tree::of(files));
                match finds {
                    None => assert!(
                        findings.is_empty() && looked > 0,
                        "{name}: {looked}, {findings:?} in {files:?}"
                    ),
                    Some(text) => {
                        let found = findings.len() == 1 && findings[0].contains(text);
                        assert!(found, "{name}: {findings:?}, not {text:?}, in {files:?}");
                    }
                }
            }
        }
        assert!(
            samples.iter().all(|it| CHECKS.iter().any(|check| check.name == it.check)),
            "a sample of no check"
        );
    }

    /// A tree of a few lines for one check.
    pub(super) struct Sample {
        pub check: &'static str,
        pub files: Files,
        /// What the only finding says; none for a tree that passes.
        pub finds: Option<&'static str>,
    }

    pub(super) const fn good(check: &'static str, files: Files) -> Sample {
        Sample { check, files, finds: None }
    }

    pub(super) const fn bad(check: &'static str, files: Files, finds: &'static str) -> Sample {
        Sample { check, files, finds: Some(finds) }
    }
}
