//! Outages: one fault lasts for good, and meanwhile the leader crashes. How long is service missing?
//!
//! A group of five works without faults until the fault begins. Then nothing else happens for [`SETTLES`]
//! election time-outs, the replica that leads by then crashes, and for [`LASTS`] more nothing happens. So at
//! most two of five are gone or hit at a time, and a quorum is well. The longest time without a newly decided
//! slot is measured, from the fault on and from the crash on: the leader's replicated clock always gives it
//! something to order. If a follower misses only the leader, its own clients' waiting time for a command or a
//! read is measured instead. If the fault may make service slow, so is what the clients of all replicas get answered.

use std::time::Duration;

use synod_wire::Slot;

use super::World;
use crate::{
    check::{Invariant, Violation},
    ops::Op,
    outage::{Lasting, Outage},
    plan::Ending,
};

/// Replicas of the group.
pub(crate) const REPLICAS: usize = 5;
/// Election time-outs in which a group must begin to work.
const STARTS_WITHIN: u32 = 20;
/// Election time-outs for which it then works at least before the fault.
const WORKS: u32 = 2;
/// Election time-outs from the fault to the crash of the leader.
const SETTLES: u32 = 12;
/// Election time-outs before the fault, and before the crash, in which answers are counted, where that is measured.
const COUNTED: u32 = 6;
/// Election time-outs from there to the end.
const LASTS: u32 = 24;
/// How many times in an election time-out it is checked whether something was decided.
const LOOKS: u32 = 20;

impl World {
    /// Plays one fault.
    pub(crate) fn outage(&mut self, lasting: Lasting) -> Result<Outage, Violation> {
        let timeout = self.plan.settings.consensus.election_timeout;
        for of in 0..self.machines.len() {
            self.start(of)?;
        }
        let mut looks = 0;
        while self.settled_leader().is_none() || looks < WORKS * LOOKS {
            self.run_until(self.now + timeout / LOOKS)?;
            looks += 1;
            if looks > STARTS_WITHIN * LOOKS {
                let detail = format!("nobody led for {STARTS_WITHIN} election time-outs; {}", self.roles());
                return Err(Violation { invariant: Invariant::Liveness, detail });
            }
        }
        let before = if lasting.has_goodput() { self.answered(COUNTED)? } else { 0 };
        // The fault comes at any moment between two heartbeats.
        let wait = self.rng.u32(0..1000);
        self.run_until(self.now + timeout / 10 * wait / 1000)?;
        let leader = self.settled_leader().unwrap_or_default();
        let elections = self.coverage.elections;
        let mut from_fault = self.begin_lasting(lasting, leader, timeout)?;
        let asked = match lasting {
            Lasting::Unlinked { place, .. } => Some((leader + place) % REPLICAS),
            _ => None,
        };
        let counted = if lasting.has_goodput() { COUNTED } else { 0 };
        from_fault = from_fault.max(self.longest(asked, SETTLES - counted)?);
        let goodput_percent = match counted {
            0 => None,
            _ => Some(100 * self.answered(counted)? / before.max(1)),
        };
        let elections = self.coverage.elections - elections;
        if matches!(lasting, Lasting::Star { .. }) {
            return Ok(Outage { from_fault, from_crash: Duration::ZERO, elections, goodput_percent });
        }
        if let Lasting::HangsAtCrash { place, .. } = lasting {
            self.stall((leader + place) % REPLICAS);
        }
        if let Some(of) =
            (0..self.machines.len()).filter(|&of| self.is_leading(of)).max_by_key(|&of| self.leads_in(of))
        {
            self.end_life(
                of,
                if matches!(lasting, Lasting::Process { .. }) { Ending::Process } else { Ending::Machine },
            );
        }
        let from_crash = self.longest(asked, LASTS)?;
        Ok(Outage { from_fault, from_crash, elections, goodput_percent })
    }

    /// Begins the fault. Returns the longest gap meanwhile, if that takes time.
    fn begin_lasting(
        &mut self,
        lasting: Lasting,
        leader: usize,
        timeout: Duration,
    ) -> Result<Duration, Violation> {
        // Replicas are given by their distance from the leader; 0 is the leader itself.
        let place = |of: usize| (leader + of) % REPLICAS;
        let all = || {
            (0..REPLICAS)
                .flat_map(|from| (0..REPLICAS).map(move |to| (from, to)))
                .filter(|(from, to)| from != to)
        };
        let round_trip = |percent: u32| timeout * percent / 100;
        match lasting {
            Lasting::Nothing => {}
            Lasting::HungDisk { place: of } => self.stall(place(of)),
            Lasting::SlowDisk { place: of, percent } => {
                self.machines[place(of)].disk.slower = round_trip(percent);
            }
            Lasting::Star { hub } => {
                let apart = |&(from, to): &(usize, usize)| from != place(hub) && to != place(hub);
                self.cut(all().filter(apart).collect());
            }
            Lasting::SlowLinks { percent }
            | Lasting::Process { percent }
            | Lasting::HangsAtCrash { percent, .. } => {
                all().for_each(|(from, to)| self.network.slow_down(from, to, round_trip(percent) / 2));
            }
            Lasting::SlowReplica { place: of, percent } => {
                let slow = all().filter(|&(from, to)| from == place(of) || to == place(of));
                slow.for_each(|(from, to)| self.network.slow_down(from, to, round_trip(percent) / 2));
            }
            Lasting::OneWay { from, to } => {
                self.cut(vec![(place(from), place(to))]);
            }
            Lasting::Link { a, b } => {
                self.cut(vec![(place(a), place(b)), (place(b), place(a))]);
            }
            Lasting::Unlinked { place: of, deaf, mute } => {
                let cuts = [(place(0), place(of), deaf), (place(of), place(0), mute)];
                self.cut(cuts.into_iter().filter(|cut| cut.2).map(|(from, to, _)| (from, to)).collect());
            }
            Lasting::Mute { place: of } => {
                self.cut(all().filter(|&(from, _)| from == place(of)).collect());
            }
            Lasting::Deaf { place: of } => {
                self.cut(all().filter(|&(_, to)| to == place(of)).collect());
            }
            Lasting::CutOff { place: of } => {
                self.cut(all().filter(|&(from, to)| from == place(of) || to == place(of)).collect());
            }
            Lasting::Sleep { place: of, percent } => {
                self.pause(place(of));
                let gap = self.longest_gap(percent / 100)?;
                self.resume(place(of))?;
                return Ok(gap);
            }
        }
        Ok(Duration::ZERO)
    }

    /// How long service is missing, or the clients of one replica wait, in this many election time-outs from now on.
    fn longest(&mut self, asked: Option<usize>, timeouts: u32) -> Result<Duration, Violation> {
        match asked {
            Some(of) => self.longest_wait(of, timeouts),
            None => self.longest_gap(timeouts),
        }
    }

    /// How many commands are answered in this many election time-outs. Each replica has a client that always wants to
    /// write.
    fn answered(&mut self, timeouts: u32) -> Result<u64, Violation> {
        let timeout = self.plan.settings.consensus.election_timeout;
        let mut waiting = vec![None; self.machines.len()];
        let mut answered = 0;
        for value in 0..u64::from(timeouts * LOOKS) {
            for (of, waits) in waiting.iter_mut().enumerate() {
                if waits.is_some_and(|attempt| self.is_asked_in_script(attempt)) {
                    continue;
                }
                answered += u64::from(waits.is_some());
                let op = Op::Put { key: 1, value };
                *waits = Some(self.ask_in_script(of, Some(op), None, None, String::new(), Duration::ZERO)?);
            }
            self.run_until(self.now + timeout / LOOKS)?;
        }
        Ok(answered)
    }

    /// The longest waiting time of a client of a replica. One client always wants to write, and one wants to read.
    fn longest_wait(&mut self, of: usize, timeouts: u32) -> Result<Duration, Violation> {
        let timeout = self.plan.settings.consensus.election_timeout;
        let mut longest = Duration::ZERO;
        let mut waiting = [None; 2];
        for value in 0..u64::from(timeouts * LOOKS) {
            let ops = [Op::Put { key: 1, value }, Op::Get { first: 1, last: 1 }];
            for (waits, op) in waiting.iter_mut().zip(ops) {
                if waits.is_none_or(|(attempt, _)| !self.is_asked_in_script(attempt)) {
                    let attempt =
                        self.ask_in_script(of, Some(op), None, None, String::new(), Duration::ZERO)?;
                    *waits = Some((attempt, self.now));
                }
            }
            self.run_until(self.now + timeout / LOOKS)?;
            // A request that failed had waited for the request time-out.
            let since = waiting.iter().flatten().map(|(_, since)| self.now.since(*since));
            longest = longest.max(since.max().unwrap_or_default());
        }
        Ok(longest)
    }

    /// The longest time without a newly decided slot, in this many election time-outs from now on.
    fn longest_gap(&mut self, timeouts: u32) -> Result<Duration, Violation> {
        let timeout = self.plan.settings.consensus.election_timeout;
        let (mut known, mut since, mut longest) = (Slot::ZERO, self.now, Duration::ZERO);
        for _ in 0..timeouts * LOOKS {
            self.run_until(self.now + timeout / LOOKS)?;
            let decided = self.decided_max();
            if decided > known {
                (known, since) = (decided, self.now);
            }
            longest = longest.max(self.now.since(since));
        }
        Ok(longest)
    }

    fn is_leading(&self, of: usize) -> bool {
        self.machines[of].is_running() && self.leads_in(of).is_some()
    }
}
