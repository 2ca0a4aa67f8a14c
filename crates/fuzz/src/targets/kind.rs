//! What kind of thing an input is, so that an input of a new kind is kept.

use std::fmt::{self, Debug, Write};

use crate::Verdict;

impl Verdict {
    /// The verdict of a parser without side effects.
    pub(crate) fn of<T: Debug, E: fmt::Display>(parsed: &Result<T, E>) -> Verdict {
        match parsed {
            Ok(value) => Verdict::Accepted(kind(value)),
            Err(error) => Verdict::Refused(error.to_string()),
        }
    }
}

/// The names of types and variants in a value: what kind of thing it is, without its contents.
pub(crate) fn kind(value: &impl Debug) -> String {
    let mut names = Names { text: String::new(), word: String::new(), left: 600 };
    // It ends early, which is no error.
    let _ = write!(names, "{value:?}");
    names.end_word();
    names.text
}

/// Keeps the words that begin with a capital letter, as long as there are not too many.
struct Names {
    text: String,
    word: String,
    left: usize,
}

impl Names {
    fn end_word(&mut self) {
        if self.word.starts_with(|first: char| first.is_ascii_uppercase()) {
            self.text.push_str(&self.word);
            self.text.push(' ');
        }
        self.word.clear();
    }
}

impl Write for Names {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        for letter in piece.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            if letter.is_ascii_alphanumeric() {
                self.word.push(letter);
            } else {
                self.end_word();
            }
        }
        Ok(())
    }
}
