//! Messages as the C core has them: `struct sp_message`, its types and flags, and what comes of a message.

use std::fmt;

/// Declares an enumeration whose members have the numbers of the C core.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$member_doc:meta])* $member:ident = $number:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $name {
            $($(#[$member_doc])* $member = $number,)+
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &'static [$name] = &[$($name::$member,)+];

            /// The one with this number.
            #[must_use]
            pub fn of(number: u8) -> Option<$name> {
                $name::ALL.iter().copied().find(|each| *each as u8 == number)
            }
        }
    };
}

numbered! {
    /// What a message is for; `kernel/core/frame.h` says which fields each type uses.
    Type {
        /// Phase 1 of an instance.
        Prepare = 1,
        /// The promise of a ballot in an instance, and what was accepted there.
        Promise = 2,
        /// Phase 2 of an instance.
        Accept = 3,
        /// What was accepted in an instance.
        Accepted = 4,
        /// A higher ballot is promised.
        Preempted = 5,
        /// A learner asks again for what was accepted.
        Repeat = 6,
        /// Instances through this one are not needed any more.
        Trim = 7,
        /// How the acceptor stands.
        State = 8,
        /// A command of a client.
        ClientValue = 9,
        /// A learner makes itself known.
        LearnerHi = 10,
        /// A learner ends.
        LearnerDel = 11,
        /// A learner is known.
        AcceptorOk = 12,
        /// Phase 1 of all instances.
        PrepareAll = 13,
        /// The promise of a ballot in all instances.
        PromiseAll = 14,
        /// The instance is trimmed, or beyond the ring.
        Outside = 15,
    }
}

numbered! {
    /// What came of a message or a frame. All but `Ok` are reasons to drop it.
    Verdict {
        /// There is a reply, or the frame is sound.
        Ok = 0,
        /// The frame is shorter than a header.
        Short = 1,
        /// The frame is not of Kernel Paxos.
        BadMagic = 2,
        /// The frame is of another version.
        BadVersion = 3,
        /// There is no such type.
        BadType = 4,
        /// There are no such flags, or they contradict the length.
        BadFlags = 5,
        /// The value is longer than the frame, or than any value.
        BadLength = 6,
        /// The message is for another cluster.
        OtherCluster = 7,
        /// The message is for another group.
        OtherGroup = 8,
        /// The message is of another epoch.
        OtherEpoch = 9,
        /// An acceptor does not take such messages, or has nothing to answer.
        NotMine = 10,
        /// Ballot 0 or instance 0, or a second value in one ballot.
        Unsound = 11,
        /// Too many processors at once.
        Busy = 12,
    }
}

/// A flag: the value is the one that fills a gap.
pub const NO_OP: u8 = 1;
/// A flag: the answer need not carry the value, or does not carry the one that there is.
pub const BRIEF: u8 = 2;

/// A message without its value. A field is 0 where its type does not use it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// The number of its [`Type`].
    pub number: u8,
    /// [`NO_OP`] and [`BRIEF`].
    pub flags: u8,
    /// The sender.
    pub sender: u16,
    /// The group of the cluster.
    pub group: u16,
    /// The bytes of the value.
    pub length: u16,
    /// The cluster.
    pub cluster: u32,
    /// The life of the sender's memory.
    pub boot: u32,
    /// The epoch of the group.
    pub epoch: u32,
    /// The instance.
    pub instance: u64,
    /// The ballot.
    pub ballot: u64,
    /// The ballot in which the value was accepted; 0 if nothing was.
    pub value_ballot: u64,
    /// The meaning depends on the type.
    pub extra: u64,
}

impl Message {
    /// A message of this type with nothing in it.
    #[must_use]
    pub fn new(kind: Type) -> Message {
        Message { number: kind as u8, ..Message::default() }
    }

    /// The type. A message that was parsed, or is a reply, has one.
    #[must_use]
    pub fn kind(&self) -> Option<Type> {
        Type::of(self.number)
    }

    /// Whether the value is the one that fills a gap.
    #[must_use]
    pub fn is_no_op(&self) -> bool {
        self.flags & NO_OP != 0
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { flags, length, instance, ballot, value_ballot, extra, .. } = self;
        write!(f, "{:?} flags {flags} instance {instance} ballot {ballot} ", self.kind())?;
        write!(f, "value of {length} bytes in {value_ballot} extra {extra}")
    }
}
