//! Real processes of a cluster of several groups: keys are spread over them, and each group orders its own.

mod commands;

use std::{collections::BTreeSet, fs, io::Write as _, path::Path, process::Stdio};

use synod_testkit::{WAIT_MAX, free_port, processes::Cluster, until};

use self::commands::{SYNOD, done, page, status, synod};

const FLAGS: [&str; 3] = ["--election-timeout=600ms", "--heartbeat-interval=60ms", "--groups=shard:4"];

/// Runs a command that must be refused, and returns what it said.
#[track_caller]
fn refused(endpoints: &str, args: &[&str], input: &str) -> String {
    let mut command = std::process::Command::new(SYNOD);
    command.args(args).args(["--endpoints", endpoints, "--command-timeout", "20s"]);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = pipes.spawn().unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    assert!(!output.status.success(), "{args:?} is not refused");
    String::from_utf8(output.stderr).unwrap()
}

/// The last slot that a replica has executed in each group.
fn applied(endpoint: &str) -> Option<Vec<u64>> {
    let groups = status(endpoint)?["groups"].as_array()?.clone();
    groups.iter().map(|group| group["applied"].as_u64()).collect()
}

/// Whether every group, as a replica knows them, has the members of group 0, and these vote. (A new member may have the
/// name of an old one, so they are told apart by their ids.)
fn has_voters(endpoint: &str, ids: &[u64]) -> bool {
    let Some(status) = status(endpoint) else { return false };
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let members = list("members");
    let voters: Vec<_> = members.iter().filter(|member| member["standing"] == "votes").collect();
    let groups = list("groups");
    groups.len() == 4
        && groups.iter().all(|group| group["members_pending"] == "")
        && voters.iter().map(|member| &member["ID"]).eq(ids)
}

/// Waits until a replica itself has this value of each key.
#[track_caller]
fn has_everything(endpoint: &str, value: impl Fn(usize) -> String) {
    let get = |number: usize| {
        let key = format!("key{number}");
        synod(&["get", &key, "--serializable", "--print-value-only", "--endpoints", endpoint]).stdout
    };
    until("the replica has everything", || {
        (0..12).all(|number| String::from_utf8(get(number)).unwrap().trim() == value(number))
    });
}

/// The disk of a replica is lost, later another replica leaves, and of the rest one disk is lost for good: each group
/// goes on with all that was written.
#[test]
fn a_dead_replica_is_replaced_a_live_one_leaves_and_a_lost_quorum_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &FLAGS);
    let three = cluster.endpoints();
    let key = |number: usize| format!("key{number}");
    until("they serve", || synod(&["put", "key0", "v", "--endpoints", &three.join(",")]).status.success());
    for number in 0..12 {
        done(&three[number % 3], &["put", &key(number), &format!("value{number}")]);
    }
    cluster.kill(2);
    fs::remove_dir_all(cluster.data_dir(2)).unwrap();
    cluster.restart(2);
    until("the wiped replica is refused", || cluster.said(2).contains("synod member replace"));
    cluster.kill(2);

    let two = three[..2].join(",");
    let port = cluster.peer_port(2);
    let url = format!("http://127.0.0.1:{port}");
    let said = done(&two, &["member", "replace", "n3", "n3", "--peer-urls", &url, "--wait=false"]);
    assert!(said.contains("--initial-cluster-state existing"), "{said}");
    let wrong = cluster.join("n3", port, &["--groups=shard:2"]);
    assert_eq!(cluster.ends(wrong, WAIT_MAX).code(), Some(2));
    assert!(cluster.said(wrong).contains("accepted: --groups shard:4"), "{}", cluster.said(wrong));
    // Without the flag it takes the number of its cluster.
    let new = cluster.join("n3", port, &FLAGS[..2]);
    let fresh = cluster.endpoints()[new].clone();
    until("the new member votes in every group", || {
        [&three[0], &three[1], &fresh].iter().all(|endpoint| has_voters(endpoint, &[1, 2, 4]))
    });
    assert!(done(&two, &["status"]).contains("as group 0"));
    has_everything(&fresh, |number| format!("value{number}"));

    let said = done(&two, &["member", "remove", "n1"]);
    assert!(said.contains("removed"), "{said}");
    assert!(cluster.ends(0, WAIT_MAX).success());
    assert!(cluster.said(0).contains("was removed from the cluster"), "{}", cluster.said(0));
    let left = [three[1].as_str(), &fresh].join(",");
    until("every group is without it", || has_voters(&three[1], &[2, 4]));
    for number in 0..12 {
        let found = done(&left, &["get", &key(number), "--print-value-only"]);
        assert_eq!(found.trim(), format!("value{number}"));
        done(&left, &["put", &key(number), "again"]);
    }

    // One disk is left. All of its groups begin a new cluster, which another replica can join.
    cluster.kill(1);
    let dir = cluster.data_dir(new).to_str().unwrap().to_owned();
    cluster.kill(new);
    let verify = String::from_utf8(synod(&["wal", "verify", &dir]).stdout).unwrap();
    assert!((0..4).all(|group| verify.contains(&format!("of group {group}\n"))), "{verify}");
    let recovered = synod(&["recover", "--force-new-cluster", "--yes", "--data-dir", &dir]);
    let said = String::from_utf8_lossy(&recovered.stderr);
    assert!(
        recovered.status.success() && said.contains("Kept: everything of group 3 through slot"),
        "{said}"
    );
    cluster.restart(new);
    until("the survivor serves alone", || has_voters(&fresh, &[5]));
    until("it has a leader of each group", || {
        (0..12).all(|n| synod(&["get", &key(n), "--endpoints", &fresh]).status.success())
    });
    has_everything(&fresh, |_| "again".to_owned());
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    done(&fresh, &["member", "add", "n4", "--peer-urls", &url, "--wait=false"]);
    let joined = cluster.join("n4", port, &FLAGS[..2]);
    let joined = cluster.endpoints()[joined].clone();
    until("the new member votes in every group", || {
        [&fresh, &joined].iter().all(|endpoint| has_voters(endpoint, &[5, 6]))
    });
    has_everything(&joined, |_| "again".to_owned());
}

/// The metrics that the packaged alert rules ask for, by the names of their samples.
fn asked_for_by_alerts() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/synod.rules.yml");
    let rules = fs::read_to_string(path).unwrap();
    let words = rules.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
    let is_metric =
        |word: &&str| ["synod_", "process_", "etcd_", "grpc_"].iter().any(|start| word.starts_with(start));
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Group 1 has two voters, and one of them loses its log: the store stands still for good, and an operator is told why.
#[test]
fn a_lost_log_is_told_of_the_group_that_needs_it() {
    let flags = [FLAGS[0], FLAGS[1], "--groups=merge:2", "--protocol=ring"];
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    until("they serve", || synod(&["put", "key", "v", "--endpoints", &all]).status.success());
    done(&all, &["reconfigure", "--group", "1", "--voters", "n1,n2"]);
    let group = |at: usize, number: usize| status(&endpoints[at]).map(|told| told["groups"][number].clone());
    until("n3 has no vote in group 1", || {
        (0..3).all(|at| group(at, 1).is_some_and(|group| group["voters"] == serde_json::json!(["n1", "n2"])))
    });
    done(&all, &["put", "key", "w"]);
    // Groups in one order have every metric.
    let asked = asked_for_by_alerts();
    assert!(asked.len() > 15, "{asked:?}");
    until(&format!("the page has all of {asked:?}"), || {
        let metrics = page(&endpoints[0], "/metrics").1;
        let there: BTreeSet<_> = metrics.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        asked.iter().all(|name| there.contains(name.as_str()))
    });
    cluster.kill(0);
    fs::remove_dir_all(cluster.data_dir(0).join("wal")).unwrap();
    cluster.restart(0);
    until("group 0 takes n1 back, and group 1 cannot", || {
        group(0, 0).is_some_and(|group| group["without_memory"] == false)
            && group(0, 1).is_some_and(|group| group["without_memory"] == true)
    });
    assert_eq!(group(0, 1).unwrap()["role"], "recovering");
    assert_eq!(status(&endpoints[0]).unwrap()["without_memory"], true);
    // n3 has no vote in group 1, and needs none.
    assert_eq!(group(2, 1).unwrap()["role"], "learner");
    assert_eq!(status(&endpoints[2]).unwrap()["without_memory"], false);
    synod(&["put", "key", "x", "--endpoints", &endpoints[1], "--command-timeout", "2s"]);
    let said = |endpoints: &str| {
        let output = synod(&["status", "--endpoints", endpoints]);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let own = said(&endpoints[0]);
    assert!(own.contains("has lost (part of) its log of group 1 and has no vote in group 1"), "{own}");
    assert!(own.contains("the voters that are left (n2) are no majority, so waiting does not help"), "{own}");
    until("the others say which group they wait for, and how to find out why", || {
        let other = said(&endpoints[1]);
        other.contains("commands have waited for group 1 for") && other.contains("synod status --cluster")
    });
    let whole = said(&all);
    assert!(whole.contains("1 of 2 voters of group 1 have lost (part of) their logs (n1)"), "{whole}");
    assert!(whole.contains(" recovering"), "{whole}");
    let metrics = page(&endpoints[0], "/metrics").1;
    for line in ["synod_group_without_memory{group=\"1\"} 1", "synod_group_role{group=\"1\"} 3"] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    let metrics = page(&endpoints[1], "/metrics").1;
    let waits = |of: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix("{group=\"1\"} "));
        value.unwrap_or_else(|| panic!("{of} is missing in {metrics}")).parse::<f64>().unwrap()
    };
    let (seconds, millis) = (waits("synod_merge_waits_seconds"), waits("synod_merge_waits_ms"));
    assert!(seconds > 0.0 && (seconds * 1e3 - millis).abs() <= 1.0, "{seconds} s, {millis} ms");
}

#[test]
fn keys_are_spread_over_groups_and_each_replica_serves_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_some(Path::new(SYNOD), folder.path(), 3, 2, &FLAGS);
    let endpoints = cluster.endpoints();

    // A replica with another number belongs to another cluster.
    cluster.restart_with(2, &["--groups=shard:2"]);
    until("both numbers are told", || {
        let said = cluster.said(0);
        said.contains("it was started with --groups shard:2, and this one with --groups shard:4")
    });
    cluster.kill(2);
    fs::remove_dir_all(cluster.data_dir(2)).unwrap();
    cluster.restart_with(2, &["--groups=shard:4"]);
    until("a leader of each group", || {
        let led = |group: &serde_json::Value| group["leader"].as_str().is_some_and(|name| !name.is_empty());
        endpoints.iter().all(|endpoint| {
            status(endpoint).is_some_and(|status| status["groups"].as_array().unwrap().iter().all(led))
        })
    });

    let key = |number: usize| format!("key{number}");
    for number in 0..12 {
        done(&endpoints[number % 3], &["put", &key(number), &format!("value{number}")]);
        let found = done(&endpoints[(number + 1) % 3], &["get", &key(number), "--print-value-only"]);
        assert_eq!(found.trim(), format!("value{number}"));
    }
    // The generator goes by the native API.
    let everywhere = endpoints.join(",");
    let bench = |args: &[&str]| {
        let sizes = ["--total", "200", "--clients", "4", "--key-space-size", "50"];
        synod(&[&["bench"], args, &["--endpoints", &everywhere, "-w", "json"], &sizes].concat())
    };
    let said = String::from_utf8(bench(&["put"]).stderr).unwrap();
    assert!(said.contains("several groups") && said.contains("accepted: --keep"), "{said}");
    for args in [&["put", "--sequential-keys", "--keep"][..], &["get"]] {
        let report: serde_json::Value = serde_json::from_slice(&bench(args).stdout).unwrap();
        assert_eq!((&report["answered"], &report["failed"]), (&200.into(), &0.into()), "{report}");
        assert!(args[0] == "put" || report["found"] == 200, "{report}");
    }
    let used = applied(&endpoints[0]).unwrap();
    assert_eq!(used.len(), 4);
    let all = endpoints.join(",");
    assert!(done(&all, &["status"]).contains("4 groups"));
    assert!(done(&all, &["member", "list"]).contains(&endpoints[1]), "a member has told its client URLs");

    what_has_no_single_order_is_refused(&all, &endpoints[2]);

    // A replica that was killed comes back, and only with the number of its data.
    cluster.kill(1);
    for number in 0..12 {
        done(&endpoints[0], &["put", &key(number), "again"]);
    }
    assert_eq!(done(&endpoints[2], &["del", &key(0)]).trim(), "1");
    cluster.restart_with(1, &["--groups=shard:3"]);
    assert_eq!(cluster.ends(1, WAIT_MAX).code(), Some(2));
    let said = cluster.said(1);
    assert!(said.contains("--groups shard:3: ") && said.contains("accepted: --groups shard:4"), "{said}");
    cluster.restart_with(1, &["--groups=shard:4"]);
    until("the killed replica has everything", || {
        let own = ["get", &key(11), "--serializable", "--print-value-only", "--endpoints", &endpoints[1]];
        let there = String::from_utf8(synod(&own).stdout).unwrap();
        there.trim() == "again"
            && applied(&endpoints[1]).is_some_and(|own| Some(own) >= applied(&endpoints[0]))
    });
    for number in 1..12 {
        let found = done(&endpoints[1], &["get", &key(number), "--print-value-only"]);
        assert_eq!(found.trim(), "again");
    }
    assert_eq!(done(&endpoints[1], &["get", &key(0)]), "");
}

/// Ranges, transactions and changes of settings need one group, which some commands name.
fn what_has_no_single_order_is_refused(all: &str, third: &str) {
    let said = refused(all, &["compact", "3"], "");
    assert!(said.contains("spread over several groups") && said.contains("synod.v1.Native"), "{said}");
    for range in [["get", "key", "--prefix"], ["del", "key", "--prefix"]] {
        let said = refused(all, &range, "");
        assert!(said.contains("a range of keys lies in several groups"), "{said}");
    }
    let said = refused(all, &["txn"], "\nput key0 a\nput key1 a\nput key2 a\nput key3 a\n\n\n");
    assert!(said.contains("which have no common order"), "{said}");
    let said = refused(all, &["reconfigure", "--limits", "max-txn-ops=9"], "");
    assert!(said.contains("reconfigure --group"), "{said}");
    assert!(
        done(all, &["reconfigure", "--group", "2", "--limits", "max-txn-ops=9"]).contains("max-txn-ops=9")
    );
    let said = done(all, &["reconfigure", "--all-groups", "--limits", "max-txn-ops=9"]);
    assert!(
        said.contains("Group 2: nothing would change\n") && said.matches("; the group is at").count() == 3
    );
    done(all, &["move-leader", "--group", "3", "n3"]);
    assert_eq!(status(third).unwrap()["groups"][3]["role"], "leader");

    assert!(done(all, &["compact", "--group", "1", "1", "--disarm"]).contains("compacted revision 1"));
    assert_eq!(done(all, &["compact", "--group", "1", "--disarm"]), "cleared 0 alarms of group 1\n");
    for absent in [&["compact", "--group", "9", "1"][..], &["move-leader", "--group", "9", "n3"]] {
        let said = refused(all, absent, "");
        assert!(said.contains("there is no group 9"), "{said}");
    }
}

/// A group is moved among the members, and each replica is asked for all keys.
#[test]
fn a_group_of_some_members_is_served_by_them_and_clients_find_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &FLAGS);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    let key = |number: usize| format!("key{number}");
    until("they serve", || {
        (0..12).all(|number| synod(&["put", &key(number), "v", "--endpoints", &all]).status.success())
    });
    let role = |of: usize| Some(status(&endpoints[of])?["groups"][1]["role"].as_str()?.to_owned());
    let serves = |of: usize, value: &str| {
        for number in 0..12 {
            done(&endpoints[of], &["put", &key(number), value]);
            assert_eq!(done(&endpoints[of], &["get", &key(number), "--print-value-only"]).trim(), value);
        }
    };
    let place =
        |endpoints: &str, args: &[&str]| done(endpoints, &[&["reconfigure", "--group", "1"], args].concat());

    let said = place(&all, &["--voters", "n1,n2", "--others", "away"]);
    assert!(said.contains("Group 1: n1, n2 vote, the others stay away"), "{said}");
    until("n3 is away", || role(2).as_deref() == Some("away"));
    serves(2, "a");
    let said = done(&all, &["status"]);
    assert!(said.contains("n1, n2 vote, the others stay away") && said.contains("n3 away"), "{said}");
    assert_eq!(status(&endpoints[0]).unwrap()["groups"][1]["voters"], serde_json::json!(["n1", "n2"]));
    assert!(done(&endpoints[2], &["status"]).contains("away"));

    // The replica that is asked takes no part in the group, and the client goes to one that does.
    place(&endpoints[2], &["--voters", "n2,n3", "--others", "away"]);
    until("n1 is away", || role(0).as_deref() == Some("away") && role(2).as_deref() != Some("away"));
    serves(0, "b");

    let said = refused(&all, &["reconfigure", "--group", "0", "--voters", "n1"], "");
    assert!(said.contains("only a group that follows group 0"), "{said}");
    let said = refused(&all, &["reconfigure", "--voters", "n1"], "");
    assert!(said.contains("--group"), "{said}");
    place(&all, &["--voters", "n3"]);
    until("n3 votes alone", || {
        status(&endpoints[2]).is_some_and(|status| status["groups"][1]["voters"] == serde_json::json!(["n3"]))
    });
    let said = refused(&all, &["member", "remove", "n3"], "");
    assert!(said.contains("is the only member that votes in group 1"), "{said}");
    place(&all, &["--voters", "n3", "--others", "away"]);
    until("n1 is away", || role(0).as_deref() == Some("away"));
    let said = refused(&endpoints[0], &["member", "remove", "n3"], "");
    assert!(said.contains("votes in group 1, as far as this replica knows"), "{said}");
    serves(0, "c");

    place(&all, &["--members-follow"]);
    until("the group has all members", || {
        endpoints.iter().all(|endpoint| {
            let Some(status) = status(endpoint) else { return false };
            let group = &status["groups"][1];
            group["placement"] == ""
                && group["members_pending"] == ""
                && group["voters"].as_array().unwrap().len() == 3
        })
    });
    cluster.kill(2);
    until("a leader of each group", || {
        (0..12).all(|number| synod(&["get", &key(number), "--endpoints", &endpoints[0]]).status.success())
    });
    serves(1, "d");
}
