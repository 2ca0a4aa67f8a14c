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
    /// What to do about it, or where it comes from.
    hint: Option<String>,
    /// The cluster did not serve a request, for a reason that its state may tell.
    unserved: bool,
}

impl Failure {
    /// Something was refused or went wrong: exit code 1.
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure::of(FAILED, message)
    }

    /// The command line or a configuration makes no sense: exit code 2.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::of(USAGE, message)
    }

    /// What came from standard input makes no sense: exit code 3.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure::of(INPUT, message)
    }

    /// The cluster did not serve a request: exit code 1.
    pub fn unserved(message: impl fmt::Display) -> Failure {
        Failure { unserved: true, ..Failure::failed(message) }
    }

    fn of(code: u8, message: impl fmt::Display) -> Failure {
        Failure { code, message: message.to_string(), hint: None, unserved: false }
    }

    /// Whether the cluster did not serve a request, and its state may tell why.
    pub fn is_unserved(&self) -> bool {
        self.unserved
    }

    /// The same with something that helps.
    pub fn with_hint(self, hint: Option<String>) -> Failure {
        Failure { hint: hint.or(self.hint), ..self }
    }

    /// Prints the message.
    pub fn report(self) -> ExitCode {
        eprintln!("error: {}", self.message);
        if let Some(hint) = self.hint {
            eprintln!("hint: {hint}");
        }
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
            synod_client::Error::Unavailable { reached: false, .. } => {
                let hint = "is a replica running there? `synod dev` starts three on this machine, and --endpoints or \
                            SYNOD_ENDPOINTS says where they are";
                Failure::failed(error).with_hint(Some(hint.to_owned()))
            }
            synod_client::Error::Unavailable { .. } | synod_client::Error::Unknown { .. } => {
                Failure::unserved(error)
            }
            _ => Failure::failed(error),
        }
    }
}
