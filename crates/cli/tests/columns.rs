//! The output at a terminal of 80 columns, and the keys that a load leaves.

mod commands;

use std::path::Path;

use synod_testkit::{processes::Cluster, until};

use self::commands::{SYNOD, done, leader, synod};

/// Checks that no line is longer than a terminal is wide, and that none has colours, since this is no terminal.
#[track_caller]
fn fits(what: &str, text: &str) {
    for line in text.lines() {
        let columns = line.chars().count();
        assert!(columns <= 80, "{what}: {columns} columns\n{line}\n\n{text}");
    }
    assert!(!text.contains('\x1b'), "{what}: {text}");
}

#[track_caller]
fn keys(endpoints: &str) -> u64 {
    done(endpoints, &["get", "", "--prefix", "--count-only"]).trim().parse().unwrap()
}

/// The report of a load on 300 keys, and what it says beside.
#[track_caller]
fn bench(endpoints: &str, args: &[&str]) -> (String, String) {
    let mut all_args = vec!["bench"];
    all_args.extend(args);
    all_args.extend(["--endpoints", endpoints, "--key-space-size", "300"]);
    let output = synod(&all_args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

#[test]
fn status_members_and_bench_fit_into_80_columns_and_bench_leaves_no_keys() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &[]);
    let endpoints = cluster.endpoints();
    let leading = leader(&endpoints);
    let all = endpoints.join(",");
    // This puts a key of another client between those of the load, and one of the load's keys that was there before.
    done(&all, &["put", "00000005x", "mine"]);
    done(&all, &["put", "00099999", "before"]);
    until("all have told where clients reach them", || {
        !done(&all, &["member", "list"]).contains("unstarted")
    });

    let status = done(&endpoints[0], &["status", "--cluster"]);
    fits("status", &status);
    for part in [
        "Leader ",
        "Ordering    multipaxos, election ballot, dissemination leader\n",
        "Group ",
        "Durability  sync",
        "| NAME |",
    ] {
        assert!(status.contains(part), "{part} is not in\n{status}");
    }
    assert!(status.contains(&format!("Leader      n{}, ballot ", leading + 1)), "{status}");
    assert_eq!(status.matches("| leader ").count(), 1, "{status}");
    let wide = done(&endpoints[0], &["status", "--cluster", "-w", "wide"]);
    for column in [
        "| BALLOT ",
        "| ELECTION ",
        "| DISSEMINATION ",
        "| DURABILITY ",
        "| APPLIED ",
        "| SNAPSHOT ",
        "| REVISION ",
    ] {
        assert!(wide.contains(column), "{column} is not in\n{wide}");
    }
    let threads = done(&endpoints[leading], &["status", "--threads"]);
    fits("status --threads", &threads);
    for part in
        ["| THREAD ", "| protocol-", "Queues      protocol ", " of 32 slots under way", "Diagnosis   "]
    {
        assert!(threads.contains(part) || cfg!(not(target_os = "linux")), "{part} is not in\n{threads}");
    }
    let members = done(&all, &["member", "list"]);
    fits("member list", &members);
    let table = done(&all, &["member", "list", "-w", "table"]);
    fits("member list -w table", &table);
    assert_eq!(table.matches("| started ").count(), 3, "{table}");
    let wide = done(&all, &["member", "list", "-w", "wide"]);
    assert!(wide.contains("| IS LEARNER |"), "{wide}");

    let name = format!("n{}", leader(&endpoints) + 1);
    for format in ["simple", "table"] {
        assert_eq!(done(&all, &["move-leader", &name, "-w", format]), format!("{name} leads already\n"));
    }

    let bench = |args: &[&str]| bench(&all, args);
    let (report, said) = bench(&["put", "--sequential-keys", "--total", "1000", "--clients", "8"]);
    fits("bench put", &report);
    assert!(said.contains("Removed the 300 keys"), "{said}");
    assert_eq!(keys(&all), 2);
    assert_eq!(done(&all, &["get", "00000005x", "--print-value-only"]), "mine\n");
    assert_eq!(done(&all, &["get", "00099999", "--print-value-only"]), "before\n");

    let rate = ["mixed", "--rate", "200", "--poisson", "--duration", "2s", "--clients", "64"];
    fits("bench mixed", &bench(&rate).0);
    assert_eq!(keys(&all), 2);
    // These are the names of the flags in other tools.
    let kept = ["put", "--sequential-keys", "--total", "300", "--conns", "2", "--timeout", "9s", "--keep"];
    let (report, said) = bench(&kept);
    assert!(report.contains("1 client over 1 connection") && !said.contains("Removed"), "{report}{said}");
    assert_eq!(keys(&all), 302);
    let (report, _) = bench(&["get", "--total", "300", "-w", "wide"]);
    assert!(report.contains("Found       300 of 300") && report.contains("stddev"), "{report}");
    assert_eq!(keys(&all), 302, "reads remove nothing");
}
