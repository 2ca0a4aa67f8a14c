//! Reading and writing within a time that the other side cannot stretch.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use synod_sync::time::Instant;

use crate::{handshake::HandshakeError, stream::Stream};

/// The time within which a whole exchange must end, however slowly its bytes arrive.
pub(crate) struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Deadline {
        Deadline { at: Instant::now() + timeout, timeout }
    }

    fn remaining(&self) -> Result<Duration, HandshakeError> {
        let remaining = self.at.saturating_duration_since(Instant::now());
        if remaining.is_zero() { Err(HandshakeError::Timeout(self.timeout)) } else { Ok(remaining) }
    }

    fn error(&self, error: io::Error) -> HandshakeError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HandshakeError::Timeout(self.timeout),
            _ => HandshakeError::Io(error),
        }
    }

    /// Reads the bytes that are there; returns 0 at the end of the stream.
    pub(crate) fn read_some(&self, mut stream: &Stream, target: &mut [u8]) -> Result<usize, HandshakeError> {
        loop {
            stream.socket().set_read_timeout(Some(self.remaining()?))?;
            match stream.read(target) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| self.error(error)),
            }
        }
    }

    /// Writes all of `bytes`, however slowly the other side takes them, before the deadline.
    pub(crate) fn write(&self, mut stream: &Stream, mut bytes: &[u8]) -> Result<(), HandshakeError> {
        let usual = stream.socket().write_timeout()?;
        while !bytes.is_empty() {
            stream.socket().set_write_timeout(Some(self.remaining()?))?;
            match stream.write(bytes) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(stream.socket().set_write_timeout(usual)?)
    }

    /// Fills `target`. A wrong magic number is noticed at its first wrong byte, without waiting for the rest.
    pub(crate) fn read(
        &self,
        stream: &Stream,
        target: &mut [u8],
        magic: Option<[u8; 4]>,
    ) -> Result<(), HandshakeError> {
        let mut filled = 0;
        while filled < target.len() {
            match self.read_some(stream, &mut target[filled..])? {
                0 => return Err(HandshakeError::Closed),
                count => filled += count,
            }
            let have = filled.min(4);
            if magic.is_some_and(|magic| target[..have] != magic[..have]) {
                let mut found = [0; 4];
                found[..have].copy_from_slice(&target[..have]);
                return Err(HandshakeError::Magic(found));
            }
        }
        Ok(())
    }
}
