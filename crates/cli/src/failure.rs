//! The ways in which a command fails.

use std::{fmt, process::ExitCode};

/// A request was refused, or something went wrong.
const FAILED: u8 = 1;
/// The command line or a configuration is not valid; clap uses the same code.
const USAGE: u8 = 2;
/// Standard input is not valid.
const INPUT: u8 = 3;

/// A message for the user, and an exit code for a script.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    /// What to do about it, or its cause.
    hint: Option<String>,
    /// Whether the cluster did not serve a request, for a reason that its state may show.
    unserved: bool,
}

impl Failure {
    /// A request was refused, or something went wrong: exit code 1.
    pub fn failed(message: impl fmt::Display) -> Failure {
        Failure::of(FAILED, message)
    }

    /// The command line or a configuration is not valid: exit code 2.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::of(USAGE, message)
    }

    /// Standard input is not valid: exit code 3.
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

    /// Whether the cluster did not serve a request, for a reason that its state may show.
    pub fn is_unserved(&self) -> bool {
        self.unserved
    }

    /// The same failure with a hint.
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
            // The message is the server's own, which is etcd's: scripts match on it.
            synod_client::Error::Refused { message, .. } => {
                let hint = refused(&message).map(str::to_owned);
                Failure::failed(message).with_hint(hint)
            }
            synod_client::Error::Unavailable { reached: false, .. } => {
                let failure = Failure::failed(error);
                let hint = if failure.message.contains("certificate") {
                    "--cacert names the authority of the server's certificate, --cert and --key what it asks for; \
                     --insecure-skip-tls-verify checks nothing"
                } else {
                    "is a replica running there? `synod dev` starts three on this machine, and --endpoints or \
                     SYNOD_ENDPOINTS says where they are"
                };
                failure.with_hint(Some(hint.to_owned()))
            }
            synod_client::Error::Unavailable { .. } | synod_client::Error::Unknown { .. } => {
                Failure::unserved(error)
            }
            _ => Failure::failed(error),
        }
    }
}

/// What to do about a refusal, where that is not obvious.
fn refused(message: &str) -> Option<&'static str> {
    if message.ends_with("database space exceeded") {
        Some(
            "the store is full, and puts are refused until there is room: delete keys, then `synod compact REVISION --disarm` \
             with the revision that `synod get KEY -w json` shows (and --group N where the cluster has several groups). \
             --quota-backend-bytes of `serve` is the bound",
        )
    } else if message.ends_with("corrupt cluster") {
        Some(
            "the contents of members differ (`synod alarm list`): replace those that differ from most, `synod member \
             replace`, then `synod alarm disarm`",
        )
    } else {
        None
    }
}
