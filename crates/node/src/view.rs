//! What changes about a replica, for tasks that wait for it.

use std::{
    future::{Future, poll_fn},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    task::{Context, Poll},
};

use synod_consensus::Role;
use synod_replica::Group;
use synod_wire::{Ballot, ReplicaId, Slot};
use tokio::sync::Notify;

use crate::status::Shared;

/// Wakes the tasks that wait for a change. A replica that no task watches pays a fence and a load for each burst of
/// events.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    waiting: AtomicUsize,
    changed: Notify,
    ended: AtomicBool,
}

impl Watchers {
    /// Something that a [`View`] shows may have changed. Tasks that wait are woken.
    pub(crate) fn tell(&self) {
        // Either this thread sees a task that waits, or the task sees what was stored before.
        fence(SeqCst);
        if self.waiting.load(Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }
}

/// Held by the thread that changes what is watched: without it nothing changes any more.
pub(crate) struct Watched(pub(crate) Arc<Shared>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watchers.ended.store(true, SeqCst);
        self.0.watchers.tell();
    }
}

/// What a replica shows to those who wait for a change of it; see [`Handle::watch`](crate::Handle::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct View {
    /// What the replica does.
    pub role: Role,
    /// The leader, as far as it knows.
    pub leader: Option<ReplicaId>,
    /// The highest ballot that it knows.
    pub ballot: Ballot,
    /// It has executed everything through this slot.
    pub executed: Slot,
    /// The group as it knows it.
    pub group: Arc<Group>,
    /// Whether it was removed from the group, and no other replica needs it any more. It should be stopped then.
    pub retired: bool,
}

impl View {
    fn of(shared: &Shared) -> View {
        View {
            role: shared.role(),
            leader: shared.leader(),
            ballot: shared.ballot(),
            executed: Slot(shared.executed.observe()),
            group: shared.group.load_full().expect("stored when the replica started"),
            retired: shared.retired.load(SeqCst),
        }
    }
}

/// Waits for changes of a replica. It sees the latest view and not each one in between.
#[derive(Clone, Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    seen: View,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>) -> Watch {
        let seen = View::of(&shared);
        Watch { shared, seen }
    }

    /// The view that was seen last.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.seen
    }

    /// Waits until the view is another one than the one that was seen last. `None`: the replica has ended.
    pub async fn changed(&mut self) -> Option<&View> {
        let watchers = &self.shared.watchers;
        let _waiting = Waiting::new(watchers);
        loop {
            // Made before the look, so that no change is missed.
            let changed = watchers.changed.notified();
            let ended = watchers.ended.load(SeqCst);
            let now = View::of(&self.shared);
            if now != self.seen {
                self.seen = now;
                return Some(&self.seen);
            }
            if ended {
                return None;
            }
            changed.await;
        }
    }

    /// Waits until a view meets a condition, the present one included. `None`: the replica has ended before.
    pub async fn until(&mut self, mut condition: impl FnMut(&View) -> bool) -> Option<&View> {
        self.seen = View::of(&self.shared);
        while !condition(&self.seen) {
            self.changed().await?;
        }
        Some(&self.seen)
    }
}

/// What is watched has ended.
pub(crate) struct Ended;

/// Waits until something about these replicas changes that makes `has_changed` true, if it is not.
pub(crate) async fn any_change<'a>(
    all: impl Iterator<Item = &'a Shared>,
    mut has_changed: impl FnMut() -> bool,
) -> Result<(), Ended> {
    let watchers: Vec<_> = all.map(|shared| &shared.watchers).collect();
    let _waiting: Vec<_> = watchers.iter().map(|watchers| Waiting::new(watchers)).collect();
    loop {
        // Made before the look, so that no change is missed.
        let mut changed: Vec<_> =
            watchers.iter().map(|watchers| Box::pin(watchers.changed.notified())).collect();
        let ended = watchers.iter().any(|watchers| watchers.ended.load(SeqCst));
        if has_changed() {
            return Ok(());
        }
        if ended {
            return Err(Ended);
        }
        let any = |context: &mut Context<'_>| {
            let mut woken = changed.iter_mut().map(|changed| changed.as_mut().poll(context).is_ready());
            if woken.any(|woken| woken) { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(any).await;
    }
}

/// A task that waits.
struct Waiting<'a>(&'a Watchers);

impl Waiting<'_> {
    fn new(watchers: &Watchers) -> Waiting<'_> {
        watchers.waiting.fetch_add(1, SeqCst);
        fence(SeqCst);
        Waiting(watchers)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}
