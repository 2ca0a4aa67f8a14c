//! Hashing and comparing passwords, which takes long on purpose. Each is done on a thread of its own, at most as many
//! at a time as half the processors, and one for each connection; when many wait already, further ones are refused.

use std::{
    fmt::Display,
    num::NonZero,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;

use crate::{
    message::too_many,
    readers::{Lane, lower_priority},
};

/// Connections that wait for a thread. More are refused.
const WAITING_MAX: usize = 128;
/// The niceness of a thread that hashes. It gets about a third of the CPU time of one without: those that order and
/// execute go first, and yet a login is answered soon on a machine that has more to do than it can.
const NICENESS: i32 = 5;
/// The longest password of which bcrypt uses all bytes.
const PASSWORD_BYTES_MAX: usize = 72;

#[derive(Debug)]
pub(crate) struct Passwords {
    cost: u32,
    threads: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// A hash to compare with where there is no user, so that the answer comes as late.
    of_nobody: Arc<OnceLock<String>>,
}

impl Passwords {
    pub(crate) fn new(cost: u32) -> Passwords {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = Arc::new(Semaphore::new((processors / 2).clamp(1, 4)));
        Passwords { cost, threads, waiting: AtomicUsize::new(0), of_nobody: Arc::default() }
    }

    /// The hash of a password, in base64.
    pub(crate) async fn hash(&self, password: String, lane: &Lane) -> Result<String, Status> {
        if password.len() > PASSWORD_BYTES_MAX {
            // As etcd answers.
            return Err(Status::unknown("bcrypt: password length exceeds 72 bytes"));
        }
        let cost = self.cost;
        let hash = self.in_turn(lane, move || bcrypt::hash(password, cost)).await?;
        let hash = hash.map_err(|error| Status::internal(format!("synod: hashing a password: {error}")))?;
        Ok(STANDARD.encode(hash))
    }

    /// Whether a password has this hash. Without one it has not, and it takes as long to say so.
    pub(crate) async fn is(
        &self,
        password: String,
        hash: Option<String>,
        lane: &Lane,
    ) -> Result<bool, Status> {
        let (cost, of_nobody) = (self.cost, Arc::clone(&self.of_nobody));
        self.in_turn(lane, move || match hash {
            Some(hash) => decoded(&hash).is_some_and(|hash| bcrypt::verify(password, &hash).unwrap_or(false)),
            None => {
                let hash = of_nobody.get_or_init(|| bcrypt::hash("", cost).unwrap_or_default());
                let _ = bcrypt::verify(password, hash);
                false
            }
        })
        .await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        lane: &Lane,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let _of_connection = lane.password().await;
        let _waits = Waits::one_more(&self.waiting).ok_or_else(too_many)?;
        let turn = Arc::clone(&self.threads).acquire_owned().await.expect("it is never closed");
        let (done, result) = oneshot::channel();
        let hashing = thread::Builder::new().name("password".into()).spawn(move || {
            let _turn = turn;
            lower_priority(NICENESS);
            // If the client has given up, nobody waits for it.
            let _ = done.send(work());
        });
        let failed = |error: &dyn Display| Status::internal(format!("synod: hashing a password: {error}"));
        hashing.map_err(|error| failed(&error))?;
        result.await.map_err(|error| failed(&error))
    }
}

/// Counts one that waits or works, until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn one_more(waiting: &'a AtomicUsize) -> Option<Waits<'a>> {
        let waits = Waits(waiting);
        (waiting.fetch_add(1, Relaxed) < WAITING_MAX).then_some(waits)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A hash out of base64; `None` if it is no text.
pub(crate) fn decoded(hash: &str) -> Option<String> {
    STANDARD.decode(hash).ok().and_then(|hash| String::from_utf8(hash).ok())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::readers::Readers;

    #[tokio::test]
    async fn a_password_has_its_hash_and_no_other() {
        let (passwords, lane) = (Passwords::new(4), Readers::new().lane());
        let hash = passwords.hash("right".into(), &lane).await.unwrap();
        let is = |password: &str, hash: Option<&str>| {
            let (password, hash) = (password.to_owned(), hash.map(str::to_owned));
            let (passwords, lane) = (&passwords, &lane);
            async move { passwords.is(password, hash, lane).await.unwrap() }
        };
        assert!(is("right", Some(&hash)).await);
        assert!(!is("wrong", Some(&hash)).await && !is("right", None).await && !is("", None).await);
        assert!(!is("", Some("")).await && !is("right", Some("?")).await);
        // Go's hash of "pw", as etcd stores it.
        let of_etcd = STANDARD.encode("$2a$04$/CzYnnbuGy/kNp1H0BWSueuKSSUIZ8hcQNFVqrFJBqKnRxZXkMCvq");
        assert!(!is("right", Some(&of_etcd)).await);
        let long = passwords.hash("x".repeat(73), &lane).await.unwrap_err();
        assert_eq!(long.message(), "bcrypt: password length exceeds 72 bytes");
    }

    #[tokio::test]
    async fn when_too_many_wait_more_are_refused() {
        // Otherwise tokio lets a task do only so much at a time.
        tokio::task::unconstrained(too_many_wait()).await;
    }

    async fn too_many_wait() {
        let (passwords, readers) = (Passwords::new(4), Readers::new());
        let _threads = passwords.threads.acquire_many(passwords.threads.available_permits() as u32).await;
        let lanes: Vec<_> = (0..=WAITING_MAX).map(|_| readers.lane()).collect();
        let mut waiting: Vec<_> =
            lanes.iter().map(|lane| Box::pin(passwords.is("x".into(), None, lane))).collect();
        let mut refused = 0;
        for waits in &mut waiting {
            refused += usize::from(waits.as_mut().now_or_never().is_some());
        }
        assert_eq!(refused, 1);
        // A connection that is waiting has one place, however much it asks for.
        waiting.pop();
        waiting.pop();
        let more = Box::pin(passwords.is("x".into(), None, &lanes[0]));
        assert!(more.now_or_never().is_none());
        assert_eq!(passwords.waiting.load(Relaxed), WAITING_MAX - 1);
    }
}
