//! A world that a script moves, step by step: nothing is random, and no message arrives by itself.
//!
//! Disks answer at once unless they are stalled, batches are executed at once, and time stands still until
//! the script lets it pass.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use synod_consensus::{Link, Message, Role, election};
use synod_replica::{Event, PeerMessage};
use synod_wire::{Ballot, GroupId, Time};

use super::{Happening, World};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, Violation},
    clock::Moment,
    describe,
    network::{Loss, Packet},
};

/// This is more than the messages of any script.
const DELIVERIES_MAX: usize = 2_000;

/// One replica, as a script's `status` shows it.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) role: &'static str,
    pub(crate) ballot: String,
    pub(crate) decided: u64,
    pub(crate) executed: u64,
    pub(crate) snapshot: u64,
}

/// A message under way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// One of [`describe::CLASSES`].
    pub(crate) class: &'static str,
    pub(crate) text: String,
}

impl World {
    /// How many replicas there are.
    pub(crate) fn replicas(&self) -> usize {
        self.machines.len()
    }

    /// From now on commands are of this group. Returns whether there is one.
    pub(crate) fn turn_to(&mut self, group: GroupId) -> bool {
        let is_there = usize::from(group.0) < self.plan.groups;
        if is_there {
            self.focus = group;
        }
        is_there
    }

    /// Starts all replicas.
    pub(crate) fn start_all(&mut self) -> Checked {
        (0..self.machines.len()).try_for_each(|of| self.start(of))?;
        self.settle()
    }

    /// Lets everything happen that is due now.
    pub(crate) fn settle(&mut self) -> Checked {
        self.run_until(self.now)
    }

    /// Lets time pass; no message arrives.
    pub(crate) fn pass(&mut self, time: Duration) -> Checked {
        self.run_until(self.now + time)
    }

    /// Lets time pass, and every message arrive as soon as it is sent. Signs of life are not shown.
    pub(crate) fn pass_and_deliver(&mut self, time: Duration) -> Checked {
        self.idles = true;
        let result = self.deliver_until(self.now + time);
        self.idles = false;
        result
    }

    fn deliver_until(&mut self, end: Moment) -> Checked {
        let all = 0..self.machines.len();
        let mut links = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
        if links.any(|(from, to)| !self.latency(from, to).is_zero()) {
            return self.deliver_late_until(end);
        }
        loop {
            self.stabilize()?;
            match self.queue.next_at().filter(|at| *at <= end) {
                Some(at) => self.run_until(at)?,
                None => return self.run_until(end),
            }
        }
    }

    /// How long messages between two replicas take.
    fn latency(&self, from: usize, to: usize) -> Duration {
        self.plan.network.delay_min + self.network.slowed_by(from, to)
    }

    /// Makes messages between two replicas take this much longer than others, in both directions.
    pub(crate) fn slow_down(&mut self, one: usize, other: usize, by: Duration) {
        self.network.slow_down(one, other, by);
        self.network.slow_down(other, one, by);
    }

    /// Has every message arrive the latency of its link later than it was sent; what is under way already counts as
    /// sent now.
    fn deliver_late_until(&mut self, end: Moment) -> Checked {
        let mut due: BTreeMap<(usize, usize), VecDeque<Moment>> = BTreeMap::new();
        loop {
            for from in 0..self.machines.len() {
                for to in (0..self.machines.len()).filter(|&to| to != from) {
                    let link = due.entry((from, to)).or_default();
                    // A session that ended took what was under way with it.
                    let arrives = self.now + self.latency(from, to);
                    link.resize(self.network.in_transit(from, to).count(), arrives);
                }
            }
            let arrives =
                |(&link, due): (&(usize, usize), &VecDeque<Moment>)| due.front().map(|&at| (at, link));
            let running = |link: &(usize, usize)| self.machines[link.1].is_running();
            let arrival = due.iter().filter(|(link, _)| running(link)).filter_map(arrives).min();
            let event = self.queue.next_at();
            match (arrival, event) {
                (Some((at, (from, to))), event) if at <= end && event.is_none_or(|event| at <= event) => {
                    self.now = self.now.max(at);
                    due.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                    self.deliver(from, to, 0)?;
                }
                (_, Some(event)) if event <= end => self.run_until(event)?,
                _ => return self.run_until(end),
            }
        }
    }

    /// Delivers all messages, and those that are sent because of them, until there are no more.
    pub(crate) fn stabilize(&mut self) -> Checked {
        for _ in 0..DELIVERIES_MAX {
            let links =
                (0..self.machines.len()).flat_map(|from| (0..self.machines.len()).map(move |to| (from, to)));
            let next = links.into_iter().find(|&(from, to)| {
                self.machines[to].is_running() && self.network.in_transit(from, to).next().is_some()
            });
            let Some((from, to)) = next else { return Ok(()) };
            self.deliver(from, to, 0)?;
        }
        let detail = format!("{DELIVERIES_MAX} messages, and no end");
        Err(Violation { invariant: Invariant::Liveness, detail })
    }

    /// Delivers the message at a place in a stream.
    pub(crate) fn deliver(&mut self, from: usize, to: usize, place: usize) -> Checked {
        let Some(packet) = self.network.take(from, to, place) else { return Ok(()) };
        let birth = self.machines[from].files.birth;
        self.receive((from, birth), to, packet)?;
        self.settle()
    }

    /// Loses the message at a place in a stream.
    pub(crate) fn lose(&mut self, from: usize, to: usize, place: usize) {
        let Some(packet) = self.network.take(from, to, place) else { return };
        self.note_loss(packet.number, Loss::Script);
        if let Ok(message) = PeerMessage::decode(packet.body) {
            let of = self.of_group(packet.group);
            self.line(from, || format!("→ r{}  lost: {of}{}", to + 1, describe::message(&message)));
        }
    }

    /// The messages under way in a stream.
    pub(crate) fn under_way(&self, from: usize, to: usize) -> Vec<UnderWay> {
        let seen = |packet: &Packet| match PeerMessage::decode(packet.body.clone()) {
            Ok(message) => {
                let text = format!("{}{}", self.of_group(packet.group), describe::message(&message));
                UnderWay { class: describe::class(&message), text }
            }
            Err(_) => UnderWay { class: "", text: "unreadable".to_owned() },
        };
        self.network.in_transit(from, to).map(seen).collect()
    }

    /// Sets a replica's clock forward to its deadline, so that it finds a leader silent, or retries
    /// something. If it asks others whether it may try to lead, they are taken to be willing, and it does not
    /// look for another way to the leader that it misses: time stands still for the others.
    pub(crate) fn let_time_out(&mut self, of: usize) -> Checked {
        let now = self.now;
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let due = life.replica(self.focus).due();
        if due != Time::NEVER {
            life.clock = life.clock.set_forward(now, due);
            life.timer_at = None;
            life.host.wake(self.focus, due);
            self.jumps += 1;
            self.times_out = true;
            self.end_burst(of)?;
            self.times_out = false;
            self.let_rehearsal_succeed(of)?;
        }
        self.settle()
    }

    fn let_rehearsal_succeed(&mut self, of: usize) -> Checked {
        for to in (0..self.machines.len()).filter(|&to| to != of) {
            let last = self.network.in_transit(of, to).count().saturating_sub(1);
            let packet = self.network.in_transit(of, to).nth(last).cloned();
            let Some(Packet { number, body, .. }) = packet else { continue };
            let Ok(PeerMessage::Protocol { epoch, message }) = PeerMessage::decode(body) else {
                continue;
            };
            let Message::Election(election::Message::Rehearse { ballot }) = message else { continue };
            self.network.take(of, to, last);
            self.note_loss(number, Loss::Script);
            let willing = election::Message::RehearseReply { ballot, willing: true, highest: Ballot::ZERO };
            let message = PeerMessage::Protocol { epoch, message: willing.into() };
            let from = self.machines[to].id;
            self.step(of, self.focus, Event::Receive { from, message })?;
        }
        Ok(())
    }

    /// What `status` shows of a replica, if it is up.
    pub(crate) fn view(&self, of: usize) -> Option<View> {
        let machine = &self.machines[of];
        let status = machine.life.as_ref()?.replica(self.focus).status();
        Some(View {
            role: status.protocol.role.as_str(),
            ballot: status.protocol.view.ballot.to_string(),
            decided: status.protocol.decided.0,
            executed: status.executed.0,
            snapshot: machine.disk.newest_snapshot(self.focus).0,
        })
    }

    /// The group as a replica knows it.
    pub(crate) fn group(&self, of: usize) -> Option<String> {
        self.machines[of].life.as_ref().map(|life| describe::group(life.replica(self.focus).group()))
    }

    /// Whether a replica leads.
    pub(crate) fn leads(&self, of: usize) -> bool {
        let life = self.machines[of].life.as_ref();
        life.is_some_and(|life| life.replica(self.focus).status().protocol.role == Role::Leader)
    }

    /// A replica's log, record after record.
    pub(crate) fn log(&self, of: usize) -> Vec<String> {
        let disk = &self.machines[of].disk;
        let line = |(lsn, record)| {
            let durable = if lsn <= disk.durable_of(self.focus) { "" } else { " (not durable)" };
            format!("{lsn}: {}{durable}", describe::record(&record))
        };
        disk.records(self.focus).map(line).collect()
    }

    /// Answers a query from whatever state a replica has, unless it has a part of a batch.
    pub(crate) fn look(&self, of: usize, query: &bytes::Bytes) -> Option<bytes::Bytes> {
        let life = self.machines[of].life.as_ref()?;
        life.states[life.state_at(self.focus)].whole().map(|executor| executor.query(query))
    }

    /// Stalls a disk.
    pub(crate) fn stall(&mut self, of: usize) {
        self.chart(|chart| chart.marks(of, Mark::DiskStalls, "disk stalls".to_owned()));
        self.machines[of].disk.stall(true);
    }

    /// From now on each sync of a replica's disk takes this much longer than those of others.
    pub(crate) fn slow_disk(&mut self, of: usize, slower: Duration) {
        self.chart(|chart| chart.marks(of, Mark::DiskStalls, format!("disk {slower:?} slower")));
        self.machines[of].disk.slower = slower;
    }

    /// Has a stalled disk make durable what was written so far, and stall again.
    pub(crate) fn sync(&mut self, of: usize) -> Checked {
        let life = self.machines[of].lives;
        let disk = &mut self.machines[of].disk;
        disk.begin_sync();
        disk.stall(false);
        let syncing = disk.is_syncing();
        if syncing {
            self.sync_ends(of, life)?;
        }
        self.machines[of].disk.stall(true);
        self.settle()
    }

    /// Takes the log of a replica that is down and, if `snapshots` says so, its snapshots as well.
    pub(crate) fn lose_log(&mut self, of: usize, snapshots: bool) {
        self.machines[of].disk.lose_log(snapshots);
    }

    /// Lets so much time pass that all replicas forget a leader; no message arrives.
    pub(crate) fn let_timeouts_end(&mut self) -> Checked {
        self.pass(self.plan.settings.consensus.election_timeout)
    }

    /// Asks a replica to hand leadership over.
    pub(crate) fn transfer(&mut self, of: usize, to: usize) -> Checked {
        let to = self.machines[to].id;
        self.step(of, self.focus, Event::Transfer(to))?;
        self.settle()
    }

    /// Cuts links and ends their sessions.
    pub(crate) fn part(&mut self, links: Vec<(usize, usize)>) -> Checked {
        self.cut(links.clone());
        for (from, to) in links {
            self.end_session(from, to);
        }
        self.settle()
    }

    /// Ends a session, and has the machine at the other end refuse another.
    pub(crate) fn refuse(&mut self, (from, to): (usize, usize)) -> Checked {
        self.end_session_as(from, to, Link::Refused);
        self.settle()
    }

    /// Mends all cuts; sessions begin wherever both sides are up.
    pub(crate) fn join(&mut self) -> Checked {
        self.mend_all();
        for from in 0..self.machines.len() {
            for to in (0..self.machines.len()).filter(|&to| to != from) {
                self.queue.push(self.now, Happening::Dial { from, to });
            }
        }
        self.settle()
    }
}
