//! The file systems of the replicas: how they get full, and how they lose power.
//!
//! Where the system allows it, each replica has an ext4 file system in a file, behind a loop device. Linux can be
//! told to end such a file system as it is on its device at that moment (`EXT4_IOC_SHUTDOWN`, as the tests of Linux'
//! file systems do): what was written and not yet synchronised is gone, as after a power failure. Without loop
//! devices, in namespaces of users for example, each replica has a tmpfs, which can only get full; without namespaces
//! it has a folder.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::ioctl;

use super::cluster::Cluster;
use crate::net::namespaces::tool;

/// The size of a replica's file system.
const SIZE_MIB: usize = 96;
/// How long a file system whose last user has ended may stay busy.
const BUSY_MAX: Duration = Duration::from_secs(10);
const BUSY_INTERVAL: Duration = Duration::from_millis(20);

/// What the replicas keep their data on.
#[derive(Debug)]
pub struct Disks {
    folder: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A folder each.
    Folders,
    /// A tmpfs each, since there are no devices for this reason.
    Memory { no_devices: String },
    /// An ext4 file system each, whose device is a file in a tmpfs.
    Devices,
}

impl Disks {
    /// A folder for each replica, below this one.
    pub fn folders(folder: &Path, replicas: usize) -> Result<Disks, String> {
        let disks = Disks { folder: folder.to_owned(), kind: Kind::Folders };
        (0..replicas).try_for_each(|place| make(&disks.path(place)))?;
        Ok(disks)
    }

    /// A file system for each replica, below this folder. This process must be in a namespace of mounts of its own,
    /// with which they end.
    pub fn mounted(folder: &Path, replicas: usize) -> Result<Disks, String> {
        let Disks { folder, .. } = Disks::folders(folder, replicas)?;
        let mut disks = Disks { folder, kind: Kind::Devices };
        let devices = disks.devices();
        make(&devices)?;
        // The files of all devices, and what ext4 needs besides.
        mount_memory(&devices, SIZE_MIB * replicas + 16)?;
        if let Err(why) = disks.mount_devices(replicas) {
            disks.kind = Kind::Memory { no_devices: why };
            for place in 0..replicas {
                // A device that was mounted goes before the tmpfs comes.
                let _ = tool("umount", &[text(&disks.path(place))?], "");
                mount_memory(&disks.path(place), SIZE_MIB)?;
            }
        }
        Ok(disks)
    }

    fn mount_devices(&self, replicas: usize) -> Result<(), String> {
        for place in 0..replicas {
            let device = self.device(place);
            let made = File::create(&device).and_then(|file| file.set_len((SIZE_MIB << 20) as u64));
            made.map_err(|error| format!("{}: {error}", device.display()))?;
            // Without room that only root may use, which replicas are here.
            tool("mkfs.ext4", &["-q", "-F", "-m", "0", text(&device)?], "")?;
            self.mount(place)?;
        }
        Ok(())
    }

    fn mount(&self, place: usize) -> Result<(), String> {
        tool("mount", &["-t", "ext4", "-o", "loop", text(&self.device(place))?, text(&self.path(place))?], "")
    }

    /// The report's words for them.
    pub fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Folders => "data in a folder each",
            Kind::Memory { .. } => "data on a tmpfs each",
            Kind::Devices => "data on an ext4 file system each, whose device is in memory",
        }
    }

    /// The replicas have file systems, which end with this process.
    pub fn are_mounted(&self) -> bool {
        !matches!(self.kind, Kind::Folders)
    }

    /// Why power cannot fail here; nothing if it can.
    pub fn no_power_loss(&self) -> Option<String> {
        match &self.kind {
            Kind::Folders => Some("only with --network namespaces".to_owned()),
            Kind::Memory { no_devices } => {
                Some(format!("it takes root, mkfs.ext4 and loop devices ({no_devices})"))
            }
            Kind::Devices => None,
        }
    }

    /// Where a replica's file system is.
    pub fn path(&self, place: usize) -> PathBuf {
        self.folder.join(Cluster::name(place))
    }

    fn ballast(&self, place: usize) -> PathBuf {
        self.path(place).join("ballast")
    }

    fn devices(&self) -> PathBuf {
        self.folder.join("devices")
    }

    fn device(&self, place: usize) -> PathBuf {
        self.devices().join(Cluster::name(place))
    }

    /// Fills a file system.
    pub fn fill(&self, place: usize) {
        let Ok(mut ballast) = File::options().create(true).append(true).open(self.ballast(place)) else {
            return;
        };
        for size in [1 << 20, 4096, 1] {
            while ballast.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Makes room again.
    pub fn empty(&self, place: usize) -> Result<(), String> {
        let ballast = self.ballast(place);
        fs::remove_file(&ballast).map_err(|error| format!("{}: {error}", ballast.display()))
    }

    /// Cuts the power of a disk: it keeps what has reached its device, and reads and writes get an error.
    pub fn cut_power(&self, place: usize) -> Result<(), String> {
        let path = self.path(place);
        let root = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        shut_down(&root).map_err(|error| format!("a power failure of {}: {error}", path.display()))
    }

    /// Brings a disk back after its power was cut. No process may use it.
    pub fn return_power(&self, place: usize) -> Result<(), String> {
        let path = self.path(place);
        let deadline = Instant::now() + BUSY_MAX;
        while let Err(busy) = tool("umount", &[text(&path)?], "") {
            if Instant::now() > deadline {
                return Err(busy);
            }
            thread::sleep(BUSY_INTERVAL);
        }
        self.mount(place)
    }
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn mount_memory(at: &Path, size_mib: usize) -> Result<(), String> {
    tool("mount", &["-t", "tmpfs", "-o", &format!("size={size_mib}m"), "none", text(at)?], "")
}

fn text(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("--data: {} is not UTF-8", path.display()))
}

/// Ends an ext4 file system without writing what it holds in memory.
#[allow(unsafe_code, reason = "a request to the kernel that takes a number")]
fn shut_down(root: &File) -> rustix::io::Result<()> {
    /// `EXT4_IOC_SHUTDOWN`, `_IOR('X', 125, __u32)`.
    const SHUT_DOWN: ioctl::Opcode = ioctl::opcode::read::<u32>(b'X', 125);
    /// `EXT4_GOING_FLAGS_NOLOGFLUSH`: the journal is not flushed either.
    const WITHOUT_FLUSH: u32 = 2;
    // SAFETY: although its name says otherwise, the kernel reads this request's 32 bits and writes nothing.
    unsafe { ioctl::ioctl(root, ioctl::Setter::<SHUT_DOWN, u32>::new(WITHOUT_FLUSH)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_can_get_neither_full_nor_dark() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks::folders(folder.path(), 3).unwrap();
        assert!(!disks.are_mounted() && disks.path(2).is_dir());
        assert_eq!(disks.no_power_loss().unwrap(), "only with --network namespaces");
        // A folder on a file system of the machine must not be shut down by mistake: the test asks for none.
        let without = Kind::Memory { no_devices: "mount: not permitted".to_owned() };
        let disks = Disks { kind: without, ..disks };
        assert!(disks.are_mounted());
        assert!(disks.no_power_loss().unwrap().contains("mount: not permitted"));
        assert_eq!(Disks { kind: Kind::Devices, ..disks }.no_power_loss(), None);
    }
}
