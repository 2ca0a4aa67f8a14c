//! Scenario scripts: stories about a cluster, told by a script and compared with what the cluster does.
//!
//! A script is a text file. Its first line names the protocols that play it ([`Cast`]). A line that begins
//! with `> ` is a **command**; everything else is **prose**. For each of its casts there is a **golden file**
//! with the same story and, below each command, indented by four spaces, the command's output:
//!
//! ```text
//! for: all
//!
//! A write is ordered by the leader and acknowledged by one follower; that is a quorum.
//!
//! > put 1 k1=7
//!     r1        → r2  Accept 1@r1 slot 1, decided 0: k1=7
//!     r1        → r3  Accept 1@r1 slot 1, decided 0: k1=7
//! > deliver 1->2
//!     r2        ← r1  Accept
//!     r2        → r1  Accepted 1@r1 slot 1
//! ```
//!
//! The replicas are real ([`synod_replica::Replica`] on the simulated disk and clock), and every invariant is
//! checked as in a random run. But nothing is random, no message arrives by itself, and time passes only when
//! a command lets it. The commands are listed in [`COMMANDS`]; they name no protocol, so that one script
//! serves many: `drop 1->2 proposal` loses the message with which a protocol proposes.
//!
//! With the environment variable `SYNOD_BLESS=1` the test of all scripts writes the golden files instead of
//! comparing with them. Read the diff then.

mod cast;
mod commands;
mod script;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use crate::chart::{Recorder, Window};
pub use cast::{CASTS, Cast, led};
pub use commands::COMMANDS;
use commands::Stage;
pub(crate) use commands::calm_plan;
use script::{Block, parse};

/// The folder, beside the scripts, that holds a folder of golden files for each cast.
const GOLDEN: &str = "golden";

/// Plays a script with a cast. Returns the story: the script with the outputs in it.
///
/// # Errors
/// A command is not valid, or an invariant is violated. The error names the line.
pub fn play(text: &str, cast: &Cast) -> Result<String, String> {
    play_on(&mut Stage::new(*cast), text)
}

/// Plays a script with a cast, and records it for a chart: a recorder for each cluster of the story.
pub fn record(text: &str, cast: &Cast, window: Window) -> (Result<String, String>, Vec<Recorder>) {
    let mut stage = Stage::new(*cast);
    stage.record(window);
    let story = play_on(&mut stage, text);
    (story, stage.into_recorded())
}

/// The casts that play a script.
///
/// # Errors
/// The script's head names an unknown cast.
pub fn casts_of(text: &str) -> Result<Vec<&'static Cast>, String> {
    parse(text).and_then(|(head, _)| cast::casts(&head))
}

/// The first paragraph of a script's prose.
#[must_use]
pub fn opening(text: &str) -> String {
    let prose = text.lines().skip(1).skip_while(|line| line.trim().is_empty());
    let lines: Vec<&str> =
        prose.take_while(|line| !line.trim().is_empty() && !line.starts_with("> ")).map(str::trim).collect();
    lines.join(" ")
}

fn play_on(stage: &mut Stage, text: &str) -> Result<String, String> {
    let mut story = String::new();
    for block in parse(text)?.1 {
        match block {
            Block::Prose(line) => {
                let _ = writeln!(story, "{line}");
            }
            Block::Command { line, command } => {
                let output =
                    stage.play(&command).map_err(|error| format!("line {line}: '{command}': {error}"))?;
                let _ = writeln!(story, "{}", script::marked(&command));
                for line in &output {
                    let _ = writeln!(story, "{}", format!("{}{line}", script::INDENT).trim_end());
                }
            }
        }
    }
    Ok(story)
}

/// Plays commands with a cast. Returns the situations that the world has reached after each.
///
/// # Errors
/// A command is not valid, or an invariant is violated. The error comes with the command's index.
#[cfg(test)]
pub(crate) fn reach(
    commands: &[&str],
    cast: &Cast,
) -> Result<Vec<crate::situations::Reached>, (usize, String)> {
    let mut stage = Stage::new(*cast);
    let mut played = commands.iter().enumerate().map(|(at, command)| {
        stage.play(command).map_err(|error| (at, format!("'{command}': {error}")))?;
        Ok(stage.reached())
    });
    played.by_ref().collect()
}

/// The results of playing scripts.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Scripts that were played.
    pub scripts: usize,
    /// How many stories were played: a script with a cast is one.
    pub stories: usize,
    /// The stories that differ from their golden files, each with the difference.
    pub wrong: Vec<String>,
    /// The golden files that belong to the scripts.
    golden: BTreeSet<PathBuf>,
}

/// Plays all scripts (`*.txt`) of a folder in the order of their names. With `bless`, golden files that
/// differ are written, and those without a script removed.
///
/// # Errors
/// The folder or a file cannot be read or written.
pub fn play_folder(folder: &Path, bless: bool) -> io::Result<Played> {
    let mut played = Played::default();
    for path in texts(folder)? {
        play_file(&path, bless, &mut played)?;
    }
    for cast in CASTS.iter() {
        for path in texts(&folder.join(GOLDEN).join(cast.name))? {
            if bless && !played.golden.contains(&path) {
                fs::remove_file(path)?;
            } else if !played.golden.contains(&path) {
                let wrong = "no script is played for it (SYNOD_BLESS=1 removes it)";
                played.wrong.push(format!("{}: {wrong}", path.display()));
            }
        }
    }
    Ok(played)
}

/// Plays the script in a file with each of its casts. With `bless`, golden files that differ are written.
///
/// # Errors
/// A file cannot be read or written.
pub fn play_file(path: &Path, bless: bool, played: &mut Played) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    played.scripts += 1;
    let casts = match casts_of(&text) {
        Ok(casts) => casts,
        Err(error) => {
            played.wrong.push(format!("{}: {error}", path.display()));
            return Ok(());
        }
    };
    let folder = path.parent().unwrap_or(Path::new("")).join(GOLDEN);
    for cast in casts {
        played.stories += 1;
        let golden = folder.join(cast.name).join(path.file_name().unwrap_or_default());
        let wrong = match play(&text, cast) {
            Ok(story) => check_or_write(&golden, &story, bless)?,
            Err(error) => Some(error),
        };
        played.wrong.extend(wrong.map(|wrong| format!("{} with {}: {wrong}", path.display(), cast.name)));
        played.golden.insert(golden);
    }
    Ok(())
}

/// Compares a story with its golden file, or writes that. Returns the difference, if there is one.
fn check_or_write(golden: &Path, story: &str, bless: bool) -> io::Result<Option<String>> {
    let known = match fs::read_to_string(golden) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        known => Some(known?),
    };
    if bless && known.as_deref() != Some(story) {
        fs::create_dir_all(golden.parent().unwrap_or(Path::new("")))?;
        fs::write(golden, story)?;
    } else if !bless {
        return Ok(match known {
            Some(known) => script::difference(&known, story),
            None => Some(format!("there is no {} (SYNOD_BLESS=1 writes it)", golden.display())),
        });
    }
    Ok(None)
}

/// The text files of a folder, by name; none if there is no such folder.
fn texts(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(paths),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
