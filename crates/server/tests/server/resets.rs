//! Clients that reset requests as fast as they send them, with a real replica. The server forgets such a
//! request at once, but the replica still works on its command.

use std::{net::TcpListener, time::Duration};

use crate::common::on_node::OnNode;
use crate::common::{config, connect, replica, serve};
use bytes::{BufMut, BytesMut};
use h2::Reason;
use prost::Message;
use synod_api::etcdserverpb::{PutRequest, kv_client::KvClient};
use synod_kv::KvStore;
use synod_node::{Config, MemberAddress, Node};
use synod_wire::{ClusterId, ReplicaId};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// Commands of at most 1 KiB for which the queue has room.
const PLACES: u64 = 64;

/// One of three replicas, of which the others do not exist: nothing is decided, and no command is given up in time.
fn node(dir: &tempfile::TempDir) -> Node {
    let listeners: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let member = |(listener, id): (&TcpListener, u64)| {
        MemberAddress::new(ReplicaId(id), format!("r{id}"), listener.local_addr().unwrap().to_string())
    };
    let members = listeners.iter().zip(1..).map(member).collect();
    let mut config = Config::new(ClusterId(7), ReplicaId(1), members, dir.path().join("r1"));
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.settings.queue_bytes_max = PLACES as usize * 1024;
    config.settings.request_timeout = Duration::from_secs(600);
    Node::start_blocking(config, KvStore::new()).unwrap()
}

/// Commands that the replica has taken.
fn taken(node: &Node) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(node.metrics()));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("synod_commands_total "));
    count.expect("it is among the metrics").parse().unwrap()
}

#[tokio::test]
async fn resets_do_not_make_room_in_the_queue() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir);
    let server = serve(&config(), OnNode { handle: node.handle(), inner: replica() });
    let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() }.encode_to_vec();
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(put.len() as u32);
    body.put_slice(&put);
    let body = body.freeze();
    let mut sent = 0;
    for _ in 0..60 {
        // The server may close a connection with too many resets; then the client makes another.
        let stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
        let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut streams = Vec::new();
        for _ in 0..50 {
            let Ok(ready) = send.clone().ready().await else { break };
            send = ready;
            let request = http::Request::post("http://x/etcdserverpb.KV/Put")
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let Ok((_, mut stream)) = send.send_request(request, false) else { break };
            if stream.send_data(body.clone(), true).is_err() {
                break;
            }
            sent += 1;
            streams.push(stream);
        }
        // The pause lets the server receive the requests.
        sleep(Duration::from_millis(5)).await;
        streams.iter_mut().for_each(|stream| stream.send_reset(Reason::CANCEL));
        sleep(Duration::from_millis(1)).await;
        connection.abort();
    }
    assert!(sent > 2_000, "{sent}");
    let full = async {
        while taken(&node) < PLACES {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), full).await.expect("those that had a place were taken");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(taken(&node), PLACES, "of {sent} requests, those that have a place are taken and no more");

    // A client that does not reset its requests must wait as well.
    let mut client = KvClient::new(connect(&server).await);
    let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    assert!(timeout(Duration::from_millis(100), client.put(put)).await.is_err());
    assert_eq!(taken(&node), PLACES);
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    node.stop_blocking().unwrap();
}
