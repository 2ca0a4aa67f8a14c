//! Where a server listens, and what is spoken there.

use std::{
    fmt,
    fs::{self, File},
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    os::unix,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// Connections that the kernel holds until the server accepts them.
const BACKLOG: u32 = 1024;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The place.
    pub at: At,
    /// What is spoken there.
    pub speaks: Speaks,
}

/// A place to listen at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// A port of this machine. Port 0 takes a free one.
    Tcp(SocketAddr),
    /// A unix socket. Its file is removed at the end; one that is left over from a process that has ended is replaced.
    Unix(PathBuf),
}

/// What is spoken at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// No TLS.
    Plain,
    /// TLS.
    Tls,
    /// Either. The first byte of a connection tells.
    Either,
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address { at: At::Tcp(address), speaks: Speaks::Plain }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Tcp(address) => address.fmt(f),
            At::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Why the server cannot listen at a list of URLs.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {url:?}: {why}")]
pub struct ListenError {
    url: String,
    why: String,
}

/// The addresses in a list of URLs separated by commas, as in `http://127.0.0.1:2379,https://localhost:2379`. Names are
/// resolved. `unix://` and `unixs://` stand for unix sockets, and the rest of the URL is the path of the
/// file: `unix:///run/synod.sock`, or `unix://localhost:2379` for a file of that name in the working directory. An
/// address that is named with TLS and without speaks either.
///
/// # Errors
/// A URL is none of these, or a name cannot be resolved.
pub fn listen_addresses(urls: &str) -> Result<Vec<Address>, ListenError> {
    const ACCEPTED: &str = "give http://host:port, https://host:port, unix://path or unixs://path";
    let mut addresses: Vec<Address> = Vec::new();
    for url in urls.split(',').map(str::trim) {
        let wrong = |why: String| ListenError { url: url.to_owned(), why };
        let Some((scheme, rest)) = url.split_once("://") else { return Err(wrong(ACCEPTED.into())) };
        let speaks = if scheme.ends_with('s') { Speaks::Tls } else { Speaks::Plain };
        let found: Vec<At> = match scheme {
            "http" | "https" => {
                let authority = rest.strip_suffix('/').unwrap_or(rest);
                let found =
                    authority.to_socket_addrs().map_err(|error| wrong(format!("{error}; {ACCEPTED}")))?;
                found.map(At::Tcp).collect()
            }
            "unix" | "unixs" if !rest.is_empty() => vec![At::Unix(rest.into())],
            _ => return Err(wrong(ACCEPTED.into())),
        };
        for at in found {
            match addresses.iter_mut().find(|address| address.at == at) {
                Some(same) if same.speaks != speaks => same.speaks = Speaks::Either,
                Some(_) => {}
                None => addresses.push(Address { at, speaks }),
            }
        }
    }
    addresses.sort_by(|one, other| one.at.cmp(&other.at));
    Ok(addresses)
}

/// A place that a server has taken, where nobody can connect yet: a client is refused at once, and tries another
/// server.
#[derive(Debug)]
pub enum Bound {
    /// A port.
    Tcp(TcpSocket),
    /// Taken only when the server listens there: the file of a socket at which nobody listens is taken for a stale one.
    Unix(PathBuf),
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// With the file, and which one it is.
    Unix(UnixListener, PathBuf, Option<(u64, u64)>),
}

/// A connection that was accepted.
#[derive(Debug)]
pub enum Accepted {
    /// From a port.
    Tcp(TcpStream),
    /// From a unix socket.
    Unix(UnixStream),
}

/// The other end of a connection, for the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remote(Option<SocketAddr>);

/// Whose connection it is, as far as addresses tell: that of an IPv4 host, or of a network of IPv6, whose hosts are one
/// owner's. `None` for a unix socket.
pub type Origin = Option<IpAddr>;

impl Remote {
    /// Whose connection it is.
    pub fn origin(self) -> Origin {
        const NETWORK_BITS: u32 = 64;
        self.0.map(|address| match address.ip().to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> NETWORK_BITS << NETWORK_BITS).into(),
            ip => ip,
        })
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("a unix socket"),
        }
    }
}

impl Bound {
    /// `reuse_port`: whether another process may listen at the same address.
    pub fn new(at: &At, reuse_port: bool) -> io::Result<Bound> {
        let address = match at {
            At::Tcp(address) => address,
            At::Unix(path) => return Ok(Bound::Unix(path.clone())),
        };
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A restarted server need not wait until the kernel has forgotten the old connections.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(reuse_port)?;
        socket.bind(*address)?;
        Ok(Bound::Tcp(socket))
    }

    /// The address, with the port that was chosen for port 0.
    pub fn address(&self) -> io::Result<At> {
        match self {
            Bound::Tcp(socket) => Ok(At::Tcp(socket.local_addr()?)),
            Bound::Unix(path) => Ok(At::Unix(path.clone())),
        }
    }

    /// Begins to listen.
    ///
    /// # Errors
    /// Somebody else does so there, or the system does not allow it.
    pub fn listen(self) -> io::Result<Listener> {
        match self {
            Bound::Tcp(socket) => Ok(Listener::Tcp(socket.listen(BACKLOG)?)),
            Bound::Unix(path) => {
                // Of two processes that start at once, the second one must not take the first one's new file for a
                // stale one.
                let _one_at_a_time = lock_folder_of(&path);
                remove_stale(&path)?;
                let listener = listen_at(&path)?;
                let file = which(&path);
                Ok(Listener::Unix(listener, path, file))
            }
        }
    }
}

impl Listener {
    /// Waits for the next connection.
    ///
    /// # Errors
    /// The system has none to give, most likely for lack of descriptors.
    pub async fn accept(&self) -> io::Result<(Accepted, Remote)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                Ok((Accepted::Tcp(stream), Remote(Some(remote))))
            }
            Listener::Unix(listener, ..) => {
                let (stream, _) = listener.accept().await?;
                Ok((Accepted::Unix(stream), Remote(None)))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have put its own there meanwhile.
        if let Listener::Unix(_, path, own) = self
            && which(path) == *own
        {
            // It may be gone already, which is as good.
            _ = fs::remove_file(path);
        }
    }
}

/// Which file is there, if there is one.
fn which(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((unix::fs::MetadataExt::dev(&meta), unix::fs::MetadataExt::ino(&meta)))
}

/// Holds the lock of a file's folder, where the folder can be read.
fn lock_folder_of(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// Listens at a unix socket, which only processes of the same user, and of root, may connect to.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Nobody can connect before it listens.
    fs::set_permissions(path, unix::fs::PermissionsExt::from_mode(0o600))?;
    net::listen(&socket, BACKLOG.try_into().unwrap_or(i32::MAX))?;
    UnixListener::from_std(socket.into())
}

/// Removes the file of a socket at which nobody listens any more. Anything else stays, and then listening fails.
fn remove_stale(path: &Path) -> io::Result<()> {
    // It must not wait until a listener whose connections wait to be accepted has room for one more.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => {
            let is_socket = unix::fs::FileTypeExt::is_socket(&fs::symlink_metadata(path)?.file_type());
            if is_socket { fs::remove_file(path) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, iter, thread};

    use super::*;

    fn listen(at: &At) -> io::Result<Listener> {
        Bound::new(at, false)?.listen()
    }

    #[test]
    fn urls_become_addresses() {
        let found =
            listen_addresses("https://127.0.0.1:2379, http://[::1]:2379/,http://127.0.0.1:1").unwrap();
        let told: Vec<_> = found.iter().map(|found| (found.at.to_string(), found.speaks)).collect();
        let expected =
            [("127.0.0.1:1", Speaks::Plain), ("127.0.0.1:2379", Speaks::Tls), ("[::1]:2379", Speaks::Plain)];
        assert_eq!(told, expected.map(|(at, speaks)| (at.to_owned(), speaks)));
        let both = listen_addresses("http://127.0.0.1:1,https://127.0.0.1:1,https://127.0.0.1:1").unwrap();
        assert!(both.len() == 1 && both[0].speaks == Speaks::Either);
        let unix = listen_addresses("unix://localhost:2379,unixs:///run/x.sock").unwrap();
        let told: Vec<_> = unix.iter().map(|found| (found.at.clone(), found.speaks)).collect();
        let path = |path: &str| At::Unix(path.into());
        assert_eq!(told, [(path("/run/x.sock"), Speaks::Tls), (path("localhost:2379"), Speaks::Plain)]);
        for wrong in
            ["", "127.0.0.1:2379", "ftp://127.0.0.1:1", "http://127.0.0.1", "https://a:99999", "unix://"]
        {
            let error = listen_addresses(wrong).unwrap_err().to_string();
            assert!(error.contains("http://host:port"), "{error}");
        }
    }

    #[test]
    fn the_hosts_of_a_network_have_one_origin() {
        let origin = |address: &str| Remote(Some(address.parse().unwrap())).origin().unwrap().to_string();
        assert_eq!(origin("10.1.2.3:4"), "10.1.2.3");
        assert_eq!(origin("[::ffff:10.1.2.3]:4"), "10.1.2.3");
        assert_eq!([origin("[2001:db8::1:2]:3"), origin("[2001:db8::ffff:4]:5")], ["2001:db8::"; 2]);
        assert_eq!(Remote(None).origin(), None);
    }

    #[tokio::test]
    async fn a_file_that_is_left_over_is_replaced_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = At::Unix(folder.path().join("socket"));
        let At::Unix(path) = &at else { unreachable!() };
        // The process that listened there was killed.
        drop(unix::net::UnixListener::bind(path).unwrap());
        assert!(path.exists());
        let listener = listen(&at).unwrap();
        let mode = unix::fs::MetadataExt::mode(&fs::metadata(path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(listen(&at).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(UnixStream::connect(path).await.is_ok());
        drop(listener);
        assert!(!path.exists());
        // Another process takes the place over; what stands there is its own.
        let first = listen(&at).unwrap();
        fs::remove_file(path).unwrap();
        let second = listen(&at).unwrap();
        drop(first);
        assert!(UnixStream::connect(path).await.is_ok());
        drop(second);
        fs::write(path, "a file of somebody else").unwrap();
        assert_eq!(listen(&at).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn one_that_listens_and_accepts_nothing_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        net::bind(&socket, &address).unwrap();
        net::listen(&socket, 0).unwrap();
        let connect = || {
            let flags = SocketFlags::NONBLOCK;
            let caller = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            net::connect(&caller, &address).ok().map(|()| caller)
        };
        let waiting: Vec<_> = iter::from_fn(connect).collect();
        assert!(!waiting.is_empty());
        remove_stale(&path).unwrap();
        assert!(path.exists());
    }

    #[test]
    fn of_those_that_start_at_once_one_listens() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let path = folder.path().join(round.to_string());
            drop(unix::net::UnixListener::bind(&path).unwrap());
            let bind = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
                let _inside = runtime.enter();
                (listen(&At::Unix(path.clone())), runtime)
            };
            let bound: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.iter().filter(|(bound, _)| bound.is_ok()).count(), 1);
            for (bound, runtime) in bound {
                let _inside = runtime.enter();
                drop(bound);
            }
        }
    }
}
