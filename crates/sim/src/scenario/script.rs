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
    },
}

const MARK: &str = "> ";
pub(super) const INDENT: &str = "    ";
const HEAD: &str = "for: ";

/// Parses a script into the words of its head and its blocks. The head is prose as well.
///
/// # Errors
/// The script has no head, or has output, which belongs into the golden files.
pub(super) fn parse(text: &str) -> Result<(Vec<&str>, Vec<Block>), String> {
    let head = text.lines().next().and_then(|line| line.strip_prefix(HEAD));
    let head = head.ok_or("line 1: a script begins with the protocols that it is for, such as 'for: all'")?;
    let mut blocks: Vec<Block> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix(MARK) {
            blocks.push(Block::Command { line: index + 1, command: command.trim().to_owned() });
        } else if line.starts_with(INDENT) && matches!(blocks.last(), Some(Block::Command { .. })) {
            let wrong = "an output stands in the script; outputs stand in the golden files";
            return Err(format!("line {}: {wrong}", index + 1));
        } else {
            blocks.push(Block::Prose(line.to_owned()));
        }
    }
    Ok((head.split(',').map(str::trim).collect(), blocks))
}

/// A command as it is written in a script.
pub(super) fn marked(command: &str) -> String {
    format!("{MARK}{command}")
}

/// Shows the first command at which a story differs from the golden one.
pub(super) fn difference(golden: &str, now: &str) -> Option<String> {
    if golden == now {
        return None;
    }
    let (golden, now): (Vec<&str>, Vec<&str>) = (golden.lines().collect(), now.lines().collect());
    let same = golden.iter().zip(&now).take_while(|(golden, now)| golden == now).count();
    let command = now[..same.min(now.len())].iter().rposition(|line| line.starts_with(MARK));
    let mut text = match command {
        Some(command) => {
            format!("line {}: '{}' goes another way:\n", command + 1, &now[command][MARK.len()..])
        }
        None => "it begins another way:\n".to_owned(),
    };
    for (sign, lines) in [('-', &golden[same..]), ('+', &now[same..])] {
        for line in lines.iter().take_while(|line| line.starts_with(INDENT)) {
            let _ = writeln!(text, "  {sign} {}", &line[INDENT.len()..]);
        }
    }
    Some(text + "(SYNOD_BLESS=1 writes the new output into the golden file)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_a_head_prose_and_commands() {
        let text =
            "for: all, ballot\n\nA story.\n\n> tick 5ms\n\n    not output: it follows prose\n> status\n";
        let command = |line, command: &str| Block::Command { line, command: command.to_owned() };
        let prose = |line: &str| Block::Prose(line.to_owned());
        assert_eq!(
            parse(text),
            Ok((
                vec!["all", "ballot"],
                vec![
                    prose("for: all, ballot"),
                    prose(""),
                    prose("A story."),
                    prose(""),
                    command(5, "tick 5ms"),
                    prose(""),
                    prose("    not output: it follows prose"),
                    command(8, "status"),
                ]
            ))
        );
        assert!(parse("> status\n").unwrap_err().contains("for: all"));
        assert!(parse("for: all\n> status\n    r1 leads\n").unwrap_err().starts_with("line 3:"));
    }

    #[test]
    fn a_difference_shows_what_was_expected_and_what_came() {
        let golden = "for: all\n> tick 5ms\n    a\n    b\n    c\n> status\n    d\n";
        let now = "for: all\n> tick 5ms\n    a\n    x\n> status\n    d\n";
        let text = difference(golden, now).expect("they differ");
        assert!(text.starts_with("line 2: 'tick 5ms'"), "{text}");
        assert!(text.contains("  - b\n  - c\n  + x\n"), "{text}");
        assert_eq!(difference(golden, golden), None);
    }
}
