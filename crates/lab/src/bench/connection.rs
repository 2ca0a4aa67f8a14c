//! A connection that sends gRPC requests with as little work as possible.
//!
//! The generated client over tonic's channel takes about twice the CPU time for each request: a task, two
//! queues, and 16 kB of buffers. The generator often shares its cores with the servers that it measures, so it
//! would take that time from them. What remains here is a unary call in HTTP/2: headers, one message, trailers.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{self, SendRequest};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use prost::Message;
use synod_api::{
    etcdserverpb::{PutRequest, PutResponse, RangeRequest, RangeResponse},
    shards::NO_SINGLE_REVISION,
    synod::v1::{
        ExecuteRequest, ExecuteResponse, KvAnswer, KvCommand, KvFailure, KvQuery, KvReply, QueryRequest,
        QueryResponse, kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};
use tonic::{Code, Status};

use super::{
    BenchError,
    target::{CONNECT_TIMEOUT, Target},
};

/// The window is large, since answers to many clients share a connection and must not wait for it.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Messages are cut from pieces of this size, so that memory is allocated once for hundreds of requests.
const ARENA_BYTES: usize = 64 << 10;
/// Bytes before each message: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// A connection to one server, for the clients of one thread. After it broke, the next client that needs it
/// dials again.
#[derive(Debug)]
pub(super) struct Connection {
    target: Target,
    put: Uri,
    range: Uri,
    execute: Uri,
    query: Uri,
    /// The server has said that keys are spread over several groups, so that it does not serve etcd's API.
    spread: Cell<bool>,
    headers: HeaderMap,
    arena: RefCell<BytesMut>,
    live: RefCell<Option<SendRequest<Bytes>>>,
    /// How many times it was dialled. The number names a connection, so that only the one that broke is given up.
    dialled: Cell<u64>,
    /// Held by the client that dials; the others wait for its result.
    dialling: Mutex<()>,
}

impl Connection {
    /// Connects. Must be called in a `LocalSet`, like everything else here.
    pub(super) async fn open(target: Target) -> Result<Rc<Connection>, BenchError> {
        let refuse = |reason: String| BenchError::Unreachable { endpoint: target.address.clone(), reason };
        let uri = |method: &str| {
            let uri = format!("{}/{method}", target.uri);
            uri.parse::<Uri>().map_err(|error| refuse(error.to_string()))
        };
        let connection = Rc::new(Connection {
            put: uri("etcdserverpb.KV/Put")?,
            range: uri("etcdserverpb.KV/Range")?,
            execute: uri("synod.v1.Native/Execute")?,
            query: uri("synod.v1.Native/Query")?,
            spread: Cell::new(false),
            headers: HeaderMap::from_iter([
                (header::TE, HeaderValue::from_static("trailers")),
                (header::CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
            ]),
            target: target.clone(),
            arena: RefCell::default(),
            live: RefCell::new(None),
            dialled: Cell::new(0),
            dialling: Mutex::new(()),
        });
        connection.sender().await.map_err(|status| refuse(status.message().into()))?;
        Ok(connection)
    }

    /// `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.target.address
    }

    /// Writes a key.
    pub(super) async fn put(self: &Rc<Self>, request: PutRequest) -> Result<(), Status> {
        if let Some(answer) = self.unless_spread::<PutResponse>(&self.put, &request).await {
            return answer.map(drop);
        }
        let command = KvCommand { command: Some(Command::Put(request)), ..KvCommand::default() };
        let request = ExecuteRequest { payload: command.encode_to_vec().into(), ..ExecuteRequest::default() };
        let answer: ExecuteResponse = self.call(&self.execute, &request).await?;
        match KvReply::decode(answer.reply).ok().and_then(|reply| reply.reply) {
            Some(Reply::Put(_)) => Ok(()),
            Some(Reply::Error(failure)) => Err(failed(failure)),
            _ => Err(malformed("it is no reply to a put")),
        }
    }

    /// Reads a key; returns whether there is one.
    pub(super) async fn get(self: &Rc<Self>, request: RangeRequest) -> Result<bool, Status> {
        let found = |answer: RangeResponse| !answer.kvs.is_empty();
        if let Some(answer) = self.unless_spread(&self.range, &request).await {
            return answer.map(found);
        }
        let serializable = request.serializable;
        let payload =
            KvQuery { query: Some(Query::Range(request)), ..KvQuery::default() }.encode_to_vec().into();
        let request = QueryRequest { payload, serializable, group: None };
        let answer: QueryResponse = self.call(&self.query, &request).await?;
        match KvAnswer::decode(answer.reply).ok().and_then(|answer| answer.answer) {
            Some(Answer::Range(answer)) => Ok(found(answer)),
            Some(Answer::Error(failure)) => Err(failed(failure)),
            _ => Err(malformed("it is no answer to a range")),
        }
    }

    /// The answer of etcd's API; `None` if the server does not serve it, since its keys are spread over groups.
    async fn unless_spread<A: Message + Default>(
        self: &Rc<Self>,
        uri: &Uri,
        request: &impl Message,
    ) -> Option<Result<A, Status>> {
        if self.spread.get() {
            return None;
        }
        match self.call(uri, request).await {
            Err(status)
                if status.code() == Code::FailedPrecondition
                    && status.message().starts_with(NO_SINGLE_REVISION) =>
            {
                self.spread.set(true);
                None
            }
            answer => Some(answer),
        }
    }

    async fn call<A: Message + Default>(
        self: &Rc<Self>,
        uri: &Uri,
        message: &impl Message,
    ) -> Result<A, Status> {
        let (sender, dialled) = self.sender().await?;
        let mut sender = sender.ready().await.map_err(|error| self.broken(dialled, &error))?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = self.headers.clone();
        let (response, mut stream) =
            sender.send_request(request, false).map_err(|error| self.broken(dialled, &error))?;
        stream.send_data(self.encode(message), true).map_err(|error| self.broken(dialled, &error))?;
        let response = response.await.map_err(|error| self.broken(dialled, &error))?;
        if response.status() != StatusCode::OK {
            return Err(Status::unknown(format!("HTTP status {}", response.status())));
        }
        // A server that refuses at once puts the status among the headers.
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Err(status);
        }
        let mut body = response.into_body();
        // Most answers come in one piece, which is used as it is; others are put together.
        let (mut answer, mut joined) = (Bytes::new(), BytesMut::new());
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(|error| self.broken(dialled, &error))?;
            // The call fails only if more is released than was received.
            let _ = body.flow_control().release_capacity(piece.len());
            if answer.is_empty() {
                answer = piece;
            } else {
                if joined.is_empty() {
                    joined.extend_from_slice(&answer);
                }
                joined.extend_from_slice(&piece);
            }
        }
        let answer = if joined.is_empty() { answer } else { joined.freeze() };
        let trailers = body.trailers().await.map_err(|error| self.broken(dialled, &error))?;
        match trailers.as_ref().and_then(Status::from_header_map) {
            Some(status) if status.code() == Code::Ok => decode(&answer),
            Some(status) => Err(status),
            None => Err(Status::internal("the answer has no gRPC status")),
        }
    }

    fn encode(&self, message: &impl Message) -> Bytes {
        let mut arena = self.arena.borrow_mut();
        let len = message.encoded_len();
        if arena.capacity() < PREFIX_BYTES + len {
            arena.reserve(ARENA_BYTES.max(PREFIX_BYTES + len));
        }
        arena.put_u8(0);
        arena.put_u32(u32::try_from(len).expect("keys and values are bounded far below 4 GiB"));
        message.encode(&mut *arena).expect("the arena has room");
        arena.split().freeze()
    }

    /// Returns the live connection, and dials if there is none.
    async fn sender(self: &Rc<Self>) -> Result<(SendRequest<Bytes>, u64), Status> {
        if let Some(sender) = self.live() {
            return Ok(sender);
        }
        let _dialling = self.dialling.lock().await;
        if let Some(sender) = self.live() {
            return Ok(sender);
        }
        let dial = timeout(CONNECT_TIMEOUT, self.dial());
        let sender =
            dial.await.unwrap_or_else(|_| Err(format!("no connection within {CONNECT_TIMEOUT:?}"))).map_err(
                |reason| Status::unavailable(format!("cannot connect to {}: {reason}", self.target.address)),
            )?;
        *self.live.borrow_mut() = Some(sender.clone());
        Ok((sender, self.dialled.get()))
    }

    fn live(&self) -> Option<(SendRequest<Bytes>, u64)> {
        self.live.borrow().as_ref().map(|sender| (sender.clone(), self.dialled.get()))
    }

    async fn dial(self: &Rc<Self>) -> Result<SendRequest<Bytes>, String> {
        if let Some(dial) = &self.target.dial {
            let stream = dial.clone().connect().await.map_err(|error| error.to_string())?;
            return self.begin(stream).await;
        }
        let stream = TcpStream::connect(&self.target.address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        self.begin(stream).await
    }

    async fn begin(
        self: &Rc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    ) -> Result<SendRequest<Bytes>, String> {
        let handshake = client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .enable_push(false)
            .handshake(stream);
        let (sender, driver) = handshake.await.map_err(|error| error.to_string())?;
        let dialled = self.dialled.get() + 1;
        self.dialled.set(dialled);
        // The task refers to the connection weakly: once the clients are gone, so is the connection.
        let connection = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            // The requests that wait for answers get the error as well.
            let _ = driver.await;
            if let Some(connection) = connection.upgrade() {
                connection.give_up(dialled);
            }
        });
        Ok(sender)
    }

    fn give_up(&self, dialled: u64) {
        if self.dialled.get() == dialled {
            self.live.borrow_mut().take();
        }
    }

    /// The status for a failure below gRPC. It may affect several requests; the next one dials again.
    fn broken(&self, dialled: u64, error: &h2::Error) -> Status {
        if error.is_reset() {
            return Status::unavailable(format!("stream reset: {error}"));
        }
        self.give_up(dialled);
        Status::unavailable(format!("connection lost: {error}"))
    }
}

fn malformed(what: &str) -> Status {
    Status::internal(format!("malformed answer: {what}"))
}

fn failed(KvFailure { code, message }: KvFailure) -> Status {
    Status::new(Code::from_i32(code), message)
}

fn decode<A: Message + Default>(answer: &Bytes) -> Result<A, Status> {
    let Some((prefix, message)) = answer.split_at_checked(PREFIX_BYTES) else {
        return Err(malformed("it is shorter than a message's prefix"));
    };
    if prefix[0] != 0 {
        return Err(malformed("it is compressed, although that was not offered"));
    }
    if prefix[1..] != u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes() {
        return Err(malformed("its length is not what its prefix says"));
    }
    A::decode(answer.slice(PREFIX_BYTES..)).map_err(|error| malformed(&error.to_string()))
}
