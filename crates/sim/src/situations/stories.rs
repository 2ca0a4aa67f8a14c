//! Stories: scripts that reach situations with their last command, and not before. They stand in `scenarios/situations/`, and
//! only tests read them.
//!
//! ```text
//! for: multipaxos, raft
//! reaches: a partial cut with a bridge
//!
//! Prose.
//!
//! > cluster 3
//! include: begins-somehow.txt
//! > links 1-2 1-3
//! ```
//!
//! The lines of a file that is included, which has no head, take the place of the line that includes it. A story's file is
//! named after the file here that recognises its situations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use synod_consensus::Role;
use synod_replica::Event;
use synod_wire::{Ballot, Epoch, ReplicaId, Slot};

use super::*;
use crate::scenario::{self, Cast};

/// Three running replicas; the test decides what is seen of them.
pub(crate) fn three() -> Situations {
    let options = synod_consensus::Options::default();
    let mut seen = Situations::new(&Group::of(&options, (1..=3).map(ReplicaId)), 3);
    for of in 0..3 {
        seen.see(&Sight::Starts {
            of,
            tail: Slot::ZERO,
            snapshot: Slot::ZERO,
            amnesia: false,
            votes_lost: None,
        });
    }
    seen
}

impl Situations {
    /// A replica follows r1 in an epoch and a ballot of this round.
    pub(crate) fn follows(&mut self, of: usize, epoch: u64, round: u64) {
        let leader = Some(ReplicaId(1));
        let ballot = Ballot { round, replica: ReplicaId(1) };
        let face = Face { role: Role::Follower, ballot, leader, epoch: Epoch(epoch), ..Face::NEW };
        self.see(&Sight::Stepped { of, face });
    }

    /// A replica takes an event.
    pub(crate) fn takes(&mut self, of: usize, event: &Event) {
        self.see(&Sight::Takes { of, event });
    }
}
/// A line, and where it stands.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// The file and the number of the line, from 1.
    place: String,
    text: String,
}

#[derive(Debug)]
struct Story {
    casts: Vec<&'static Cast>,
    situations: Vec<Situation>,
    commands: Vec<Line>,
}

/// Adds the lines of a file to `lines`, with those of the files that it includes. `within` are the files that include this one.
///
/// # Errors
/// A file cannot be read, or includes itself. The error names the file and the line that includes it.
fn lines_of(
    file: &str,
    text: &str,
    read: &dyn Fn(&str) -> Result<String, String>,
    within: &[&str],
    lines: &mut Vec<Line>,
) -> Result<(), String> {
    let within = [within, &[file]].concat();
    for (line, number) in text.lines().zip(1..) {
        let place = format!("{file}:{number}");
        let Some(included) = line.strip_prefix("include: ") else {
            lines.push(Line { place, text: line.to_owned() });
            continue;
        };
        if within.contains(&included) {
            return Err(format!("{place}: {included} includes itself: {}", within.join(" includes ")));
        }
        let text = read(included).map_err(|error| format!("{place}: {included}: {error}"))?;
        lines_of(included, &text, read, &within, lines)?;
    }
    Ok(())
}

impl Story {
    /// # Errors
    /// A line of the head has a name that nothing has, or the story has no situation, cast or command.
    fn parse(lines: Vec<Line>) -> Result<Story, String> {
        let mut story = Story { casts: Vec::new(), situations: Vec::new(), commands: Vec::new() };
        for Line { place, text } in lines {
            if text.starts_with("for: ") {
                story.casts = scenario::casts_of(&text).map_err(|error| format!("{place}: {error}"))?;
            } else if let Some(name) = text.strip_prefix("reaches: ") {
                let found = Situation::ALL.iter().find(|situation| situation.name() == name);
                story.situations.push(*found.ok_or(format!("{place}: no situation is called '{name}'"))?);
            } else if let Some(command) = text.strip_prefix("> ") {
                story.commands.push(Line { place, text: command.trim().to_owned() });
            }
        }
        let whole = !(story.casts.is_empty() || story.situations.is_empty() || story.commands.is_empty());
        whole.then_some(story).ok_or("a story has a head, situations and commands".to_owned())
    }

    fn play(&self) {
        for cast in &self.casts {
            let (situations, name) = (&self.situations, cast.name);
            let commands: Vec<&str> = self.commands.iter().map(|line| &*line.text).collect();
            let reached = scenario::reach(&commands, cast).unwrap_or_else(|(at, error)| {
                panic!("{}: {situations:?} with {name}: {error}", self.commands[at].place)
            });
            let (last, before) = reached.split_last().expect("a story has commands");
            for situation in situations {
                assert_eq!(situation.applies(cast.protocol), Ok(()), "{situation}, {name}");
                let early = before.iter().position(|reached| reached.has(*situation));
                let early = early.map(|at| &self.commands[at]);
                assert_eq!(early, None, "{situation} with {name} is reached before the end of the story");
                assert!(last.has(*situation), "{situation} with {name} is not reached");
            }
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/situations")
}

/// The names of all files with stories and parts of stories, in order.
fn files() -> Vec<String> {
    let entries = fs::read_dir(folder()).expect("there are stories").map(|entry| entry.expect("a story"));
    let mut files: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().expect("a name is text")).collect();
    files.sort();
    files
}

/// The stories of situations that a file here recognises.
fn stories(of: &str) -> Vec<Story> {
    let read = |file: &str| fs::read_to_string(folder().join(file)).map_err(|error| error.to_string());
    let told = |file: String| {
        let mut lines = Vec::new();
        let text = read(&file).map_err(|error| format!("{file}: {error}"))?;
        lines_of(&file, &text, &read, &[], &mut lines)?;
        Story::parse(lines).map_err(|error| format!("{file}: {error}"))
    };
    let files = files().into_iter().filter(|file| file.starts_with(&format!("{of}-")));
    files.map(told).collect::<Result<_, String>>().unwrap_or_else(|error| panic!("{error}"))
}

macro_rules! each_file {
    ($($file:ident)+) => {
        /// The files here whose situations have stories.
        const FILES: &[&str] = &[$(stringify!($file)),+];

        mod each_situation_is_seen_when_it_comes_to_be_and_not_before {
            $(
                #[test]
                fn $file() {
                    let stories = super::stories(stringify!($file));
                    assert!(!stories.is_empty());
                    stories.iter().for_each(super::Story::play);
                }
            )+
        }
    };
}

each_file! { backups batches epochs knowledge leaders links lives order rounds ways }

/// Situations that no script reaches, since its network is too orderly, or since scripts have no leases and
/// watches. They have tests of their own.
const SHOWN: &[Situation] = &[
    Situation::EpochWithoutBackup,
    Situation::LateCatchUp,
    Situation::FollowerInstallsHigher,
    Situation::DropsBetweenPages,
    Situation::RefusedForSize,
    Situation::DecidedTwice,
    Situation::BatchGivenUp,
    Situation::OldRing,
    Situation::LeaseEndsWithKeys,
    Situation::LeaseEndsWhileTwoLead,
    Situation::LeaseStartsAgain,
    Situation::RenewedByFollower,
    Situation::WatchAfterCrash,
    Situation::WatchFromHistory,
    Situation::WatchOverSnapshot,
    Situation::WatchCompacted,
];

#[test]
fn every_situation_has_a_story() {
    let told: Vec<Situation> =
        FILES.iter().flat_map(|file| stories(file)).flat_map(|story| story.situations).collect();
    for situation in Situation::ALL {
        assert_ne!(told.contains(situation), SHOWN.contains(situation), "{situation} has no story, or two");
    }
}

/// A part is included, and nobody plays a story of another name.
#[test]
fn every_file_is_played_or_included() {
    for file in files() {
        let begins = |name: &&str| file.starts_with(&format!("{name}-"));
        assert!(FILES.iter().chain(&["begins", "goes-on"]).any(begins), "{file}");
    }
}

#[test]
fn what_does_not_apply_is_of_pages_terms_joint_configurations_rings_and_slots_by_themselves() {
    let exempt = |protocol: ProtocolKind| -> Vec<Situation> {
        Situation::ALL.iter().copied().filter(|row| row.applies(protocol).is_err()).collect()
    };
    let rounds = [
        Situation::RoundPassedOn,
        Situation::RoundTwice,
        Situation::RoundRepaired,
        Situation::RoundPulled,
        Situation::PullWaits,
        Situation::HeldLater,
        Situation::FollowerCommitsFirst,
        Situation::CommitsByOldVoters,
    ];
    let ring = [
        Situation::RingShrinks,
        Situation::RingGrows,
        Situation::RingTurns,
        Situation::Detour,
        Situation::RingIsLeft,
        Situation::VotesWithoutLeader,
        Situation::VotesPass,
        Situation::OldRing,
        Situation::LearnerOnRing,
        Situation::SecondRange,
        Situation::MoreReserved,
    ];
    let paxos = [Situation::CandidateLearnsWinner, Situation::JointLeader];
    assert_eq!(exempt(ProtocolKind::MultiPaxos), [&paxos[..], &rounds, &ring].concat());
    assert_eq!(exempt(ProtocolKind::Ring), [&paxos[..], &rounds].concat());
    let sequence = [Situation::CandidateLearnsWinner, Situation::JointLeader, Situation::DecidedTwice];
    assert_eq!(exempt(ProtocolKind::SequencePaxos), [&sequence[..], &rounds, &ring].concat());
    let raft = [Situation::PagesOfTwoLives, Situation::DropsBetweenPages, Situation::DecidedTwice];
    assert_eq!(exempt(ProtocolKind::Raft), [&raft[..], &ring].concat());
}

#[test]
fn names_are_distinct_and_every_situation_can_be_reached_by_some_protocol() {
    let mut names: Vec<&str> = Situation::ALL.iter().map(|situation| situation.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Situation::ALL.len());
    assert_eq!(Situation::Bridge.to_string(), Situation::Bridge.name());
    for situation in Situation::ALL {
        let applies = |(_, protocol): &&(_, ProtocolKind)| situation.applies(*protocol).is_ok();
        assert!(ProtocolKind::ALL.iter().any(|entry| applies(&entry)), "{situation}");
    }
}

/// The lines of a file of these, or why it cannot be read whole.
fn whole(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let read = |name: &str| {
        let found = files.iter().find(|(file, _)| *file == name);
        found.map(|(_, text)| (*text).to_owned()).ok_or("there is no such file".to_owned())
    };
    let mut lines = Vec::new();
    lines_of(files[0].0, files[0].1, &read, &[], &mut lines)?;
    Ok(lines.into_iter().map(|Line { place, text }| format!("{place} {text}")).collect())
}

#[test]
fn what_is_included_takes_the_place_of_the_line_and_keeps_its_own() {
    let files = [("a", "> 1\ninclude: b\n> 4"), ("b", "> 2\ninclude: c"), ("c", "> 3")];
    assert_eq!(whole(&files).unwrap(), ["a:1 > 1", "b:1 > 2", "c:1 > 3", "a:3 > 4"]);
    let twice = [("a", "include: b\ninclude: b"), ("b", "> 1")];
    assert_eq!(whole(&twice).unwrap(), ["b:1 > 1", "b:1 > 1"], "this is no cycle");
}

#[test]
fn an_error_of_an_include_names_file_and_line() {
    let gone = [("a", "include: b"), ("b", "> 1\ninclude: gone")];
    assert_eq!(whole(&gone), Err("b:2: gone: there is no such file".to_owned()));
    let cycle = [("a", "include: b"), ("b", "\ninclude: a")];
    assert_eq!(whole(&cycle), Err("b:2: a includes itself: a includes b".to_owned()));
}

#[test]
fn an_error_of_a_story_names_file_and_line() {
    let parse = |text: &str| {
        let lines = text.lines().zip(1..);
        Story::parse(
            lines.map(|(text, at)| Line { place: format!("a:{at}"), text: text.to_owned() }).collect(),
        )
    };
    let error = |text: &str| parse(text).unwrap_err();
    assert!(error("for: nobody").starts_with("a:1: "));
    assert_eq!(error("for: raft\nreaches: nothing"), "a:2: no situation is called 'nothing'");
    assert!(error("for: raft\nreaches: two candidates at once\n").contains("commands"));
    assert!(parse("for: raft\nreaches: two candidates at once\n> cluster 3").is_ok());
}
