//! Log files that do not grow without bound: `--enable-log-rotation`. Settings and names are those of lumberjack, which
//! rotates etcd's files.
//!
//! A file that is full becomes a backup, `NAME-TIME.EXT`, and a new one takes its place. These are two operations on
//! the folder, and the thread that writes a line does them. Backups are compressed and deleted by a thread of its own.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    iter,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// After a rotation that failed, the file grows for so long before the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Rotations of which the thread that clears up may still have to hear. One more is seen with these.
const WAKES_MAX: usize = 4;
/// The form of the times in the names of backups.
const STAMP: &str = "2006-01-02T15-04-05.000";
/// What the names of compressed backups end with.
const PACKED: &str = ".gz";

/// The bounds of log files: `--log-rotation-config-json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A line that would make a file longer than this is the first of the next file; a longer line has a file of its
    /// own.
    file_bytes_max: u64,
    /// How many backups of a file are kept, which are the latest; 0 keeps all.
    backups_max: usize,
    /// How long a backup is kept; zero keeps it forever.
    age_max: Duration,
    /// Whether backups are compressed, with gzip.
    compress: bool,
    /// Those of the settings that have no effect.
    pub idle: Vec<String>,
}

impl Default for Rotation {
    /// etcd's: 100 MiB a file, of which all are kept.
    fn default() -> Rotation {
        Rotation {
            file_bytes_max: 100 << 20,
            backups_max: 0,
            age_max: Duration::ZERO,
            compress: false,
            idle: Vec::new(),
        }
    }
}

impl FromStr for Rotation {
    type Err = String;

    /// Reads an object as Go does: letters of names are large or small, and `null` sets nothing.
    fn from_str(text: &str) -> Result<Rotation, String> {
        let Ok(Value::Object(members)) = serde_json::from_str(text) else {
            return Err("accepted: JSON with any of maxsize (MiB), maxage (days), maxbackups, compress and localtime, as in \
                        {\"maxsize\": 100, \"maxbackups\": 5}"
                .to_owned());
        };
        let mut rotation = Rotation::default();
        for (name, value) in &members {
            let number = || {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                number
                    .ok_or_else(|| format!("{name} {value}: accepted: a whole number from 0 to {}", u32::MAX))
            };
            let truth = || value.as_bool().ok_or_else(|| format!("{name} {value}: accepted: true or false"));
            match name.to_ascii_lowercase().as_str() {
                _ if value.is_null() => {}
                "maxsize" => match number()? {
                    0 => {}
                    mib => rotation.file_bytes_max = u64::from(mib) << 20,
                },
                "maxage" => rotation.age_max = DAY * number()?,
                "maxbackups" => rotation.backups_max = number()? as usize,
                "compress" => rotation.compress = truth()?,
                "localtime" => {
                    if truth()? {
                        let why = "localtime has no effect: the names of backups have times of UTC, as all log lines";
                        rotation.idle.push(why.to_owned());
                    }
                }
                _ => rotation.idle.push(format!("{name} has no meaning here")),
            }
        }
        Ok(rotation)
    }
}

/// Opens a file to whose end lines are added.
pub fn append_to(path: &Path) -> io::Result<File> {
    // Keys of the store and names of users may stand in it.
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// A log file that is rotated.
#[derive(Debug)]
pub struct RotatingFile {
    place: Place,
    current: Mutex<Current>,
    /// Wakes the thread that clears up, with the reason why a rotation failed if one did.
    wakes: SyncSender<Result<(), String>>,
}

/// The file to which lines go.
#[derive(Debug)]
struct Current {
    file: File,
    bytes: u64,
    /// When the next rotation may be tried, after one that failed.
    retry_at: Option<Instant>,
}

impl RotatingFile {
    /// Goes on with `file`, which is at `path`, and looks after its backups.
    ///
    /// # Errors
    /// The file's name is no text, or there is no other thread to be had.
    pub fn new(path: &Path, file: File, rotation: Rotation) -> io::Result<RotatingFile> {
        // What a link points to is renamed, not the link.
        let place = Place::of(fs::canonicalize(path)?, rotation)?;
        let (wakes, waits) = mpsc::sync_channel(WAKES_MAX);
        let cleared = place.clone();
        thread::Builder::new().name("log-files".into()).spawn(move || clear_up(&cleared, waits))?;
        let bytes = file.metadata()?.len();
        let current = Mutex::new(Current { file, bytes, retry_at: None });
        Ok(RotatingFile { place, current, wakes })
    }

    /// Adds a line. A rotation that fails keeps no line from being written: the file is longer than it should be then.
    pub fn write_all(&self, line: &[u8]) -> io::Result<()> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = line.len() as u64;
        let is_full = current.bytes > 0 && current.bytes + bytes > self.place.rotation.file_bytes_max;
        if is_full && current.retry_at.is_none_or(|at| at <= Instant::now()) {
            let rotated = self.place.rotate(&current.file, SystemTime::now());
            let wake = match rotated {
                Ok(file) => {
                    *current = Current { file, bytes: 0, retry_at: None };
                    Ok(())
                }
                Err(error) => {
                    current.retry_at = Some(Instant::now() + RETRY_AFTER);
                    Err(format!("it cannot be rotated now, and grows on: {error}"))
                }
            };
            // That thread says so, since a message from here would come here.
            _ = self.wakes.try_send(wake);
        }
        current.file.write_all(line)?;
        current.bytes += bytes;
        Ok(())
    }
}

/// Looks after the backups of a file, once now and after each rotation.
fn clear_up(place: &Place, waits: Receiver<Result<(), String>>) {
    for wake in iter::once(Ok(())).chain(waits) {
        let cleared = wake.and_then(|()| {
            let cleared = place.clear(SystemTime::now());
            cleared.map_err(|error| format!("backups cannot be compressed or deleted: {error}"))
        });
        if let Err(why) = cleared {
            tracing::warn!("the log file {}: {why}", place.path.display());
        }
    }
}

/// Where a log file and its backups are.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    folder: PathBuf,
    /// The file's name up to its last dot.
    stem: String,
    /// The rest of the name.
    ending: String,
    rotation: Rotation,
}

impl Place {
    fn of(path: PathBuf, rotation: Rotation) -> io::Result<Place> {
        let no_text =
            || io::Error::new(io::ErrorKind::InvalidInput, "the name of a file to rotate is no text");
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(no_text)?;
        let (stem, ending) = name.split_at(name.rfind('.').unwrap_or(name.len()));
        let (stem, ending) = (stem.to_owned(), ending.to_owned());
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Place { path, folder, stem, ending, rotation })
    }

    /// The backup of a time, which is plain or packed.
    fn backup(&self, stamp: &str, is_packed: bool) -> PathBuf {
        let packed = if is_packed { PACKED } else { "" };
        self.folder.join(format!("{}-{stamp}{}{packed}", self.stem, self.ending))
    }

    /// The first name from a time on that no backup has, so that none is written over.
    fn unused(&self, mut time: SystemTime) -> PathBuf {
        loop {
            let stamp = stamp(time);
            let backup = self.backup(&stamp, false);
            if !backup.exists() && !self.backup(&stamp, true).exists() {
                return backup;
            }
            time += Duration::from_millis(1);
        }
    }

    /// Makes a backup of the file, which is `full`, and begins a new one.
    fn rotate(&self, full: &File, now: SystemTime) -> io::Result<File> {
        let backup = self.unused(now);
        match fs::rename(&self.path, &backup) {
            // Somebody has moved or deleted it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let new = append_to(&self.path);
        match &new {
            Ok(new) => belong_alike(new, full),
            // Lines go on to the full file, whatever its name is.
            Err(_) => _ = fs::rename(&backup, &self.path),
        }
        new
    }

    /// Deletes backups that are too many or too old, and compresses the others, if they are to be. An error keeps it
    /// from none of the rest; the first of them is returned.
    fn clear(&self, now: SystemTime) -> io::Result<()> {
        // Then what looks like the latest backup may be the file to which lines go.
        if !self.path.exists() {
            return Ok(());
        }
        let Rotation { backups_max, age_max, compress, .. } = self.rotation;
        let stamps = self.stamps()?;
        let too_many = if backups_max == 0 { 0 } else { stamps.len().saturating_sub(backups_max) };
        let oldest = now.checked_sub(age_max).filter(|_| !age_max.is_zero()).map(stamp);
        let cleared = stamps.iter().enumerate().map(|(at, stamp)| {
            if at < too_many || oldest.as_ref().is_some_and(|oldest| stamp < oldest) {
                self.delete(stamp)
            } else if compress {
                self.compress(stamp)
            } else {
                Ok(())
            }
        });
        cleared.fold(Ok(()), Result::and)
    }

    /// The times in the names of the backups that there are.
    fn stamps(&self) -> io::Result<BTreeSet<String>> {
        let mut stamps = BTreeSet::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let stamp = name.to_str().and_then(|name| {
                let name = name.strip_suffix(PACKED).unwrap_or(name);
                let from = name.strip_prefix(self.stem.as_str())?.strip_prefix('-')?;
                from.strip_suffix(self.ending.as_str())
            });
            stamps.extend(stamp.filter(|stamp| is_stamp(stamp)).map(str::to_owned));
        }
        Ok(stamps)
    }

    fn delete(&self, stamp: &str) -> io::Result<()> {
        let deleted = [false, true].map(|is_packed| match fs::remove_file(self.backup(stamp, is_packed)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        });
        deleted.into_iter().fold(Ok(()), Result::and)
    }

    /// Compresses a backup that is plain, which is deleted only once the other one is on disk.
    fn compress(&self, stamp: &str) -> io::Result<()> {
        let (plain, packed) = (self.backup(stamp, false), self.backup(stamp, true));
        let mut from = match File::open(&plain) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        // An attempt that was broken off may have left one.
        let to = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&packed)?;
        belong_alike(&to, &from);
        let mut encoder = GzEncoder::new(to, Compression::default());
        let whole = io::copy(&mut from, &mut encoder).and_then(|_| encoder.finish()?.sync_all());
        if whole.is_err() {
            // A full disk has more use for the room.
            _ = fs::remove_file(&packed);
        }
        whole.and_then(|()| fs::remove_file(&plain))
    }
}

/// Gives a new file the group and the mode of another one. Where this process may not give it the group, it is for the
/// user alone.
fn belong_alike(new: &File, old: &File) {
    _ = old.metadata().and_then(|old| {
        // Which may be forbidden altogether, as by the unit that is shipped.
        if new.metadata()?.gid() != old.gid() {
            fchown(new, None, Some(old.gid()))?;
        }
        new.set_permissions(old.permissions())
    });
}

/// A time of UTC as the names of backups have it. The order of the texts is that of the times.
fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (mut day, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (mut year, mut month) = (1970, 1);
    while day >= month_days(year, month) {
        day -= month_days(year, month);
        (year, month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    }
    let (hour, minute, second, day) = (second / 3600, second / 60 % 60, second % 60, day + 1);
    let milli = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{milli:03}")
}

fn month_days(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Whether a text has the form of [`STAMP`].
fn is_stamp(text: &str) -> bool {
    let fits = |(has, form): (u8, u8)| if form.is_ascii_digit() { has.is_ascii_digit() } else { has == form };
    text.len() == STAMP.len() && text.bytes().zip(STAMP.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, os::unix::fs::PermissionsExt as _};

    use flate2::read::GzDecoder;

    use super::*;

    const MAXIMA: &str = r#"{"maxsize": 1, "maxbackups": 2, "maxage": 3, "compress": true}"#;

    fn at(seconds: u64, millis: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis)
    }

    fn place(folder: &Path, rotation: &str) -> Place {
        Place::of(folder.join("synod.log"), rotation.parse().unwrap()).unwrap()
    }

    /// The names in a folder, in their order, without what they begin with.
    fn names(folder: &Path) -> Vec<String> {
        let names =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.map(|name| name.trim_start_matches("synod").to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn settings_are_those_of_lumberjack() {
        let all: Rotation = MAXIMA.parse().unwrap();
        let expected = Rotation {
            file_bytes_max: 1 << 20,
            backups_max: 2,
            age_max: 3 * DAY,
            compress: true,
            idle: Vec::new(),
        };
        assert_eq!(all, expected);
        let etcds =
            r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#;
        for default in ["{}", etcds, r#"{"MaxSize": 0, "compress": null}"#] {
            assert_eq!(default.parse(), Ok(Rotation::default()), "{default}");
        }
        let idle = |text: &str| text.parse::<Rotation>().unwrap().idle.join("; ");
        assert!(idle(r#"{"localtime": true}"#).starts_with("localtime has no effect: "));
        assert_eq!(idle(r#"{"filename": "/x"}"#), "filename has no meaning here");
        for (text, why) in [
            ("maxsize=100", "accepted: JSON with any of maxsize (MiB)"),
            ("[1]", "accepted: JSON"),
            (r#"{"maxsize": -1}"#, "maxsize -1: accepted: a whole number"),
            (r#"{"maxage": 1.5}"#, "maxage 1.5: accepted: a whole number"),
            (r#"{"maxbackups": 4294967296}"#, "maxbackups 4294967296"),
            (r#"{"compress": "yes"}"#, "compress \"yes\": accepted: true or false"),
        ] {
            let error = text.parse::<Rotation>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn names_of_backups_have_the_time_of_utc() {
        assert_eq!(stamp(at(0, 0)), "1970-01-01T00-00-00.000");
        assert_eq!(stamp(at(1_136_214_245, 6)), "2006-01-02T15-04-05.006");
        assert_eq!(stamp(at(951_782_400, 0)), "2000-02-29T00-00-00.000");
        assert_eq!(stamp(at(1_709_251_199, 999)), "2024-02-29T23-59-59.999");
        assert_eq!(stamp(at(1_709_251_200, 0)), "2024-03-01T00-00-00.000");
        assert!(is_stamp(&stamp(SystemTime::now())) && is_stamp(STAMP));
        for other in ["", "2006-01-02", "2006-01-02T15:04:05.000", "2006-01-02T15-04-05.000Z"] {
            assert!(!is_stamp(other), "{other}");
        }
    }

    #[test]
    fn a_full_file_becomes_a_backup_and_no_line_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("synod.log");
        fs::write(&path, "of an earlier life\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let rotation = Rotation { file_bytes_max: 40, ..Rotation::default() };
        let file = RotatingFile::new(&path, append_to(&path).unwrap(), rotation).unwrap();
        let long = "x".repeat(100) + "\n";
        let lines: Vec<_> =
            (0..9).map(|line| format!("line {line}\n")).chain([long, "last\n".to_owned()]).collect();
        lines.iter().for_each(|line| file.write_all(line.as_bytes()).unwrap());

        // Several came in one millisecond.
        let names = names(folder.path());
        let mut contents: Vec<_> = names
            .iter()
            .map(|name| fs::read_to_string(folder.path().join(format!("synod{name}"))).unwrap())
            .collect();
        assert_eq!(
            contents,
            [
                "of an earlier life\nline 0\nline 1\nline 2\n",
                "line 3\nline 4\nline 5\nline 6\nline 7\n",
                "line 8\n",
                lines[9].as_str(),
                "last\n",
            ]
        );
        assert!(names[..4].iter().all(|name| is_stamp(&name[1..name.len() - 4])), "{names:?}");
        assert_eq!(names[4], ".log");
        let mode =
            |name: &String| fs::metadata(folder.path().join(format!("synod{name}"))).unwrap().mode() & 0o777;
        assert!(names.iter().all(|name| mode(name) == 0o640), "{names:?}");

        // Somebody else moves the file: what is written until it is full stays in it.
        fs::rename(&path, folder.path().join("moved")).unwrap();
        for line in &lines[..7] {
            file.write_all(line.as_bytes()).unwrap();
        }
        contents =
            ["moved", "synod.log"].map(|name| fs::read_to_string(folder.path().join(name)).unwrap()).into();
        assert_eq!(contents, ["last\nline 0\nline 1\nline 2\nline 3\nline 4\n", "line 5\nline 6\n"]);
    }

    #[test]
    fn a_rotation_that_fails_loses_no_line_and_is_not_tried_for_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone").join("synod.log");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let rotation = Rotation { file_bytes_max: 10, ..Rotation::default() };
        let file = RotatingFile::new(&path, append_to(&path).unwrap(), rotation).unwrap();
        let mut reader = File::open(&path).unwrap();
        fs::rename(path.parent().unwrap(), folder.path().join("away")).unwrap();
        for line in ["line 1\n", "line 2\n", "line 3\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        let mut written = String::new();
        reader.read_to_string(&mut written).unwrap();
        assert_eq!(written, "line 1\nline 2\nline 3\n");
        assert!(file.current.lock().unwrap().retry_at.is_some());
        // It goes on as soon as it can.
        fs::rename(folder.path().join("away"), path.parent().unwrap()).unwrap();
        file.current.lock().unwrap().retry_at = Some(Instant::now());
        file.write_all(b"line 4\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 4\n");
    }

    #[test]
    fn backups_that_are_too_many_or_too_old_go_and_the_others_are_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path(), MAXIMA);
        let now = at(1_800_000_000, 0);
        let day = |days: u32| stamp(now - DAY * days);
        let write = |name: String, text: &str| fs::write(folder.path().join(name), text).unwrap();
        for days in 0..6 {
            write(format!("synod-{}.log", day(days)), "some lines\n");
        }
        // An attempt to compress it was broken off.
        write(format!("synod-{}.log.gz", day(0)), "half");
        let others = [
            "synod.log",
            "synod-2027.log",
            "synod-x.log",
            "other-2006-01-02T15-04-05.000.log",
            "synod.log.gz",
        ];
        others.iter().for_each(|name| write((*name).to_owned(), ""));

        place.clear(now).unwrap();
        let mut left = names(folder.path());
        left.retain(|name| name.starts_with("-20") && name.len() > 10);
        assert_eq!(left, [1, 0].map(|days| format!("-{}.log.gz", day(days))));
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
        for days in [0, 1] {
            let file = File::open(place.backup(&day(days), true)).unwrap();
            let mut text = String::new();
            GzDecoder::new(file).read_to_string(&mut text).unwrap();
            assert_eq!(text, "some lines\n");
        }
        // Those that are old go however few they are, and a name is not given twice.
        assert_ne!(place.unused(now), place.backup(&day(0), false));
        place.clear(now + 4 * DAY).unwrap();
        assert_eq!(place.stamps().unwrap(), BTreeSet::new());

        // All are kept by default.
        let place = Place { rotation: Rotation::default(), ..place };
        write(format!("synod-{}.log", day(5000)), "old\n");
        place.clear(now).unwrap();
        assert_eq!(fs::read_to_string(place.backup(&day(5000), false)).unwrap(), "old\n");
        // Without the file itself its latest backup may be where lines go.
        fs::remove_file(&place.path).unwrap();
        let place = Place { rotation: MAXIMA.parse().unwrap(), ..place };
        place.clear(now).unwrap();
        assert!(place.backup(&day(5000), false).exists());
    }
}
