//! Pages: links and names of pages lead somewhere, every page stands on a shelf, pages that everybody reads are short.

use super::{
    Report,
    tree::{Tree, resolve},
};

/// Pages that have to stay short, each with the most words that it may have.
const WORDS_MAX: [(&str, usize); 4] = [
    ("README.md", 1_000),
    ("ARCHITECTURE.md", 2_500),
    ("CONTRIBUTING.md", 900),
    ("docs/operating.md", 5_000),
];

/// The alerts that an installation takes.
const RULES: &str = "packaging/prometheus/synod.rules.yml";

/// The example that the README shows.
const EXAMPLE: &str = "crates/synod/examples/typed.rs";

/// The folders of protocols, and the pages that tell what happens there.
const PROTOCOLS: [(&str, &[&str]); 7] = [
    ("multipaxos", &["multipaxos"]),
    ("sequence_paxos", &["sequence-paxos"]),
    ("raft", &["raft", "driftwood"]),
    ("ring", &["ring"]),
    ("kernel_paxos", &["kernel-paxos"]),
    ("rounds", &["rounds"]),
    ("dissemination", &["dissemination"]),
];

/// By what a link names a title of a page.
fn anchor(title: &str) -> String {
    let kept = title.trim().to_lowercase();
    let kept = kept.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// The titles of a page. A second title with the same words has a number as anchor, which no link here has.
fn page_titles(page: &str) -> impl Iterator<Item = &str> {
    let prose = page.split("```").step_by(2).flat_map(str::lines);
    prose.filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim())
}

/// The links of a page to other files and titles, without those in blocks of code.
fn page_links(page: &str) -> impl Iterator<Item = &str> {
    let prose = page.split("```").step_by(2);
    let ends = prose.flat_map(|text| text.split("](").skip(1));
    let links = ends.filter_map(|text| text.split_once(')').map(|(link, _)| link));
    links.filter(|link| !link.contains("://") && !link.contains(' '))
}

/// Whether a link in the file at `from` leads to a file, and to a title if it names one of a page.
fn leads(tree: &Tree, from: &str, link: &str) -> bool {
    let (file, title) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { from.to_owned() } else { resolve(from, file) };
    let is_page = !title.is_empty() && target.ends_with(".md");
    tree.has(&target) && (!is_page || page_titles(tree.text(&target)).any(|it| anchor(it) == title))
}

pub fn links(tree: &Tree) -> Report {
    let mut report = Report::default();
    for (path, page) in tree.ending(&[".md"]) {
        for link in page_links(page) {
            report.looked += 1;
            if !leads(tree, path, link) {
                report.findings.push(format!("{path}: {link} leads nowhere"));
            }
        }
    }
    report
}

/// The list of pages has them all, and so have those of results and decisions.
pub fn shelves(tree: &Tree) -> Report {
    let mut report = Report::default();
    let pages = tree.below("docs").filter(|(path, _)| path.ends_with(".md") && !path.ends_with("/README.md"));
    for (path, _) in pages {
        let (folder, name) = path.rsplit_once('/').unwrap_or_default();
        let own = format!("{folder}/README.md");
        let shelf = if tree.has(&own) { own.as_str() } else { "docs/README.md" };
        report.looked += 1;
        if !page_links(tree.text(shelf)).any(|link| resolve(shelf, link) == path) {
            report.findings.push(format!("{path}: {shelf} does not name {name}"));
        }
    }
    report
}

pub fn lengths(tree: &Tree) -> Report {
    let mut report = Report::default();
    for (page, most) in WORDS_MAX {
        let words = tree.text(page).split_whitespace().count();
        report.looked += usize::from(words > 0);
        if words > most {
            report.findings.push(format!("{page} has {words} words; at most {most}"));
        }
    }
    report
}

/// What the README shows of an example is what the example has.
pub fn example(tree: &Tree) -> Report {
    let mut report = Report::default();
    let shown = tree.text("README.md").split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let example: Vec<_> = tree.text(EXAMPLE).lines().map(str::trim).collect();
    for line in shown.unwrap_or_default().lines().map(str::trim).filter(|line| *line != "...") {
        report.looked += 1;
        if !example.contains(&line) {
            report.findings.push(format!("README.md: {EXAMPLE} has no line {line:?}"));
        }
    }
    report
}

/// The pages that a text names, each with the title before it, if there is one: `'A title' in docs/page.md`, or with
/// double quotes.
fn named_pages(text: &str) -> Vec<(Option<&str>, &str)> {
    let places = text.match_indices("docs/").map(|(at, _)| at);
    let named = places.filter_map(|at| {
        let page = &text[at..at + text[at..].find(".md")? + 3];
        let is_name = |it: char| it.is_ascii_alphanumeric() || "-/._".contains(it);
        let before = text[..at].strip_suffix(" in ");
        let title = before.and_then(|before| {
            let quote = before.chars().next_back().filter(|it| "'\"".contains(*it))?;
            before[..before.len() - 1].rsplit(quote).next()
        });
        page.chars().all(is_name).then_some((title, page))
    });
    named.collect()
}

/// Every name of a page in code, comments and messages; `is_looked_at` chooses by whether it has a title.
fn named_in_code(tree: &Tree, is_looked_at: impl Fn(bool) -> bool) -> Report {
    let mut report = Report::default();
    let sources = tree.ending(&[".rs"]).filter(|(path, _)| !path.starts_with("crates/xtask/"));
    for (path, code) in sources {
        // A string may go on in the next line.
        let words = code.replace("\\\n", "").replace("\\\"", "\"");
        let text = words.split_whitespace().collect::<Vec<_>>().join(" ");
        for (title, page) in named_pages(&text).into_iter().filter(|(title, _)| is_looked_at(title.is_some()))
        {
            report.looked += 1;
            let is_there =
                title.map_or(tree.has(page), |title| page_titles(tree.text(page)).any(|it| it == title));
            if !is_there {
                let title = title.map(|title| format!("{title:?} in ")).unwrap_or_default();
                report.findings.push(format!("{path}: there is no {title}{page}"));
            }
        }
    }
    report
}

/// What the program and its sources tell people to read is there.
pub fn pointers(tree: &Tree) -> Report {
    named_in_code(tree, |has_title| !has_title)
}

/// The same for what names a title of a page.
pub fn titles(tree: &Tree) -> Report {
    named_in_code(tree, |has_title| has_title)
}

/// Each alert names a title that tells people what to do.
pub fn alerts(tree: &Tree) -> Report {
    let mut report = Report::default();
    let lines = || tree.text(RULES).lines().map(str::trim);
    let links = || lines().filter_map(|line| line.strip_prefix("page: "));
    report.looked = lines().filter(|line| line.starts_with("- alert: ")).count();
    if report.looked != links().count() {
        report.findings.push(format!("{RULES}: {} alerts, {} with a page", report.looked, links().count()));
    }
    let lost = links().filter(|link| !link.contains('#') || !leads(tree, "", link));
    report.findings.extend(lost.map(|link| format!("{RULES}: {link} leads nowhere")));
    report
}

/// The kinds in a list of `messages!`, whose head begins with `head`.
fn kinds<'a>(code: &'a str, head: &str) -> Vec<&'a str> {
    let body =
        code.lines().skip_while(|line| !line.starts_with(head)).skip(1).take_while(|line| *line != "    }");
    let names = body.filter_map(|line| line.strip_prefix("        "));
    let names = names.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    names.filter_map(|line| line.split(|it: char| !it.is_ascii_alphanumeric()).next()).collect()
}

/// The page of a protocol has a table with all its messages.
pub fn messages(tree: &Tree) -> Report {
    let mut report = Report::default();
    for (folder, pages) in PROTOCOLS {
        let path = format!("crates/consensus/src/{folder}/messages.rs");
        let text: String = pages.iter().map(|page| tree.text(&format!("docs/{page}.md"))).collect();
        for name in kinds(tree.text(&path), "    pub enum Message,") {
            report.looked += 1;
            if !text.contains(&format!("`{name}`")) {
                report.findings.push(format!("{path}: no page of {pages:?} in docs/ names `{name}`"));
            }
        }
    }
    report
}

#[cfg(test)]
use super::tests::{Sample, bad, good};

#[cfg(test)]
pub const SAMPLES: &[Sample] = &[
    good(
        "links",
        &[
            (
                "docs/a.md",
                "# A title, with `code`\n[one](b/c.md#d) and [two](https://c), [f](b/)\n```\n[none](d.md)\n```\n[g](#a-title-with-code)",
            ),
            ("docs/b/c.md", "## D\n"),
        ],
    ),
    bad("links", &[("docs/a.md", "[b](b.md)")], "docs/a.md: b.md leads nowhere"),
    bad("links", &[("docs/a.md", "[b](c.md#b)"), ("docs/c.md", "```\n# B\n```")], "c.md#b leads nowhere"),
    good(
        "shelves",
        &[
            ("docs/README.md", "[a](a.md) [c](checklists/c.md)"),
            ("docs/a.md", ""),
            ("docs/checklists/c.md", ""),
            ("docs/results/README.md", "[d](d.md)"),
            ("docs/results/d.md", ""),
        ],
    ),
    bad(
        "shelves",
        &[("docs/README.md", "[ba](ba.md)"), ("docs/a.md", "")],
        "docs/README.md does not name a.md",
    ),
    bad(
        "shelves",
        &[("docs/results/README.md", ""), ("docs/results/d.md", "")],
        "docs/results/README.md does not",
    ),
    good("short pages", &[("README.md", "a page")]),
    bad("short pages", &[("README.md", include_str!("long_page.txt"))], "has 1001 words; at most 1000"),
    good("the example of the README", &[("README.md", "```rust\nlet a;\n...\n```"), (EXAMPLE, "  let a;\n")]),
    bad(
        "the example of the README",
        &[("README.md", "```rust\nlet b;\n```"), (EXAMPLE, "let a;")],
        "no line \"let b;\"",
    ),
    good("pages that code names", &[("a.rs", "// See docs/a.md, docs/*.md."), ("docs/a.md", "")]),
    bad("pages that code names", &[("a.rs", "\"see docs/\\\na.md\"")], "a.rs: there is no docs/a.md"),
    good("titles that code names", &[("a.rs", "see 'A b' in docs/a.md"), ("docs/a.md", "# A b")]),
    bad(
        "titles that code names",
        &[("a.rs", "\"see \\\"A b\\\" in docs/a.md\""), ("docs/a.md", "A b")],
        "no \"A b\" in",
    ),
    good("alerts", &[(RULES, "- alert: A\n  page: docs/a.md#b\n"), ("docs/a.md", "# B")]),
    bad(
        "alerts",
        &[(RULES, "- alert: A\n  page: docs/a.md#c\n"), ("docs/a.md", "# B")],
        "docs/a.md#c leads nowhere",
    ),
    bad("alerts", &[(RULES, "- alert: A\n")], "1 alerts, 0 with a page"),
    good(
        "messages of protocols",
        &[
            (
                "crates/consensus/src/raft/messages.rs",
                "messages! {\n    pub enum Message, \"kind\" {\n        1, Vote:\n        Vote {\n            Term: u8,\n        },\n    }\n}\n",
            ),
            ("docs/driftwood.md", "| `Vote` |"),
        ],
    ),
    bad(
        "messages of protocols",
        &[
            (
                "crates/consensus/src/ring/messages.rs",
                "messages! {\n    pub enum Message, \"kind\" {\n        2, Vote: Probe,\n        Probe,\n    }\n}\n",
            ),
            ("docs/raft.md", "`Probe`"),
        ],
        "names `Probe`",
    ),
];
