//! Which replica a peer is, in which of its lives, and whether that can be true.
//!
//! A replica is its id and its birth. A data directory that was restored from a copy shows the right birth and
//! has forgotten what was promised since the copy; it cannot know that, but replicas that heard the later life
//! can. So each life draws a nonce and introduces itself with an [`Introduction`], and each replica remembers
//! an [`Acquaintance`] of every peer. `docs/identity.md` has the argument, and what cannot be noticed.

use std::fmt;

use crate::{Incarnation, Lsn};

/// The most earlier lives that an introduction names.
pub const EARLIER_LIVES_MAX: usize = 32;

/// How a life of a replica introduces itself to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// A number that was drawn when the data directory was made.
    pub birth: u64,
    /// How many lives began with this data directory, including this one.
    pub incarnation: Incarnation,
    /// A number that this life drew.
    pub nonce: u64,
    /// The life with which the memory of this one begins. This life does not remember what earlier lives
    /// promised, so it does not vote on the strength of their promises. It is the number of this life if the
    /// replica lost its log, and 0 if nothing was ever lost.
    pub since: Incarnation,
    /// The lives before this one: the last ones that the data directory knows of, at most
    /// [`EARLIER_LIVES_MAX`].
    pub earlier: Vec<EarlierLife>,
    /// The last record of the log with which this life began.
    pub began: Lsn,
    /// Records of its log through this one are durable.
    pub durable: Lsn,
}

/// A life that is over, as a later life of the same data directory tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierLife {
    /// Its number.
    pub incarnation: Incarnation,
    /// The nonce that it drew.
    pub nonce: u64,
    /// The last record of the log with which that life began. [`Lsn::MAX`] means that it is not known, since
    /// the life said nothing, or spoke a version that did not tell it.
    pub began: Lsn,
}

/// What a replica remembers of the latest life of a peer that it has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquaintance {
    /// The peer's birth.
    pub birth: u64,
    /// Which of its lives that was.
    pub incarnation: Incarnation,
    /// The nonce which that life drew.
    pub nonce: u64,
    /// The last record of that life's log that something it said rests on.
    pub told: Lsn,
}

/// Why a peer cannot be the replica that it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The group names another birth, or another one was seen: the peer lost all its data, or has other data.
    OtherBirth,
    /// A later life of the replica was seen.
    Superseded,
    /// Another life with the same number was seen.
    Copied,
    /// The peer does not descend from the life that was seen.
    Forked,
    /// The peer's log ends before what the life that was seen told.
    Shorter,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mismatch::OtherBirth => "a replica of this id with other data has its vote, or was seen before",
            Mismatch::Superseded => "a later life of it was seen",
            Mismatch::Copied => "another life of the same number was seen",
            Mismatch::Forked => "it does not descend from the life that was seen",
            Mismatch::Shorter => "its log ends before what it has told",
        })
    }
}

/// A peer that introduced itself as a replica that it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Why it cannot be that replica.
    pub mismatch: Mismatch,
    /// What is remembered of that replica.
    pub known: Acquaintance,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Acquaintance { incarnation, told, .. } = self.known;
        write!(f, "{} (life {incarnation} was seen, with a log through record {told})", self.mismatch)
    }
}

impl Acquaintance {
    /// What is remembered after a first meeting.
    #[must_use]
    pub fn first(who: &Introduction) -> Acquaintance {
        let Introduction { birth, incarnation, nonce, durable, .. } = *who;
        Acquaintance { birth, incarnation, nonce, told: durable }
    }

    /// What is remembered after a replica has introduced itself, of which `known` is remembered, and whose vote belongs
    /// to the birth `named`, if the group names one. What the group names counts more than what was seen first: a peer
    /// that was met with the wrong data directory is let in with the right one.
    ///
    /// # Errors
    /// The peer cannot be that replica, or it forgot something without knowing it.
    pub fn judge(
        known: Option<&Acquaintance>,
        named: Option<u64>,
        who: &Introduction,
    ) -> Result<Acquaintance, Stranger> {
        let expected = named.or(known.map(|known| known.birth)).unwrap_or(who.birth);
        let known = known.filter(|known| known.birth == expected);
        if who.birth != expected {
            let (incarnation, nonce, told) = (Incarnation(0), 0, Lsn::ZERO);
            let known = known.copied().unwrap_or(Acquaintance { birth: expected, incarnation, nonce, told });
            return Err(Stranger { mismatch: Mismatch::OtherBirth, known });
        }
        known.map_or_else(|| Ok(Acquaintance::first(who)), |known| known.meet(who))
    }

    /// What is remembered once this replica, of which so much is known, has introduced itself again.
    ///
    /// # Errors
    /// The peer cannot be that replica, or it forgot something without knowing it.
    pub fn meet(&self, who: &Introduction) -> Result<Acquaintance, Stranger> {
        self.check(who).map_err(|mismatch| Stranger { mismatch, known: *self })
    }

    fn check(&self, who: &Introduction) -> Result<Acquaintance, Mismatch> {
        if who.birth != self.birth {
            return Err(Mismatch::OtherBirth);
        }
        if who.incarnation < self.incarnation {
            return Err(Mismatch::Superseded);
        }
        if who.incarnation == self.incarnation {
            if who.nonce != self.nonce {
                return Err(Mismatch::Copied);
            }
            return Ok(self.heard(who.durable));
        }
        if who.since > self.incarnation {
            // The peer remembers nothing of the life that was seen, and knows that.
            return Ok(Acquaintance::first(who));
        }
        let descends = |life: &EarlierLife| life.incarnation != self.incarnation || life.nonce == self.nonce;
        if !who.earlier.iter().all(descends) {
            return Err(Mismatch::Forked);
        }
        // How long the log is by now says nothing: a life that began on a copy may have written since.
        let after = who.earlier.iter().filter(|life| life.incarnation > self.incarnation);
        if after.map(|life| life.began).chain([who.began]).any(|began| began < self.told) {
            return Err(Mismatch::Shorter);
        }
        Ok(Acquaintance::first(who))
    }

    /// What is remembered after the same life said something that rests on this record.
    #[must_use]
    pub fn heard(self, durable: Lsn) -> Acquaintance {
        Acquaintance { told: self.told.max(durable), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `life`th life of a replica whose lives drew the nonces 10, 20, ...
    fn life(number: u64, durable: u64) -> Introduction {
        Introduction {
            birth: 7,
            incarnation: Incarnation(number),
            nonce: number * 10,
            since: Incarnation(0),
            earlier: (1..number).map(|life| earlier(life, durable)).collect(),
            began: Lsn(durable),
            durable: Lsn(durable),
        }
    }

    fn earlier(life: u64, began: u64) -> EarlierLife {
        EarlierLife { incarnation: Incarnation(life), nonce: life * 10, began: Lsn(began) }
    }

    fn known(number: u64, told: u64) -> Acquaintance {
        Acquaintance::first(&life(number, told))
    }

    #[test]
    fn lives_that_follow_each_other_are_recognised_also_after_a_gap() {
        assert_eq!(known(2, 50).check(&life(2, 50)), Ok(known(2, 50)));
        assert_eq!(known(2, 50).check(&life(3, 50)), Ok(known(3, 50)));
        assert_eq!(known(2, 50).check(&life(9, 60)), Ok(known(9, 60)));
        // A connection may be late: what is remembered of the same life does not shrink.
        assert_eq!(known(2, 50).check(&life(2, 40)), Ok(known(2, 50)));
    }

    #[test]
    fn a_copy_is_refused_wherever_it_was_taken() {
        // No life was started since the copy: only the log is too short.
        assert_eq!(known(2, 50).check(&life(3, 49)), Err(Mismatch::Shorter));
        // The same holds if the life wrote before it met any peer, and if another life did that and was not seen.
        let wrote = Introduction { durable: Lsn(60), ..life(3, 49) };
        assert_eq!(known(2, 50).check(&wrote), Err(Mismatch::Shorter));
        let mut wrote = life(4, 60);
        wrote.earlier[2] = earlier(3, 49);
        assert_eq!(known(2, 50).check(&wrote), Err(Mismatch::Shorter));
        // How long the log was when lives before the one that was seen began does not matter.
        wrote.earlier[2] = earlier(3, 50);
        wrote.earlier[1] = earlier(2, 10);
        assert!(known(2, 50).check(&wrote).is_ok());
        // The original was started once more since the copy.
        let copied = Introduction { nonce: 31, ..life(3, 70) };
        assert_eq!(known(3, 50).check(&copied), Err(Mismatch::Copied));
        // The original was started twice more since the copy.
        assert_eq!(known(4, 50).check(&copied), Err(Mismatch::Superseded));
        // The copy was also started once more where no peer saw it, so that its number is a later one again.
        let mut later = life(4, 70);
        later.earlier[2].nonce = 31;
        assert_eq!(known(3, 50).check(&later), Err(Mismatch::Forked));
        assert_eq!(known(2, 50).check(&Introduction { birth: 8, ..life(3, 50) }), Err(Mismatch::OtherBirth));
    }

    #[test]
    fn the_birth_that_the_group_names_counts_more_than_the_one_that_was_seen_first() {
        let (right, wrong) = (life(3, 50), Introduction { birth: 8, ..life(1, 0) });
        let seen = Acquaintance::first(&wrong);
        let judge = |known: Option<&Acquaintance>, named, who| {
            Acquaintance::judge(known, named, who)
                .map_err(|stranger| (stranger.mismatch, stranger.known.birth))
        };
        // Before a name there is only what was seen.
        assert_eq!(judge(None, None, &wrong), Ok(seen));
        assert_eq!(judge(Some(&seen), None, &right), Err((Mismatch::OtherBirth, 8)));
        // The wrong one was met first, and is told why it is not met any more; the right one is let in.
        assert_eq!(judge(Some(&seen), Some(7), &wrong), Err((Mismatch::OtherBirth, 7)));
        assert_eq!(judge(Some(&seen), Some(7), &right), Ok(known(3, 50)));
        assert_eq!(judge(None, Some(7), &wrong), Err((Mismatch::OtherBirth, 7)));
        // The right one is still judged by its lives.
        assert_eq!(judge(Some(&known(4, 50)), Some(7), &right), Err((Mismatch::Superseded, 7)));
    }

    #[test]
    fn a_replica_that_knows_what_it_forgot_is_accepted() {
        let forgot = Introduction { since: Incarnation(5), ..life(5, 0) };
        let after = known(4, 50).check(&forgot).unwrap();
        assert_eq!(after.told, Lsn::ZERO);
        let next = Introduction { since: Incarnation(5), ..life(6, 3) };
        assert_eq!(after.heard(Lsn(4)).check(&next), Err(Mismatch::Shorter));
        assert!(after.heard(Lsn(3)).check(&next).is_ok());
        // What was lost before the life that was seen is no excuse.
        assert_eq!(
            known(5, 50).check(&Introduction { since: Incarnation(5), ..life(6, 3) }),
            Err(Mismatch::Shorter)
        );
        // Nor does it help a copy if its number is as low as one that was seen.
        let copied = Introduction { since: Incarnation(5), nonce: 51, ..life(5, 0) };
        assert_eq!(known(5, 50).check(&copied), Err(Mismatch::Copied));
    }
}
