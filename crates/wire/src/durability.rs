//! For which records a replica waits for its disk, and what it therefore knows after each kind of end.

use std::{fmt, str::FromStr};

use crate::Keep;

/// When a replica waits for its disk. `docs/operating.md` has a table of what each mode survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// It waits for every record (`fdatasync`), so a committed record survives a power failure.
    #[default]
    Sync,
    /// It waits for records that are kept as a state ([`Keep::State`]: promises, terms, epochs), not for those of
    /// slots (votes). All records are handed to the kernel. After a power failure the replica knows its promises,
    /// and that it lost votes. Santos 2012 leaves this mode open; JPaxos calls it ViewSS.
    View,
    /// It hands records to the kernel and waits for nothing else, so a committed record survives the end of
    /// the process but not that of the machine.
    Async,
    /// It writes no records. A restarted replica knows that it lost its memory.
    Memory,
    /// It writes no records, as with [`Durability::Memory`], and never starts again: a replica that stops is replaced.
    CrashStop,
}

/// How a replica's life ends without being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// Its process ends, and whatever it handed to the kernel stays.
    Process,
    /// Its machine fails: it loses power, or the operating system crashes.
    Machine,
}

impl Durability {
    /// All modes, with their names in configurations.
    pub const ALL: &'static [(&'static str, Durability)] = &[
        ("sync", Durability::Sync),
        ("view", Durability::View),
        ("async", Durability::Async),
        ("memory", Durability::Memory),
        ("crash-stop", Durability::CrashStop),
    ];

    /// Whether records are written at all.
    #[must_use]
    pub fn writes(self) -> bool {
        match self {
            Durability::Sync | Durability::View | Durability::Async => true,
            Durability::Memory | Durability::CrashStop => false,
        }
    }

    /// Whether a commit that contains a record of this kind waits for the disk.
    #[must_use]
    pub fn syncs(self, keep: Keep) -> bool {
        match self {
            Durability::Sync => true,
            Durability::View => matches!(keep, Keep::State(_)),
            Durability::Async | Durability::Memory | Durability::CrashStop => false,
        }
    }

    /// Whether a commit waits for the disk because of any record.
    #[must_use]
    pub fn syncs_anything(self) -> bool {
        self.keeps_promises(Ending::Machine)
    }

    /// Whether, after such an end, the next life knows every vote that other replicas may rely on.
    #[must_use]
    pub fn keeps_votes(self, end: Ending) -> bool {
        match end {
            Ending::Process => self.writes(),
            Ending::Machine => self == Durability::Sync,
        }
    }

    /// Whether, after such an end, the next life knows every promise that other replicas may rely on.
    #[must_use]
    pub fn keeps_promises(self, end: Ending) -> bool {
        match end {
            Ending::Process => self.writes(),
            Ending::Machine => matches!(self, Durability::Sync | Durability::View),
        }
    }

    /// Whether the replica may be started again at all.
    #[must_use]
    pub fn may_restart(self) -> bool {
        self != Durability::CrashStop
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Durability::ALL.iter().find(|(_, durability)| durability == self);
        f.write_str(name.expect("all are listed").0)
    }
}

/// A word that names no durability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no durability; there are sync, view, async, memory, crash-stop")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Durability, UnknownDurability> {
        let found = Durability::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, durability)| *durability).ok_or_else(|| UnknownDurability(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    #[test]
    fn names_round_trip_and_a_wrong_one_names_all() {
        for (name, durability) in Durability::ALL {
            assert_eq!((durability.to_string().as_str(), name.parse()), (*name, Ok(*durability)));
        }
        let error = "safe".parse::<Durability>().unwrap_err().to_string();
        let names: Vec<&str> = Durability::ALL.iter().map(|(name, _)| *name).collect();
        assert_eq!(error, format!("\"safe\" is no durability; there are {}", names.join(", ")));
    }

    #[test]
    fn what_is_kept_is_what_was_waited_for_or_handed_on() {
        for (_, durability) in Durability::ALL {
            let (vote, promise) = (durability.syncs(Keep::Slot(Slot(1))), durability.syncs(Keep::State(1)));
            assert_eq!(durability.keeps_votes(Ending::Machine), vote);
            assert_eq!(durability.keeps_promises(Ending::Machine), promise);
            assert_eq!(durability.syncs_anything(), promise);
            assert!(promise || !vote, "who keeps votes keeps promises");
            let kept = durability.keeps_votes(Ending::Process);
            assert_eq!(
                (kept, durability.keeps_promises(Ending::Process)),
                (durability.writes(), durability.writes())
            );
            assert!(kept || !vote, "the end of a process takes no more than that of its machine");
            assert!(durability.may_restart() || !durability.writes(), "what is kept may be used");
        }
    }
}
