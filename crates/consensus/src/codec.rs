//! How messages and records are written: field after field, each in the way of its type, after a number for the kind.
//!
//! The order of fields in [`coded!`] and [`fields!`] is the order of bytes; `tests/encoding.txt` of each folder holds
//! it fixed.

use std::sync::Arc;

use synod_wire::{Ballot, Ballots, Batch, DecodeError, Incarnation, Reader, ReplicaId, Slot, Writer};

use crate::batches::{read_batches, write_batches};

/// A field of a message or of a record.
pub(crate) trait Field: Sized {
    fn write(&self, writer: &mut Writer);

    /// Reads what [`Field::write`] wrote; `name` is for people.
    fn read(reader: &mut Reader, name: &'static str) -> Result<Self, DecodeError>;
}

macro_rules! plain {
    ($($type:ty: $value:ident => $write:ident($written:expr), |$reader:ident, $name:ident| $read:expr;)+) => {
        $(
            impl Field for $type {
                fn write(&self, writer: &mut Writer) {
                    let $value = self;
                    writer.$write($written);
                }

                fn read($reader: &mut Reader, $name: &'static str) -> Result<$type, DecodeError> {
                    $read
                }
            }
        )+
    };
}

plain! {
    u8: value => u8(*value), |reader, name| reader.u8(name);
    u64: value => u64(*value), |reader, name| reader.u64(name);
    bool: value => bool(*value), |reader, name| reader.bool(name);
    Slot: value => slot(*value), |reader, name| reader.slot(name);
    Ballot: value => ballot(*value), |reader, name| reader.ballot(name);
    Ballots: value => ballots(*value), |reader, name| reader.ballots(name);
    Batch: value => batch(value), |reader, name| reader.batch(name);
    ReplicaId: value => replica(*value), |reader, name| reader.replica(name);
    Incarnation: value => u64(value.0), |reader, name| reader.u64(name).map(Incarnation);
    // Slot 0 is never proposed, so it can stand for "none".
    Option<Slot>: value => slot(value.unwrap_or(Slot::ZERO)),
        |reader, name| Ok(Some(reader.slot(name)?).filter(|&slot| slot != Slot::ZERO));
    // Replica numbers start at 1.
    Option<ReplicaId>: value => replica(value.unwrap_or_default()),
        |reader, name| Ok(Some(reader.replica(name)?).filter(|id| id.0 != 0));
}

impl Field for Arc<[Batch]> {
    fn write(&self, writer: &mut Writer) {
        write_batches(writer, self);
    }

    fn read(reader: &mut Reader, _: &'static str) -> Result<Arc<[Batch]>, DecodeError> {
        read_batches(reader)
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
}

impl<A: Field, B: Field> Field for (A, B) {
    fn write(&self, writer: &mut Writer) {
        self.0.write(writer);
        self.1.write(writer);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<(A, B), DecodeError> {
        Ok((A::read(reader, name)?, B::read(reader, name)?))
    }
}

/// A struct is its fields, in the order in which they are listed.
macro_rules! fields {
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
        }
    };
}
pub(crate) use fields;

/// `encode` and `decode` of a message or record: for each kind its number, and its fields in their order. What is
/// decoded is still to be checked by the function that is named at the end, if one is.
macro_rules! coded {
    (
        $type:ident, $what:literal:
        $($tag:literal = $kind:ident $({ $($field:ident),+ })? $(($only:ident))?;)+
        $(checked by $check:path)?
    ) => {
        fn encode(&self, writer: &mut synod_wire::Writer) {
            match self {
                $($type::$kind $({ $($field),+ })? $(($only))? => {
                    writer.u8($tag);
                    $($($crate::codec::Field::write($field, writer);)+)?
                    $($crate::codec::Field::write($only, writer);)?
                })+
            }
        }

        fn decode(reader: &mut synod_wire::Reader) -> Result<$type, synod_wire::DecodeError> {
            let decoded = match reader.u8($what)? {
                $($tag => {
                    $($(let $field = $crate::codec::Field::read(reader, stringify!($field))?;)+)?
                    $(let $only = $crate::codec::Field::read(reader, stringify!($only))?;)?
                    $type::$kind $({ $($field),+ })? $(($only))?
                })+
                value => {
                    return Err(synod_wire::DecodeError::Undefined { field: $what, value: value.into() });
                }
            };
            $($check(&decoded)?;)?
            Ok(decoded)
        }
    };
}
pub(crate) use coded;
