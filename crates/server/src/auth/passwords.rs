//! Hashing and comparing passwords, which takes long on purpose. Each is done on a thread of its own, at most as many
//! at a time as half the processors, and one for each connection; whose is next is in `logins.rs`.
//!
//! **How long an answer takes does not tell whether there is a user.** A comparison with a hash of bcrypt takes a time
//! that doubles with the hash's cost, and hashes may have several costs, since the setting changes. So every
//! comparison does as much as one with the highest cost that is stored: after one of a lesser cost `c`, further ones
//! of the costs `c`, `c + 1` and so on below the highest `h`, which sum up to 2^c + (2^c + ... + 2^(h-1)) = 2^h; and
//! where there is no user, one of the highest.
//!
//! **A hash whose cost is far beyond the setting is compared with nothing**: each cost more doubles the time, so a hash
//! of the cost 31, which a user with the role root can give, would take a thread for a day. It is refused when it is
//! given. Where one is stored nobody logs in with it, and the log says so.

use std::{
    fmt::Display,
    hint::black_box,
    num::NonZero,
    sync::{Mutex, PoisonError},
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use synod_kv::KvError;
use synod_transport::Repeats;
use tokio::sync::oneshot;
use tonic::Status;
use tracing::warn;

use super::logins::Logins;
use crate::{
    call::too_many,
    readers::{Lane, lower_priority},
    services::refusal,
};

/// The niceness of a thread that hashes. It gets about a third of the CPU time of one without: those that order and
/// execute go first, and yet a login is answered soon on a machine that has more to do than it can.
const NICENESS: i32 = 5;
/// The longest password of which bcrypt uses all bytes.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// Beyond the setting by so much, a hash's cost is that of its user alone: eight times as long for all others would be
/// too much.
const COST_BEYOND_MAX: u32 = 3;
/// bcrypt's least cost.
const COST_MIN: u32 = 4;
/// Hashes up to this cost are taken in any case, though the setting is less: those that were made with another one.
const COST_TAKEN: u32 = 16;

#[derive(Debug)]
pub(crate) struct Passwords {
    cost: u32,
    logins: Logins,
    /// Warnings that somebody cannot log in.
    warnings: Mutex<Repeats>,
}

/// A password that somebody gives. It has no text, which could come into a message of the log.
pub(crate) struct Attempt {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Passwords {
    pub(crate) fn new(cost: u32) -> Passwords {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Passwords { cost, logins: Logins::new((processors / 2).clamp(1, 4)), warnings: Mutex::default() }
    }

    /// The hash of a password, in base64, for somebody who may manage users.
    pub(crate) async fn hash(&self, password: String, lane: &Lane) -> Result<String, Status> {
        if password.len() > PASSWORD_BYTES_MAX {
            // As etcd answers.
            return Err(Status::unknown("bcrypt: password length exceeds 72 bytes"));
        }
        let cost = self.cost;
        let nobody = Attempt { user: String::new(), password: String::new() };
        let hash = self.in_turn(lane, &nobody, move || bcrypt::hash(password, cost)).await?;
        let hash = hash.map_err(|error| Status::internal(format!("synod: hashing a password: {error}")))?;
        Ok(STANDARD.encode(hash))
    }

    /// Checks a hash, in base64, that is to be stored.
    ///
    /// # Errors
    /// It is none, or comparing passwords with it would take too long.
    pub(crate) fn check(&self, hash: &str) -> Result<(), Status> {
        let hash = decoded(hash).ok_or_else(|| refusal(&KvError::NoPasswordUser))?;
        match cost_of(&hash) {
            Some(cost) if cost > self.cost_max() => Err(Status::invalid_argument(format!(
                "synod: the hash has the cost {cost}, and those up to {} are taken (--bcrypt-cost and {COST_BEYOND_MAX} more, \
                 and {COST_TAKEN} in any case): each more doubles the time of a login; give the password, or a hash of a \
                 lesser cost",
                self.cost_max()
            ))),
            _ => Ok(()),
        }
    }

    fn cost_max(&self) -> u32 {
        (self.cost + COST_BEYOND_MAX).max(COST_TAKEN)
    }

    /// Whether a password has this hash, in base64, which is empty if there is no such user. `highest` is the highest
    /// cost of a hash that is stored, 0 if there is none.
    pub(crate) async fn is(
        &self,
        attempt: &Attempt,
        hash: String,
        highest: u32,
        lane: &Lane,
    ) -> Result<bool, Status> {
        let highest = if highest == 0 { self.cost } else { highest.min(self.cost + COST_BEYOND_MAX) };
        let password = attempt.password.clone();
        let is_taken = self.check(&hash).is_ok();
        if !is_taken && !hash.is_empty() {
            // The client hears that the password is wrong: another answer would tell that there is such a user.
            let left_out = self.warnings.lock().unwrap_or_else(PoisonError::into_inner).admit(&attempt.user);
            if let Some(left_out) = left_out {
                warn!(
                    user = attempt.user,
                    "nobody logs in with a hash that costs too much or is none; set the password again{left_out}"
                );
            }
        }
        let compare = move || {
            let hash = decoded(&hash).filter(|_| is_taken);
            let is_right = hash.as_ref().is_some_and(|hash| bcrypt::verify(&password, hash).unwrap_or(false));
            for cost in further_costs(hash.as_deref().and_then(cost_of), highest) {
                let _ = black_box(bcrypt::verify(&password, &of_nobody(cost)));
            }
            is_right
        };
        let is_right = self.in_turn(lane, attempt, compare).await?;
        self.logins.tried((lane.origin(), attempt.user.as_str().into()), &attempt.password, is_right);
        Ok(is_right)
    }

    /// Does work on a thread of its own. The connection's place and the turn are the thread's until the work has ended,
    /// also if the client leaves: otherwise a connection that asks and gives up would have as many turns as there are.
    async fn in_turn<T: Send + 'static>(
        &self,
        lane: &Lane,
        attempt: &Attempt,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let of_connection = lane.password().await;
        let person = (lane.origin(), attempt.user.as_str().into());
        let turn = self.logins.turn(person, &attempt.password).await.ok_or_else(too_many)?;
        let (done, result) = oneshot::channel();
        let hashing = thread::Builder::new().name("password".into()).spawn(move || {
            let _held = (of_connection, turn);
            lower_priority(NICENESS);
            // If the client has given up, nobody waits for it.
            let _ = done.send(work());
        });
        let failed = |error: &dyn Display| Status::internal(format!("synod: hashing a password: {error}"));
        hashing.map_err(|error| failed(&error))?;
        result.await.map_err(|error| failed(&error))
    }
}

/// The costs of the comparisons that follow one with a hash of the cost `own`, or none, until all is done that one of
/// the highest cost takes.
fn further_costs(own: Option<u32>, highest: u32) -> Vec<u32> {
    own.map_or_else(|| vec![highest], |own| (own..highest).collect())
}

/// A hash that no password has.
fn of_nobody(cost: u32) -> String {
    // Salt and hash, of 16 and 23 bytes, are zero.
    format!("$2b${cost:02}${}", ".".repeat(22 + 31))
}

/// The cost of a hash of bcrypt's.
fn cost_of(hash: &str) -> Option<u32> {
    let cost = hash.split('$').nth(2)?.parse().ok()?;
    (COST_MIN..=31).contains(&cost).then_some(cost)
}

/// A hash out of base64; `None` if it is no text.
fn decoded(hash: &str) -> Option<String> {
    STANDARD.decode(hash).ok().and_then(|hash| String::from_utf8(hash).ok())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::readers::Readers;

    #[tokio::test]
    async fn a_password_has_its_hash_and_no_other() {
        let (passwords, lane) = (Passwords::new(4), Readers::new().lane(None));
        let hash = passwords.hash("right".into(), &lane).await.unwrap();
        let is = |password: &str, hash: &str| {
            let (attempt, hash) = (Attempt { user: "u".into(), password: password.into() }, hash.to_owned());
            let (passwords, lane) = (&passwords, &lane);
            async move { passwords.is(&attempt, hash, 5, lane).await.unwrap() }
        };
        assert!(is("right", &hash).await);
        assert!(!is("wrong", &hash).await && !is("right", "").await && !is("", "").await);
        assert!(!is("right", "?").await);
        // Go's hash of "pw", as etcd stores it.
        let of_etcd = STANDARD.encode("$2a$04$/CzYnnbuGy/kNp1H0BWSueuKSSUIZ8hcQNFVqrFJBqKnRxZXkMCvq");
        assert!(!is("right", &of_etcd).await);
        let long = passwords.hash("x".repeat(73), &lane).await.unwrap_err();
        assert_eq!(long.message(), "bcrypt: password length exceeds 72 bytes");
    }

    #[tokio::test]
    async fn a_hash_that_would_take_days_is_not_compared_with() {
        let (passwords, lane) = (Passwords::new(4), Readers::new().lane(None));
        let of_cost = |cost| STANDARD.encode(of_nobody(cost));
        for taken in [4, 7, 16] {
            assert!(passwords.check(&of_cost(taken)).is_ok(), "{taken}");
        }
        let refused = passwords.check(&of_cost(17)).unwrap_err();
        assert!(refused.message().contains("the cost 17, and those up to 16"), "{refused}");
        assert!(Passwords::new(14).check(&of_cost(17)).is_ok());
        assert_eq!(passwords.check("?").unwrap_err().message(), KvError::NoPasswordUser.to_string());
        let attempt = Attempt { user: "u".into(), password: "right".into() };
        let compared = passwords.is(&attempt, of_cost(31), 31, &lane);
        let is_right = tokio::time::timeout(std::time::Duration::from_secs(20), compared).await;
        assert!(!is_right.expect("it takes no longer than another one").unwrap());
    }

    #[tokio::test]
    async fn a_thread_holds_the_place_of_its_connection_when_the_client_has_left() {
        let (passwords, lane) = (Passwords::new(4), Readers::new().lane(None));
        let attempt = Attempt { user: "u".into(), password: "right".into() };
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            begun.send(()).unwrap();
            let _ = ended.recv();
        };
        let mut asked = Box::pin(passwords.in_turn(&lane, &attempt, work));
        assert!((&mut asked).now_or_never().is_none());
        begins.recv().unwrap();
        drop(asked);
        assert!(lane.password().now_or_never().is_none(), "the thread is still at work");
        drop(end);
        let freed = tokio::time::timeout(std::time::Duration::from_secs(20), lane.password()).await;
        drop(freed.expect("the thread has ended"));
    }

    #[test]
    fn every_comparison_does_as_much_as_one_of_the_highest_cost() {
        let work = |own: Option<u32>, highest| {
            let further: u64 = further_costs(own, highest).into_iter().map(|cost| 1 << cost).sum();
            own.map_or(0, |own| 1_u64 << own) + further
        };
        for highest in COST_MIN..=16 {
            assert_eq!(work(None, highest), 1 << highest);
            for own in COST_MIN..=highest {
                assert_eq!(work(Some(own), highest), 1 << highest, "{own} of {highest}");
            }
        }
        // One that is beyond what others are made to take.
        assert_eq!(work(Some(9), 7), 1 << 9);
        assert_eq!(cost_of(&bcrypt::hash("x", 5).unwrap()), Some(5));
        for none in ["", "$2b$", "$2b$x$", "$2b$03$", "$2b$99$"] {
            assert_eq!(cost_of(none), None, "{none}");
        }
        // bcrypt takes what stands for nobody, and compares with it.
        assert!(matches!(bcrypt::verify("x", &of_nobody(4)), Ok(false)));
    }

    #[tokio::test]
    async fn a_flood_of_one_address_keeps_nobody_else_out() {
        let passwords = Passwords::new(4);
        let hash = passwords.hash("right".into(), &Readers::new().lane(None)).await.unwrap();
        let lane = |host| Readers::new().lane(Some([10, 0, 0, host].into()));
        let is = async |password: &str, lane: &Lane| {
            let attempt = Attempt { user: "u".into(), password: password.into() };
            passwords.is(&attempt, hash.clone(), 12, lane).await
        };
        let flooding: Vec<_> = (0..100).map(|_| lane(1)).collect();
        let flood = futures_util::future::join_all(flooding.iter().map(|lane| is("wrong", lane)));
        let own = lane(2);
        tokio::select! {
            biased;
            _ = flood => panic!("all of the flood came first"),
            is_right = is("right", &own) => assert!(is_right.unwrap()),
        }
    }
}
