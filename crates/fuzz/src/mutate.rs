//! One input out of others.

use fastrand::Rng;

/// The longest input that is made, in bytes.
pub(crate) const INPUT_BYTES_MAX: usize = 64 << 10;

/// The most bytes that one change inserts or repeats.
const PIECE_BYTES_MAX: usize = 64;

/// Numbers at which something changes: ends of ranges, and lengths.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    16,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Changes the input in one to six ways. `others` are inputs from which pieces are taken, and `words` are texts that
/// mean something in the format.
pub(crate) fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], words: &[&[u8]], rng: &mut Rng) {
    // Few changes most of the time: an input with many is seldom understood.
    let changes = 1 + [0, 0, 0, 1, 1, 2, 3, 5][rng.usize(..8)];
    for _ in 0..changes {
        change(input, others, words, rng);
    }
    if rng.u8(..) == 0 {
        stretch(input, rng);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn change(input: &mut Vec<u8>, others: &[Vec<u8>], words: &[&[u8]], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    match rng.u8(..14) {
        0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
        1 if at < input.len() => input[at] = rng.u8(..),
        2 if at < input.len() => {
            input[at] = if rng.bool() { input[at].wrapping_add(1) } else { input[at].wrapping_sub(1) }
        }
        3 => {
            let piece: Vec<u8> = (0..rng.usize(1..=8)).map(|_| rng.u8(..)).collect();
            insert(input, at, &piece);
        }
        4 => {
            let range = range(input, rng);
            input.drain(range);
        }
        5 => {
            let piece = input[range(input, rng)].to_vec();
            insert(input, at, &piece);
        }
        6 => input.truncate(at),
        7 | 8 => {
            let number = number(input.len(), rng).to_le_bytes();
            overwrite(input, at, &number[..1 << rng.usize(..4)]);
        }
        // A length or a count that is in the input already, one more or one less: four bytes, the lowest of which comes
        // first.
        9 if at + 4 <= input.len() => {
            let word = u32::from_le_bytes(input[at..at + 4].try_into().expect("4 bytes"));
            let word = if rng.bool() { word.wrapping_add(1) } else { word.wrapping_sub(1) };
            input[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        10 | 11 if !others.is_empty() => {
            let other = &others[rng.usize(..others.len())];
            match rng.u8(..3) {
                // The beginning of this input, and the end of the other one.
                0 => {
                    input.truncate(at);
                    input.extend_from_slice(&other[rng.usize(..=other.len())..]);
                }
                1 => insert(input, at, &other[range(other, rng)]),
                _ => overwrite(input, at, &other[range(other, rng)]),
            }
        }
        12 if !words.is_empty() => {
            let word = words[rng.usize(..words.len())];
            if rng.bool() { insert(input, at, word) } else { overwrite(input, at, word) }
        }
        13 if input.get(at).is_some_and(u8::is_ascii_digit) => {
            let number = number(input.len(), rng).to_string();
            input.splice(at..=at, number.bytes());
        }
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte = [0, 1, 0x7f, 0x80, 0xff][rng.usize(..5)];
            }
        }
    }
}

/// Repeats a piece until the input is long, to see what work a long one makes.
fn stretch(input: &mut Vec<u8>, rng: &mut Rng) {
    let range = range(input, rng);
    if range.is_empty() {
        return;
    }
    let times = rng.usize(1..=INPUT_BYTES_MAX.saturating_sub(input.len()) / range.len() + 1);
    let piece = input[range.clone()].repeat(times);
    insert(input, range.start, &piece);
}

fn number(len: usize, rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 => len as u64,
        1 => rng.u64(..=len as u64),
        _ => NUMBERS[rng.usize(..NUMBERS.len())],
    }
}

/// A short range of the bytes.
fn range(bytes: &[u8], rng: &mut Rng) -> std::ops::Range<usize> {
    let from = rng.usize(..=bytes.len());
    from..(from + rng.usize(..=PIECE_BYTES_MAX)).min(bytes.len())
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

fn overwrite(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    let end = (at + piece.len()).min(input.len());
    input.splice(at..end, piece.iter().copied());
}
