//! Connections with TLS, and by unix sockets. Those by TCP without TLS are made by tonic.

use std::{
    fmt, io,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use hyper_util::rt::TokioIo;
use synod_tls::{Connector, explain_io, rustls::pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{codegen::Service, codegen::http::Uri};

/// How an endpoint is connected to.
#[derive(Clone)]
pub struct Dial {
    at: At,
    tls: Option<(Connector, ServerName<'static>)>,
    said: Arc<Mutex<Option<String>>>,
}

#[derive(Clone, Debug)]
enum At {
    /// `host:port`.
    Tcp(String),
    Unix(PathBuf),
}

/// A connection of any kind.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for S {}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").field("at", &self.at).field("tls", &self.tls.is_some()).finish()
    }
}

impl Dial {
    /// How the endpoint with this URL is connected to; `None` if tonic does that.
    ///
    /// # Errors
    /// The text says what is wrong with the URL.
    pub fn to(url: &str, tls: Option<&Connector>) -> Result<Option<Dial>, String> {
        const ACCEPTED: &str = "give http://host:port, https://host:port, unix://path or unixs://path";
        let (scheme, rest) = url.split_once("://").ok_or(ACCEPTED)?;
        let (at, host) = match scheme {
            "http" => return Ok(None),
            "https" => {
                let address = rest.strip_suffix('/').unwrap_or(rest);
                let (host, _) = address.rsplit_once(':').ok_or(ACCEPTED)?;
                (At::Tcp(address.to_owned()), host.trim_start_matches('[').trim_end_matches(']'))
            }
            // As with etcd, a path may look like `host:port`, and the certificate is then for that host.
            "unix" | "unixs" if !rest.is_empty() => {
                let host = rest.split(['/', ':']).next().filter(|host| !host.is_empty());
                (At::Unix(rest.into()), host.unwrap_or("localhost"))
            }
            _ => return Err(ACCEPTED.into()),
        };
        let tls = match (scheme.ends_with('s'), tls) {
            (false, _) => None,
            (true, Some(connector)) => {
                let name = ServerName::try_from(host.to_owned());
                Some((connector.clone(), name.map_err(|_| format!("{host:?} is no host name"))?))
            }
            (true, None) => {
                return Err("it asks for TLS, for which Config::tls has to be set (--cacert, or \
                            --insecure-skip-tls-verify)"
                    .into());
            }
        };
        Ok(Some(Dial { at, tls, said: Arc::default() }))
    }

    /// Why TLS failed on the connection that was made last, if it did.
    #[must_use]
    pub fn said(&self) -> Option<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The URL that tonic is told.
    #[must_use]
    pub fn uri(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.at {
            At::Tcp(address) => format!("{scheme}://{address}"),
            At::Unix(_) => format!("{scheme}://localhost"),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or one of the two sides does not take the other's certificate.
    pub async fn connect(self) -> io::Result<Box<dyn Io>> {
        let stream: Box<dyn Io> = match self.at {
            At::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            At::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let Some((connector, name)) = self.tls else { return Ok(stream) };
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let stream = TlsConnector::from(connector.config()).connect(name, stream).await;
        let stream = stream.map_err(|error| io::Error::new(error.kind(), explain_io(&error)))?;
        Ok(Box::new(Heard { stream, said: self.said }))
    }
}

/// A connection that keeps why TLS failed on it. With TLS 1.3 a client is done with its handshake before it hears that
/// the server does not take its certificate, and what uses the connection then tells only that it was closed.
struct Heard {
    stream: TlsStream<Box<dyn Io>>,
    said: Arc<Mutex<Option<String>>>,
}

impl Heard {
    /// Reads before it tells that a write has failed, since what the other side said before it closed the connection
    /// may not have been read yet.
    fn after<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(_)) = &written {
            let mut bytes = [0; 1];
            // The connection has failed, so that soon there is nothing more to read than that.
            ready!(Pin::new(self).poll_read(cx, &mut ReadBuf::new(&mut bytes))).ok();
        }
        written
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read
            && error.kind() == io::ErrorKind::InvalidData
        {
            *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Some(explain_io(error));
        }
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.after(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.after(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async { dial.connect().await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use synod_tls::Policy;

    use super::*;

    #[test]
    fn endpoints_are_dialled_by_their_schemes() {
        let connector = Connector::new(None, None, Policy::default(), &["h2"]).unwrap();
        let told =
            |url| Dial::to(url, Some(&connector)).unwrap().map(|dial| (dial.uri(), format!("{:?}", dial.at)));
        assert_eq!(told("http://a:1"), None);
        assert_eq!(told("https://[::1]:1/"), Some(("https://[::1]:1".into(), "Tcp(\"[::1]:1\")".into())));
        assert_eq!(told("unix:///x/y"), Some(("http://localhost".into(), "Unix(\"/x/y\")".into())));
        assert_eq!(
            told("unixs://localhost:1"),
            Some(("https://localhost".into(), "Unix(\"localhost:1\")".into()))
        );
        for wrong in ["a:1", "ftp://a:1", "https://a", "unix://"] {
            assert!(Dial::to(wrong, Some(&connector)).unwrap_err().contains("http://host:port"), "{wrong}");
        }
        assert!(Dial::to("https://a:1", None).unwrap_err().contains("--cacert"));
    }
}
