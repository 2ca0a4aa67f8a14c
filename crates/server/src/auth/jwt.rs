//! Tokens that say for themselves who somebody is, signed by the server that issued them: JSON Web Tokens, with etcd's
//! claims. Every server that has the key knows them, also after a restart.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde_json::{Map, Value, json};

use super::keys;

/// What is accepted as options.
pub(super) const ACCEPTED: &str = "jwt,sign-method=METHOD,priv-key=FILE,pub-key=FILE,ttl=TIME, with the methods HS256, HS384, \
     HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA; without priv-key no tokens are issued";
/// etcd's text where there is only a public key.
const VERIFY_ONLY: &str = "auth: token signing attempted with verify-only key";

pub(super) struct Signer {
    method: Algorithm,
    ttl: Duration,
    /// `None` if tokens are only verified.
    signs: Option<EncodingKey>,
    verifies: DecodingKey,
}

impl std::fmt::Debug for Signer {
    /// A key must not come into a message of the log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("method", &self.method).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl Signer {
    /// Reads etcd's options, and the files of keys that they name.
    pub(super) fn parse(options: &str) -> Result<Signer, String> {
        let (mut method, mut ttl, mut private, mut public) = (None, None, None, None);
        for option in options.split(',') {
            let wrong = |why: &str| format!("{option:?}: {why}; accepted: {ACCEPTED}");
            let (name, value) = option.split_once('=').ok_or_else(|| wrong("give NAME=VALUE"))?;
            let read = || fs::read(value).map_err(|error| wrong(&error.to_string()));
            let is_first = match name {
                "sign-method" => {
                    let known = value.parse::<Algorithm>().map_err(|_| wrong("no such method"))?;
                    method.replace(known).is_none()
                }
                "ttl" => {
                    ttl.replace(duration(value).ok_or_else(|| wrong("give a time such as 5m"))?).is_none()
                }
                "priv-key" => private.replace(read()?).is_none(),
                "pub-key" => public.replace(read()?).is_none(),
                _ => return Err(wrong("no such option")),
            };
            if !is_first {
                return Err(wrong("it is given twice"));
            }
        }
        let method = method.ok_or_else(|| format!("sign-method is missing; accepted: {ACCEPTED}"))?;
        let ttl = ttl.unwrap_or(super::SIMPLE_TTL);
        Signer::new(method, ttl, private.as_deref(), public.as_deref())
            .map_err(|why| format!("{method:?}: {why}"))
    }

    /// Signs with HMAC and this secret.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of_key(key: &[u8]) -> Signer {
        Signer::new(Algorithm::HS256, super::SIMPLE_TTL, Some(key), None).expect("it is a key")
    }

    fn new(
        method: Algorithm,
        ttl: Duration,
        private: Option<&[u8]>,
        public: Option<&[u8]>,
    ) -> Result<Signer, String> {
        let (signs, verifies) = match method {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
                let key = private.filter(|key| !key.is_empty()).ok_or("no key is given; give priv-key")?;
                (Some(EncodingKey::from_secret(key)), DecodingKey::from_secret(key))
            }
            _ => keys::pair(method, private, public)?,
        };
        let signer = Signer { method, ttl, signs, verifies };
        // Keys of two pairs would show only when the first user comes.
        if signer.signs.is_some() && signer.sign("", 0).ok().and_then(|token| signer.verify(&token)).is_none()
        {
            return Err("auth: public and private keys don't match".to_owned());
        }
        Ok(signer)
    }

    /// A token of this user, at this revision of users and roles.
    pub(super) fn sign(&self, user: &str, revision: u64) -> Result<String, &'static str> {
        let Some(key) = &self.signs else { return Err(VERIFY_ONLY) };
        // Whole seconds, as in etcd, and no fewer than the time to live.
        let end = (since_1970() + self.ttl).as_secs_f64().ceil() as u64;
        let claims = json!({ "username": user, "revision": revision, "exp": end });
        jsonwebtoken::encode(&Header::new(self.method), &claims, key)
            .map_err(|_| "synod: the key cannot sign")
    }

    /// The user of a token, and the revision of users and roles at which it was issued.
    pub(super) fn verify(&self, token: &str) -> Option<(String, u64)> {
        let mut validation = Validation::new(self.method);
        validation.validate_aud = false;
        // Times are judged below: for the library a time of another type, such as "1", is none (CVE-2026-25537).
        validation.validate_exp = false;
        validation.required_spec_claims.clear();
        let claims =
            jsonwebtoken::decode::<Map<String, Value>>(token, &self.verifies, &validation).ok()?.claims;
        if !is_valid_at(&claims, since_1970()) {
            return None;
        }
        let user = claims.get("username")?.as_str()?.to_owned();
        Some((user, claims.get("revision")?.as_u64()?))
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether a token has begun and has not ended, `now` after 1970. As in etcd, a token of others may be without either
/// time; but a time that is there and is no number makes the token invalid.
fn is_valid_at(claims: &Map<String, Value>, now: Duration) -> bool {
    let time = |name: &str| claims.get(name).map(|time| time.as_f64().filter(|seconds| seconds.is_finite()));
    let ends_later = time("exp").is_none_or(|end| end.is_some_and(|end| now.as_secs_f64() < end));
    let has_begun = time("nbf").is_none_or(|begin| begin.is_some_and(|begin| begin <= now.as_secs_f64()));
    ends_later && has_begun
}

/// A time in Go's notation: numbers with the units h, m, s and ms, one after another.
fn duration(text: &str) -> Option<Duration> {
    let (mut sum, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let units = &rest[digits..];
        let end = units.find(|c: char| c.is_ascii_digit()).unwrap_or(units.len());
        let unit = match &units[..end] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        sum = sum.checked_add(Duration::from_millis(number.checked_mul(unit)?))?;
        rest = &units[end..];
    }
    Some(sum).filter(|sum| !sum.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(method: Algorithm, key: &[u8]) -> Signer {
        Signer::new(method, Duration::from_secs(60), Some(key), None).unwrap()
    }

    #[test]
    fn a_token_counts_only_with_its_key_and_its_method() {
        let own = signer(Algorithm::HS256, b"own");
        let token = own.sign("u", 7).unwrap();
        assert_eq!(own.verify(&token), Some(("u".to_owned(), 7)));
        assert_eq!(signer(Algorithm::HS256, b"other").verify(&token), None);
        assert_eq!(signer(Algorithm::HS512, b"own").verify(&token), None);
        // A token without a signature: the header says {"alg":"none"}.
        let claims = token.split('.').nth(1).unwrap();
        assert_eq!(own.verify(&format!("eyJhbGciOiJub25lIn0.{claims}.")), None);
        for garbled in ["", "..", "a.b.c", &token[1..]] {
            assert_eq!(own.verify(garbled), None, "{garbled}");
        }
    }

    #[test]
    fn claims_that_are_missing_or_of_another_kind_are_nobody() {
        let own = signer(Algorithm::HS256, b"own");
        let of = |claims: Value| {
            let key = own.signs.as_ref().unwrap();
            own.verify(&jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, key).unwrap())
        };
        assert_eq!(of(json!({ "username": "u", "revision": 3 })), Some(("u".to_owned(), 3)));
        for wrong in [
            json!({ "username": "u" }),
            json!({ "revision": 3 }),
            json!({ "username": 1, "revision": 3 }),
            json!({ "username": "u", "revision": "3" }),
            json!({ "username": "u", "revision": 3, "exp": 1 }),
            json!({ "username": "u", "revision": 3, "nbf": 1u64 << 40 }),
        ] {
            assert_eq!(of(wrong.clone()), None, "{wrong}");
        }
    }

    /// Whatever the end is, if it is no number in the future, the token has none that counts.
    #[test]
    fn a_time_of_the_wrong_type_makes_a_token_invalid() {
        let own = signer(Algorithm::HS256, b"own");
        let is_valid = |times: Value| {
            let mut claims = json!({ "username": "u", "revision": 3 });
            claims.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            let key = own.signs.as_ref().unwrap();
            let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, key).unwrap();
            own.verify(&token).is_some()
        };
        let now = since_1970().as_secs_f64();
        for wrong in
            [json!("1"), json!("99999999999"), json!(true), json!(null), json!({}), json!([]), json!(-1)]
        {
            assert!(!is_valid(json!({ "exp": wrong })), "exp {wrong}");
        }
        for wrong in [json!("1"), json!(true), json!(null), json!({}), json!([1])] {
            assert!(!is_valid(json!({ "nbf": wrong })), "nbf {wrong}");
        }
        for past in [json!(0), json!(1), json!(now - 1.0), json!(now.floor())] {
            assert!(!is_valid(json!({ "exp": past })), "exp {past}");
            assert!(is_valid(json!({ "nbf": past })), "nbf {past}");
        }
        for later in [json!(now + 60.5), json!(u64::MAX), json!(1e300)] {
            assert!(is_valid(json!({ "exp": later })), "exp {later}");
            assert!(!is_valid(json!({ "nbf": later })), "nbf {later}");
        }
        assert!(is_valid(json!({})) && is_valid(json!({ "nbf": -1, "exp": now + 60.0 })));
    }

    #[test]
    fn a_token_is_valid_for_its_time_to_live() {
        let short = Signer::new(Algorithm::HS256, Duration::from_millis(250), Some(b"own"), None).unwrap();
        let claims = short.sign("u", 1).unwrap();
        assert!(short.verify(&claims).is_some());
    }

    #[test]
    fn times_are_written_as_in_go() {
        let times = [("5m", 300_000), ("1h30m", 5_400_000), ("10s", 10_000), ("250ms", 250)];
        for (text, ms) in times {
            assert_eq!(duration(text), Some(Duration::from_millis(ms)));
        }
        for wrong in ["", "5", "m", "5x", "-5m", "0s", "5m3"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
