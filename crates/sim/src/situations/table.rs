//! A table of the situations that many runs reached.

use std::fmt;

use synod_consensus::ProtocolKind;

use super::{MARK, Reached, Situation};

/// How many runs reached each situation.
#[derive(Clone, Debug)]
pub struct Table {
    protocol: ProtocolKind,
    runs: Vec<u64>,
}

impl Table {
    /// A table without runs, for a protocol.
    #[must_use]
    pub fn new(protocol: ProtocolKind) -> Table {
        Table { protocol, runs: vec![0; Situation::ALL.len()] }
    }

    /// Adds a run.
    pub fn add(&mut self, reached: Reached) {
        reached.iter().for_each(|situation| self.runs[situation as usize] += 1);
    }

    /// How many runs reached a situation.
    #[must_use]
    pub fn runs(&self, situation: Situation) -> u64 {
        self.runs[situation as usize]
    }

    /// The rows that too few runs reached, of those that apply to the protocol.
    pub fn uncovered(&self) -> impl Iterator<Item = Situation> {
        let rows = Situation::ALL.iter().copied();
        rows.filter(|row| row.applies(self.protocol).is_ok() && self.runs(*row) < MARK)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = Situation::ALL.iter().map(|row| row.name().len()).max().unwrap_or(0);
        writeln!(f, "{:>8}  situation (covered by {MARK} runs)", "runs")?;
        for &row in Situation::ALL {
            match (row.applies(self.protocol), self.runs(row)) {
                (Err(why), _) => writeln!(f, "{:>8}  {:<width$}  does not apply: {why}", "-", row.name())?,
                (Ok(()), runs) if runs < MARK => {
                    writeln!(f, "{runs:>8}  {:<width$}  NOT COVERED", row.name())?;
                }
                (Ok(()), runs) => writeln!(f, "{runs:>8}  {}", row.name())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_covered_by_enough_runs_and_one_that_does_not_apply_needs_none() {
        let mut table = Table::new(ProtocolKind::Raft);
        let mut reached = Reached::default();
        reached.mark(Situation::Bridge, true);
        (0..MARK).for_each(|_| table.add(reached));
        let uncovered: Vec<Situation> = table.uncovered().collect();
        assert!(!uncovered.contains(&Situation::Bridge) && uncovered.contains(&Situation::Duel));
        assert!(!uncovered.contains(&Situation::PagesOfTwoLives));
        let text = table.to_string();
        assert!(text.contains("      20  a partial cut with a bridge\n"), "{text}");
        assert!(text.contains("does not apply: a vote is one message"), "{text}");
        let line = |name: &str| text.lines().find(|line| line.contains(name)).expect("a row");
        assert!(line("  two candidates at once").starts_with("       0  "), "{text}");
        assert!(line("  two candidates at once").ends_with("NOT COVERED"), "{text}");
    }
}
