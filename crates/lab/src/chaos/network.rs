//! The network between the replicas, and how it is cut.
//!
//! In **namespaces** each replica has a network of its own (`crate::net::namespaces`), and the router between
//! all of them drops packets, by direction: `from 10.211.1.2 to 10.211.2.2 blackhole`.
//!
//! TCP notices a packet that is lost in one direction in both: what arrives is not acknowledged. Behind the **relay**
//! (`crate::net`) connections stay up while what they carry in one direction waits, and arrives late.

use std::collections::BTreeSet;

use synod_wire::ReplicaId;

use crate::net::{
    Link, Relay, free_addresses,
    namespaces::{Address, Namespaces, tool},
};

/// The links between replicas, and how they are cut and mended.
#[derive(Debug)]
pub struct Network {
    /// The relay; `None` with namespaces.
    relay: Option<Relay>,
    /// The address of each place.
    pub addresses: Vec<Address>,
    cuts: BTreeSet<(usize, usize)>,
    _networks: Option<Namespaces>,
}

impl Network {
    /// A network for each replica. This process must be in namespaces of its own.
    pub fn namespaces(replicas: usize) -> Result<Network, String> {
        let networks = Namespaces::new(replicas)?;
        let addresses = networks.addresses();
        Ok(Network { relay: None, addresses, cuts: BTreeSet::new(), _networks: Some(networks) })
    }

    /// A relay on the loopback interface.
    pub fn relay(replicas: usize) -> Result<Network, String> {
        let free = free_addresses(2 * replicas).map_err(|error| format!("ports: {error}"))?;
        let (clients, peers) = free.split_at(replicas);
        let targets = (1..).map(ReplicaId).zip(peers.iter().copied()).collect();
        let links = vec![vec![Link::CLEAR; replicas]; replicas];
        let relay = Relay::start(links, targets, 0).map_err(|error| format!("relay: {error}"))?;
        let advertised = relay.addresses().to_vec();
        let addresses = clients
            .iter()
            .zip(peers)
            .zip(advertised)
            .map(|((&client, &peer), advertised)| Address { client, peer, advertised, namespace: None });
        let addresses = addresses.collect();
        Ok(Network { addresses, relay: Some(relay), cuts: BTreeSet::new(), _networks: None })
    }

    /// The network's description in the report.
    pub fn describe(&self) -> &'static str {
        match self.relay {
            None => "a network namespace each; cuts drop packets by direction",
            Some(_) => "loopback, through a relay; cuts hold back what is sent, by direction",
        }
    }

    /// Tells the network that a new replica is at a place.
    pub fn settle(&self, id: u64, place: usize) {
        if let Some(relay) = &self.relay {
            relay.settle(ReplicaId(id), place);
        }
    }

    /// Cuts links: nothing gets from the first to the second place of each pair.
    pub fn cut(&mut self, pairs: &[(usize, usize)]) -> Result<(), String> {
        let new: Vec<_> = pairs.iter().copied().filter(|&pair| self.cuts.insert(pair)).collect();
        self.apply(&new, true)
    }

    /// Mends all links.
    pub fn mend(&mut self) -> Result<(), String> {
        let cuts: Vec<_> = std::mem::take(&mut self.cuts).into_iter().collect();
        self.apply(&cuts, false)
    }

    fn apply(&self, pairs: &[(usize, usize)], cut: bool) -> Result<(), String> {
        let Some(relay) = &self.relay else {
            let ip = |place: usize| self.addresses[place].peer.ip();
            let verb = if cut { "add" } else { "del" };
            let rule = |&(from, to): &(usize, usize)| {
                format!("rule {verb} from {} to {} blackhole\n", ip(from), ip(to))
            };
            return tool("ip", &["-batch", "-"], &pairs.iter().map(rule).collect::<String>());
        };
        pairs.iter().for_each(|&(from, to)| relay.cut(from, to, cut));
        Ok(())
    }
}
