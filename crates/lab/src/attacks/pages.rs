//! Attacks on the pages: connections that take all places and read nothing, and many that want the same page.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tokio::{net::TcpSocket, runtime::Handle, time::timeout};

use super::{Scene, report, sockets::finish};

/// How long a socket may block until its thread looks at the time.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(200);
/// Connections at the metrics port.
const AT_METRICS: usize = 40;
/// Requests that are sent ahead on each connection: their answers are more than the sockets hold.
const AHEAD: usize = 1_000;
/// Connections that read, at the client port.
const SCRAPERS: usize = 500;
/// The address from which pages are asked for.
const PROBE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// The longest that a probe may take. Those of orchestrators wait for a second.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// After so long connections are made again that the server has closed.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

fn get(path: &str, connection: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\n\r\n")
}

/// Connections that ask for /metrics and read nothing: 40 at the metrics port, and more at the client port than the
/// server takes. Meanwhile both ports are asked, from another address, whether the server is well.
pub async fn silent(scene: &mut Scene<'_>) -> Result<(), String> {
    let deadline = Instant::now() + scene.settings.seconds() + Duration::from_secs(5);
    let server = scene.cluster.servers[scene.target];
    let connections = usize::try_from(scene.settings.get("connections")).unwrap_or(usize::MAX);
    let floods = [(server.metrics, AT_METRICS), (server.client, connections)];
    let floods = floods.map(|(address, count)| thread::spawn(move || hold(address, count, deadline)));
    // They take their places first.
    let begin = Instant::now() + Duration::from_secs(5);
    let probes = [
        (server.metrics, "/health"),
        (server.metrics, "/metrics"),
        (server.client, "/livez"),
        (server.client, "/readyz"),
        (server.client, "/health"),
        (server.client, "/metrics"),
    ];
    let runtime = Handle::current();
    let probes = probes.map(|(address, path)| {
        let runtime = runtime.clone();
        thread::spawn(move || probe(&runtime, address, path, begin, deadline))
    });
    let opened = finish(floods.into()).await?;
    scene.note("connections opened", opened);
    let names = ["metrics port", "client port"].map(|port| format!("pages at the {port}: each within 1 s"));
    for (name, probes) in names.into_iter().zip(split(probes)) {
        let (mut longest, mut failed) = (Duration::ZERO, 0);
        for probe in probes {
            let (took, lost) = probe.join().map_err(|_| "the probe panicked")?;
            (longest, failed) = (longest.max(took), failed + lost);
        }
        let holds = failed == 0 && longest < PROBE_MAX;
        scene.claim(name, holds, format!("{failed} without an answer, the longest {}", report::ms(longest)));
    }
    Ok(())
}

/// The first two, which are at the metrics port, and the others.
fn split<T>(all: [T; 6]) -> [Vec<T>; 2] {
    let mut first = Vec::from(all);
    let others = first.split_off(2);
    [first, others]
}

/// Keeps connections open that read nothing. Returns how many it opened.
fn hold(address: SocketAddr, count: usize, deadline: Instant) -> u64 {
    let (mut held, mut opened) = (Vec::<Option<TcpStream>>::new(), 0);
    held.resize_with(count, || None);
    let requests = get("/metrics", "keep-alive").repeat(AHEAD);
    while Instant::now() < deadline {
        for place in &mut held {
            if place.as_mut().is_some_and(is_closed) {
                *place = None;
            }
            if place.is_none()
                && Instant::now() < deadline
                && let Ok(mut stream) = TcpStream::connect_timeout(&address, SOCKET_TIMEOUT)
            {
                // What does not fit stays unsent.
                let _ = stream.set_nonblocking(true).and_then(|()| stream.write(requests.as_bytes()));
                *place = Some(stream);
                opened += 1;
            }
        }
        thread::sleep(LOOK_INTERVAL.min(deadline.saturating_duration_since(Instant::now())));
    }
    opened
}

/// An empty line, which may precede a request, cannot be sent where the server has closed the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.write_all(b"\r\n") {
        Ok(()) => false,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

/// Asks for a page again and again, each time over a new connection from an address of its own. Returns how long an
/// answer took at most, and how many requests had none in five seconds.
fn probe(
    runtime: &Handle,
    address: SocketAddr,
    path: &str,
    begin: Instant,
    deadline: Instant,
) -> (Duration, u64) {
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    let (mut longest, mut failed) = (Duration::ZERO, 0);
    while Instant::now() < deadline {
        let began = Instant::now();
        let answer = || {
            let connected = async {
                let socket = TcpSocket::new_v4()?;
                socket.bind((PROBE, 0).into())?;
                timeout(Duration::from_secs(5), socket.connect(address)).await?
            };
            let mut stream = runtime.block_on(connected)?.into_std()?;
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(get(path, "close").as_bytes())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok::<_, std::io::Error>(answer.starts_with(b"HTTP/1.1 200"))
        };
        match answer() {
            Ok(true) => longest = longest.max(began.elapsed()),
            Ok(false) | Err(_) => failed += 1,
        }
        thread::sleep(PROBE_INTERVAL);
    }
    (longest, failed)
}

/// Connections that ask for /metrics at the client port, one time after the other, and read it.
pub async fn scrapers(scene: &mut Scene<'_>) -> Result<(), String> {
    let deadline = Instant::now() + scene.settings.seconds();
    let address = scene.cluster.servers[scene.target].client;
    let floods = (0..SCRAPERS).map(|_| thread::spawn(move || scrape(address, deadline))).collect();
    let pages = finish(floods).await?;
    scene.note("pages", pages);
    Ok(())
}

fn scrape(address: SocketAddr, deadline: Instant) -> u64 {
    let (request, mut bytes, mut pages) = (get("/metrics", "keep-alive"), vec![0; 64 << 10], 0);
    while Instant::now() < deadline {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, SOCKET_TIMEOUT) else { continue };
        // The call fails only for a time-out of 0.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        while Instant::now() < deadline && stream.write_all(request.as_bytes()).is_ok() {
            // The last piece of a page ends a body in chunks, or brings as much as the head announces.
            let (mut page, mut wanted) = (Vec::<u8>::new(), None::<usize>);
            while wanted.is_none_or(|wanted| page.len() < wanted) {
                match stream.read(&mut bytes) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => page.extend_from_slice(&bytes[..read]),
                }
                wanted = wanted.or_else(|| length(&page));
                if wanted.is_none() && page.ends_with(b"\r\n0\r\n\r\n") {
                    break;
                }
            }
            if page.is_empty() {
                break;
            }
            pages += 1;
        }
    }
    pages
}

/// How many bytes an answer has whose head announces it.
fn length(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&answer[..head]).to_lowercase();
    let bytes = text.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    Some(head + bytes.trim().parse::<usize>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_answer_tells_its_length() {
        assert_eq!(length(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), Some(41));
        assert_eq!(length(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1"), None);
        assert_eq!(length(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"), None);
    }
}
