//! What a target is.

/// One part of Synod that reads bytes, and what must hold for all of them.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name: the place that the bytes come from, and what reads them.
    pub name: &'static str,
    /// What the target runs, and what it checks besides that nothing panics and that memory is bounded.
    pub about: &'static str,
    /// Runs the target on one input. What must hold is asserted, so that a panic is a finding.
    pub run: fn(&[u8]) -> Verdict,
    /// Inputs that the encoders make, with their names.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// What an input may use.
    pub memory: Memory,
    /// Texts that mean something in the format, for mutations.
    pub words: &'static [&'static [u8]],
}

/// The memory that an input may use: that much at a time in bytes, and that many allocations in all. The second is a
/// count of steps too: it bounds the time that an input takes, since what reads bytes allocates as it goes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// For any input.
    pub base: usize,
    /// For each byte of the input.
    pub times: usize,
}

impl Memory {
    /// No limit, for programs whose allocator does not count.
    pub const UNLIMITED: Memory = Memory { base: usize::MAX, times: 0 };
}

/// What a target says of an input. Only inputs with new answers are kept for further mutations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The input means something; the text says what kind of thing, or what it did.
    Accepted(String),
    /// The input was refused for this reason.
    Refused(String),
}
