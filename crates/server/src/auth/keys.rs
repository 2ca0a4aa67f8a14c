//! The keys of signed tokens, as files in PEM have them: RSA in PKCS 1 or PKCS 8, elliptic curves in SEC 1 or PKCS 8,
//! and Ed25519 in PKCS 8. A private key alone suffices, since it has its public one.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use ring::{
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _,
    },
};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};

/// What precedes a key of SEC 1 in PKCS 8 ([RFC 5208], [RFC 5915]): version 0, that it is a key of an elliptic curve,
/// and of which one.
///
/// [RFC 5208]: https://www.rfc-editor.org/rfc/rfc5208#section-5
/// [RFC 5915]: https://www.rfc-editor.org/rfc/rfc5915#section-3
const OF_P256: &[u8] =
    b"\x02\x01\x00\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const OF_P384: &[u8] =
    b"\x02\x01\x00\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22";
const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;

/// The keys that sign and verify with a method that has pairs of them. Without a private one nothing is signed.
pub(super) fn pair(
    method: Algorithm,
    private: Option<&[u8]>,
    public: Option<&[u8]>,
) -> Result<(Option<EncodingKey>, DecodingKey), String> {
    let own =
        private.map(|pem| of_private(method, pem).map_err(|why| format!("priv-key {why}"))).transpose()?;
    let (signs, derived) = own.unzip();
    let read = match method {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem,
        Algorithm::EdDSA => DecodingKey::from_ed_pem,
        _ => DecodingKey::from_rsa_pem,
    };
    let given = public.map(read).transpose();
    let given = given.map_err(|error| format!("pub-key cannot be read: {error}; give PEM"))?;
    let verifies = given.or(derived).ok_or("no key is given; give priv-key, or pub-key to verify only")?;
    Ok((signs, verifies))
}

/// Both keys of a private one.
fn of_private(method: Algorithm, pem: &[u8]) -> Result<(EncodingKey, DecodingKey), String> {
    let key =
        PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("cannot be read: {error}; give PEM"))?;
    let rejected = |error: ring::error::KeyRejected| format!("is no key for {method:?}: {error}");
    let other = || Err(format!("is of another kind than {method:?} takes"));
    let curve: (&'static EcdsaSigningAlgorithm, _) = match method {
        Algorithm::ES256 => (&ECDSA_P256_SHA256_FIXED_SIGNING, OF_P256),
        Algorithm::ES384 => (&ECDSA_P384_SHA384_FIXED_SIGNING, OF_P384),
        Algorithm::EdDSA => {
            let PrivateKeyDer::Pkcs8(key) = key else { return other() };
            let der = key.secret_pkcs8_der();
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(rejected)?;
            let public = DecodingKey::from_ed_der(pair.public_key().as_ref());
            return Ok((EncodingKey::from_ed_der(der), public));
        }
        _ => {
            let pair = match &key {
                PrivateKeyDer::Pkcs1(key) => rsa::KeyPair::from_der(key.secret_pkcs1_der()),
                PrivateKeyDer::Pkcs8(key) => rsa::KeyPair::from_pkcs8(key.secret_pkcs8_der()),
                _ => return other(),
            };
            let public: rsa::PublicKeyComponents<Vec<u8>> = pair.map_err(rejected)?.public().into();
            let signs = EncodingKey::from_rsa_pem(pem).map_err(|error| format!("cannot be read: {error}"))?;
            return Ok((signs, DecodingKey::from_rsa_raw_components(&public.n, &public.e)));
        }
    };
    let (curve, prefix) = curve;
    let der = match &key {
        PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
        PrivateKeyDer::Sec1(key) => {
            element(SEQUENCE, &[prefix, &element(OCTETS, key.secret_sec1_der())].concat())
        }
        _ => return other(),
    };
    let pair = EcdsaKeyPair::from_pkcs8(curve, &der, &SystemRandom::new()).map_err(rejected)?;
    Ok((EncodingKey::from_ec_der(&der), DecodingKey::from_ec_der(pair.public_key().as_ref())))
}

/// An element of DER of less than 64 KiB.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    let head: &[u8] = match content.len() {
        0..0x80 => &[tag, low],
        0x80..0x100 => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [head, content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys as openssl writes them: `ecparam -genkey`, `genrsa -traditional` and `genpkey`, and what `pkcs8 -topk8` and
    /// `pkey -pubout` make of these.
    macro_rules! key {
        ($name:literal) => {
            include_bytes!(concat!("../../tests/keys/", $name, ".pem")).as_slice()
        };
    }

    #[test]
    fn private_keys_of_each_kind_sign_alone_and_with_their_public_ones() {
        use Algorithm::{ES256, ES384, EdDSA, PS384, RS256};
        let rsa = [key!("rs256-pkcs1"), key!("rs256-pkcs8")];
        for (method, kinds, public) in [
            (ES256, &[key!("es256-sec1"), key!("es256-pkcs8")][..], key!("es256-public")),
            (ES384, &[key!("es384-sec1"), key!("es384-pkcs8")], key!("es384-public")),
            (EdDSA, &[key!("eddsa-pkcs8")], key!("eddsa-public")),
            (RS256, &rsa, key!("rs256-public")),
            (PS384, &rsa, key!("rs256-public")),
        ] {
            for private in kinds {
                let (signs, alone) = pair(method, Some(private), None).unwrap();
                let (_, given) = pair(method, Some(private), Some(public)).unwrap();
                let (nothing, verifies) = pair(method, None, Some(public)).unwrap();
                assert!(nothing.is_none());
                let claims = serde_json::json!({ "exp": 1_u64 << 40 });
                let header = jsonwebtoken::Header::new(method);
                let token = jsonwebtoken::encode(&header, &claims, &signs.unwrap()).unwrap();
                for key in [alone, given, verifies] {
                    let validation = jsonwebtoken::Validation::new(method);
                    jsonwebtoken::decode::<serde_json::Value>(&token, &key, &validation).unwrap();
                }
                for other in [ES256, ES384, EdDSA, RS256] {
                    let is_same = other == method || (other, method) == (RS256, PS384);
                    assert!(is_same || pair(other, Some(private), None).is_err(), "{method:?} {other:?}");
                }
            }
        }
        let why = |private| pair(ES256, private, None).err().unwrap();
        assert!(why(Some(&b"no PEM"[..])).starts_with("priv-key cannot be read"));
        assert!(why(None).contains("no key is given"));
    }

    #[test]
    fn elements_of_all_lengths_have_the_right_heads() {
        assert_eq!(element(4, &[7; 3]), [4, 3, 7, 7, 7]);
        assert_eq!(element(4, &[7; 0x80])[..3], [4, 0x81, 0x80]);
        assert_eq!(element(4, &[7; 0x1234])[..4], [4, 0x82, 0x12, 0x34]);
    }
}
