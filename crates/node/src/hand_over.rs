//! A leader that is told to stop hands over first: otherwise nothing would be served for an election time-out.

use std::time::Duration;

use synod_sync::{thread, time::Instant};

use synod_wire::ReplicaId;

use crate::{Handle, Node, blocking::blocking};

/// How long a hand-over may take. A successor that has everything needs two round trips.
const HAND_OVER_MAX: Duration = Duration::from_secs(1);
/// How long a successor is waited for before another one is asked: one that lags is refused without a word.
const ATTEMPT: Duration = Duration::from_millis(200);
const GLANCE_INTERVAL: Duration = Duration::from_millis(2);

impl Node {
    /// If this replica leads, of any of its groups, has one of the voters that it is connected with lead instead.
    /// [`Node::stop`] begins with it; a server calls it while it still answers those whose requests are under way.
    /// Returns once another replica leads, or after a second if none does; the others will find out then that this one
    /// is gone.
    pub async fn hand_over(&self) {
        if self.has_ended() {
            return;
        }
        let (handles, me) = (self.handles().to_vec(), self.me());
        // Where the system gives no thread, the others elect.
        let _ = blocking("hand-over", move || hand_over_all(&handles, me)).await;
    }

    /// [`Node::hand_over`] for callers that are not asynchronous: it blocks for at most about a second.
    pub fn hand_over_blocking(&self) {
        if !self.has_ended() {
            hand_over_all(self.handles(), self.me());
        }
    }
}

/// One after the other, all within the time of one.
fn hand_over_all(handles: &[Handle], me: ReplicaId) {
    let deadline = Instant::now() + HAND_OVER_MAX;
    handles.iter().for_each(|handle| hand_over(handle, me, deadline));
}

fn hand_over(handle: &Handle, me: ReplicaId, deadline: Instant) {
    let leader = || handle.status().leader;
    let successor = || leader().filter(|leader| *leader != me);
    let mut asked = Vec::new();
    while leader() == Some(me) && Instant::now() < deadline {
        let (group, peers) = (handle.group(), handle.status().peers);
        let mut connected =
            peers.iter().filter(|peer| peer.up_since.is_some() && group.votes(peer.id)).map(|peer| peer.id);
        let Some(to) = connected.find(|to| !asked.contains(to)) else {
            if asked.is_empty() {
                return;
            }
            asked.clear();
            continue;
        };
        asked.push(to);
        if handle.transfer(to).is_err() {
            return;
        }
        // In between nobody leads.
        let until = deadline.min(Instant::now() + ATTEMPT);
        while successor().is_none() && Instant::now() < until {
            thread::sleep(GLANCE_INTERVAL);
        }
    }
    match successor() {
        _ if asked.is_empty() => {}
        Some(leader) => tracing::info!(%leader, "handed over the leadership"),
        None => tracing::warn!("nobody has taken over the leadership in {HAND_OVER_MAX:?}"),
    }
}
