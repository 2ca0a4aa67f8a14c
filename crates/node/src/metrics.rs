//! Metrics in the format of Prometheus.

#[cfg(feature = "metrics")]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "metrics")]
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Unit};
#[cfg(feature = "metrics")]
use synod_metrics::Families;
use synod_sync::channel::Sender;

#[cfg(feature = "metrics")]
use crate::status::Shared;
use crate::{executor::JobSender, inputs::Queue, log::LogJob};

/// Collects the numbers of a running replica; register it with a [`prometheus_client::registry::Registry`].
#[cfg(feature = "metrics")]
pub struct NodeMetrics {
    pub(crate) shared: Arc<Shared>,
    pub(crate) transport: Arc<dyn synod_transport::Sender>,
    pub(crate) queues: Queues,
    /// Bytes of a batch at most.
    pub(crate) batch_max: u64,
    /// Of groups that are merged into one order, all of them.
    pub(crate) merged: Vec<Arc<Shared>>,
}

/// The queues, kept for their lengths.
#[derive(Clone)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "only metrics show them"))]
pub(crate) struct Queues {
    pub(crate) inputs: Queue,
    pub(crate) log: Sender<LogJob>,
    pub(crate) executor: JobSender,
}

#[cfg(feature = "metrics")]
impl std::fmt::Debug for NodeMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeMetrics")
    }
}

#[cfg(feature = "metrics")]
impl Collector for NodeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut families = Families(&mut encoder);
        let e = &mut families;
        self.encode_role(e)?;
        self.encode_slots(e)?;
        self.encode_log(e)?;
        self.encode_stages(e)?;
        encode_threads(e)?;
        self.encode_merge(e)?;
        self.encode_peers(e)
    }
}

/// What the threads of the process do with their time.
#[cfg(feature = "metrics")]
fn encode_threads(e: &mut Families<'_, '_>) -> std::fmt::Result {
    let threads = synod_sync::threads();
    let times = threads.iter().flat_map(|thread| {
        let states = [
            ("busy", thread.busy),
            ("ready", thread.ready),
            ("blocked", thread.blocked),
            ("waiting", thread.waiting),
        ];
        states.map(|(state, time)| ([("thread", thread.name.clone()), ("state", state.to_owned())], time))
    });
    e.counters_seconds(
        "synod_thread",
        "Time of threads: busy on a processor, ready for one, blocked by a lock, waiting at a queue; the rest is the system's",
        times,
    )?;
    let numbers = threads.iter().map(|thread| ([("thread", thread.name.clone())], u64::from(thread.threads)));
    e.gauges("synod_threads", "Threads of the name", numbers)
}

#[cfg(feature = "metrics")]
impl NodeMetrics {
    /// Which part the replica takes.
    fn encode_role(&self, e: &mut Families<'_, '_>) -> std::fmt::Result {
        let s = &*self.shared;
        e.gauge(
            "synod_role",
            "0 follower, 1 candidate, 2 leader, 3 recovering, 4 learner",
            s.role.load(std::sync::atomic::Ordering::Relaxed).into(),
        )?;
        e.gauge(
            "synod_without_memory",
            "Whether the replica lost (part of) its log and does not vote yet",
            s.without_memory.load(std::sync::atomic::Ordering::Relaxed).into(),
        )?;
        e.gauge(
            "synod_forked_peers",
            "Replicas that have decided something else than this one",
            s.forked_with.load().len() as u64,
        )?;
        e.gauge("synod_leader", "Id of the leader, 0 if none is known", s.leader.get())?;
        e.gauge("synod_ballot_round", "Round of the highest ballot known", s.ballot_round.get())?;
        e.counter("synod_leader_changes", "How often a leader was elected", s.leader_changes.get())
    }

    /// How far it is, and what it holds in memory for that.
    fn encode_slots(&self, e: &mut Families<'_, '_>) -> std::fmt::Result {
        let s = &*self.shared;
        e.gauge("synod_slot_decided", "Last slot of the decided prefix", s.decided.get())?;
        e.gauge(
            "synod_slot_known_decided",
            "Last slot known to be decided somewhere",
            s.decided_elsewhere.get(),
        )?;
        e.gauge("synod_slot_executed", "Last slot executed", s.executed.observe())?;
        e.gauge("synod_slots_in_flight", "Slots proposed by this leader and not decided", s.in_flight.get())?;
        e.gauge(
            "synod_window_max",
            "How many of them there may be (--window-max, or the group's option)",
            s.window_max.get(),
        )?;
        e.gauge_bytes("synod_batch_max", "Bytes of a batch at most (--batch-bytes-max)", self.batch_max)?;
        e.gauge_bytes("synod_queued", "Bytes of commands that wait for a decision", s.queued_bytes.get())?;
        e.gauge(
            "synod_backlogged",
            "1 while executing or the disk falls so far behind that nothing more is taken in",
            s.backlogged.get(),
        )?;
        e.gauge_bytes(
            "synod_unexecuted",
            "Bytes of decided batches that are not executed",
            s.unexecuted_bytes.get(),
        )?;
        e.gauge_bytes(
            "synod_undurable",
            "Bytes of log records that are not on stable storage",
            s.undurable_bytes.get(),
        )?;
        e.gauge_bytes("synod_held", "Bytes of messages that wait for log records", s.held_bytes.get())?;
        e.counter(
            "synod_sends_given_up",
            "Messages that were not sent because too much waited for the disk",
            s.sends_given_up.get(),
        )?;
        e.gauge(
            "synod_kept_slots",
            "Decided slots kept in memory for replicas that lag",
            s.kept_slots.get(),
        )?;
        e.gauge_bytes("synod_kept", "Bytes of decided slots kept in memory", s.kept_bytes.get())?;
        e.gauge("synod_snapshot_slot", "Last slot of the newest snapshot", s.snapshot_slot.get())?;
        e.gauge_bytes("synod_snapshot", "Size of the newest snapshot", s.snapshot_bytes.get())?;
        e.gauge("synod_client_sessions", "Open sessions of clients", s.client_sessions.get())?;
        e.counter("synod_commands", "Commands taken from clients, to be ordered", s.requests.get())?;
        e.counter("synod_reads", "Linearizable queries taken from clients", s.reads.get())
    }

    /// The log.
    fn encode_log(&self, e: &mut Families<'_, '_>) -> std::fmt::Result {
        let s = &*self.shared;
        e.gauge_bytes("synod_log", "Bytes of the write-ahead log", s.log_bytes.get())?;
        e.counter("synod_log_records", "Records written to the log", s.log_records.get())?;
        e.counter_bytes("synod_log_written", "Bytes written to the log", s.log_bytes_written.get())?;
        e.histogram(
            "synod_log_commit",
            "Commits to the log: writing what waits and, as far as --durability asks for it, one fsync",
            &s.log_commits,
        )
    }

    /// The stages, and the queues before them.
    fn encode_stages(&self, e: &mut Families<'_, '_>) -> std::fmt::Result {
        let s = &*self.shared;
        e.counter("synod_protocol_events", "Events taken by the protocol's thread", s.events.get())?;
        e.counter("synod_protocol_bursts", "Bursts of events, each handled as one", s.bursts.get())?;
        for (name, help, busy) in [
            ("synod_protocol_busy", "Time in which the protocol's thread was busy", &s.protocol_busy),
            (
                "synod_log_busy",
                "Time in which the log's thread was busy, waiting for the disk included",
                &s.log_busy,
            ),
            ("synod_executor_busy", "Time in which the executor's thread was busy", &s.executor_busy),
        ] {
            e.counter_seconds(name, help, busy.total())?;
        }
        e.histogram(
            "synod_executor_job",
            "Jobs of the executor: executing a batch, answering queries, freezing the state for a snapshot, \
             installing one",
            &s.executor_jobs,
        )?;
        e.gauge_seconds(
            "synod_executor_job_longest",
            "The longest job of the executor so far",
            s.executor_longest.get() as f64 / 1e9,
        )?;
        e.gauge_seconds(
            "synod_executor_job_most_processor_time",
            "The most processor time that a job of the executor took so far",
            s.executor_most_work.get() as f64 / 1e9,
        )?;
        e.counter("synod_snapshots_written", "Snapshots that this replica wrote", s.snapshots_written.get())?;
        e.counter_bytes(
            "synod_snapshot_written",
            "Bytes of snapshots that this replica wrote",
            s.snapshot_bytes_written.get(),
        )?;
        e.gauge(
            "synod_queue_inputs",
            "Events and requests that wait for the protocol's thread",
            self.queues.inputs.len() as u64,
        )?;
        e.gauge("synod_queue_log", "Jobs that wait for the log's thread", self.queues.log.len() as u64)?;
        e.gauge(
            "synod_queue_executor",
            "Jobs that wait for the executor's thread",
            self.queues.executor.len() as u64,
        )
    }

    /// What the groups show of their common order.
    fn encode_merge(&self, e: &mut Families<'_, '_>) -> std::fmt::Result {
        let Some(first) = self.merged.first() else { return Ok(()) };
        let positions = (0u64..).zip(&self.merged).map(|(group, of)| ([("group", group)], of.position.get()));
        e.gauges("synod_merge_position", "Where the group is in the common order", positions)?;
        let stall = first.merge.stall();
        let stalled = (0u64..).zip(&self.merged).map(|(number, _)| {
            let here = stall.filter(|(group, _)| u64::from(group.0) == number);
            ([("group", number)], here.map_or(Duration::ZERO, |(_, since)| since))
        });
        e.gauges_seconds(
            "synod_merge_waits",
            "For how long batches of other groups have waited for it",
            stalled.clone(),
        )?;
        // What Prometheus recommends is seconds. It goes with 0.4.0.
        e.gauges(
            "synod_merge_waits_ms",
            "Deprecated, and gone in 0.4.0: synod_merge_waits_seconds in milliseconds",
            stalled.map(|(group, since)| (group, u64::try_from(since.as_millis()).unwrap_or(u64::MAX))),
        )?;
        e.counter_seconds(
            "synod_merge_waited",
            "Time in which a batch waited for another group's",
            first.merge.waited(),
        )
    }

    fn encode_peers(&self, e: &mut Families<'_, '_>) -> std::fmt::Result {
        let metrics = self.transport.metrics();
        encode_datagrams(&metrics, e)?;
        let peers = metrics.peers;
        let by_peer = |number| by_peer(&peers, number);
        let gauges: [(&str, &str, Number); 2] = [
            (
                "synod_peer_connected",
                "Whether there are sessions to the peer and from it, and it answers",
                |peer| peer.up_since().is_some().into(),
            ),
            ("synod_peer_queue_frames", "Frames that wait to be sent to the peer", |peer| {
                peer.queue_frames as u64
            }),
        ];
        for (name, help, number) in gauges {
            e.gauges(name, help, by_peer(number))?;
        }
        let counters: [(&str, &str, Option<Unit>, Number); 6] = [
            ("synod_peer_frames_sent", "Frames sent to the peer", None, |peer| peer.frames_sent),
            ("synod_peer_frames_received", "Frames received from the peer", None, |peer| {
                peer.frames_received
            }),
            ("synod_peer_frames_dropped", "Frames to the peer that were dropped", None, |peer| {
                peer.frames_dropped
            }),
            (
                "synod_peer_frames_refused",
                "Frames from the peer that were refused: damaged, too large, of an unknown group, or without sense; each ended its session",
                None,
                |peer| peer.frames_refused,
            ),
            ("synod_peer_sent", "Bytes sent to the peer", Some(Unit::Bytes), |peer| peer.bytes_sent),
            ("synod_peer_received", "Bytes received from the peer", Some(Unit::Bytes), |peer| {
                peer.bytes_received
            }),
        ];
        for (name, help, unit, number) in counters {
            e.counters(name, help, unit.as_ref(), by_peer(number))?;
        }
        let round_trips = peers.iter().map(|peer| ([("peer", peer.peer.0)], &*peer.round_trips));
        e.histograms(
            "synod_peer_round_trip",
            "From a probe that was sent to the peer to its answer",
            round_trips.filter(|(_, durations)| !durations.is_empty()),
        )
    }
}

/// A number that is told of each peer.
#[cfg(feature = "metrics")]
type Number = fn(&synod_transport::PeerMetrics) -> u64;

#[cfg(feature = "metrics")]
fn by_peer(
    peers: &[synod_transport::PeerMetrics],
    number: Number,
) -> impl Iterator<Item = ([(&'static str, u64); 1], u64)> {
    peers.iter().map(move |peer| ([("peer", peer.peer.0)], number(peer)))
}

/// What is told of datagrams by a replica that takes them.
#[cfg(feature = "metrics")]
fn encode_datagrams(metrics: &synod_transport::Metrics, e: &mut Families<'_, '_>) -> std::fmt::Result {
    let synod_transport::Metrics { peers, datagrams_dropped, .. } = metrics;
    if datagrams_dropped.is_empty() {
        return Ok(());
    }
    let by_peer = |number| by_peer(peers, number);
    let help = "Whether messages to the peer that fit a packet leave as datagrams";
    e.gauges("synod_peer_datagrams", help, by_peer(|peer| peer.takes_datagrams.into()))?;
    let counters: [(&str, &str, Number); 4] = [
        ("synod_datagrams_sent", "Datagrams with messages sent to the peer", |peer| peer.datagrams_sent),
        ("synod_datagram_messages_sent", "Messages that left as datagrams", |peer| {
            peer.datagram_messages_sent
        }),
        ("synod_datagrams_unsent", "Datagrams that the system did not take", |peer| peer.datagrams_unsent),
        ("synod_datagrams_received", "Sound datagrams with messages from the peer", |peer| {
            peer.datagrams_received
        }),
    ];
    for (name, help, number) in counters {
        e.counters(name, help, None, by_peer(number))?;
    }
    let help = "Packets that came where datagrams are taken, and were dropped";
    let dropped = datagrams_dropped.iter().map(|&(reason, count)| ([("reason", reason)], count));
    e.counters("synod_datagrams_dropped", help, None, dropped)
}
