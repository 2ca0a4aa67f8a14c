//! Certificates, keys and lists of revoked certificates in files, and what is wrong with them.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime, pem::PemObject},
};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage};

/// The certificate that this process shows, and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// A file in PEM: the certificate first, then those that lead to an authority.
    pub certificate: PathBuf,
    /// A file in PEM: the certificate's private key, in PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Why there is no TLS with these files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; is the path right, and may this user read the file?", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is accepted.
        why: String,
    },
    /// A certificate and a key do not belong together.
    #[error(
        "the key in {} is not that of the certificate in {}; give the key with which the certificate was requested",
        key.display(), certificate.display()
    )]
    KeyMismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Settings contradict each other.
    #[error("{0}")]
    Settings(String),
}

impl TlsError {
    pub(crate) fn content(path: &Path, why: impl Into<String>) -> TlsError {
        TlsError::Content { path: path.to_owned(), why: why.into() }
    }
}

/// A warning if every user of this machine may use the file of a key. A group may: that is how keys reach containers.
#[must_use]
pub fn key_is_open(path: &Path) -> Option<String> {
    let permissions = fs::metadata(path).ok()?.mode() & 0o777;
    (permissions & 0o007 != 0).then(|| {
        let path = path.display();
        format!(
            "other users of this machine may use the key in {path} (its permissions are {permissions:03o}); close it with: \
             chmod o= {path}"
        )
    })
}

/// What tells whether a file has changed; `None` for one that is not there.
pub(crate) type Stamp = Option<(SystemTime, u64, u64)>;

pub(crate) fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len(), meta.ino()))
    };
    paths.iter().map(stamp).collect()
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::content(
            path,
            "it holds no certificate; accepted: PEM, -----BEGIN CERTIFICATE-----",
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::content(path, format!("it is not PEM: {error}"))),
    }
}

impl Identity {
    /// The certificate and the key in these files.
    #[must_use]
    pub fn of(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Identity {
        Identity { certificate: certificate.into(), key: key.into() }
    }

    /// The files whose changes matter.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        [&*self.certificate, &*self.key].into_iter()
    }

    /// The certificate with those that lead to an authority, and the key.
    pub(crate) fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let chain = certificates(&self.certificate)?;
        check_validity(&self.certificate, &chain[0])?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?).map_err(|error| {
            let why = format!("it holds no private key ({error}); accepted: PEM, PKCS #8, PKCS #1 or SEC 1");
            TlsError::content(&self.key, why)
        })?;
        Ok((chain, key))
    }

    /// Says which file an error of rustls about the two is about.
    pub(crate) fn refused(&self, error: &rustls::Error) -> TlsError {
        match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::KeyMismatch { certificate: self.certificate.clone(), key: self.key.clone() }
            }
            rustls::Error::InvalidCertificate(_) => {
                TlsError::content(&self.certificate, format!("the certificate cannot be used: {error}"))
            }
            _ => TlsError::content(
                &self.key,
                format!(
                    "the key cannot be used: {error}; accepted: RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, Ed25519"
                ),
            ),
        }
    }
}

/// Refuses a certificate whose time is over or has not come.
fn check_validity(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
    let malformed = |error| TlsError::content(path, format!("the certificate is malformed: {error}"));
    let leaf = EndEntityCert::try_from(certificate).map_err(malformed)?;
    // Times are looked at before anything else. Without an authority the rest of the check fails, which does not
    // matter.
    let now = UnixTime::now();
    let day = |time: UnixTime| time.as_secs() / 86_400;
    match leaf.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], now, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { time, not_after }) => {
            let days = day(time).saturating_sub(day(not_after));
            Err(TlsError::content(
                path,
                format!("the certificate has expired {days} days ago; have it renewed"),
            ))
        }
        Err(webpki::Error::CertNotValidYet { .. }) => Err(TlsError::content(
            path,
            "the certificate is not valid yet; is the clock of this machine right?",
        )),
        Err(error @ (webpki::Error::BadDer | webpki::Error::BadDerTime)) => Err(malformed(error)),
        _ => Ok(()),
    }
}

/// The authorities in a file; without one, those that the system trusts.
pub(crate) fn authorities(path: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let why = "no file with authorities is given, and the system trusts none; give the certificate of the \
                       authority (--cacert, --trusted-ca-file, --peer-trusted-ca-file)";
            return Err(TlsError::Settings(why.into()));
        }
        return Ok(roots);
    };
    for authority in certificates(path)? {
        roots.add(authority).map_err(|error| {
            TlsError::content(path, format!("a certificate cannot be that of an authority: {error}"))
        })?;
    }
    Ok(roots)
}

/// The list of revoked certificates in a file, in DER or PEM.
pub(crate) fn revoked(path: &Path) -> Result<webpki::OwnedCertRevocationList, TlsError> {
    let bytes = read(path)?;
    let der = match CertificateRevocationListDer::from_pem_slice(&bytes) {
        Ok(list) => list.to_vec(),
        Err(_) => bytes,
    };
    webpki::OwnedCertRevocationList::from_der(&der).map_err(|error| {
        let why =
            format!("it holds no list of revoked certificates ({error}); accepted: X.509 v2, DER or PEM");
        TlsError::content(path, why)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_that_others_may_use_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key.pem");
        fs::write(&key, "a key").unwrap();
        let warning = |mode| {
            fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
            key_is_open(&key)
        };
        assert_eq!([0o600, 0o400, 0o640].map(warning), [None, None, None]);
        for mode in [0o644, 0o604, 0o602] {
            assert!(warning(mode).unwrap().contains(&format!("are {mode:o}); close it with: chmod o= /")));
        }
        assert_eq!(key_is_open(&folder.path().join("none")), None);
    }
}
