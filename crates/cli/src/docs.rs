//! `synod docs`: the pages to which messages of this program point, for people who have the program alone.

use clap::Args;

use crate::{failure::Failure, output};

/// Arguments of `synod docs`.
#[derive(Clone, Debug, Args)]
pub struct DocsArgs {
    /// The page, such as operating [default: a list of the pages].
    page: Option<String>,
    /// A title in the page, or the beginning of one: only that section is printed.
    title: Option<String>,
}

struct Page {
    name: &'static str,
    about: &'static str,
    text: &'static str,
}

/// A page of this name. The texts are links to those in docs/, so that the crate has them when it is published.
macro_rules! page {
    ($name:literal, $about:literal) => {
        Page { name: $name, about: $about, text: include_str!(concat!("../pages/", $name, ".md")) }
    };
}

const PAGES: [Page; 12] = [
    page!("auth", "users, roles, and what they permit"),
    page!("backup", "backups, and new clusters from them"),
    page!("install", "machines, containers, sizing and alerts"),
    page!("exploring", "exploring every state of a small configuration"),
    page!("operating", "running a cluster, and what to do when something breaks"),
    page!("settings", "which settings are of the group, which of a replica, and what goes together"),
    page!("limits", "what bounds memory, connections and sessions, and what overload does"),
    page!("groups", "several groups, each with a store of its own or in one order"),
    page!("monitoring", "metrics and log lines"),
    page!("upgrading", "upgrades, and versions of files"),
    page!("identity", "which data directory has a vote, and when others refuse it"),
    page!("tls", "certificates for clients and between replicas"),
];

pub fn run(args: &DocsArgs) -> Result<(), Failure> {
    let Some(wanted) = &args.page else { return output::print(list().as_bytes()) };
    // As a message names it.
    let name = wanted.strip_prefix("docs/").unwrap_or(wanted);
    let name = name.strip_suffix(".md").unwrap_or(name);
    let Some(page) = PAGES.iter().find(|page| page.name == name) else {
        let names: Vec<_> = PAGES.iter().map(|page| page.name).collect();
        return Err(Failure::usage(format!("there is no page {wanted}; accepted: {}", names.join(", "))));
    };
    let text = match &args.title {
        None => page.text.to_owned(),
        Some(title) => section(page.text, title).ok_or_else(|| {
            let titles: Vec<_> = titles(page.text).map(|(_, _, title)| title).collect();
            let (name, titles) = (page.name, titles.join("\n  "));
            Failure::usage(format!("{name} has no title {title:?}; it has\n  {titles}"))
        })?,
    };
    output::print(text.as_bytes())
}

fn list() -> String {
    let lines = PAGES.iter().map(|page| format!("  {:<12}{}\n", page.name, page.about));
    format!("synod docs PAGE [TITLE]\n\n{}", lines.collect::<String>())
}

/// The titles of a text: where the line begins, how deep the title is, and what it says.
fn titles(text: &str) -> impl Iterator<Item = (usize, usize, &str)> {
    let mut at = 0;
    let mut is_code = false;
    text.split_inclusive('\n').filter_map(move |line| {
        let begins = at;
        at += line.len();
        is_code ^= line.starts_with("```");
        let depth = line.bytes().take_while(|byte| *byte == b'#').count();
        // In a block of code it is a comment.
        (depth > 0 && !is_code).then(|| (begins, depth, line[depth..].trim()))
    })
}

/// The section of a text whose title begins so, with all below it.
fn section(text: &str, title: &str) -> Option<String> {
    let wanted = title.to_lowercase();
    let mut after = titles(text).skip_while(|(_, _, title)| !title.to_lowercase().starts_with(&wanted));
    let (begins, depth, _) = after.next()?;
    let ends = after.find(|(_, other, _)| *other <= depth).map_or(text.len(), |(ends, _, _)| ends);
    Some(text[begins..ends].trim_end().to_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# Page\n\n## One thing\n\n```sh\n# a comment\n```\n\n### Below\n\nmore\n\n## Other\n\nend\n";

    #[test]
    fn a_section_is_found_by_the_beginning_of_its_title() {
        let one = "## One thing\n\n```sh\n# a comment\n```\n\n### Below\n\nmore\n";
        assert_eq!(section(TEXT, "one").as_deref(), Some(one));
        assert_eq!(section(TEXT, "Below").as_deref(), Some("### Below\n\nmore\n"));
        assert_eq!(section(TEXT, "other").as_deref(), Some("## Other\n\nend\n"));
        assert_eq!(section(TEXT, "a comment"), None);
        assert_eq!(titles(TEXT).map(|(_, depth, _)| depth).collect::<Vec<_>>(), [1, 2, 3, 2]);
    }

    #[test]
    fn the_pages_have_what_messages_name() {
        for (page, title) in [
            ("operating", "A quorum is lost for good"),
            ("operating", "Replicas without memory"),
            ("operating", "A new cluster does not begin"),
            ("identity", "Forks"),
        ] {
            let page = PAGES.iter().find(|other| other.name == page).unwrap();
            assert!(section(page.text, title).is_some_and(|text| text.lines().count() > 2), "{title}");
        }
        assert!(list().contains("\n  tls         certificates"));
    }
}
