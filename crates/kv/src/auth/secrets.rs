//! Commands as they may be shown: without what shows who somebody is.

use bytes::Bytes;
use prost::{
    Message as _,
    encoding::{DecodeContext, decode_key, skip_field},
};
use synod_api::synod::v1::{KvCommand, kv_auth_change::Change, kv_command::Command};

/// The field of a [`KvCommand`] that holds a change of users.
const AUTH: u32 = 9;

/// A command of the log, for those who follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It is no business of users and roles, and is shown as it is.
    Plain,
    /// It has to do with users. This is its encoding without secrets.
    OfUsers {
        /// The command, in which the secret of a token and passwords and their hashes are empty.
        command: Bytes,
        /// Whether it may change users or roles, and not only issue a token.
        changes: bool,
    },
}

/// What may be shown of a command to anybody, also to a user with the role root: the log is followed by programs that
/// keep and pass on what they read, and a reader of a token is its user.
#[must_use]
pub fn shown(command: &Bytes) -> Shown {
    if !has_field(command, AUTH) {
        return Shown::Plain;
    }
    // What does not decode is refused by the store, and holds no secret of a server's.
    let Ok(mut command) = KvCommand::decode(command.clone()) else { return Shown::Plain };
    let Some(Command::Auth(change)) = &mut command.command else { return Shown::Plain };
    let mut changes = true;
    match &mut change.change {
        Some(Change::Authenticate(request)) => {
            request.secret.clear();
            changes = false;
        }
        Some(Change::UserAdd(request)) => {
            request.password.clear();
            request.hashed_password.clear();
        }
        Some(Change::UserChangePassword(request)) => {
            request.password.clear();
            request.hashed_password.clear();
        }
        _ => {}
    }
    Shown::OfUsers { command: command.encode_to_vec().into(), changes }
}

/// Whether a message has a field at its top level. Nothing of it is copied.
fn has_field(message: &Bytes, wanted: u32) -> bool {
    let mut rest = &message[..];
    while let Ok((field, wire_type)) = decode_key(&mut rest) {
        if field == wanted {
            return true;
        }
        if skip_field(wire_type, field, &mut rest, DecodeContext::default()).is_err() {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use synod_api::{
        etcdserverpb::{AuthEnableRequest, AuthUserAddRequest, AuthUserChangePasswordRequest, PutRequest},
        synod::v1::{KvAuthChange, KvAuthenticate},
    };

    use super::*;

    fn encoded(command: Command) -> Bytes {
        KvCommand { command: Some(command), quota_bytes: 7, ..KvCommand::default() }.encode_to_vec().into()
    }

    fn of_users(change: Change) -> Bytes {
        encoded(Command::Auth(KvAuthChange { change: Some(change) }))
    }

    #[test]
    fn no_secret_of_a_token_and_no_hash_is_shown() {
        let authenticate = |secret: &str| {
            let (name, secret) = ("u".to_owned(), secret.to_owned());
            of_users(Change::Authenticate(KvAuthenticate { name, checked_revision: 3, secret, issued_ms: 5 }))
        };
        let add = |secret: &str| {
            let (name, password, hashed_password) = ("u".to_owned(), secret.to_owned(), secret.to_owned());
            let request = AuthUserAddRequest { name, password, hashed_password, ..Default::default() };
            of_users(Change::UserAdd(request))
        };
        let change = |secret: &str| {
            let (name, password, hashed_password) = ("u".to_owned(), secret.to_owned(), secret.to_owned());
            of_users(Change::UserChangePassword(AuthUserChangePasswordRequest {
                name,
                password,
                hashed_password,
            }))
        };
        for (full, empty, changes) in [
            (authenticate("s3cret"), authenticate(""), false),
            (add("s3cret"), add(""), true),
            (change("s3cret"), change(""), true),
        ] {
            assert_eq!(shown(&full), Shown::OfUsers { command: empty, changes });
            // A field may come in parts, which are one message.
            let Shown::OfUsers { command, .. } = shown(&[&full[..], &full[..]].concat().into()) else {
                panic!("it is no plain command");
            };
            assert!(!command.windows(6).any(|window| window == b"s3cret"));
        }
        let enable = of_users(Change::Enable(AuthEnableRequest {}));
        assert_eq!(shown(&enable), Shown::OfUsers { command: enable, changes: true });
    }

    #[test]
    fn all_else_is_shown_as_it_is() {
        let put = PutRequest { key: "k".into(), value: "J".into(), ..PutRequest::default() };
        assert_eq!(shown(&encoded(Command::Put(put))), Shown::Plain);
        for other in [&b""[..], b"text", b"\x4a\xff", b"\x0a\x02J"] {
            assert_eq!(shown(&Bytes::copy_from_slice(other)), Shown::Plain, "{other:?}");
        }
    }
}
