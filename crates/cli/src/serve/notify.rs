//! Tells the service manager how the replica is: sd_notify(3). etcd does so too, so its units are `Type=notify`.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use synod_server::node::Phase;

/// What the service manager calls its socket by: a path, or after `@` an abstract name.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How long a service manager that does not read may hold the replica up.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Tells the service manager, if one has started this process and waits for it.
pub fn tell(phase: Phase) {
    let Some(socket) = env::var_os(SOCKET).filter(|socket| !socket.is_empty()) else { return };
    let state = match phase {
        Phase::Ready => "READY=1",
        Phase::Stopping => "STOPPING=1",
    };
    match send(&socket, state) {
        Ok(()) => tracing::debug!(state, "the service manager is told"),
        Err(error) => tracing::warn!(
            "{SOCKET}={}: the service manager could not be told {state}: {error}",
            socket.display()
        ),
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let from = UnixDatagram::unbound()?;
    from.set_write_timeout(Some(SEND_TIMEOUT))?;
    from.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    fn receives(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = [0; 64];
        let received = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..received].to_vec()).unwrap()
    }

    #[test]
    fn a_socket_with_a_path_and_one_with_an_abstract_name_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(receives(&socket), "READY=1");
        let name = format!("synod-notify-{}", process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_ref(), "STOPPING=1").unwrap();
        assert_eq!(receives(&socket), "STOPPING=1");
        assert!(send(folder.path().join("none").as_os_str(), "READY=1").is_err());
    }
}
