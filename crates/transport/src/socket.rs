//! Settings of every connection between replicas, and of sockets for packets.

use std::{io, net::SocketAddr, time::Duration};

#[cfg(not(feature = "shuttle"))]
use rustix::net::sockopt;
use synod_sync::net::{TcpStream, UdpSocket};

/// How many probes without an answer make a silent host count as gone.
#[cfg(not(feature = "shuttle"))]
const PROBES: u32 = 3;

/// Sets a connection up so that small frames leave at once, and so that it breaks when the host is silent, or
/// the process takes nothing off a full connection, for `silence_max`.
pub(crate) fn tune(stream: &TcpStream, silence_max: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(silence_max))?;
    #[cfg(not(feature = "shuttle"))]
    notice_silence(stream, silence_max)?;
    Ok(())
}

/// The first byte that arrives, which stays to be read; `None` at the end of the stream.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn first_byte(stream: &TcpStream, timeout: Duration) -> io::Result<Option<u8>> {
    stream.set_read_timeout(Some(timeout))?;
    let mut first = [0];
    Ok((stream.peek(&mut first)? == 1).then_some(first[0]))
}

/// Under the scheduler that explores orders nobody speaks TLS.
#[cfg(feature = "shuttle")]
pub(crate) fn first_byte(_: &TcpStream, _: Duration) -> io::Result<Option<u8>> {
    Ok(None)
}

#[cfg(not(feature = "shuttle"))]
fn notice_silence(stream: &TcpStream, silence_max: Duration) -> io::Result<()> {
    // An idle connection is probed after a part of the time, and given up at the end of it. The system counts
    // in whole seconds.
    let interval = Duration::from_secs((silence_max / (PROBES + 1)).as_secs().max(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, interval)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    // Keep-alive does not probe while sent data is unacknowledged; this option bounds the time in that case.
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, u32::try_from(silence_max.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// Bytes of packets that may wait for the replica. Linux grants as much of it as it allows.
#[cfg(not(feature = "shuttle"))]
const PACKETS_BYTES: usize = 4 << 20;

/// Takes packets that come to an address, without waiting.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn packets_at(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    sockopt::set_socket_recv_buffer_size(&socket, PACKETS_BYTES)?;
    Ok(socket)
}

/// Sends packets from one address to another, without waiting and, on Linux, without having one cut in two on its way.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn packets_to(local: SocketAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(local)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    sockopt::set_socket_send_buffer_size(&socket, PACKETS_BYTES)?;
    #[cfg(target_os = "linux")]
    if peer.is_ipv6() {
        sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
    }
    Ok(socket)
}

/// Under the scheduler that explores orders nobody sends packets.
#[cfg(feature = "shuttle")]
pub(crate) fn packets_at(_: SocketAddr) -> io::Result<UdpSocket> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Under the scheduler that explores orders nobody sends packets.
#[cfg(feature = "shuttle")]
pub(crate) fn packets_to(_: SocketAddr, _: SocketAddr) -> io::Result<UdpSocket> {
    Err(io::ErrorKind::Unsupported.into())
}
