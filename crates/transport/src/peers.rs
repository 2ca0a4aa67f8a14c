//! The peers: a table that is read whenever something is sent, and swapped when members change; and the
//! thread that starts and ends what belongs to each peer.
//!
//! A thread that changes the table (as a rule, the thread of the protocol) only swaps it. The supervising
//! thread then ends the links that are not in the table any more and starts those that are new. It starts a
//! link only when nothing is left of an earlier link to the same replica, so that no event of the earlier one
//! comes after an event of the later one.

use std::{io, time::Duration};

use arc_swap::ArcSwap;
use synod_sync::{
    Arc, Condvar, Mutex,
    thread::{self, JoinHandle},
    time::Instant,
};
use synod_wire::ReplicaId;
use tracing::error;

use crate::{
    Config, Peer, TransportError,
    config::check_peers,
    dial,
    link::{Link, LinkBounds, Own},
    sync::{lock, wait, wait_while},
    transport::Shared,
};

/// Time between two looks at whether links that were told to end have ended.
const ENDING_POLL: Duration = Duration::from_millis(20);
/// Time to wait when the system refuses a thread, before the next attempt.
const START_RETRY: Duration = Duration::from_secs(1);

/// For how long it is known that a replica was a peer.
const LEFT_KNOWN: Duration = Duration::from_secs(60);

/// The links to all current peers.
pub(crate) type Table = Vec<Arc<Link>>;

/// The table of peers.
#[derive(Debug)]
pub(crate) struct Peers {
    me: ReplicaId,
    bounds: LinkBounds,
    own: Own,
    inbound_connections_max: usize,
    /// Whether peers can reach this replica.
    listens: bool,
    table: ArcSwap<Table>,
    change: Mutex<Change>,
    /// Wakes the supervising thread.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Change {
    /// Whether the supervising thread has yet to look at the table.
    pending: bool,
    stopping: bool,
    /// The replicas that were peers until a moment ago.
    left: Vec<(ReplicaId, Instant)>,
}

impl Peers {
    /// The peers that the configuration names.
    pub(crate) fn new(config: &Config, listens: bool) -> Result<Peers, TransportError> {
        let peers = Peers {
            me: config.me,
            bounds: LinkBounds::new(config),
            own: Own::new(config),
            inbound_connections_max: config.inbound_connections_max,
            listens,
            table: ArcSwap::default(),
            change: Mutex::default(),
            changed: Condvar::new(),
        };
        peers.set(config.peers.clone())?;
        Ok(peers)
    }

    /// Makes these replicas the peers. Does nothing once the transport is stopped.
    pub(crate) fn set(&self, peers: Vec<Peer>) -> Result<(), TransportError> {
        check_peers(self.me, &peers, self.inbound_connections_max)?;
        if !self.listens && !peers.is_empty() {
            return Err(TransportError::NoListenAddress);
        }
        {
            let mut change = lock(&self.change);
            if change.stopping {
                return Ok(());
            }
            let before = self.table.load();
            let keep_or_make = |peer: Peer| match find(&before, peer.id) {
                Some(link) => {
                    link.move_to(&peer.address);
                    Arc::clone(link)
                }
                None => Arc::new(Link::new(peer, self.bounds, self.own.clone())),
            };
            let table: Table = peers.into_iter().map(keep_or_make).collect();
            let now = Instant::now();
            change.left.retain(|(_, at)| now.saturating_duration_since(*at) < LEFT_KNOWN);
            let left = before.iter().map(|link| link.id()).filter(|id| find(&table, *id).is_none());
            change.left.extend(left.map(|id| (id, now)));
            self.table.store(Arc::new(table));
            change.pending = true;
        }
        self.changed.notify_one();
        Ok(())
    }

    /// The table of the current peers.
    pub(crate) fn table(&self) -> arc_swap::Guard<Arc<Table>> {
        self.table.load()
    }

    pub(crate) fn find(&self, id: ReplicaId) -> Option<Arc<Link>> {
        find(&self.table(), id).cloned()
    }

    /// Whether this replica was a peer until a moment ago.
    pub(crate) fn has_left(&self, id: ReplicaId) -> bool {
        let change = lock(&self.change);
        change.left.iter().any(|(other, at)| *other == id && at.elapsed() < LEFT_KNOWN)
    }

    /// Ends all links, permanently. The supervising thread ends when they have ended.
    pub(crate) fn stop(&self) {
        lock(&self.change).stopping = true;
        self.changed.notify_one();
        self.table().iter().for_each(|link| end(link));
    }

    /// Waits for a change, or until `timeout` is over; returns whether to stop.
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let mut change = lock(&self.change);
        let is_quiet = |change: &mut Change| !change.pending && !change.stopping;
        match timeout {
            Some(timeout) => change = wait_while(&self.changed, change, timeout, is_quiet),
            None => {
                while is_quiet(&mut change) {
                    change = wait(&self.changed, change);
                }
            }
        }
        change.pending = false;
        change.stopping
    }
}

/// A search is as fast as any other lookup, since there are few peers.
pub(crate) fn find(table: &Table, id: ReplicaId) -> Option<&Arc<Link>> {
    table.iter().find(|link| link.id() == id)
}

/// A link and its sender thread.
struct Running {
    link: Arc<Link>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Whether the link and its thread have ended, so that no event of them comes any more.
    fn is_over(&self) -> bool {
        self.thread.is_finished() && !self.link.turn.is_delivering()
    }

    fn join(self) {
        if self.thread.join().is_err() {
            error!("the sender thread of {} panicked", self.link.id());
        }
    }
}

/// The supervising thread's links, whose sender threads run.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    running: Vec<Running>,
    /// The links to former peers that were told to end and have not ended yet.
    ending: Vec<Running>,
}

impl Supervisor {
    /// Starts the links to the first peers.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Supervisor> {
        let mut supervisor = Supervisor { shared, running: Vec::new(), ending: Vec::new() };
        let table = supervisor.shared.peers.table.load_full();
        supervisor.start_links(&table)?;
        Ok(supervisor)
    }

    /// Follows the table until the transport is stopped, and waits for all sender threads.
    pub(crate) fn run(mut self) {
        let mut timeout = None;
        while !self.shared.peers.wait(timeout) {
            // Both steps use the same table: an earlier link to a replica must be among those that end before
            // a later one is looked at.
            let table = self.shared.peers.table.load_full();
            self.end_links(&table);
            timeout = match self.start_links(&table) {
                Err(error) => {
                    self.shared.complain("peer", || format!("no thread for a new peer: {error}"));
                    Some(START_RETRY)
                }
                Ok(()) if self.ending.is_empty() => None,
                Ok(()) => Some(ENDING_POLL),
            };
        }
        // Among them may be links that left the table just now.
        self.running.iter().for_each(|running| end(&running.link));
        self.running.into_iter().chain(self.ending).for_each(Running::join);
    }

    /// Tells links that are not in the table to end, and clears away those that have ended.
    fn end_links(&mut self, table: &Table) {
        let left = |running: &mut Running| !table.iter().any(|link| Arc::ptr_eq(link, &running.link));
        for running in self.running.extract_if(.., left) {
            end(&running.link);
            self.ending.push(running);
        }
        self.ending.extract_if(.., |running| running.is_over()).for_each(Running::join);
    }

    /// Starts links that are in the table and do not run yet.
    fn start_links(&mut self, table: &Table) -> io::Result<()> {
        for link in table {
            let runs = self.running.iter().any(|running| Arc::ptr_eq(link, &running.link));
            let waits = self.ending.iter().any(|running| running.link.id() == link.id());
            if runs || waits {
                continue;
            }
            let (shared, own) = (Arc::clone(&self.shared), Arc::clone(link));
            let thread = thread::Builder::new()
                .name(format!("send-{}", link.id()))
                .spawn(move || dial::run(&shared, &own))?;
            link.set_ready();
            self.running.push(Running { link: Arc::clone(link), thread });
        }
        Ok(())
    }
}

fn end(link: &Link) {
    link.stop();
    link.turn.stop();
}
