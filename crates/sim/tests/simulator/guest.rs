//! State machines that somebody brings into the simulator: sound ones pass, and each kind of error is found.

use std::{
    cell::Cell,
    io::{self, Read},
};

use bytes::Bytes;
use fastrand::Rng;
use synod_consensus::ProtocolKind;
use synod_replica::{Context, Frozen, StateMachine};
use synod_sim::{Guest, Told, check::Invariant, plan::Plan, run_guest};

/// What is wrong with a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// Replicas count different things.
    Random,
    /// The snapshot lacks what was counted last.
    Snapshot,
    /// It counts too far for its author.
    Limit,
}

thread_local! {
    static MACHINES: Cell<u64> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Counter {
    fault: Fault,
    sum: u64,
    number: u64,
}

impl StateMachine for Counter {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.sum += u64::from(command[0]);
        if self.fault == Fault::Random {
            self.sum += self.number;
        }
        Bytes::copy_from_slice(&self.sum.to_le_bytes())
    }

    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::new()
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        let forgets = self.fault == Fault::Snapshot && self.sum > 0;
        Box::new(Bytes::copy_from_slice(&(self.sum - u64::from(forgets)).to_le_bytes()))
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut sum = [0; 8];
        snapshot.read_exact(&mut sum)?;
        self.sum = u64::from_le_bytes(sum);
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.sum
    }
}

#[derive(Debug)]
struct Counting(Fault);

impl Guest for Counting {
    type Machine = Counter;

    fn machine(&self) -> Counter {
        let number = MACHINES.get();
        MACHINES.set(number + 1);
        Counter { fault: self.0, sum: 0, number }
    }

    fn command(&self, rng: &mut Rng) -> Bytes {
        Bytes::from(vec![rng.u8(1..10)])
    }

    fn check(&self, counter: &Counter) -> Result<(), String> {
        if self.0 == Fault::Limit && counter.sum > 50 {
            Err(format!("{} is too much", counter.sum))
        } else {
            Ok(())
        }
    }

    fn check_history(&self, counter: &Counter, history: &[Told]) -> Result<(), String> {
        let sum = |answered: bool| -> u64 {
            let told = history.iter().filter(|told| told.answer.is_some() == answered);
            told.map(|told| u64::from(told.command[0])).sum()
        };
        let (certain, open) = (sum(true), sum(false));
        if (certain..=certain + open).contains(&counter.sum) {
            Ok(())
        } else {
            Err(format!("{}", counter.sum))
        }
    }
}

#[test]
fn a_sound_state_machine_passes_and_a_run_is_repeatable() {
    for (name, protocol) in ProtocolKind::ALL {
        for seed in 0..3 {
            let plan = Plan::draw(seed, *protocol);
            let outcome = run_guest(&plan, Counting(Fault::Nothing));
            let outcome =
                outcome.unwrap_or_else(|failure| panic!("{name}, seed {seed}: {}", failure.violation));
            if seed == 0 {
                let again = run_guest(&plan, Counting(Fault::Nothing)).unwrap();
                assert_eq!(outcome.fingerprint, again.fingerprint);
            }
        }
    }
}

#[test]
fn each_error_of_a_state_machine_is_found_and_named() {
    for (fault, found) in [
        (Fault::Random, [Invariant::Integrity, Invariant::SameState]),
        (Fault::Snapshot, [Invariant::Integrity, Invariant::SameState]),
        (Fault::Limit, [Invariant::Guest, Invariant::Guest]),
    ] {
        MACHINES.set(0);
        let failure = (0..50)
            .find_map(|seed| run_guest(&Plan::draw(seed, ProtocolKind::MultiPaxos), Counting(fault)).err())
            .unwrap_or_else(|| panic!("{fault:?} is not found"));
        assert!(found.contains(&failure.violation.invariant), "{fault:?}: {}", failure.violation);
    }
}
