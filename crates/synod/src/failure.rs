//! How a command ends when it does not succeed.

use std::{fmt, process::ExitCode};

/// Something was refused or went wrong.
const FAILED: u8 = 1;
/// The command line or a configuration makes no sense; clap ends with the same code.
const USAGE: u8 = 2;
/// What came from standard input makes no sense.
const INPUT: u8 = 3;

/// What to tell the user, and what to tell a script.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Something was refused or went wrong: exit code 1.
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure { code: FAILED, message: message.to_string() }
    }

    /// The command line or a configuration makes no sense: exit code 2.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure { code: USAGE, message: message.to_string() }
    }

    /// What came from standard input makes no sense: exit code 3.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure { code: INPUT, message: message.to_string() }
    }

    /// Prints the message.
    pub fn report(self) -> ExitCode {
        eprintln!("error: {}", self.message);
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<synod_client::Error> for Failure {
    fn from(error: synod_client::Error) -> Failure {
        match error {
            synod_client::Error::Config { .. } => Failure::usage(error),
            // In the server's own words, which are etcd's: what scripts look for.
            synod_client::Error::Refused { message, .. } => Failure::failed(message),
            _ => Failure::failed(error),
        }
    }
}
