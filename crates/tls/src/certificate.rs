//! The common name of a certificate. rustls and webpki do not use it; etcd's Auth takes it for the name of a user.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The object identifier of a common name, 2.5.4.3, as it is encoded.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// The common name of the subject of a certificate: the last one if there are several, as Go takes it.
#[must_use]
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    common_name_in(certificate.subject())
}

/// The common name in a subject, which is a sequence, without its head, of sets of sequences of an identifier and a
/// value.
fn common_name_in(mut names: &[u8]) -> Option<String> {
    let mut found = None;
    while let Some((SET, mut set)) = element(&mut names) {
        while let Some((SEQUENCE, mut pair)) = element(&mut set) {
            if element(&mut pair)? == (OBJECT_IDENTIFIER, &COMMON_NAME) {
                let (_, value) = element(&mut pair)?;
                found = std::str::from_utf8(value).ok().map(str::to_owned);
            }
        }
    }
    found
}

/// Takes the next element of DER off `bytes`: its tag and its content.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        // Two bytes of length are more than a name may have.
        let count = usize::from(first & 0x7f);
        if !(1..=2).contains(&count) {
            return None;
        }
        let (head, after) = rest.split_at_checked(count)?;
        length = head.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(length)?;
    *bytes = after;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::pem::PemObject;
    use synod_fuzz::{Budget, Corpus, Memory, Target, Verdict, run};

    use super::*;
    use crate::authority::{Authority, Issued, Wanted};

    fn der(issued: &Issued) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&issued.certificate).unwrap()
    }

    #[test]
    fn the_common_name_is_found() {
        let authority = Authority::new();
        for name in ["example.com", "", "ä", &"long".repeat(60)] {
            let issued = authority.issue(&Wanted { common_name: name, ..Wanted::default() });
            let expected = (!name.is_empty()).then(|| name.to_owned());
            assert_eq!(common_name(&der(&issued)), expected);
        }
        assert_eq!(common_name(&CertificateDer::from(vec![0x30, 0x80, 1, 2])), None);
        let of_another_maker = CertificateDer::from(&include_bytes!("../corpus/certificate.der")[..]);
        assert_eq!(common_name(&of_another_maker), Some("example.com".to_owned()));
    }

    /// Clients and peers show certificates: of any bytes nothing comes but a name or none.
    #[test]
    fn any_bytes_are_a_subject_with_a_name_or_without() {
        fn subject(input: &[u8]) -> Verdict {
            let whole = common_name(&CertificateDer::from(input));
            match (common_name_in(input), whole) {
                (Some(name), _) => {
                    Verdict::Accepted(format!("{} bytes", name.len().checked_ilog2().unwrap_or(0)))
                }
                (None, Some(_)) => Verdict::Accepted("certificate".to_owned()),
                (None, None) => Verdict::Refused("no name".to_owned()),
            }
        }
        fn seeds() -> Vec<(String, Vec<u8>)> {
            let authority = Authority::new();
            let issued = authority.issue(&Wanted { common_name: "example.com", ..Wanted::default() });
            let certificate = der(&issued);
            let subject = EndEntityCert::try_from(&certificate).unwrap().subject().to_vec();
            let kept: [(&str, &[u8]); 3] = [
                ("certificate of another maker", include_bytes!("../corpus/certificate.der")),
                ("its subject", include_bytes!("../corpus/subject.der")),
                (
                    "several names, one empty, one long, one not in UTF-8",
                    include_bytes!("../corpus/names.der"),
                ),
            ];
            let now = [("certificate", certificate.to_vec()), ("subject", subject)];
            let kept = kept.map(|(name, bytes)| (name, bytes.to_vec()));
            now.into_iter().chain(kept).map(|(name, bytes)| (name.to_owned(), bytes)).collect()
        }
        let target = Target {
            name: "certificate",
            about: "",
            run: subject,
            seeds,
            memory: Memory::UNLIMITED,
            words: &[&[SEQUENCE], &[SET], &[OBJECT_IDENTIFIER, 3], &COMMON_NAME, &[0x81], &[0x82]],
        };
        let corpus = Corpus { inputs: seeds() };
        let budget = Budget { runs: u64::MAX, time: Duration::from_millis(700) };
        match run(&target, &corpus, 1, budget) {
            Ok(report) => println!("{report}"),
            Err(failure) => panic!("{failure}"),
        }
    }

    #[test]
    fn a_name_that_is_cut_off_is_none() {
        for bytes in [&[0x31][..], &[0x31, 5, 1], &[0x31, 0x83, 1, 1, 1], &[0x31, 0x81], &[0x31, 0x82, 1]] {
            assert_eq!(element(&mut &*bytes), None, "{bytes:?}");
        }
    }
}
