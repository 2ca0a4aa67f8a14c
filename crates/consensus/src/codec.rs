//! How messages and records are written: field after field, each in the way of its type, after a number for the kind.
//!
//! A message or record is written once: [`messages!`], `records!` and `fields!` make its bytes, its text, its class and
//! what it claims. The order of fields is the order of bytes, and `tests/encoding.txt` of each folder holds that fixed.

use std::{fmt::Debug, sync::Arc};

use synod_wire::{Ballot, Ballots, Batch, DecodeError, Incarnation, Reader, ReplicaId, Slot, Writer};

use crate::{
    BatchText,
    batches::{read_batches, write_batches},
};

/// A field of a message or of a record.
pub trait Field: Sized + Debug {
    /// Writes the field.
    fn write(&self, writer: &mut Writer);

    /// Reads what [`Field::write`] wrote; `name` is for people.
    ///
    /// # Errors
    /// If the bytes are no such field.
    fn read(reader: &mut Reader, name: &'static str) -> Result<Self, DecodeError>;

    /// The field with its name, as text for people.
    fn text(&self, name: &'static str, _batch: BatchText<'_>) -> String {
        format!("{name} {self:?}")
    }

    /// Shows every batch that the field holds.
    fn for_each_batch(&self, _see: &mut dyn FnMut(&Batch)) {}
}

macro_rules! plain {
    ($($type:ty: $value:ident => $write:ident($written:expr), |$reader:ident, $name:ident| $read:expr $(, as $text:literal)?;)+) => {
        $(
            impl Field for $type {
                fn write(&self, writer: &mut Writer) {
                    let $value = self;
                    writer.$write($written);
                }

                fn read($reader: &mut Reader, $name: &'static str) -> Result<$type, DecodeError> {
                    $read
                }
                $(
                    fn text(&self, name: &'static str, _: BatchText<'_>) -> String {
                        format!($text, name = name, value = self)
                    }
                )?
            }
        )+
    };
}

plain! {
    u8: value => u8(*value), |reader, name| reader.u8(name);
    u32: value => u32(*value), |reader, name| reader.u32(name);
    u64: value => u64(*value), |reader, name| reader.u64(name);
    bool: value => bool(*value), |reader, name| reader.bool(name);
    Slot: value => slot(*value), |reader, name| reader.slot(name), as "{name} {value}";
    Ballot: value => ballot(*value), |reader, name| reader.ballot(name), as "{name} {value}";
    Ballots: value => ballots(*value), |reader, name| reader.ballots(name);
    ReplicaId: value => replica(*value), |reader, name| reader.replica(name), as "{name} {value}";
    Incarnation: value => u64(value.0), |reader, name| reader.u64(name).map(Incarnation);
    // Slot 0 is never proposed, so it can stand for "none".
    Option<Slot>: value => slot(value.unwrap_or(Slot::ZERO)),
        |reader, name| Ok(Some(reader.slot(name)?).filter(|&slot| slot != Slot::ZERO));
    // Replica numbers start at 1.
    Option<ReplicaId>: value => replica(value.unwrap_or_default()),
        |reader, name| Ok(Some(reader.replica(name)?).filter(|id| id.0 != 0));
}

impl Field for Batch {
    fn write(&self, writer: &mut Writer) {
        writer.batch(self);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Batch, DecodeError> {
        reader.batch(name)
    }

    fn text(&self, _: &'static str, batch: BatchText<'_>) -> String {
        batch(self)
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        see(self);
    }
}

impl<T: Field> Field for Box<T> {
    fn write(&self, writer: &mut Writer) {
        (**self).write(writer);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Box<T>, DecodeError> {
        T::read(reader, name).map(Box::new)
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        (**self).for_each_batch(see);
    }
}

impl Field for Arc<[Batch]> {
    fn write(&self, writer: &mut Writer) {
        write_batches(writer, self);
    }

    fn read(reader: &mut Reader, _: &'static str) -> Result<Arc<[Batch]>, DecodeError> {
        read_batches(reader)
    }

    fn text(&self, _: &'static str, batch: BatchText<'_>) -> String {
        self.iter().map(batch).collect::<Vec<_>>().join("; ")
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        self.iter().for_each(see);
    }
}

impl<T: Field> Field for Vec<T> {
    fn write(&self, writer: &mut Writer) {
        writer.u32(u32::try_from(self.len()).expect("a message is small"));
        self.iter().for_each(|value| value.write(writer));
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Vec<T>, DecodeError> {
        // The count is not trusted: nothing is reserved for it.
        let count = reader.u32(name)?;
        (0..count).map(|_| T::read(reader, name)).collect()
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        self.iter().for_each(|value| value.for_each_batch(see));
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn write(&self, writer: &mut Writer) {
        self.0.write(writer);
        self.1.write(writer);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<(A, B), DecodeError> {
        Ok((A::read(reader, name)?, B::read(reader, name)?))
    }

    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        self.0.for_each_batch(see);
        self.1.for_each_batch(see);
    }
}

/// A struct is its fields, in the order in which they are listed; with their types, the struct is declared as well.
macro_rules! fields {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $type:ident {
            $($(#[$field_doc:meta])* $field_visibility:vis $field:ident: $field_type:ty),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        $visibility struct $type {
            $($(#[$field_doc])* $field_visibility $field: $field_type,)+
        }

        $crate::codec::fields! { $type { $($field),+ } }
    };
    ($type:ident { $($field:ident),+ }) => {
        impl $crate::codec::Field for $type {
            fn write(&self, writer: &mut synod_wire::Writer) {
                $($crate::codec::Field::write(&self.$field, writer);)+
            }

            fn read(
                reader: &mut synod_wire::Reader,
                _: &'static str,
            ) -> Result<$type, synod_wire::DecodeError> {
                $(let $field = $crate::codec::Field::read(reader, stringify!($field))?;)+
                Ok($type { $($field),+ })
            }

            fn for_each_batch(&self, see: &mut dyn FnMut(&synod_wire::Batch)) {
                $($crate::codec::Field::for_each_batch(&self.$field, see);)+
            }
        }
    };
}
pub(crate) use fields;

/// An enum is a number for its kind, and the fields of that kind in their order. What is read is still to be checked by
/// the function that is named at the end, if one is.
#[doc(hidden)]
#[macro_export]
macro_rules! tagged {
    (
        $type:ident {
            $($tag:literal = $kind:ident $({ $($field:ident),* })? $(($only:ident))?;)+
        }
        $($check:path)?
    ) => {
        impl $crate::Field for $type {
            fn write(&self, writer: &mut $crate::wire::Writer) {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        writer.u8($tag);
                        $($($crate::Field::write($field, writer);)*)?
                        $($crate::Field::write($only, writer);)?
                    })+
                }
            }

            fn read(
                reader: &mut $crate::wire::Reader,
                name: &'static str,
            ) -> Result<$type, $crate::wire::DecodeError> {
                let read = match reader.u8(name)? {
                    $($tag => {
                        $($(let $field = $crate::Field::read(reader, stringify!($field))?;)*)?
                        $(let $only = $crate::Field::read(reader, stringify!($only))?;)?
                        $type::$kind $({ $($field),* })? $(($only))?
                    })+
                    value => {
                        return Err($crate::wire::DecodeError::Undefined { field: name, value: value.into() });
                    }
                };
                $($check(&read)?;)?
                Ok(read)
            }

            #[allow(unused_variables, reason = "not every enum holds batches")]
            fn for_each_batch(&self, see: &mut dyn FnMut(&$crate::wire::Batch)) {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        $($($crate::Field::for_each_batch($field, see);)*)?
                        $($crate::Field::for_each_batch($only, see);)?
                    })+
                }
            }
        }
    };
}

/// An enum as text for people: of each kind the text that is given, or its name with all fields.
#[doc(hidden)]
#[macro_export]
macro_rules! described {
    (
        $type:ident $(with $batch:ident)? {
            $($kind:ident $({ $($field:ident),* })? $(($only:ident))? $(= $text:tt)?;)+
        }
    ) => {
        impl $crate::Describe for $type {
            #[allow(unused_variables, reason = "not every text has every field")]
            fn describe(&self, batch: $crate::BatchText<'_>) -> String {
                $(let $batch = batch;)?
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        $crate::text_of!(batch; $kind $($($field)*)? $($only)?; $($text)?)
                    })+
                }
            }
        }
    };
}

/// The text of one kind: a format, a format with its arguments, or a block.
#[doc(hidden)]
#[macro_export]
macro_rules! text_of {
    ($batch:expr; $kind:ident $($field:ident)*; ) => {{
        let fields: &[String] = &[$($crate::Field::text($field, stringify!($field), $batch)),*];
        format!("{} {}", stringify!($kind), fields.join(", "))
    }};
    ($batch:expr; $kind:ident $($field:ident)*; $text:literal) => {
        format!($text)
    };
    ($batch:expr; $kind:ident $($field:ident)*; ($($text:tt)*)) => {
        format!($($text)*)
    };
    ($batch:expr; $kind:ident $($field:ident)*; { $($text:tt)* }) => {{
        $($text)*
    }};
}

/// Declares the messages of a protocol: for each kind its number on the wire, the [`crate::Class`] that says its
/// purpose, what it claims, its text for people, its name and its fields, whose order is that of the bytes. `of` names
/// the [`crate::Outside`] whose messages they are, for a protocol from outside.
///
/// ```
/// # use synod_consensus::{Claim, ElectionKind, Outside, SlotRecord, Survives};
/// # use synod_wire::{Ballot, Slot};
/// # static MINE: Outside = Outside::new::<Message, SlotRecord>(
/// #     "mine", &[ElectionKind::None], Survives::NOTHING_ELSE, |_, _, _, _, _| unreachable!());
/// synod_consensus::messages! {
///     /// What replicas say to each other.
///     pub enum Message of MINE {
///         /// The sender has accepted what was proposed.
///         1, Vote, claims Vote: Accepted { ballot: Ballot, slot: Slot },
///         /// The sender wants to lead.
///         2, Prepare, claims [Claim::Candidate(*ballot)], text "wants to lead in {ballot}":
///         Prepare { ballot: Ballot },
///         /// The sender follows.
///         3, HeartbeatAnswer: Follows { ballot: Ballot },
///     }
/// }
/// ```
///
/// Each field is a [`crate::Field`]. The messages are a [`crate::Body`], so they travel, and people can read them; and
/// [`crate::Effects::send`] takes them.
///
/// A message that `claims Vote` claims [`crate::Claim::Vote`], and has the fields of that claim. One that `claims [..]`
/// makes these claims, and one that `claims {..}` the list that this block returns; in both the fields stand by name.
/// One that `claims by` a method of the messages claims what that returns. One without any of these claims nothing that
/// is checked. `term_claims` takes a list or a block, of claims about terms.
///
/// A `text` is a format that names fields, or one in parentheses with its arguments, or a block; without one the text
/// has all fields. Behind the list may stand `described with NAME;`, by which texts write batches
/// ([`crate::BatchText`]); `checked by FUNCTION;`, for messages that were read; and methods of [`crate::Body`] and
/// [`crate::Claims`] in blocks that are named `body` and `claims`.
#[macro_export]
macro_rules! messages {
    (
        $(#[$doc:meta])*
        $visibility:vis enum $type:ident of $of:ident { $($kinds:tt)* }
        $($rest:tt)*
    ) => {
        $crate::messages! {
            $(#[$doc])*
            #[allow(missing_docs, reason = "the types of the fields say what they are")]
            $visibility enum $type, "kind of message" { $($kinds)* }
            $($rest)*
        }

        impl From<$type> for $crate::Message {
            fn from(message: $type) -> $crate::Message {
                $of.message(message)
            }
        }
    };
    (
        $(#[$doc:meta])*
        $visibility:vis enum $type:ident, $what:literal {
            $(
                $(#[$kind_doc:meta])*
                $tag:literal, $class:ident
                $(, claims $claim:tt $($by:ident)?)?
                $(, term_claims $term_claim:tt)?
                $(, text $text:tt)?
                : $kind:ident
                $({ $($(#[$field_doc:meta])* $field:ident: $field_type:ty),* $(,)? })?
                $(($only:ident: $only_type:ty))?
            ),+ $(,)?
        }
        $(described with $batch:ident;)?
        $(checked by $check:path;)?
        $(body { $($body:tt)* })?
        $(claims { $($claims:tt)* })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $visibility enum $type {
            $(
                $(#[$kind_doc])*
                $kind $({ $($(#[$field_doc])* $field: $field_type),* })? $(($only_type))?,
            )+
        }

        $crate::tagged! {
            $type { $($tag = $kind $({ $($field),* })? $(($only))?;)+ }
            $($check)?
        }

        $crate::described! {
            $type $(with $batch)? { $($kind $({ $($field),* })? $(($only))? $(= $text)?;)+ }
        }

        impl $crate::Body for $type {
            fn encode(&self, writer: &mut $crate::wire::Writer) {
                $crate::Field::write(self, writer);
            }

            fn decode(reader: &mut $crate::wire::Reader) -> Result<$type, $crate::wire::DecodeError> {
                $crate::Field::read(reader, $what)
            }

            fn for_each_batch(&self, see: &mut dyn FnMut(&$crate::wire::Batch)) {
                $crate::Field::for_each_batch(self, see);
            }

            fn class(&self) -> $crate::Class {
                match self { $($type::$kind { .. } => $crate::Class::$class,)+ }
            }

            $($($body)*)?
        }

        impl $crate::Claims for $type {
            #[allow(unused_variables, reason = "not every message makes a claim of its fields")]
            fn claims(&self) -> Vec<$crate::Claim<'_>> {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        $crate::claims_of!(self; $($claim $($by)?)?; $($($field)*)?)
                    })+
                }
            }

            #[allow(unused_variables, reason = "not every message makes a claim of its fields")]
            fn term_claims(&self) -> Vec<$crate::TermClaim<'_>> {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        $crate::claims_of!(self; $($term_claim)?; $($($field)*)?)
                    })+
                }
            }

            $($($claims)*)?
        }
    };
}

/// What one message of [`messages!`] claims.
#[doc(hidden)]
#[macro_export]
macro_rules! claims_of {
    ($message:expr; ; $($field:ident)*) => {
        Vec::new()
    };
    ($message:expr; by $claims:ident; $($field:ident)*) => {
        $message.$claims()
    };
    ($message:expr; $claim:ident; $($field:ident)*) => {
        vec![$crate::Claim::$claim { $($field: $crate::Claimed::claimed($field)),* }]
    };
    ($message:expr; [$($claim:tt)*]; $($field:ident)*) => {
        vec![$($claim)*]
    };
    ($message:expr; { $($claims:tt)* }; $($field:ident)*) => {{
        $($claims)*
    }};
}

/// Declares the records of a protocol as [`messages!`] does messages: for each kind its number on the disk, how long it
/// is kept, the fact that it remembers, its text for people, its name and its fields. What the numbers say of slots,
/// decisions and a lost log is written out in blocks that are named `logged` and `facts`.
macro_rules! records {
    (
        $(#[$doc:meta])*
        $visibility:vis enum $type:ident, $what:literal {
            $(
                $(#[$kind_doc:meta])*
                $tag:literal, keep $keep:expr
                $(, fact $fact:expr)?
                $(, term_fact $term_fact:expr)?
                , text $text:tt
                : $kind:ident
                $({ $($(#[$field_doc:meta])* $field:ident: $field_type:ty),* $(,)? })?
                $(($only:ident: $only_type:ty))?
            ),+ $(,)?
        }
        $(described with $batch:ident;)?
        $(checked by $check:path;)?
        logged { $($logged:tt)* }
        $(facts { $($facts:tt)* })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $visibility enum $type {
            $(
                $(#[$kind_doc])*
                $kind $({ $($(#[$field_doc])* $field: $field_type),* })? $(($only_type))?,
            )+
        }

        $crate::tagged! {
            $type { $($tag = $kind $({ $($field),* })? $(($only))?;)+ }
            $($check)?
        }

        $crate::described! {
            $type $(with $batch)? { $($kind $({ $($field),* })? $(($only))? = $text;)+ }
        }

        impl $crate::Logged for $type {
            fn encode(&self, writer: &mut synod_wire::Writer) {
                $crate::Field::write(self, writer);
            }

            fn decode(reader: &mut synod_wire::Reader) -> Result<$type, synod_wire::DecodeError> {
                $crate::Field::read(reader, $what)
            }

            #[allow(unused_variables, reason = "not every field says how long the record is kept")]
            fn keep(&self) -> synod_wire::Keep {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => $keep,)+
                }
            }

            $($logged)*
        }

        impl $crate::Facts for $type {
            #[allow(unused_variables, reason = "not every field is a part of the fact")]
            fn fact(&self) -> $crate::Fact {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        $crate::codec::fact_of!($($fact)?; $crate::Fact::Nothing)
                    })+
                }
            }

            #[allow(unused_variables, reason = "not every field is a part of the fact")]
            fn term_fact(&self) -> $crate::TermFact {
                match self {
                    $($type::$kind $({ $($field),* })? $(($only))? => {
                        $crate::codec::fact_of!($($term_fact)?; $crate::TermFact::Nothing)
                    })+
                }
            }

            $($($facts)*)?
        }
    };
}
pub(crate) use records;

/// What one record of [`records!`] remembers.
macro_rules! fact_of {
    (; $nothing:expr) => {
        $nothing
    };
    ($fact:expr; $nothing:expr) => {
        $fact
    };
}
pub(crate) use fact_of;
