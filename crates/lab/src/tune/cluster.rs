//! The cluster that is measured: its members, how it orders, how its machines are connected, and whether it can be
//! measured now.

use std::{
    net::{ToSocketAddrs, UdpSocket},
    time::{Duration, Instant},
};

use synod_client::{Client, Config, Metrics, native::StatusResponse};

use crate::{
    bench::{TlsOptions, target::Target},
    study::LabError,
};

/// Pings of a member, of which the quickest tells the way to it.
const PINGS: usize = 5;
/// The settings of a replica that does not tell them.
const WINDOW_MAX: usize = 32;
const BATCH_BYTES_MAX: usize = 64 << 10;

/// A member that answered.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) status: StatusResponse,
    pub(super) url: String,
    /// Whether it runs on this machine, as its URL says.
    pub(super) is_here: bool,
    /// Seconds from here to it and back.
    pub(super) way: f64,
    /// What it counted when it was found.
    page: Metrics,
}

/// A cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The members that vote and answered, the leader first.
    pub(super) members: Vec<Member>,
    /// Those that vote.
    pub(super) voters: usize,
    /// Slots and bytes that the leader's settings allow.
    pub(super) window_max: usize,
    pub(super) batch_bytes_max: usize,
    /// Whether the leader tells these.
    pub(super) tells_settings: bool,
    /// The URLs at which nothing answered as it should, with the reason.
    silent: Vec<String>,
}

/// The cluster cannot be measured.
pub(super) fn refused(why: impl std::fmt::Display) -> LabError {
    LabError::Replicas(why.to_string())
}

impl Cluster {
    /// Asks the endpoints for the members, and all of these for their status and counts.
    pub(super) fn find(endpoints: &[String], tls: &TlsOptions) -> Result<Cluster, LabError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(refused)?.block_on(async {
            let urls = client_urls(endpoints, tls).await?;
            let client = client(&urls, tls)?;
            let answers = urls.iter().cloned().zip(client.native_status().await).zip(client.metrics().await);
            let (mut members, mut silent): (Vec<Member>, Vec<String>) = Default::default();
            for ((url, status), page) in answers {
                let (status, page) = match (status, page) {
                    (Ok(status), Ok(page)) => (status, page),
                    (Err(why), _) | (_, Err(why)) => {
                        silent.push(format!("{url}: {why}"));
                        continue;
                    }
                };
                if members.iter().any(|member| member.status.replica == status.replica) {
                    continue;
                }
                let first = members.first().map_or(status.cluster_id, |first| first.status.cluster_id);
                if status.cluster_id != first {
                    return Err(refused(format!(
                        "{url} belongs to another cluster than {}: a member's --advertise-client-urls leads elsewhere from \
                         here",
                        members[0].url
                    )));
                }
                let target = tls.targets("--endpoints", std::slice::from_ref(&url))?.remove(0);
                let way = way_to(&target).await?;
                members.push(Member { status, is_here: is_here(&url), url, way, page });
            }
            Cluster::of(members, silent)
        })
    }

    fn of(mut members: Vec<Member>, silent: Vec<String>) -> Result<Cluster, LabError> {
        let group = members
            .iter()
            .filter_map(|member| member.status.group.as_ref())
            .max_by_key(|group| group.version);
        let voters: Vec<u64> = group.map_or_else(Vec::new, |group| {
            let votes = group.members.iter().filter(|member| member.votes);
            votes.map(|member| member.id).collect()
        });
        members.retain(|member| voters.contains(&member.status.replica));
        members.sort_by_key(|member| (member.status.role != "leader", member.status.replica));
        let first = members.first().ok_or_else(|| {
            refused(format!(
                "no member answered; accepted: client URLs of a Synod cluster (--endpoints). {}",
                silent.join("; ")
            ))
        })?;
        let told = |family: &str| first.page.value(family, "").map(|value| value as usize);
        let (window, batch) = (told("synod_window_max"), told("synod_batch_max_bytes"));
        Ok(Cluster {
            voters: voters.len(),
            window_max: window.unwrap_or(WINDOW_MAX),
            batch_bytes_max: batch.unwrap_or(BATCH_BYTES_MAX),
            tells_settings: window.is_some() && batch.is_some(),
            silent,
            members,
        })
    }

    /// Refuses a cluster that cannot be measured now, with the remedy.
    pub(super) fn check(&self) -> Result<(), LabError> {
        let leader = &self.members[0];
        if leader.status.groups.len() > 1 {
            return Err(refused(format!(
                "the cluster has {} groups, and tune measures clusters of one; `synod lab run` compares groups",
                leader.status.groups.len()
            )));
        }
        if self.members.len() < self.voters {
            let (quorum, number) = (self.voters / 2 + 1, self.members.len());
            let why = if number < quorum {
                "which is no quorum"
            } else {
                "and with the others all would be different"
            };
            return Err(refused(format!(
                "{number} of {} voters answer, {why}; `synod status --cluster` shows which do not. {}",
                self.voters,
                self.silent.join("; ")
            )));
        }
        if leader.status.role != "leader" {
            return Err(refused("no member leads; `synod status --cluster` shows what they wait for"));
        }
        for member in &self.members {
            if member.page.value("process_cpu_seconds_total", "").is_none() {
                return Err(refused(format!("{} does not tell what it spends", member.status.name)));
            }
            let alarms = member.page.labelled("synod_alarms", "alarm");
            if let Some((alarm, _)) = alarms.iter().find(|(_, raised)| *raised > 0.0) {
                return Err(refused(format!(
                    "the alarm {alarm} is raised, under which nothing can be written; `synod alarm list` shows at which \
                     members, and the manual what ends it"
                )));
            }
            if let Some(trouble) = member.status.troubles.first() {
                return Err(refused(format!(
                    "{}: {trouble}; a cluster is measured once it is well",
                    member.status.name
                )));
            }
        }
        Ok(())
    }

    /// How it orders, for people.
    pub(super) fn ordering(&self) -> String {
        let status = &self.members[0].status;
        format!("{}, {}, {}, {}", status.protocol, status.election, status.dissemination, status.durability)
    }

    /// Whether all members run on this machine.
    pub(super) fn is_one_machine(&self) -> bool {
        self.members.iter().all(|member| member.is_here)
    }

    /// All client URLs, the leader's first.
    pub(super) fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.url.clone()).collect()
    }

    /// Seconds from one member to another and back, as the two of them measured: the mean of both; `None` if neither
    /// has measured yet.
    pub(super) fn round_trip(&self, from: usize, to: usize) -> Option<f64> {
        let told = |from: usize, to: usize| {
            let family = "synod_peer_round_trip_seconds";
            let label = format!("peer=\"{}\"", self.members[to].status.replica);
            let page = &self.members[from].page;
            let number = page.value(&format!("{family}_count"), &label).filter(|number| *number > 0.0)?;
            Some(page.value(&format!("{family}_sum"), &label)? / number)
        };
        let both: Vec<f64> = [told(from, to), told(to, from)].into_iter().flatten().collect();
        (!both.is_empty()).then(|| both.iter().sum::<f64>() / both.len() as f64)
    }
}

/// The endpoints, and the client URLs of all members as the first endpoint that answers knows them. A member that is
/// met twice counts once.
async fn client_urls(endpoints: &[String], tls: &TlsOptions) -> Result<Vec<String>, LabError> {
    let listed = client(endpoints, tls)?.member_list(false).await.map_err(|error| {
        let users = error.to_string().contains("user name is empty");
        let why = if users { "; users count there (`synod auth`), and tune cannot log in yet" } else { "" };
        refused(format!("{error}{why}"))
    })?;
    let mut urls = endpoints.to_vec();
    for url in listed.members.iter().flat_map(|member| &member.client_ur_ls) {
        if !urls.contains(url) {
            urls.push(url.clone());
        }
    }
    Ok(urls)
}

/// Whether a URL leads to this machine: to a unix socket, or to an address that this machine has.
fn is_here(url: &str) -> bool {
    let (scheme, address) = url.split_once("://").unwrap_or(("http", url));
    if scheme.starts_with("unix") {
        return true;
    }
    let Ok(addresses) = address.trim_end_matches('/').to_socket_addrs() else { return false };
    let mut addresses = addresses.peekable();
    addresses.peek().is_some() && addresses.all(|address| UdpSocket::bind((address.ip(), 0)).is_ok())
}

/// A client of these endpoints.
pub(super) fn client(endpoints: &[String], tls: &TlsOptions) -> Result<Client, LabError> {
    let mut config = Config::new(endpoints.iter().cloned());
    config.tls = tls.connector_for(endpoints)?;
    config.give_up_unreachable = true;
    Client::new(config).map_err(refused)
}

/// The quickest of some answers to a question that needs no other member, in seconds.
async fn way_to(target: &Target) -> Result<f64, LabError> {
    let channel = target.connect().await?;
    let mut quickest = Duration::MAX;
    for _ in 0..PINGS {
        let began = Instant::now();
        Target::ping(&target.address, channel.clone()).await?;
        quickest = quickest.min(began.elapsed());
    }
    Ok(quickest.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_known() {
        for url in ["http://127.0.0.1:2379", "127.0.0.1:1", "unix:///tmp/s", "https://[::1]:2379/"] {
            assert!(is_here(url) || url.contains("::1"), "{url}");
        }
        assert!(!is_here("http://192.0.2.77:2379"), "an address for documentation");
        assert!(!is_here("http://no such host:1"));
    }
}
