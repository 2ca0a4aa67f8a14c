//! Small files of `key = value` lines with a checksum: people can read them, and a half-written one is recognized.
//!
//! ```text
//! # synod log state
//! version = 3
//! readers = 3
//! cluster = 00000000000000a1
//! checksum = 7d1c9f02
//! ```

use std::{collections::BTreeMap, fmt::Write as _, path::Path, str::FromStr};

use synod_wire::{Format, Written};

use crate::{
    StorageError,
    disk::{Disk, read_file, replace_file},
};

/// The fields of one file, by key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    fields: BTreeMap<String, String>,
}

impl Fields {
    /// Sets a field. The value must be one line.
    pub(crate) fn set(&mut self, key: &str, value: impl ToString) {
        let value = value.to_string().replace(['\n', '\r'], " ");
        self.fields.insert(key.to_owned(), value);
    }

    /// The field as text.
    pub(crate) fn text(&self, key: &str) -> Result<&str, String> {
        self.fields.get(key).map(String::as_str).ok_or_else(|| format!("it has no line \"{key} = ...\""))
    }

    /// The field, parsed.
    pub(crate) fn parse<T: FromStr>(&self, key: &str) -> Result<T, String> {
        let text = self.text(key)?;
        text.parse().map_err(|_| format!("\"{key} = {text}\" makes no sense"))
    }

    /// The field as a hexadecimal number.
    pub(crate) fn hex(&self, key: &str) -> Result<u64, String> {
        let text = self.text(key)?;
        u64::from_str_radix(text, 16).map_err(|_| format!("\"{key} = {text}\" is not a hexadecimal number"))
    }

    /// The fields whose keys begin with `prefix`, each as the rest of the key and the text.
    pub(crate) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.fields.iter().filter_map(move |(key, text)| Some((key.strip_prefix(prefix)?, text.as_str())))
    }

    /// Sets the version of the file's format.
    pub(crate) fn set_version(&mut self, format: &Format) {
        self.set("version", format.written.version);
        self.set("readers", format.written.readers);
    }

    /// Refuses a file at `path` that this program cannot read.
    pub(crate) fn check_version(&self, path: &Path, format: &Format) -> Result<(), StorageError> {
        let malformed = |reason: String| StorageError::Malformed { path: path.to_owned(), reason };
        let version = self.parse("version").map_err(malformed)?;
        // Before versions were negotiated, only its own version could read a file.
        let readers =
            self.text("readers").map_or(Ok(version), |_| self.parse("readers")).map_err(malformed)?;
        StorageError::unless_readable(path, format, Written { version, readers })
    }

    /// Reads a file; `None` if there is none. The inner error says why its contents cannot be trusted.
    pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Result<Fields, String>>, StorageError> {
        match read_file(disk, path) {
            Ok(bytes) => Ok(Some(Fields::decode(&bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io("read", path, error)),
        }
    }

    /// Replaces the file, durably.
    pub(crate) fn write(&self, disk: &dyn Disk, path: &Path, title: &str) -> Result<(), StorageError> {
        replace_file(disk, path, self.encode(title).as_bytes())
    }

    fn encode(&self, title: &str) -> String {
        let mut text = format!("# {title}\n");
        for (key, value) in &self.fields {
            writeln!(text, "{key} = {value}").expect("writing to a string");
        }
        let checksum = crc32fast::hash(text.as_bytes());
        writeln!(text, "checksum = {checksum:08x}").expect("writing to a string");
        text
    }

    fn decode(bytes: &[u8]) -> Result<Fields, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
        let (body, checksum) = text.rsplit_once("checksum = ").ok_or("it has no checksum")?;
        let found = checksum.strip_suffix('\n').filter(|digits| digits.len() == 8);
        let expected = format!("{:08x}", crc32fast::hash(body.as_bytes()));
        if found != Some(&expected) {
            return Err(format!("its checksum should be {expected}; was it edited or cut?"));
        }
        let fields = body
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| match line.split_once(" = ") {
                Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
                None => Err(format!("the line \"{line}\" is not \"key = value\"")),
            })
            .collect::<Result<_, _>>()?;
        Ok(Fields { fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_was_written_and_nothing_else() {
        let mut fields = Fields::default();
        fields.set("name", "a replica = \"x\"");
        fields.set("cluster", "00ff");
        fields.set("empty", "");
        fields.set("lines", "one\ntwo");
        let text = fields.encode("test");
        let back = Fields::decode(text.as_bytes()).unwrap();
        assert_eq!(back, fields);
        assert_eq!(back.text("lines"), Ok("one two"));
        assert_eq!(back.hex("cluster"), Ok(255));
        assert!(back.parse::<u64>("name").is_err());
        assert!(back.text("other").is_err());
        assert_eq!(back.with_prefix("na").collect::<Vec<_>>(), [("me", "a replica = \"x\"")]);

        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            assert!(Fields::decode(&damaged).is_err(), "byte {at} changed");
            assert!(Fields::decode(&text.as_bytes()[..at]).is_err(), "cut at byte {at}");
        }
    }
}
