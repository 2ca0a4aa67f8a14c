//! The crates of the workspace, and who depends on whom, read from their `Cargo.toml` files.

/// The sections of a manifest whose crates are built into what ships.
const SHIPPED: [&str; 2] = ["[dependencies]", "[build-dependencies]"];

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
