//! Metrics in the format of Prometheus.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use synod_sync::channel::Sender;

use crate::{executor::JobSender, log::LogJob, protocol::Input, status::Shared};

/// Collects the numbers of a running replica; register it with a [`prometheus_client::registry::Registry`].
pub struct NodeMetrics {
    pub(crate) shared: Arc<Shared>,
    pub(crate) transport: synod_transport::Sender,
    pub(crate) queues: Queues,
}

/// The queues, kept for their lengths.
#[derive(Clone)]
pub(crate) struct Queues {
    pub(crate) inputs: Sender<Input>,
    pub(crate) log: Sender<LogJob>,
    pub(crate) executor: JobSender,
}

impl std::fmt::Debug for NodeMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeMetrics")
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> std::fmt::Result {
    let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> std::fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, nanos: u64) -> std::fmt::Result {
    let metric = ConstCounter::new(nanos as f64 / 1e9);
    metric.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), metric.metric_type())?)
}

impl Collector for NodeMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let e = &mut encoder;
        let s = &*self.shared;
        gauge(
            e,
            "synod_role",
            "0 follower, 1 candidate, 2 leader, 3 recovering, 4 learner",
            s.role.load(std::sync::atomic::Ordering::Relaxed).into(),
        )?;
        gauge(
            e,
            "synod_without_memory",
            "Whether the replica lost (part of) its log and does not vote yet",
            s.without_memory.load(std::sync::atomic::Ordering::Relaxed).into(),
        )?;
        gauge(
            e,
            "synod_forked_peers",
            "Replicas that have decided something else than this one",
            s.forked_with.load().len() as u64,
        )?;
        gauge(e, "synod_leader", "Id of the leader, 0 if none is known", s.leader.get())?;
        gauge(e, "synod_ballot_round", "Round of the highest ballot known", s.ballot_round.get())?;
        counter(e, "synod_leader_changes", "How often a leader was elected", s.leader_changes.get())?;
        gauge(e, "synod_slot_decided", "Last slot of the decided prefix", s.decided.get())?;
        gauge(
            e,
            "synod_slot_known_decided",
            "Last slot known to be decided somewhere",
            s.decided_elsewhere.get(),
        )?;
        gauge(e, "synod_slot_executed", "Last slot executed", s.executed.observe())?;
        gauge(
            e,
            "synod_slots_in_flight",
            "Slots proposed by this leader and not decided",
            s.in_flight.get(),
        )?;
        gauge(e, "synod_queued_bytes", "Bytes of commands that wait for a decision", s.queued_bytes.get())?;
        gauge(
            e,
            "synod_backlogged",
            "1 while executing or the disk falls so far behind that nothing more is taken in",
            s.backlogged.get(),
        )?;
        gauge(
            e,
            "synod_unexecuted_bytes",
            "Bytes of decided batches that are not executed",
            s.unexecuted_bytes.get(),
        )?;
        gauge(
            e,
            "synod_undurable_bytes",
            "Bytes of log records that are not on stable storage",
            s.undurable_bytes.get(),
        )?;
        gauge(e, "synod_held_bytes", "Bytes of messages that wait for log records", s.held_bytes.get())?;
        counter(
            e,
            "synod_sends_given_up",
            "Messages that were not sent because too much waited for the disk",
            s.sends_given_up.get(),
        )?;
        gauge(
            e,
            "synod_kept_slots",
            "Decided slots kept in memory for replicas that lag",
            s.kept_slots.get(),
        )?;
        gauge(e, "synod_kept_bytes", "Bytes of decided slots kept in memory", s.kept_bytes.get())?;
        gauge(e, "synod_snapshot_slot", "Last slot of the newest snapshot", s.snapshot_slot.get())?;
        gauge(e, "synod_snapshot_bytes", "Size of the newest snapshot", s.snapshot_bytes.get())?;
        gauge(e, "synod_client_sessions", "Open sessions of clients", s.client_sessions.get())?;
        counter(e, "synod_requests", "Commands taken from clients", s.requests.get())?;
        counter(e, "synod_reads", "Linearizable queries taken from clients", s.reads.get())?;
        gauge(e, "synod_log_bytes", "Bytes of the write-ahead log", s.log_bytes.get())?;
        counter(e, "synod_log_commits", "Commits to the log, each one fsync", s.log_commits.get())?;
        counter(e, "synod_log_records", "Records written to the log", s.log_records.get())?;
        counter(e, "synod_log_written_bytes", "Bytes written to the log", s.log_bytes_written.get())?;
        seconds(e, "synod_log_commit", "Time spent in commits", s.log_commit_nanos.get())?;
        counter(e, "synod_protocol_events", "Events taken by the protocol's thread", s.events.get())?;
        counter(e, "synod_protocol_bursts", "Bursts of events, each handled as one", s.bursts.get())?;
        for (name, help, busy) in [
            ("synod_protocol_busy", "Time in which the protocol's thread was busy", &s.protocol_busy),
            (
                "synod_log_busy",
                "Time in which the log's thread was busy, waiting for the disk included",
                &s.log_busy,
            ),
            ("synod_executor_busy", "Time in which the executor's thread was busy", &s.executor_busy),
        ] {
            seconds(e, name, help, u64::try_from(busy.total().as_nanos()).unwrap_or(u64::MAX))?;
        }
        gauge(
            e,
            "synod_queue_inputs",
            "Events and requests that wait for the protocol's thread",
            self.queues.inputs.len() as u64,
        )?;
        gauge(e, "synod_queue_log", "Jobs that wait for the log's thread", self.queues.log.len() as u64)?;
        gauge(
            e,
            "synod_queue_executor",
            "Jobs that wait for the executor's thread",
            self.queues.executor.len() as u64,
        )?;
        self.encode_peers(e)
    }
}

impl NodeMetrics {
    fn encode_peers(&self, e: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let metrics = self.transport.metrics();
        type Number = fn(&synod_transport::PeerMetrics) -> u64;
        let columns: [(&str, &str, Number); 6] = [
            ("synod_peer_connected", "Whether messages can be sent to the peer", |peer| {
                peer.connected.into()
            }),
            ("synod_peer_frames_sent", "Frames sent to the peer", |peer| peer.frames_sent),
            ("synod_peer_bytes_sent", "Bytes sent to the peer", |peer| peer.bytes_sent),
            ("synod_peer_frames_received", "Frames received from the peer", |peer| peer.frames_received),
            ("synod_peer_frames_dropped", "Frames to the peer that were dropped", |peer| peer.frames_dropped),
            ("synod_peer_queue_frames", "Frames that wait to be sent to the peer", |peer| {
                peer.queue_frames as u64
            }),
        ];
        for (name, help, number) in columns {
            let family = ConstGauge::<i64>::new(0);
            let mut encoder = e.encode_descriptor(name, help, None, family.metric_type())?;
            for peer in &metrics.peers {
                let labels = [("peer", peer.peer.0.to_string())];
                let value = ConstGauge::new(i64::try_from(number(peer)).unwrap_or(i64::MAX));
                value.encode(encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
