//! `synod tune`: its page, the keys that it leaves, and what it refuses.

mod commands;

use std::path::Path;

use serde_json::Value;
use synod_testkit::{processes::Cluster, until};

use self::commands::{SYNOD, done, leader, synod};

/// Its loads are small and short: what is tested is not how fast this machine is.
const SMALL: &[&str] = &["tune", "--clients", "16", "--seconds", "1"];

#[test]
fn it_tells_what_a_cluster_can_do_and_leaves_no_keys() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &["--window-max", "24"]);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    leader(&endpoints);
    done(&all, &["put", "synod-tune/mine", "mine"]);
    until("all have told where clients reach them", || {
        !done(&all, &["member", "list"]).contains("unstarted")
    });

    let file = folder.path().join("proposed.yaml");
    let output = synod(
        &[SMALL, &["--endpoints", &endpoints[1], "-w", "json", "--write", file.to_str().unwrap()]].concat(),
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let found: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let loads = found["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 7, "{found:#}");
    assert!(loads.iter().all(|load| load["puts_per_second"].as_f64().unwrap() > 0.0), "{found:#}");
    assert_eq!(found["foretold"].as_array().unwrap().len(), 2, "{found:#}");
    assert_eq!(found["members"].as_array().unwrap().len(), 3, "the others are found through one");
    let advice = &found["advice"];
    assert_eq!(advice["settings"]["window_max"], 24, "{found:#}");
    assert!(advice["now"]["puts_per_second"].as_f64().unwrap() > 0.0, "{found:#}");
    assert!(!advice["changes"].as_array().unwrap().is_empty(), "{found:#}");
    let gain = found["gain"].as_f64().unwrap();
    let credible = found["error"].as_f64().is_some_and(|error| error <= 0.20);
    assert_eq!(output.status.code(), Some(i32::from(credible && gain > 0.10)), "{said}");
    let proposed = std::fs::read_to_string(&file).unwrap();
    assert!(
        proposed.contains(&format!("\nwindow-max: {}\n", advice["proposed"]["window_max"])),
        "{proposed}"
    );

    let again = synod(&[SMALL, &["--write", file.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(2) && said.contains("not there yet"), "{said}");
    assert_eq!(done(&all, &["get", "synod-tune", "--prefix", "--keys-only"]).trim(), "synod-tune/mine");

    // Two of three answer: what is measured now would not hold with the third.
    cluster.kill(2);
    let output = synod(&[SMALL, &["--endpoints", &endpoints[0]]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("2 of 3 voters answer") && said.contains("synod status --cluster"), "{said}");
}

#[test]
fn wrong_arguments_are_refused_with_what_is_accepted() {
    for (args, said) in [
        (&["--clients", "3"][..], "16..=4096"),
        (&["--target", "20"], "20ms or 1.5s"),
        (&["--target", "20ms"], "--rate"),
        (&["--endpoints", "ftp://a:1"], "http"),
    ] {
        let output = synod(&[&["tune"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(said), "{args:?}: {error}");
    }
}
