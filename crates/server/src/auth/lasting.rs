//! Calls that last, and what becomes of them when their users lose something.
//!
//! A watch or a subscription is judged when it begins, and may last for months. So it is registered before it is
//! judged; the store tells of each change that takes something from somebody
//! ([`AuthFeed::changed`](synod_kv::AuthFeed::changed)), in its slot, and that marks the calls that it concerns before
//! anything later can reach them. A marked call shows nothing more before it is judged again.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::sync::watch::{self, Receiver, Sender};
use tonic::Status;

/// Users without a call that are kept until it is looked for them.
const IDLE_USERS_MAX: usize = 64;

/// The marks of all calls that last.
#[derive(Debug, Default)]
pub(super) struct Lasting(Mutex<Marks>);

#[derive(Debug)]
struct Marks {
    /// Of calls of anybody.
    of_all: Sender<()>,
    /// Of any change.
    of_any: Sender<()>,
    /// Of the calls of a user.
    by_user: HashMap<Box<str>, Sender<()>>,
    /// With this many users those without a call are forgotten.
    users_max: usize,
}

impl Default for Marks {
    fn default() -> Marks {
        let mark = || watch::channel(()).0;
        Marks { of_all: mark(), of_any: mark(), by_user: HashMap::new(), users_max: IDLE_USERS_MAX }
    }
}

impl Lasting {
    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call that is marked when somebody loses something that concerns all.
    pub(super) fn of_all(&self) -> Judgement {
        Judgement { of_all: self.marks().of_all.subscribe(), of_user: OnceLock::new() }
    }

    /// Registers a call that is marked when anybody loses something.
    pub(super) fn of_any(&self) -> Judgement {
        Judgement { of_all: self.marks().of_any.subscribe(), of_user: OnceLock::new() }
    }

    fn of_user(&self, user: &str) -> Receiver<()> {
        let mut marks = self.marks();
        if let Some(mark) = marks.by_user.get(user) {
            return mark.subscribe();
        }
        if marks.by_user.len() >= marks.users_max {
            marks.by_user.retain(|_, mark| mark.receiver_count() > 0);
            marks.users_max = (2 * marks.by_user.len()).max(IDLE_USERS_MAX);
        }
        let (mark, marked) = watch::channel(());
        marks.by_user.insert(user.into(), mark);
        marked
    }

    /// Marks the calls of a user, or all.
    pub(super) fn mark(&self, user: Option<&str>) {
        let marks = self.marks();
        marks.of_any.send_replace(());
        let concerned = user.map_or(Some(&marks.of_all), |user| marks.by_user.get(user));
        concerned.into_iter().for_each(|mark| mark.send_replace(()));
    }
}

/// Whether what permitted a call still stands, as far as this replica has executed the log.
#[derive(Debug)]
pub(crate) struct Judgement {
    of_all: Receiver<()>,
    /// Once it is known who the user is, of whom a call has one.
    of_user: OnceLock<Receiver<()>>,
}

impl Judgement {
    /// The call is of this user, who is about to be judged.
    pub(super) fn name(&self, user: &str, lasting: &Lasting) {
        self.of_user.get_or_init(|| lasting.of_user(user));
    }

    /// Whether the call has to be judged again.
    pub(crate) fn is_marked(&self) -> bool {
        let is_marked = |mark: &Receiver<()>| mark.has_changed().unwrap_or(false);
        is_marked(&self.of_all) || self.of_user.get().is_some_and(is_marked)
    }

    /// Waits until it is so.
    pub(crate) async fn until_marked(&self) {
        async fn of(mark: Option<&Receiver<()>>) {
            // The marks last as long as the server.
            let Some(mut mark) = mark.cloned() else { return pending().await };
            if mark.changed().await.is_err() {
                pending().await
            }
        }
        tokio::select! {
            () = of(Some(&self.of_all)) => {}
            () = of(self.of_user.get()) => {}
        }
    }
}

/// Waits until a call has to be judged again. Where there are no users it never has.
pub(crate) async fn until_marked(judgement: Option<&Judgement>) {
    match judgement {
        Some(judgement) => judgement.until_marked().await,
        None => pending().await,
    }
}

/// How a call ends that is not judged again where it is: its client comes again, by itself if it is one of etcd's, and
/// is judged then.
pub(crate) fn judged_anew() -> Status {
    Status::unavailable(
        "synod: what this user may do has changed; come again, to be judged by what counts now",
    )
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_call_is_marked_by_what_concerns_its_user() {
        let lasting = Lasting::default();
        let calls = || {
            let (of_nobody, of_u, of_v) = (lasting.of_all(), lasting.of_all(), lasting.of_all());
            of_u.name("u", &lasting);
            of_v.name("v", &lasting);
            [of_nobody, of_u, of_v, lasting.of_any()]
        };
        let marked = |calls: &[Judgement; 4]| {
            calls.each_ref().map(|call| {
                assert_eq!(call.is_marked(), call.until_marked().now_or_never().is_some());
                call.is_marked()
            })
        };
        let first = calls();
        assert_eq!(marked(&first), [false; 4]);
        lasting.mark(Some("u"));
        assert_eq!(marked(&first), [false, true, false, true]);
        let second = calls();
        assert_eq!(marked(&second), [false; 4]);
        lasting.mark(Some("nobody"));
        assert_eq!(marked(&second), [false, false, false, true]);
        lasting.mark(None);
        assert_eq!((marked(&first), marked(&second)), ([true; 4], [true; 4]));
    }

    #[test]
    fn users_without_calls_are_forgotten() {
        let lasting = Lasting::default();
        let kept = lasting.of_all();
        kept.name("kept", &lasting);
        for number in 0..10 * IDLE_USERS_MAX {
            lasting.of_all().name(&format!("u{number}"), &lasting);
        }
        assert!(lasting.marks().by_user.len() <= IDLE_USERS_MAX);
        lasting.mark(Some("kept"));
        assert!(kept.is_marked());
    }
}
