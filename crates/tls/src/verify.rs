//! Which processes may connect, and which may be connected to: the chain to an authority, revoked certificates, allowed
//! names.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tracing::warn;
use webpki::{CertRevocationList, EndEntityCert};

use crate::{TlsError, common_name, files};

/// Which certificates to trust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trust {
    /// A file in PEM with the certificates of authorities.
    pub authorities: Option<PathBuf>,
    /// A file in DER or PEM with revoked certificates. As with etcd it counts by the serial number of a certificate
    /// alone, its signature is not checked (a process that can change the file can change the authorities as well), and
    /// it does not expire.
    pub revoked: Option<PathBuf>,
    /// Which names a certificate must have, besides the chain to an authority.
    pub allowed: Allowed,
}

/// The names that the other side's certificate may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allowed {
    /// Any name.
    #[default]
    All,
    /// One of these common names.
    CommonNames(Vec<String>),
    /// It is valid for one of these host names or addresses.
    Hostnames(Vec<String>),
}

impl Trust {
    /// Trust in certificates that lead to one of the authorities in this file, whatever their names; the default is
    /// trust in the system's authorities.
    #[must_use]
    pub fn of(authorities: impl Into<PathBuf>) -> Trust {
        Trust { authorities: Some(authorities.into()), ..Trust::default() }
    }

    /// The same, but for the certificates that are listed as revoked in this file.
    #[must_use]
    pub fn without(self, revoked: impl Into<PathBuf>) -> Trust {
        Trust { revoked: Some(revoked.into()), ..self }
    }

    /// The same, for certificates with these names alone.
    #[must_use]
    pub fn named(self, allowed: Allowed) -> Trust {
        Trust { allowed, ..self }
    }

    /// The files whose changes matter.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.authorities.iter().chain(&self.revoked).map(PathBuf::as_path)
    }

    fn checks(&self, lists: &Lists) -> Result<Checks, TlsError> {
        if let Allowed::Hostnames(names) = &self.allowed
            && let Some(wrong) = names.iter().find(|name| ServerName::try_from(name.as_str()).is_err())
        {
            return Err(TlsError::Settings(format!("{wrong:?} is no host name and no address")));
        }
        let revoked = self.revoked.as_deref().map(|path| lists.read(path)).transpose()?;
        Ok(Checks { revoked, allowed: self.allowed.clone() })
    }

    /// The certificates of authorities in the file, if there is one.
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        self.authorities.as_deref().map_or(Ok(Vec::new()), files::certificates)
    }

    /// What checks the certificates of those that connect.
    pub(crate) fn of_clients(
        &self,
        provider: &Arc<CryptoProvider>,
        lists: &Lists,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let roots = Arc::new(files::authorities(self.authorities.as_deref())?);
        let chain = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        let chain = chain.map_err(|error| TlsError::Settings(error.to_string()))?;
        Ok(Arc::new(Strict { chain, checks: self.checks(lists)?, authorities: self.certificates()? }))
    }

    /// What checks the certificates of those that are connected to.
    pub(crate) fn of_servers(
        &self,
        provider: &Arc<CryptoProvider>,
        lists: &Lists,
    ) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
        let roots: RootCertStore = files::authorities(self.authorities.as_deref())?;
        let chain =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
        let chain = chain.map_err(|error| TlsError::Settings(error.to_string()))?;
        Ok(Arc::new(Strict { chain, checks: self.checks(lists)?, authorities: self.certificates()? }))
    }
}

/// The list of revoked certificates as it was when it could be read the last time. A list that is broken afterwards
/// must not keep a renewed certificate from being taken: the old one would expire.
#[derive(Debug, Default)]
pub(crate) struct Lists(Mutex<Option<Arc<CertRevocationList<'static>>>>);

impl Lists {
    /// What the file holds, or else what it held before.
    fn read(&self, path: &Path) -> Result<Arc<CertRevocationList<'static>>, TlsError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (files::revoked(path), &*last) {
            (Ok(list), _) => Ok(Arc::clone(last.insert(Arc::new(list.into())))),
            (Err(error), Some(list)) => {
                warn!("the list of revoked certificates that was read before stays in use: {error}");
                Ok(Arc::clone(list))
            }
            (Err(error), None) => Err(error),
        }
    }
}

/// Whether a certificate is valid for this host name or address.
#[must_use]
pub fn is_valid_for(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let (Ok(certificate), Ok(host)) = (EndEntityCert::try_from(certificate), ServerName::try_from(host))
    else {
        return false;
    };
    certificate.verify_is_valid_for_subject_name(&host).is_ok()
}

/// What a certificate must pass after its chain.
#[derive(Debug)]
struct Checks {
    revoked: Option<Arc<CertRevocationList<'static>>>,
    allowed: Allowed,
}

/// Why a certificate whose chain is good is refused.
#[derive(Clone, Debug, thiserror::Error)]
enum Refused {
    #[error("the certificate of {name} has none of the allowed common names: {allowed}")]
    CommonName { name: String, allowed: String },
    #[error("the certificate of {name} is for none of the allowed host names: {allowed}")]
    Hostname { name: String, allowed: String },
}

impl Checks {
    fn check(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        for certificate in [leaf].into_iter().chain(others) {
            let parsed = EndEntityCert::try_from(certificate)
                .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
            let Some(revoked) = &self.revoked else { break };
            if !matches!(revoked.find_serial(parsed.serial()), Ok(None)) {
                return Err(Error::InvalidCertificate(CertificateError::Revoked));
            }
        }
        let name = common_name(leaf);
        let told = || name.clone().unwrap_or_else(|| "no name".into());
        let refused = match &self.allowed {
            Allowed::All => return Ok(()),
            Allowed::CommonNames(allowed) => {
                if name.as_ref().is_some_and(|name| allowed.contains(name)) {
                    return Ok(());
                }
                Refused::CommonName { name: told(), allowed: allowed.join(", ") }
            }
            Allowed::Hostnames(allowed) => {
                if allowed.iter().any(|host| is_valid_for(leaf, host)) {
                    return Ok(());
                }
                Refused::Hostname { name: told(), allowed: allowed.join(", ") }
            }
        };
        Err(Error::Other(OtherError(Arc::new(refused))))
    }
}

/// Checks what rustls checks, and then more. As with etcd, the certificate of a trusted authority may also be that of a
/// host, which webpki refuses: the holder of its key can make certificates for any host anyway.
#[derive(Debug)]
struct Strict<V: ?Sized> {
    checks: Checks,
    /// The certificates of the authorities, unless they are those that the system trusts.
    authorities: Vec<CertificateDer<'static>>,
    chain: Arc<V>,
}

impl<V: ?Sized> Strict<V> {
    /// Whether a certificate is refused only because it is an authority's, and that is one of those trusted here. Its
    /// time has been looked at before.
    fn trusts(&self, leaf: &CertificateDer<'_>, refusal: &Error) -> bool {
        let Error::InvalidCertificate(CertificateError::Other(OtherError(why))) = refusal else {
            return false;
        };
        matches!(why.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
            && self.authorities.contains(leaf)
    }
}

/// The methods of both traits that the chain answers, whichever side is verified.
macro_rules! signatures_by_chain {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.chain.verify_tls12_signature(message, certificate, signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.chain.verify_tls13_signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.chain.supported_verify_schemes()
        }
    };
}

impl ClientCertVerifier for Strict<dyn ClientCertVerifier> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = match self.chain.verify_client_cert(leaf, others, now) {
            Err(refusal) if self.trusts(leaf, &refusal) => ClientCertVerified::assertion(),
            verified => verified?,
        };
        self.checks.check(leaf, others).map(|()| verified)
    }

    signatures_by_chain!();
}

impl ServerCertVerifier for Strict<WebPkiServerVerifier> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = match self.chain.verify_server_cert(leaf, others, name, ocsp, now) {
            Err(refusal) if self.trusts(leaf, &refusal) => {
                verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
                ServerCertVerified::assertion()
            }
            verified => verified?,
        };
        self.checks.check(leaf, others).map(|()| verified)
    }

    signatures_by_chain!();
}

/// Takes any certificate. The connection is encrypted, and nobody knows with whom.
#[derive(Debug)]
pub(crate) struct Anybody(pub(crate) Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
