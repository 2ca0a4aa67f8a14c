//! How kinds of messages look. The colours are those of Okabe and Ito, which people who see colours differently can tell
//! apart, some a little darker; what answers is dashed, so that a chart can be read without colours as well.

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

/// Whether messages of a kind answer others.
pub(super) fn answers(kind: &str) -> bool {
    matches!(kind, "promise" | "vote" | "heartbeat-answer" | "refusal")
}
