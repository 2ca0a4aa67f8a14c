//! What pages for people say of files and messages is what this program does.

use std::fmt::Write as _;

use synod_wire::{Format, MESSAGES_VERSION, MESSAGES_VERSION_OLDEST};

const PAGE: &str = include_str!("../../../docs/upgrading.md");

/// Every format, by the place where it is.
fn formats() -> Vec<(String, Format)> {
    let mut formats: Vec<_> =
        synod_storage::FORMATS.iter().map(|(file, format)| (format!("`{file}`"), *format)).collect();
    formats.push(("in `group`: the first group, and the present one".to_owned(), synod_node::ORIGIN_FORMAT));
    for (which, format) in synod_replica::SNAPSHOT_FORMATS {
        formats.push((format!("in a snapshot: sessions, group and history, {which}"), *format));
    }
    for (which, format) in synod_kv::SNAPSHOT_FORMATS {
        formats.push((format!("in a snapshot: keys and values, {which}"), *format));
    }
    formats
}

#[test]
fn the_page_for_operators_has_the_versions_of_formats() {
    let mut table =
        "| what | version | for programs that know | read from |\n| --- | --- | --- | --- |\n".to_owned();
    for (what, format) in formats() {
        let (version, readers) = (format.written.version, format.written.readers);
        writeln!(table, "| {what} | {version} | {readers} | {} |", format.oldest).unwrap();
    }
    assert!(PAGE.contains(&table), "docs/upgrading.md should have:\n{table}");
    let messages = format!("messages in the versions {MESSAGES_VERSION_OLDEST} to {MESSAGES_VERSION}");
    let plain = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains(&messages), "docs/upgrading.md should say: {messages}");
}
