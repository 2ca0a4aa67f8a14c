//! Ports for replicas that tests start.

use std::{
    collections::BTreeSet,
    net::{TcpListener, UdpSocket},
    sync::Mutex,
};

/// A port at which no process listens: see [`free_ports`].
#[must_use]
pub fn free_port() -> u16 {
    free_ports(1)[0]
}

/// Ports at which no process listens, nor takes packets. They are below those that the system gives to outgoing
/// connections: a replica that was killed must find its own ports again. No port is given twice: tests run side by
/// side.
///
/// # Panics
/// Another thread has panicked in here.
#[must_use]
pub fn free_ports(count: usize) -> Vec<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().expect("no thread has panicked in here");
    let mut ports = Vec::new();
    while ports.len() < count {
        let port = fastrand::u16(10_000..32_000);
        let address = ("127.0.0.1", port);
        let is_free = TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok();
        if is_free && given.insert(port) {
            ports.push(port);
        }
    }
    ports
}
