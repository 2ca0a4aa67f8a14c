//! The functions of `acceptor.c` and `frame.c`. Everything unsafe is here; what each call needs stands beside it.
#![expect(unsafe_code, reason = "C is called")]

use crate::{Message, Verdict};

mod c {
    use crate::Message;

    unsafe extern "C" {
        pub(super) fn synod_kernel_bytes(slots: u64) -> u64;
        pub(super) fn synod_kernel_begin(ring: *mut u64, slots: u64);
        pub(super) fn synod_kernel_handle(
            ring: *mut u64,
            message: *const Message,
            proposed: *const u64,
            reply: *mut Message,
            value: *mut u64,
        ) -> u32;
        pub(super) fn synod_kernel_parse(frame: *const u8, bytes: u32, message: *mut Message) -> u32;
        pub(super) fn synod_kernel_write(frame: *mut u8, message: *const Message);
    }
}

/// The words of a value, as many as the C of the acceptor copies.
pub(crate) const VALUE_WORDS: usize = 2;
/// The bytes of a header.
pub(crate) const HEADER_BYTES: usize = 56;

/// The memory of an acceptor: as many whole words as its ring of this many slots takes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Ring(Box<[u64]>);

impl Ring {
    /// The memory of an acceptor that has said nothing.
    pub(crate) fn new(slots: u64) -> Ring {
        assert!(slots > 0, "an instance modulo the number of slots is its slot");
        assert!(slots <= u64::from(u32::MAX), "the bytes of a ring are counted in 64 bits");
        // SAFETY: the function computes, and touches no memory.
        let bytes = unsafe { c::synod_kernel_bytes(slots) };
        let words = usize::try_from(bytes.div_ceil(8)).expect("a ring fits memory");
        let mut ring = Ring(vec![0; words].into());
        // SAFETY: the memory is zeroed, aligned to 8 bytes, and as large as the function above says.
        unsafe { c::synod_kernel_begin(ring.0.as_mut_ptr(), slots) };
        ring
    }

    /// Handles a message with the value that it carries.
    pub(crate) fn handle(
        &mut self,
        message: &Message,
        proposed: [u64; VALUE_WORDS],
    ) -> Result<(Message, [u64; VALUE_WORDS]), Verdict> {
        assert!(usize::from(message.length) <= VALUE_WORDS * 8, "the value fits its slot");
        let (mut reply, mut value) = (Message::default(), [0; VALUE_WORDS]);
        // SAFETY: the ring was made by `new`, and nothing else refers to it; the length of the value, which bounds what
        // is copied in and out, was checked against both arrays.
        let verdict = unsafe {
            c::synod_kernel_handle(
                self.0.as_mut_ptr(),
                message,
                proposed.as_ptr(),
                &mut reply,
                value.as_mut_ptr(),
            )
        };
        match self::verdict(verdict) {
            Verdict::Ok => Ok((reply, value)),
            refused => Err(refused),
        }
    }
}

/// Reads the header of a frame.
pub(crate) fn parse(frame: &[u8]) -> Result<Message, Verdict> {
    let mut message = Message::default();
    let bytes = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    // SAFETY: the function reads at most `bytes` bytes of the frame, which has as many or more.
    let verdict = unsafe { c::synod_kernel_parse(frame.as_ptr(), bytes, &mut message) };
    match self::verdict(verdict) {
        Verdict::Ok => Ok(message),
        refused => Err(refused),
    }
}

/// Writes a header.
pub(crate) fn write(message: &Message) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    // SAFETY: the function writes a header, for which there is room.
    unsafe { c::synod_kernel_write(header.as_mut_ptr(), message) };
    header
}

fn verdict(number: u32) -> Verdict {
    u8::try_from(number).ok().and_then(Verdict::of).expect("the C has no other verdicts")
}
