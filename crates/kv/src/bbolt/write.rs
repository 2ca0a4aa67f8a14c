//! Writes a file in one go.
//!
//! ```text
//! page   0      1      2          3 ...                                               last
//!        meta   meta   freelist   leaves of a bucket, branches among them, ... next   root: buckets and their roots
//! ```
//!
//! Entries come in order, so a page is written when it is full, and a branch after the pages that it leads to; only one
//! page of each level is in memory. The meta pages name the last page, so a writer that only counts goes through all
//! entries first.

use std::mem;

use super::{
    BRANCH, ELEMENT_BYTES, FIRST_PAGE, FREELIST, FREELIST_PAGE, IS_BUCKET, LEAF, MAGIC, META, PAGE_BYTES,
    PAGE_HEADER_BYTES, VERSION, fnv1a,
};

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

    /// Writes a file of this many pages.
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

/// One of the two meta pages of a file of this many pages, whose last one is the root.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bbolt::tests::{Entries, buckets};

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
            assert!(self::buckets(&file) == expected, "{count} entries of {value_len} bytes");
        }
    }
}
