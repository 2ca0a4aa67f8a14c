//! How kinds of messages look. The colours are those of Okabe and Ito, which people who see colours differently can tell
//! apart, some a little darker; what answers is dashed, so that a chart can be read without colours as well.

use super::record::Mark;

/// A family of kinds, with one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// Who leads, and what may be decided already.
    Lead,
    /// Proposals and votes.
    Propose,
    /// What is decided.
    Decide,
    /// What somebody lacks.
    CatchUp,
    /// Clients, and what is passed on for them.
    Client,
    /// Signs of life.
    Life,
}

impl Family {
    pub(super) const ALL: [Family; 6] =
        [Family::Lead, Family::Propose, Family::Decide, Family::CatchUp, Family::Client, Family::Life];

    /// The family of a kind of messages, as [`crate::describe::class`] names it.
    pub(super) fn of(kind: &str) -> Family {
        match kind {
            "proposal" | "vote" => Family::Propose,
            "announcement" => Family::Decide,
            "catch-up" | "missed" => Family::CatchUp,
            "client" | "forward" | "read" => Family::Client,
            "heartbeat" | "heartbeat-answer" | "election" | "standing" | "history" => Family::Life,
            // Prepare, promise, sync, refusal, transfer, recovery.
            _ => Family::Lead,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Lead => "lead",
            Family::Propose => "propose",
            Family::Decide => "decide",
            Family::CatchUp => "catchup",
            Family::Client => "client",
            Family::Life => "life",
        }
    }

    pub(super) fn colour(self) -> &'static str {
        match self {
            Family::Lead => "#a0437b",
            Family::Propose => "#0072b2",
            Family::Decide => "#00805c",
            Family::CatchUp => "#a86500",
            Family::Client => "#333333",
            Family::Life => "#8c8c8c",
        }
    }
}

/// The kind that filters know a mark by.
pub(super) fn mark_kind(mark: Mark) -> &'static str {
    match mark {
        Mark::Starts | Mark::Crashes | Mark::Pauses | Mark::Resumes => "crash",
        Mark::DiskStalls | Mark::DiskGoesOn => "disk",
        Mark::Write => "write",
        Mark::Durable => "fsync",
        Mark::Timer => "timer",
        Mark::Delivers { .. } => "slot",
        Mark::Leads(_) | Mark::Follows(_) => "leader",
        Mark::Note => "note",
    }
}

/// What a chart of a story leaves to a box on its page: it says little, and there is much of it.
pub(super) const NOISE: &[&str] = &["heartbeat", "heartbeat-answer", "election", "standing", "timer"];
/// The same for the run of a seed, which is not about disks.
pub(super) const NOISE_OF_RUNS: &[&str] =
    &["heartbeat", "heartbeat-answer", "election", "standing", "timer", "write", "fsync"];

/// Whether messages of a kind answer others.
pub(super) fn answers(kind: &str) -> bool {
    matches!(kind, "promise" | "vote" | "heartbeat-answer" | "refusal")
}
