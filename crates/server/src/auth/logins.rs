//! Whose password is looked at next.
//!
//! Looking at a password takes long on purpose, and few threads do it, so a client that sends many wrong ones makes
//! others wait. Therefore addresses have [turns](crate::turns). And who logged in lately, from the same address and
//! **with the same password**, is preferred. An attempt with another password waits with all others, whatever its user,
//! so wrong passwords for a name do not keep out the one who has the right one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ring::{hmac, rand::SystemRandom};

use super::passwords::PASSWORD_BYTES_MAX;
use crate::turns::{Turn, Turns, Whose};

/// Passwords that wait to be looked at, of users who logged in lately and of all others. More are refused.
const WAITING_MAX: usize = 128;
const WAITING_LATELY_MAX: usize = 32;
/// For how long it is known that somebody has logged in, and of how many that is known.
const LATELY: Duration = Duration::from_secs(60 * 60);
const LATELY_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Logins {
    turns: Arc<Turns>,
    /// The last login of each.
    known: Mutex<BTreeMap<Whose, Login>>,
    /// A secret of this process. What it signs is of no use anywhere else.
    key: hmac::Key,
}

/// What is known of somebody who has logged in.
#[derive(Debug)]
struct Login {
    at: Instant,
    /// The password, signed. It tells nothing of the password without the key, which is never written down.
    password: hmac::Tag,
}

impl Logins {
    pub(super) fn new(threads: usize) -> Logins {
        let turns = Arc::new(Turns::new(threads, WAITING_LATELY_MAX, WAITING_MAX));
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.expect("the system has random bytes, as for every token");
        Logins { turns, known: Mutex::default(), key }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Whose, Login>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn to look at a password: that of this user, as it says, from there. `None`: too many wait.
    pub(super) async fn turn(&self, whose: Whose, password: &str) -> Option<Turn> {
        let is_known = {
            let known = self.known();
            let login = known.get(&whose).filter(|login| login.at.elapsed() < LATELY);
            login.is_some_and(|login| self.has_signed(password, login))
        };
        self.turns.turn(whose, is_known).await
    }

    fn has_signed(&self, password: &str, login: &Login) -> bool {
        hmac::verify(&self.key, compared(password), login.password.as_ref()).is_ok()
    }

    /// A user has logged in with a password, or has failed to.
    pub(super) fn tried(&self, whose: Whose, password: &str, is_right: bool) {
        let mut known = self.known();
        if !is_right {
            // It was right before, so the user has another one now. What somebody else tries changes nothing.
            if known.get(&whose).is_some_and(|login| self.has_signed(password, login)) {
                known.remove(&whose);
            }
            return;
        }
        let password = hmac::sign(&self.key, compared(password));
        known.insert(whose, Login { at: Instant::now(), password });
        if known.len() > LATELY_MAX {
            let oldest = known.iter().min_by_key(|(_, login)| login.at).map(|(whose, _)| whose.clone());
            oldest.into_iter().for_each(|oldest| _ = known.remove(&oldest));
        }
    }
}

/// What bcrypt compares of a password.
fn compared(password: &str) -> &[u8] {
    &password.as_bytes()[..password.len().min(PASSWORD_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, pin::Pin};

    use futures_util::FutureExt as _;

    use super::*;

    fn from(host: u8, name: &str) -> Whose {
        (Some(IpAddr::from([10, 0, 0, host])), name.into())
    }

    /// Somebody who waits.
    fn waits<'a>(
        logins: &'a Logins,
        whose: Whose,
        password: &'a str,
    ) -> Pin<Box<dyn Future<Output = Option<Turn>> + 'a>> {
        let mut waiting = Box::pin(logins.turn(whose, password));
        assert!(waiting.as_mut().now_or_never().is_none(), "there is no turn yet");
        waiting
    }

    #[test]
    fn wrong_passwords_for_a_name_do_not_keep_out_the_one_who_logged_in_lately() {
        let logins = Logins::new(1);
        logins.tried(from(1, "u"), "right", true);
        logins.tried(from(1, "u"), "guess", false);
        let busy = logins.turn(from(9, "x"), "x").now_or_never().unwrap().unwrap();
        // As many as may wait, from the same address, and of the same name.
        let mut flood: Vec<_> = (0..WAITING_MAX).map(|_| waits(&logins, from(1, "u"), "guess")).collect();
        assert!(logins.turn(from(1, "u"), "guess").now_or_never().unwrap().is_none());
        let mut own = waits(&logins, from(1, "u"), "right");
        drop(busy);
        // One of the flood has the next turn, since the last one was of no preferred one either.
        drop(flood.iter_mut().find_map(|guess| guess.as_mut().now_or_never()));
        assert!(own.as_mut().now_or_never().unwrap().is_some(), "it waits with its like only");
    }

    #[test]
    fn a_password_that_was_right_and_is_no_more_is_as_good_as_none() {
        let logins = Logins::new(1);
        logins.tried(from(1, "u"), "old", true);
        assert!(logins.known().contains_key(&from(1, "u")));
        logins.tried(from(1, "u"), "old", false);
        assert!(logins.known().is_empty());
        // bcrypt compares no more of a password.
        let long = "x".repeat(PASSWORD_BYTES_MAX);
        logins.tried(from(1, "u"), &long, true);
        logins.tried(from(1, "u"), &(long + "y"), false);
        assert!(logins.known().is_empty());
    }

    #[test]
    fn what_is_known_is_bounded() {
        let logins = Logins::new(1);
        (0..2 * LATELY_MAX).for_each(|n| logins.tried(from(1, &format!("u{n}")), "right", true));
        assert_eq!(logins.known().len(), LATELY_MAX);
        assert!(logins.known().contains_key(&from(1, &format!("u{}", 2 * LATELY_MAX - 1))));
    }
}
