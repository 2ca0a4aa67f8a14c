//! A certificate authority for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber,
};

const DAY: Duration = Duration::from_secs(86_400);

/// An authority, whose files are in a folder that goes with it.
#[derive(Debug)]
pub struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: PathBuf,
}

/// What is asked of an authority.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The name of the two files.
    pub file: &'a str,
    /// The common name of the subject; empty for none.
    pub common_name: &'a str,
    /// The host names and addresses.
    pub hosts: &'a [&'a str],
    /// The number of the certificate.
    pub serial: u64,
    /// Whether its time is over.
    pub expired: bool,
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Wanted {
            file: "issued",
            common_name: "tester",
            hosts: &["localhost", "127.0.0.1"],
            serial: 1,
            expired: false,
        }
    }
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
}

impl Authority {
    /// An authority that is like no other.
    #[must_use]
    pub fn new() -> Authority {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let mut wanted = CertificateParams::default();
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        wanted.distinguished_name = named("authority");
        let key = KeyPair::generate().expect("there are random numbers");
        let certificate = wanted.self_signed(&key).expect("the parameters are sound");
        let path = folder.path().join("authority.crt");
        fs::write(&path, certificate.pem()).expect("the folder can be written");
        Authority { folder, issuer: Issuer::new(wanted, key), certificate: path }
    }

    /// The file with its certificate.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The folder of its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Makes a certificate, in place of one that the same files hold.
    #[must_use]
    pub fn issue(&self, wanted: &Wanted<'_>) -> Issued {
        let mut params = params(wanted);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("there are random numbers");
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters are sound");
        self.write(wanted, &certificate, &key)
    }

    /// Makes the certificate of another authority, which is one for hosts as well: what `openssl req -x509` makes.
    #[must_use]
    pub fn of_itself(&self, wanted: &Wanted<'_>) -> Issued {
        let mut params = params(wanted);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("there are random numbers");
        let certificate = params.self_signed(&key).expect("the parameters are sound");
        self.write(wanted, &certificate, &key)
    }

    fn write(&self, wanted: &Wanted<'_>, certificate: &Certificate, key: &KeyPair) -> Issued {
        let path = |extension| self.folder.path().join(format!("{}.{extension}", wanted.file));
        let issued = Issued { certificate: path("crt"), key: path("key") };
        fs::write(&issued.certificate, certificate.pem()).expect("the folder can be written");
        fs::write(&issued.key, key.serialize_pem()).expect("the folder can be written");
        issued
    }

    /// Writes the list of revoked certificates: those with these numbers.
    #[must_use]
    pub fn revoke(&self, serials: &[u64]) -> PathBuf {
        let now = SystemTime::now();
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + DAY).into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("the authority may sign lists");
        let path = self.folder.path().join("revoked.crl");
        fs::write(&path, list.der()).expect("the folder can be written");
        path
    }
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

fn params(wanted: &Wanted<'_>) -> CertificateParams {
    let hosts: Vec<_> = wanted.hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("the names are sound");
    params.distinguished_name = named(wanted.common_name);
    params.serial_number = Some(SerialNumber::from(wanted.serial));
    let now = SystemTime::now();
    params.not_before = (now - 10 * DAY).into();
    params.not_after = if wanted.expired { now - 5 * DAY } else { now + 10 * DAY }.into();
    params
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if common_name.is_empty() {
        name.push(DnType::OrganizationName, "tests");
    } else {
        name.push(DnType::CommonName, common_name);
    }
    name
}
