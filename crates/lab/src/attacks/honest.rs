//! What looks like an attack and is none: an honest client with very many leases or watches on one stream, each message
//! in a frame of its own, as etcd's client for Go sends them. And very many clients that wait for one lock.

use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;
use prost::Message;
use synod_api::{
    etcdserverpb::{
        LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest, StatusRequest,
        WatchCreateRequest, WatchRequest, WatchResponse, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, watch_request::RequestUnion,
    },
    v3lockpb::LockRequest,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Scene,
    cluster::channel,
    report,
    wire::{Wire, framed},
};

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const LOCK: &str = "/v3lockpb.Lock/Lock";
/// What clients of gRPC give streams at first.
const WINDOW: u32 = 65_535;
/// The time to live of each lease. Renewals leave three times as often, all at once.
const TTL: Duration = Duration::from_secs(15);
/// How long the answers to a burst may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// Connections of those that wait for a lock.
const WAITING_CONNECTIONS: u64 = 30;

/// The leader and its term.
pub struct Leads {
    leader: u64,
    term: u64,
}

impl Leads {
    /// As the attacked server knows it.
    pub async fn now(scene: &Scene<'_>) -> Result<Leads, String> {
        let mut client = MaintenanceClient::new(channel(scene.cluster.servers[scene.target].client));
        let status = timeout(ANSWERS_WITHIN, client.status(StatusRequest {})).await;
        let status = status.map_err(|_| "no status")?.map_err(|status| format!("status: {status}"))?;
        let status = status.into_inner();
        Ok(Leads { leader: status.leader, term: status.raft_term })
    }

    /// Judges whether the same server leads as before, without a change in between.
    pub async fn judge(self, scene: &mut Scene<'_>) -> Result<(), String> {
        let Leads { leader, term } = Leads::now(scene).await?;
        let same = (leader, term) == (self.leader, self.term);
        let told = format!("{:x} in term {}, then {leader:x} in term {term}", self.leader, self.term);
        scene.claim("the same server leads all the time", same, told);
        Ok(())
    }
}

/// One client keeps many leases.
pub async fn leases(scene: &mut Scene<'_>) -> Result<(), String> {
    let leads = Leads::now(scene).await?;
    let address = scene.cluster.servers[scene.target].client;
    let (client, mut granting) = (LeaseClient::new(channel(address)), JoinSet::new());
    // Far from each other, as those that servers choose.
    let far = |number: u64| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1).cast_signed();
    let ids: Vec<i64> = (1..=scene.settings.get("leases")).map(far).collect();
    for &id in &ids {
        if granting.len() >= 256 {
            granting.join_next().await;
        }
        let mut client = client.clone();
        let ttl = TTL.as_secs().cast_signed();
        granting.spawn(async move { client.lease_grant(LeaseGrantRequest { ttl, id }).await.map(drop) });
    }
    for granted in granting.join_all().await {
        granted.map_err(|status| format!("granting: {status}"))?;
    }
    let mut wire = Wire::open(address, WINDOW).await?;
    let renewals: Vec<_> = ids.iter().map(|&id| framed(&LeaseKeepAliveRequest { id })).collect();
    let (response, mut stream) = wire.send(KEEP_ALIVE, renewals[0].clone(), false).await?;
    let until = Instant::now() + 3 * TTL;
    let sending = async {
        while Instant::now() < until {
            for renewal in &renewals {
                stream.send_data(renewal.clone(), false).map_err(|error| error.to_string())?;
            }
            sleep(TTL / 3).await;
        }
        Ok::<_, String>(())
    };
    let (mut renewed, mut gone) = (0_u64, 0_u64);
    let taking = async {
        let mut body = response.await.map_err(|error| error.to_string())?.into_body();
        messages(&mut body, |answer: LeaseKeepAliveResponse| {
            *if answer.ttl > 0 { &mut renewed } else { &mut gone } += 1;
            false
        })
        .await
    };
    let outcome = tokio::select! {
        sent = sending => sent,
        taken = taking => taken.and(Err("the stream ended".to_owned())),
    };
    let listed = LeaseClient::new(channel(address)).lease_leases(LeaseLeasesRequest {}).await;
    let listed = listed.map_err(|status| format!("listing: {status}"))?.into_inner().leases.len();
    scene.note("renewals", format!("{renewed}, and {gone} of leases that were gone"));
    scene.claim("the stream lasts", outcome.is_ok(), outcome.err().unwrap_or_default());
    scene.claim("no lease is lost", listed >= ids.len(), format!("{listed} of {} are left", ids.len()));
    leads.judge(scene).await
}

/// One client begins many watches at once.
pub async fn watches(scene: &mut Scene<'_>) -> Result<(), String> {
    let leads = Leads::now(scene).await?;
    let count = scene.settings.get("watches");
    let mut wire = Wire::open(scene.cluster.servers[scene.target].client, WINDOW).await?;
    let create = |number: u64| {
        let key = Bytes::from(format!("watched/{number}"));
        let request = RequestUnion::CreateRequest(WatchCreateRequest { key, ..Default::default() });
        framed(&WatchRequest { request_union: Some(request) })
    };
    let began = Instant::now();
    let (response, mut stream) = wire.send(WATCH, create(0), false).await?;
    for number in 1..count {
        stream.send_data(create(number), false).map_err(|error| error.to_string())?;
    }
    let mut created = 0;
    let taking = async {
        let mut body = response.await.map_err(|error| error.to_string())?.into_body();
        messages(&mut body, |answer: WatchResponse| {
            created += u64::from(answer.created && !answer.canceled);
            created == count
        })
        .await
    };
    let outcome = timeout(ANSWERS_WITHIN, taking).await.unwrap_or(Err("not in time".to_owned()));
    let told = format!("{created} of {count} in {}", report::ms(began.elapsed()));
    let told = outcome.err().map_or(told.clone(), |why| format!("{told}: {why}"));
    scene.claim("all watches begin", created == count, told);
    leads.judge(scene).await
}

/// Very many calls wait for one lock.
pub async fn locks(scene: &mut Scene<'_>) -> Result<(), String> {
    let leads = Leads::now(scene).await?;
    let request = framed(&LockRequest { name: Bytes::from_static(b"lock"), lease: 0 });
    let mut held = Vec::new();
    for _ in 0..WAITING_CONNECTIONS {
        let mut wire = Wire::open(scene.cluster.servers[scene.target].client, WINDOW).await?;
        let mut calls = Vec::new();
        for _ in 0..scene.settings.get("locks") {
            calls.push(wire.send(LOCK, request.clone(), true).await?);
        }
        held.push((wire, calls));
    }
    sleep(scene.settings.seconds()).await;
    let calls = WAITING_CONNECTIONS * scene.settings.get("locks");
    scene.note(format!("resident with {calls} calls"), report::all_mib(scene.cluster.resident()));
    drop(held);
    // The keys of those that waited are deleted.
    sleep(scene.settings.seconds()).await;
    leads.judge(scene).await
}

/// Takes the messages of an answer until `done` says that it is enough.
async fn messages<M: Message + Default>(
    body: &mut RecvStream,
    mut done: impl FnMut(M) -> bool,
) -> Result<(), String> {
    let mut buffer = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(|error| error.to_string())?;
        body.flow_control().release_capacity(piece.len()).map_err(|error| error.to_string())?;
        buffer.extend_from_slice(&piece);
        while let Some(&[_, a, b, c, d]) = buffer.first_chunk() {
            let len = u32::from_be_bytes([a, b, c, d]) as usize;
            if buffer.len() < 5 + len {
                break;
            }
            buffer.advance(5);
            let message = M::decode(buffer.split_to(len)).map_err(|error| error.to_string())?;
            if done(message) {
                return Ok(());
            }
        }
    }
    Ok(())
}
