//! Inquiries: what a program that is not a peer may learn from a replica of which it knows only the address.
//!
//! A replica that is about to join a cluster asks in this way for the cluster's id and its members.
//! [`Config::answer`](crate::Config::answer) decides what the answer says; the format of the bytes is part of
//! the handshake.

use std::{io, net::SocketAddr, sync::atomic::Ordering::Relaxed, time::Duration};

use bytes::Bytes;
use synod_sync::{channel, thread, time::Instant};
use tracing::info;

use crate::{
    config::{NO_TLS, Tls, host, host_and_port, is_dialled_with_tls},
    dial,
    handshake::{self, ANSWER_BYTES_MAX, HandshakeError, Refusal},
    stream::Stream,
    sync::lock,
    transport::Shared,
};

/// How many inquiries are answered at a time, so that strangers cannot make a replica keep many answers in memory.
const INQUIRIES_MAX: usize = 8;

/// Why an inquiry got no answer.
#[derive(Debug, thiserror::Error)]
pub enum InquireError {
    /// The address is neither `host:port` nor `https://host:port`.
    #[error("{0:?} is not host:port")]
    Address(String),
    /// The address asks for TLS, and there is none.
    #[error("{0} {NO_TLS}")]
    NoTls(String),
    /// The address cannot be reached, or the connection broke.
    #[error("cannot reach {address}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// No whole answer came in time.
    #[error("{address} gave no answer within {timeout:?}")]
    Timeout {
        /// The address.
        address: String,
        /// The time that the inquiry had.
        timeout: Duration,
    },
    /// The program that listens there does not answer as a replica of this version should, or refuses to answer.
    #[error("{address} gives no answer: {reason}")]
    NoAnswer {
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// Asks the replica that listens for its peers at `address` (`host:port`, or `https://host:port` with TLS) for what its
/// [`Config::answer`](crate::Config::answer) gives: at most [`ANSWER_BYTES_MAX`] bytes. The checksum of the
/// answer is checked, but only TLS proves that a replica sent it.
///
/// This needs no cluster, no replica id and no transport. It blocks for at most `timeout`, which includes the
/// resolution of a name and the connection. (If a resolver takes longer, its thread is left to end by itself.)
///
/// # Errors
/// See [`InquireError`]. All but a wrong address may be gone at the next attempt.
pub fn inquire(address: &str, tls: Option<&Tls>, timeout: Duration) -> Result<Bytes, InquireError> {
    if host_and_port(address).is_none() {
        return Err(InquireError::Address(address.to_owned()));
    }
    let tls = match (is_dialled_with_tls(address), tls) {
        (false, _) => None,
        (true, Some(tls)) => Some(tls.clone()),
        (true, None) => return Err(InquireError::NoTls(address.to_owned())),
    };
    let connect_error = |source| InquireError::Connect { address: address.to_owned(), source };
    let too_late = || InquireError::Timeout { address: address.to_owned(), timeout };
    let deadline = Instant::now() + timeout;
    let (tell, answered) = channel::bounded(1);
    let target = address.to_owned();
    let ask = move || {
        // If the answer comes too late, the receiver is gone.
        _ = tell.send(ask(&target, tls.as_ref(), deadline));
    };
    thread::Builder::new().name("inquire".into()).spawn(ask).map_err(connect_error)?;
    match answered.recv_timeout(timeout).map_err(|_| too_late())? {
        Ok(answer) => Ok(answer),
        Err(HandshakeError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Err(too_late()),
        Err(HandshakeError::Timeout(_)) => Err(too_late()),
        Err(HandshakeError::Io(error)) => Err(connect_error(error)),
        Err(error) => Err(InquireError::NoAnswer { address: address.to_owned(), reason: error.to_string() }),
    }
}

fn ask(address: &str, tls: Option<&Tls>, deadline: Instant) -> Result<Bytes, HandshakeError> {
    let remaining = || {
        let remaining = deadline.saturating_duration_since(Instant::now());
        // The system accepts no timeout of zero.
        remaining.max(Duration::from_millis(1))
    };
    let stream = Stream::new(dial::connect_any(address, remaining())?);
    if let Some(tls) = tls {
        stream.secure_to(tls, host(address), remaining())?;
    }
    handshake::inquire(&stream, remaining())
}

/// Answers an inquiry that arrived on `stream`.
pub(crate) fn serve(
    shared: &Shared,
    stream: &Stream,
    remote: SocketAddr,
    version: u16,
) -> Result<(), HandshakeError> {
    let me = shared.introduction(version);
    let refuse = |refusal: Refusal| {
        handshake::refuse(stream, &refusal, &shared.config.versions, me.who.incarnation);
        Err(HandshakeError::Refused(refusal))
    };
    if is_a_strangers(shared, stream) {
        shared.complain(&format!("inquiry {}", remote.ip()), || {
            format!(
                "the certificate of {remote}, which asks for the members, is valid for the host of no member's peer URL; \
                 give it one that is, add it as a member first, or start this replica with \
                 --peer-skip-client-san-verification"
            )
        });
        return refuse(Refusal::OtherHost);
    }
    let Some(_permit) = Permit::take(shared) else { return refuse(Refusal::Busy) };
    let answer = (shared.config.answer)();
    if answer.len() > ANSWER_BYTES_MAX {
        shared.complain("answer", || {
            format!(
                "the answer to inquiries has {} bytes; at most {ANSWER_BYTES_MAX} can be sent",
                answer.len()
            )
        });
        return refuse(Refusal::NoAnswer);
    }
    handshake::answer(stream, &me, &answer, shared.config.handshake_timeout)?;
    let left_out = lock(&shared.inquiry_lines).admit(&remote.ip().to_string());
    if let Some(left_out) = left_out {
        info!(%remote, bytes = answer.len(), "answered an inquiry{left_out}");
    }
    Ok(())
}

/// Whether the caller has shown a certificate that no member has. A replica that joins is a member already:
/// `member add` names its peer URL. Otherwise a client with a certificate of the same authority could ask.
fn is_a_strangers(shared: &Shared, stream: &Stream) -> bool {
    let checks_hosts = shared.config.tls.as_ref().is_some_and(|tls| tls.checks_hosts);
    let addresses: Vec<_> = shared.peers.table().iter().map(|link| link.target().address).collect();
    checks_hosts && stream.is_shown_for_others(addresses.iter().map(|address| host(address)))
}

/// The right to answer one inquiry, which ends when this is dropped.
struct Permit<'a> {
    shared: &'a Shared,
}

impl Permit<'_> {
    fn take(shared: &Shared) -> Option<Permit<'_>> {
        let permit = Permit { shared };
        // The permit is counted before the count is compared; a permit that is one too many is dropped here.
        (shared.inquiries.fetch_add(1, Relaxed) < INQUIRIES_MAX).then_some(permit)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.shared.inquiries.fetch_sub(1, Relaxed);
    }
}
