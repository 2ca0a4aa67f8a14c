//! The disk of a test that explores interleavings.

use std::{cell::RefCell, path::Path, sync::Arc};

use synod_wire::Lsn;

use crate::{DataDir, Options, Wal, disk::Disk};

thread_local! {
    static DISK: RefCell<Option<TestDisk>> = const { RefCell::new(None) };
}

#[derive(Clone)]
struct TestDisk {
    disk: Arc<dyn Disk>,
    durable: Arc<dyn Fn(&Path) -> Arc<dyn Disk>>,
}

/// Gives the test a disk. `durable` makes another one, on which no threads work: it holds what is durable in a data directory
/// of this one.
pub fn set_disk(disk: Arc<dyn Disk>, durable: impl Fn(&Path) -> Arc<dyn Disk> + 'static) {
    DISK.set(Some(TestDisk { disk, durable: Arc::new(durable) }));
}

fn test_disk() -> TestDisk {
    DISK.with_borrow(|disk| disk.clone().expect("the test has set a disk"))
}

pub(crate) fn disk() -> Arc<dyn Disk> {
    test_disk().disk
}

/// The last record that the next start would find in the log of `dir` if power failed now.
///
/// # Panics
/// That start would fail, or find the log damaged.
#[must_use]
pub fn durable_in(dir: &Path) -> Lsn {
    let copy = (test_disk().durable)(dir);
    let marker = DataDir::read_on(&*copy, dir).expect("it is readable").expect("it was opened");
    let (_, found) =
        Wal::open_on(copy, &dir.join("wal"), marker.identity, Options::default()).expect("the log opens");
    assert!(found.damage.is_none() && found.loss.is_none(), "{:?} {:?}", found.damage, found.loss);
    found.last
}
