//! Plays all scenario scripts.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use synod_sim::scenario;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

#[test]
fn every_scenario_goes_as_it_is_written() {
    let folder = folder();
    let bless = env::var_os("SYNOD_BLESS").is_some_and(|value| value == "1");
    let played = scenario::play_folder(&folder, bless).expect("the scripts can be read");
    assert!(played.wrong.is_empty(), "{}", played.wrong.join("\n\n"));
    assert!(played.scripts >= 20, "only {} scripts in {}", played.scripts, folder.display());
}

/// No golden files: the messages differ from those that the scripts are about, but the invariants are the same. A story
/// that waits for a message of the other arrangement ends there.
#[test]
fn what_all_protocols_play_breaks_nothing_with_balanced() {
    let (mut to_the_end, mut stopped) = (0, Vec::new());
    for entry in fs::read_dir(folder()).expect("there are scripts") {
        let path = entry.expect("a script").path();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let head = text.lines().next().unwrap_or_default();
        let common = head == "for: all" || ["multipaxos", "raft"].iter().all(|name| head.contains(name));
        if !common || text.contains("dissemination=") {
            continue;
        }
        let lines = text.lines().map(|line| match line.starts_with("> cluster ") {
            true => format!("{line} dissemination=balanced\n"),
            false => format!("{line}\n"),
        });
        let text: String = lines.collect();
        for cast in scenario::casts_of(&text).expect("a head") {
            match scenario::play(&text, cast) {
                Ok(_) => to_the_end += 1,
                Err(error) => {
                    let story = format!("{} with {}: {error}", path.display(), cast.name);
                    assert!(!error.contains(": violates "), "{story}");
                    stopped.push(story);
                }
            }
        }
    }
    assert!(to_the_end >= 30, "only {to_the_end} stories, stopped:\n{}", stopped.join("\n"));
}
