//! The parts of the URLs at which replicas reach each other, and clients reach a replica.

/// The `host:port` of a URL.
///
/// # Errors
/// It has another scheme, no host or no port; the text says what is accepted.
pub fn authority(url: &str) -> Result<&str, String> {
    let wrong = |why: &str| format!("'{url}' {why}; accepted: http://host:port or https://host:port");
    let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let authority = authority.ok_or_else(|| wrong("does not begin with http:// or https://"))?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = authority.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
    if host.is_empty() || host.contains(['/', '@', ' ']) {
        return Err(wrong("has no host that can be looked up"));
    }
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(wrong("has a port that is not one of 1 to 65535"));
    }
    Ok(authority)
}

/// Whether a URL is of a unix socket.
#[must_use]
pub fn is_socket(url: &str) -> bool {
    url.starts_with("unix://") || url.starts_with("unixs://")
}

/// Whether a URL asks for TLS.
#[must_use]
pub fn asks_for_tls(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("unixs://")
}

/// The address of a peer with this URL, as the transport takes it: `host:port`, or `https://host:port` with TLS.
///
/// # Errors
/// Those of [`authority`].
pub fn peer_address(url: &str) -> Result<String, String> {
    let authority = authority(url)?;
    Ok(if asks_for_tls(url) { format!("https://{authority}") } else { authority.to_owned() })
}

/// A URL without the slash that may end it, so that equal ones are.
#[must_use]
pub fn plain(url: &str) -> &str {
    url.strip_suffix('/').unwrap_or(url)
}

/// Whether the host of `host:port` stands for "all addresses of this machine", to which nobody can connect.
#[must_use]
pub fn is_wildcard(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    matches!(host, "0.0.0.0" | "[::]" | "[::0]" | "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_scheme_a_host_and_a_port() {
        assert_eq!(authority("http://node-1:2380/"), Ok("node-1:2380"));
        assert_eq!(authority("https://[::1]:2380"), Ok("[::1]:2380"));
        assert_eq!(peer_address("https://a:1/").as_deref(), Ok("https://a:1"));
        assert_eq!(peer_address("http://a:1/").as_deref(), Ok("a:1"));
        let wrong = [
            ("ftp://a:1", "http://"),
            ("a:1", "http://"),
            ("http://a", "no port"),
            ("http://:1", "no host"),
            ("http://a/b:1", "no host"),
            ("http://a:0", "65535"),
            ("http://a:99999", "65535"),
        ];
        for (url, why) in wrong {
            let error = authority(url).unwrap_err();
            assert!(error.contains(why) && error.contains("http://host:port"), "{error}");
        }
        assert!(is_wildcard("0.0.0.0:1") && is_wildcard("[::]:1") && !is_wildcard("127.0.0.1:1"));
    }
}
