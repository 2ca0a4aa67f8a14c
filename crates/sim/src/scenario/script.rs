//! The text of a script.

use std::fmt::Write as _;

/// A part of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// A line for people.
    Prose(String),
    /// A command.
    Command {
        /// Its line, from 1.
        line: usize,
        /// Without the mark.
        command: String,
        /// What it must print, without the indentation.
        expected: Vec<String>,
    },
}

const MARK: &str = "> ";
const INDENT: &str = "    ";

/// Takes a script apart.
pub(super) fn parse(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix(MARK) {
            let command = command.trim().to_owned();
            blocks.push(Block::Command { line: index + 1, command, expected: Vec::new() });
        } else if let (Some(output), Some(Block::Command { expected, .. })) =
            (line.strip_prefix(INDENT), blocks.last_mut())
        {
            expected.push(output.to_owned());
        } else {
            blocks.push(Block::Prose(line.to_owned()));
        }
    }
    blocks
}

/// Shows where an output differs from what a script says.
pub(super) fn difference(line: usize, command: &str, expected: &[String], output: &[String]) -> String {
    let same = expected.iter().zip(output).take_while(|(expected, output)| expected == output).count();
    let mut text =
        format!("line {line}: '{command}' prints something else, beginning with its line {}\n", same + 1);
    for line in &expected[same..] {
        let _ = writeln!(text, "  - {line}");
    }
    for line in &output[same..] {
        let _ = writeln!(text, "  + {line}");
    }
    text + "(SYNOD_BLESS=1 writes the new output into the script)"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_prose_commands_and_outputs() {
        let text =
            "A story.\n\n> tick 5ms\n    one\n      two\n\n    not output: it follows prose\n> status\n";
        let command = |line, command: &str, expected: &[&str]| Block::Command {
            line,
            command: command.to_owned(),
            expected: expected.iter().map(|&line| line.to_owned()).collect(),
        };
        let prose = |line: &str| Block::Prose(line.to_owned());
        assert_eq!(
            parse(text),
            [
                prose("A story."),
                prose(""),
                command(3, "tick 5ms", &["one", "  two"]),
                prose(""),
                prose("    not output: it follows prose"),
                command(8, "status", &[]),
            ]
        );
    }

    #[test]
    fn a_difference_shows_what_was_expected_and_what_came() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let text = difference(7, "status", &lines("a b c"), &lines("a x"));
        assert!(text.starts_with("line 7: 'status'"), "{text}");
        assert!(text.contains("  - b\n  - c\n  + x\n"), "{text}");
    }
}
