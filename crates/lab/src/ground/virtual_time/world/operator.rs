//! What is done to the groups under load, one action after the other.

use std::time::Duration;

use synod_consensus::Overrides;
use synod_replica::{Change, ChangeRequest, Event, Goal, Group, MemberInfo};
use synod_wire::{CommandKind, ReplicaId, Time};

use super::{
    super::{client::Request, machine::Given},
    Happening, World,
};
use crate::{
    ground::{Victim, What},
    study::LabError,
};

/// Requests of the operator are numbered from here; those of the client are below.
pub(super) const OPERATOR: u64 = 1 << 62;
/// How long a client whose replica has crashed waits until it turns to another, in milliseconds (Santos 2012,
/// section 10.4.3).
const RECONNECT_MS: std::ops::Range<u64> = 100..500;

/// An action that has begun.
pub(super) struct UnderWay {
    what: What,
    began: Time,
    /// The member to be replaced, once it is chosen.
    victim: Option<ReplicaId>,
    /// When the change was last asked for.
    asked: Option<Time>,
}

impl UnderWay {
    /// Whether to ask for the change, perhaps again. An answer may be lost with the replica that gave it. So
    /// only the group's state counts, and asking twice is harmless.
    fn is_due(&mut self, now: Time) -> bool {
        let due = self.asked.is_none_or(|asked| now.since(asked) > Duration::from_secs(1));
        if due {
            self.asked = Some(now);
        }
        due
    }
}

impl World<'_> {
    /// Begins the next action when it is due, and follows the present one to its end.
    pub(super) fn operate(&mut self) -> Result<(), LabError> {
        let Some(opened) = self.opened else { return Ok(()) };
        if self.act.is_none() {
            let due = self.acts.as_slice().first().is_some_and(|act| opened + act.at <= self.now);
            let Some(act) = due.then(|| self.acts.next()).flatten() else { return Ok(()) };
            self.act = Some(UnderWay { what: act.what, began: self.now, victim: None, asked: None });
        }
        let operated = self.operated;
        let Some(leader) = self.client(operated).leader() else { return Ok(()) };
        let mut act = self.act.take().expect("there is one");
        let group = self.machines[&leader].replica(operated).group().clone();
        let change = match act.what {
            What::HandOver => {
                self.hand_over(act, leader, &group);
                return Ok(());
            }
            What::Crash(victim) => {
                self.crash_one(act, victim, leader, &group);
                return Ok(());
            }
            What::Pause(time) => {
                let machine = self.machines.get_mut(&leader).expect("it has started");
                machine.free_at = machine.free_at.max(self.now + time);
                self.finish_act(&act);
                return Ok(());
            }
            What::Order(protocol, election) => {
                let done = (group.protocol, group.election) == (protocol, election);
                (!done).then_some(Change::Order { protocol, election, overrides: Overrides::default() })
            }
            What::Replace(victim) => {
                let victim = *act.victim.get_or_insert_with(|| match victim {
                    Victim::Leader => leader,
                    Victim::Follower => group.voters().find(|&id| id != leader).unwrap_or(leader),
                });
                let leaves = group.learners().any(|(_, goal)| goal == Goal::Replace(victim));
                let info = MemberInfo::new(format!("in place of {victim}"), Vec::new());
                match (group.member(victim), leaves) {
                    // The client does not know yet which replica leads instead.
                    (None, _) if leader == victim => {
                        self.act = Some(act);
                        return Ok(());
                    }
                    (None, _) => None,
                    (Some(_), false) => Some(Change::Add { info, goal: Goal::Replace(victim) }),
                    // The change is going on: the learner catches up, and takes its place.
                    (Some(_), true) => {
                        self.act = Some(act);
                        return Ok(());
                    }
                }
            }
        };
        let Some(change) = change else {
            self.finish_act(&act);
            return Ok(());
        };
        if act.is_due(self.now) {
            self.last += 1;
            let payload = ChangeRequest { expected: group.version, change }.encode().to_bytes();
            let request = Request(OPERATOR + self.last);
            self.give(leader, operated, Given::Command(CommandKind::Reconfigure, payload, request));
        }
        self.act = Some(act);
        Ok(())
    }

    /// Lets the voter before the leader lead, in the order of the voters.
    fn hand_over(&mut self, mut act: UnderWay, leader: ReplicaId, group: &Group) {
        let before = *act.victim.get_or_insert(leader);
        if leader != before {
            self.finish_act(&act);
            return;
        }
        let voters: Vec<_> = group.voters().collect();
        let place = voters.iter().position(|&id| id == leader).unwrap_or(0);
        let to = voters[(place + voters.len() - 1) % voters.len()];
        if act.is_due(self.now) {
            self.give(leader, self.operated, Given::Event(Event::Transfer(to)));
        }
        self.act = Some(act);
    }

    fn crash_one(&mut self, act: UnderWay, victim: Victim, leader: ReplicaId, group: &Group) {
        let running = |id: &ReplicaId| self.machines.get(id).is_some_and(|machine| !machine.retired);
        let victim = match victim {
            Victim::Leader => Some(leader).filter(running),
            Victim::Follower => group.voters().find(|id| *id != leader && running(id)),
        };
        match victim {
            Some(victim) => {
                self.crash(victim);
                self.finish_act(&act);
            }
            // The client does not know yet which replica leads.
            None => self.act = Some(act),
        }
    }

    fn finish_act(&mut self, act: &UnderWay) {
        let opened = self.opened.expect("acts begin in the window");
        self.done.push((act.began.since(opened), self.now.since(act.began)));
        // Proposals that wait at a removed replica go to another. A replica that only handed the leadership
        // over forwards them.
        let removed = act.victim.filter(|_| matches!(act.what, What::Replace(_)));
        let operated = self.operated;
        for stranded in removed.map(|victim| self.client(operated).at(victim)).unwrap_or_default() {
            self.resend(operated, stranded);
        }
    }

    /// A machine fails. Its clients lose their connections, and turn to another replica after a while.
    fn crash(&mut self, id: ReplicaId) {
        self.machines.get_mut(&id).expect("a machine that has started").retired = true;
        for group in self.numbers() {
            for request in self.client(group).at(id) {
                let pause = Duration::from_millis(self.random.u64(RECONNECT_MS));
                self.after(pause, Happening::Resend(group, request));
            }
        }
    }
}
