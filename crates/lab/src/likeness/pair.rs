//! Three servers of Synod and one of etcd, which get the same requests.

use std::time::Duration;

use synod_api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, StatusRequest, kv_client::KvClient,
    lease_client::LeaseClient, maintenance_client::MaintenanceClient,
};
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::{Code, Response, Status, transport::Channel};

use super::{differences::Answer, draw::Request};
use crate::attacks::cluster::{Cluster, SERVERS, System, channel};

/// How long an answer may take.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Descriptors that a server has.
const NOFILE: u64 = 1024;
/// A server with more resident memory, in bytes, is killed, to protect the machine.
const GUARD: u64 = 4 << 30;
/// The key whose put shows that servers serve.
const SERVED: &[u8] = b"served";

/// Why a sequence ends early.
#[derive(Debug)]
pub enum Trouble {
    /// The answers differ.
    Differs(String),
    /// A system did not start, or did not answer, which does not count as a difference.
    Silence(String),
}

/// The clients of a server.
#[derive(Clone, Debug)]
pub struct Clients {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl Clients {
    fn of(channel: Channel) -> Clients {
        let kv = KvClient::new(channel.clone());
        Clients {
            kv: kv.max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel),
        }
    }
}

/// A system and the clients of its servers.
#[derive(Debug)]
pub struct Side {
    pub cluster: Cluster,
    clients: Vec<Clients>,
    _folder: TempDir,
}

/// Synod and etcd.
#[derive(Debug)]
pub struct Pair {
    pub sides: [Side; 2],
    /// The version of etcd.
    pub version: String,
    /// Whether etcd is of version 3.6 or later.
    pub is_new: bool,
    /// The revision of both stores.
    pub revision: i64,
    pub compacted: i64,
    /// The place of a server that has executed everything: the one that answered last.
    newest: usize,
    asked: usize,
}

impl Side {
    async fn start(system: &System) -> Result<Side, String> {
        let folder = tempfile::Builder::new().prefix("synod-likeness-").tempdir();
        let folder = folder.map_err(|error| format!("temporary folder: {error}"))?;
        // With several members of etcd some transactions have no single answer. A transaction that puts, and
        // that reads at a revision that is not kept, is refused by the member that is asked; the others
        // execute it, since they skip reads whose answers no client waits for. (3.6.6 does so.)
        let count = if matches!(system, System::Etcd(_)) { 1 } else { SERVERS };
        let mut cluster = Cluster::start_some(system, folder.path(), count, NOFILE, GUARD)?;
        cluster.await_service().await?;
        let clients = |place: usize| Clients::of(channel(cluster.servers[place].client));
        let clients = (0..count).map(clients).collect();
        Ok(Side { cluster, clients, _folder: folder })
    }

    /// The clients of the server at this place, or of the only server.
    pub fn client(&self, place: usize) -> Clients {
        self.clients[place % self.clients.len()].clone()
    }

    /// The revision after everything that the system was asked.
    async fn revision(&self) -> Result<i64, String> {
        let request = RangeRequest { key: SERVED.into(), ..RangeRequest::default() };
        match ask(self.client(0), Request::Range(request)).await {
            Answer::Range(found) => Ok(found.header.map_or(0, |header| header.revision)),
            other => Err(format!("{other:?}")),
        }
    }
}

impl Pair {
    /// Starts both systems, and brings them to the same revision with empty stores and nothing older to be read.
    pub async fn start(systems: &[System; 2]) -> Result<Pair, Trouble> {
        let (synod, etcd) = tokio::join!(Side::start(&systems[0]), Side::start(&systems[1]));
        let sides = [synod.map_err(Trouble::Silence)?, etcd.map_err(Trouble::Silence)?];
        let mut maintenance = MaintenanceClient::new(channel(sides[1].cluster.servers[0].client));
        let version = maintenance.status(StatusRequest {}).await.map(|status| status.into_inner().version);
        let version = version.map_err(|error| Trouble::Silence(error.to_string()))?;
        let is_new = version.split('.').take(2).map(str::parse).collect::<Result<Vec<u32>, _>>();
        let is_new = is_new.is_ok_and(|version| version >= vec![3, 6]);
        let mut pair = Pair { sides, version, is_new, revision: 0, compacted: 0, newest: 0, asked: 0 };
        pair.align().await.map_err(Trouble::Silence)?;
        Ok(pair)
    }

    async fn align(&mut self) -> Result<(), String> {
        let put = PutRequest { key: SERVED.into(), ..PutRequest::default() };
        loop {
            let revisions = [self.sides[0].revision().await?, self.sides[1].revision().await?];
            if revisions[0] == revisions[1] {
                self.revision = revisions[0] + 1;
                break;
            }
            let lagging = usize::from(revisions[1] < revisions[0]);
            ask(self.sides[lagging].client(0), Request::Put(put.clone())).await;
        }
        let clear = Request::DeleteRange(DeleteRangeRequest { key: SERVED.into(), ..Default::default() });
        let forget = Request::Compact(CompactionRequest { revision: self.revision, physical: true });
        for request in [clear, forget] {
            for side in &self.sides {
                if let Answer::Refused(code, why) = ask(side.client(0), request.clone()).await {
                    return Err(format!("{request:?}: {code:?} {why}"));
                }
            }
        }
        self.compacted = self.revision;
        Ok(())
    }

    /// Sends all of these requests to both systems at once. Each pair of answers has Synod's first and etcd's
    /// second. Only the last request may change anything.
    pub async fn ask(&mut self, requests: &[Request]) -> Result<Vec<[Answer; 2]>, Trouble> {
        let (mut under_way, mut answers) = (Vec::new(), Vec::new());
        for request in requests {
            self.asked += 1;
            let any = self.asked % SERVERS;
            let place = if request.may_be_stale() { self.newest } else { any };
            let ask = |side: &Side| tokio::spawn(ask(side.client(place), request.clone()));
            under_way.push((request, place, self.sides.each_ref().map(ask)));
        }
        for (request, place, [synod, etcd]) in under_way {
            let ended = |error: tokio::task::JoinError| Trouble::Silence(error.to_string());
            let both = [synod.await.map_err(ended)?, etcd.await.map_err(ended)?];
            for (side, answer) in self.sides.iter_mut().zip(&both) {
                if let Answer::Refused(Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled, why) =
                    answer
                {
                    let dead = side.cluster.dead().join("; ");
                    return Err(Trouble::Silence(format!("{why} {dead} (asked: {request:?})")));
                }
            }
            // A refused request need not have reached the store.
            if !request.may_be_stale() && !both.iter().any(|answer| matches!(answer, Answer::Refused(..))) {
                self.newest = place;
            }
            answers.push(both);
        }
        Ok(answers)
    }

    /// Records facts that later requests may refer to.
    pub fn note(&mut self, request: &Request, answer: &Answer) {
        if let Some(header) = answer.clone().header_mut() {
            self.revision = self.revision.max(header.revision);
        }
        if let (Request::Compact(request), Answer::Compact(_)) = (request, answer) {
            self.compacted = request.revision;
        }
    }
}

/// Asks one server.
pub async fn ask(clients: Clients, request: Request) -> Answer {
    async fn within<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
        match timeout(WAIT_MAX, call).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {WAIT_MAX:?}"))),
        }
    }
    let Clients { mut kv, mut lease, mut maintenance } = clients;
    let answer = match request {
        Request::Range(request) => within(kv.range(request)).await.map(Answer::Range),
        Request::Put(request) => within(kv.put(request)).await.map(Answer::Put),
        Request::DeleteRange(request) => within(kv.delete_range(request)).await.map(Answer::DeleteRange),
        Request::Txn(request) => within(kv.txn(request)).await.map(Answer::Txn),
        Request::Compact(request) => within(kv.compact(request)).await.map(Answer::Compact),
        Request::Grant(request) => within(lease.lease_grant(request)).await.map(Answer::Grant),
        Request::Revoke(request) => within(lease.lease_revoke(request)).await.map(Answer::Revoke),
        Request::TimeToLive(request) => {
            within(lease.lease_time_to_live(request)).await.map(Answer::TimeToLive)
        }
        Request::Leases(request) => within(lease.lease_leases(request)).await.map(Answer::Leases),
        Request::Alarm(request) => within(maintenance.alarm(request)).await.map(Answer::Alarm),
    };
    answer.unwrap_or_else(|status| Answer::Refused(status.code(), status.message().to_owned()))
}
