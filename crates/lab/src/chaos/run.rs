//! Applies what the schedule draws to the cluster, one fault after the other, and counts what clients complete
//! meanwhile.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use synod_consensus::ProtocolKind;
use synod_wire::Durability;
use tokio::{task::JoinHandle, time::sleep};

use super::{
    clients::{Clients, Pulse},
    cluster::Cluster,
    log::Log,
    operator::{Operator, WAIT_MAX},
    schedule::{Fault, Step, Victim},
    timeline::Timeline,
};

/// For an operator's action that takes only a moment, operations completed in this time are counted.
const ACT: Duration = Duration::from_secs(1);
/// How often a full disk is filled up again, since a replica may delete what it does not need.
const FILL_INTERVAL: Duration = Duration::from_millis(50);

/// What a replica without its data logs: another one knows it with other data, or has an id that it does not know,
/// since all others have been replaced since the beginning.
const REFUSALS: [&str; 2] =
    ["a replica of this id with other data", "another replica than the one called listens there"];
/// After so long without a majority no leader answers reads by itself any more, and no answer is under way.
const LEASES_END: Duration = Duration::from_millis(1500);
/// How much longer each commit to a slow disk takes: less than an election time-out.
const SLOWER_MS: RangeInclusive<usize> = 20..=300;

/// How long a replica may take from an error of its disk to its end.
const STOPPING: Duration = Duration::from_secs(5);

/// The effects of one kind of fault.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How often it was applied.
    pub applied: u64,
    /// How often it was drawn and could not be applied.
    pub failed: u64,
    /// Operations that were completed while it lasted.
    pub completed: u64,
    /// The longest time without a completed operation, from its beginning until all replicas served again.
    pub longest_gap: Duration,
    /// The longest time from its end until all replicas served again.
    pub recovery: Duration,
}

/// The result of an operator's action beside a fault.
type Act = JoinHandle<(Fault, Result<u64, String>)>;

/// A run.
#[derive(Debug)]
pub struct Run {
    /// The replicas.
    pub cluster: Cluster,
    /// The load.
    pub clients: Clients,
    /// Changes the cluster.
    pub operator: Operator,
    /// The protocol that the run is about.
    pub protocol: ProtocolKind,
    /// What a replica waits for before it says something.
    pub durability: Durability,
    /// The effects of each fault.
    pub tallies: BTreeMap<Fault, Tally>,
    /// The longest time without a completed operation, when it was noticed, and which fault preceded it.
    pub longest_gap: (Duration, f64, String),
    /// The log of the run.
    pub log: Log,
    /// Completed operations over time, for the figure.
    pub timeline: Timeline,
}

impl Run {
    /// Applies one step, undoes it, and waits until all replicas serve. The error is a broken promise.
    pub async fn step(&mut self, step: &Step) -> Result<(), String> {
        sleep(step.calm).await;
        let gap = self.clients.pulse().longest_gap();
        self.note_gap(gap, "calm");
        let victim = match step.victim {
            Victim::Leader => self.operator.leader().await.unwrap_or(step.choice % self.cluster.len()),
            Victim::Place(place) => place,
        };
        let leads = if step.victim == Victim::Leader { " (the leader)" } else { "" };
        let what = match step.fault.has_victim() {
            true => format!("{} {}{leads}", step.fault.name(), Cluster::name(victim)),
            false => step.fault.name(),
        };
        self.log.say(&format!("{what}, {:.1} s", step.hold.as_secs_f64()));
        self.timeline.mark(&what);

        let pulse = self.clients.pulse();
        let before = pulse.completed();
        let mut act = None;
        let applied = self.apply(step, victim, &mut act).await?;
        let undone = Instant::now();
        let during = pulse.completed() - before;
        self.await_service(&what).await?;
        if let Some(act) = act {
            self.finish(act).await?;
        }
        let recovery = undone.elapsed();
        let gap = pulse.longest_gap();
        self.note_gap(gap, &what);
        // Nothing can be completed while all replicas are dead, so operations count until all replicas have served
        // for a moment. Until they serve, a busy machine may complete too few to cover the fault.
        if step.fault.ends_all() {
            sleep(ACT).await;
        }
        let completed = if step.fault.ends_all() { pulse.completed() - before } else { during };
        let tally = self.tallies.entry(step.fault).or_default();
        match applied {
            Ok(()) => {
                tally.applied += 1;
                tally.completed += completed;
                tally.longest_gap = tally.longest_gap.max(gap);
                tally.recovery = tally.recovery.max(recovery);
                let (recovery, gap) = (recovery.as_secs_f64(), gap.as_secs_f64());
                self.log.say(&format!(
                    "  {completed} completed, all serve after {recovery:.1} s, gap {gap:.2} s"
                ));
            }
            Err(why) => {
                tally.failed += 1;
                self.log.say(&format!("  not applied: {why}"));
            }
        }
        Ok(())
    }

    /// Applies a fault, lets it last, and undoes it. The outer error is a broken promise; the inner one says
    /// why the fault was not applied.
    async fn apply(
        &mut self,
        step: &Step,
        victim: usize,
        act: &mut Option<Act>,
    ) -> Result<Result<(), String>, String> {
        match step.fault {
            Fault::Kill => {
                self.cluster.kill(victim);
                *act = self.hold(step).await;
                self.cluster.restart(victim)?;
            }
            Fault::KillAll => {
                let all = 0..self.cluster.len();
                all.clone().for_each(|place| self.cluster.kill(place));
                for place in all {
                    self.cluster.restart(place)?;
                }
            }
            Fault::PowerLoss => {
                self.cluster.cut_power(&[victim])?;
                *act = self.hold(step).await;
                self.cluster.restart(victim)?;
            }
            Fault::PowerLossAll => {
                let all: Vec<_> = (0..self.cluster.len()).collect();
                self.cluster.cut_power(&all)?;
                all.into_iter().try_for_each(|place| self.cluster.restart(place))?;
            }
            Fault::Pause => {
                self.cluster.pause(victim, true);
                *act = self.hold(step).await;
                self.cluster.pause(victim, false);
            }
            Fault::CutFull | Fault::CutPartial | Fault::CutOneWay => {
                let (pairs, shape) = cuts(step.fault, victim, step.choice, self.cluster.len());
                self.log.say(&format!("  {shape}"));
                self.cluster.network.cut(&pairs)?;
                *act = self.hold(step).await;
                self.cluster.network.mend()?;
            }
            Fault::DiskFull => return self.fill_disk(step, victim, act).await,
            Fault::SlowDisk => return self.slow_disk(step, victim, act).await,
            Fault::ChangeProtocol => {
                let other = self.other_protocol(step.choice);
                self.log.say(&format!("  to {other}"));
                self.operator.reconfigure(&other).await?;
                self.operator.await_protocol(&other).await?;
                sleep(step.hold).await;
                self.go_home().await?;
            }
            Fault::ChangeVoters => {
                let id = self.operator.id(victim).await?;
                self.operator.remove(id).await?;
                self.await_removed(victim).await?;
                sleep(step.hold / 2).await;
                self.join(victim, 0).await?;
            }
            Fault::Replace => {
                let id = self.operator.id(victim).await?;
                self.cluster.kill(victim);
                sleep(step.hold / 2).await;
                self.join(victim, id).await?;
            }
            Fault::Wipe => self.wipe(step, victim).await?,
            Fault::MoveLeader => {
                let moved = self.operator.move_leader(step.choice).await;
                sleep(ACT).await;
                return Ok(moved.map(|(from, to)| {
                    self.log.say(&format!("  from {} to {}", Cluster::name(from), Cluster::name(to)));
                }));
            }
        }
        Ok(Ok(()))
    }

    /// Takes a replica's disk. It is not admitted as what it was, and joins in its own place.
    async fn wipe(&mut self, step: &Step, victim: usize) -> Result<(), String> {
        let id = self.operator.id(victim).await?;
        self.cluster.kill(victim);
        self.cluster.wipe(victim)?;
        sleep(step.hold / 2).await;
        self.come_back_empty(step, victim).await?;
        self.cluster.kill(victim);
        self.join(victim, id).await
    }

    /// Lets a fault last. An operator's action may begin in the middle of it.
    async fn hold(&mut self, step: &Step) -> Option<Act> {
        sleep(step.hold / 3).await;
        let act = self.begin_act(step);
        sleep(step.hold * 2 / 3).await;
        act
    }

    fn begin_act(&mut self, step: &Step) -> Option<Act> {
        let fault = step.beside?;
        self.log.say(&format!("  meanwhile: {}", fault.name()));
        let (operator, pulse, choice) = (self.operator.clone(), self.clients.pulse(), step.choice);
        let protocol = self.other_protocol(choice);
        Some(tokio::spawn(async move { (fault, do_act(fault, &operator, &pulse, choice, &protocol).await) }))
    }

    async fn finish(&mut self, act: Act) -> Result<(), String> {
        let (fault, outcome) = act.await.map_err(|error| format!("an operator's act: {error}"))?;
        self.go_home().await?;
        let tally = self.tallies.entry(fault).or_default();
        match outcome {
            Ok(completed) => {
                tally.applied += 1;
                tally.completed += completed;
                self.log.say(&format!("  {} was done meanwhile, {completed} completed", fault.name()));
            }
            // The action need not succeed during a fault.
            Err(why) => {
                tally.failed += 1;
                self.log.say(&format!("  {} could not be done meanwhile: {why}", fault.name()));
            }
        }
        Ok(())
    }

    async fn fill_disk(
        &mut self,
        step: &Step,
        victim: usize,
        act: &mut Option<Act>,
    ) -> Result<Result<(), String>, String> {
        let began = Instant::now();
        let mut ended = None;
        let wait_max = step.hold + WAIT_MAX / 4;
        while began.elapsed() < if ended.is_none() { wait_max } else { step.hold } {
            self.cluster.disks.fill(victim);
            ended = ended.or(self.cluster.ended(victim));
            if act.is_none() && began.elapsed() > step.hold / 3 {
                *act = self.begin_act(step);
            }
            sleep(FILL_INTERVAL).await;
        }
        self.cluster.disks.empty(victim)?;
        // The replica may have met the full disk a moment ago, and take another moment to stop.
        let deadline = Instant::now() + STOPPING;
        while ended.is_none() && Instant::now() < deadline {
            sleep(FILL_INTERVAL).await;
            ended = self.cluster.ended(victim);
        }
        let Some(status) = ended else { return Ok(Err("the replica went on without room".to_owned())) };
        let said = self.cluster.last_words(victim);
        self.log.say(&format!("  it stopped ({status}); it said: {said}"));
        if status.success() {
            return Err(format!(
                "{} had no room and ended as if all were well: {said}",
                Cluster::name(victim)
            ));
        }
        self.cluster.restart(victim)?;
        Ok(Ok(()))
    }

    async fn slow_disk(
        &mut self,
        step: &Step,
        victim: usize,
        act: &mut Option<Act>,
    ) -> Result<Result<(), String>, String> {
        let slower = slower_by(step.choice);
        if let Err(why) = self.cluster.slow_down(victim, slower) {
            return Ok(Err(why));
        }
        *act = self.hold(step).await;
        let commits = self.cluster.speed_up(victim)?;
        self.log.say(&format!("  {commits} commits took {slower:?} longer"));
        Ok(if commits > 0 { Ok(()) } else { Err("the replica committed nothing meanwhile".to_owned()) })
    }

    /// Starts a replica without its data under its old id. The others must refuse it, and no vote of it may count. The
    /// error is a broken promise.
    async fn come_back_empty(&mut self, step: &Step, victim: usize) -> Result<(), String> {
        let name = Cluster::name(victim);
        let said_before = self.cluster.said(victim).len();
        self.cluster.restart(victim)?;
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = self.cluster.ended(victim) {
                let said = self.cluster.last_words(victim);
                self.log.say(&format!("  it did not start ({status}); it said: {said}"));
                // A member that joined later asks the others who it is, which know that it votes.
                return if self.cluster.has_joined(victim) && !status.success() {
                    Ok(())
                } else {
                    Err(format!("{name} came back without its data and ended by itself ({status}): {said}"))
                };
            }
            let said = self.cluster.said(victim);
            let said = said.get(said_before..).unwrap_or_default();
            if REFUSALS.iter().any(|refusal| said.contains(refusal)) {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("{name} came back without its data, and no other replica refused it"));
            }
            sleep(FILL_INTERVAL).await;
        }
        // Without this many of the others there is no majority, unless the vote of the empty replica counts.
        let others = (0..self.cluster.len()).filter(|&place| place != victim);
        let mut others: Vec<_> = others.collect();
        let first = step.choice % others.len();
        others.rotate_left(first);
        others.truncate((self.cluster.len() - 1) / 2);
        let paused = others.iter().map(|&place| Cluster::name(place)).collect::<Vec<_>>().join(", ");
        self.log.say(&format!("  it is refused; {paused} paused, so that there is no majority without it"));
        let pulse = self.clients.pulse();
        others.iter().for_each(|&place| self.cluster.pause(place, true));
        sleep(LEASES_END).await;
        let before = pulse.completed();
        sleep(ACT).await;
        let completed = pulse.completed() - before;
        others.iter().for_each(|&place| self.cluster.pause(place, false));
        if completed > 0 {
            return Err(format!(
                "{completed} operations were completed by less than a majority and {name}, which had lost its data"
            ));
        }
        Ok(())
    }

    /// Starts a new member without data at a place. It takes the place of the member `replaces`, unless that is 0.
    async fn join(&mut self, place: usize, replaces: u64) -> Result<(), String> {
        self.cluster.wipe(place)?;
        self.cluster.renew(place);
        let id = self.operator.add(&Cluster::name(place), self.cluster.peer_url(place), replaces).await?;
        self.cluster.network.settle(id, place);
        self.cluster.restart(place)?;
        self.operator.await_vote(id).await
    }

    async fn await_removed(&mut self, place: usize) -> Result<(), String> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match self.cluster.ended(place) {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = self.cluster.last_words(place);
                    return Err(format!(
                        "{} was removed and ended with {status}: {said}",
                        Cluster::name(place)
                    ));
                }
                None if Instant::now() > deadline => {
                    return Err(format!(
                        "{} was removed and still runs after {WAIT_MAX:?}",
                        Cluster::name(place)
                    ));
                }
                None => sleep(FILL_INTERVAL).await,
            }
        }
    }

    /// Waits until every replica answers a linearizable read.
    pub async fn await_service(&mut self, after: &str) -> Result<(), String> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if self.durability == Durability::Sync {
                self.cluster.check()?;
            } else {
                // A replica that is told that it forgot something ends by itself, and learns when it is started again.
                self.restart_all()?;
            }
            let silent = self.operator.silent().await;
            if silent.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let names: Vec<_> = silent.into_iter().map(Cluster::name).collect();
                return Err(format!("{} do not serve {WAIT_MAX:?} after {after} was over", names.join(", ")));
            }
            sleep(FILL_INTERVAL).await;
        }
    }

    /// Starts each replica that has ended.
    fn restart_all(&mut self) -> Result<(), String> {
        for place in 0..self.cluster.len() {
            if let Some(status) = self.cluster.ended(place) {
                let said = self.cluster.last_words(place);
                self.log.say(&format!("  {} ended ({status}); it said: {said}", Cluster::name(place)));
                self.cluster.restart(place)?;
            }
        }
        Ok(())
    }

    /// Changes back to the protocol of the run.
    pub async fn go_home(&mut self) -> Result<(), String> {
        let home = self.protocol.to_string();
        if self.operator.group().await.is_none_or(|group| group.protocol != home) {
            self.operator.reconfigure(&home).await?;
        }
        self.operator.await_protocol(&home).await
    }

    fn other_protocol(&self, choice: usize) -> String {
        let others = ProtocolKind::ALL.iter().map(|(_, kind)| *kind).filter(|kind| *kind != self.protocol);
        let others: Vec<_> = others.collect();
        others[choice % others.len()].to_string()
    }

    /// Remembers a gap if it is the longest so far.
    pub fn note_gap(&mut self, gap: Duration, after: &str) {
        if gap > self.longest_gap.0 {
            self.longest_gap = (gap, self.log.seconds(), after.to_owned());
        }
    }
}

/// Counts the operations that are completed during an action, but for a second at least.
async fn do_act(
    fault: Fault,
    operator: &Operator,
    pulse: &Pulse,
    choice: usize,
    protocol: &str,
) -> Result<u64, String> {
    let (began, before) = (Instant::now(), pulse.completed());
    match fault {
        Fault::MoveLeader => operator.move_leader(choice).await.map(drop)?,
        _ => operator.reconfigure(protocol).await?,
    }
    sleep(ACT.saturating_sub(began.elapsed())).await;
    Ok(pulse.completed() - before)
}

/// How much longer a commit to a slow disk takes.
fn slower_by(choice: usize) -> Duration {
    let (from, to) = (*SLOWER_MS.start(), *SLOWER_MS.end());
    Duration::from_millis((from + choice % (to - from + 1)) as u64)
}

/// The pairs (from, to) between which nothing gets through, and a description.
fn cuts(fault: Fault, victim: usize, choice: usize, replicas: usize) -> (Vec<(usize, usize)>, String) {
    let others: Vec<_> = (0..replicas).filter(|&place| place != victim).collect();
    let other = others[choice % others.len()];
    let shape = choice / others.len();
    let [who, whom] = [victim, other].map(Cluster::name);
    let apart = |cut: &dyn Fn(usize, usize) -> bool| {
        let pairs = (0..replicas).flat_map(|from| (0..replicas).map(move |to| (from, to)));
        pairs.filter(|&(from, to)| from != to && cut(from, to)).collect()
    };
    match (fault, shape % 3) {
        (Fault::CutFull, 0) if replicas >= 5 => {
            let in_group = |place| place == victim || place == other;
            (apart(&|from, to| in_group(from) != in_group(to)), format!("{who} and {whom} from the others"))
        }
        (Fault::CutFull, _) => {
            (apart(&|from, to| from == victim || to == victim), format!("{who} from the others"))
        }
        (Fault::CutPartial, 0) if replicas >= 5 => {
            (apart(&|from, to| from != other && to != other), format!("all from each other but {whom}"))
        }
        (Fault::CutPartial, _) => (vec![(victim, other), (other, victim)], format!("{who} and {whom}")),
        (_, 0) => (apart(&|from, _| from == victim), format!("from {who} to the others")),
        (_, 1) => (apart(&|_, to| to == victim), format!("from the others to {who}")),
        _ => (vec![(victim, other)], format!("from {who} to {whom}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_what_they_are_called() {
        let cut = |fault, choice, replicas| cuts(fault, 1, choice, replicas);
        assert_eq!(
            cut(Fault::CutFull, 0, 3),
            (vec![(0, 1), (1, 0), (1, 2), (2, 1)], "n2 from the others".into())
        );
        assert_eq!(cut(Fault::CutPartial, 1, 3), (vec![(1, 2), (2, 1)], "n2 and n3".into()));
        assert_eq!(cut(Fault::CutOneWay, 0, 3), (vec![(1, 0), (1, 2)], "from n2 to the others".into()));
        assert_eq!(cut(Fault::CutOneWay, 2, 3), (vec![(0, 1), (2, 1)], "from the others to n2".into()));
        assert_eq!(cut(Fault::CutOneWay, 5, 3), (vec![(1, 2)], "from n2 to n3".into()));
        let (pairs, shape) = cut(Fault::CutFull, 0, 5);
        assert_eq!((pairs.len(), shape.as_str()), (12, "n2 and n1 from the others"));
        let (pairs, shape) = cut(Fault::CutPartial, 3, 5);
        assert_eq!((pairs.len(), shape.as_str()), (12, "all from each other but n5"));
        assert!(pairs.iter().all(|&(from, to)| from != 4 && to != 4));
    }

    #[test]
    fn a_slow_disk_is_slower_by_what_is_drawn() {
        let slower = |choice| slower_by(choice).as_millis();
        assert_eq!((slower(0), slower(280), slower(281)), (20, 300, 20));
    }

    /// Whatever is cut, some replica reaches a majority in both directions, so the cluster can serve.
    #[test]
    fn every_cut_leaves_a_majority_around_some_replica() {
        for fault in [Fault::CutFull, Fault::CutPartial, Fault::CutOneWay] {
            for (replicas, victim, choice) in
                [3, 5].into_iter().flat_map(|n| (0..n).flat_map(move |v| (0..24).map(move |c| (n, v, c))))
            {
                let (pairs, shape) = cuts(fault, victim, choice, replicas);
                let open = |a, b| a == b || !pairs.contains(&(a, b)) && !pairs.contains(&(b, a));
                let reach = |a| (0..replicas).filter(|&b| open(a, b)).count();
                assert!((0..replicas).any(|a| reach(a) > replicas / 2), "{shape}");
                assert!(!pairs.is_empty(), "{shape}");
            }
        }
    }
}
