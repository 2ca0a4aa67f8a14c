//! The files of the project, in memory: every check reads them here, and a sample is a tree of a few lines.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The names of files with text that a check reads end so.
const TEXTS: [&str; 6] = [".rs", ".md", ".txt", ".py", ".toml", ".yml"];

/// Folders that begin with a dot and belong to the project.
const HIDDEN: [&str; 3] = [".cargo", ".ci", ".github"];

/// Files by their paths below the project's root, parts separated by `/`. The text of a symbolic link, or of a file of
/// bytes, is empty.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

/// The folder that holds the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is still there")
}

impl Tree {
    /// Reads the project, without what `.gitignore` names.
    pub fn read(root: &Path) -> Result<Tree, String> {
        let failed = |path: &Path, why| format!("{}: {why}", path.display());
        let ignored = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
        let ignored: Vec<_> = ignored.lines().map(|line| line.trim().trim_matches('/')).collect();
        let mut tree = Tree::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).map_err(|why| failed(&folder, why))? {
                let entry = entry.map_err(|why| failed(&folder, why))?;
                let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
                let kind = entry.file_type().map_err(|why| failed(&path, why))?;
                if ignored.contains(&name.as_str()) {
                    continue;
                }
                if kind.is_dir() {
                    if !name.starts_with('.') || HIDDEN.contains(&name.as_str()) {
                        folders.push(path);
                    }
                    continue;
                }
                let is_text = kind.is_file() && TEXTS.iter().any(|end| name.ends_with(end));
                let text = if is_text {
                    fs::read_to_string(&path).map_err(|why| failed(&path, why))?
                } else {
                    String::new()
                };
                let below = path.strip_prefix(root).expect("the walk began there");
                tree.files.insert(below.to_string_lossy().replace('\\', "/"), text);
            }
        }
        Ok(tree)
    }

    /// The text of the file at `path`; empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// All files whose names have one of these ends, with their texts.
    pub fn ending<'a>(&'a self, ends: &'a [&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        let files = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        files.filter(|(path, _)| ends.iter().any(|end| path.ends_with(end)))
    }

    /// All files in a folder and in those that it holds, with their texts.
    pub fn below<'a>(&'a self, folder: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let start = format!("{folder}/");
        let files = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        files.filter(move |(path, _)| path.starts_with(&start))
    }

    /// Whether there is a file or a folder at this path.
    pub fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.below(path).next().is_some()
    }

    /// The names of the folders that stand directly in a folder, in order.
    pub fn folders(&self, folder: &str) -> Vec<&str> {
        let names = self.below(folder).filter_map(|(path, _)| {
            let (name, _) = path[folder.len() + 1..].split_once('/')?;
            Some(name)
        });
        let mut names: Vec<_> = names.collect();
        names.dedup();
        names
    }

    /// A tree of these files, for the samples of checks.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }
}

/// The path to which a link in the file at `from` leads.
pub fn resolve(from: &str, link: &str) -> String {
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_once_and_files_are_none() {
        let tree = Tree::of(&[("a/b/c.rs", "x"), ("a/b/d.rs", ""), ("a/e.rs", ""), ("ab/f/g.rs", "")]);
        assert_eq!(tree.folders("a"), ["b"]);
        assert!(tree.has("a/b") && tree.has("a/e.rs") && !tree.has("a/c.rs") && !tree.has("a/b/c"));
        assert_eq!(tree.text("a/b/c.rs"), "x");
    }

    #[test]
    fn a_link_leads_from_the_folder_of_its_page() {
        for (from, link, there) in [
            ("docs/a.md", "b.md", "docs/b.md"),
            ("docs/a.md", "../README.md", "README.md"),
            ("docs/results/a.md", "../pictures/", "docs/pictures"),
            ("README.md", "./docs", "docs"),
        ] {
            assert_eq!(resolve(from, link), there);
        }
    }
}
