//! Scenario scripts: stories of a cluster, told by a script and checked against what really happens.
//!
//! A script is a text file of three kinds of lines. What begins with `> ` is a **command**. What follows it,
//! indented by four spaces, is the **output** that the command must have. Everything else is **prose**.
//!
//! ```text
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
//! checked as in a random run; but nothing is random, no message arrives by itself, and time stands still until the
//! script lets it pass. The commands are listed in [`COMMANDS`]; they name no protocol but in `cluster`, and so serve
//! every one of them.
//!
//! With the environment variable `SYNOD_BLESS=1` the test of all scripts writes the outputs instead of comparing
//! them; what has changed is then to be read in the diff.

mod commands;
mod script;

use std::{fmt::Write as _, fs, io, path::Path};

pub use commands::COMMANDS;
use commands::Stage;
use script::{Block, parse};

/// What came of playing a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Played {
    /// Every output is as it is written.
    AsWritten,
    /// Some are not; the script with the outputs as they are now, and the first difference.
    Differs {
        /// The whole script.
        text: String,
        /// The first difference, for people.
        difference: String,
    },
}

/// Plays a script.
///
/// # Errors
/// With the line's number, if a command makes no sense, or an invariant does not hold.
pub fn play(text: &str) -> Result<Played, String> {
    let mut stage = Stage::default();
    let mut now = String::new();
    let mut difference = None;
    for block in parse(text) {
        match block {
            Block::Prose(line) => {
                let _ = writeln!(now, "{line}");
            }
            Block::Command { line, command, expected } => {
                let output =
                    stage.play(&command).map_err(|error| format!("line {line}: '{command}': {error}"))?;
                if output != expected && difference.is_none() {
                    difference = Some(script::difference(line, &command, &expected, &output));
                }
                let _ = writeln!(now, "> {command}");
                for line in &output {
                    let _ = writeln!(now, "{}", format!("    {line}").trim_end());
                }
            }
        }
    }
    Ok(difference.map_or(Played::AsWritten, |difference| Played::Differs { text: now, difference }))
}

/// Plays all scripts (`*.txt`) of a folder in the order of their names. With `bless`, outputs that differ are
/// written into the files. Returns how many scripts there are, and what is wrong with which.
///
/// # Errors
/// If the folder or a file can not be read or written.
pub fn play_folder(folder: &Path, bless: bool) -> io::Result<(usize, Vec<String>)> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut wrong = Vec::new();
    for path in &paths {
        wrong.extend(play_file(path, bless)?.map(|problem| format!("{}: {problem}", path.display())));
    }
    Ok((paths.len(), wrong))
}

/// Plays the script in a file. With `bless`, outputs that differ are written into it. Returns what is wrong.
///
/// # Errors
/// If the file can not be read or written.
pub fn play_file(path: &Path, bless: bool) -> io::Result<Option<String>> {
    match play(&fs::read_to_string(path)?) {
        Ok(Played::AsWritten) => Ok(None),
        Ok(Played::Differs { text, .. }) if bless => fs::write(path, text).map(|()| None),
        Ok(Played::Differs { difference, .. }) => Ok(Some(difference)),
        Err(error) => Ok(Some(error)),
    }
}
