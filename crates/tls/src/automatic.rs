//! Certificates that a replica makes for itself: the connection is encrypted, and nobody knows with whom.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use tracing::info;

use crate::{Identity, TlsError};

/// A year, as etcd counts it.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The certificate for these hosts in `folder`, which is made, and valid for this many years, unless it is there
/// already and has not expired. It can be given to clients as that of an authority.
///
/// # Errors
/// The folder cannot be written, or a host has a name that no certificate can have.
pub fn self_signed(folder: &Path, hosts: &[String], years: u32) -> Result<Identity, TlsError> {
    let identity = Identity { certificate: folder.join("cert.pem"), key: folder.join("key.pem") };
    if identity.load().is_ok() {
        return Ok(identity);
    }
    let unreadable = |source| TlsError::Unreadable { path: folder.to_owned(), source };
    let refused = |error: rcgen::Error| TlsError::Settings(format!("no certificate can be made: {error}"));
    // It may be this that creates the data directory.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unreadable)?;
    let mut wanted = CertificateParams::new(hosts).map_err(refused)?;
    wanted.distinguished_name = rcgen::DistinguishedName::new();
    wanted.distinguished_name.push(DnType::OrganizationName, "synod");
    let now = SystemTime::now();
    // Clocks differ a little.
    wanted.not_before = (now - Duration::from_secs(60)).into();
    wanted.not_after = (now + YEAR * years).into();
    wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    wanted.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().map_err(refused)?;
    let certificate = wanted.self_signed(&key).map_err(refused)?;
    write(&identity.key, &key.serialize_pem(), 0o600).map_err(unreadable)?;
    write(&identity.certificate, &certificate.pem(), 0o644).map_err(unreadable)?;
    info!(file = %identity.certificate.display(), years, "a certificate was made for this replica, which nobody vouches for");
    Ok(identity)
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    // A file of an earlier certificate may have other permissions.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(text.as_bytes())
}
