//! The golden frames, which C and the XDP program read too (K2, E10 of Kernel Paxos 2019): every type, with values of 0
//! and 1 bytes and of as many as fit. What is expected is written here by itself, and not taken from the C.

use synod_kernel_core::{Message, NO_OP, Type, Verdict, frame};

const NAMES: [&str; 15] = [
    "prepare",
    "promise",
    "accept",
    "accepted",
    "preempted",
    "repeat",
    "trim",
    "state",
    "client-value",
    "learner-hi",
    "learner-del",
    "acceptor-ok",
    "prepare-all",
    "promise-all",
    "outside",
];

fn golden() -> Vec<(Type, Vec<u8>)> {
    let bytes = |text: &str| -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    };
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (name, length) = (words.next().unwrap(), words.next().unwrap().parse::<usize>().unwrap());
        let number = 1 + NAMES.iter().position(|known| *known == name).expect(name);
        let frame = bytes(words.next().unwrap());
        assert_eq!(frame.len(), frame::HEADER_BYTES + length, "{name}");
        (Type::of(u8::try_from(number).unwrap()).unwrap(), frame)
    };
    include_str!("../c/frames.txt").lines().map(line).collect()
}

/// A big-endian number at a place of a frame.
fn number(frame: &[u8], at: usize, bytes: usize) -> u64 {
    frame[at..at + bytes].iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The message by the layout in the head of `frame.h`.
fn twin(frame: &[u8]) -> Message {
    let part = |at, bytes| number(frame, at, bytes);
    Message {
        flags: frame[3],
        sender: part(12, 2) as u16,
        group: part(14, 2) as u16,
        length: part(52, 2) as u16,
        cluster: part(4, 4) as u32,
        boot: part(8, 4) as u32,
        epoch: part(48, 4) as u32,
        instance: part(16, 8),
        ballot: part(24, 8),
        value_ballot: part(32, 8),
        extra: part(40, 8),
        ..Message::new(Type::of(frame[2]).unwrap())
    }
}

#[test]
fn each_golden_frame_is_read_and_written_as_it_is() {
    let golden = golden();
    for (kind, bytes) in &golden {
        let (message, value) = frame::read(bytes).unwrap();
        assert_eq!((message, message.kind()), (twin(bytes), Some(*kind)));
        let filled = (0..value.len()).map(|at| (at * 31 + 7) as u8);
        assert!(value.iter().copied().eq(filled), "{kind:?}: the value is whole");
        assert_eq!(frame::write(&message, value).as_ref(), Ok(bytes));
        // The last byte of a value counts: one less, and the frame is cut (E10).
        let cut = frame::read(&bytes[..bytes.len() - 1]);
        assert_eq!(cut.err(), Some(if value.is_empty() { Verdict::Short } else { Verdict::BadLength }));
        // Ethernet pads: the length is the header's.
        let mut padded = bytes.clone();
        padded.extend([0xff; 46]);
        assert_eq!(frame::read(&padded), Ok((message, value)));
    }
    for kind in Type::ALL {
        assert!(golden.iter().any(|(of, _)| of == kind), "{kind:?} has a frame");
    }
    let longest = golden.iter().map(|(_, bytes)| bytes.len()).max();
    assert_eq!(longest, Some(frame::HEADER_BYTES + frame::VALUE_BYTES_MAX));
    assert!(golden.iter().any(|(kind, bytes)| *kind == Type::Accepted && bytes[3] == NO_OP));
}

#[test]
fn a_value_that_does_not_fit_is_refused_and_never_cut() {
    let message = Message::new(Type::ClientValue);
    let value = vec![7; frame::VALUE_BYTES_MAX + 1];
    assert_eq!(frame::write(&message, &value), Err(Verdict::BadLength));
    assert_eq!(frame::write(&message, &vec![7; 1 << 16]), Err(Verdict::BadLength));
    let whole = frame::write(&message, &value[1..]).unwrap();
    assert_eq!(frame::read(&whole).unwrap().1.len(), frame::VALUE_BYTES_MAX);
}

#[test]
fn any_bytes_are_read_or_dropped_with_a_reason() {
    let golden = golden();
    let mut random = fastrand::Rng::with_seed(1);
    let mut verdicts = std::collections::HashSet::new();
    for _ in 0..20_000 {
        let mut bytes = golden[random.usize(..golden.len())].1.clone();
        for _ in 0..random.usize(..4) {
            let at = random.usize(..frame::HEADER_BYTES);
            bytes[at] = random.u8(..);
        }
        if random.u8(..4) == 0 {
            bytes.truncate(random.usize(..=bytes.len()));
        }
        match frame::read(&bytes) {
            Ok((message, value)) => assert_eq!(usize::from(message.length), value.len()),
            Err(verdict) => _ = verdicts.insert(verdict),
        }
    }
    let parsed = [
        Verdict::Short,
        Verdict::BadMagic,
        Verdict::BadVersion,
        Verdict::BadType,
        Verdict::BadFlags,
        Verdict::BadLength,
    ];
    assert!(parsed.iter().all(|verdict| verdicts.contains(verdict)), "{verdicts:?}");
}
