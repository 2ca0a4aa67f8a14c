//! Choices: links have different lengths, messages are lost, and members crash. Then lengths change once more, some
//! members crash for good, and nothing goes wrong afterwards: a leader that is chosen by latency has to end within
//! twelve tolerances of the best majority time.
//!
//! The usual delay of a link is the middle of what its messages may take, so each is within one tolerance of it.

use std::time::Duration;

use synod_consensus::{VoterSets, election::latency::majority_time};

use super::World;
use crate::{
    check::{Checked, Invariant, Violation, demand},
    choice::{Chosen, Lengths},
    plan::Ending,
};

/// Election time-outs in which a group must begin to work.
const STARTS_WITHIN: u32 = 40;
/// Crashes while messages are lost.
const CRASHES: u32 = 3;
/// The most election time-outs between crashes, and for which a member is down.
const APART_MAX: u32 = 8;
/// Election time-outs after the last fault in which a leader may choose by what was true before it: a longer link is
/// noticed after four answers to pings, and a choice takes two cycles more, each of two thirds of a time-out.
const FORGETS: u32 = 5;
/// Election time-outs after the last fault in which members may be left out, since they failed: the longest while is
/// 256, and a choice follows.
const LEFT_OUT_MAX: u32 = 280;
/// Election time-outs in which no other member begins to lead once leadership has come to rest.
const RESTS: u32 = 40;
/// How many times in an election time-out the leader is looked at.
const LOOKS: u32 = 8;

impl World {
    /// Plays one seed, with the lengths of links before and after the faults end.
    pub(crate) fn choice(&mut self, early: &Lengths, late: &Lengths) -> Result<Chosen, Violation> {
        self.lengthen(early);
        for of in 0..self.machines.len() {
            self.start(of)?;
        }
        self.until_settled()?;
        self.crash_some()?;
        let crashes = self.coverage.crashes;
        // The end of faults (GST).
        self.lengthen(late);
        self.network.calm();
        self.crash_for_good();
        let timeout = self.plan.settings.consensus.election_timeout;
        let tolerance = self.plan.settings.consensus.latency.tolerance;
        let (first, began) = (self.until_settled()?, self.coverage.elections);
        let lost = self.coverage.messages_lost;
        self.run_until(self.now + timeout * FORGETS)?;
        // From now on each leader is chosen by the one before, of what is so.
        let mut leader = self.until_settled()?;
        let (elections, slack) = (self.coverage.elections, tolerance * 12);
        let (mut times, mut moves) = (vec![self.usual(leader)], 0);
        let stays = (0..LEFT_OUT_MAX / RESTS).try_fold(false, |stays, _| {
            if stays && self.usual(leader) <= self.best() + slack {
                return Ok(true);
            }
            leader = self.see_leaders(leader, &mut times)?;
            let before = std::mem::replace(&mut moves, self.coverage.elections - elections);
            Ok(moves == before)
        })?;
        let chosen = Chosen {
            replicas: self.machines.len(),
            gone: self.machines.len() - self.running().len(),
            crashes,
            lost,
            tolerance,
            before: self.usual(first),
            after: self.usual(leader),
            best: self.best(),
            changes: self.coverage.elections - began,
        };
        demand(times.is_sorted_by(|one, next| next < one), Invariant::LeadsNearby, || {
            format!("leadership moved to a member that is no better: {times:?}; {}", self.roles())
        })?;
        demand(stays && moves < times.len() as u64, Invariant::LeadsNearby, || {
            format!("leadership does not come to rest: {moves} changes, {times:?}; {}", self.roles())
        })?;
        demand(chosen.after <= chosen.best + slack, Invariant::LeadsNearby, || {
            format!("{chosen:?}: more than {slack:?} from the best; {}", self.roles())
        })?;
        Ok(chosen)
    }

    /// The messages of each link take this much longer from now on.
    fn lengthen(&mut self, lengths: &Lengths) {
        for (from, row) in lengths.iter().enumerate() {
            row.iter().enumerate().for_each(|(to, &by)| self.network.slow_down(from, to, by));
        }
    }

    /// Members crash and start again, the leader among them in half of all cases.
    fn crash_some(&mut self) -> Checked {
        let timeout = self.plan.settings.consensus.election_timeout;
        for _ in 0..self.rng.u32(0..=CRASHES) {
            let any = self.rng.usize(0..self.machines.len());
            let of = if self.rng.bool() { self.settled_leader().unwrap_or(any) } else { any };
            self.end_anyhow(of);
            let down = self.rng.u32(1..=APART_MAX);
            self.run_until(self.now + timeout * down)?;
            self.start(of)?;
            let apart = self.rng.u32(0..=APART_MAX);
            self.run_until(self.now + timeout * apart)?;
        }
        Ok(())
    }

    /// A minority at most crashes and does not start again.
    fn crash_for_good(&mut self) {
        let minority = (self.machines.len() - 1) / 2;
        for _ in 0..self.rng.usize(0..=minority) {
            let any = self.rng.usize(0..self.machines.len());
            self.end_anyhow(any);
        }
    }

    fn end_anyhow(&mut self, of: usize) {
        let ending = if self.rng.bool() { Ending::Process } else { Ending::Machine };
        self.end_life(of, ending);
    }

    /// The members that run.
    fn running(&self) -> Vec<usize> {
        (0..self.machines.len()).filter(|&of| self.machines[of].is_running()).collect()
    }

    /// Waits until all that run follow one leader.
    fn until_settled(&mut self) -> Result<usize, Violation> {
        let timeout = self.plan.settings.consensus.election_timeout;
        for _ in 0..STARTS_WITHIN * LOOKS {
            match self.leader_followed_by(self.running()) {
                Some(leader) => return Ok(leader),
                None => self.run_until(self.now + timeout / LOOKS)?,
            }
        }
        let detail = format!("no settled leader for {STARTS_WITHIN} election time-outs; {}", self.roles());
        Err(Violation { invariant: Invariant::Liveness, detail })
    }

    /// Adds the usual majority times of those that lead in the next [`RESTS`] time-outs, one after the other, to those
    /// of the leaders before. Returns the last leader.
    fn see_leaders(&mut self, mut leader: usize, times: &mut Vec<Duration>) -> Result<usize, Violation> {
        let timeout = self.plan.settings.consensus.election_timeout;
        for _ in 0..RESTS * LOOKS {
            self.run_until(self.now + timeout / LOOKS)?;
            if let Some(now) = self.leader_followed_by(self.running()).filter(|&now| now != leader) {
                leader = now;
                times.push(self.usual(now));
            }
        }
        Ok(leader)
    }

    /// The lowest usual majority time of a member that runs.
    fn best(&self) -> Duration {
        self.running().into_iter().map(|of| self.usual(of)).min().expect("a majority runs")
    }

    /// The usual time of a member to a majority and back.
    fn usual(&self, of: usize) -> Duration {
        let plan = &self.plan.network;
        let usual = |from, to| (plan.delay_min + plan.delay_max) / 2 + self.network.slowed_by(from, to);
        let ids: Vec<_> = self.machines.iter().map(|machine| machine.id).collect();
        let nanos = majority_time(&VoterSets::simple(ids.clone()), |id| {
            let to = ids.iter().position(|&other| other == id).expect("a member");
            let there_and_back = if to == of { Duration::ZERO } else { usual(of, to) + usual(to, of) };
            let nanos = u64::try_from(there_and_back.as_nanos()).expect("a simulation is short");
            if self.machines[to].is_running() { nanos } else { u64::MAX }
        });
        Duration::from_nanos(nanos)
    }
}
