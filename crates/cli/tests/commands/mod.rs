//! What an operator does with the program, and what the program answers.

#![allow(dead_code, reason = "each user needs some of it")]

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Output, Stdio},
};

use synod_testkit::until;

pub const SYNOD: &str = env!("CARGO_BIN_EXE_synod");

pub fn synod(args: &[&str]) -> Output {
    Command::new(SYNOD).args(args).stdin(Stdio::null()).output().expect("the program can be started")
}

/// Runs a command that must succeed, and returns what it printed.
#[track_caller]
pub fn done(endpoints: &str, args: &[&str]) -> String {
    let mut all = args.to_vec();
    all.extend(["--endpoints", endpoints, "--command-timeout", "20s"]);
    let output = synod(&all);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that a command has ended with this code, and that what it said has these parts.
#[track_caller]
pub fn refused(output: &Output, code: i32, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    for part in parts {
        assert!(said.contains(part), "{said}\nshould contain {part}");
    }
    assert_eq!(output.status.code(), Some(code), "{said}");
}

/// What `synod status` tells of a replica.
pub fn status(endpoint: &str) -> Option<serde_json::Value> {
    let output = synod(&["status", "--endpoints", endpoint, "-w", "json"]);
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    Some(all[0].clone()).filter(|status| status["state"] == "reachable")
}

/// A page: the code of the answer, and its body.
pub fn page(endpoint: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("the answer has a code"), body.to_owned())
}

/// The index of the replica that takes itself for the leader.
#[track_caller]
pub fn leader(endpoints: &[String]) -> usize {
    let mut found = None;
    until("somebody leads", || {
        let leads = |endpoint: &String| status(endpoint).is_some_and(|status| status["role"] == "leader");
        found = endpoints.iter().position(leads);
        found.is_some()
    });
    found.unwrap()
}

/// Names and standings of the members, as a replica knows them.
pub fn members(endpoint: &str) -> Vec<(String, String)> {
    let status = status(endpoint).unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let members = status["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|member| (text(&member["name"]), text(&member["standing"]))).collect()
}

pub fn voters(endpoint: &str) -> Vec<String> {
    members(endpoint).into_iter().filter(|(_, standing)| standing == "votes").map(|(name, _)| name).collect()
}
