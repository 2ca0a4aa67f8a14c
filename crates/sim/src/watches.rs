//! How much is watched in a run, and what is remarkable about it; `watching.rs` has those who watch.

use fastrand::Rng;

/// What a seed draws for those who watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPlan {
    /// How many watchers there are.
    pub watchers: usize,
    /// Bytes of commits that may be on their way to a hub.
    pub handed_bytes_max: usize,
    /// Bytes of events that may wait for a watcher.
    pub stream_bytes_max: usize,
    /// Bytes of the latest commits that a hub keeps.
    pub recent_bytes_max: usize,
    /// Bytes of events of a response.
    pub response_bytes_max: usize,
    /// Changes of a slice of a view.
    pub slice_changes: usize,
    /// Bytes of revisions for which a stream has no room, on all streams of a hub.
    pub large_bytes_max: usize,
}

impl WatchPlan {
    /// Nobody watches.
    pub const NONE: WatchPlan = WatchPlan {
        watchers: 0,
        handed_bytes_max: 0,
        stream_bytes_max: 0,
        recent_bytes_max: 0,
        response_bytes_max: 0,
        slice_changes: 0,
        large_bytes_max: 0,
    };

    /// What a seed draws, apart from everything else that it draws: watchers for every other seed, and bounds that are
    /// reached.
    #[must_use]
    pub fn draw(seed: u64) -> WatchPlan {
        let rng = &mut Rng::with_seed(seed ^ 0x3a_7c_4e);
        let mut pick = |choices: &[usize]| choices[rng.usize(0..choices.len())];
        WatchPlan {
            watchers: pick(&[0, 0, 0, 1, 2, 3]),
            handed_bytes_max: pick(&[500, 5_000, 1 << 20, 1 << 20]),
            stream_bytes_max: pick(&[300, 1 << 20, 1 << 20]),
            recent_bytes_max: pick(&[0, 500, 1 << 20]),
            response_bytes_max: pick(&[1, 500, 1 << 20]),
            slice_changes: pick(&[1, 4, 1_024]),
            large_bytes_max: pick(&[1, 1_000, 1 << 20]),
        }
    }
}

/// What is remarkable about what a watcher was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remarks {
    /// A watch begins.
    pub(crate) began: bool,
    /// Events.
    pub(crate) events: u64,
    /// For the first time at this replica, after another life at which it watched had crashed.
    pub(crate) after_crash: bool,
    /// For the first time at this replica, and of what there was before it asked.
    pub(crate) from_history: bool,
    /// After a snapshot had replaced the state of the replica.
    pub(crate) after_snapshot: bool,
    /// That what it asks for is compacted.
    pub(crate) compacted: bool,
}
