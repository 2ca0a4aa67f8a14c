//! The crates of the workspace, and who depends on whom, read from their `Cargo.toml` files.

use std::collections::BTreeSet;

use crate::tidy::Tree;

/// The sections of a manifest whose crates are built into what ships.
const SHIPPED: [&str; 2] = ["[dependencies]", "[build-dependencies]"];

/// All sections that name other crates.
const ALL: [&str; 3] = ["[dependencies]", "[build-dependencies]", "[dev-dependencies]"];

/// A crate of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// Its folder below `crates/`.
    pub folder: String,
    pub package: String,
    /// The folders of the crates on which it or its tests depend.
    dependencies: Vec<String>,
    pub has_library: bool,
    pub has_program: bool,
}

/// The crates of the workspace, by their folders.
pub fn crates(tree: &Tree) -> Vec<Crate> {
    let read = |name: &&str| {
        let manifest = tree.text(&format!("crates/{name}/Cargo.toml"));
        let package = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default();
        Crate {
            folder: (*name).to_owned(),
            package: package.trim_matches('"').to_owned(),
            dependencies: names(manifest, &ALL)
                .iter()
                .filter_map(|name| folder(name))
                .map(str::to_owned)
                .collect(),
            has_library: tree.has(&format!("crates/{name}/src/lib.rs")),
            has_program: tree.has(&format!("crates/{name}/src/main.rs")),
        }
    };
    tree.folders("crates").iter().map(read).collect()
}

/// These crates, and all that depend on one of them, if only by way of others.
pub fn with_dependents<'a>(crates: &'a [Crate], of: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let mut found = of.clone();
    loop {
        let rests = |it: &&Crate| it.dependencies.iter().any(|name| found.contains(name.as_str()));
        let more: Vec<_> = crates.iter().filter(rests).map(|it| it.folder.as_str()).collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}

/// The folders of the workspace's crates on which a manifest's crate rests, and its other dependencies. Those of tests
/// are left out.
pub fn dependencies(manifest: &str) -> (Vec<String>, Vec<String>) {
    let names = names(manifest, &SHIPPED);
    let (own, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| folder(name).is_some());
    (own.iter().filter_map(|name| folder(name)).map(str::to_owned).collect(), others)
}

/// The folder below `crates/` of a crate of this workspace.
fn folder(name: &str) -> Option<&str> {
    if name == "synod" { Some(name) } else { name.strip_prefix("synod-") }
}

/// What the lines of these sections of a manifest name, in order.
fn names(manifest: &str, sections: &[&str]) -> Vec<String> {
    let (mut names, mut inside) = (Vec::new(), false);
    for line in manifest.lines().map(str::trim_end) {
        if line.starts_with('[') {
            inside = sections.contains(&line);
        } else if inside && line.starts_with(|first: char| first.is_ascii_alphabetic()) {
            let name = line.split(|it: char| !it.is_ascii_alphanumeric() && it != '-' && it != '_').next();
            names.extend(name.map(str::to_owned));
        }
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_are_found_by_way_of_others() {
        let tree = Tree::of(&[
            ("crates/wire/Cargo.toml", "[package]\nname = \"synod-wire\"\n"),
            ("crates/wire/src/lib.rs", ""),
            ("crates/kv/Cargo.toml", "[dependencies]\nsynod-wire.workspace = true\n"),
            ("crates/cli/Cargo.toml", "[dev-dependencies]\nsynod-kv = {}\n[features]\nsynod-lab = []\n"),
            ("crates/cli/src/main.rs", ""),
            ("crates/lab/Cargo.toml", "[dependencies]\nsynod = {}\n"),
        ]);
        let crates = crates(&tree);
        for (of, found) in [("wire", "cli kv wire"), ("kv", "cli kv"), ("lab", "lab")] {
            let all: Vec<_> = with_dependents(&crates, &BTreeSet::from([of])).into_iter().collect();
            assert_eq!(all.join(" "), found);
        }
        let [cli, .., wire] = &crates[..] else { panic!("{crates:?}") };
        assert!(wire.has_library && !wire.has_program && !cli.has_library && cli.has_program);
        assert_eq!(wire.package, "synod-wire");
    }
}
