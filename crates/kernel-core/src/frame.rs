//! Messages as bytes: a fixed header and a value. `kernel/core/frame.h` draws the layout.

use crate::{Message, Verdict, binding};

/// The bytes of a header.
pub const HEADER_BYTES: usize = binding::HEADER_BYTES;
/// The most bytes of a value, so that a frame fits an Ethernet frame that is no jumbo.
pub const VALUE_BYTES_MAX: usize = 1500 - HEADER_BYTES;

/// Reads a frame, which may be padded: the message and its value.
///
/// # Errors
/// If the frame is to be dropped, and why.
pub fn read(frame: &[u8]) -> Result<(Message, &[u8]), Verdict> {
    let message = binding::parse(frame)?;
    let value = frame[HEADER_BYTES..].get(..message.length.into());
    Ok((message, value.ok_or(Verdict::BadLength)?))
}

/// Writes a frame, with a value of at most [`VALUE_BYTES_MAX`] bytes.
///
/// # Errors
/// If the value is longer: nothing is ever cut.
pub fn write(message: &Message, value: &[u8]) -> Result<Vec<u8>, Verdict> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Verdict::BadLength);
    }
    let length = u16::try_from(value.len()).map_err(|_| Verdict::BadLength)?;
    let mut frame = binding::write(&Message { length, ..*message }).to_vec();
    frame.extend_from_slice(value);
    Ok(frame)
}
