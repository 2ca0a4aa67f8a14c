//! What comes from other replicas.

use bytes::Bytes;
use synod_consensus::Options;
use synod_node::{Origin, fuzzing::open_bundle};
use synod_replica::{Group, PeerMessage, Take};
use synod_transport::fuzzing;
use synod_wire::{ClusterId, GroupId, Lsn, MESSAGES_VERSION, MESSAGES_VERSION_OLDEST, ReplicaId, Writer};

use super::{Memory, Target, Verdict, hex_lines, kind, numbered};

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "peer-call",
        about: "the first bytes of a connection from a replica or an inquirer; a hello that is written again says the same",
        run: call,
        seeds: || vec![("hello".into(), sealed(fuzzing::hello())), ("inquiry".into(), sealed(inquiry()))],
        memory: Memory { base: 32 << 10, times: 8 },
        words: &[b"SYNO", &[0x16, 3, 1]],
    },
    Target {
        name: "peer-welcome",
        about: "the answer of a replica that was called; a welcome that is written again says the same",
        run: welcome,
        seeds: || {
            let mut refused = fuzzing::welcome();
            (refused[6], refused[24]) = (9, 36);
            refused.truncate(24 + 2 + 34 + 4);
            vec![("welcome".into(), sealed(fuzzing::welcome())), ("refusal".into(), sealed(refused))]
        },
        memory: Memory { base: 32 << 10, times: 8 },
        words: &[b"SYNA"],
    },
    Target {
        name: "peer-answer",
        about: "the answer to an inquiry: its frame, and the cluster in it",
        run: answer,
        seeds: || {
            numbered("", origins().into_iter().map(|(name, origin)| (name, sealed(fuzzing::answer(&origin)))))
        },
        // An answer announces a mebibyte at most, for which there is room before it has come.
        memory: Memory { base: 2 << 20, times: 64 },
        words: &[b"SYNA"],
    },
    Target {
        name: "peer-frames",
        about: "frames, in pieces of any size; a frame that is written again has the same bytes",
        run: frames,
        seeds: frame_seeds,
        // A header announces a mebibyte at most here, for which there is room before the body has come.
        memory: Memory { base: 2 << 20, times: 16 },
        words: &[b"SYNF"],
    },
    Target {
        name: "peer-bundle",
        about: "small messages of several groups in one frame, and each of these messages",
        run: bundle,
        seeds: || {
            let mut writer = Writer::new();
            for (group, (_, message)) in (0..).zip(surrounding()) {
                writer.u32(group);
                writer.bytes(&message);
            }
            vec![("all".into(), writer.finish().to_bytes().to_vec())]
        },
        memory: Memory { base: 32 << 10, times: 64 },
        words: &[],
    },
    Target {
        name: "peer-message",
        about: "messages of all protocols and of what surrounds them, in each version; a message that is written again is the same",
        run: message,
        seeds: message_seeds,
        memory: Memory { base: 32 << 10, times: 64 },
        words: &[],
    },
    Target {
        name: "peer-origin",
        about: "what a member tells a replica that joins; it is the same when it is written again",
        run: origin,
        seeds: || numbered("", origins()),
        memory: Memory { base: 32 << 10, times: 64 },
        words: &[
            b"multipaxos",
            b"sequence-paxos",
            b"raft",
            b"ring",
            b"rotating",
            b"ballot",
            b"max-request-bytes=5000",
        ],
    },
];

/// The first byte of an input says whether the checksums are left as they are.
fn unsealed(input: &[u8]) -> (bool, Vec<u8>) {
    match input.split_first() {
        Some((first, rest)) => (first % 8 == 7, rest.to_vec()),
        None => (true, Vec::new()),
    }
}

fn sealed(bytes: Vec<u8>) -> Vec<u8> {
    [vec![0], bytes].concat()
}

fn call(input: &[u8]) -> Verdict {
    let (as_it_is, mut bytes) = unsealed(input);
    if !as_it_is {
        fuzzing::seal_call(&mut bytes);
    }
    Verdict::of(&fuzzing::read_call(&bytes))
}

fn inquiry() -> Vec<u8> {
    let mut call = b"SYNO\x07\0\x01\0\x06\0\0\0\0\0\0\0".to_vec();
    fuzzing::seal_call(&mut call);
    call
}

fn welcome(input: &[u8]) -> Verdict {
    let (as_it_is, mut bytes) = unsealed(input);
    if !as_it_is {
        fuzzing::seal_welcome(&mut bytes);
    }
    Verdict::of(&fuzzing::read_welcome(&bytes))
}

fn answer(input: &[u8]) -> Verdict {
    let (as_it_is, mut bytes) = unsealed(input);
    if !as_it_is {
        fuzzing::seal_answer(&mut bytes);
    }
    match fuzzing::read_answer(&bytes) {
        Ok(answer) => origin(&answer),
        Err(error) => Verdict::Refused(error),
    }
}

fn frames(input: &[u8]) -> Verdict {
    let (as_it_is, mut bytes) = unsealed(input);
    let size = 1 + usize::from(bytes.first().copied().unwrap_or_default()) * 5;
    let agreed = if size % 2 == 0 { MESSAGES_VERSION_OLDEST } else { MESSAGES_VERSION };
    bytes.drain(..1.min(bytes.len()));
    if !as_it_is {
        fuzzing::seal_frames(&mut bytes);
    }
    let (messages, error) = fuzzing::frames(&bytes, agreed, size);
    let groups = messages.iter().filter(|(group, _)| *group != GroupId::FIRST).count();
    match error {
        Some(error) if messages.is_empty() => Verdict::Refused(error),
        error => {
            let (messages, is_broken) = (messages.len().min(5), error.is_some());
            Verdict::Accepted(format!("{messages} messages, {} of groups, {is_broken}", groups.min(5)))
        }
    }
}

fn frame_seeds() -> Vec<(String, Vec<u8>)> {
    let body = |bytes: &[u8]| {
        let mut writer = Writer::new();
        bytes.iter().for_each(|&byte| writer.u8(byte));
        writer.finish()
    };
    let first = fuzzing::frame(6, GroupId::FIRST, Lsn(7), body(b"hello"));
    let grouped = fuzzing::frame(7, GroupId(3), Lsn(8), body(b"of a group"));
    let mark = fuzzing::mark(Lsn(9));
    let asks = fuzzing::probe(Lsn(9), true, 1);
    let answers = fuzzing::probe(Lsn(10), false, u64::MAX);
    let all = [&first[..], &mark, &grouped, &mark, &first].concat();
    let probes = [&asks[..], &first, &answers, &mark].concat();
    let seed = |name: &str, frames: Vec<u8>| (name.to_owned(), [vec![0, 2], frames].concat());
    vec![
        seed("first", first),
        seed("grouped", grouped),
        seed("mark", mark),
        seed("all", all),
        seed("probes", probes),
    ]
}

fn bundle(input: &[u8]) -> Verdict {
    match open_bundle(Bytes::copy_from_slice(input)) {
        Ok(messages) => {
            let read = messages.iter().filter(|(_, message)| PeerMessage::decode(message.clone()).is_ok());
            Verdict::Accepted(format!("{} messages, {} of them good", messages.len(), read.count()))
        }
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

fn message(input: &[u8]) -> Verdict {
    let Some((version, bytes)) = input.split_first() else { return Verdict::Refused("empty".into()) };
    // One version more than there is, since a later replica adds something at the end.
    let version = MESSAGES_VERSION_OLDEST + u16::from(version % 3);
    let message = PeerMessage::decode_in(version, Bytes::copy_from_slice(bytes));
    if let Ok(message) = &message {
        let again = message.encode_in(version).to_bytes();
        assert_eq!(PeerMessage::decode_in(version, again).as_ref(), Ok(message));
        let (written, read) = (message.encode_in(version).len(), bytes.len());
        assert!(written <= read, "{written} bytes are written of {read}");
    }
    Verdict::of(&message)
}

/// The messages of what surrounds a protocol.
fn surrounding() -> Vec<(String, Vec<u8>)> {
    let text = include_str!("../../../replica/src/fixed/messages.txt");
    hex_lines(text).map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

/// Texts with all messages and records of each protocol.
pub(super) const ENCODINGS: [(&str, &str); 8] = [
    ("multipaxos", include_str!("../../../consensus/src/multipaxos/tests/encoding.txt")),
    ("sequence-paxos", include_str!("../../../consensus/src/sequence_paxos/tests/encoding.txt")),
    ("raft", include_str!("../../../consensus/src/raft/tests/encoding.txt")),
    ("ring", include_str!("../../../consensus/src/ring/tests/encoding.txt")),
    ("kernel-paxos", include_str!("../../../consensus/src/kernel_paxos/tests/encoding.txt")),
    ("rounds", include_str!("../../../consensus/src/rounds/tests/encoding.txt")),
    ("election", include_str!("../../../consensus/src/election/encoding.txt")),
    ("dissemination", include_str!("../../../consensus/src/dissemination/encoding.txt")),
];

/// The messages or the records of a protocol.
pub(super) fn encodings(text: &'static str, what: &str) -> Vec<(String, Vec<u8>)> {
    let lines = text.lines().filter(|line| line.starts_with(what));
    lines.flat_map(hex_lines).map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

fn message_seeds() -> Vec<(String, Vec<u8>)> {
    let newest = u8::try_from(MESSAGES_VERSION - MESSAGES_VERSION_OLDEST).expect("few versions");
    let of_protocols = ENCODINGS.iter().flat_map(|(protocol, text)| {
        let messages = encodings(text, "message").into_iter();
        let messages =
            messages.map(|(name, bytes)| (name, [vec![newest, 1, 3, 0, 0, 0, 0, 0, 0, 0], bytes].concat()));
        numbered(&format!("{protocol}-"), messages)
    });
    let others = surrounding().into_iter().map(|(name, bytes)| (name, [vec![newest], bytes].concat()));
    of_protocols.chain(numbered("replica-", others)).collect()
}

/// Origins of clusters with one group, with several, and with merged ones.
fn origins() -> Vec<(String, Vec<u8>)> {
    let group = || Group::of(&Options::default(), [ReplicaId(1), ReplicaId(2), ReplicaId(3)]);
    let single = Origin::new(ClusterId(7), group());
    let mut several = Origin::new(ClusterId(7), group().followed());
    several.others = vec![group().following(1), Group::of(&Options::default(), [ReplicaId(1)])];
    several.staying = vec![ReplicaId(4)];
    let mut merged = several.clone();
    merged.merged = Take::new(2);
    let all = [("single", single), ("several", several), ("merged", merged)];
    all.map(|(name, origin)| (name.to_owned(), origin.encode().to_vec())).into()
}

fn origin(input: &[u8]) -> Verdict {
    let origin = Origin::decode(Bytes::copy_from_slice(input));
    if let Ok(origin) = &origin {
        assert_eq!(Origin::decode(origin.encode()).as_ref(), Ok(origin));
        return Verdict::Accepted(format!(
            "{} others, {} staying, merged {:?}, {}",
            origin.others.len().min(4),
            origin.staying.len().min(4),
            origin.merged.is_some(),
            kind(&origin.present),
        ));
    }
    Verdict::of(&origin)
}
