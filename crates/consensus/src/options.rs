//! The options of protocols, and how a protocol is made from them.

use std::{sync::Arc, time::Duration};

use synod_wire::{Ballots, Delivered, Incarnation, Slot, Time};

use crate::{
    Bug, Dissemination, Effects, ElectionKind, Members, Protocol, ProtocolKind, Record, Threshold,
    dissemination, election, registry::protocols,
};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every choice, by its name in configurations.
            pub const ALL: &'static [(&'static str, $name)] = &[$(($text, $name::$variant),)+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($name::$variant => $text,)+ })
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, $crate::UnknownName> {
                let found = $name::ALL.iter().find(|(name, _)| *name == text);
                found.map(|&(_, choice)| choice).ok_or_else(|| {
                    let accepted = $name::ALL.iter().map(|(name, _)| *name).collect();
                    $crate::UnknownName::new($what, text, accepted)
                })
            }
        }
    };
}
pub(crate) use choice;

/// A name that is not one of the choices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} '{given}'; accepted: {}", accepted.join(", "))]
pub struct UnknownName {
    what: &'static str,
    given: String,
    accepted: Vec<&'static str>,
}

impl UnknownName {
    pub(crate) fn new(what: &'static str, given: &str, accepted: Vec<&'static str>) -> UnknownName {
        UnknownName { what, given: given.to_owned(), accepted }
    }
}

/// The most bytes that a message between replicas has besides the batches of a page: kinds, ballots and
/// slots, what the last batch of a page takes besides its own bytes, and a life or a vote of every member.
pub const MESSAGE_HEAD_BYTES: usize = 4 << 10;

macro_rules! options {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $tag:literal, $folder:ident;)+) => {
        /// The options of ordering. The defaults are for a local network.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct Options {
            /// The protocol that orders.
            pub protocol: ProtocolKind,
            /// How it finds a leader.
            pub election: ElectionKind,
            /// How batches reach all replicas.
            pub dissemination: Dissemination,
            /// What a replica keeps at most if all disseminate. No flag sets it.
            pub bounds: crate::dissemination::Bounds,
            /// Which replica leads if several could begin to at the same time: the one with the highest
            /// priority, then with the highest number. A leader is not replaced because of it. Elections in a
            /// fixed order (`rotating`) ignore priorities; with `randomized` ones the replica with the
            /// highest priority waits the shortest time.
            pub priority: u8,
            /// How often a leader says that it lives.
            pub heartbeat_interval: Duration,
            /// How long a leader may be silent, be cut off from a quorum or wait for its disk before it is replaced.
            pub election_timeout: Duration,
            /// The most slots that a leader may have undecided at a time (Santos 2012: WND); at least 1.
            pub window_max: usize,
            /// A proposal that was not answered is sent again after this time, then after twice as long, and
            /// so on up to the election time-out.
            pub retransmit_after: Duration,
            /// A decision that no other replica waits for is announced with the next proposal, or after this time.
            pub announce_delay_max: Duration,
            /// The most bytes of batches in one answer to a new leader, and in one message of proposals that
            /// leave together; one batch may always leave.
            pub page_bytes_max: usize,
            /// What only a latency-aware election has.
            pub latency: crate::election::latency::Tuning,
            $(#[doc = concat!("What only ", $name, " has.")] pub $folder: $crate::$folder::Tuning,)+
            #[doc(hidden)]
            pub planted: Option<Bug>,
        }

        impl Default for Options {
            fn default() -> Options {
                Options {
                    protocol: ProtocolKind::MultiPaxos,
                    election: ElectionKind::Ballot,
                    dissemination: Dissemination::Leader,
                    bounds: crate::dissemination::Bounds::default(),
                    priority: 0,
                    heartbeat_interval: Duration::from_millis(100),
                    election_timeout: Duration::from_millis(1000),
                    window_max: 32,
                    retransmit_after: Duration::from_millis(100),
                    announce_delay_max: Duration::from_millis(5),
                    page_bytes_max: 1 << 20,
                    latency: crate::election::latency::Tuning::default(),
                    $($folder: $crate::$folder::Tuning::default(),)+
                    planted: None,
                }
            }
        }
    };
}

protocols!(options);

impl Options {
    /// The defaults for a protocol, with the election that it prefers.
    #[must_use]
    pub fn of(protocol: ProtocolKind) -> Options {
        Options { protocol, election: protocol.elections()[0], ..Options::default() }
    }

    /// How far beyond the decided prefix an acceptor accepts, which bounds its memory, and the work of a new
    /// leader. It is several windows, so that a follower that misses one slot does not lose the slots after it.
    #[must_use]
    pub fn accept_ahead_max(&self) -> u64 {
        (4 * self.window_max as u64).max(64)
    }

    /// The largest message of a protocol with these options, in bytes, if no batch has more than `batch_bytes_max`.
    /// A message that holds batches is a page of them: as much as a page's bound allows, or one batch.
    #[must_use]
    pub fn message_bytes_max(&self, batch_bytes_max: usize) -> usize {
        let pages = ProtocolKind::known().map(|(_, protocol)| (protocol.profile().page_bytes_max)(self));
        pages.fold(batch_bytes_max, usize::max).saturating_add(MESSAGE_HEAD_BYTES)
    }

    /// How many members decide, under the protocol with these options: a group survives the loss of the others.
    #[must_use]
    pub fn threshold(&self) -> Threshold {
        (self.protocol.profile().threshold)(self)
    }

    /// Whether the election times the answers of members, since the protocol places them by it.
    #[must_use]
    pub(crate) fn times_answers(&self) -> bool {
        (self.protocol.profile().times_answers)(self)
    }

    /// Whether this bug is planted; see [`Bug`]. Outside of tests none is.
    #[must_use]
    pub fn has(&self, bug: impl Into<Bug>) -> bool {
        self.planted_bug() == Some(bug.into())
    }

    /// The bug that is planted; outside of tests none is.
    #[inline]
    pub(crate) fn planted_bug(&self) -> Option<Bug> {
        if cfg!(any(test, feature = "planted-bugs")) { self.planted } else { None }
    }
}

/// What a replica finds when it starts.
#[derive(Debug)]
pub struct Restart {
    /// The records of its write-ahead log, in order.
    pub records: Vec<Record>,
    /// Everything through this slot is decided and need not be delivered: a snapshot holds it, or an earlier
    /// epoch decided it.
    pub base: Slot,
    /// The highest ballots of the epoch's slots through `base`; [`Ballots::ZERO`] if the epoch began after it.
    pub base_ballots: Ballots,
    /// The slot before the epoch's first.
    pub begin: Slot,
    /// Slots through this one were decided when the last of the records was written, with the values that the
    /// records hold; `base` if nothing is known.
    pub decided: Slot,
    /// Whether records may be missing (from a corrupt log, or one kept in memory): the replica must not vote
    /// before it knows what it may have forgotten.
    pub amnesia: bool,
    /// The number of this life of the replica, which is larger than every earlier one.
    pub incarnation: Incarnation,
    /// Whether this replica led the epoch before, so that it is the first to try to lead this one (Ng 2020,
    /// section 4.4.3).
    pub head_start: bool,
    /// The batches that were delivered through `base`.
    pub delivered: Arc<Delivered>,
    /// What the election of the epoch before knew, if this process ran it.
    pub memory: election::Memory,
    /// The epoch is over: what it decided is wanted, and nothing of what it held beyond that need be there any more.
    pub is_over: bool,
}

impl Restart {
    /// What a replica finds at the first start of a group's first epoch.
    #[must_use]
    pub fn first(incarnation: Incarnation) -> Restart {
        Restart {
            records: Vec::new(),
            base: Slot::ZERO,
            base_ballots: Ballots::ZERO,
            begin: Slot::ZERO,
            decided: Slot::ZERO,
            amnesia: false,
            incarnation,
            head_start: false,
            delivered: Arc::default(),
            memory: election::Memory::default(),
            is_over: false,
        }
    }
}

impl Options {
    /// Makes the protocol that these options name, as it is after a start. The effects deliver again what was
    /// decided after the snapshot.
    #[must_use]
    pub fn start(
        &self,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> Box<dyn Protocol> {
        if self.dissemination == Dissemination::Balanced {
            return dissemination::start(self, members, restart, now, effects);
        }
        let known = restart.base_ballots.decided;
        let start = self.protocol.profile().start;
        let mut protocol = start(self.clone(), members, restart, now, effects);
        // A snapshot may have become durable before the promise that came first.
        protocol.heed(now, known, effects);
        protocol
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{Lsn, ReplicaId};

    use super::*;
    use crate::Decision;

    #[test]
    fn names_round_trip_and_an_unknown_one_names_what_is_accepted() {
        for &(name, choice) in Decision::ALL {
            assert_eq!(name.parse(), Ok(choice));
            assert_eq!(choice.to_string(), name);
        }
        let error = "majority".parse::<Decision>().unwrap_err().to_string();
        assert_eq!(error, "unknown decision 'majority'; accepted: leader, all");
    }

    #[test]
    fn a_copy_goes_the_same_way_and_leaves_the_original_alone() {
        for &(_, protocol) in ProtocolKind::ALL {
            let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(1));
            let mut effects = Effects::new(Lsn::ZERO);
            let restart = Restart::first(Incarnation(1));
            let mut original = Options::of(protocol).start(members, restart, Time::ZERO, &mut effects);
            let before = format!("{original:?}");
            let (mut copy, later, lsn) =
                (original.clone(), Time::ZERO + Duration::from_secs(9), effects.last_lsn());
            copy.step(later, crate::Input::Timer, &mut Effects::new(lsn));
            assert_eq!(format!("{original:?}"), before);
            assert_ne!(format!("{copy:?}"), before);
            original.step(later, crate::Input::Timer, &mut Effects::new(lsn));
            assert_eq!(format!("{original:?}"), format!("{copy:?}"));
        }
    }
}
