//! Protocols that are not part of this crate.
//!
//! A program that has a protocol of its own describes it once, as an [`Outside`], and registers it before it
//! does anything else. From then on [`ProtocolKind`] knows its name like any other: options and groups name
//! it, and servers, the simulator, the explorer and scenarios run it. Its messages and records travel and are
//! kept under its name, in its own encoding; checks apply to what they claim and remember as they do to the
//! protocols of this crate.
//!
//! What a protocol from outside cannot have: options of its own, terms ([`ProtocolKind::has_terms`]), changes of voters
//! within an epoch, and a way to vote again in an epoch whose log was lost.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use synod_wire::{DecodeError, Reader, Time, Writer};

use crate::{
    Body, Dissemination, Effects, ElectionKind, Logged, Members, Message, Options, Protocol, ProtocolKind,
    Record, Restart, Survives, Threshold, registry::Profile,
};

/// The longest name of a protocol, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A protocol from outside this crate, as a `static` of the program that has it.
pub struct Outside {
    name: &'static str,
    pub(crate) profile: Profile,
    messages: TypeId,
    records: TypeId,
    decode_message: fn(&mut Reader) -> Result<Arc<dyn AnyBody>, DecodeError>,
    decode_record: fn(&mut Reader) -> Result<Arc<dyn AnyLogged>, DecodeError>,
}

/// A function that makes a replica, as it is after a start.
pub type Start = fn(Options, Members, Restart, Time, &mut Effects) -> Box<dyn Protocol>;

impl Outside {
    /// A protocol whose messages are `M` and whose records are `R`. The first of its elections is its own choice; none
    /// of them may be `randomized`. A message that holds batches holds at most [`Options::page_bytes_max`] bytes of
    /// them, or one batch.
    #[must_use]
    pub const fn new<M, R>(
        name: &'static str,
        elections: &'static [ElectionKind],
        survives: Survives,
        start: Start,
    ) -> Outside
    where
        M: Body + fmt::Debug + Send + Sync + 'static,
        R: Logged + fmt::Debug + Send + Sync + 'static,
    {
        Outside {
            name,
            profile: Profile {
                elections,
                disseminations: Dissemination::EVERY,
                changes_voters_itself: false,
                has_leader: true,
                every_replica_proposes: false,
                recovers_itself: false,
                has_terms: false,
                fills_slots_alone: false,
                promises_sequence: false,
                times_answers: |_| false,
                survives,
                page_bytes_max: |options| options.page_bytes_max,
                threshold: |_| Threshold::Majority,
                keys: &[],
                options_to_try: &[],
                laboratory: None,
                bugs: &[],
                start,
            },
            messages: TypeId::of::<M>(),
            records: TypeId::of::<R>(),
            decode_message: |reader| Ok(Arc::new(M::decode(reader)?)),
            decode_record: |reader| Ok(Arc::new(R::decode(reader)?)),
        }
    }

    /// The same without a leader: it goes with no dissemination in which a leader orders the batches of all replicas.
    #[must_use]
    pub const fn without_leader(mut self) -> Outside {
        self.profile.has_leader = false;
        self.profile.disseminations = &[Dissemination::Leader, Dissemination::References];
        self
    }

    /// Makes the protocol known to the whole program. Registering it again changes nothing.
    ///
    /// # Errors
    /// If another protocol has its name, or the name is not 1 to 64 lower-case letters, digits and hyphens.
    pub fn register(&'static self) -> Result<ProtocolKind, NotRegistered> {
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=NAME_BYTES_MAX).contains(&self.name.len()) || !self.name.bytes().all(is_fine) {
            return Err(NotRegistered::Malformed(self.name));
        }
        if ProtocolKind::EVERY.iter().any(|(name, _)| *name == self.name) {
            return Err(NotRegistered::Taken(self.name));
        }
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let known = registered.iter().position(|&known| known == self);
        if known.is_some_and(|place| !std::ptr::eq(registered[place], self)) {
            return Err(NotRegistered::Taken(self.name));
        }
        let place = known.unwrap_or(registered.len());
        let kind = ProtocolKind::Outside(Registered(place.try_into().map_err(|_| NotRegistered::TooMany)?));
        if known.is_none() {
            registered.push(self);
        }
        Ok(kind)
    }

    /// A message in the form in which it travels.
    ///
    /// # Panics
    /// If `M` is not the type of this protocol's messages.
    #[must_use]
    pub fn message<M: Body + fmt::Debug + Send + Sync + 'static>(&'static self, message: M) -> Message {
        assert_eq!(TypeId::of::<M>(), self.messages, "a message of another protocol than {}", self.name);
        Message::Outside(OutsideMessage { of: self, body: Arc::new(message) })
    }

    /// A record in the form in which it is kept.
    ///
    /// # Panics
    /// If `R` is not the type of this protocol's records.
    #[must_use]
    pub fn record<R: Logged + fmt::Debug + Send + Sync + 'static>(&'static self, record: R) -> Record {
        assert_eq!(TypeId::of::<R>(), self.records, "a record of another protocol than {}", self.name);
        Record::Outside(OutsideRecord { of: self, body: Arc::new(record) })
    }

    fn decode_name(reader: &mut Reader) -> Result<&'static Outside, DecodeError> {
        let name = reader.bytes("name of a protocol")?;
        let found = registered().iter().copied().find(|outside| outside.name.as_bytes() == name);
        found.ok_or_else(|| {
            let name = &name[..name.len().min(NAME_BYTES_MAX)];
            DecodeError::Unregistered(String::from_utf8_lossy(name).into_owned())
        })
    }

    fn encode_name(&self, writer: &mut Writer) {
        writer.bytes(self.name.as_bytes());
    }
}

impl PartialEq for Outside {
    fn eq(&self, other: &Outside) -> bool {
        self.name == other.name
    }
}

impl Eq for Outside {}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A registered protocol from outside: its place among them. Groups and options hold it, so it is small.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Registered(u8);

impl Registered {
    /// The protocol's name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.outside().name
    }

    pub(crate) fn profile(self) -> &'static Profile {
        &self.outside().profile
    }

    fn outside(self) -> &'static Outside {
        registered().get(usize::from(self.0)).expect("a place is given with the registration")
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a protocol was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRegistered {
    /// Another protocol has the name.
    #[error("there is another protocol that is named {0}")]
    Taken(&'static str),
    /// The name would not be one in configurations and names of files.
    #[error("{0:?} is no name for a protocol: 1 to 64 lower-case letters, digits and hyphens")]
    Malformed(&'static str),
    /// The maximum number of protocols is registered.
    #[error("256 protocols are registered already")]
    TooMany,
}

/// The registered protocols, in the order of their registration. It is the program's, since a name is read in a
/// configuration, in a log and in a message, where nothing else tells which protocols the program has.
static REGISTERED: RwLock<Vec<&'static Outside>> = RwLock::new(Vec::new());

fn registered() -> RwLockReadGuard<'static, Vec<&'static Outside>> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner)
}

/// The kinds of the protocols that were registered, with their names.
pub(crate) fn kinds() -> Vec<(&'static str, ProtocolKind)> {
    let places = (0..=u8::MAX).map(|place| ProtocolKind::Outside(Registered(place)));
    registered().iter().map(|outside| outside.name).zip(places).collect()
}

trait AnyBody: Body + Any + fmt::Debug + Send + Sync {}

impl<M: Body + Any + fmt::Debug + Send + Sync> AnyBody for M {}

trait AnyLogged: Logged + Any + fmt::Debug + Send + Sync {}

impl<R: Logged + Any + fmt::Debug + Send + Sync> AnyLogged for R {}

macro_rules! carried {
    ($(#[$doc:meta])* $name:ident, $any:ident: $base:ident, $decode:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name {
            of: &'static Outside,
            body: Arc<dyn $any>,
        }

        impl $name {
            /// The contents, if they are of type `T`.
            #[must_use]
            pub fn get<T: 'static>(&self) -> Option<&T> {
                let body: &dyn Any = &*self.body;
                body.downcast_ref()
            }

            pub(crate) fn body(&self) -> &dyn $base {
                &*self.body
            }

            pub(crate) fn encode_name(&self, writer: &mut Writer) {
                self.of.encode_name(writer);
            }

            pub(crate) fn decode(reader: &mut Reader) -> Result<$name, DecodeError> {
                let of = Outside::decode_name(reader)?;
                Ok($name { of, body: (of.$decode)(reader)? })
            }

            fn encoded(&self) -> bytes::Bytes {
                let mut writer = Writer::new();
                self.body.encode(&mut writer);
                writer.finish().to_bytes()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.body.fmt(f)
            }
        }

        /// Two are equal if their encodings are.
        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.of == other.of && self.encoded() == other.encoded()
            }
        }

        impl Eq for $name {}
    };
}

carried! {
    /// A message of a protocol from outside.
    OutsideMessage, AnyBody: Body, decode_message
}

carried! {
    /// A record of a protocol from outside.
    OutsideRecord, AnyLogged: Logged, decode_record
}
