//! What a reader of the tree would have to nag about. The crate has nothing to do with it, but few dependencies, so
//! that the test runs in a moment; outside of the project's tree it checks nothing.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The longest line of a comment, in characters. `rustfmt` keeps code shorter, and does not touch comments.
const LINE_MAX: usize = 120;

/// Words that the project does not use, and what stands in their place.
const WORDS: [(&str, &str); 7] = [
    ("can not", "cannot"),
    ("for ever", "forever"),
    ("anew", "again"),
    ("in vain", "without success"),
    ("unasked", "unsolicited"),
    ("whoever", "the subject's name, as \"a replica that\""),
    // Pages that are no part of the project.
    ("design.md", "a page of this project"),
];

/// A comment that begins so has a question for its subject.
const BEGINNINGS: [&str; 3] = ["/// Who ", "//! Who ", "// Who "];

/// The project's files whose names end so, but what builds leave.
fn files(ends: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    if !root.join("ARCHITECTURE.md").exists() {
        return files;
    }
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap_or_default());
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if ends.iter().any(|end| name.ends_with(end)) {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() > 20, "{} files", files.len());
    files
}

/// Every line of these files for which `why` gives a reason, with the reason.
fn refused(ends: &[&str], why: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut refused = Vec::new();
    for path in files(ends) {
        // It names what it refuses.
        if path.ends_with("wire/tests/tidy.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().zip(1..).filter_map(|(line, number)| Some((number, why(line)?)));
        refused.extend(lines.map(|(number, why)| format!("{}:{number}: {why}", path.display())));
    }
    refused
}

/// Whether `text` has the word, and not only as a part of longer ones.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let is_letter =
            |character: Option<char>| character.is_some_and(|it| it.is_alphanumeric() || it == '_');
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + word.len()..].chars().next())
    })
}

#[test]
fn words_are_those_of_the_project() {
    let why = |line: &str| {
        let lower = line.to_lowercase();
        let word = WORDS.iter().find(|(word, _)| has_word(&lower, word));
        let beginning = BEGINNINGS.iter().any(|beginning| line.trim_start().starts_with(beginning));
        match word {
            Some((word, better)) => Some(format!("\"{word}\": write {better}")),
            None if beginning => Some("a subject in place of \"Who\"".to_owned()),
            None => None,
        }
    };
    let refused = refused(&[".rs", ".md", ".txt", ".py"], why);
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Code in strings may be as long as its text; a row of a table has to be one line.
#[test]
fn comments_fit_on_a_screen() {
    let why = |line: &str| {
        let text = line.trim_start();
        let is_table = ["/// |", "//! |"].iter().any(|row| text.starts_with(row));
        let length = line.chars().count();
        (length > LINE_MAX && text.starts_with("//") && !is_table)
            .then(|| format!("{length} columns; at most {LINE_MAX}"))
    };
    let refused = refused(&[".rs"], why);
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// The pages that a text names, each with the title before it, if there is one: `'A title' in docs/page.md`, or with double
/// quotes.
fn pointers(text: &str) -> Vec<(Option<&str>, &str)> {
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

/// What the program tells people to read is there.
#[test]
fn messages_point_to_pages_and_titles_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut count, mut missing) = (0, Vec::new());
    for path in files(&[".rs"]).into_iter().filter(|path| !path.ends_with("wire/tests/tidy.rs")) {
        let code = fs::read_to_string(&path).unwrap();
        // A string may go on in the next line.
        let words = code.replace("\\\n", "").replace("\\\"", "\"");
        let text = words.split_whitespace().collect::<Vec<_>>().join(" ");
        for (title, page) in pointers(&text) {
            let there = fs::read_to_string(root.join(page)).unwrap_or_default();
            let is_there = title.map_or(!there.is_empty(), |title| {
                there
                    .lines()
                    .any(|line| line.trim_start_matches('#').trim() == title && line.starts_with('#'))
            });
            count += usize::from(title.is_some());
            if !is_there {
                missing.push(format!("{}: {title:?} in {page}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(count > 3 || !root.join("ARCHITECTURE.md").exists(), "{count} titles");
}

/// By what a link names a title of a page.
fn anchor(title: &str) -> String {
    let kept = title.trim().to_lowercase();
    let kept = kept.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// What an alert tells people to read is there.
#[test]
fn alerts_point_to_titles_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("ARCHITECTURE.md").exists() {
        return;
    }
    let rules = fs::read_to_string(root.join("packaging/prometheus/synod.rules.yml")).unwrap();
    let links: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("page: ")).collect();
    let alerts = rules.lines().filter(|line| line.trim().starts_with("- alert: ")).count();
    assert!(alerts > 10 && links.len() == alerts, "{alerts} alerts, {} links", links.len());
    for link in links {
        let (page, title) = link.split_once('#').unwrap_or((link, ""));
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let titles = text.lines().filter(|line| line.starts_with('#'));
        let mut anchors = titles.map(|line| anchor(line.trim_start_matches('#')));
        assert!(anchors.any(|there| there == title), "{link}");
    }
}

/// The variants of an enum, in a file as `rustfmt` leaves it.
fn variants<'a>(code: &'a str, head: &str) -> Vec<&'a str> {
    let body = code.lines().skip_while(|line| *line != head).skip(1).take_while(|line| *line != "}");
    let names = body.filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    names.filter_map(|line| line.split(|it: char| !it.is_ascii_alphanumeric()).next()).collect()
}

/// The folders of protocols, and the pages that tell what happens there.
const PAGES: [(&str, &[&str]); 5] = [
    ("multipaxos", &["multipaxos"]),
    ("sequence_paxos", &["sequence-paxos"]),
    ("raft", &["raft", "driftwood"]),
    ("ring", &["ring"]),
    ("dissemination", &["dissemination"]),
];

/// Each of these pages has a table of messages.
#[test]
fn the_pages_of_protocols_name_all_their_messages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("ARCHITECTURE.md").exists() {
        return;
    }
    let read =
        |path: String| fs::read_to_string(root.join(&path)).unwrap_or_else(|why| panic!("{path}: {why}"));
    for (folder, pages) in PAGES {
        let code = read(format!("crates/consensus/src/{folder}/messages.rs"));
        let names = variants(&code, "pub enum Message {");
        let text: String = pages.iter().map(|page| read(format!("docs/{page}.md"))).collect();
        let missing: Vec<_> = names.iter().filter(|name| !text.contains(&format!("`{name}`"))).collect();
        assert!(names.len() > 3 && missing.is_empty(), "docs: {pages:?}: {missing:?} of {names:?}");
    }
}

/// Pages that have to stay short, each with the most words that it may have.
const WORDS_MAX: [(&str, usize); 3] =
    [("README.md", 1_000), ("ARCHITECTURE.md", 2_500), ("docs/operating.md", 5_000)];

#[test]
fn the_pages_that_everybody_reads_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join("ARCHITECTURE.md").exists() {
        return;
    }
    for (page, most) in WORDS_MAX {
        let words = fs::read_to_string(root.join(page)).unwrap().split_whitespace().count();
        assert!(words <= most, "{page} has {words} words; at most {most}");
    }
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The names of the folders in a folder.
fn folders(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut names: Vec<_> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The code map has a row for each crate, which names the folders of its sources, and where to begin to read.
#[test]
fn the_code_map_names_every_crate_and_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(page) = fs::read_to_string(root.join("ARCHITECTURE.md")) else { return };
    let map = page.split("\n## ").find(|section| section.starts_with("Code map")).unwrap();
    let rows = map.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<Vec<_>> = rows.map(|line| line.trim_matches('|').split('|').collect()).collect();
    let mut crates: Vec<_> = rows.iter().map(|row| quoted(row[0])[0].to_owned()).collect();
    crates.sort();
    assert_eq!(crates, folders(&root.join("crates")));
    for row in rows {
        let [name, _, named, start] = row[..] else { panic!("{row:?}: four cells") };
        let name = quoted(name)[0];
        let sources = root.join("crates").join(name).join("src");
        let mut named = quoted(named);
        named.sort_unstable();
        assert_eq!(named, folders(&sources), "the folders of crates/{name}/src");
        let begin = quoted(start)[0];
        let is_there = sources.join(begin).exists() || sources.join("..").join(begin).exists();
        assert!(is_there, "{name}: {begin}");
    }
}

/// The links of a page to other files and titles, without those in blocks of code.
fn links(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    let ends = prose.flat_map(|text| text.split("](").skip(1));
    let links = ends.filter_map(|text| text.split_once(')').map(|(link, _)| link));
    links.filter(|link| !link.contains("://") && !link.contains(' ')).collect()
}

/// The anchors of a page's titles. A second title with the same words has a number, which no link here has.
fn anchors(page: &str) -> Vec<String> {
    let prose: String = page.split("```").step_by(2).collect();
    prose
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

#[test]
fn links_lead_to_files_and_titles_that_exist() {
    let (mut count, mut missing) = (0, Vec::new());
    for path in files(&[".md"]).into_iter().filter(|path| !path.is_symlink()) {
        let page = fs::read_to_string(&path).unwrap();
        for link in links(&page) {
            let (file, title) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_page = !title.is_empty() && target.extension().is_some_and(|end| end == "md");
            let is_there = if is_page {
                anchors(&fs::read_to_string(&target).unwrap_or_default()).contains(&title.to_owned())
            } else {
                target.exists()
            };
            count += 1;
            if !is_there {
                missing.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(count > 100 || files(&[".md"]).is_empty(), "{count} links");
}

/// The list of pages has them all, and so have those of results and decisions.
#[test]
fn every_page_stands_on_a_shelf() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for shelf in ["", "checklists", "results", "decisions"] {
        let list =
            if shelf == "checklists" { docs.join("README.md") } else { docs.join(shelf).join("README.md") };
        let Ok(list) = fs::read_to_string(list) else { return };
        for entry in fs::read_dir(docs.join(shelf)).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let is_page = name.ends_with(".md") && name != "README.md";
            assert!(!is_page || list.contains(&format!("{name})")), "docs/{shelf}/{name} is on no shelf");
        }
    }
}

/// What the README shows of an example is what the example has.
#[test]
fn the_example_in_the_readme_is_one_that_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Ok(page) = fs::read_to_string(root.join("README.md")) else { return };
    if !root.join("ARCHITECTURE.md").exists() {
        return;
    }
    let shown = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let example = fs::read_to_string(root.join("crates/synod/examples/typed.rs")).unwrap();
    let example: Vec<_> = example.lines().map(str::trim).collect();
    let shown: Vec<_> = shown.lines().map(str::trim).filter(|line| *line != "...").collect();
    let other: Vec<_> = shown.iter().filter(|line| !example.contains(line)).collect();
    assert!(shown.len() > 10 && other.is_empty(), "not in typed.rs: {other:?}");
}

#[test]
fn the_check_of_words_finds_them() {
    assert!(has_word("it can not", "can not") && has_word("whoever leads", "whoever"));
    assert!(!has_word("scan note", "can not") && !has_word("begin_anew", "anew"));
}

#[test]
fn the_check_of_links_finds_them() {
    let page = "# A title, with `code`\n[one](a.md#b) and [two](https://c) and\n```\n[none](d.md)\n```\n[three](#e)\n";
    assert_eq!(links(page), ["a.md#b", "#e"]);
    assert_eq!(anchors(page), ["a-title-with-code"]);
    assert_eq!(quoted("`a`, `b`: c"), ["a", "b"]);
}
