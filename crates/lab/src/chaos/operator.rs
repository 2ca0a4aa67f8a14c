//! The actions of an operator, and how the cluster carries them out.

use std::time::{Duration, Instant};

use synod_client::{
    Client, Config, Error,
    api::{
        CompactionRequest, HashKvRequest, HashKvResponse, RangeRequest, maintenance_client::MaintenanceClient,
    },
    mvccpb::KeyValue,
    native::{AddMember, ChangeRequest, Goal, Group, Reconfigure, StatusResponse, change_request::Change},
};
use tokio::time::sleep;
use tonic::transport::Endpoint;

/// A change, or the return of service after a fault, that takes longer counts as broken.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An operator who changes the group during faults. Clones share connections.
#[derive(Clone, Debug)]
pub struct Operator {
    /// A client that knows all replicas.
    all: Client,
    /// A client for each replica.
    each: Vec<Client>,
    endpoints: Vec<String>,
}

impl Operator {
    /// An operator of the replicas at these client URLs.
    pub fn new(endpoints: &[String]) -> Result<Operator, Error> {
        let mut config = Config::new(endpoints.iter().cloned());
        config.request_timeout = Duration::from_secs(10);
        let one = |endpoint| super::clients::client(std::slice::from_ref(endpoint));
        let each = endpoints.iter().map(one).collect::<Result<_, _>>()?;
        Ok(Operator { all: Client::new(config)?, each, endpoints: endpoints.to_vec() })
    }

    /// The status of each replica, by place; `None` without an answer.
    pub async fn told(&self) -> Vec<Option<StatusResponse>> {
        let asked: Vec<_> = self
            .each
            .iter()
            .cloned()
            .map(|one| tokio::spawn(async move { one.native_status().await.pop().and_then(Result::ok) }))
            .collect();
        let mut told = Vec::new();
        for one in asked {
            told.push(one.await.ok().flatten());
        }
        told
    }

    /// The newest group that any replica knows.
    pub async fn group(&self) -> Option<Group> {
        newest(&self.told().await).cloned()
    }

    /// The leader's place. If several replicas claim to lead, it is that of the one with the newest state.
    pub async fn leader(&self) -> Option<usize> {
        let told = self.told().await;
        let known = |(place, status): (usize, Option<StatusResponse>)| {
            let status = status.filter(|status| status.role == "leader")?;
            Some((status.group.map_or(0, |group| group.epoch), status.decided_slot, place))
        };
        told.into_iter().enumerate().filter_map(known).max().map(|(_, _, place)| place)
    }

    /// The id of a replica, which must tell it in time.
    pub async fn id(&self, place: usize) -> Result<u64, String> {
        let mut id = None;
        self.until("a replica does not tell its status", async || {
            id = self.each[place].native_status().await.remove(0).ok().map(|status| status.replica);
            id.is_some()
        })
        .await?;
        Ok(id.unwrap_or_default())
    }

    /// The places of replicas that do not serve a linearizable read.
    pub async fn silent(&self) -> Vec<usize> {
        let asked: Vec<_> = self
            .each
            .iter()
            .cloned()
            .map(|one| {
                let request = RangeRequest { key: "chaos".into(), ..RangeRequest::default() };
                tokio::spawn(async move { one.get(request).await.is_ok() })
            })
            .collect();
        let mut silent = Vec::new();
        for (place, one) in asked.into_iter().enumerate() {
            if !one.await.unwrap_or(false) {
                silent.push(place);
            }
        }
        silent
    }

    /// Hands the leadership to another replica. Returns the places of the old and the new leader.
    pub async fn move_leader(&self, choice: usize) -> Result<(usize, usize), String> {
        let from = self.leader().await.ok_or("nobody leads")?;
        let told = self.told().await;
        let other = |&place: &usize| place != from && told[place].is_some();
        let others: Vec<_> = (0..told.len()).filter(other).collect();
        let to = *others.get(choice % others.len().max(1)).ok_or("no other replica answers")?;
        let id = told[to].as_ref().map_or(0, |status| status.replica);
        self.each[from].move_leader(id).await.map_err(|error| error.to_string())?;
        Ok((from, to))
    }

    /// Changes the protocol.
    pub async fn reconfigure(&self, protocol: &str) -> Result<(), String> {
        let order = Reconfigure { protocol: protocol.to_owned(), ..Reconfigure::default() };
        let done = |group: &Group| (group.protocol == protocol).then_some(0);
        self.change(Change::Reconfigure(order), done).await.map(drop)
    }

    /// Waits until every replica runs a protocol.
    pub async fn await_protocol(&self, protocol: &str) -> Result<(), String> {
        let same =
            |status: &Option<StatusResponse>| status.as_ref().is_some_and(|now| now.protocol == protocol);
        self.until(&format!("not all replicas order with {protocol}"), async || {
            self.told().await.iter().all(same)
        })
        .await
    }

    /// Removes a member.
    pub async fn remove(&self, id: u64) -> Result<(), String> {
        let gone = |group: &Group| group.members.iter().all(|member| member.id != id).then_some(0);
        self.change(Change::Remove(id), gone).await.map(drop)
    }

    /// Adds a member, in the place of `replaces` unless that is 0. Returns its id.
    pub async fn add(&self, name: &str, peer_url: String, replaces: u64) -> Result<u64, String> {
        let goal = if replaces == 0 { Goal::Vote } else { Goal::Replace };
        let add = AddMember { name: name.to_owned(), peer_urls: vec![peer_url], goal: goal.into(), replaces };
        let is_it = |group: &Group| {
            let mut members =
                group.members.iter().filter(|member| member.name == name && member.id != replaces);
            members.next().map(|member| member.id)
        };
        self.change(Change::Add(add), is_it).await
    }

    /// Waits until a member votes, and all groups follow the first one: until then a group may have fewer voters,
    /// and a fault that comes meanwhile leaves it without a majority.
    pub async fn await_vote(&self, id: u64) -> Result<(), String> {
        let follows =
            |status: &StatusResponse| status.groups.iter().all(|group| group.members_pending.is_empty());
        let votes = async || {
            let told = self.told().await;
            let votes = |group: &Group| group.members.iter().any(|member| member.id == id && member.votes);
            newest(&told).is_some_and(votes) && told.iter().all(|status| status.as_ref().is_some_and(follows))
        };
        self.until(&format!("the new member {id:x} does not vote in all groups"), votes).await
    }

    /// Asks for a change until it is made. `done` tells whether it was made, and the new member's id.
    async fn change(&self, change: Change, done: impl Fn(&Group) -> Option<u64>) -> Result<u64, String> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let request = ChangeRequest { expected_version: 0, change: Some(change.clone()), group: Some(0) };
            let error = match self.all.change(request).await {
                Ok(response) => return Ok(response.added),
                Err(error) => error,
            };
            if let Some(id) = self.group().await.as_ref().and_then(&done) {
                return Ok(id);
            }
            if Instant::now() > deadline {
                return Err(format!("{change:?} was not made within {WAIT_MAX:?}: {error}"));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + WAIT_MAX;
        while !holds().await {
            if Instant::now() > deadline {
                return Err(format!("{what} after {WAIT_MAX:?}"));
            }
            sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    /// Compacts: forgets versions that are more than `keep` revisions old, as far as `allowed` says.
    pub async fn compact(&self, keep: i64, allowed: impl Fn(i64) -> i64) -> Result<(), Error> {
        let request = RangeRequest { key: "chaos".into(), ..RangeRequest::default() };
        let revision = self.all.get(request).await?.header.map_or(0, |header| header.revision) - keep;
        let revision = allowed(revision);
        if revision > 0 {
            self.all.compact(CompactionRequest { revision, physical: false }).await?;
        }
        Ok(())
    }

    /// The revision, and everything that the store holds at it.
    pub async fn everything(&self) -> Result<(i64, Vec<KeyValue>), String> {
        let (key, range_end) = ("\0".into(), "\0".into());
        let all = RangeRequest { key, range_end, ..RangeRequest::default() };
        let found = self.all.get(all).await.map_err(|error| error.to_string())?;
        Ok((found.header.map_or(0, |header| header.revision), found.kvs))
    }

    /// Waits until all replicas are at the same revision, at which they must hold the same. Returns that revision.
    pub async fn compare(&self) -> Result<i64, String> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            let mut hashes = Vec::new();
            for endpoint in &self.endpoints {
                let hash = hash(endpoint).await;
                hashes.extend(hash.map(|hash| (hash.hash_revision, hash.hash)));
            }
            if hashes.len() == self.endpoints.len() && hashes.iter().all(|hash| hash.0 == hashes[0].0) {
                let same = hashes.iter().all(|hash| *hash == hashes[0]);
                return same
                    .then_some(hashes[0].0)
                    .ok_or(format!("replicas differ: (revision, hash) {hashes:?}"));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "replicas do not reach the same revision within {WAIT_MAX:?}: {hashes:?}"
                ));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}

/// The newest group of which any of these replicas tells.
fn newest(told: &[Option<StatusResponse>]) -> Option<&Group> {
    told.iter().flatten().filter_map(|status| status.group.as_ref()).max_by_key(|group| group.version)
}

/// The hash of everything that a replica itself holds.
async fn hash(endpoint: &str) -> Option<HashKvResponse> {
    let channel = Endpoint::from_shared(endpoint.to_owned())
        .ok()?
        .timeout(Duration::from_secs(5))
        .connect()
        .await
        .ok()?;
    let response = MaintenanceClient::new(channel).hash_kv(HashKvRequest { revision: 0 }).await;
    response.ok().map(tonic::Response::into_inner)
}
