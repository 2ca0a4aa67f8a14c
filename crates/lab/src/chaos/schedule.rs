//! The schedule that a seed draws: the next fault, its victim, how long it lasts, and what an operator does meanwhile.

use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;

/// A fault, or an operator's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// A replica is killed (SIGKILL), and started again.
    Kill,
    /// All replicas are killed at the same time, and started again at once.
    KillAll,
    /// The power of a replica is cut, so that its disk forgets what was not synchronised; then it is started again.
    PowerLoss,
    /// The power of all replicas is cut at the same time, and they are started again at once.
    PowerLossAll,
    /// A replica is stopped (SIGSTOP) for longer than an election time-out, and continued.
    Pause,
    /// A replica, or with five replicas sometimes two, is cut off from the others in both directions.
    CutFull,
    /// A link between two replicas is cut in both directions, or with five replicas sometimes all links but those of
    /// one.
    CutPartial,
    /// Nothing gets from a replica to the others, or from them to it, or from it to one of them.
    CutOneWay,
    /// The file system of a replica is full until the replica stops; then there is room again, and it is started.
    DiskFull,
    /// Each commit to the disk of a replica takes 20 to 300 ms longer, as drawn.
    SlowDisk,
    /// The protocol is changed for a while (`synod reconfigure`).
    ChangeProtocol,
    /// A replica is removed, its data are deleted, and it is added again as a new member.
    ChangeVoters,
    /// The leadership is handed to another replica.
    MoveLeader,
    /// A replica's data are deleted, and a new member takes its place (`synod member replace`).
    Replace,
    /// A replica's data are deleted, and it is started again under its old id. It must have no vote; then a new member
    /// takes its place.
    Wipe,
}

impl Fault {
    /// All faults, in the order of reports.
    pub const ALL: &[Fault] = &[
        Fault::Kill,
        Fault::KillAll,
        Fault::PowerLoss,
        Fault::PowerLossAll,
        Fault::Pause,
        Fault::CutFull,
        Fault::CutPartial,
        Fault::CutOneWay,
        Fault::DiskFull,
        Fault::SlowDisk,
        Fault::ChangeProtocol,
        Fault::ChangeVoters,
        Fault::MoveLeader,
        Fault::Replace,
        Fault::Wipe,
    ];

    /// Whether an operator's action may be drawn beside it. Its own steps then wait for nothing that the
    /// action could delay.
    fn takes_company(self) -> bool {
        use Fault::{CutFull, CutOneWay, CutPartial, DiskFull, Kill, Pause, PowerLoss, SlowDisk};
        matches!(self, Kill | PowerLoss | Pause | CutFull | CutPartial | CutOneWay | DiskFull | SlowDisk)
    }

    /// Whether it has one replica as its victim.
    #[must_use]
    pub fn has_victim(self) -> bool {
        !matches!(self, Fault::KillAll | Fault::PowerLossAll | Fault::ChangeProtocol | Fault::MoveLeader)
    }

    /// Whether nothing can be completed while it lasts.
    #[must_use]
    pub fn ends_all(self) -> bool {
        matches!(self, Fault::KillAll | Fault::PowerLossAll)
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The victim of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The replica that leads at that moment.
    Leader,
    /// The replica at this place, from 0.
    Place(usize),
}

/// One draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long nothing happens before it.
    pub calm: Duration,
    /// The fault.
    pub fault: Fault,
    /// The victim.
    pub victim: Victim,
    /// A random number for further choices: another replica, a shape, a protocol.
    pub choice: usize,
    /// How long it lasts.
    pub hold: Duration,
    /// The action that an operator begins in the middle of it: [`Fault::ChangeProtocol`] or
    /// [`Fault::MoveLeader`].
    pub beside: Option<Fault>,
}

/// An endless schedule. Every fault comes once before any comes again. It depends only on the arguments of
/// [`Schedule::new`], not on anything that happens in a run.
#[derive(Debug)]
pub struct Schedule {
    random: Rng,
    faults: Vec<Fault>,
    replicas: usize,
    deck: Vec<Fault>,
}

impl Schedule {
    /// The schedule of a seed, with these faults, for this many replicas.
    #[must_use]
    pub fn new(seed: u64, faults: &[Fault], replicas: usize) -> Schedule {
        let mut faults = faults.to_vec();
        faults.sort_unstable();
        faults.dedup();
        Schedule { random: Rng::with_seed(seed), faults, replicas, deck: Vec::new() }
    }
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.deck.is_empty() {
            self.deck = self.faults.clone();
            self.random.shuffle(&mut self.deck);
        }
        let fault = self.deck.pop()?;
        let random = &mut self.random;
        let mut time = |from, to| Duration::from_millis(random.u64(from..to));
        let (calm, hold) = (time(500, 2000), time(1500, 5000));
        let victim =
            if random.bool() { Victim::Leader } else { Victim::Place(random.usize(..self.replicas)) };
        let choice = random.usize(..1 << 16);
        let acts = [Fault::ChangeProtocol, Fault::MoveLeader];
        let beside = acts[random.usize(..acts.len())];
        let accompanied = random.u8(..3) == 0 && fault.takes_company() && self.faults.contains(&beside);
        Some(Step { calm, fault, victim, choice, hold, beside: accompanied.then_some(beside) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, count: usize) -> Vec<Step> {
        Schedule::new(seed, Fault::ALL, 3).take(count).collect()
    }

    #[test]
    fn the_seed_says_it_all() {
        assert_eq!(draw(7, 100), draw(7, 100));
        assert_ne!(draw(7, 100), draw(8, 100));
        let mut reversed = Fault::ALL.to_vec();
        reversed.reverse();
        assert_eq!(Schedule::new(7, &reversed, 3).take(100).collect::<Vec<_>>(), draw(7, 100));
    }

    #[test]
    fn every_fault_comes_as_often_as_every_other() {
        let steps = draw(1, 20 * Fault::ALL.len());
        for fault in Fault::ALL {
            assert_eq!(steps.iter().filter(|step| step.fault == *fault).count(), 20, "{fault:?}");
        }
        assert!(steps.iter().any(|step| step.beside == Some(Fault::MoveLeader)));
        assert!(steps.iter().any(|step| step.beside == Some(Fault::ChangeProtocol)));
        assert!(steps.iter().all(|step| step.beside.is_none() || step.fault.takes_company()));
        let some = Schedule::new(1, &[Fault::Kill], 5).take(50).collect::<Vec<_>>();
        assert!(some.iter().all(|step| step.fault == Fault::Kill && step.beside.is_none()));
        assert!(some.iter().any(|step| step.victim == Victim::Place(4)));
    }
}
