//! What a client is connected by: TCP or a unix socket, with TLS or without.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use synod_tls::{Acceptor, common_name, explain_io};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::listen::{Accepted, Speaks};

/// The protocols that are negotiated with TLS. A client of gRPC offers HTTP/2 only; one that offers both is a browser
/// or a monitor that wants a page, and gets HTTP/1.1, in which the pages are served.
pub const PROTOCOLS: [&str; 2] = [HTTP1, "h2"];
const HTTP1: &str = "http/1.1";

/// Bytes that a connection with TLS takes besides: what is encrypted and has not left, and what has not arrived as a
/// whole.
pub const TLS_BYTES: u64 = 160 << 10;

/// The first byte of a connection with TLS: a record of the kind "handshake".
const TLS_FIRST: u8 = 22;
/// The first bytes of HTTP/2's preface, `PRI * HTTP/2.0`. No method begins with these two.
const HTTP2_FIRST: &[u8; 2] = b"PR";

/// A connection whose protocol is known.
#[derive(Debug)]
pub struct Established {
    /// What is read and written.
    pub stream: Stream,
    /// The common name of the client's certificate, if it had to show one.
    pub common_name: Option<Arc<str>>,
    /// Whether the client speaks HTTP/2. Otherwise it asks for a page.
    pub is_http2: bool,
}

/// A socket as it moves from thread to thread.
#[derive(Debug)]
pub enum Resting {
    /// Of TCP.
    Tcp(std::net::TcpStream),
    /// Of a unix socket.
    Unix(std::os::unix::net::UnixStream),
}

impl Accepted {
    /// Takes the socket out of this thread's reactor.
    pub fn rest(self) -> io::Result<Resting> {
        Ok(match self {
            Accepted::Tcp(stream) => {
                stream.set_nodelay(true)?;
                Resting::Tcp(stream.into_std()?)
            }
            Accepted::Unix(stream) => Resting::Unix(stream.into_std()?),
        })
    }
}

impl Resting {
    /// Puts the socket into this thread's reactor.
    pub fn wake(self) -> io::Result<Socket> {
        Ok(match self {
            Resting::Tcp(stream) => Socket::Tcp(TcpStream::from_std(stream)?),
            Resting::Unix(stream) => Socket::Unix(UnixStream::from_std(stream)?),
        })
    }
}

/// Finds out what the client speaks; with TLS, after the handshake. If `pages` is true, it is not asked: it speaks
/// HTTP/1.
pub async fn establish(
    socket: Socket,
    speaks: Speaks,
    acceptor: Option<&Acceptor>,
    pages: bool,
) -> io::Result<Established> {
    let mut socket = Ahead::new(socket);
    let with_tls = match speaks {
        Speaks::Plain => false,
        Speaks::Tls => true,
        Speaks::Either => socket.seen(1).await? == [TLS_FIRST],
    };
    if !with_tls {
        let is_http2 = !pages && socket.begins_http2().await?;
        return Ok(Established { stream: Stream::Plain(socket), common_name: None, is_http2 });
    }
    let mut config = acceptor.ok_or(io::ErrorKind::Unsupported)?.config();
    if pages {
        Arc::make_mut(&mut config).alpn_protocols = vec![HTTP1.into()];
    }
    let stream = TlsAcceptor::from(config).accept(socket).await;
    let stream = stream.map_err(|error| io::Error::new(error.kind(), explain_io(&error)))?;
    let (_, session) = stream.get_ref();
    let shown = session.peer_certificates().and_then(|chain| chain.first());
    let common_name = shown.and_then(common_name).map(Arc::from);
    let negotiated = session.alpn_protocol().map(|protocol| protocol == b"h2");
    let mut stream = Ahead::new(Box::new(stream));
    let is_http2 = match negotiated {
        _ if pages => false,
        Some(is_http2) => is_http2,
        None => stream.begins_http2().await?,
    };
    Ok(Established { stream: Stream::Tls(stream), common_name, is_http2 })
}

/// A socket of either kind.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
}

/// A connection, with TLS or without.
#[derive(Debug)]
pub enum Stream {
    /// Without TLS.
    Plain(Ahead<Socket>),
    /// With TLS.
    Tls(Ahead<Box<TlsStream<Ahead<Socket>>>>),
}

/// A stream whose first bytes may have been read, and are read again.
#[derive(Debug)]
pub struct Ahead<S> {
    first: [u8; 2],
    /// How many of them were read, and how many of these again.
    read: usize,
    given: usize,
    inner: S,
}

impl<S: AsyncRead + Unpin> Ahead<S> {
    /// The stream, of which nothing was read.
    pub fn new(inner: S) -> Ahead<S> {
        Ahead { first: [0; 2], read: 0, given: 0, inner }
    }

    /// The first `count` bytes, or fewer if the stream ends before.
    async fn seen(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.read < count {
            match self.inner.read(&mut self.first[self.read..count]).await? {
                0 => break,
                more => self.read += more,
            }
        }
        Ok(&self.first[..self.read.min(count)])
    }

    /// Whether the client begins as HTTP/2 does. Of another protocol no more than it needs is read.
    pub async fn begins_http2(&mut self) -> io::Result<bool> {
        Ok(self.seen(1).await? == &HTTP2_FIRST[..1] && self.seen(2).await? == HTTP2_FIRST)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Ahead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.first[self.given..self.read];
        if !rest.is_empty() && buffer.remaining() > 0 {
            let again = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..again]);
            self.given += again;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ahead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Reading and writing, by whichever variant it is.
macro_rules! by_variant {
    ($type:ident: $first:ident, $second:ident) => {
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $type::$first(stream) => Pin::new(stream).poll_read(cx, buffer),
                    $type::$second(stream) => Pin::new(stream).poll_read(cx, buffer),
                }
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $type::$first(stream) => Pin::new(stream).poll_write(cx, bytes),
                    $type::$second(stream) => Pin::new(stream).poll_write(cx, bytes),
                }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $type::$first(stream) => Pin::new(stream).poll_flush(cx),
                    $type::$second(stream) => Pin::new(stream).poll_flush(cx),
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $type::$first(stream) => Pin::new(stream).poll_shutdown(cx),
                    $type::$second(stream) => Pin::new(stream).poll_shutdown(cx),
                }
            }
        }
    };
}

by_variant!(Socket: Tcp, Unix);
by_variant!(Stream: Plain, Tls);
