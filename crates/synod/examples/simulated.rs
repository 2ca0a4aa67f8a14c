//! A state machine of your own in the simulator: its code, the simulator's faults, your invariants.
//!
//! `cargo run --release --example simulated [SEEDS]`
//!
//! The bank below moves money between accounts. Whatever crashes, is lost or comes twice, the money stays the same; and
//! a client that was told that it has withdrawn something finds it withdrawn once.

use std::{collections::BTreeMap, env, io, process::ExitCode};

use fastrand::Rng;
use synod::{Context, Frozen, ProtocolKind, StateMachine, bytes::Bytes};
use synod_sim::{Guest, Told, plan::Plan, run_guest};

const ACCOUNTS: u8 = 4;
const EACH: u64 = 100;

/// What is on each account, and what was withdrawn.
#[derive(Debug)]
struct Bank {
    accounts: BTreeMap<u8, u64>,
    withdrawn: u64,
}

/// `[from, to, amount]` moves money, `[from, amount]` withdraws it. The answer is 1 if it was there.
impl StateMachine for Bank {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        let (from, to, amount) = match command[..] {
            [from, to, amount] => (from, Some(to), amount.into()),
            [from, amount] => (from, None, amount.into()),
            _ => return Bytes::from_static(&[0]),
        };
        let Some(left) = self.accounts.get(&from).and_then(|there| there.checked_sub(amount)) else {
            return Bytes::from_static(&[0]);
        };
        self.accounts.insert(from, left);
        match to {
            Some(to) => *self.accounts.entry(to).or_default() += amount,
            None => self.withdrawn += amount,
        }
        Bytes::from_static(&[1])
    }

    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::new()
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        let mut bytes = self.withdrawn.to_le_bytes().to_vec();
        for (account, there) in &self.accounts {
            bytes.push(*account);
            bytes.extend(there.to_le_bytes());
        }
        Box::new(Bytes::from(bytes))
    }

    fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        let number =
            |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).map_err(|_| io::ErrorKind::InvalidData);
        let (withdrawn, accounts) = bytes.split_at_checked(8).ok_or(io::ErrorKind::InvalidData)?;
        self.withdrawn = number(withdrawn)?;
        self.accounts = accounts
            .chunks(9)
            .map(|account| Ok((account[0], number(&account[1..])?)))
            .collect::<io::Result<_>>()?;
        Ok(())
    }
}

/// How the bank is used, and what holds.
#[derive(Debug)]
struct Banking;

impl Guest for Banking {
    type Machine = Bank;

    fn machine(&self) -> Bank {
        Bank { accounts: (0..ACCOUNTS).map(|account| (account, EACH)).collect(), withdrawn: 0 }
    }

    fn command(&self, rng: &mut Rng) -> Bytes {
        let (from, to, amount) = (rng.u8(0..ACCOUNTS), rng.u8(0..ACCOUNTS), rng.u8(0..30));
        Bytes::from(if rng.u8(0..8) == 0 { vec![from, amount] } else { vec![from, to, amount] })
    }

    fn check(&self, bank: &Bank) -> Result<(), String> {
        let there = bank.accounts.values().sum::<u64>() + bank.withdrawn;
        if there == EACH * u64::from(ACCOUNTS) { Ok(()) } else { Err(format!("{there} is there in all")) }
    }

    fn check_history(&self, bank: &Bank, history: &[Told]) -> Result<(), String> {
        let (mut certain, mut open) = (0, 0);
        for told in history.iter().filter(|told| told.command.len() == 2) {
            let amount = u64::from(told.command[1]);
            match &told.answer {
                Some((_, answer)) if answer[..] == [1] => certain += amount,
                Some(_) => {}
                None => open += amount,
            }
        }
        if (certain..=certain + open).contains(&bank.withdrawn) {
            return Ok(());
        }
        Err(format!("{} was withdrawn; clients know of {certain}, and do not know of {open}", bank.withdrawn))
    }
}

fn main() -> ExitCode {
    let Ok(seeds) = env::args().nth(1).map_or(Ok(100), |seeds| seeds.parse::<u64>()) else {
        eprintln!("SEEDS is a number");
        return ExitCode::FAILURE;
    };
    for (name, protocol) in ProtocolKind::ALL {
        let (mut commands, mut crashes) = (0, 0);
        for seed in 0..seeds {
            match run_guest(&Plan::draw(seed, *protocol), Banking) {
                Ok(outcome) => {
                    commands += outcome.commands;
                    crashes += outcome.coverage.crashes;
                }
                Err(failure) => {
                    failure.trace.iter().for_each(|line| eprintln!("{line}"));
                    eprintln!("{name}, seed {seed}: {}", failure.violation);
                    return ExitCode::FAILURE;
                }
            }
        }
        println!("{name}: {seeds} seeds, {commands} commands, {crashes} crashes; the bank is sound");
    }
    ExitCode::SUCCESS
}
