//! Files of merged groups, each with a checksum that shows damage.

use bytes::Bytes;

/// A file: the content, and a checksum of it.
pub(crate) fn sealed(mut content: Vec<u8>) -> Bytes {
    let sum = content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    content.extend_from_slice(&sum.to_le_bytes());
    content.into()
}

/// The content of a file; `None` if it is damaged.
pub(crate) fn unsealed(file: &Bytes) -> Option<Bytes> {
    let content = file.slice(..file.len().checked_sub(8)?);
    (sealed(content.to_vec()) == *file).then_some(content)
}
