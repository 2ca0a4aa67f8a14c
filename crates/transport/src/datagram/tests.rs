//! Datagrams as bytes: golden ones, mutated ones, and ones of other lives.

use fastrand::Rng;
use proptest::prelude::*;

use synod_wire::Incarnation;

use super::*;

const VERSION_AGREED: u16 = 9;

fn end(id: u64, incarnation: u64) -> End {
    let since = Incarnation(0);
    let life = Life { birth: 100 + id, incarnation: Incarnation(incarnation), nonce: 7 * id, since };
    End { id: ReplicaId(id), life }
}

fn ends() -> Ends {
    Ends { cluster: ClusterId(0x5eed), from: end(1, 3), to: end(2, 5) }
}

/// Sessions that are told apart by their senders.
fn sessions() -> Sessions<u64> {
    let mut sessions = Sessions::default();
    sessions.begin(&ends(), VERSION_AGREED, 1);
    sessions.begin(&Ends { from: end(3, 1), ..ends() }, VERSION_AGREED, 3);
    sessions
}

fn push(packer: &mut Packer, group: GroupId, body: &[u8]) -> Result<(), Unpacked> {
    packer.push(group, &[Bytes::copy_from_slice(body)])
}

fn take(packer: &mut Packer, durable: Lsn) -> Option<Vec<u8>> {
    packer.leave(durable, <[u8]>::to_vec)
}

fn messages_of(content: &Content) -> Vec<(u16, Vec<u8>)> {
    let Content::Messages(messages) = content else { panic!("a probe") };
    messages.iter().map(|(group, body)| (group.0, body.to_vec())).collect()
}

fn packed(bytes_max: usize, bodies: &[(GroupId, Vec<u8>)]) -> Vec<u8> {
    let mut packer = Packer::new(bytes_max, &ends(), VERSION_AGREED);
    for (group, body) in bodies {
        push(&mut packer, *group, body).expect("it fits");
    }
    take(&mut packer, Lsn(0x0102_0304)).expect("it has messages")
}

fn small() -> Vec<u8> {
    packed(1472, &[(GroupId(0), b"vote".to_vec()), (GroupId(513), Vec::new())])
}

/// Makes the checksum right, whatever the rest is.
fn reseal(datagram: &mut [u8]) {
    let crc = crc(datagram);
    datagram[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Other versions of the program read these bytes.
#[test]
fn every_byte_is_where_others_look_for_it() {
    let largest = body_bytes_max(bytes_max(1500, false).expect("an MTU"));
    let datagrams = [
        ("small", small()),
        ("empty body", packed(1472, &[(GroupId(1), Vec::new())])),
        ("one byte", packed(1472, &[(GroupId(1), vec![0xab])])),
    ];
    let mut found = String::new();
    for (name, datagram) in datagrams {
        let hex: String = datagram.iter().map(|byte| format!("{byte:02x}")).collect();
        found += &format!("{name}: {hex}\n");
    }
    // Of the large ones the header says all: the checksum is of the body, too.
    for bytes in [largest - 1, largest] {
        let datagram = packed(1472, &[(GroupId(1), vec![0xab; bytes])]);
        let hex: String = datagram[..HEADER_BYTES + 5].iter().map(|byte| format!("{byte:02x}")).collect();
        found += &format!("{bytes} bytes of 0xab: {hex}...\n");
    }
    let probe: String =
        probe(64, &ends(), VERSION_AGREED, 7).iter().map(|byte| format!("{byte:02x}")).collect();
    found += &format!("probe: {probe}\n");
    assert_eq!(found, include_str!("golden.txt"));
}

#[test]
fn a_probe_fills_the_largest_packet() {
    let probe = probe(1472, &ends(), VERSION_AGREED, 7);
    assert_eq!(probe.len(), 1472);
    let content = |packet: &[u8]| sessions().read(packet).map(|(_, arrived)| arrived.content);
    assert_eq!(content(&probe), Ok(Content::Probe(7)));
    assert_eq!(content(&probe[..HEADER_BYTES + 8]), Ok(Content::Probe(7)), "the rest is padding");
    assert_eq!(content(&probe[..HEADER_BYTES + 7]), Err(Reason::Length));
}

#[test]
fn limits_follow_the_mtu() {
    assert_eq!((bytes_max(1500, false), bytes_max(1500, true)), (Some(1472), Some(1452)));
    assert_eq!((bytes_max(9000, false), bytes_max(MTU_MIN, true)), (Some(8972), Some(1232)));
    assert_eq!((bytes_max(MTU_MIN - 1, false), bytes_max(MTU_MAX + 1, false)), (None, None));
    assert_eq!(body_bytes_max(1472), 1436);
    for mtu in [MTU_MIN, 1500, 9000, MTU_MAX] {
        let max = bytes_max(mtu, false).expect("an MTU");
        let mut packer = Packer::new(max, &ends(), 1);
        assert_eq!(push(&mut packer, GroupId(0), &vec![1; body_bytes_max(max) + 1]), Err(Unpacked::TooLarge));
        assert!(packer.is_empty() && take(&mut packer, Lsn(1)).is_none());
        assert_eq!(push(&mut packer, GroupId(0), &vec![1; body_bytes_max(max)]), Ok(()));
        assert_eq!(push(&mut packer, GroupId(0), b""), Err(Unpacked::Full), "nothing is cut");
        assert_eq!(take(&mut packer, Lsn(1)).map(|datagram| datagram.len()), Some(max));
        assert_eq!(push(&mut packer, GroupId(0), b"next"), Ok(()), "it is empty again");
    }
}

#[test]
fn a_datagram_may_be_padded_and_never_cut() {
    let (sessions, datagram) = (sessions(), small());
    let (from, arrived) = sessions.read(&datagram).expect("it is sound");
    assert_eq!((*from, arrived.durable, arrived.version), (1, Lsn(0x0102_0304), VERSION_AGREED));
    assert_eq!(messages_of(&arrived.content), [(0, b"vote".to_vec()), (513, Vec::new())]);
    assert_eq!(sessions.read(&[datagram.clone(), vec![0; 60]].concat()), Ok((from, arrived)));
    for length in 0..datagram.len() {
        let reason = if length < HEADER_BYTES { Reason::Short } else { Reason::Length };
        assert_eq!(sessions.read(&datagram[..length]), Err(reason), "cut at {length}");
    }
}

#[test]
fn any_bit_that_changes_is_noticed() {
    let (sessions, datagram) = (sessions(), small());
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(sessions.read(&changed).is_err(), "bit {bit}");
    }
}

/// Nothing of an earlier life counts, of either side, nor of another cluster, another birth or a copied directory.
#[test]
fn a_datagram_counts_between_the_two_lives_that_met_and_no_others() {
    let present = ends();
    let others = [
        Ends { cluster: ClusterId(1), ..present },
        Ends { from: end(1, 2), ..present },
        Ends { from: end(1, 4), ..present },
        Ends { to: end(2, 4), ..present },
        Ends { from: End { life: Life { birth: 1, ..present.from.life }, ..present.from }, ..present },
        Ends { to: End { life: Life { nonce: 1, ..present.to.life }, ..present.to }, ..present },
        Ends { from: end(4, 3), ..present },
        Ends { to: end(3, 5), ..present },
        Ends { from: present.to, to: present.from, ..present },
    ];
    let mut sessions = sessions();
    for (place, other) in others.iter().enumerate() {
        let mut packer = Packer::new(1472, other, VERSION_AGREED);
        push(&mut packer, GroupId(0), b"vote").expect("it fits");
        let datagram = take(&mut packer, Lsn(1)).expect("it has a message");
        assert_eq!(sessions.read(&datagram), Err(Reason::Binding), "{place}");
    }
    // A later connection of the same lives takes the place of the one before.
    sessions.begin(&present, VERSION_AGREED, 10);
    assert_eq!(sessions.read(&small()).map(|(from, _)| *from), Ok(10));
    sessions.end(|from| *from == 10);
    assert_eq!(sessions.read(&small()).map(|(from, _)| *from), Ok(1));
    sessions.end(|from| *from == 1);
    assert_eq!(sessions.read(&small()), Err(Reason::Binding), "there is no session");
}

#[test]
fn what_is_wrong_has_its_reason_and_is_counted() {
    let sessions = sessions();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut datagram = small();
        change(&mut datagram);
        sessions.read(&datagram).map(|_| ()).expect_err("it is wrong")
    };
    let sealed = |at: usize, byte: u8| {
        with(&|datagram| {
            datagram[at] = byte;
            reseal(datagram);
        })
    };
    let found = [
        with(&|datagram| datagram.truncate(31)),
        sealed(0, b'X'),
        sealed(4, 2),
        with(&|datagram| datagram[25] = 0xff),
        with(&|datagram| datagram[40] ^= 1),
        sealed(26, 1),
        sealed(5, 2),
        sealed(8, 0),
        sealed(6, 10),
        sealed(HEADER_BYTES + 2, 5),
    ];
    // What is too large is dropped before it is read.
    let all: Vec<_> = Reason::ALL.iter().copied().filter(|&reason| reason != Reason::Large).collect();
    assert_eq!(found, all[..]);
    assert_eq!(sealed(5, PROBE), Reason::Content, "a probe is a number");
    // A header alone, whose checksum is right, has no message.
    let nothing = with(&|datagram| {
        datagram.truncate(HEADER_BYTES);
        (datagram[24], datagram[25]) = (0, 0);
        reseal(datagram);
    });
    assert_eq!(nothing, Reason::Content);
    let drops = Drops::default();
    found.iter().chain(&[Reason::Content]).for_each(|&reason| drops.count(reason));
    let counts = drops.counts();
    assert_eq!((counts[0], counts[3], counts[10]), (("short", 1), ("large", 0), ("content", 2)));
}

/// Bytes that are mutated at many places, with a checksum that is right: what is read is written again as it was.
#[test]
fn whatever_is_read_is_what_was_written() {
    let (sessions, mut random, mut read) = (sessions(), Rng::with_seed(1), 0);
    for _ in 0..200_000 {
        let mut datagram = small();
        for _ in 0..random.usize(..4) {
            let at = random.usize(HEADER_BYTES..datagram.len());
            datagram[at] = random.u8(..);
        }
        datagram.truncate(random.usize(HEADER_BYTES..=datagram.len()));
        let length = u16::try_from(datagram.len() - HEADER_BYTES).expect("small");
        datagram[24..26].copy_from_slice(&length.to_le_bytes());
        reseal(&mut datagram);
        let Ok((_, arrived)) = sessions.read(&datagram) else { continue };
        read += 1;
        let mut packer = Packer::new(1472, &ends(), arrived.version);
        for (group, body) in messages_of(&arrived.content) {
            push(&mut packer, GroupId(group), &body).expect("it fitted");
        }
        assert_eq!(take(&mut packer, arrived.durable).as_ref(), Some(&datagram));
    }
    assert!(read > 1_000, "{read}");
}

proptest! {
    #[test]
    fn what_was_packed_comes_back(
        bodies in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..400)), 1..12),
        mtu in MTU_MIN..=9000,
        padding in 0_usize..64,
    ) {
        let max = bytes_max(mtu, true).expect("an MTU");
        let (sessions, mut packer, mut datagrams) = (sessions(), Packer::new(max, &ends(), 3), Vec::new());
        for (group, body) in &bodies {
            if push(&mut packer, GroupId(*group), body) == Err(Unpacked::Full) {
                datagrams.extend(take(&mut packer, Lsn(9)));
                prop_assert_eq!(push(&mut packer, GroupId(*group), body), Ok(()));
            }
        }
        datagrams.extend(take(&mut packer, Lsn(9)));
        let mut back = Vec::new();
        for datagram in datagrams {
            prop_assert!(datagram.len() <= max);
            let packet = [datagram, vec![0; padding]].concat();
            back.extend(messages_of(&sessions.read(&packet).expect("it is sound").1.content));
        }
        prop_assert_eq!(back, bodies);
    }

    #[test]
    fn bytes_of_anybody_are_dropped(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(sessions().read(&bytes).is_err());
        let with_magic = [&MAGIC[..], &[VERSION, 0], &bytes].concat();
        prop_assert!(sessions().read(&with_magic).is_err());
    }
}
