//! A minimal server of the etcd v3 API that misbehaves on demand.

use std::{
    collections::HashMap,
    net::SocketAddr,
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_api::{
    etcdserverpb::{
        kv_server::{Kv, KvServer},
        maintenance_server::{Maintenance, MaintenanceServer},
        *,
    },
    mvccpb::KeyValue,
};
use tokio::sync::oneshot;
use tokio_stream::{Stream, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status};

const MEMBER: u64 = 0xabc;

/// How the server behaves.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Requests that arrive in this span, counted from the first request, are answered at its end.
    pub stall: Option<Range<Duration>>,
    /// Each answer takes this long.
    pub delay: Duration,
    /// If set, one in this many requests fails.
    pub fail_every: Option<u64>,
    /// Requests are never answered.
    pub silent: bool,
    /// Whether it follows another member.
    pub follows: bool,
}

/// What the server has seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub puts: u64,
    pub gets: u64,
    pub serializable_gets: u64,
    pub contents: HashMap<Bytes, Bytes>,
    first_request: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Service {
    behaviour: Behaviour,
    seen: Arc<Mutex<Seen>>,
}

impl Seen {
    pub fn requests(&self) -> u64 {
        self.puts + self.gets
    }
}

/// A running server. It stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Server {
        Server::start_at("127.0.0.1:0".parse().unwrap(), behaviour)
    }

    pub fn start_at(address: SocketAddr, behaviour: Behaviour) -> Server {
        let (stop, stopped) = oneshot::channel();
        let (bound, address_bound) = std::sync::mpsc::channel();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let service = Service { behaviour, seen: seen.clone() };
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(address).await.unwrap();
                bound.send(listener.local_addr().unwrap()).unwrap();
                let serving = tonic::transport::Server::builder()
                    .add_service(KvServer::new(service.clone()))
                    .add_service(MaintenanceServer::new(service))
                    .serve_with_incoming(TcpListenerStream::new(listener));
                tokio::select! {
                    served = serving => served.unwrap(),
                    _ = stopped => {}
                }
            });
            // Dropping the runtime ends every connection as abruptly as killing the process would.
        });
        Server { address: address_bound.recv().unwrap(), seen, stop: Some(stop), thread: Some(thread) }
    }

    pub fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Service {
    /// Counts a request, and applies the behaviour to it.
    async fn enter(&self, count: impl FnOnce(&mut Seen)) -> Result<(), Status> {
        let (since_first, number) = {
            let mut seen = self.seen.lock().unwrap();
            count(&mut seen);
            let first = *seen.first_request.get_or_insert_with(Instant::now);
            (first.elapsed(), seen.requests())
        };
        if self.behaviour.silent {
            std::future::pending::<()>().await;
        }
        if let Some(stall) = &self.behaviour.stall
            && stall.contains(&since_first)
        {
            tokio::time::sleep(stall.end - since_first).await;
        }
        if !self.behaviour.delay.is_zero() {
            tokio::time::sleep(self.behaviour.delay).await;
        }
        match self.behaviour.fail_every {
            Some(every) if number.is_multiple_of(every) => Err(Status::unavailable("etcdserver: no leader")),
            _ => Ok(()),
        }
    }
}

type Streaming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Methods that the generator never calls; written as `async_trait` would, which does not look into macros.
macro_rules! refused {
    ($($method:ident: $request:ty => $answer:ty),* $(,)?) => {
        $(
            fn $method<'a, 'b>(&'a self, _: Request<$request>) -> Answer<'b, $answer>
            where
                'a: 'b,
                Self: 'b,
            {
                Box::pin(async { Err(Status::unimplemented(stringify!($method))) })
            }
        )*
    };
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

#[tonic::async_trait]
impl Kv for Service {
    type RangeStreamStream = Streaming<RangeStreamResponse>;

    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        self.enter(|seen| {
            seen.gets += 1;
            seen.serializable_gets += u64::from(request.serializable);
        })
        .await?;
        let value = self.seen.lock().unwrap().contents.get(&request.key).cloned();
        let kvs: Vec<KeyValue> = value
            .map(|value| KeyValue { key: request.key, value, ..KeyValue::default() })
            .into_iter()
            .collect();
        Ok(Response::new(RangeResponse { count: kvs.len() as i64, kvs, ..RangeResponse::default() }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.enter(|seen| seen.puts += 1).await?;
        let request = request.into_inner();
        self.seen.lock().unwrap().contents.insert(request.key, request.value);
        Ok(Response::new(PutResponse::default()))
    }

    refused! {
        range_stream: RangeRequest => Self::RangeStreamStream,
        delete_range: DeleteRangeRequest => DeleteRangeResponse,
        txn: TxnRequest => TxnResponse,
        compact: CompactionRequest => CompactionResponse,
    }
}

#[tonic::async_trait]
impl Maintenance for Service {
    type SnapshotStream = Streaming<SnapshotResponse>;

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let header = ResponseHeader { member_id: MEMBER, ..ResponseHeader::default() };
        let leader = if self.behaviour.follows { 0xdef } else { MEMBER };
        let version = "9.8.7".into();
        Ok(Response::new(StatusResponse {
            header: Some(header),
            version,
            leader,
            ..StatusResponse::default()
        }))
    }

    refused! {
        alarm: AlarmRequest => AlarmResponse,
        defragment: DefragmentRequest => DefragmentResponse,
        hash: HashRequest => HashResponse,
        hash_kv: HashKvRequest => HashKvResponse,
        snapshot: SnapshotRequest => Self::SnapshotStream,
        move_leader: MoveLeaderRequest => MoveLeaderResponse,
        downgrade: DowngradeRequest => DowngradeResponse,
    }
}
