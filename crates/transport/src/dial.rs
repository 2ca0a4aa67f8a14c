//! The sender thread of one peer: it dials the peer, introduces this replica, writes the queue to it, and begins again.

use std::{
    io::{self, IoSlice, Read, Write},
    net::ToSocketAddrs,
    sync::Arc,
    time::Duration,
};

use synod_sync::{net::TcpStream, thread, time::Instant};
use synod_wire::{Mismatch, Stranger};
use tracing::{debug, info, warn};

use crate::{
    Config, Event, ObstacleKind,
    complaint::Repeats,
    config::{Meeting, NO_TLS, Unrecognised, host, host_and_port, is_dialled_with_tls},
    datagram::{End, Ends, outgoing::Path},
    frame::Frame,
    handshake::{self, HandshakeError, Hello, Life, OTHER_BIRTH, Refusal, Welcome},
    link::{Gather, Link, SessionEnd, Target},
    socket,
    stream::Stream,
    transport::Shared,
};

/// Why the peer could not be reached.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("{0}")]
    Connect(#[from] io::Error),
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("what answers there is an earlier life of it than the one seen before")]
    OldIncarnation,
    #[error("{OTHER_BIRTH}")]
    OtherBirth,
    #[error("what answers there is not the replica that was seen before: {0}")]
    Stranger(Stranger),
    #[error("this replica cannot write down whom it has met")]
    Unwritten,
    #[error(
        "it speaks at most version {theirs} of the messages, and this group has changes that take version {least}: start a \
         later release there"
    )]
    Outdated { theirs: u16, least: u16 },
    #[error(
        "it takes messages of at most {theirs} bytes, and this replica may have to send one of {ours}: the two were built \
         with different bounds on frames (frame_bytes_max)"
    )]
    SmallFrames { theirs: usize, ours: usize },
    #[error("its address {NO_TLS}")]
    NoTls,
    #[error("the peer has another address by now, or is none any more")]
    Interrupted,
}

/// Runs until the link is stopped.
pub(crate) fn run(shared: &Shared, link: &Arc<Link>) {
    let config = &shared.config;
    let mut backoff = Backoff::new(config, link);
    let mut warnings = Repeats::default();
    let mut target = link.target();
    let mut told_refused = false;
    debug!(peer = %link.id(), address = &*target.address, "calling the peer until it answers");
    while !link.is_stopped() {
        match open(config, link, &target) {
            Ok((stream, welcome)) => {
                told_refused = false;
                if run_session(shared, link, &stream, welcome, &mut warnings) {
                    backoff.reset();
                }
            }
            Err(error) => {
                link.leave(std::iter::empty());
                if let DialError::Handshake(HandshakeError::Refused(Refusal::Outlived(stranger))) = &error {
                    (config.outlived)(link.id(), stranger);
                }
                if error.is_refused() && !told_refused {
                    told_refused = true;
                    shared.tell(Event::Refused { peer: link.id() });
                }
                if error.is_lasting() {
                    // More attempts do not change a configuration.
                    backoff.jump();
                }
                let text = error.to_string();
                link.obstructed(target.version, error.obstacle(), &text);
                let matters = !link.is_stopped() && link.target().version == target.version;
                if matters && warnings.admit(&text).is_some() {
                    // Each attempt would add to the lines that were left out, so their number tells nothing.
                    warn!(peer = %link.id(), address = &*target.address, "cannot reach peer: {text}");
                }
            }
        }
        if link.target().version == target.version {
            link.pause(backoff.next());
        }
        let latest = link.target();
        if latest.version != target.version {
            info!(peer = %link.id(), from = &*target.address, to = &*latest.address, "the peer moved");
            backoff.reset();
            warnings.clear();
        }
        target = latest;
    }
}

impl DialError {
    /// Whether no process listens there.
    fn is_refused(&self) -> bool {
        matches!(self, DialError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// What is in the way of the peer.
    fn obstacle(&self) -> ObstacleKind {
        match self {
            DialError::Connect(_) if self.is_refused() => ObstacleKind::NobodyListens,
            DialError::Connect(_) | DialError::Interrupted => ObstacleKind::NoConnection,
            DialError::Handshake(HandshakeError::Refused(Refusal::OtherCluster)) => {
                ObstacleKind::OtherCluster
            }
            DialError::Handshake(HandshakeError::Magic(_) | HandshakeError::Version { .. }) => {
                ObstacleKind::Misfit
            }
            _ if self.is_lasting() => ObstacleKind::Misfit,
            _ => ObstacleKind::Handshake,
        }
    }

    /// Whether only a change of a configuration can help.
    fn is_lasting(&self) -> bool {
        matches!(
            self,
            DialError::Handshake(HandshakeError::Refused(_) | HandshakeError::Tls(_))
                | DialError::NoTls
                | DialError::OldIncarnation
                | DialError::OtherBirth
                | DialError::Stranger(_)
                | DialError::Unwritten
                | DialError::Outdated { .. }
                | DialError::SmallFrames { .. }
        )
    }
}

/// Connects and shakes hands. On success the session has begun.
fn open(config: &Config, link: &Arc<Link>, target: &Target) -> Result<(Arc<Stream>, Welcome), DialError> {
    let tls = match (is_dialled_with_tls(&target.address), &config.tls) {
        (false, _) => None,
        (true, Some(tls)) => Some(tls),
        (true, None) => return Err(DialError::NoTls),
    };
    let stream = Arc::new(Stream::new(connect(link, target, config.connect_timeout)?));
    socket::tune(stream.socket(), config.silence_max)?;
    if !link.begin_handshake(stream.socket(), target.version) {
        return Err(DialError::Interrupted);
    }
    if let Some(tls) = tls {
        stream.secure_to(tls, host(&target.address), config.handshake_timeout)?;
    }
    // The introduction is made now: nothing of an earlier session that rests on more can still arrive after it.
    let hello = Hello { cluster: config.cluster, from: config.me, to: link.id(), who: config.introduction() };
    let welcome = handshake::call(&stream, &config.versions, &hello, config.handshake_timeout)?;
    let (theirs, ours) = (welcome.frame_bytes_max, config.message_bytes_max);
    if theirs < ours {
        return Err(DialError::SmallFrames { theirs, ours });
    }
    let life = Life::of(&welcome.who);
    let meeting = Meeting { heard: link.heard(), welcomed: true, version: welcome.version };
    (config.recognise)(link.id(), &welcome.who, meeting).map_err(|unrecognised| match unrecognised {
        Unrecognised::Stranger(stranger) if stranger.mismatch == Mismatch::OtherBirth => {
            DialError::OtherBirth
        }
        Unrecognised::Stranger(stranger) => DialError::Stranger(stranger),
        Unrecognised::Unwritten => DialError::Unwritten,
        Unrecognised::Outdated(least) => DialError::Outdated { theirs: welcome.version, least },
    })?;
    if !link.see(life) {
        return Err(DialError::OldIncarnation);
    }
    link.hear_life(welcome.who.nonce, welcome.who.durable);
    let path = open_path(config, link, stream.socket(), &welcome);
    if !link.begin_session(&stream, target.version, life, welcome.version, theirs, path) {
        return Err(DialError::Interrupted);
    }
    Ok((stream, welcome))
}

/// The way for datagrams to the peer, if both take them. Without one everything goes over TCP.
fn open_path(config: &Config, link: &Link, stream: &TcpStream, welcome: &Welcome) -> Option<Path> {
    let mtu = config.datagram_mtu.filter(|_| welcome.datagram_mtu > 0)?.min(welcome.datagram_mtu);
    let to = End { id: link.id(), life: Life::of(&welcome.who) };
    let ends = Ends { cluster: config.cluster, from: config.own_end(), to };
    // Which number a session has matters only where it follows another one soon.
    let serial = link.sessions() as u32;
    let path = Path::open(stream, ends, welcome.version, mtu.into(), serial, config.probe_interval);
    path.inspect_err(|error| warn!(peer = %link.id(), "cannot send datagrams, and sends over TCP: {error}"))
        .ok()
}

/// Connects in a thread of its own, since neither the resolver nor `connect` can be interrupted. If the link
/// is stopped or the peer moves meanwhile, that thread ends by itself; it holds nothing but this link.
fn connect(link: &Arc<Link>, target: &Target, timeout: Duration) -> Result<TcpStream, DialError> {
    let (helper, target_there) = (Arc::clone(link), target.clone());
    let dial = move || {
        helper.put_dialed(target_there.version, connect_any(&target_there.address, timeout));
    };
    thread::Builder::new().name(format!("dial-{}", link.id())).spawn(dial)?;
    Ok(link.wait_dialed(target.version).ok_or(DialError::Interrupted)??)
}

/// Tries all addresses of a name in turn.
pub(crate) fn connect_any(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in host_and_port(address).unwrap_or(address).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            // With a local port of the system's choice, a dial to a free port of this host can meet itself.
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Runs a session from its `Up` to its `Down`. Returns whether it lasted: one that ends as soon as it began is as good
/// as a failure.
fn run_session(
    shared: &Shared,
    link: &Arc<Link>,
    stream: &Stream,
    welcome: Welcome,
    warnings: &mut Repeats,
) -> bool {
    let (began, incarnation) = (Instant::now(), welcome.who.incarnation);
    info!(peer = %link.id(), %incarnation, version = welcome.version, "connected");
    shared.tell(Event::Up { peer: link.id(), incarnation });
    let mut gather = Gather::default();
    thread::scope(|scope| {
        let watcher = thread::Builder::new()
            .name(format!("watch-{}", link.id()))
            .spawn_scoped(scope, || link.end_session(watch(stream)));
        if let Err(error) = watcher {
            link.end_session(SessionEnd::Failed(error));
        }
        // This returns only when the session is over and the socket shut down, so the watcher ends too.
        write_queue(shared, link, stream, welcome.frame_bytes_max, &mut gather);
    });
    let end = link.leave(gather.frames.drain(..)).unwrap_or(SessionEnd::Stopped);
    let lasted = began.elapsed() >= shared.config.redial_delay_max;
    if lasted {
        warnings.clear();
    }
    let text = format!("connection lost: {end}");
    if matches!(end, SessionEnd::Stopped | SessionEnd::Moved) {
        debug!(peer = %link.id(), "connection ended: {end}");
    } else if let Some(left_out) = warnings.admit(&text) {
        warn!(peer = %link.id(), "{text}{left_out}");
    }
    shared.tell(Event::Down { peer: link.id() });
    lasted
}

/// Reads what must never come, so that the end of the peer is noticed at once even when there is nothing to send.
fn watch(mut stream: &Stream) -> SessionEnd {
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => return SessionEnd::Closed,
            Ok(_) => return SessionEnd::UnexpectedData,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return SessionEnd::Failed(error),
        }
    }
}

/// Writes frames until the session is over. What was not sent stays in `gather`.
fn write_queue(shared: &Shared, link: &Link, stream: &Stream, body_bytes_max: usize, gather: &mut Gather) {
    while link.next_frames(gather) {
        discard_too_large(link, body_bytes_max, &mut gather.frames);
        let (written, result) = write_frames(stream, gather);
        link.counters.count_written(gather.advance(written));
        if let Err(error) = result {
            link.end_session(match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    SessionEnd::Stalled(shared.config.silence_max)
                }
                _ => SessionEnd::Failed(error),
            });
            return;
        }
    }
}

/// Drops frames that the peer would refuse, since they would cost one session after the other. The present
/// session ends when it is next looked at. A frame that was written in part is none of them.
fn discard_too_large(link: &Link, body_bytes_max: usize, frames: &mut Vec<Arc<Frame>>) {
    frames.retain(|frame| {
        let fits = frame.body_len() <= body_bytes_max;
        if !fits {
            link.drop_too_large(frame.body_len(), body_bytes_max);
        }
        fits
    });
}

/// Writes all frames, in as few calls as the system allows. Returns how many bytes were written.
fn write_frames(mut stream: &Stream, gather: &Gather) -> (usize, io::Result<()>) {
    let mut slices = gather.slices();
    let mut rest = slices.as_mut_slice();
    let mut written = 0;
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                written += count;
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// How long to wait before the next attempt: doubling, bounded, and spread so that replicas do not dial in step.
#[derive(Debug)]
struct Backoff {
    delay: Duration,
    min: Duration,
    max: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    fn new(config: &Config, link: &Link) -> Backoff {
        let seed = config.me.0.rotate_left(32) ^ config.who.incarnation.0.rotate_left(16) ^ link.id().0;
        Backoff {
            delay: config.redial_delay_min,
            min: config.redial_delay_min,
            max: config.redial_delay_max,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn reset(&mut self) {
        self.delay = self.min;
    }

    fn jump(&mut self) {
        self.delay = self.max;
    }

    /// A time between half of the delay and the whole of it.
    fn next(&mut self) -> Duration {
        let delay = self.delay.mul_f64(0.5 + self.random.f64() / 2.0);
        self.delay = (self.delay * 2).min(self.max);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Peer,
        link::{LinkBounds, Own},
    };
    use std::net::TcpListener;
    use synod_wire::{ClusterId, GroupId, Incarnation, Lsn, ReplicaId, Writer};

    #[test]
    fn the_delay_doubles_up_to_its_bound() {
        let config = Config::new(ClusterId(1), ReplicaId(1), Incarnation(1), 1);
        let peer = Peer { id: ReplicaId(2), address: "localhost:1".into() };
        let link = Link::new(peer, LinkBounds::new(&config), Own::new(&config));
        let mut backoff = Backoff::new(&config, &link);
        let mut expected = 10.0;
        for _ in 0..12 {
            let delay = backoff.next().as_secs_f64() * 1000.0;
            assert!(delay >= expected / 2.0 && delay <= expected, "{delay} ms, expected up to {expected} ms");
            expected = (expected * 2.0_f64).min(1000.0);
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(10));
        backoff.jump();
        assert!(backoff.next() >= Duration::from_millis(500));
    }

    #[test]
    fn a_frame_cut_in_two_does_not_count_as_written() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Stream::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (silent, _) = listener.accept().unwrap();
        stream.socket().set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut writer = Writer::new();
        writer.bytes(&[0; 100_000]);
        let frame = Arc::new(Frame::new(ClusterId(1), 3, GroupId::FIRST, Lsn::ZERO, writer.finish()));
        let mut gather = Gather { frames: vec![Arc::clone(&frame); 1000], written: 0 };

        let (written, result) = write_frames(&stream, &gather);
        let (whole, bytes) = gather.advance(written);
        assert!(matches!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut));
        drop(stream);
        let arrived = io::copy(&mut &silent, &mut io::sink()).unwrap();
        assert!(whole > 0 && !gather.frames.is_empty());
        assert_eq!((whole, bytes), (written / frame.len(), whole * frame.len()));
        assert_eq!(arrived as usize, bytes + gather.written);
        let left: usize = gather.slices().iter().map(|slice| slice.len()).sum();
        assert_eq!(left, 1000 * frame.len() - written);
    }
}
