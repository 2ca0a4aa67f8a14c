//! Attacks by clients that ask for much and read nothing of it: watches, leases and elections.

use std::time::{Duration, Instant};

use bytes::Bytes;
use synod_api::{
    etcdserverpb::{
        DeleteRangeRequest, LeaseGrantRequest, LeaseLeasesRequest, PutRequest, WatchCreateRequest,
        WatchProgressRequest, WatchRequest, kv_client::KvClient, lease_client::LeaseClient,
        watch_request::RequestUnion,
    },
    v3electionpb::LeaderRequest,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Scene,
    cluster::channel,
    large::fill,
    report,
    wire::{Stream, Wire, framed},
};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
const LEADER: &str = "/v3electionpb.Election/Leader";
/// What clients of gRPC give streams and connections at first.
const WINDOW: u32 = 65_535;
/// The most that they can give.
const ROOM_FOR_ALL: u32 = i32::MAX as u32;
/// After so long requests have left.
const LEFT: Duration = Duration::from_secs(2);
/// Connections of each attack.
const CONNECTIONS: usize = 10;
/// Requests for progress on each stream.
const PROGRESS: usize = 200;
/// Leases whose ids an answer has, each in 12 bytes.
const LEASES_MADE: i64 = 5_000;

/// Streams with a watch of the whole store each, which ask for progress, while the store is filled again and deleted in
/// one revision. Then the same with room for everything, on connections whose sockets nobody reads.
pub async fn watches(scene: &mut Scene<'_>) -> Result<(), String> {
    let address = scene.cluster.servers[scene.target].client;
    let (key, range_end) = (Bytes::from_static(b"store/"), Bytes::from_static(b"store0"));
    let of = |request| framed(&WatchRequest { request_union: Some(request) });
    let watch = WatchCreateRequest {
        key: key.clone(),
        range_end: range_end.clone(),
        prev_kv: true,
        ..Default::default()
    };
    let create = of(RequestUnion::CreateRequest(watch));
    let progress = of(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    // In one frame: a server may end a connection with many small ones.
    let requests = Bytes::from([create, progress.repeat(PROGRESS).into()].concat());
    let (held, opened) = many(scene, WINDOW, WATCH, &requests, false).await;
    scene.note("streams", format!("{opened}; {} resident", report::all_mib(scene.cluster.resident())));
    fill(&scene.cluster, scene.target, 2_000, 10_000).await?;
    let filled = report::all_mib(scene.cluster.resident());
    let began = Instant::now();
    let mut writer = KvClient::new(channel(address));
    let all = DeleteRangeRequest { key, range_end, ..DeleteRangeRequest::default() };
    let deleted = writer.delete_range(all).await.map_err(|error| format!("deleting: {error}"))?;
    scene.note("resident when it is filled again", filled);
    let count = deleted.into_inner().deleted;
    scene.note("keys deleted at once", format!("{count} in {}", report::ms(began.elapsed())));
    sleep(scene.settings.seconds()).await;
    scene.note("resident then", report::all_mib(scene.cluster.resident()));
    drop(held);
    let (held, opened) = many(scene, ROOM_FOR_ALL, WATCH, &requests, false).await;
    // The requests are on their way.
    sleep(LEFT).await;
    held.iter().for_each(|(wire, _)| wire.stop());
    fill(&scene.cluster, scene.target, 2_000, 10_000).await?;
    sleep(scene.settings.seconds()).await;
    let resident = report::all_mib(scene.cluster.resident());
    scene.note("with room, and sockets that nobody reads", format!("{opened}; {resident} resident"));
    Ok(())
}

/// Many requests for all leases, and for the leader of an election, whose value has a MiB.
pub async fn answers(scene: &mut Scene<'_>) -> Result<(), String> {
    let address = scene.cluster.servers[scene.target].client;
    let failed = |error: tonic::Status| format!("preparing: {error}");
    let key = Bytes::from_static(b"election/1");
    let put = PutRequest { key, value: vec![b'.'; 1 << 20].into(), ..PutRequest::default() };
    KvClient::new(channel(address)).put(put).await.map_err(failed)?;
    let (client, mut granting) = (LeaseClient::new(channel(address)), JoinSet::new());
    for id in 0..LEASES_MADE {
        if granting.len() >= 256 {
            granting.join_next().await;
        }
        let mut client = client.clone();
        let grant = LeaseGrantRequest { id: i64::MAX - id, ttl: 3_600 };
        granting.spawn(async move { client.lease_grant(grant).await.map(drop) });
    }
    for granted in granting.join_all().await {
        granted.map_err(failed)?;
    }
    let leader = framed(&LeaderRequest { name: Bytes::from_static(b"election") });
    for (what, path, request) in
        [("leases", LEASES, framed(&LeaseLeasesRequest {})), ("leader", LEADER, leader)]
    {
        let (_held, asked) = many(scene, 0, path, &request, true).await;
        sleep(scene.settings.seconds()).await;
        let resident = report::all_mib(scene.cluster.resident());
        scene.note(format!("answers about {what}"), format!("{asked}; {resident} resident"));
    }
    Ok(())
}

/// Makes a request on each of many streams of some connections with this window, in the time that an attack has.
/// Returns the connections with their streams, and how far that came.
async fn many(
    scene: &Scene<'_>,
    window: u32,
    path: &str,
    request: &Bytes,
    end: bool,
) -> (Vec<(Wire, Vec<Stream>)>, String) {
    let mut held = Vec::new();
    let asking = async {
        for _ in 0..CONNECTIONS {
            let mut wire = Wire::open(scene.cluster.servers[scene.target].client, window).await?;
            let mut open = Vec::new();
            for _ in 0..scene.settings.get("streams") {
                open.push(wire.send(path, request.clone(), end).await?);
            }
            held.push((wire, open));
        }
        Ok::<_, String>(())
    };
    let came = match timeout(scene.settings.seconds(), asking).await {
        Ok(Ok(())) => "all taken".to_owned(),
        Ok(Err(error)) => format!("refused: {error}"),
        Err(_) => "not all taken".to_owned(),
    };
    (held, came)
}
