//! Files of bbolt, etcd's embedded database: [written](Writer) in one go, and [read](Reader).
//!
//! All numbers are little-endian. A page is a header (id, kind, elements, pages that follow it), then an element for
//! each entry (where key and value are), then keys and values. A page whose entries need more than the size of a page
//! goes on in the pages after it, which have no header.
//!
//! ```text
//! header   id u64 | kind u16 | elements u16 | pages that follow u32
//! element  of a leaf: flags u32 | position u32 | bytes of the key u32 | bytes of the value u32
//!          of a branch: position u32 | bytes of the key u32 | page u64
//! meta     header | magic u32 | version u32 | bytes of a page u32 | flags u32 | root u64 | sequence u64 | freelist u64
//!                 | pages of the file u64 | transaction u64 | FNV-1a of the nine before u64
//! bucket   (the value of a leaf's element with flag 1) root u64 | sequence u64; with root 0 a leaf follows
//! ```
//!
//! Positions count from the element. Of the two meta pages that of the later transaction counts.

mod read;
mod write;

#[cfg(test)]
pub(crate) use self::read::tests;
pub(crate) use self::{
    read::{ReadAt, Reader},
    write::Writer,
};

/// Bytes of a page, as on most machines.
pub(crate) const PAGE_BYTES: usize = 4096;

const PAGE_HEADER_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

/// Kinds of pages.
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREELIST: u16 = 0x10;

/// What an element of a leaf says of a bucket.
const IS_BUCKET: u32 = 0x01;

const FREELIST_PAGE: u64 = 2;
const FIRST_PAGE: u64 = 3;

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
