//! The tables of what goes together, and of the options of each protocol: at the end of `synod serve --help`, and in
//! docs/settings.md.

use synod_consensus::{Combination, ProtocolKind};
use synod_storage::{Durability, Ending};

/// What goes with a protocol: its name, and the choices on each of the other axes, of which any may be taken.
fn rows() -> impl Iterator<Item = (&'static str, [(&'static str, String); 3])> {
    ProtocolKind::known().map(|(name, protocol)| {
        let axes = [
            ("election", names(protocol.elections().iter())),
            ("dissemination", names(protocol.disseminations().iter())),
            ("durability", names(protocol.durabilities().iter())),
        ];
        (name, axes)
    })
}

fn names<T: ToString>(choices: impl Iterator<Item = T>) -> String {
    choices.map(|choice| choice.to_string()).collect::<Vec<_>>().join(", ")
}

/// The options of each protocol: its name, the key, all values, and those that serve.
fn option_rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str, String)> {
    ProtocolKind::known().flat_map(|(name, protocol)| {
        protocol.own_options().map(move |option| {
            let serves = option.serves.map_or_else(|| "all".to_owned(), |values| values.join(", "));
            (name, option.key, option.accepted, serves)
        })
    })
}

/// What the table does not show.
fn remarks() -> String {
    let process = Durability::ALL.iter().filter(|(_, it)| it.keeps_promises(Ending::Process));
    format!(
        "These are {} combinations. The first of each is the default. A group of two replicas takes {} alone, since each of \
         the two would need what the other one forgets. A server takes {} with --laboratory alone.",
        Combination::legal().count(),
        names(process.map(|(name, _)| name)),
        ProtocolKind::LABORATORY.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" and ")
    )
}

/// The table, for a terminal.
pub fn text() -> String {
    let mut text = "What goes together, one of each line:\n".to_owned();
    for (protocol, axes) in rows() {
        for (line, (axis, choices)) in axes.iter().enumerate() {
            let protocol = if line == 0 { protocol } else { "" };
            text += &format!("  {protocol:<16}{axis:<15}{choices}\n");
        }
    }
    text += &remarks();
    text += "\n\nOptions of each protocol (--options), and the values that serve. The others exist to be measured, and take \
             servers with --laboratory:\n";
    for (protocol, key, accepted, serves) in option_rows() {
        text += &format!("  {protocol:<16}{key:<17}{accepted}; serve: {serves}\n");
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markdown() -> String {
        let mut text =
            "| `--protocol` | `--election` | `--dissemination` | `--durability` |\n| --- | --- | --- | --- |\n".to_owned();
        for (protocol, axes) in rows() {
            let choices = axes.map(|(_, choices)| choices).join(" | ");
            text += &format!("| {protocol} | {choices} |\n");
        }
        text
    }

    fn options_in_markdown() -> String {
        let mut text = "| `--protocol` | option | values | serve |\n| --- | --- | --- | --- |\n".to_owned();
        for (protocol, key, accepted, serves) in option_rows() {
            text += &format!("| {protocol} | `{key}` | {accepted} | {serves} |\n");
        }
        text
    }

    /// What is written there is what this program does.
    #[test]
    fn the_page_for_operators_has_the_same_table() {
        let page = include_str!("../../../../docs/settings.md");
        for table in [markdown(), options_in_markdown()] {
            assert!(page.contains(&table), "docs/settings.md should have:\n{table}");
        }
        let plain = page.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(plain.contains(&remarks()), "docs/settings.md should say: {}", remarks());
    }

    #[test]
    fn the_table_is_all_that_is_legal() {
        let row =
            |axes: &[(&str, String); 3]| axes.iter().map(|(_, it)| it.split(", ").count()).product::<usize>();
        assert_eq!(rows().map(|(_, axes)| row(&axes)).sum::<usize>(), Combination::legal().count());
        assert!(text().lines().count() > 9, "{}", text());
    }
}
