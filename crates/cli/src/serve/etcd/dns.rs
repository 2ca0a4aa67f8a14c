//! The members of a cluster that begins, as DNS names them: `--discovery-srv`.
//!
//! As for etcd, a domain has a record SRV for each member, under `_etcd-server._tcp` or, with TLS,
//! `_etcd-server-ssl._tcp`. A resolver of a library would bring more than forty crates, so the one question that is
//! asked here goes to the servers of /etc/resolv.conf directly. Hosts are looked up by the operating system.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket},
    time::Duration,
};

use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE, rdata::RData};
use synod_server::urls;

use crate::{
    failure::Failure,
    serve::{config, flags::ServeArgs},
};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// How long a server has to answer, and how often all of them are asked.
const TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPTS: u32 = 3;
/// The largest answer by UDP that is not refused by some network on the way.
const DATAGRAM_BYTES_MAX: usize = 1232;

/// The arguments with the members that DNS names in place of --discovery-srv, for a first start.
pub fn discover(args: &ServeArgs) -> Result<Option<ServeArgs>, Failure> {
    discover_from(args, || servers(&fs::read_to_string(RESOLV_CONF).unwrap_or_default()))
}

fn discover_from(
    args: &ServeArgs,
    servers: impl FnOnce() -> Vec<SocketAddr>,
) -> Result<Option<ServeArgs>, Failure> {
    let Some(domain) = args.etcd.discovery_srv.as_deref().filter(|domain| !domain.is_empty()) else {
        return Ok(None);
    };
    if !args.cluster.initial_cluster.is_empty() {
        return Err(Failure::usage(
            "--discovery-srv and --initial-cluster both name members; accepted: one of the two",
        ));
    }
    if synod_node::is_begun(&config::data_dir(args)) {
        // The cluster itself knows its members by now.
        return Ok(None);
    }
    let failed = |why: String| Failure::failed(format!("--discovery-srv {domain}: {why}"));
    let members = members(&servers(), domain, args.etcd.discovery_srv_name.as_deref()).map_err(failed)?;
    let own = args.cluster.initial_advertise_peer_urls.as_ref().or(args.member.listen_peer_urls.first());
    let own = own.and_then(|url| urls::authority(url).ok()).unwrap_or_default();
    let mut changed = args.clone();
    changed.cluster.initial_cluster =
        members.iter().map(|(scheme, at)| format!("{at}={scheme}://{at}")).collect();
    let Some((scheme, at)) = members.iter().find(|(_, at)| is_same(at, own)) else {
        let all: Vec<_> = members.into_iter().map(|(_, at)| at).collect();
        return Err(failed(format!(
            "none of the members ({}) is at {own}; accepted: one of them as --initial-advertise-peer-urls",
            all.join(", ")
        )));
    };
    // All replicas must begin with the same names, and each knows only its own.
    changed.cluster.found_as = Some(at.clone());
    changed.cluster.initial_advertise_peer_urls = Some(format!("{scheme}://{at}"));
    Ok(Some(changed))
}

/// Whether two of `host:port` are the same address.
fn is_same(one: &str, other: &str) -> bool {
    let addresses = |at: &str| at.to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
    let others = addresses(other);
    one == other || addresses(one).iter().any(|address| others.contains(address))
}

/// The scheme and `host:port` of each member that the records of a domain name, in an order that all replicas find.
fn members(
    servers: &[SocketAddr],
    domain: &str,
    service: Option<&str>,
) -> Result<Vec<(&'static str, String)>, String> {
    let suffix = service.filter(|name| !name.is_empty()).map_or_else(String::new, |name| format!("-{name}"));
    let mut members = Vec::new();
    for (scheme, kind) in [("https", "-ssl"), ("http", "")] {
        let name = format!("_etcd-server{kind}{suffix}._tcp.{}", domain.trim_end_matches('.'));
        let found = look_up(servers, &name).map_err(|error| format!("{name}: {error}"))?;
        members.extend(found.into_iter().map(|at| (scheme, at)));
    }
    members.sort_by(|(_, one), (_, other)| one.cmp(other));
    members.dedup();
    match members.is_empty() {
        true => Err(format!("no record SRV for _etcd-server{suffix}._tcp or _etcd-server-ssl{suffix}._tcp")),
        false => Ok(members),
    }
}

/// The servers that the operating system asks.
fn servers(resolv_conf: &str) -> Vec<SocketAddr> {
    let named = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let mut servers: Vec<_> = named.filter_map(|rest| rest.trim().parse::<IpAddr>().ok()).collect();
    if servers.is_empty() {
        servers.push(Ipv4Addr::LOCALHOST.into());
    }
    servers.into_iter().map(|address| SocketAddr::new(address, PORT)).collect()
}

/// `host:port` of each record SRV of a name; none if there is no such name.
fn look_up(servers: &[SocketAddr], name: &str) -> Result<Vec<String>, String> {
    let id = RandomState::new().hash_one(name) as u16;
    let question = question(id, name).map_err(|error| error.to_string())?;
    let mut why = "no server was asked".to_owned();
    for server in servers.iter().cycle().take(servers.len() * ATTEMPTS as usize) {
        let answer = by_datagram(*server, &question, id).and_then(|answer| {
            let parsed = Packet::parse(&answer).map_err(io::Error::other)?;
            if !parsed.has_flags(PacketFlag::TRUNCATION) {
                return records(&parsed);
            }
            let answer = by_stream(*server, &question)?;
            records(&Packet::parse(&answer).map_err(io::Error::other)?)
        });
        match answer {
            Ok(records) => return Ok(records),
            Err(error) => why = format!("{server}: {error}"),
        }
    }
    Err(why)
}

fn question(id: u16, name: &str) -> Result<Vec<u8>, simple_dns::SimpleDnsError> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(Name::new(name)?, TYPE::SRV.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec()
}

fn by_datagram(server: SocketAddr, question: &[u8], id: u16) -> io::Result<Vec<u8>> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Only this server's answers arrive then.
    socket.connect(server)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(question)?;
    let mut answer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let bytes = socket.recv(&mut answer)?;
        // An answer to an earlier question may come late.
        if answer[..bytes].starts_with(&id.to_be_bytes()) {
            answer.truncate(bytes);
            return Ok(answer);
        }
    }
}

fn by_stream(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let bytes = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&bytes.to_be_bytes()[..], question].concat())?;
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    let mut answer = vec![0; u16::from_be_bytes(bytes).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn records(answer: &Packet<'_>) -> io::Result<Vec<String>> {
    match answer.rcode() {
        RCODE::NameError => return Ok(Vec::new()),
        RCODE::NoError => {}
        other => return Err(io::Error::other(format!("the server answers {other:?}"))),
    }
    let of = |data: &RData<'_>| match data {
        RData::SRV(srv) => Some(format!("{}:{}", srv.target.to_string().trim_end_matches('.'), srv.port)),
        _ => None,
    };
    Ok(answer.answers.iter().filter_map(|record| of(&record.rdata)).collect())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use simple_dns::{ResourceRecord, rdata::SRV};

    use super::*;

    /// A server of DNS that knows three members of example.test, whose answers are too large for a datagram.
    fn server() -> SocketAddr {
        let stream = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = stream.local_addr().unwrap();
        let datagrams = UdpSocket::bind(address).unwrap();
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((bytes, from)) = datagrams.recv_from(&mut question) {
                let mut answer = answer(&question[..bytes], &[]);
                // The flag TC.
                answer[2] |= if asks_for_members(&question[..bytes]) { 2 } else { 0 };
                datagrams.send_to(&answer, from).unwrap();
            }
        });
        thread::spawn(move || {
            for connection in stream.incoming() {
                let mut connection = connection.unwrap();
                let mut bytes = [0; 2];
                connection.read_exact(&mut bytes).unwrap();
                let mut question = vec![0; u16::from_be_bytes(bytes).into()];
                connection.read_exact(&mut question).unwrap();
                let members =
                    [("n2.example.test", 2380), ("n1.example.test", 2380), ("n1.example.test", 2381)];
                let answer = answer(&question, &members);
                let bytes = u16::try_from(answer.len()).unwrap().to_be_bytes();
                connection.write_all(&[&bytes[..], &answer].concat()).unwrap();
            }
        });
        address
    }

    fn asks_for_members(question: &[u8]) -> bool {
        let question = Packet::parse(question).unwrap();
        question.questions[0].qname.to_string() == "_etcd-server-blue._tcp.example.test"
    }

    fn answer(question: &[u8], members: &[(&'static str, u16)]) -> Vec<u8> {
        let question = Packet::parse(question).unwrap();
        let mut packet = question.into_reply();
        let name = packet.questions[0].qname.clone();
        if name.to_string().contains("no-such") {
            *packet.rcode_mut() = RCODE::NameError;
        }
        for (target, port) in members {
            let data = SRV { priority: 0, weight: 0, port: *port, target: Name::new_unchecked(target) };
            packet.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, RData::SRV(data)));
        }
        packet.build_bytes_vec().unwrap()
    }

    #[test]
    fn members_are_those_of_the_records_in_the_same_order_everywhere() {
        let servers = [server()];
        let found = members(&servers, "example.test.", Some("blue")).unwrap();
        let expected = ["n1.example.test:2380", "n1.example.test:2381", "n2.example.test:2380"];
        assert_eq!(found, expected.map(|at| ("http", at.to_owned())));
        let why = members(&servers, "no-such.test", None).unwrap_err();
        assert!(why.contains("no record SRV for _etcd-server._tcp"), "{why}");
    }

    #[test]
    fn a_replica_begins_with_the_members_of_the_records_as_one_of_them() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            args: ServeArgs,
        }
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        let found = |more: &[&str]| {
            let named = ["serve", "--discovery-srv=example.test.", "--discovery-srv-name=blue"];
            let words = named.into_iter().chain(["--data-dir", data_dir.to_str().unwrap()]);
            let args = <Program as clap::Parser>::parse_from(words.chain(more.iter().copied())).args;
            discover_from(&args, || vec![server()])
        };
        let cluster =
            found(&["--initial-advertise-peer-urls=http://n1.example.test:2381"]).unwrap().unwrap().cluster;
        let all = ["n1.example.test:2380", "n1.example.test:2381", "n2.example.test:2380"];
        let named = cluster.initial_cluster.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(named, all.map(|at| format!("{at}=http://{at}")));
        assert_eq!(cluster.found_as.as_deref(), Some(all[1]));
        assert_eq!(cluster.initial_advertise_peer_urls.as_deref(), Some("http://n1.example.test:2381"));
        let why =
            found(&["--initial-advertise-peer-urls=http://n9.example.test:2380"]).unwrap_err().to_string();
        assert!(why.contains("none of the members") && why.contains("n9.example.test:2380"), "{why}");
        let why = found(&["--initial-cluster=n1=http://127.0.0.1:1"]).unwrap_err().to_string();
        assert!(why.contains("accepted: one of the two"), "{why}");
    }

    #[test]
    fn servers_are_those_of_the_operating_system() {
        let found =
            servers("# comment\nsearch x\nnameserver 10.0.0.1\nnameserver ::1\nnameserver fe80::1%eth0\n");
        assert_eq!(found, ["10.0.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
    }

    #[test]
    fn addresses_are_the_same_if_their_hosts_are() {
        assert!(is_same("localhost:2380", "127.0.0.1:2380"));
        assert!(!is_same("localhost:2380", "127.0.0.1:2381"));
        assert!(is_same("no.such.host.invalid:1", "no.such.host.invalid:1"));
    }
}
