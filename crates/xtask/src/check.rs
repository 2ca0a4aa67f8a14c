//! `check`: what can be known about a change within two minutes.

use std::{collections::BTreeSet, time::Instant};

use crate::{
    Failure,
    commands::{self, cargo, output, program, run},
    tidy::{Tree, root},
    workspace::{self, Crate},
};

/// Files of the whole workspace: a change of one concerns every crate.
const SHARED: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", ".cargo/config.toml"];

/// Crates whose tests are built with all optimisations, which takes minutes: their unit tests are left to `ci`.
const SLOW: [&str; 1] = ["sim"];

/// Branches with which a change is compared, the first one that there is.
const BASES: [&str; 2] = ["origin/main", "main"];

pub fn check(arguments: &[String]) -> Result<(), Failure> {
    let since = match arguments {
        [] => None,
        [flag, revision] if flag == "--since" => Some(revision.as_str()),
        _ => {
            return Err(Failure::Usage(format!(
                "it takes --since REVISION or nothing, and not {}",
                arguments.join(" ")
            )));
        }
    };
    let begun = Instant::now();
    run(cargo().args(["fmt", "--all", "--check"]))
        .map_err(|_| Failure::Wrong("the format is another: run `cargo fmt --all`".to_owned()))?;
    eprintln!("--- tidy");
    commands::tidy(&[])?;

    let crates = workspace::crates(&Tree::read(&root()).map_err(Failure::Wrong)?);
    let files = changed_files(since)?;
    let changed = changed_crates(&crates, &files);
    if changed.is_empty() {
        eprintln!("No crate has changed. All is well after {} s.", begun.elapsed().as_secs());
        return Ok(());
    }
    let concerned = workspace::with_dependents(&crates, &changed);
    let packages = |names: &BTreeSet<&str>| {
        let chosen = crates.iter().filter(|it| names.contains(it.folder.as_str()));
        chosen.flat_map(|it| ["--package".to_owned(), it.package.clone()]).collect::<Vec<_>>()
    };
    run(cargo().arg("clippy").args(packages(&concerned)).args(["--all-targets", "--", "-D", "warnings"]))?;
    let quick = with(&crates, &changed, |it| !SLOW.contains(&it.folder.as_str()));
    let libraries = with(&crates, &quick, |it| it.has_library);
    let programs = with(&crates, &quick, |it| it.has_program);
    for (kind, names) in [("--lib", libraries), ("--bins", programs)] {
        if !names.is_empty() {
            run(cargo().arg("test").args(packages(&names)).arg(kind))?;
        }
    }
    let left = changed.difference(&quick).map(|name| format!(", and unit tests of {name}"));
    let left: String = left.collect();
    eprintln!("All is well after {} s. Left to `ci`: suites{left}.", begun.elapsed().as_secs());
    Ok(())
}

/// Those of the crates of which this is true.
fn with<'a>(
    crates: &[Crate],
    names: &BTreeSet<&'a str>,
    is_so: impl Fn(&Crate) -> bool,
) -> BTreeSet<&'a str> {
    let is_one = |name: &&str| crates.iter().any(|it| it.folder == *name && is_so(it));
    names.iter().copied().filter(is_one).collect()
}

/// The files that differ from where this branch left main, or from another revision, and those new to git.
fn changed_files(since: Option<&str>) -> Result<Vec<String>, Failure> {
    let is_there = |name: &&&str| {
        let found = program("git").args(["rev-parse", "--quiet", "--verify", name]).output();
        found.is_ok_and(|it| it.status.success())
    };
    let base = match (since, BASES.iter().find(is_there)) {
        (Some(revision), _) => revision.to_owned(),
        (None, Some(main)) => output(program("git").args(["merge-base", "HEAD", main]))?.trim().to_owned(),
        (None, None) => "HEAD".to_owned(),
    };
    let mut files = output(program("git").args(["diff", "--name-only", &base, "--"]))?;
    files += &output(program("git").args(["ls-files", "--others", "--exclude-standard"]))?;
    Ok(files.lines().map(str::to_owned).collect())
}

/// The folders of the crates to which these files belong.
fn changed_crates<'a>(crates: &'a [Crate], files: &[String]) -> BTreeSet<&'a str> {
    let is_shared = files.iter().any(|file| SHARED.contains(&file.as_str()));
    let is_changed = |it: &&Crate| {
        let folder = format!("crates/{}/", it.folder);
        is_shared || files.iter().any(|file| file.starts_with(&folder))
    };
    crates.iter().filter(is_changed).map(|it| it.folder.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_choose_crates() {
        let tree = Tree::of(&[
            ("crates/kv/Cargo.toml", "[package]\nname = \"synod-kv\"\n"),
            ("crates/wire/Cargo.toml", "[package]\nname = \"synod-wire\"\n"),
        ]);
        let crates = workspace::crates(&tree);
        let chosen = |file: &str| {
            changed_crates(&crates, &[file.to_owned()]).into_iter().collect::<Vec<_>>().join(" ")
        };
        for (file, folders) in [
            ("crates/kv/src/a.rs", "kv"),
            ("crates/kv2/src/a.rs", ""),
            ("docs/kv.md", ""),
            ("Cargo.lock", "kv wire"),
        ] {
            assert_eq!(chosen(file), folders, "{file}");
        }
    }
}
