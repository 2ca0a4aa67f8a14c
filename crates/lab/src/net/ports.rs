//! Ports for replicas that are about to start.

use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::{Mutex, PoisonError},
};

/// This many ports are remembered; far more than groups that start at a time take.
const REMEMBERED: usize = 2048;

/// Addresses on the loopback interface at which no process listens. Their ports are below those that the system gives
/// to outgoing connections: a replica that was killed must find its own port free again, and one that starts must not
/// lose its port to a connection. Groups that start side by side get different ones.
pub(crate) fn free_addresses(count: usize) -> io::Result<Vec<SocketAddr>> {
    static GIVEN: Mutex<VecDeque<u16>> = Mutex::new(VecDeque::new());
    // The list is whole after each change.
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut addresses = Vec::new();
    while addresses.len() < count {
        let port = fastrand::u16(10_000..32_000);
        if given.contains(&port) {
            continue;
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match TcpListener::bind(address) {
            Ok(_) => addresses.push(address),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
        given.push_back(port);
        if given.len() > REMEMBERED {
            given.pop_front();
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_start_side_by_side_get_different_ports() {
        let start = || std::thread::spawn(|| free_addresses(20).expect("there are some"));
        let groups: Vec<_> = (0..8).map(|_| start()).collect();
        let mut all: Vec<_> = groups.into_iter().flat_map(|group| group.join().expect("no panic")).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 160);
    }
}
