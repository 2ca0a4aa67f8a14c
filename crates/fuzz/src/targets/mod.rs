//! The targets, a file for each place that bytes come from.

mod backup;
mod client;
mod file;
mod kind;
mod kv;
mod log;
mod peer;

use self::kind::kind;
use crate::{Memory, Target, Verdict};

/// All targets.
#[must_use]
pub fn all() -> Vec<Target> {
    [peer::TARGETS, client::TARGETS, log::TARGETS, kv::TARGETS, backup::TARGETS, file::TARGETS].concat()
}

/// The target with this name.
#[must_use]
pub fn named(name: &str) -> Option<Target> {
    all().into_iter().find(|target| target.name == name)
}

/// The lines of a text that holds encodings: the first word is left out, the second one is the name, and the last one
/// the bytes in hexadecimal digits.
fn hex_lines(text: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let (name, hex) = (words.get(words.len() - 2)?, words.last()?);
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        Some((*name, (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<_>>>()?))
    })
}

/// Seeds of one form: each with a number, since names may repeat.
fn numbered(prefix: &str, seeds: impl IntoIterator<Item = (String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    let name = |(number, (name, bytes)): (usize, (String, Vec<u8>))| {
        (format!("{prefix}{number:02}-{}", name.to_lowercase()), bytes)
    };
    seeds.into_iter().enumerate().map(name).collect()
}
