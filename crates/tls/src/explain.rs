//! Failures of TLS for people.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// What an operator should know of a failure of TLS: what went wrong, and what helps.
#[must_use]
pub fn explain(error: &Error) -> String {
    let help = match error {
        // It is one of ours, which says all there is to say.
        Error::Other(error) => return error.to_string(),
        Error::NoCertificatesPresented => "the other side has to show a certificate, and shows none",
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "the certificate of the other side comes from another authority than the ones that are trusted here"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            "the certificate of the other side is for other host names or addresses than the one that was called"
        }
        Error::InvalidCertificate(CertificateError::Revoked) => {
            "the certificate of the other side is revoked"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the certificate of the other side has expired"
        }
        Error::AlertReceived(AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure) => {
            "the other side may want a certificate that it allows"
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown,
        ) => "the other side refuses the certificate of this one; its log says why",
        Error::InvalidMessage(_) => "the other side does not speak TLS as it should, or not at all",
        _ => return error.to_string(),
    };
    format!("{help} ({error})")
}

/// The same for an error of a stream, which may have another cause than TLS.
#[must_use]
pub fn explain_io(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => explain(error),
        None => error.to_string(),
    }
}
