//! TLS, as the flags ask for it. The rules, and the texts where there is one, are etcd's.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use synod_node::Tls;
use synod_server::{Config as ServerConfig, urls};
use synod_tls::{Acceptor, Allowed, Connector, Identity, Policy, TlsError, Trust, key_is_open, self_signed};

use super::{
    config::{ConfigError, wrong},
    flags::{ServeArgs, TlsArgs},
};

/// What is to be made from files, once it is known that the flags make sense.
#[derive(Debug)]
pub struct TlsPlan {
    policy: Policy,
    /// For how many years a certificate is valid that this replica makes.
    years: u32,
    clients: Option<Side>,
    peers: Option<Side>,
    /// The identity with which this replica calls others, if that is another one.
    calls_as: Option<Identity>,
    /// Whether another replica's certificate must be for the host of its URL.
    checks_hosts: bool,
}

/// The flag of URLs for pages.
const METRICS: &str = "listen-metrics-urls";

/// TLS towards clients, or towards other replicas.
#[derive(Debug)]
struct Side {
    shown: Shown,
    /// What is trusted, if the other side has to show a certificate.
    trust: Option<Trust>,
}

/// The certificate that is shown.
#[derive(Debug)]
enum Shown {
    Given(Identity),
    /// One that is made for these hosts, and kept in this folder of the data directory.
    Made {
        hosts: Vec<String>,
        folder: &'static str,
    },
}

/// The flags of one side.
struct Flags<'a> {
    /// Certificate and key, and how their flags are called.
    identity: [(&'static str, &'a Option<PathBuf>); 2],
    authorities: (&'static str, &'a Option<PathBuf>),
    demands: (&'static str, bool),
    revoked: (&'static str, &'a Option<PathBuf>),
    common_names: (&'static str, &'a [String]),
    hostnames: (&'static str, &'a [String]),
    makes: (&'static str, bool),
    listens: (&'static str, &'a [String]),
    /// Those of these URLs that another flag gives.
    others: &'a [(&'static str, &'a [String])],
    folder: &'static str,
}

impl TlsPlan {
    /// Whether this replica speaks TLS with others.
    pub fn is_between_replicas(&self) -> bool {
        self.peers.is_some()
    }

    /// Checks what can be checked without reading a file.
    pub fn check(
        args: &ServeArgs,
        node: &synod_node::Config,
        warnings: &mut Vec<String>,
    ) -> Result<TlsPlan, ConfigError> {
        let TlsArgs { cipher_suites, tls_min_version, tls_max_version, .. } = &args.tls;
        if tls_min_version == "TLS1.3"
            && !cipher_suites.is_empty()
            && !cipher_suites.iter().any(|suite| is_of_13(suite))
        {
            let why =
                "cipher suites cannot be configured when only TLS1.3 is enabled; accepted: suites of TLS 1.3";
            return wrong("cipher-suites", cipher_suites.join(","), why);
        }
        let policy =
            Policy::new(tls_min_version, tls_max_version, cipher_suites).or_else(|error| match error {
                synod_tls::PolicyError::Suite { .. } | synod_tls::PolicyError::NoSuite => {
                    wrong("cipher-suites", cipher_suites.join(","), error)
                }
                _ => wrong("tls-min-version", tls_min_version, error),
            })?;
        let others = [
            ("listen-client-http-urls", &args.etcd.listen_client_http_urls[..]),
            (METRICS, &args.member.listen_metrics_urls[..]),
        ];
        let urls = [&args.member.listen_client_urls[..]].into_iter().chain(others.map(|(_, urls)| urls));
        let client_urls: Vec<String> = urls.flatten().cloned().collect();
        let secure = client_urls.iter().find(|url| urls::asks_for_tls(url));
        if let Some(url) = secure.filter(|url| args.member.listen_metrics_urls.contains(url))
            && args.tls.cert_file.is_none()
            && !args.tls.auto_tls
        {
            let why = "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url; or \
                       --auto-tls makes one";
            return wrong(METRICS, url, why);
        }
        let clients = side(&of_clients(&args.tls, &client_urls, &others), false, warnings)?;
        let named = args.cluster.initial_cluster.iter().filter_map(|pair| pair.split_once('='));
        let calls = named.into_iter().any(|(_, url)| urls::asks_for_tls(url));
        let peers = side(&of_peers(&args.tls, &args.member.listen_peer_urls), calls, warnings)?;
        warnings.extend(exposed(&node.listen));
        let calls_as = pair([
            ("peer-client-cert-file", &args.tls.peer_client_cert_file),
            ("peer-client-key-file", &args.tls.peer_client_key_file),
        ])?;
        let checks_hosts = !args.tls.peer_skip_client_san_verification;
        Ok(TlsPlan {
            policy,
            years: args.tls.self_signed_cert_validity,
            clients,
            peers,
            calls_as,
            checks_hosts,
        })
    }

    /// Reads the files, and makes certificates where that was asked for.
    pub fn start(self, data_dir: &Path) -> Result<(Option<Acceptor>, Option<Tls>), TlsError> {
        let TlsPlan { policy, years, clients, peers, calls_as, checks_hosts } = self;
        let shown = |shown: Shown| match shown {
            Shown::Given(identity) => {
                key_is_open(&identity.key).into_iter().for_each(|warning| tracing::warn!("{warning}"));
                Ok((identity, false))
            }
            Shown::Made { hosts, folder } => {
                self_signed(&data_dir.join("fixtures").join(folder), &hosts, years).map(|made| (made, true))
            }
        };
        let clients = clients.map(|side| {
            let (identity, _) = shown(side.shown)?;
            Acceptor::new(identity, side.trust, policy.clone(), &ServerConfig::PROTOCOLS)
        });
        let peers = peers.map(|side| {
            let (identity, is_made) = shown(side.shown)?;
            let acceptor = Acceptor::new(identity.clone(), side.trust.clone(), policy.clone(), &[])?;
            // Certificates that replicas make for themselves cannot be checked. Without authorities the system's count.
            let trust = if is_made { None } else { Some(side.trust.unwrap_or_default()) };
            let connector = Connector::new(Some(calls_as.unwrap_or(identity)), trust, policy.clone(), &[])?;
            let mut tls = Tls::of(acceptor, connector);
            tls.checks_hosts = checks_hosts;
            Ok(tls)
        });
        Ok((clients.transpose()?, peers.transpose()?))
    }
}

fn is_of_13(suite: &str) -> bool {
    !suite.contains("_WITH_")
}

fn of_clients<'a>(
    args: &'a TlsArgs,
    urls: &'a [String],
    others: &'a [(&'static str, &'a [String])],
) -> Flags<'a> {
    Flags {
        identity: [("cert-file", &args.cert_file), ("key-file", &args.key_file)],
        authorities: ("trusted-ca-file", &args.trusted_ca_file),
        demands: ("client-cert-auth", args.client_cert_auth),
        revoked: ("client-crl-file", &args.client_crl_file),
        common_names: ("client-cert-allowed-cn", &[]),
        hostnames: ("client-cert-allowed-hostname", &args.client_cert_allowed_hostname),
        makes: ("auto-tls", args.auto_tls),
        listens: ("listen-client-urls", urls),
        others,
        folder: "client",
    }
}

fn of_peers<'a>(args: &'a TlsArgs, urls: &'a [String]) -> Flags<'a> {
    Flags {
        identity: [("peer-cert-file", &args.peer_cert_file), ("peer-key-file", &args.peer_key_file)],
        authorities: ("peer-trusted-ca-file", &args.peer_trusted_ca_file),
        demands: ("peer-client-cert-auth", args.peer_client_cert_auth),
        revoked: ("peer-crl-file", &args.peer_crl_file),
        common_names: ("peer-cert-allowed-cn", &args.peer_cert_allowed_cn),
        hostnames: ("peer-cert-allowed-hostname", &args.peer_cert_allowed_hostname),
        makes: ("peer-auto-tls", args.peer_auto_tls),
        listens: ("listen-peer-urls", urls),
        others: &[],
        folder: "peer",
    }
}

/// A certificate and its key, of which both are given or neither.
fn pair(flags: [(&'static str, &Option<PathBuf>); 2]) -> Result<Option<Identity>, ConfigError> {
    match flags.map(|(flag, path)| (flag, path.as_ref())) {
        [(_, Some(certificate)), (_, Some(key))] => Ok(Some(Identity::of(certificate, key))),
        [(_, None), (_, None)] => Ok(None),
        [(given, Some(path)), (missing, None)] | [(missing, None), (given, Some(path))] => {
            wrong(given, path.display(), format!("needs --{missing} as well; accepted: both, or neither"))
        }
    }
}

/// What the flags of a side ask for; `calls` says whether this replica calls others with TLS.
fn side(flags: &Flags<'_>, calls: bool, warnings: &mut Vec<String>) -> Result<Option<Side>, ConfigError> {
    let identity = pair(flags.identity)?;
    let (listens, urls) = flags.listens;
    let secure = urls.iter().find(|url| urls::asks_for_tls(url));
    let is_given = identity.is_some();
    let trust = trust(flags)?;
    for url in urls.iter().filter(|url| !urls::asks_for_tls(url)) {
        let other = flags.others.iter().find(|(_, urls)| urls.contains(url));
        let listens = other.map_or(listens, |(flag, _)| *flag);
        // Pages without TLS for tools on the same machine are usual beside clients with TLS.
        if listens == METRICS {
            continue;
        }
        if is_given {
            warnings.push(format!(
                "--{listens} {url}: scheme is http or unix while key and cert files are present; ignoring key and cert files"
            ));
        }
        if flags.demands.1 {
            warnings.push(format!(
                "--{listens} {url}: scheme is http or unix while --{} is enabled; ignoring client cert auth for this URL",
                flags.demands.0
            ));
        }
    }
    let shown = match identity {
        Some(identity) => {
            if flags.makes.1 {
                warnings.push(format!("ignoring --{} since certs given", flags.makes.0));
            }
            Shown::Given(identity)
        }
        None if secure.is_none() && !calls => {
            if trust.is_some() || flags.makes.1 {
                let given = if trust.is_some() { flags.authorities.0 } else { flags.makes.0 };
                warnings.push(format!("--{given} has no effect: no URL of --{listens} asks for TLS"));
            }
            return Ok(None);
        }
        None if flags.makes.1 => {
            if trust.is_some() {
                let why = format!(
                    "certificates that replicas make cannot be checked, so --{} would have no effect; accepted: a \
                     certificate with --{} and --{}, or neither",
                    flags.authorities.0, flags.identity[0].0, flags.identity[1].0
                );
                return wrong(flags.makes.0, "true", why);
            }
            Shown::Made { hosts: hosts(urls), folder: flags.folder }
        }
        None => {
            let [(certificate, _), (key, _)] = flags.identity;
            let url = secure.map_or("", String::as_str);
            let why = format!(
                "TLS key/cert (--{certificate}, --{key}) must be provided for a URL with HTTPS scheme; or --{} makes one",
                flags.makes.0
            );
            return if secure.is_some() {
                wrong(listens, url, why)
            } else {
                wrong("initial-cluster", "https://", why)
            };
        }
    };
    if matches!(shown, Shown::Given(_)) && trust.is_none() && flags.folder == "peer" {
        warnings.push(
            "--peer-cert-file without --peer-trusted-ca-file encrypts, and admits anybody who reaches --listen-peer-urls"
                .into(),
        );
    }
    if matches!(shown, Shown::Made { .. }) && flags.folder == "peer" {
        warnings.push(
            "--peer-auto-tls encrypts, and admits anybody who reaches --listen-peer-urls; --peer-trusted-ca-file admits \
             only callers with a certificate of that authority"
                .into(),
        );
    }
    Ok(Some(Side { shown, trust }))
}

/// What a side trusts, if the other one has to show a certificate.
fn trust(flags: &Flags<'_>) -> Result<Option<Trust>, ConfigError> {
    let ((_, common_names), (_, hostnames)) = (flags.common_names, flags.hostnames);
    if !common_names.is_empty() && !hostnames.is_empty() {
        let why = format!(
            "AllowedCNs and AllowedHostnames are mutually exclusive; accepted: it or --{}",
            flags.hostnames.0
        );
        return wrong(flags.common_names.0, common_names.join(","), why);
    }
    let (needed, authorities) = flags.authorities;
    let Some(authorities) = authorities else {
        let given = [
            (flags.demands.0, flags.demands.1.then(|| "true".to_owned())),
            (flags.revoked.0, flags.revoked.1.as_ref().map(|path| path.display().to_string())),
            (flags.common_names.0, Some(common_names.join(",")).filter(|names| !names.is_empty())),
            (flags.hostnames.0, Some(hostnames.join(",")).filter(|names| !names.is_empty())),
        ];
        return match given.into_iter().find_map(|(flag, value)| Some((flag, value?))) {
            Some((flag, value)) => wrong(
                flag,
                value,
                format!("needs --{needed}, the authority of the certificates that are checked"),
            ),
            None => Ok(None),
        };
    };
    let allowed = match (common_names, hostnames) {
        ([], []) => Allowed::All,
        ([], hostnames) => Allowed::Hostnames(hostnames.to_vec()),
        (common_names, _) => Allowed::CommonNames(common_names.to_vec()),
    };
    let trust = Trust::of(authorities).named(allowed);
    Ok(Some(match flags.revoked.1 {
        Some(revoked) => trust.without(revoked),
        None => trust,
    }))
}

/// The hosts in URLs, for a certificate.
fn hosts(urls: &[String]) -> Vec<String> {
    let host = |url: &String| {
        let host = urls::authority(url).ok()?.rsplit_once(':')?.0;
        Some(host.trim_start_matches('[').trim_end_matches(']').to_owned())
    };
    let mut hosts: Vec<String> = urls.iter().filter_map(host).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// A warning that anybody may read and change what replicas tell each other.
fn exposed(listen: &[SocketAddr]) -> Option<String> {
    let address = listen.iter().find(|address| !address.ip().is_loopback())?;
    Some(format!(
        "replicas speak without TLS at {address}: anybody on that network can read and change what they tell each other, \
         and pose as one. Give https:// in --listen-peer-urls and --initial-cluster, with --peer-cert-file, --peer-key-file \
         and --peer-trusted-ca-file; see docs/tls.md (`synod docs tls`)"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::serve::config;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn checked(line: &str) -> Result<config::Checked, ConfigError> {
        config::check(
            &Cli::try_parse_from(["serve"].into_iter().chain(line.split_whitespace())).unwrap().args,
        )
    }

    #[test]
    fn addresses_say_where_tls_is_spoken() {
        let certificate = "--peer-cert-file c --peer-key-file k --peer-trusted-ca-file a";
        let urls = "--listen-peer-urls https://127.0.0.1:1,http://127.0.0.1:2";
        let three = "--name a --initial-cluster a=https://127.0.0.1:1,b=https://h:1,c=http://h:2";
        let found = checked(&format!("{three} {urls} {certificate}")).unwrap();
        assert_eq!(found.node.listen_tls, ["127.0.0.1:1".parse().unwrap()]);
        assert_eq!(found.node.listen, ["127.0.0.1:2".parse().unwrap()]);
        let addresses: Vec<_> = found.node.members.iter().map(|member| member.address.as_str()).collect();
        assert_eq!(addresses, ["https://127.0.0.1:1", "https://h:1", "h:2"]);
        assert!(found.warnings.iter().any(|warning| warning.contains("ignoring key and cert files")));
    }

    #[test]
    fn pages_without_tls_are_usual_and_other_addresses_are_blamed_by_their_own_flag() {
        let with = |more: &str| {
            let line = format!(
                "--listen-client-urls https://127.0.0.1:1 --cert-file c --key-file k --trusted-ca-file a --client-cert-auth {more}"
            );
            let warnings = checked(&line).unwrap().warnings;
            warnings.into_iter().filter(|warning| warning.contains("scheme is http")).collect::<Vec<_>>()
        };
        assert_eq!(with("--listen-metrics-urls http://127.0.0.1:2"), [""; 0]);
        let warnings = with("--listen-client-http-urls http://127.0.0.1:2");
        let begin = "--listen-client-http-urls http://127.0.0.1:2: scheme is http";
        assert!(warnings.len() == 2 && warnings.iter().all(|line| line.starts_with(begin)), "{warnings:?}");
    }

    #[test]
    fn peers_without_tls_are_warned_of_beyond_this_machine() {
        let of = |line: &str| {
            let warnings = checked(line).unwrap().warnings;
            warnings.into_iter().filter(|warning| warning.contains("replicas speak without TLS")).count()
        };
        assert_eq!(of(""), 0);
        assert_eq!(of("--listen-peer-urls http://localhost:1"), 0);
        assert_eq!(of("--listen-peer-urls http://0.0.0.0:1,http://127.0.0.1:2,http://0.0.0.0:3"), 1);
        assert_eq!(of("--listen-peer-urls https://0.0.0.0:1 --peer-auto-tls"), 0);
    }

    #[test]
    fn a_refusal_names_the_flag_and_what_is_missing() {
        let cases = [
            (
                "--listen-client-urls https://127.0.0.1:1",
                ["--listen-client-urls https://127.0.0.1:1", "--cert-file, --key-file"],
            ),
            ("--listen-client-urls unixs://x", ["--listen-client-urls unixs://x", "--cert-file"]),
            (
                "--listen-metrics-urls https://127.0.0.1:1",
                ["--listen-metrics-urls https://127.0.0.1:1", "must be provided for metrics secure url"],
            ),
            (
                "--listen-peer-urls https://127.0.0.1:1",
                ["--listen-peer-urls https://127.0.0.1:1", "--peer-cert-file"],
            ),
            (
                "--name a --initial-cluster a=http://h:1,b=https://h:2",
                ["--initial-cluster https://", "--peer-cert-file"],
            ),
            ("--cert-file c", ["--cert-file c", "needs --key-file"]),
            ("--peer-key-file k", ["--peer-key-file k", "needs --peer-cert-file"]),
            ("--client-cert-auth", ["--client-cert-auth true", "needs --trusted-ca-file"]),
            ("--client-crl-file r", ["--client-crl-file r", "needs --trusted-ca-file"]),
            ("--peer-cert-allowed-cn x", ["--peer-cert-allowed-cn x", "needs --peer-trusted-ca-file"]),
            (
                "--peer-cert-allowed-cn x --peer-cert-allowed-hostname y",
                ["--peer-cert-allowed-cn x", "--peer-cert-allowed-hostname"],
            ),
            (
                "--listen-client-urls https://127.0.0.1:1 --auto-tls --trusted-ca-file a",
                ["--auto-tls true", "--trusted-ca-file would have no effect"],
            ),
            ("--tls-min-version TLS1.1", ["--tls-min-version TLS1.1", "must be one of: TLS1.2, TLS1.3"]),
            ("--cipher-suites X", ["--cipher-suites X", "unexpected TLS cipher suite \"X\""]),
            (
                "--tls-min-version TLS1.3 --cipher-suites TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                ["--cipher-suites", "cannot be configured when only TLS1.3 is enabled"],
            ),
        ];
        for (line, parts) in cases {
            let error = checked(line).expect_err(line).to_string();
            for part in parts {
                assert!(error.contains(part), "{error} should contain {part}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let line = "--listen-client-urls https://127.0.0.1:1 --cert-file /nowhere/c --key-file /nowhere/k";
        let error = checked(line).unwrap().tls.start(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/c") && error.contains("is the path right"), "{error}");
    }
}
