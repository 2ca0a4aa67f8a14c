//! Which versions and cipher suites are spoken.

use std::sync::Arc;

use rustls::{
    CipherSuite, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    version::{TLS12, TLS13},
};

/// The versions and cipher suites that are spoken. The default is all that are safe: TLS 1.2 and 1.3.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
}

/// A version or a cipher suite that there is not. The texts are etcd's as far as etcd has the same error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A version that is not spoken.
    #[error("unexpected TLS version {0:?} (must be one of: TLS1.2, TLS1.3)")]
    Version(String),
    /// The least version is above the greatest.
    #[error("min version ({min}) is greater than max version ({max})")]
    Order {
        /// The least version.
        min: String,
        /// The greatest version.
        max: String,
    },
    /// A cipher suite that is not there, or is not safe.
    #[error("unexpected TLS cipher suite {name:?}; accepted: {accepted}")]
    Suite {
        /// What was asked for.
        name: String,
        /// Those that there are.
        accepted: String,
    },
    /// Suites of TLS 1.2 are chosen, and TLS 1.2 is not spoken; or the other way round.
    #[error("none of the cipher suites is of a TLS version that is spoken")]
    NoSuite,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new("", "", &[]).expect("everything is accepted")
    }
}

impl Policy {
    /// The versions from `min` to `max`, as etcd writes them (`TLS1.2`, `TLS1.3`, or nothing for any), with these
    /// cipher suites, or with all if none is named. Where no suite of TLS 1.3 is named, all of that version are spoken.
    ///
    /// # Errors
    /// There is no such version or suite, or nothing is left to speak.
    pub fn new(min: &str, max: &str, suites: &[String]) -> Result<Policy, PolicyError> {
        let (least, most) = (version(min)?.unwrap_or(0), version(max)?.unwrap_or(1));
        if least > most {
            return Err(PolicyError::Order { min: min.into(), max: max.into() });
        }
        let mut provider = ring::default_provider();
        if !suites.is_empty() {
            provider.cipher_suites = chosen(&provider.cipher_suites, suites)?;
        }
        let versions = [&TLS12, &TLS13][least..=most].to_vec();
        let spoken = |version: &&'static SupportedProtocolVersion| {
            provider.cipher_suites.iter().any(|suite| suite.version() == *version)
        };
        if !versions.iter().any(spoken) {
            return Err(PolicyError::NoSuite);
        }
        let versions = versions.into_iter().filter(spoken).collect();
        Ok(Policy { provider: Arc::new(provider), versions })
    }
}

fn version(text: &str) -> Result<Option<usize>, PolicyError> {
    match text {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(0)),
        "TLS1.3" => Ok(Some(1)),
        _ => Err(PolicyError::Version(text.into())),
    }
}

fn chosen(
    known: &[SupportedCipherSuite],
    names: &[String],
) -> Result<Vec<SupportedCipherSuite>, PolicyError> {
    let mut chosen = Vec::new();
    for wanted in names {
        // Two suites had another name before they were standardised, which etcd still takes.
        let wanted = wanted.trim();
        let suite = known.iter().find(|suite| {
            let name = name(suite.suite());
            name == wanted || wanted.contains("CHACHA20") && name.strip_suffix("_SHA256") == Some(wanted)
        });
        match suite {
            Some(suite) => chosen.push(*suite),
            None => {
                let accepted: Vec<_> = known.iter().map(|suite| name(suite.suite())).collect();
                return Err(PolicyError::Suite { name: wanted.into(), accepted: accepted.join(", ") });
            }
        }
    }
    let is_13 = |suite: &SupportedCipherSuite| suite.version() == &TLS13;
    if !chosen.iter().any(is_13) {
        chosen.extend(known.iter().filter(|suite| is_13(suite)));
    }
    Ok(chosen)
}

/// The name that IANA gave a suite. rustls writes those of TLS 1.3 otherwise.
fn name(suite: CipherSuite) -> String {
    format!("{suite:?}").replace("TLS13_", "TLS_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(names: &[&str]) -> Result<Vec<String>, PolicyError> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let policy = Policy::new("", "", &names)?;
        Ok(policy.provider.cipher_suites.iter().map(|suite| name(suite.suite())).collect())
    }

    #[test]
    fn versions_are_a_range() {
        let versions = |min, max| Policy::new(min, max, &[]).map(|policy| policy.versions);
        assert_eq!(versions("", "").unwrap(), [&TLS12, &TLS13]);
        assert_eq!(versions("TLS1.3", "").unwrap(), [&TLS13]);
        assert_eq!(versions("TLS1.2", "TLS1.2").unwrap(), [&TLS12]);
        let error = versions("TLS1.1", "").unwrap_err().to_string();
        assert_eq!(error, r#"unexpected TLS version "TLS1.1" (must be one of: TLS1.2, TLS1.3)"#);
        let error = versions("TLS1.3", "TLS1.2").unwrap_err().to_string();
        assert_eq!(error, "min version (TLS1.3) is greater than max version (TLS1.2)");
    }

    #[test]
    fn suites_have_the_names_that_etcd_takes() {
        let one = suites(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).unwrap();
        assert!(
            one[0] == "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" && one[1..].iter().all(|name| name.len() < 32)
        );
        assert_eq!(suites(&["TLS_AES_128_GCM_SHA256"]).unwrap(), ["TLS_AES_128_GCM_SHA256"]);
        let old = suites(&["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"]).unwrap();
        assert_eq!(old[0], "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256");
        let error = suites(&["TLS_RSA_WITH_RC4_128_SHA"]).unwrap_err().to_string();
        assert!(error.contains(r#"unexpected TLS cipher suite "TLS_RSA_WITH_RC4_128_SHA""#), "{error}");
        let only_13 = Policy::new("TLS1.2", "TLS1.2", &["TLS_AES_128_GCM_SHA256".to_owned()]);
        assert_eq!(only_13.unwrap_err(), PolicyError::NoSuite);
    }
}
