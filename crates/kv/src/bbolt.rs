//! Files of bbolt, etcd's embedded database, written in one go.
//!
//! ```text
//! page   0      1      2          3 ...                                               last
//!        meta   meta   freelist   leaves of a bucket, branches among them, ... next   root: buckets and their roots
//! ```
//!
//! Entries come in order, so a page is written when it is full, and a branch after the pages that it leads to; only one
//! page of each level is in memory. The meta pages name the last page, so a writer that only counts goes through all
//! entries first.
//!
//! All numbers are little-endian. A page is a header (id, kind, elements, pages that follow it), then an element for
//! each entry (where key and value are), then keys and values. A page whose entries need more than [`PAGE_BYTES`] goes
//! on in the pages after it, which have no header.

use std::mem;

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

/// A file that is being written, or counted.
#[derive(Debug)]
pub(crate) struct Writer {
    /// What is not taken yet; `None` if the pages are only counted.
    out: Option<Vec<u8>>,
    /// The number of the next page.
    next: u64,
    /// The pages of the present bucket that are being filled: its leaf, then the branches above.
    levels: Vec<Page>,
    /// The buckets that are written, with their first pages.
    buckets: Vec<(&'static str, u64)>,
}

/// A page that is being filled.
#[derive(Debug, Default)]
struct Page {
    elements: Vec<Element>,
    /// Keys and values. While pages are only counted, the values are missing.
    bytes: Vec<u8>,
    /// How many bytes there are with the values.
    len: usize,
    first_key: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Element {
    /// Of a leaf: whether it is a bucket. Of a branch: nothing.
    flags: u32,
    key_len: usize,
    value_len: usize,
    /// Of a branch: the page that it leads to.
    page: u64,
}

impl Page {
    fn bytes_with(&self, entry_bytes: usize) -> usize {
        PAGE_HEADER_BYTES + (self.elements.len() + 1) * ELEMENT_BYTES + self.len + entry_bytes
    }

    fn push(&mut self, element: Element, key: &[u8]) {
        if self.elements.is_empty() {
            self.first_key = key.to_vec();
        }
        self.elements.push(element);
        self.bytes.extend_from_slice(key);
        self.len += element.key_len + element.value_len;
    }
}

impl Writer {
    /// Counts pages.
    pub(crate) fn counting() -> Writer {
        Writer { out: None, next: FIRST_PAGE, levels: vec![Page::default()], buckets: Vec::new() }
    }

    /// Writes a file of so many pages.
    pub(crate) fn writing(pages: u64) -> Writer {
        let mut out = Vec::new();
        for number in 0..2 {
            out.extend(meta(number, pages));
        }
        out.extend(header(FREELIST_PAGE, FREELIST, 0, 0));
        out.resize(3 * PAGE_BYTES, 0);
        Writer { out: Some(out), ..Writer::counting() }
    }

    /// Takes what is written.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.out.as_mut().map(mem::take).unwrap_or_default()
    }

    /// How many bytes can be taken.
    pub(crate) fn written(&self) -> usize {
        self.out.as_ref().map_or(0, Vec::len)
    }

    /// Adds an entry to the present bucket, with a key behind all others. `put` puts the value, unless pages are only
    /// counted.
    pub(crate) fn entry(&mut self, key: &[u8], value_len: usize, put: impl FnOnce(&mut Vec<u8>)) {
        self.add_to_leaf(0, key, value_len, put);
    }

    /// Ends the present bucket, and gives it a name behind those of all others.
    pub(crate) fn end_bucket(&mut self, name: &'static str) {
        let root = self.end_tree();
        self.buckets.push((name, root));
    }

    /// Ends the file, and returns how many pages it has.
    pub(crate) fn end(&mut self) -> u64 {
        for (name, root) in mem::take(&mut self.buckets) {
            const SEQUENCE: u64 = 0;
            self.add_to_leaf(IS_BUCKET, name.as_bytes(), 16, |out| {
                out.extend_from_slice(&root.to_le_bytes());
                out.extend_from_slice(&SEQUENCE.to_le_bytes());
            });
        }
        let root = self.end_tree();
        debug_assert_eq!(root + 1, self.next, "the root of so few buckets is one page, the last one");
        self.next
    }

    fn add_to_leaf(&mut self, flags: u32, key: &[u8], value_len: usize, put: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(!key.is_empty(), "bbolt has no empty keys");
        let leaf = &self.levels[0];
        if !leaf.elements.is_empty() && leaf.bytes_with(key.len() + value_len) > PAGE_BYTES {
            self.end_page(0);
        }
        let leaf = &mut self.levels[0];
        leaf.push(Element { flags, key_len: key.len(), value_len, page: 0 }, key);
        if self.out.is_some() {
            let before = leaf.bytes.len();
            put(&mut leaf.bytes);
            assert_eq!(leaf.bytes.len() - before, value_len, "a value has the length that was told");
        }
    }

    /// Writes the page of a level, and leads to it from the level above.
    fn end_page(&mut self, level: usize) {
        let page = mem::take(&mut self.levels[level]);
        let number = self.write(&page, if level == 0 { LEAF } else { BRANCH });
        if self.levels.len() == level + 1 {
            self.levels.push(Page::default());
        }
        let key = &page.first_key;
        let above = &self.levels[level + 1];
        if !above.elements.is_empty() && above.bytes_with(key.len()) > PAGE_BYTES {
            self.end_page(level + 1);
        }
        let element = Element { flags: 0, key_len: key.len(), value_len: 0, page: number };
        self.levels[level + 1].push(element, key);
    }

    /// Writes what is left of a tree, and returns its root.
    fn end_tree(&mut self) -> u64 {
        let mut level = 0;
        // The root is the page of the highest level, or the only page that this leads to.
        while level + 1 < self.levels.len() {
            self.end_page(level);
            level += 1;
        }
        let top = self.levels.pop().expect("there is always a leaf");
        self.levels = vec![Page::default()];
        match top.elements[..] {
            [only] if level > 0 => only.page,
            _ => self.write(&top, if level == 0 { LEAF } else { BRANCH }),
        }
    }

    fn write(&mut self, page: &Page, kind: u16) -> u64 {
        let bytes = PAGE_HEADER_BYTES + page.elements.len() * ELEMENT_BYTES + page.len;
        let pages = bytes.div_ceil(PAGE_BYTES).max(1) as u64;
        let number = self.next;
        self.next += pages;
        let Some(out) = &mut self.out else { return number };
        let end = out.len() + pages as usize * PAGE_BYTES;
        let overflow = u32::try_from(pages - 1).expect("a value has far fewer pages");
        let count = u16::try_from(page.elements.len()).expect("a page has few elements");
        out.extend(header(number, kind, count, overflow));
        let mut at = page.elements.len() * ELEMENT_BYTES;
        for element in &page.elements {
            // Positions count from the element itself.
            let position = number_of_bytes(at);
            let key_len = number_of_bytes(element.key_len);
            if kind == LEAF {
                let value_len = number_of_bytes(element.value_len);
                for number in [element.flags, position, key_len, value_len] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            } else {
                out.extend_from_slice(&position.to_le_bytes());
                out.extend_from_slice(&key_len.to_le_bytes());
                out.extend_from_slice(&element.page.to_le_bytes());
            }
            at += element.key_len + element.value_len;
            at -= ELEMENT_BYTES;
        }
        out.extend_from_slice(&page.bytes);
        out.resize(end, 0);
        number
    }
}

fn number_of_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("an entry has far less than 4 GiB")
}

fn header(number: u64, kind: u16, count: u16, overflow: u32) -> Vec<u8> {
    let mut header = Vec::with_capacity(PAGE_HEADER_BYTES);
    header.extend_from_slice(&number.to_le_bytes());
    header.extend_from_slice(&kind.to_le_bytes());
    header.extend_from_slice(&count.to_le_bytes());
    header.extend_from_slice(&overflow.to_le_bytes());
    header
}

/// One of the two meta pages of a file of so many pages, whose last one is the root.
fn meta(number: u64, pages: u64) -> Vec<u8> {
    const FLAGS: u32 = 0;
    const SEQUENCE: u64 = 0;
    let mut page = header(number, META, 0, 0);
    for word in [MAGIC, VERSION, PAGE_BYTES as u32, FLAGS] {
        page.extend_from_slice(&word.to_le_bytes());
    }
    // The transaction that wrote the page has the page's number: the second page is the newer one.
    let transaction = number;
    for word in [pages - 1, SEQUENCE, FREELIST_PAGE, pages, transaction] {
        page.extend_from_slice(&word.to_le_bytes());
    }
    let checksum = fnv1a(&page[PAGE_HEADER_BYTES..]);
    page.extend_from_slice(&checksum.to_le_bytes());
    page.resize(PAGE_BYTES, 0);
    page
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Reads a file back, for tests.
#[cfg(test)]
pub(crate) mod reading {
    use super::*;

    pub(crate) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn u16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    struct File<'a> {
        bytes: &'a [u8],
        /// How often each page is reached.
        reached: Vec<u8>,
    }

    impl File<'_> {
        /// Walks a tree; checks that keys ascend, and that branches tell the first key of each page.
        fn walk(&mut self, page: u64, entries: &mut Vec<(u32, Vec<u8>, Vec<u8>)>) {
            let bytes = &self.bytes[page as usize * PAGE_BYTES..];
            assert_eq!(u64_at(bytes, 0), page);
            let (kind, count, overflow) = (u16_at(bytes, 8), u16_at(bytes, 10), u32_at(bytes, 12));
            for page in page..=page + u64::from(overflow) {
                self.reached[page as usize] += 1;
            }
            for number in 0..usize::from(count) {
                let at = PAGE_HEADER_BYTES + number * ELEMENT_BYTES;
                let element = &bytes[at..];
                if kind == LEAF {
                    let [flags, position, key, value] = [0, 4, 8, 12].map(|at| u32_at(element, at));
                    let from = position as usize;
                    let to = from + key as usize;
                    let (key, value) = (&element[from..to], &element[to..to + value as usize]);
                    assert!(entries.last().is_none_or(|(_, last, _)| &last[..] < key), "keys ascend");
                    entries.push((flags, key.to_vec(), value.to_vec()));
                } else {
                    assert_eq!(kind, BRANCH);
                    let from = u32_at(element, 0) as usize;
                    let key = element[from..from + u32_at(element, 4) as usize].to_vec();
                    let before = entries.len();
                    self.walk(u64_at(element, 8), entries);
                    assert_eq!(entries[before].1, key, "a branch has the first key of its page");
                }
            }
        }
    }

    /// All buckets of a file. Every page must be reached once.
    pub(crate) fn buckets(bytes: &[u8]) -> Vec<(String, Entries)> {
        assert_eq!(bytes.len() % PAGE_BYTES, 0);
        let pages = (bytes.len() / PAGE_BYTES) as u64;
        for number in 0..2 {
            let page = &bytes[number * PAGE_BYTES..];
            assert_eq!(page[..PAGE_BYTES], meta(number as u64, pages));
        }
        assert_eq!(u16_at(bytes, 2 * PAGE_BYTES + 8), FREELIST);
        let mut file = File { bytes, reached: vec![0; pages as usize] };
        let mut root = Vec::new();
        file.walk(u64_at(bytes, PAGE_HEADER_BYTES + 16), &mut root);
        let buckets = root.into_iter().map(|(flags, name, place)| {
            assert_eq!((flags, place.len()), (IS_BUCKET, 16));
            let mut entries = Vec::new();
            file.walk(u64_at(&place, 0), &mut entries);
            let entries = entries.into_iter().map(|(flags, key, value)| {
                assert_eq!(flags, 0);
                (key, value)
            });
            (String::from_utf8(name).unwrap(), entries.collect())
        });
        let buckets = buckets.collect();
        assert_eq!(file.reached[..3], [0; 3]);
        assert!(file.reached[3..].iter().all(|times| *times == 1), "{:?}", file.reached);
        buckets
    }
}

#[cfg(test)]
mod tests {
    use super::{reading::Entries, *};

    fn write(writer: &mut Writer, buckets: &[(&'static str, Entries)]) -> u64 {
        for (name, entries) in buckets {
            for (key, value) in entries {
                writer.entry(key, value.len(), |out| out.extend_from_slice(value));
            }
            writer.end_bucket(name);
        }
        writer.end()
    }

    #[test]
    fn what_is_written_is_read() {
        let entries = |count: u32, value_len: usize| -> Entries {
            let entry = |number: u32| {
                let len = if number % 50 == 49 { value_len * 60 } else { value_len };
                (number.to_be_bytes().to_vec(), vec![number as u8; len])
            };
            (0..count).map(entry).collect()
        };
        for (count, value_len) in [
            (0, 0),
            (1, 0),
            (1, 5_000),
            (2, 4_000),
            (100, 0),
            (127, 0),
            (128, 0),
            (129, 0),
            (1_000, 70),
            (300, 4_072),
            (20_000, 150),
            (40_000, 0),
            (2_000, 3_000),
        ] {
            let buckets = [("a", Vec::new()), ("b", entries(count, value_len)), ("c", entries(3, 2))];
            let pages = write(&mut Writer::counting(), &buckets);
            let mut writer = Writer::writing(pages);
            assert_eq!(write(&mut writer, &buckets), pages);
            let file = writer.take();
            assert_eq!(file.len() as u64, pages * PAGE_BYTES as u64);
            let expected: Vec<_> =
                buckets.into_iter().map(|(name, entries)| (name.to_owned(), entries)).collect();
            assert!(reading::buckets(&file) == expected, "{count} entries of {value_len} bytes");
        }
    }
}
