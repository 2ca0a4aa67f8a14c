//! Measures what a durable append costs on this machine's disk, which is what the log's layout rests on.
//!
//! ```text
//! cargo run --release -p synod-storage --example fsync_cost -- DIR [ROUNDS]
//! ```
//!
//! DIR must be on the disk in question (a temporary file in it is written and removed). The ways of writing
//! take turns, round after round, so that other load on the machine hits all of them alike. Compare the
//! medians and their ratios.
//!
//! 1. *Layouts*: one small write made durable, into a file that grows, one that was only allocated, and one
//!    written through before; packed one after the other or each on a page of its own; with `fdatasync` after
//!    the write, or with a write that is itself synchronous.
//! 2. *Group commit*: the log itself, durability `sync`, with 1 to 512 records of 256 bytes a commit.

use std::{
    fs::{self, File},
    io::{self, IoSlice, Write},
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::{ReadWriteFlags, pwritev2},
};
use synod_storage::{Durability, Identity, Keep, Options, Wal};
use synod_wire::{ClusterId, Incarnation, Lsn, ReplicaId, Slot, Writer};

const FILE_BYTES: u64 = 16 << 20;
const PAGE: u64 = 4096;
const APPENDS_A_ROUND: u64 = 200;

#[derive(Clone, Copy, PartialEq)]
enum Preparation {
    Growing,
    Allocated,
    Written,
}

#[derive(Clone, Copy, PartialEq)]
enum Flush {
    Fdatasync,
    SynchronousWrite,
}

struct Layout {
    name: &'static str,
    file: Preparation,
    sync: Flush,
    bytes: u64,
    /// Whether each write starts on a new page.
    pages: bool,
}

const LAYOUTS: &[Layout] = &[
    Layout {
        name: "growing, 4096 B",
        file: Preparation::Growing,
        sync: Flush::Fdatasync,
        bytes: 4096,
        pages: true,
    },
    Layout {
        name: "allocated, 4096 B",
        file: Preparation::Allocated,
        sync: Flush::Fdatasync,
        bytes: 4096,
        pages: true,
    },
    Layout {
        name: "written, 4096 B",
        file: Preparation::Written,
        sync: Flush::Fdatasync,
        bytes: 4096,
        pages: true,
    },
    Layout {
        name: "written, 4096 B, RWF_DSYNC",
        file: Preparation::Written,
        sync: Flush::SynchronousWrite,
        bytes: 4096,
        pages: true,
    },
    Layout {
        name: "growing, 312 B packed",
        file: Preparation::Growing,
        sync: Flush::Fdatasync,
        bytes: 312,
        pages: false,
    },
    Layout {
        name: "written, 312 B packed",
        file: Preparation::Written,
        sync: Flush::Fdatasync,
        bytes: 312,
        pages: false,
    },
    Layout {
        name: "written, 312 B a page each",
        file: Preparation::Written,
        sync: Flush::Fdatasync,
        bytes: 312,
        pages: true,
    },
    Layout {
        name: "written, 20000 B packed",
        file: Preparation::Written,
        sync: Flush::Fdatasync,
        bytes: 20_000,
        pages: false,
    },
    Layout {
        name: "written, 20000 B page-aligned",
        file: Preparation::Written,
        sync: Flush::Fdatasync,
        bytes: 20_000,
        pages: true,
    },
];

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), rounds) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: fsync_cost DIR [ROUNDS]");
        std::process::exit(2);
    };
    let rounds: usize = rounds.map_or(10, |r| r.parse().expect("ROUNDS is a number"));
    let dir = Path::new(&dir).join("fsync-cost.tmp");
    fs::create_dir_all(&dir)?;

    let mut times: Vec<Vec<Duration>> = LAYOUTS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (layout, times) in LAYOUTS.iter().zip(&mut times) {
            appends(&dir.join("file"), layout, times)?;
        }
    }
    println!("durable append, {} of each\n", rounds as u64 * APPENDS_A_ROUND);
    println!("{:<32} {:>9} {:>9} {:>9}", "layout", "median", "p90", "p99");
    for (layout, times) in LAYOUTS.iter().zip(&mut times) {
        print_line(layout.name, times);
    }

    println!("\nthe log, sync, records of 256 B\n");
    println!("{:<32} {:>9} {:>9} {:>9} {:>12}", "records a commit", "median", "p90", "p99", "records/s");
    for group in [1, 4, 16, 64, 256, 512] {
        let mut times = Vec::new();
        let total = commits(&dir.join("wal"), group, rounds * 100, &mut times).map_err(io::Error::other)?;
        let rate = (group * times.len()) as f64 / total.as_secs_f64();
        print_line_with(&group.to_string(), &mut times, &format!(" {rate:>12.0}"));
    }
    fs::remove_dir_all(&dir)
}

/// Writes one round of one layout into a fresh file.
fn appends(path: &Path, layout: &Layout, times: &mut Vec<Duration>) -> io::Result<()> {
    let file = File::create(path)?;
    match layout.file {
        Preparation::Growing => {}
        Preparation::Allocated => fallocate(&file, FallocateFlags::empty(), 0, FILE_BYTES)?,
        Preparation::Written => (&file).write_all(&vec![0; FILE_BYTES as usize])?,
    }
    file.sync_all()?;
    let record = vec![0x5a; layout.bytes as usize];
    let mut at = 0;
    for _ in 0..APPENDS_A_ROUND {
        let started = Instant::now();
        match layout.sync {
            Flush::Fdatasync => {
                file.write_all_at(&record, at)?;
                file.sync_data()?;
            }
            Flush::SynchronousWrite => {
                let written = pwritev2(&file, &[IoSlice::new(&record)], at, ReadWriteFlags::DSYNC)?;
                assert_eq!(written, record.len(), "a short write");
            }
        }
        times.push(started.elapsed());
        at += layout.bytes;
        if layout.pages {
            at = at.next_multiple_of(PAGE);
        }
    }
    fs::remove_file(path)
}

/// Makes commits of `group` records each, and returns how long all of them took together.
fn commits(
    dir: &Path,
    group: usize,
    commits: usize,
    times: &mut Vec<Duration>,
) -> Result<Duration, synod_storage::StorageError> {
    let identity =
        Identity { cluster: ClusterId(1), replica: ReplicaId(1), birth: 6, incarnation: Incarnation(1) };
    let options = Options { durability: Durability::Sync, ..Options::default() };
    let (mut wal, _) = Wal::open(dir, identity, options)?;
    let mut lsn = Lsn::ZERO;
    let started = Instant::now();
    for _ in 0..commits {
        for _ in 0..group {
            lsn = lsn.next();
            let mut record = Writer::new();
            record.bytes(&[0x5a; 252]);
            wal.append(lsn, Keep::Slot(Slot(lsn.0)), record.finish());
        }
        let began = Instant::now();
        wal.commit()?;
        times.push(began.elapsed());
    }
    let total = started.elapsed();
    wal.close()?;
    fs::remove_dir_all(dir).expect("the log was just closed");
    Ok(total)
}

fn print_line(name: &str, times: &mut [Duration]) {
    print_line_with(name, times, "");
}

fn print_line_with(name: &str, times: &mut [Duration], more: &str) {
    times.sort_unstable();
    let at = |share: f64| {
        format!("{:.0} µs", times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6)
    };
    println!("{name:<32} {:>9} {:>9} {:>9}{more}", at(0.5), at(0.9), at(0.99));
}
