//! A state machine of your own in the simulator: its code, the simulator's faults, your invariants.
//!
//! `cargo run --release --example simulated [SEEDS]`
//!
//! The bank below moves money between accounts. Whatever crashes, is lost or comes twice, the money stays the same; a
//! client that was told that it has withdrawn something finds it withdrawn once; and one that asks what is on an
//! account is told of everything that was acknowledged before. A failure prints the command that runs its seed alone.

use std::{collections::BTreeMap, env, io, process::ExitCode};

use fastrand::Rng;
use synod::{Context, Frozen, StateMachine, bytes::Bytes};
use synod_sim::{Guest, Told, plans, run_guest};

const ACCOUNTS: u8 = 4;
const EACH: u64 = 100;

/// What is on each account, and what was withdrawn.
#[derive(Debug)]
struct Bank {
    accounts: BTreeMap<u8, u64>,
    withdrawn: u64,
}

/// `[from, to, amount]` moves money, `[from, amount]` withdraws it. The answer is 1 if it was there. The query
/// `[account]` asks what is there.
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

    fn query(&self, query: &Bytes) -> Bytes {
        let there = query.first().and_then(|account| self.accounts.get(account));
        there.map_or(Bytes::new(), |there| Bytes::copy_from_slice(&there.to_le_bytes()))
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

    fn query(&self, rng: &mut Rng) -> Option<Bytes> {
        Some(Bytes::from(vec![rng.u8(0..ACCOUNTS)]))
    }

    fn describe(&self, command: &Bytes) -> String {
        match command[..] {
            [from, to, amount] => format!("move {amount} from {from} to {to}"),
            [from, amount] => format!("withdraw {amount} from {from}"),
            _ => "nothing".to_owned(),
        }
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
    let mut sums = BTreeMap::<&str, [u64; 4]>::new();
    for plan in plans(0..seeds) {
        match run_guest(&plan, Banking) {
            Ok(outcome) => {
                let sum = sums.entry(plan.settings.consensus.protocol.name()).or_default();
                let counts = [1, outcome.commands as u64, outcome.reads as u64, outcome.coverage.crashes];
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    for (name, [runs, commands, reads, crashes]) in sums {
        println!(
            "{name}: {runs} seeds, {commands} commands, {reads} reads of the bank, {crashes} crashes; it is sound"
        );
    }
    ExitCode::SUCCESS
}
