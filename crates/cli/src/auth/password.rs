//! The new password of a user: from a file, from standard input, or from a person at a terminal, which does not
//! show it.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    thread,
};

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use synod_server::PASSWORD_BYTES_MAX;
use tokio::sync::oneshot;

use crate::{
    client::block_on,
    failure::Failure,
    interruption::{self, Interruption},
};

/// Where a new password comes from.
#[derive(Clone, Debug, Args)]
pub struct NewPassword {
    /// The new password. Others on this machine can see it in the list of processes.
    #[arg(long, visible_alias = "new-user-password", value_name = "PASSWORD", allow_hyphen_values = true)]
    new_password: Option<String>,
    /// A file whose first line is the new password.
    #[arg(long, value_name = "FILE", conflicts_with = "new_password")]
    new_password_file: Option<PathBuf>,
}

impl NewPassword {
    /// The name and the password of a new user. As with etcdctl, `typed` may hold both.
    pub fn of_new_user(self, typed: String) -> Result<(String, String), Failure> {
        let is_apart = self.new_password.is_some() || self.new_password_file.is_some();
        match typed.split_once(':').filter(|_| !is_apart) {
            Some(("", _)) => {
                Err(Failure::usage("the name of the user is empty; accepted: NAME or NAME:PASSWORD"))
            }
            Some((name, password)) => {
                let password = checked(password.as_bytes());
                let password = password.map_err(|why| Failure::usage(format!("{name}:PASSWORD: {why}")))?;
                Ok((name.to_owned(), password))
            }
            None => {
                let password = self.of_user(&typed)?;
                Ok((typed, password))
            }
        }
    }

    /// The new password of a user.
    pub fn of_user(self, name: &str) -> Result<String, Failure> {
        if let Some(password) = self.new_password {
            return checked(password.as_bytes())
                .map_err(|why| Failure::usage(format!("--new-password: {why}")));
        }
        if let Some(path) = self.new_password_file {
            let file = File::open(&path).map_err(|error| error.to_string());
            let line = file.and_then(|file| first_line(BufReader::new(file)));
            return line
                .map_err(|why| Failure::usage(format!("--new-password-file {}: {why}", path.display())));
        }
        if io::stdin().is_terminal() {
            let asked = block_on(asked(name));
            interruption::ends_the_program();
            return asked;
        }
        first_line(io::stdin().lock()).map_err(|why| {
            Failure::input(format!(
                "standard input, whose first line is the password (--new-password-file names another file): {why}"
            ))
        })
    }
}

/// A password, unless no server takes it. The text of the refusal does not show it.
fn checked(password: &[u8]) -> Result<String, String> {
    match password.len() {
        0 => Err("the password is empty; `synod user add --no-password` adds a user without one".to_owned()),
        1..=PASSWORD_BYTES_MAX => {
            String::from_utf8(password.to_vec()).map_err(|_| "the password is not UTF-8".to_owned())
        }
        _ => Err(format!("the password is too long; accepted: up to {PASSWORD_BYTES_MAX} bytes")),
    }
}

/// The first line, without its end: a password.
fn first_line(input: impl BufRead) -> Result<String, String> {
    // The end has two bytes at most, so this is enough to see that a line is too long.
    let mut input = io::Read::take(input, PASSWORD_BYTES_MAX as u64 + 3);
    let mut line = Vec::new();
    input.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
    let text = line.strip_suffix(b"\n").unwrap_or(&line);
    checked(text.strip_suffix(b"\r").unwrap_or(text))
}

/// Asks at the terminal, twice, since nobody sees what is typed.
async fn asked(name: &str) -> Result<String, Failure> {
    let broken = |error: io::Error| Failure::failed(format!("the terminal cannot be used: {error}"));
    // From here on an interruption ends the command in good order, so that the terminal shows again what is typed.
    let mut interruption = Interruption::listen().map_err(broken)?;
    let stdin = io::stdin();
    let _silent = Silent::on(stdin.as_fd()).map_err(broken)?;
    let password = typed(&format!("New password of {name}: "), &mut interruption).await?;
    let again = typed("The same again: ", &mut interruption).await?;
    if password == again {
        Ok(password)
    } else {
        Err(Failure::input("the two passwords differ; nothing was changed"))
    }
}

/// Waits for a line at the terminal, on a thread that ends with the program if no line comes.
async fn typed(prompt: &str, interruption: &mut Interruption) -> Result<String, Failure> {
    eprint!("{prompt}");
    let (sender, line) = oneshot::channel();
    thread::spawn(move || sender.send(first_line(io::stdin().lock())));
    tokio::select! {
        read = line => read.map_err(Failure::failed)?.map_err(Failure::input),
        () = interruption.comes() => {
            eprintln!();
            Err(Failure::failed("interrupted; nothing was changed"))
        }
    }
}

/// A terminal that does not show what is typed, until this is dropped.
struct Silent<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Silent<'a> {
    fn on(terminal: BorrowedFd<'a>) -> io::Result<Silent<'a>> {
        let before = tcgetattr(terminal)?;
        let mut modes = before.clone();
        modes.local_modes.remove(LocalModes::ECHO);
        // The end of the line is shown, so that what is printed next begins in the first column.
        modes.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(terminal, OptionalActions::Flush, &modes)?;
        Ok(Silent { terminal, before })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // Where this fails the terminal is gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_password_is_the_first_line_and_has_72_bytes_at_most() {
        let read = |text: &[u8]| first_line(text);
        for text in ["a word", "a word\n", "a word\r\n", "a word\nmore\n"] {
            assert_eq!(read(text.as_bytes()).as_deref(), Ok("a word"), "{text:?}");
        }
        assert!(read(b"").unwrap_err().contains("--no-password") && read(b"\nmore").is_err());
        let longest = "x".repeat(PASSWORD_BYTES_MAX);
        assert_eq!(read(format!("{longest}\r\n").as_bytes()), Ok(longest.clone()));
        // The character is cut by what is read at most.
        for longer in [format!("{longest}x\n"), format!("{longest}xx\u{20ac}\n")] {
            let why = read(longer.as_bytes()).unwrap_err();
            assert!(why.contains("too long") && why.contains("72 bytes") && !why.contains("xx"), "{why}");
        }
        assert!(read(b"\xff\n").unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn a_password_comes_with_the_name_from_a_flag_or_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "of a file\n").unwrap();
        let of = |typed: &str, flag: Option<&str>, file: Option<PathBuf>| {
            let source = NewPassword { new_password: flag.map(str::to_owned), new_password_file: file };
            source.of_new_user(typed.to_owned()).map_err(|failure| failure.to_string())
        };
        let both = |name: &str, password: &str| Ok((name.to_owned(), password.to_owned()));
        assert_eq!(of("u:a:b", None, None), both("u", "a:b"));
        assert_eq!(of("u:a", Some("-b"), None), both("u:a", "-b"));
        assert_eq!(of("u", None, Some(path)), both("u", "of a file"));
        assert!(of(":a", None, None).unwrap_err().contains("name of the user is empty"));
        assert!(of("u:", None, None).unwrap_err().contains("u:PASSWORD: the password is empty"));
        let missing = of("u", None, Some(folder.path().join("none"))).unwrap_err();
        assert!(missing.starts_with("--new-password-file ") && missing.contains("/none: "), "{missing}");
    }

    #[test]
    fn a_terminal_shows_nothing_only_while_a_password_is_typed() {
        // Both ends of a pseudo-terminal have the same modes.
        let terminal = File::options().read(true).write(true).open("/dev/ptmx").unwrap();
        let shows = || tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO);
        assert!(shows());
        let silent = Silent::on(terminal.as_fd()).unwrap();
        assert!(!shows());
        drop(silent);
        assert!(shows());
    }
}
