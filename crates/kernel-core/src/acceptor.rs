//! An acceptor in user space.

use std::fmt;

use crate::{
    Message, NO_OP, Verdict,
    binding::{Ring, VALUE_WORDS},
};

/// The most bytes of a value: room for a name, not for a body.
pub const VALUE_BYTES_MAX: usize = VALUE_WORDS * 8;

/// A value as an acceptor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The value that fills a gap. It is a value: that it has no bytes says nothing (Kernel Paxos 2019, erratum E13).
    NoOp,
    /// A name, in the first bytes; the rest is zero.
    Name {
        /// How many bytes the name has.
        length: u16,
        /// The bytes.
        bytes: [u8; VALUE_BYTES_MAX],
    },
}

impl Value {
    /// The value with this name, of at most [`VALUE_BYTES_MAX`] bytes.
    #[must_use]
    pub fn name(name: &[u8]) -> Value {
        let mut bytes = [0; VALUE_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Value::Name { length: u16::try_from(name.len()).expect("it fits the bytes"), bytes }
    }

    fn words(self) -> [u64; VALUE_WORDS] {
        let Value::Name { bytes, .. } = self else { return [0; VALUE_WORDS] };
        let mut words = [0; VALUE_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8"));
        }
        words
    }

    fn of(message: &Message, words: [u64; VALUE_WORDS]) -> Value {
        if message.is_no_op() {
            return Value::NoOp;
        }
        let mut bytes = [0; VALUE_BYTES_MAX];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[usize::from(message.length)..].fill(0);
        Value::Name { length: message.length, bytes }
    }
}

/// An acceptor with a ring of slots. A new one has said nothing: it is another life than any earlier one.
#[derive(Clone, PartialEq, Eq)]
pub struct Acceptor(Ring);

impl Acceptor {
    /// An acceptor with this many slots, at least one.
    #[must_use]
    pub fn new(slots: u64) -> Acceptor {
        Acceptor(Ring::new(slots))
    }

    /// Handles a message, with the value that it proposes if it is one of phase 2. The reply comes with the value that
    /// was accepted, if anything was and the message did not say [`crate::BRIEF`].
    ///
    /// # Errors
    /// If there is no reply, and why.
    pub fn handle(
        &mut self,
        message: Message,
        proposed: Option<Value>,
    ) -> Result<(Message, Option<Value>), Verdict> {
        let mut message = Message { length: 0, ..message };
        match proposed {
            Some(Value::NoOp) => message.flags |= NO_OP,
            Some(Value::Name { length, .. }) => message.length = length,
            None => {}
        }
        let (reply, words) = self.0.handle(&message, proposed.map_or([0; VALUE_WORDS], Value::words))?;
        let has_value = reply.value_ballot != 0 && reply.flags & crate::BRIEF == 0;
        let tells = matches!(reply.kind(), Some(crate::Type::Promise | crate::Type::Accepted));
        Ok((reply, (has_value && tells).then(|| Value::of(&reply, words))))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}
