//! Sessions, in front of a replica with a small table of them: a client that opens very many closes none of others.

use std::{net::SocketAddr, sync::Arc};

use crate::common::{
    config,
    http2::{Answer, call, framed, post},
    serve,
};
use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message;
use synod_api::{
    etcdserverpb::PutRequest,
    synod::v1::{ExecuteRequest, KvCommand, OpenSessionRequest, OpenSessionResponse, kv_command::Command},
};
use synod_kv::KvStore;
use synod_node::{Config, Handle, MemberAddress, Node};
use synod_server::{Group, InMemory, Replica, RequestError, Server, Status};
use synod_wire::{ClusterId, ReplicaId, SessionId};
use tokio::{net::TcpSocket, task::spawn_blocking};

/// Sessions that the table holds.
const SESSIONS_MAX: u64 = 50;

/// A replica of one, whose sessions are those of the node.
#[derive(Clone)]
struct OnNode {
    handle: Handle,
    inner: InMemory,
}

impl Replica for OnNode {
    answered_by_inner!(limits, query, term, change, move_leader);

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.handle.execute(command).await.map_err(|_| RequestError::NoLeader)
    }

    async fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        let numbered = synod_replica::SessionCommand { session, sequence, lowest_outstanding };
        let executed = self.handle.execute_in_session(numbered, command).await;
        executed.map_err(|_| RequestError::SessionExpired)
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        self.handle.open_session().await.map_err(|_| RequestError::NoLeader)
    }

    fn status(&self) -> Status {
        let mut status = self.inner.status();
        status.node.client_sessions = self.handle.status().client_sessions;
        status
    }

    fn group(&self) -> Arc<Group> {
        let mut group = (*self.inner.group()).clone();
        group.limits.sessions.clients_max = SESSIONS_MAX as usize;
        Arc::new(group)
    }
}

/// A client at this address.
async fn client(server: &Server, from: [u8; 4]) -> SendRequest<Bytes> {
    let at: SocketAddr = server.client_addresses()[0].to_string().parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let (send, connection) = h2::client::handshake(socket.connect(at).await.unwrap()).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn open(send: &SendRequest<Bytes>) -> Result<u64, Answer> {
    let request = framed(&OpenSessionRequest::default());
    let answer = call(send, post("/synod.v1.Native/OpenSession"), &request).await;
    if answer.grpc_status != "0" {
        return Err(answer);
    }
    Ok(OpenSessionResponse::decode(&answer.body[5..]).unwrap().session)
}

async fn put(send: &SendRequest<Bytes>, session: u64) -> String {
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    let command = KvCommand { command: Some(Command::Put(put)), ..KvCommand::default() };
    let payload = command.encode_to_vec().into();
    let request = ExecuteRequest { session, sequence: 1, lowest_outstanding: 1, payload, group: None };
    call(send, post("/synod.v1.Native/Execute"), &framed(&request)).await.grpc_status
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_opens_very_many_sessions_closes_none_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let me = ReplicaId(1);
    let members = vec![MemberAddress::new(me, "r1".to_owned(), "127.0.0.1:1")];
    let mut node = Config::new(ClusterId(9), me, members, dir.path().join("r1"));
    node.listen = vec!["127.0.0.1:0".parse().unwrap()];
    node.settings.limits.sessions.clients_max = SESSIONS_MAX as usize;
    let node = spawn_blocking(|| Node::start_blocking(node, KvStore::new())).await.unwrap().unwrap();
    let server = serve(&config(), OnNode { handle: node.handle(), inner: crate::common::replica() });

    let honest = client(&server, [127, 0, 0, 2]).await;
    let session = open(&honest).await.ok().expect("the table is empty");
    // On connections of its own for each few, since only the address counts.
    let mut opened = 0;
    let mut refused = None;
    for _ in 0..10 {
        let flood = client(&server, [127, 0, 0, 1]).await;
        for _ in 0..SESSIONS_MAX / 5 {
            match open(&flood).await {
                Ok(_) => opened += 1,
                Err(answer) => refused = Some(answer),
            }
        }
    }
    assert_eq!(put(&honest, session).await, "0", "a session that rests is kept");
    // A status may be one session behind.
    assert!((10..=12).contains(&opened), "{opened}");
    let refused = refused.expect("the share is used up");
    assert_eq!(refused.grpc_status, "8");
    assert!(refused.grpc_message.contains("sessions-max"), "{}", refused.grpc_message);
    // Others have their own shares.
    open(&honest).await.ok().expect("it has opened only one");
    open(&client(&server, [127, 0, 0, 3]).await).await.ok().expect("it has opened none");
    spawn_blocking(move || {
        server.stop();
        node.stop_blocking().unwrap();
    })
    .await
    .unwrap();
}
