//! Reads a file of anybody's, whatever is in it: in memory is a page, what leads to it, and a bit for each page.
//!
//! No page is read twice, so a cycle of pages ends the reading, and so does anything that is not as bbolt writes it.

// Impure: an operator names the file, once, before a replica starts with its contents.
use std::{fs::File, io, os::unix::fs::FileExt};

use super::{BRANCH, ELEMENT_BYTES, IS_BUCKET, LEAF, MAGIC, META, PAGE_HEADER_BYTES, VERSION, fnv1a};

/// Sizes of pages: those of processors and file systems.
const PAGE_BYTES_MIN: u64 = 512;
const PAGE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a page with those that follow it, which are in memory at once. etcd takes requests of 1.5 MiB, and warns of
/// a limit of more than 10 MiB.
const WHOLE_PAGE_BYTES_MAX: u64 = 256 << 20;
/// Branches above a leaf. With two entries in each there would be more pages than a file can have.
const LEVELS_MAX: usize = 48;
/// Bytes of a file, for whose pages there are bits. etcd's are to have 8 GiB at most.
const FILE_BYTES_MAX: u64 = 1 << 40;
/// Buckets of a file; etcd has ten.
const BUCKETS_MAX: usize = 1024;
/// As in bbolt.
const KEY_BYTES_MAX: usize = 32 << 10;
/// The pages of a file before any other.
const META_PAGES: u64 = 2;
const META_BYTES: usize = 64;
const BUCKET_BYTES: usize = 16;

/// Reads at any place of a file.
pub(crate) trait ReadAt {
    /// Fills `bytes` with what is at `place`.
    fn read_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()>;

    /// The size of the file.
    fn bytes(&self) -> io::Result<u64>;
}

impl ReadAt for File {
    fn read_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        self.read_exact_at(bytes, place)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        let from = usize::try_from(place).ok().and_then(|from| self.get(from..));
        let found = from.and_then(|from| from.get(..bytes.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// A file that is being read.
#[derive(Debug)]
pub(crate) struct Reader<'a, F: ?Sized> {
    file: &'a F,
    page_bytes: u64,
    /// How many pages there are; a file may be larger.
    pages: u64,
    root: u64,
    /// The pages that were read, a bit for each.
    read: Vec<u64>,
}

/// Where the entries of a bucket are.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    /// In this page, and those to which it leads.
    Page(u64),
    /// In a page that is the entry of the bucket itself.
    Within(Vec<u8>),
}

/// The numbers of a meta page.
struct Meta {
    page_bytes: u64,
    root: u64,
    pages: u64,
    transaction: u64,
}

/// A page with those that follow it.
struct Page {
    number: u64,
    kind: u16,
    elements: usize,
    bytes: Vec<u8>,
}

/// An element of a leaf.
struct Entry<'a> {
    flags: u32,
    key: &'a [u8],
    value: &'a [u8],
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

fn damaged(page: u64, why: &str) -> io::Error {
    invalid(format!("page {page}: {why}"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Reads a meta page, if there is a valid one at `place`.
fn meta(file: &(impl ReadAt + ?Sized), place: u64) -> io::Result<Option<Meta>> {
    let mut page = [0; PAGE_HEADER_BYTES + META_BYTES];
    match file.read_at(&mut page, place) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let numbers = &page[PAGE_HEADER_BYTES..];
    let [magic, version, page_bytes] = [0, 4, 8].map(|at| u32_at(numbers, at));
    let [root, _sequence, _freelist, pages, transaction, checksum] =
        [16, 24, 32, 40, 48, 56].map(|at| u64_at(numbers, at));
    let page_bytes = u64::from(page_bytes);
    let is_meta = u16_at(&page, 8) == META && (magic, version) == (MAGIC, VERSION);
    let is_size = page_bytes.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes);
    let is_whole = checksum == fnv1a(&numbers[..56]);
    Ok((is_meta && is_size && is_whole).then_some(Meta { page_bytes, root, pages, transaction }))
}

impl<'a, F: ReadAt + ?Sized> Reader<'a, F> {
    /// Opens a database of at most `bytes`, behind which the file may go on.
    ///
    /// # Errors
    /// It is none, or is not all there.
    pub(crate) fn open(file: &'a F, bytes: u64) -> io::Result<Reader<'a, F>> {
        // Only a valid first page tells where the second one is.
        let mut sizes = (PAGE_BYTES_MIN.ilog2()..=PAGE_BYTES_MAX.ilog2()).map(|power| 1 << power);
        let first = meta(file, 0)?.filter(|meta| meta.page_bytes < bytes);
        let of_size = |size| Ok::<_, io::Error>(meta(file, size)?.filter(|meta| meta.page_bytes == size));
        let second = match &first {
            Some(first) => meta(file, first.page_bytes)?,
            None => sizes.find_map(|size| of_size(size).transpose()).transpose()?,
        };
        let metas = [first, second].into_iter().flatten();
        let Some(Meta { page_bytes, root, pages, .. }) = metas.max_by_key(|meta| meta.transaction) else {
            return Err(invalid("it has no valid first pages, so it is no database of etcd, or was damaged"));
        };
        let needed = pages.checked_mul(page_bytes).filter(|needed| *needed <= bytes);
        if needed.is_none() {
            return Err(invalid(format!(
                "it ends too early: {pages} pages of {page_bytes} bytes are announced, and the file has {bytes} bytes"
            )));
        }
        let words = usize::try_from(pages.div_ceil(64)).ok().filter(|_| bytes <= FILE_BYTES_MAX);
        let words = words
            .ok_or_else(|| invalid(format!("it has {bytes} bytes; at most {FILE_BYTES_MAX} are read")))?;
        Ok(Reader { file, page_bytes, pages, root, read: vec![0; words] })
    }

    /// How many bytes the pages take.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// The buckets, in the order of their names.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(crate) fn buckets(&mut self) -> io::Result<Vec<(Vec<u8>, Tree)>> {
        let (mut buckets, root) = (Vec::new(), Tree::Page(self.root));
        self.walk_elements(&root, &mut |page, entry| {
            let Entry { flags, key, value } = entry;
            if flags & IS_BUCKET == 0 || value.len() < BUCKET_BYTES {
                return Err(damaged(page, "an entry of the root is no bucket"));
            }
            if buckets.len() == BUCKETS_MAX {
                return Err(damaged(page, "too many buckets"));
            }
            let tree = match u64_at(value, 0) {
                0 => Tree::Within(value[BUCKET_BYTES..].to_vec()),
                page => Tree::Page(page),
            };
            buckets.push((key.to_vec(), tree));
            Ok(())
        })?;
        Ok(buckets)
    }

    /// Visits all entries of a bucket, in the order of their keys.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged; or those of `visit`.
    pub(crate) fn walk(
        &mut self,
        tree: &Tree,
        mut visit: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.walk_elements(tree, &mut |page, Entry { flags, key, value }| {
            if flags & IS_BUCKET != 0 {
                return Err(damaged(page, "a bucket within a bucket"));
            }
            visit(key, value)
        })
    }

    fn walk_elements(
        &mut self,
        tree: &Tree,
        visit: &mut dyn FnMut(u64, Entry<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut last = Vec::new();
        let mut visit_leaf = |page: &Page| {
            let mut bytes = 0;
            for number in 0..page.elements {
                let entry = page.entry(number)?;
                bytes += entry.key.len() + entry.value.len();
                if bytes > page.bytes.len() {
                    return Err(damaged(page.number, "its entries overlap"));
                }
                // The last key is empty at first, and bbolt has no empty keys.
                if *entry.key <= last[..] {
                    return Err(damaged(page.number, "keys are out of order"));
                }
                last.clear();
                last.extend_from_slice(entry.key);
                visit(page.number, entry)?;
            }
            Ok(())
        };
        let root = match tree {
            Tree::Page(root) => *root,
            Tree::Within(bytes) => return visit_leaf(&Page::within(bytes.clone())?),
        };
        // Of each level the pages that are still to be read, the next one last.
        let mut levels = vec![vec![root]];
        while let Some(level) = levels.last_mut() {
            let Some(number) = level.pop() else {
                levels.pop();
                continue;
            };
            let page = self.page(number)?;
            match page.kind {
                LEAF => visit_leaf(&page)?,
                BRANCH if page.elements > 0 && levels.len() < LEVELS_MAX => {
                    levels.push((0..page.elements).rev().map(|number| page.child(number)).collect());
                }
                BRANCH => return Err(damaged(number, "a branch that leads nowhere")),
                _ => return Err(damaged(number, "it is neither leaf nor branch")),
            }
        }
        Ok(())
    }

    /// Reads a page with those that follow it, each for the first time.
    fn page(&mut self, number: u64) -> io::Result<Page> {
        if !(META_PAGES..self.pages).contains(&number) {
            return Err(damaged(number, "it is named, and there is no such page"));
        }
        let place = number * self.page_bytes;
        let mut header = [0; PAGE_HEADER_BYTES];
        self.file.read_at(&mut header, place)?;
        if u64_at(&header, 0) != number {
            return Err(damaged(number, "it has another number"));
        }
        let following = u64::from(u32_at(&header, 12));
        let whole_bytes = (following + 1) * self.page_bytes;
        if whole_bytes > WHOLE_PAGE_BYTES_MAX {
            let why = format!("it has {whole_bytes} bytes; at most {WHOLE_PAGE_BYTES_MAX} are read");
            return Err(damaged(number, &why));
        }
        if number + following >= self.pages {
            return Err(damaged(number, "it goes on behind the last page"));
        }
        for page in number..=number + following {
            self.mark_read(page)?;
        }
        let mut bytes = vec![0; usize::try_from(whole_bytes).expect("some 256 MiB")];
        self.file.read_at(&mut bytes, place)?;
        Page::of(number, bytes)
    }

    fn mark_read(&mut self, page: u64) -> io::Result<()> {
        let word = &mut self.read[usize::try_from(page / 64).expect("there is a bit for each page")];
        let bit = 1 << (page % 64);
        if *word & bit != 0 {
            return Err(damaged(page, "two others lead to it"));
        }
        *word |= bit;
        Ok(())
    }
}

impl Page {
    fn of(number: u64, bytes: Vec<u8>) -> io::Result<Page> {
        let (kind, elements) = (u16_at(&bytes, 8), usize::from(u16_at(&bytes, 10)));
        if PAGE_HEADER_BYTES + elements * ELEMENT_BYTES > bytes.len() {
            return Err(damaged(number, "its entries are beyond its end"));
        }
        Ok(Page { number, kind, elements, bytes })
    }

    /// The page that is the entry of a bucket. Its number is 0.
    fn within(bytes: Vec<u8>) -> io::Result<Page> {
        if bytes.len() < PAGE_HEADER_BYTES {
            return Err(invalid("a bucket without a page"));
        }
        let page = Page::of(0, bytes)?;
        if page.kind == LEAF { Ok(page) } else { Err(invalid("the page of a bucket is no leaf")) }
    }

    /// An element, from its first byte to the end of the page.
    fn element(&self, number: usize) -> &[u8] {
        &self.bytes[PAGE_HEADER_BYTES + number * ELEMENT_BYTES..]
    }

    fn entry(&self, number: usize) -> io::Result<Entry<'_>> {
        let element = self.element(number);
        let [flags, position, key, value] = [0, 4, 8, 12].map(|at| u32_at(element, at));
        let [position, key, value] = [position, key, value].map(|number| number as usize);
        if key > KEY_BYTES_MAX {
            return Err(damaged(self.number, "a key is longer than bbolt's are"));
        }
        let rest = element.get(position..).filter(|rest| rest.len() >= key);
        let (key, rest) = rest.ok_or_else(|| damaged(self.number, "a key is beyond its end"))?.split_at(key);
        let value = rest.get(..value).ok_or_else(|| damaged(self.number, "a value is beyond its end"))?;
        Ok(Entry { flags, key, value })
    }

    /// The page to which an element of a branch leads.
    fn child(&self, number: usize) -> u64 {
        u64_at(self.element(number), 8)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bbolt::{PAGE_BYTES, Writer};

    pub(crate) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    /// All buckets of a file that [`Writer`] wrote. Every page must be read once.
    pub(crate) fn buckets(bytes: &[u8]) -> Vec<(String, Entries)> {
        let mut reader = Reader::open(bytes, bytes.len() as u64).unwrap();
        assert_eq!(reader.used_bytes(), bytes.len() as u64);
        let buckets = reader.buckets().unwrap().into_iter().map(|(name, tree)| {
            let mut entries = Vec::new();
            let entry = |key: &[u8], value: &[u8]| {
                entries.push((key.to_vec(), value.to_vec()));
                Ok(())
            };
            reader.walk(&tree, entry).unwrap();
            (String::from_utf8(name).unwrap(), entries)
        });
        let buckets = buckets.collect();
        let read: u64 = reader.read.iter().map(|word| u64::from(word.count_ones())).sum();
        assert_eq!(read + META_PAGES + 1, reader.pages, "all but the meta pages and the freelist");
        buckets
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<Entries>> {
        let mut reader = Reader::open(bytes, bytes.len() as u64)?;
        let buckets = reader.buckets()?;
        let all = buckets.iter().map(|(_, tree)| {
            let mut entries = Vec::new();
            reader.walk(tree, |key, value| {
                entries.push((key.to_vec(), value.to_vec()));
                Ok(())
            })?;
            Ok(entries)
        });
        all.collect()
    }

    /// Some pages of each kind.
    fn file() -> Vec<u8> {
        let write = |writer: &mut Writer| {
            for number in 0..600_u32 {
                let len = if number == 400 { 9_000 } else { 30 };
                writer.entry(&number.to_be_bytes(), len, |out| out.extend(vec![number as u8; len]));
            }
            writer.end_bucket("a");
            writer.entry(b"k", 1, |out| out.push(1));
            writer.end_bucket("b");
            writer.end()
        };
        let pages = write(&mut Writer::counting());
        let mut writer = Writer::writing(pages);
        write(&mut writer);
        writer.take()
    }

    #[test]
    fn a_file_that_is_cut_off_is_none() {
        let file = file();
        assert_eq!(read(&file).unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [600, 1]);
        for len in (0..file.len()).step_by(511) {
            let error = read(&file[..len]).unwrap_err().to_string();
            assert!(error.contains("no valid first pages") || error.contains("ends too early"), "{error}");
        }
    }

    /// The contents may change where only the hash of the file tells, but nothing else happens.
    #[test]
    fn whatever_bit_is_flipped_reading_ends() {
        let file = file();
        let expected = read(&file).unwrap();
        let (mut refused, mut same) = (0, 0);
        for bit in 0..file.len() * 8 {
            // All of what is small and of the heads of pages, and some of the rest.
            if bit / 8 % PAGE_BYTES > 200 && bit % 97 != 0 {
                continue;
            }
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read(&flipped) {
                Err(_) => refused += 1,
                Ok(found) => same += usize::from(found == expected),
            }
        }
        // The second meta page counts, so the first one may be anything.
        assert!(refused > 5_000 && same > 2_000, "{refused} {same}");
    }

    #[test]
    fn a_page_that_leads_to_one_that_was_read_ends_the_reading() {
        let file = file();
        let pages = (file.len() / PAGE_BYTES) as u64;
        let is_branch = |page: &u64| u16_at(&file, *page as usize * PAGE_BYTES + 8) == BRANCH;
        let branch = (3..pages).find(is_branch).unwrap();
        let element = branch as usize * PAGE_BYTES + PAGE_HEADER_BYTES;
        for (to, expected) in [
            (branch, "two others lead to it"),
            (3, "two others lead to it"),
            (pages, "there is no such page"),
        ] {
            let mut other = file.clone();
            other[element + ELEMENT_BYTES + 8..][..8].copy_from_slice(&to.to_le_bytes());
            let error = read(&other).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
