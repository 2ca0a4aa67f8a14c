//! The styles of kinds of messages. The colours are those of Okabe and Ito, some a little darker, which people
//! with any kind of sight can tell apart. Answers are dashed, so that a chart can be read without colours as well.

use super::record::Mark;

/// Widths of the characters from the space to the tilde in DejaVu Sans, in thousandths of the size (the advance widths
/// of DejaVuSans.ttf). Of the typefaces that charts and figures name it is the widest, but for a few capitals.
pub const DEJAVU_SANS: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636,
    636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295,
    295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838,
    500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521,
    392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
];

/// A family of kinds, with one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// Elections, and what may be decided already.
    Lead,
    /// Proposals and votes.
    Propose,
    /// Decisions.
    Decide,
    /// Catch-up.
    CatchUp,
    /// Requests of clients, and what is passed on for them.
    Client,
    /// Heartbeats.
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
            "heartbeat" | "heartbeat-answer" | "election" | "progress" | "history" => Family::Life,
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
        Mark::Leads(..) | Mark::Follows(..) => "leader",
        Mark::Note => "note",
    }
}

/// Kinds that a chart of a story hides at first, since there are many and they tell little.
pub(super) const NOISE: &[&str] = &["heartbeat", "heartbeat-answer", "election", "progress", "timer"];
/// Kinds that a chart of a seed's run hides at first: the same, and those of disks.
pub(super) const NOISE_OF_RUNS: &[&str] =
    &["heartbeat", "heartbeat-answer", "election", "progress", "timer", "write", "fsync"];

/// Whether messages of a kind answer others.
pub(super) fn answers(kind: &str) -> bool {
    matches!(kind, "promise" | "vote" | "heartbeat-answer" | "refusal")
}
