//! How a run with a guest is replayed: by the test or program that has the guest, told by its environment which run.

use std::{env, fmt, ops::Range, str::FromStr, thread};

use synod_consensus::ProtocolKind;

use crate::plan::Plan;

/// The variable of the environment that names the run to replay, as `raft:17`.
/// [`run_guest`](crate::run_guest) prints every event of that run, and [`plans`] gives no other plan.
pub const REPLAY: &str = "SYNOD_SIM_REPLAY";

/// What names a run among those of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub protocol: ProtocolKind,
    pub seed: u64,
}

impl Run {
    pub(crate) fn of(plan: &Plan) -> Run {
        Run { protocol: plan.settings.consensus.protocol, seed: plan.seed }
    }

    /// Whether the environment names this run.
    pub(crate) fn is_named(self) -> bool {
        named() == Some(self)
    }

    /// The command that replays the run.
    pub(crate) fn command(self) -> String {
        let thread = thread::current();
        // The harness runs a test in a thread that has its name, unless it has one thread.
        match thread.name().filter(|name| *name != "main") {
            Some(test) => format!("{REPLAY}={self} cargo test {test} -- --exact --nocapture"),
            None => {
                let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
                format!("{REPLAY}={self} {}", words.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.protocol.name(), self.seed)
    }
}

impl FromStr for Run {
    type Err = String;

    fn from_str(text: &str) -> Result<Run, String> {
        let wrong = |why: &str| format!("{REPLAY}={text}: {why}; write a protocol and a seed, as raft:17");
        let (of, seed) = text.split_once(':').ok_or_else(|| wrong("there is no ':'"))?;
        let seed = seed.parse().map_err(|_| wrong("what follows the ':' is no seed"))?;
        let protocol = of.parse::<ProtocolKind>().map_err(|error| wrong(&error.to_string()))?;
        Ok(Run { protocol, seed })
    }
}

/// The run that the environment names, if it names one.
///
/// # Panics
/// If it names none that can be: a replay that silently runs something else would mislead.
fn named() -> Option<Run> {
    let text = env::var_os(REPLAY)?;
    Some(text.to_string_lossy().parse().unwrap_or_else(|error| panic!("{error}")))
}

/// What seeds draw for each protocol: the plans of a test of one's own state machine. If the environment names a run
/// ([`REPLAY`]), it is the only one.
///
/// # Panics
/// If the environment names a run, and no protocol and seed.
pub fn plans(seeds: Range<u64>) -> impl Iterator<Item = Plan> {
    of_runs(seeds, named())
}

fn of_runs(seeds: Range<u64>, named: Option<Run>) -> impl Iterator<Item = Plan> {
    let all = || ProtocolKind::ALL.iter().map(|(_, protocol)| *protocol).collect::<Vec<_>>();
    let (protocols, seeds) = match named {
        None => (all(), seeds),
        Some(Run { protocol, seed }) => (vec![protocol], seed..seed.saturating_add(1)),
    };
    let of_protocol = move |protocol| seeds.clone().map(move |seed| Plan::draw(seed, protocol));
    protocols.into_iter().flat_map(of_protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_protocol_and_seed() {
        for text in ["raft:17", "multipaxos:0"] {
            assert_eq!(text.parse::<Run>().unwrap().to_string(), text);
        }
        let plan = Plan::draw(17, ProtocolKind::Raft);
        assert_eq!("raft:17".parse::<Run>(), Ok(Run::of(&plan)));
        for (text, why) in [
            ("raft", "there is no ':'"),
            ("raft:x", "what follows the ':' is no seed"),
            ("taft:1", "unknown protocol 'taft'"),
        ] {
            let error = text.parse::<Run>().unwrap_err();
            assert!(error.contains(why) && error.contains("SYNOD_SIM_REPLAY"), "{error}");
        }
    }

    #[test]
    fn plans_are_those_of_all_protocols_or_of_the_run_that_is_named() {
        let runs = |named| of_runs(4..6, named).map(|plan| Run::of(&plan)).collect::<Vec<_>>();
        let all = runs(None);
        assert_eq!(all.len(), 2 * ProtocolKind::ALL.len());
        assert!(all.contains(&"raft:5".parse().unwrap()));
        let one: Run = "raft:17".parse().unwrap();
        assert_eq!(runs(Some(one)), [one]);
    }
}
