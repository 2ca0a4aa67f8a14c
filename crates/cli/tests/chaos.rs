//! The chaos run as a program: it does what it is told, says what it found, and leaves nothing behind.
//!
//! These runs are short and use the relay, which needs no privileges. docs/chaos.md has the results of a long run.

mod commands;

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use synod_testkit::{WAIT_MAX, until};

use self::commands::SYNOD;

fn chaos(data: &Path, args: &[&str]) -> Child {
    chaos_on("relay", data, args)
}

fn chaos_on(network: &str, data: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(SYNOD);
    command.args(["lab", "run", "chaos", "--network", network, "--seed", "5", "--data"]).arg(data).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}\n{err}", output.status)
}

/// How many processes have the data of this run in their command line.
fn processes(data: &Path) -> usize {
    let data = data.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(data)).count()
}

#[test]
fn a_short_run_applies_its_faults_and_finds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let faults = "kill,cut-one-way,move-leader,replace,wipe";
    // On a very busy machine too few operations may be completed in so short a time, too few events told, and locks may
    // change hands too seldom; but on no machine may anything be broken.
    let run = |seconds: &&str| {
        let data = folder.path().join(seconds);
        let output = chaos(&data, &["--seconds", seconds, "--faults", faults]).wait_with_output().unwrap();
        let said = said(&output);
        for part in ["Seed: 5", "| kill | ", "| replace | ", "| wipe | ", "Verdict: "] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
        let is_broken = ["BROKEN", "not linearizable", "violations"].iter().any(|part| said.contains(part));
        assert!(!is_broken, "{said}");
        assert!(output.status.success() || said.contains("is not covered"), "{said}");
        output.status.success().then_some(data)
    };
    let data = ["20", "60"].iter().find_map(run).expect("all is covered in a minute");
    assert!(fs::read_to_string(data.join("report.md")).unwrap().contains("Verdict: "));
    let timeline = fs::read_to_string(data.join("timeline.csv")).unwrap();
    assert!(timeline.contains(",event,\"kill n") && timeline.contains(",measured,"), "{timeline}");
    assert_eq!(processes(&data), 0);
}

/// Each replica begins with what its disk held when it began the time before, so a crash of all replicas
/// loses acknowledged writes, and no replica is left that could know.
#[test]
fn it_finds_what_a_disk_forgets() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("forgetful");
    let script = format!(
        r#"#!/bin/sh
after() {{ while [ "$1" != --data-dir ]; do shift; done; echo "$2"; }}
if [ "$1" = serve ]; then
    data=$(after "$@")
    if [ -d "$data.before" ]; then rm -r "$data"; mv "$data.before" "$data"; fi
    if [ -d "$data" ]; then cp -r "$data" "$data.before"; fi
fi
exec {SYNOD} "$@"
"#
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let data = folder.path().join("run");
    let faults = ["--seconds", "5", "--faults", "kill-all", "--program", program.to_str().unwrap()];
    let output = chaos(&data, &faults).wait_with_output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["the history is not linearizable", "watches: "] {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
}

/// Whatever was synchronised survives a power failure of all replicas. The control shows that the disks forget the
/// rest.
#[test]
#[ignore = "takes root, mkfs.ext4, loop devices and two minutes: run it when logs are written in another way"]
fn a_power_failure_takes_what_was_not_synchronised() {
    let folder = tempfile::tempdir().unwrap();
    let run = |durability: &str| {
        let args = ["--seconds", "15", "--faults", "power-loss-all", "--durability", durability];
        let output =
            chaos_on("namespaces", &folder.path().join(durability), &args).wait_with_output().unwrap();
        said(&output)
    };
    let is_linearizable = |said: &str| !said.contains("BROKEN") && !said.contains("not linearizable");
    let synchronised = run("sync");
    assert!(synchronised.contains("Verdict: ") && is_linearizable(&synchronised), "{synchronised}");
    let forgetful = run("async");
    assert!(forgetful.contains("the history is not linearizable"), "{forgetful}");
}

#[test]
fn a_signal_ends_it_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("run");
    let run = chaos(&data, &["--seconds", "600", "--faults", "pause", "--quiet"]);
    until("all replicas run", || processes(&data) == 4);
    thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.code() == Some(130) && began.elapsed() < WAIT_MAX, "{}", said(&output));
    assert_eq!(processes(&data), 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], why: &str| {
        let output = chaos(folder.path(), args).wait_with_output().unwrap();
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
    };
    refused(&["--replicas", "4"], "accepted: 3, 5");
    refused(&["--faults", "rain"], "possible values: kill, kill-all");
    refused(&["--faults", "disk-full"], "--faults disk-full: only with --network namespaces");
    refused(&["--faults", "kill,power-loss"], "--faults power-loss: only with --network namespaces");
    refused(&["--durability", "memory"], "accepted: sync, view, async");
    fs::write(folder.path().join("something"), "").unwrap();
    refused(&[], "is not empty");
}
