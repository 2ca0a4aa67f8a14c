//! Attacks by Synod's own API: payloads that are small and cost much, and fields that only servers set. etcd has no
//! such API and refuses all of them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        AlarmRequest, PutRequest, RequestOp, TxnRequest, maintenance_client::MaintenanceClient,
        request_op::Request,
    },
    synod::v1::{
        ExecuteRequest, KvCommand, KvLeaseRenew, KvQuery, KvReply, OpenSessionRequest, QueryRequest,
        kv_command::Command, kv_query::Query, kv_reply::Reply, native_client::NativeClient,
    },
};
use tokio::task::JoinSet;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use super::{Scene, cluster::channel, honest::Leads};

/// Connections of each attack.
const CONNECTIONS: usize = 4;
/// Operations of which each has two bytes.
const EMPTY_OPS: usize = 700_000;
/// Puts of a transaction that is as long as a request may be.
const PUTS: usize = 100_000;
/// Connections that open sessions, and how many each opens at a time.
const SESSION_CONNECTIONS: usize = 8;
const SESSION_STREAMS: usize = 32;
/// Renewals in one command.
const RENEWALS: usize = 500_000;

/// Queries with a transaction of very many empty operations: in one list, and in lists of nested transactions.
pub async fn queries(scene: &mut Scene<'_>) -> Result<(), String> {
    let leads = Leads::now(scene).await?;
    for (what, txn) in [("700,000 empty operations", empty()), (TREE, tree())] {
        let codes = ask(scene, txn).await;
        scene.note(format!("queries of {what}"), format!("{codes:?}"));
        let answered = codes.get("Ok").copied().unwrap_or(0);
        scene.claim(format!("no query of {what} is answered"), answered == 0, answered);
    }
    leads.judge(scene).await
}

/// Asks on some connections for half of the attack's time, and returns how often each code came.
async fn ask(scene: &Scene<'_>, txn: TxnRequest) -> BTreeMap<String, u64> {
    let query = KvQuery { query: Some(Query::Txn(txn)), ..KvQuery::default() };
    let request =
        QueryRequest { payload: query.encode_to_vec().into(), serializable: true, ..QueryRequest::default() };
    let until = Instant::now() + scene.settings.seconds() / 2;
    let mut asking = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (mut client, request) = (client(scene), request.clone());
        asking.spawn(async move {
            let mut codes = BTreeMap::new();
            while Instant::now() < until {
                let code =
                    client.query(request.clone()).await.map_or_else(|status| status.code(), |_| Code::Ok);
                *codes.entry(format!("{code:?}")).or_insert(0) += 1;
            }
            codes
        });
    }
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for (code, count) in asking.join_all().await.into_iter().flatten() {
        *all.entry(code).or_default() += count;
    }
    all
}

/// Commands in a session: very many empty operations, puts and renewals, and a quota of the client's own.
pub async fn commands(scene: &mut Scene<'_>) -> Result<(), String> {
    let leads = Leads::now(scene).await?;
    let session = match client(scene).open_session(OpenSessionRequest::default()).await {
        Ok(opened) => opened.into_inner().session,
        Err(status) => {
            scene.note("commands", format!("none: {:?}", status.code()));
            return Ok(());
        }
    };
    let put = |number: usize| {
        let key = format!("{number:x}").into();
        RequestOp { request: Some(Request::RequestPut(PutRequest { key, ..PutRequest::default() })) }
    };
    let puts = TxnRequest { success: (0..PUTS).map(put).collect(), ..TxnRequest::default() };
    let of = |command| KvCommand { command: Some(command), ..KvCommand::default() };
    let own = || Command::Put(PutRequest { key: "k".into(), ..PutRequest::default() });
    let renewals = KvLeaseRenew { ids: vec![1; RENEWALS] };
    let kinds = [
        ("700,000 empty operations", of(Command::Txn(empty()))),
        (TREE, of(Command::Txn(tree()))),
        ("100,000 puts", of(Command::Txn(puts))),
        ("500,000 renewals", of(Command::LeaseRenew(renewals))),
        ("a quota of one byte", KvCommand { quota_bytes: 1, member_id: 77, ..of(own()) }),
        ("no quota", KvCommand { quota_bytes: 0, member_id: 77, ..of(own()) }),
    ];
    let (mut sequence, mut client) = (0, client(scene));
    for (what, command) in kinds {
        let payload: Bytes = command.encode_to_vec().into();
        let (mut executed, mut refused) = (0, 0);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            sequence += 1;
            let (lowest_outstanding, payload) = (sequence, payload.clone());
            let request = ExecuteRequest { session, sequence, lowest_outstanding, payload, group: None };
            let reply = client.execute(request).await.ok().map(|answer| answer.into_inner().reply);
            let reply = reply.and_then(|reply| KvReply::decode(reply).ok()?.reply);
            let took_effect = reply.is_some_and(|reply| !matches!(reply, Reply::Error(_)));
            *if took_effect { &mut executed } else { &mut refused } += 1;
        }
        scene.note(what, format!("{executed} executed, {refused} refused"));
        scene.claim(format!("no command with {what} is executed"), executed == 0, executed);
    }
    let target = channel(scene.cluster.servers[scene.target].client);
    let alarms = MaintenanceClient::new(target).alarm(AlarmRequest::default()).await;
    let alarms = alarms.map_err(|status| format!("alarms: {status}"))?.into_inner().alarms;
    scene.claim("no alarm is raised", alarms.is_empty(), format!("{alarms:?}"));
    leads.judge(scene).await
}

/// Very many sessions of one address. Meanwhile one of another address rests, and goes on at the end.
pub async fn sessions(scene: &mut Scene<'_>) -> Result<(), String> {
    let leads = Leads::now(scene).await?;
    let target = scene.cluster.servers[scene.target].client;
    let endpoint = Endpoint::from_shared(format!("http://{target}")).map_err(|error| error.to_string())?;
    let own = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2));
    let mut honest = NativeClient::new(endpoint.local_address(Some(own)).connect_lazy());
    let session = match honest.open_session(OpenSessionRequest::default()).await {
        Ok(opened) => opened.into_inner().session,
        Err(status) => {
            scene.note("sessions", format!("none: {:?}", status.code()));
            return Ok(());
        }
    };
    let until = Instant::now() + scene.settings.seconds();
    let clients: Vec<_> = (0..SESSION_CONNECTIONS).map(|_| client(scene)).collect();
    let mut opening = JoinSet::new();
    for number in 0..SESSION_CONNECTIONS * SESSION_STREAMS {
        let mut client = clients[number % SESSION_CONNECTIONS].clone();
        opening.spawn(async move {
            let (mut opened, mut refused) = (0_u64, 0_u64);
            while Instant::now() < until {
                let answer = client.open_session(OpenSessionRequest::default()).await;
                *if answer.is_ok() { &mut opened } else { &mut refused } += 1;
            }
            (opened, refused)
        });
    }
    let all = opening.join_all().await;
    let (opened, refused) = all.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    scene.note("sessions of one address", format!("{opened} opened, {refused} refused"));
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    let payload =
        KvCommand { command: Some(Command::Put(put)), ..KvCommand::default() }.encode_to_vec().into();
    let request = ExecuteRequest { session, sequence: 1, lowest_outstanding: 1, payload, group: None };
    let code = honest.execute(request).await.map_or_else(|status| status.code(), |_| Code::Ok);
    scene.claim("the session of another address is kept", code == Code::Ok, format!("{code:?}"));
    leads.judge(scene).await
}

fn client(scene: &Scene<'_>) -> NativeClient<Channel> {
    NativeClient::new(channel(scene.cluster.servers[scene.target].client))
}

/// Transactions in the lists of transactions, as many at each level as together pass a bound for each list.
const TREE: &str = "333,200 empty transactions in nested ones";
const WIDTHS: [usize; 3] = [35, 35, 34];

fn tree() -> TxnRequest {
    WIDTHS.into_iter().rev().fold(TxnRequest::default(), |inner, width| {
        let ops = vec![RequestOp { request: Some(Request::RequestTxn(inner)) }; width];
        TxnRequest { success: ops.clone(), failure: ops, ..TxnRequest::default() }
    })
}

fn empty() -> TxnRequest {
    TxnRequest { success: vec![RequestOp { request: None }; EMPTY_OPS], ..TxnRequest::default() }
}
