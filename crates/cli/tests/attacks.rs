//! The attacks as a program: a short run of some of them is made, judged and reported.
//!
//! This checks no bound of time, since the machine may have other things to do. docs/attacks.md has the
//! results of a long run, with etcd beside it.

mod commands;

use std::{fs, process::Output};

use self::commands::synod;

fn attacks(args: &[&str]) -> Output {
    synod(&[&["lab", "run", "attacks"], args].concat())
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}\n{err}", output.status)
}

#[test]
fn a_short_run_kills_no_replica_and_stays_within_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("attacks.md");
    let set = ["--set", "seconds=1", "--set", "small-keys=500", "--set", "ranges=200", "--set", "streams=50"];
    let to = ["--out", out.to_str().unwrap()];
    let said = said(&attacks(&[&["poison", "unread", "garbage"][..], &set, &to].concat()));
    for attack in ["## poison", "## unread", "## garbage"] {
        let section = said.split(attack).nth(1).unwrap_or_else(|| panic!("{attack} is missing in {said}"));
        let section = section.split("\n## ").next().unwrap();
        for bound in ["all servers live", "memory: at most 512 MiB more than before"] {
            assert!(section.contains(&format!("- kept: {bound}")), "{bound}, in {section}");
        }
    }
    let poison = "| answer to 104,976 ranges (1061 KiB) | InvalidArgument, 0 MiB";
    for part in [poison, "- kept: all serve after a restart", "- kept: all hold the same after a restart"] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    assert!(fs::read_to_string(out).unwrap().contains("## poison"));
}

/// Attacks servers that are killed as soon as they have anything in memory: a run says so, and fails.
#[test]
fn a_server_that_dies_breaks_a_bound() {
    let output = attacks(&["garbage", "--set", "seconds=1", "--set", "guard-mib=0"]);
    let said = said(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("BROKEN") && said.contains("to save the machine"),
        "{said}"
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |args: &[&str], why: &str| {
        let output = attacks(args);
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
    };
    refused(&["poisson"], "no attack poisson; there are poison");
    refused(&["--set", "kys=7"], "there are keys");
}
