//! The disk of a test that explores interleavings.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use synod_wire::Lsn;

use crate::{DataDir, Options, Wal, disk::Disk, faulty::FaultyDisk};

thread_local! {
    static DISK: RefCell<Option<FaultyDisk>> = const { RefCell::new(None) };
}

/// Gives the test a new and empty disk. The disk accepts writes in pieces and, as the seed decides, writes
/// some of them back before it is asked to.
pub fn new_disk(seed: u64) {
    DISK.set(Some(FaultyDisk::new(seed)));
}

pub(crate) fn disk() -> FaultyDisk {
    DISK.with_borrow(|disk| disk.clone().expect("the test has made a disk"))
}

/// The last record that the next start would find in the log of `dir` if power failed now.
///
/// # Panics
/// That start would fail, or find the log damaged.
#[must_use]
pub fn durable_in(dir: &Path) -> Lsn {
    let copy = FaultyDisk::new(0).without_threads();
    let image = disk().image(dir);
    let above = |file: &PathBuf| file.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>();
    let mut folders: BTreeSet<PathBuf> = image.keys().flat_map(above).collect();
    folders.extend([dir.to_owned(), dir.join("wal"), dir.join("snapshots")]);
    // One comes after those that it is in.
    for folder in folders.into_iter().filter(|folder| folder.starts_with(dir)) {
        copy.create_dir(&folder).expect("it is empty");
    }
    copy.put_back(dir, &image);
    let marker = DataDir::read_on(&copy, dir).expect("it is readable").expect("it was opened");
    let (_, found) =
        Wal::open_on(std::sync::Arc::new(copy), &dir.join("wal"), marker.identity, Options::default())
            .expect("the log opens");
    assert!(found.damage.is_none() && found.loss.is_none(), "{:?} {:?}", found.damage, found.loss);
    found.last
}
