//! `synod tail`: real processes of merged groups, and those who follow what they decide.

mod commands;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use synod_testkit::{processes::Cluster, until};

use self::commands::{SYNOD, done, synod};

const FLAGS: [&str; 3] = ["--election-timeout=1500ms", "--heartbeat-interval=150ms", "--groups=merge:3"];

/// A tail that runs, and prints to a file.
struct Tail {
    process: Child,
    printed: PathBuf,
}

impl Tail {
    fn start(folder: &Path, name: &str, endpoints: &str, args: &[&str]) -> Tail {
        let printed = folder.join(name);
        let mut command = Command::new(SYNOD);
        // A busy machine may take long for an election.
        command.args(["tail", "--endpoints", endpoints, "--command-timeout", "60s"]).args(args);
        command.stdin(Stdio::null()).stdout(fs::File::create(&printed).unwrap()).stderr(Stdio::piped());
        Tail { process: command.spawn().unwrap(), printed }
    }

    fn lines(&self) -> Lines {
        lines(&self.printed)
    }

    /// Ends it as a person does: what it has printed, and what it says at its end.
    fn end(self) -> (Lines, String) {
        let pid = Pid::from_raw(self.process.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let output = self.process.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        (lines(&self.printed), said)
    }
}

/// For each line where a command was decided, and the command.
type Lines = Vec<(String, String)>;

fn lines(printed: &Path) -> Lines {
    let line = |line: &str| {
        let (place, what) = line.split_once(char::is_whitespace)?;
        Some((place.to_owned(), what.trim().to_owned()))
    };
    // What follows the last line break is being printed.
    fs::read_to_string(printed)
        .unwrap()
        .split_inclusive('\n')
        .filter(|text| text.ends_with('\n'))
        .filter_map(line)
        .collect()
}

/// Writers write to all replicas while one tail follows all groups and another one two of them, both at a replica
/// that is killed: they go on, and have the same order, with every acknowledged put once.
#[test]
fn tails_agree_and_lose_nothing_when_their_replica_dies() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &FLAGS);
    let endpoints = cluster.endpoints();
    let three = endpoints.join(",");
    // They begin with the replica that will die.
    let dying_first = format!("{},{},{}", endpoints[2], endpoints[0], endpoints[1]);
    until("they serve", || synod(&["put", "first", "x", "--endpoints", &three]).status.success());
    let all = Tail::start(folder.path(), "all", &dying_first, &["--from", "beginning"]);
    let some = Tail::start(folder.path(), "some", &dying_first, &["--from", "beginning", "--groups", "0,2"]);
    let put = |number: usize, endpoints: &str| done(endpoints, &["put", &format!("key{number}"), "x"]);
    // Each replica gives what it is asked to a group of its own.
    (0..12).for_each(|number| _ = put(number, &endpoints[number % 3]));
    until("both have begun", || all.lines().len() > 9 && some.lines().len() > 4);
    cluster.kill(2);
    let two = format!("{},{}", endpoints[0], endpoints[1]);
    until("the others go on", || synod(&["put", "between", "x", "--endpoints", &two]).status.success());
    // Until all groups have leaders, a put may fail and be decided all the same.
    let again = |key: &str, endpoint: &str| {
        until("it is put", || synod(&["put", key, "x", "--endpoints", endpoint]).status.success());
    };
    (12..24).for_each(|number| again(&format!("key{number}"), &endpoints[number % 2]));
    (0..2).for_each(|number| again(&format!("last{number}"), &endpoints[number]));
    let has = |tail: &Tail, what: &str| tail.lines().iter().any(|(_, line)| line.contains(what));
    until("both go on at another replica", || has(&all, "last0") && has(&all, "last1"));
    let (all, said) = all.end();
    let wanted: Vec<_> = all.iter().filter(|(place, _)| !place.starts_with("1:")).cloned().collect();
    until("the tail of two groups has as much", || some.lines().len() >= wanted.len());
    let (some, _) = some.end();
    assert_eq!(some, wanted);
    for number in 0..24 {
        let line = format!("put \"key{number}\" \"x\"");
        let count = all.iter().filter(|(_, what)| *what == line).count();
        assert!(count == 1 || count > 1 && number >= 12, "{line}: {all:?}");
    }
    let once: BTreeSet<_> = all.iter().collect();
    assert_eq!(once.len(), all.len(), "{all:?}");
    // What it says to give in order to go on is where it ended.
    let from = said.split("--from ").nth(1).unwrap().trim();
    done(&two, &["put", "more", "x"]);
    let more = done(&two, &["tail", "--from", from, "-n", "1", "-w", "json"]);
    let more: serde_json::Value = serde_json::from_str(&more).unwrap();
    assert_eq!(more["put"]["key"], "bW9yZQ==");
    assert!(more["position"].as_u64().is_some());
}
