//! The crates of this workspace on which each crate rests: the picture of ARCHITECTURE.md, from the bottom up.

use super::{Report, tree::Tree};
use crate::workspace;

/// A crate may depend on these and on no others, outside of its tests. A row names only crates of rows above it.
const ROOMS: [(&str, &[&str]); 24] = [
    ("wire", &[]),
    ("sync", &[]),
    ("metrics", &[]),
    ("tls", &[]),
    ("api", &[]),
    ("model", &[]),
    ("xtask", &[]),
    ("kernel-core", &[]),
    ("consensus", &["kernel-core", "wire"]),
    ("replica", &["consensus", "wire"]),
    ("host", &["replica", "wire"]),
    ("storage", &["sync", "wire"]),
    ("testkit", &["storage", "wire"]),
    ("transport", &["metrics", "sync", "tls", "wire"]),
    ("kv", &["api", "replica", "wire"]),
    ("node", &["consensus", "host", "metrics", "replica", "storage", "sync", "transport", "wire"]),
    ("grpc", &["tls"]),
    (
        "server",
        &[
            "api",
            "consensus",
            "grpc",
            "kv",
            "metrics",
            "node",
            "replica",
            "storage",
            "tls",
            "transport",
            "wire",
        ],
    ),
    ("client", &["api", "tls"]),
    ("sim", &["api", "consensus", "host", "kv", "replica", "storage", "testkit", "wire"]),
    ("synod", &["consensus", "node", "replica", "storage", "testkit", "tls", "transport", "wire"]),
    (
        "fuzz",
        &[
            "api",
            "consensus",
            "grpc",
            "kv",
            "node",
            "replica",
            "server",
            "storage",
            "testkit",
            "transport",
            "wire",
        ],
    ),
    (
        "lab",
        &["api", "client", "consensus", "host", "model", "node", "replica", "sim", "storage", "tls", "wire"],
    ),
    (
        "cli",
        &[
            "api",
            "client",
            "consensus",
            "kv",
            "lab",
            "metrics",
            "node",
            "replica",
            "server",
            "sim",
            "storage",
            "tls",
            "wire",
        ],
    ),
];

/// What pure crates may take from outside the workspace: nothing with a clock, a socket or a random number of its own.
const PURE: [(&str, &[&str]); 6] = [
    ("model", &[]),
    ("wire", &["bytes", "crc32fast", "thiserror"]),
    ("consensus", &["bytes", "thiserror"]),
    ("replica", &["bytes", "crc32fast", "thiserror"]),
    ("host", &["bytes"]),
    ("kv", &["base64", "bytes", "crc32c", "crc32fast", "imbl", "prost", "sha2", "thiserror"]),
];

pub fn dependencies(tree: &Tree) -> Report {
    let mut report = Report::default();
    for room in tree.folders("crates") {
        let manifest = format!("crates/{room}/Cargo.toml");
        let (own, others) = workspace::dependencies(tree.text(&manifest));
        report.looked += 1;
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            report.findings.push(format!("{manifest}: {room} has no row in the table of {}", file!()));
            continue;
        };
        let rests = |it: &&&str| own.iter().any(|name| name == **it);
        let more = own.iter().filter(|name| !allowed.contains(&name.as_str()));
        report
            .findings
            .extend(more.map(|name| format!("{manifest}: {room} may not depend on {name} ({})", file!())));
        let fewer = allowed.iter().filter(|it| !rests(it));
        report.findings.extend(fewer.map(|name| {
            format!("{manifest}: {room} does not depend on {name} any more: mend its row in {}", file!())
        }));
        let pure = PURE.iter().find(|(name, _)| *name == room).map(|(_, allowed)| allowed);
        let impure =
            others.iter().filter(|name| pure.is_some_and(|allowed| !allowed.contains(&name.as_str())));
        report
            .findings
            .extend(impure.map(|name| format!("{manifest}: {room} is pure, and may not depend on {name}")));
    }
    report
}

#[cfg(test)]
use super::tests::{Sample, bad, good};

#[cfg(test)]
pub const SAMPLES: &[Sample] = &[
    good(
        "rooms",
        &[
            (
                "crates/wire/Cargo.toml",
                "[dependencies]\nbytes.workspace = true\n\n[dev-dependencies]\ntokio = \"1\"\n",
            ),
            (
                "crates/consensus/Cargo.toml",
                "[dependencies]\nsynod-kernel-core = {}\nsynod-wire = { workspace = true }\n",
            ),
            ("crates/sync/Cargo.toml", "[dependencies]\n# A scheduler.\nshuttle = { workspace = true }\n"),
        ],
    ),
    bad(
        "rooms",
        &[(
            "crates/consensus/Cargo.toml",
            "[dependencies]\nsynod-kernel-core = {}\nsynod-wire = {}\nsynod-kv = {}",
        )],
        "may not depend on kv",
    ),
    bad(
        "rooms",
        &[(
            "crates/consensus/Cargo.toml",
            "[dependencies]\nsynod-kernel-core = {}\n\n[dev-dependencies]\nsynod-wire = {}",
        )],
        "depend on wire any more",
    ),
    bad("rooms", &[("crates/wire/Cargo.toml", "[dependencies]\ntokio.workspace = true")], "wire is pure"),
    bad("rooms", &[("crates/cellar/Cargo.toml", "[dependencies]\n")], "cellar has no row"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_point_down_only() {
        for (row, (room, allowed)) in ROOMS.iter().enumerate() {
            let is_below = |name: &&str| ROOMS[..row].iter().any(|(below, _)| below == name);
            assert!(
                allowed.iter().all(is_below),
                "{room} rests on a crate that stands below it in the table"
            );
            assert!(allowed.is_sorted(), "{room}");
        }
    }
}
