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

    /// The same failure with another message.
    pub fn saying(self, message: String) -> Failure {
        Failure { message, ..self }
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
            // Some refusals come with a code that leaves open what was done.
            synod_client::Error::Unavailable { ref cause, .. }
            | synod_client::Error::Unknown { ref cause, .. } => {
                let hint = refused(cause).map(str::to_owned);
                Failure::unserved(error).with_hint(hint)
            }
            _ => Failure::failed(error),
        }
    }
}

/// What to do about a refusal, where that is not obvious.
fn refused(message: &str) -> Option<&'static str> {
    REMEDIES.iter().find(|(end, _)| message.ends_with(end)).map(|(_, remedy)| *remedy)
}

/// How messages of refusals end, and what to do about them.
const REMEDIES: [(&str, &str); 9] = [
    (
        "database space exceeded",
        "the store is full, and puts are refused until there is room: delete keys, then `synod compact REVISION \
         --disarm` with the revision that `synod get KEY -w json` shows (and --group N where the cluster has several \
         groups). Without room the alarm comes back. --quota-backend-bytes of `serve` is the bound",
    ),
    (
        "corrupt cluster",
        "the contents of members differ (`synod alarm list`): replace those that differ from most, `synod member \
         replace`, then `synod alarm disarm`",
    ),
    (
        "root user does not exist",
        "where users count, somebody has to manage them: `synod user add root`, then `synod user grant-role root root`",
    ),
    (
        "root user does not have root role",
        "where users count, somebody has to manage them: `synod user grant-role root root`",
    ),
    (
        "user name is empty",
        "users count here, and the request has none: --user NAME with the password in SYNOD_PASSWORD, or, where \
         certificates stand for users, --cert and --key",
    ),
    (
        "permission denied",
        "`synod user get NAME --detail` shows what the roles of a user permit; users, roles and the cluster take the \
         role root (`synod docs auth`)",
    ),
    (
        "password was given for no password user",
        "the user was added with --no-password: leave out --user, and show a certificate with its name as the common \
         name, --cert and --key",
    ),
    (
        "permission is not granted to the role",
        "a permission is revoked by exactly the key or range that it was granted for, so with the same RANGE_END, \
         --prefix or --from-key: `synod role get ROLE` shows them",
    ),
    (
        "invalid auth management",
        "while users count, the user root and the role root stay (`synod auth disable` ends that); and a permission is \
         for a key that is not empty, or for a range that ends after its first key",
    ),
];

#[cfg(test)]
mod tests {
    use synod_kv::KvError;

    use super::*;

    #[test]
    fn refusals_by_users_and_roles_come_with_a_remedy() {
        for (error, remedy) in [
            (KvError::RootUserMissing, "`synod user add root`"),
            (KvError::RootRoleMissing, "`synod user grant-role root root`"),
            (KvError::UserEmpty, "--user NAME"),
            (KvError::PermissionDenied, "--detail"),
            (KvError::NoPasswordUser, "--cert"),
            (KvError::PermissionNotGranted, "`synod role get ROLE`"),
            (KvError::InvalidAuthMgmt, "`synod auth disable`"),
        ] {
            let hint = refused(&error.to_string()).unwrap_or_default();
            assert!(hint.contains(remedy), "{error}: {hint}");
        }
        assert_eq!(refused(&KvError::UserNotFound.to_string()), None);
    }
}
