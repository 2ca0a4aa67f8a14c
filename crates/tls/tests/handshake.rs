//! Which sides are taken and which are refused, over a connection in memory.

use std::{
    fs,
    io::Read as _,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustls::{
    ClientConnection, Connection, ServerConnection,
    pki_types::{CertificateDer, ServerName},
};
use synod_tls::{
    Acceptor, Allowed, Connector, Identity, Policy, TlsError, Trust,
    authority::{Authority, Issued, Wanted},
    common_name, explain, rustls,
};

fn identity(issued: &Issued) -> Identity {
    Identity::of(&issued.certificate, &issued.key)
}

fn trust(authority: &Authority) -> Trust {
    Trust::of(authority.certificate())
}

fn acceptor(issued: &Issued, trust: Option<Trust>) -> Acceptor {
    Acceptor::new(identity(issued), trust, Policy::default(), &["h2"]).unwrap()
}

fn connector(issued: Option<&Issued>, trust: Option<Trust>) -> Connector {
    Connector::new(issued.map(identity), trust, Policy::default(), &["h2"]).unwrap()
}

/// Moves what one side has to say to the other; says whether there was anything.
fn pass(from: &mut Connection, to: &mut Connection) -> Result<bool, rustls::Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        to.read_tls(&mut rest).unwrap();
        to.process_new_packets()?;
    }
    Ok(!bytes.is_empty())
}

/// The two sides after a handshake, or why there is none: what the server says, or else the client.
fn shake(acceptor: &Acceptor, connector: &Connector, host: &str) -> Result<(Connection, Connection), String> {
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let mut client = Connection::from(ClientConnection::new(connector.config(), name).unwrap());
    let mut server = Connection::from(ServerConnection::new(acceptor.config()).unwrap());
    loop {
        let sent = pass(&mut client, &mut server).map_err(|error| format!("server: {}", explain(&error)))?;
        let answered =
            pass(&mut server, &mut client).map_err(|error| format!("client: {}", explain(&error)))?;
        if !sent && !answered {
            assert!(!client.is_handshaking() && !server.is_handshaking());
            assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
            return Ok((client, server));
        }
    }
}

#[test]
fn a_client_of_the_same_authority_is_taken_and_known_by_its_name() {
    let authority = Authority::new();
    let server = authority.issue(&Wanted { file: "server", ..Wanted::default() });
    let alice = authority.issue(&Wanted { file: "alice", common_name: "alice", ..Wanted::default() });
    let mutual = acceptor(&server, Some(trust(&authority)));
    for host in ["localhost", "127.0.0.1"] {
        let (mut client, mut server) =
            shake(&mutual, &connector(Some(&alice), Some(trust(&authority))), host).unwrap();
        assert_eq!(common_name(&server.peer_certificates().unwrap()[0]).as_deref(), Some("alice"));
        std::io::Write::write_all(&mut client.writer(), b"hello").unwrap();
        pass(&mut client, &mut server).unwrap();
        let mut heard = [0; 5];
        server.reader().read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
    // A client shows no certificate where none is asked for.
    let open = acceptor(&server, None);
    let (_, server) = shake(&open, &connector(Some(&alice), Some(trust(&authority))), "localhost").unwrap();
    assert!(server.peer_certificates().is_none());
}

#[test]
fn a_side_that_is_not_trusted_is_refused_with_a_reason() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = authority.issue(&Wanted { file: "server", ..Wanted::default() });
    let good = authority.issue(&Wanted { file: "good", serial: 2, ..Wanted::default() });
    let revoked = authority.issue(&Wanted { file: "revoked", serial: 7, ..Wanted::default() });
    let stranger = other.issue(&Wanted::default());
    let list = authority.revoke(&[5, 7]);
    let strict = acceptor(&server, Some(trust(&authority).without(list)));
    let try_as = |issued: Option<&Issued>| {
        shake(&strict, &connector(issued, Some(trust(&authority))), "localhost").map(drop)
    };
    try_as(Some(&good)).unwrap();
    for (issued, why) in [
        (None, "server: the other side has to show a certificate"),
        (Some(&stranger), "server: the certificate of the other side comes from another authority"),
        (Some(&revoked), "server: the certificate of the other side is revoked"),
    ] {
        let error = try_as(issued).unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
    // The client looks as closely.
    let of_other = connector(Some(&good), Some(trust(&other)));
    let error = shake(&strict, &of_other, "localhost").unwrap_err();
    assert!(error.contains("client: the certificate of the other side comes from another"), "{error}");
    let error =
        shake(&strict, &connector(Some(&good), Some(trust(&authority))), "elsewhere.example").unwrap_err();
    assert!(error.contains("client: the certificate of the other side is for other host names"), "{error}");
    // A client that checks nothing speaks with any server.
    shake(&strict, &connector(Some(&good), None), "elsewhere.example").unwrap();
}

/// As a replica that calls another does.
#[test]
fn a_caller_refuses_a_server_whose_certificate_is_revoked() {
    let authority = Authority::new();
    let of = |file, serial| acceptor(&authority.issue(&Wanted { file, serial, ..Wanted::default() }), None);
    let (first, second) = (of("first", 2), of("second", 7));
    let list = authority.revoke(&[5, 7]);
    let caller = connector(None, Some(trust(&authority).without(&list)));
    let call = |server: &Acceptor| shake(server, &caller, "localhost").map(drop);
    let is_revoked = |error: String| {
        assert!(error.starts_with("client: the certificate of the other side is revoked"), "{error}");
    };
    call(&first).unwrap();
    is_revoked(call(&second).unwrap_err());
    // The list changes while the caller runs.
    assert_eq!(authority.revoke(&[2]), list);
    let deadline = Instant::now() + Duration::from_secs(20);
    let error = loop {
        if let Err(error) = call(&first) {
            break error;
        }
        assert!(Instant::now() < deadline, "it is still called");
        thread::sleep(Duration::from_millis(50));
    };
    is_revoked(error);
    call(&second).unwrap();
}

#[test]
fn a_trusted_authority_may_be_a_host_as_well() {
    let authority = Authority::new();
    let own = authority.of_itself(&Wanted { file: "own", common_name: "root", ..Wanted::default() });
    let trusted = || Trust::of(own.certificate.clone());
    let (_, accepted) =
        shake(&acceptor(&own, Some(trusted())), &connector(Some(&own), Some(trusted())), "localhost")
            .unwrap();
    assert_eq!(
        accepted.peer_certificates().and_then(|chain| common_name(&chain[0])).as_deref(),
        Some("root")
    );
    // What else is checked still is: the host that is called, whose certificate it is, and when.
    let called = shake(&acceptor(&own, None), &connector(None, Some(trusted())), "example.com").unwrap_err();
    assert!(called.contains("for other host names or addresses"), "{called}");
    let other = authority.of_itself(&Wanted { file: "other", ..Wanted::default() });
    let refused = shake(&acceptor(&other, None), &connector(None, Some(trusted())), "localhost");
    assert!(refused.is_err());
    let refused =
        shake(&acceptor(&own, Some(trusted())), &connector(Some(&other), Some(trusted())), "localhost");
    assert!(refused.is_err());
}

#[test]
fn a_renewed_certificate_is_shown_although_the_list_of_revoked_ones_is_broken() {
    let authority = Authority::new();
    let server = authority.issue(&Wanted { file: "server", ..Wanted::default() });
    let good = authority.issue(&Wanted { file: "good", serial: 2, ..Wanted::default() });
    let revoked = authority.issue(&Wanted { file: "revoked", serial: 7, ..Wanted::default() });
    let list = authority.revoke(&[7]);
    let strict = acceptor(&server, Some(trust(&authority).without(list.clone())));
    // What is shown to a client that may connect.
    let shown = || {
        let (client, _) =
            shake(&strict, &connector(Some(&good), Some(trust(&authority))), "localhost").unwrap();
        client.peer_certificates().unwrap()[0].clone()
    };
    let first = shown();
    let renewed_is_shown = |before: &CertificateDer<'_>| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while shown() == *before {
            assert!(Instant::now() < deadline, "the renewed certificate is not shown");
            thread::sleep(Duration::from_millis(50));
        }
        let who = connector(Some(&revoked), Some(trust(&authority)));
        let error = shake(&strict, &who, "localhost").unwrap_err();
        assert!(error.contains("the certificate of the other side is revoked"), "{error}");
    };
    fs::write(&list, "nonsense").unwrap();
    assert_eq!(authority.issue(&Wanted { file: "server", serial: 8, ..Wanted::default() }).key, server.key);
    renewed_is_shown(&first);
    let second = shown();
    fs::remove_file(&list).unwrap();
    assert_eq!(authority.issue(&Wanted { file: "server", serial: 9, ..Wanted::default() }).key, server.key);
    renewed_is_shown(&second);
}

#[test]
fn only_allowed_names_are_taken() {
    let authority = Authority::new();
    let server = authority.issue(&Wanted { file: "server", ..Wanted::default() });
    let issue =
        |file, common_name, hosts| authority.issue(&Wanted { file, common_name, hosts, ..Wanted::default() });
    let (member, visitor) = (issue("m", "member", &["10.0.0.1", "m.example"]), issue("v", "visitor", &["v"]));
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for allowed in [
        Allowed::CommonNames(names(&["other", "member"])),
        Allowed::Hostnames(names(&["x.example", "m.example"])),
        Allowed::Hostnames(names(&["10.0.0.1"])),
    ] {
        let strict = acceptor(&server, Some(trust(&authority).named(allowed)));
        let try_as =
            |issued| shake(&strict, &connector(Some(issued), Some(trust(&authority))), "localhost").map(drop);
        try_as(&member).unwrap();
        let error = try_as(&visitor).unwrap_err();
        assert!(error.starts_with("server: the certificate of visitor"), "{error}");
    }
    let nonsense = trust(&authority).named(Allowed::Hostnames(names(&["a b"])));
    let error = Acceptor::new(identity(&server), Some(nonsense), Policy::default(), &[]).unwrap_err();
    assert!(error.to_string().contains("\"a b\" is no host name"), "{error}");
}

#[test]
fn a_version_that_only_one_side_speaks_is_not_spoken() {
    let authority = Authority::new();
    let server = authority.issue(&Wanted::default());
    let policy = |min, max| Policy::new(min, max, &[]).unwrap();
    let accepting = Acceptor::new(identity(&server), None, policy("TLS1.3", ""), &["h2"]).unwrap();
    let connecting = |policy| Connector::new(None, Some(trust(&authority)), policy, &["h2"]).unwrap();
    shake(&accepting, &connecting(policy("", "")), "localhost").unwrap();
    shake(&accepting, &connecting(policy("", "TLS1.2")), "localhost").unwrap_err();
    let older = Acceptor::new(identity(&server), None, policy("", "TLS1.2"), &["h2"]).unwrap();
    shake(&older, &connecting(policy("", "TLS1.2")), "localhost").unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_helps() {
    let authority = Authority::new();
    let good = authority.issue(&Wanted { file: "good", ..Wanted::default() });
    let other = authority.issue(&Wanted { file: "other", ..Wanted::default() });
    let expired = authority.issue(&Wanted { file: "expired", expired: true, ..Wanted::default() });
    let nonsense = authority.folder().join("nonsense");
    fs::write(&nonsense, "nonsense").unwrap();
    let nowhere = PathBuf::from("/nowhere/file");
    let with = |certificate: &PathBuf, key: &PathBuf, trust| {
        let identity = Identity::of(certificate, key);
        Acceptor::new(identity, trust, Policy::default(), &[]).unwrap_err()
    };
    let authorities = |path: &PathBuf| Some(Trust::of(path));
    let revoked = |path: &PathBuf| Some(trust(&authority).without(path));
    let cases: [(TlsError, &[&str]); 8] = [
        (with(&nowhere, &good.key, None), &["/nowhere/file", "is the path right"]),
        (with(&good.certificate, &nowhere, None), &["/nowhere/file", "is the path right"]),
        (with(&good.certificate, &nonsense, None), &["nonsense: it holds no private key"]),
        (with(&nonsense, &good.key, None), &["nonsense: it holds no certificate"]),
        (
            with(&good.certificate, &other.key, None),
            &["other.key is not that of the certificate in", "good.crt"],
        ),
        (
            with(&expired.certificate, &expired.key, None),
            &["expired.crt: the certificate has expired 5 days ago"],
        ),
        (with(&good.certificate, &good.key, authorities(&nonsense)), &["nonsense: it holds no certificate"]),
        (with(&good.certificate, &good.key, revoked(&nonsense)), &["nonsense: it holds no list of revoked"]),
    ];
    for (error, parts) in cases {
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text} should contain {parts:?}");
    }
}

#[test]
fn a_certificate_that_a_replica_makes_serves_as_its_own_authority() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = synod_tls::self_signed(folder.path(), &hosts, 1).unwrap();
    let again = synod_tls::self_signed(folder.path(), &hosts, 1).unwrap();
    assert_eq!(made, again);
    let before = fs::read(&made.key).unwrap();
    let accepting = Acceptor::new(made.clone(), None, Policy::default(), &["h2"]).unwrap();
    let itself = Trust::of(&made.certificate);
    shake(&accepting, &connector(None, Some(itself)), "127.0.0.1").unwrap();
    shake(&accepting, &connector(None, None), "elsewhere").unwrap();
    assert_eq!(fs::read(&made.key).unwrap(), before, "a certificate that is valid stays");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&made.key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // One that has expired is made again.
    let authority = Authority::new();
    let expired = authority.issue(&Wanted { expired: true, ..Wanted::default() });
    fs::copy(expired.certificate, &made.certificate).unwrap();
    fs::copy(expired.key, &made.key).unwrap();
    let renewed = synod_tls::self_signed(folder.path(), &hosts, 1).unwrap();
    Acceptor::new(renewed, None, Policy::default(), &[]).unwrap();
}

/// What a stranger sends in place of a client's first message.
#[test]
fn garbage_is_an_error_and_no_panic() {
    let authority = Authority::new();
    let accepting = acceptor(&authority.issue(&Wanted::default()), Some(trust(&authority)));
    let name = ServerName::try_from("localhost").unwrap();
    let connecting = connector(None, Some(trust(&authority)));
    let mut hello = Vec::new();
    ClientConnection::new(connecting.config(), name).unwrap().write_tls(&mut hello).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..2000 {
        let mut bytes = hello.clone();
        match round % 4 {
            0 => bytes = (0..random() % 600).map(|_| random() as u8).collect(),
            1 => bytes.truncate(random() as usize % hello.len()),
            _ => {
                for _ in 0..=random() % 8 {
                    let at = random() as usize % bytes.len();
                    bytes[at] = random() as u8;
                }
            }
        }
        let mut server = ServerConnection::new(Arc::clone(&accepting.config())).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() && server.read_tls(&mut rest).is_ok() {
            if server.process_new_packets().is_err() {
                break;
            }
        }
        assert!(server.is_handshaking(), "nobody is taken without the rest of a handshake");
    }
}
