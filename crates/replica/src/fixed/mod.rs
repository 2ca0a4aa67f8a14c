//! Encodings that other versions read, byte for byte.

use std::{env, fs};

use bytes::Bytes;

/// Compares encodings with a text that has a line for each: the name of its kind, and its bytes. A difference takes
/// another version of the format; with `SYNOD_BLESS=1` the text is written.
pub(crate) fn check(name: &str, expected: &str, found: impl Iterator<Item = (String, Bytes)>) {
    let line = |(value, bytes): (String, Bytes)| {
        let kind = value.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{kind} {hex}\n")
    };
    let found: String = found.map(line).collect();
    if env::var_os("SYNOD_BLESS").is_some() {
        fs::write(format!("{}/src/fixed/{name}.txt", env!("CARGO_MANIFEST_DIR")), &found).unwrap();
        return;
    }
    assert_eq!(found, expected, "what is written changed: other versions would not read it");
}
