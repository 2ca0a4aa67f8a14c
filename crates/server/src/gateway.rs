//! etcd's gateway: the calls of the v3 API as JSON over HTTP, for clients that have no gRPC.
//!
//! ```text
//! curl ── HTTP/1.1, JSON ── gateway.rs ── a pipe in memory, gRPC over HTTP/2 ── call.rs, as for others
//! ```
//!
//! The gateway is a client of its own server: it translates a request into a message and a message into an answer, and
//! knows of calls only their types. So each call has the bounds, the errors and the end that it has for other clients.

use std::{
    collections::HashMap,
    error::Error,
    future::poll_fn,
    iter, mem,
    pin::{Pin, pin},
    sync::{Arc, LazyLock, OnceLock},
    vec,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use h2::{RecvStream, client::SendRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame};
use prost::Message as _;
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::json;
use synod_api::etcdserverpb::PutRequest;
use synod_grpc::{Charge, ComePace, Mark, Places, REQUEST_BYTES, Share, Terms};
use tokio::{
    io::{DuplexStream, duplex},
    sync::{Mutex, watch},
};
use tonic::{Code, Status};

use crate::{
    Replica,
    auth::Caller,
    call::{Client, serve_http2},
    fields::{Bounds, Shape},
    json::{self, Pieces},
    methods::{Handler, METHODS, Method},
    readers::{Lane, Source},
    services::{SMALL_ANSWER_BYTES_MAX, Store},
};

/// What the paths of all calls begin with. The second is of etcd before version 3.4, and etcd still serves it.
const PREFIXES: [&str; 2] = ["/v3/", "/v3beta/"];

/// Bytes on their way between the gateway and the server, in each direction.
const PIPE_BYTES: usize = 64 << 10;
/// Bytes of a call that may come from the server before they are translated. The window of the connection is larger, so
/// that a stream that is not read does not stop the others.
const WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// JSON has at most this many times the bytes of its message, in base64 and with names, but for small messages.
const JSON_FACTOR: usize = 2;
/// Most bytes of a body that anybody may send where users count: a name and a password.
const STRANGERS_BYTES_MAX: usize = 8 << 10;
/// What a body costs while it is translated: itself, its fields, and the message.
const COPIES: u64 = 3;
/// What a piece of an answer takes at most, with the longest value in it.
const TEXT_BYTES: u64 = 4 << 20;
/// What is longer, or takes more memory while it is translated, is translated apart from the threads that serve
/// clients.
const SMALL_BYTES: usize = 64 << 10;
const SMALL_COST: u64 = 1 << 20;
/// A larger message of a stream is charged for itself, until the next one is asked for.
const LINE_BYTES: usize = 8 << 10;
/// What a stream of answers costs: what has come of it, and a message that is translated.
const STREAM_BYTES: u64 = WINDOW_BYTES as u64 + COPIES * LINE_BYTES as u64;
/// Bytes of a message's prefix.
const PREFIX_BYTES: usize = 5;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The methods by the paths of their calls, below [`PREFIXES`], with their messages.
static ROUTES: LazyLock<HashMap<&str, (&Method, MethodDescriptor)>> = LazyLock::new(|| {
    let paths = |method: &'static Method| method.json.iter().map(move |path| (*path, method));
    let found = METHODS.iter().flat_map(paths);
    found.filter_map(|(path, method)| Some((path, (method, method.descriptor()?)))).collect()
});

/// The path of a call below [`PREFIXES`]; `None` for another path.
pub(crate) fn route(path: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix))
}

/// The body of an answer: one object, or one after another.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Failure>>;

type Failure = Box<dyn Error + Send + Sync>;

/// The gateway of one connection.
pub(crate) struct Gateway<R> {
    store: Arc<Store<R>>,
    client: Client,
    terms: Terms,
    stopping: watch::Receiver<bool>,
    share: Share,
    /// The mark of the connection, whose work is done at the far end of the pipe.
    mark: Mark,
    /// The connection's share of the threads that translate, once it was needed.
    lane: OnceLock<Lane>,
    /// The way to the server, once it was needed.
    link: Mutex<Option<SendRequest<Bytes>>>,
}

impl<R: Replica> Gateway<R> {
    pub(crate) fn new(
        store: Arc<Store<R>>,
        client: Client,
        terms: Terms,
        stopping: watch::Receiver<bool>,
        mark: Mark,
    ) -> Gateway<R> {
        let share = store.share();
        Gateway { store, client, terms, stopping, share, mark, lane: OnceLock::new(), link: Mutex::new(None) }
    }

    /// Answers a request whose path has a [`route`].
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.call(request).await.unwrap_or_else(|status| refusal(&status, status_of(status.code())))
    }

    async fn call<B>(&self, request: Request<B>) -> Result<Answer, Status>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let method = route(head.uri.path()).and_then(|path| ROUTES.get(path));
        let Some((called, method)) = method else { return Err(Status::not_found("Not Found")) };
        if head.method != http::Method::POST {
            return Err(Status::unimplemented("Method Not Allowed"));
        }
        let held = Held(self.share.charge(REQUEST_BYTES)?);
        let mut passed = HeaderMap::new();
        metadata(&head.headers, &mut passed);
        // The call is refused for that later, but its body would have been translated.
        let of_strangers =
            match self.store.is_known(called, &Caller::of(&passed, self.client.1.as_ref())).await {
                Err(status) if method.is_server_streaming() => return Ok(failed(&status)),
                of_strangers => of_strangers?,
            };
        let body = self.body(body, of_strangers, &held.0).await?;
        let (bounds, lane) = (self.store.bounds(), self.lane.get_or_init(|| self.store.lane(self.client.0)));
        let (requests, held) = translated(body, method, bounds, held, lane).await?;
        // The buffer in which they are may be twice as long.
        let requests_bytes = 2 * requests.len() as u64;
        held.0.shrink_to(REQUEST_BYTES + requests_bytes);
        // It is charged before the call is made, so that little is left that can fail once a command is executed.
        let has_pairs = match called.handler {
            Handler::Txn | Handler::DeleteRange => true,
            Handler::Put => PutRequest::decode(requests.slice(PREFIX_BYTES..)).is_ok_and(|put| put.prev_kv),
            _ => false,
        };
        let answer_bytes = match has_pairs {
            _ if method.is_server_streaming() => STREAM_BYTES,
            true => COPIES * SMALL_ANSWER_BYTES_MAX,
            false => 0,
        };
        held.0.afford(answer_bytes)?;
        let shape = Shape::of(&method.output());
        let mut link = self.link().await?;
        let call = Request::post(format!("http://gateway{}", called.path)).body(());
        let mut call = call.map_err(|error| Status::internal(error.to_string()))?;
        passed.insert(header::CONTENT_TYPE, GRPC);
        *call.headers_mut() = passed;
        let (response, mut stream) = link.send_request(call, false).map_err(broken)?;
        stream.send_data(requests, true).map_err(broken)?;
        let (head, mut answers) = response.await.map_err(broken)?.into_parts();
        // The server reads the messages of a client that sends many as it answers them.
        let unread_bytes = if method.is_client_streaming() { requests_bytes } else { 0 };
        held.0.shrink_to(REQUEST_BYTES + unread_bytes + answer_bytes);
        let refused = head.headers.contains_key("grpc-status").then(|| outcome(&head.headers)).transpose();
        if method.is_server_streaming() {
            return Ok(match refused {
                Ok(_) => streamed(Messages::new(answers, held), shape, lane.clone()).await,
                Err(status) => failed(&status),
            });
        }
        refused?;
        let message = whole(&mut answers, &held.0, called.changes()).await?;
        let mut answer = if message.len() <= SMALL_BYTES {
            let object = object(message, shape)?;
            let len = object.len();
            // In pieces, so that what it holds is held until nearly all of it has left.
            let pieces = stream::unfold((object, held), async |(mut rest, held)| {
                let piece = rest.split_to(SMALL_BYTES.min(rest.len()));
                (!piece.is_empty()).then(|| (Ok(Frame::data(piece)), (rest, held)))
            });
            let mut answer = Response::new(StreamBody::new(pieces).boxed_unsync());
            answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
            answer
        } else {
            let (is_whole, (message, held)) =
                lane.blocking((message, held), move |(message, _)| json::is_whole(message, shape)).await?;
            if !is_whole {
                return Err(untranslated());
            }
            let held = Arc::new(held);
            let source = kept(&held, Pieces::new(message, shape));
            let begun = (Some(source), Vec::new().into_iter(), held, lane.clone());
            let pieces = stream::unfold(begun, async |(mut source, mut made, held, lane)| {
                let piece = next_piece(&mut source, &mut made, &lane).await;
                piece.map(|piece| (piece.map(Frame::data), (source, made, held, lane)))
            });
            Response::new(StreamBody::new(pieces).boxed_unsync())
        };
        answer.headers_mut().insert(header::CONTENT_TYPE, JSON);
        answer.headers_mut().insert("grpc-metadata-content-type", GRPC);
        Ok(answer)
    }

    /// The whole body of a request, which may be of a stranger.
    async fn body<B>(&self, body: B, of_strangers: bool, charge: &Charge) -> Result<Bytes, Status>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let bytes_max = match of_strangers {
            true => STRANGERS_BYTES_MAX,
            false => self.store.message_bytes_max().saturating_mul(JSON_FACTOR),
        };
        let mut body = pin!(Limited::new(body, bytes_max));
        let (mut whole, mut pace) = (BytesMut::new(), ComePace::default());
        loop {
            let Some(frame) = pace.kept(body.frame()).await? else { break };
            let frame = frame.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
                true => Status::resource_exhausted(format!("synod: a body has {bytes_max} bytes at most")),
                false => Status::cancelled(error.to_string()),
            })?;
            if let Ok(data) = frame.into_data() {
                charge.afford(COPIES * data.len() as u64)?;
                whole.extend_from_slice(&data);
                pace.came(data.len());
            }
        }
        Ok(whole.freeze())
    }

    /// The server's end of a pipe. Its type is hidden, since a connection has a gateway, whose pipe has a connection.
    fn far_end(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (store, client, terms, mut stopping) =
            (Arc::clone(&self.store), self.client.clone(), self.terms, self.stopping.clone());
        let mark = self.mark.clone();
        Box::pin(async move {
            let stop = pin!(async move { _ = stopping.wait_for(|stopping| *stopping).await });
            let place = Places::new(1).take().expect("it is free").marking(mark);
            // The gateway's client has the place that counts. An error means that it has left.
            let _ = serve_http2(pipe, client, &store, None, terms, stop, place).await;
        })
    }

    /// The way to the server.
    async fn link(&self) -> Result<SendRequest<Bytes>, Status> {
        let mut link = self.link.lock().await;
        if let Some(open) = &*link
            && let Ok(ready) = open.clone().ready().await
        {
            return Ok(ready);
        }
        let (near, far) = duplex(PIPE_BYTES);
        tokio::spawn(self.far_end(far));
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (open, connection) = builder.handshake(near).await.map_err(broken)?;
        tokio::spawn(connection);
        *link = Some(open.clone());
        open.ready().await.map_err(broken)
    }
}

/// A charge that is given back when it is dropped: nothing else tells when an answer has left.
struct Held(Charge);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.shrink_to(0);
    }
}

/// Translates a body into messages with their prefixes: one, or as many as there are objects. What the request holds is
/// charged for the messages before they are made, and held until the work has ended, also if the client leaves.
async fn translated(
    body: Bytes,
    method: &MethodDescriptor,
    bounds: Bounds,
    held: Held,
    lane: &Lane,
) -> Result<(Bytes, Held), Status> {
    let (input, many) = (method.input(), method.is_client_streaming());
    let is_small = body.len() <= SMALL_BYTES && bounds.cost_of_json(&body)? <= SMALL_COST;
    let work = move |held: &Held| {
        held.0.afford(bounds.cost_of_json(&body)?)?;
        translate(&body, &input, many)
    };
    let (requests, held) = if is_small { (work(&held), held) } else { lane.translated(held, work).await? };
    Ok((requests?, held))
}

/// The pieces of an answer, which hold what the answer holds until they are dropped.
fn kept(held: &Arc<Held>, pieces: Pieces) -> Source {
    let held = Arc::clone(held);
    Box::new(pieces.inspect(move |_| {
        let _ = &held;
    }))
}

/// The next piece of what was made, or of what is made now.
async fn next_piece(
    source: &mut Option<Source>,
    made: &mut vec::IntoIter<Bytes>,
    lane: &Lane,
) -> Option<Result<Bytes, Failure>> {
    if let Some(piece) = made.next() {
        return Some(Ok(piece));
    }
    match lane.next(source, SMALL_BYTES).await {
        Ok(pieces) => {
            *made = pieces.into_iter();
            made.next().map(Ok)
        }
        Err(status) => {
            *source = None;
            Some(Err(status.into()))
        }
    }
}

pub(crate) fn translate(body: &[u8], input: &MessageDescriptor, many: bool) -> Result<Bytes, Status> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let mut objects = serde_json::Deserializer::from_slice(body);
    let mut frames = BytesMut::new();
    let mut put = |message: DynamicMessage| {
        let bytes = u32::try_from(message.encoded_len());
        frames.put_u8(0);
        frames.put_u32(bytes.map_err(|_| Status::resource_exhausted("synod: a message has 4 GiB at most"))?);
        message.encode(&mut frames).expect("the buffer grows");
        Ok::<_, Status>(())
    };
    if !many && objects.end().is_ok() {
        // An empty body stands for an empty object.
        put(DynamicMessage::new(input.clone()))?;
    }
    while objects.end().is_err() {
        let message = DynamicMessage::deserialize_with_options(input.clone(), &mut objects, &options);
        put(message.map_err(|error| Status::invalid_argument(error.to_string()))?)?;
        if !many {
            break;
        }
    }
    Ok(frames.freeze())
}

/// Passes on what a client says besides its request: who it is, how long it waits, and any header of gRPC that begins
/// with `Grpc-Metadata-`.
pub(crate) fn metadata(from: &HeaderMap, to: &mut HeaderMap) {
    const OF_GRPC: &str = "grpc-metadata-";
    for (name, value) in from {
        let passed = match name.as_str() {
            "authorization" | "grpc-timeout" => Some(name.clone()),
            name => name.strip_prefix(OF_GRPC).and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok()),
        };
        if let Some(passed) = passed.filter(|name| name != header::CONTENT_TYPE) {
            to.append(passed, value.clone());
        }
    }
}

/// The messages of an answer.
struct Messages {
    stream: RecvStream,
    buffer: BytesMut,
    ended: bool,
    held: Arc<Held>,
    /// What is charged for the last message.
    charged: u64,
}

impl Messages {
    fn new(stream: RecvStream, held: Held) -> Messages {
        Messages { stream, buffer: BytesMut::new(), ended: false, held: Arc::new(held), charged: 0 }
    }

    /// The next message; `None` after the last one.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        self.held.0.give_back(mem::take(&mut self.charged));
        loop {
            if let Some(&[_, a, b, c, d]) = self.buffer.first_chunk() {
                let len = PREFIX_BYTES + u32::from_be_bytes([a, b, c, d]) as usize;
                if len > LINE_BYTES && self.charged == 0 {
                    let bytes = COPIES * len as u64;
                    self.held.0.afford(bytes)?;
                    self.charged = bytes;
                }
                if self.buffer.len() >= len {
                    let mut message = self.buffer.split_to(len).freeze();
                    if len > LINE_BYTES {
                        // What is left keeps the place of what was there.
                        self.buffer = BytesMut::from(&self.buffer[..]);
                    }
                    message.advance(PREFIX_BYTES);
                    return Ok(Some(message));
                }
            }
            let Some(piece) = self.stream.data().await else { break };
            let piece = piece.map_err(broken)?;
            let _ = self.stream.flow_control().release_capacity(piece.len());
            self.buffer.extend_from_slice(&piece);
        }
        let trailers = poll_fn(|cx| self.stream.poll_trailers(cx)).await.map_err(broken)?;
        outcome(&trailers.unwrap_or_default()).map(|()| None)
    }
}

/// The only message of an answer. It is in memory as a whole, and charged once, before more of it is taken than its
/// beginning. Its translation is written a piece at a time. What the request takes covers a small answer.
///
/// # Errors
/// There is no memory for it. If the call may have `changed` something it must not sound as if it were refused.
async fn whole(answers: &mut RecvStream, charge: &Charge, changed: bool) -> Result<Bytes, Status> {
    let mut whole = BytesMut::new();
    let mut is_charged = false;
    while let Some(piece) = answers.data().await {
        let piece = piece.map_err(broken)?;
        whole.extend_from_slice(&piece);
        if !is_charged && let Some(&[_, a, b, c, d]) = whole.first_chunk() {
            let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
            charge
                .afford_to(answer_cost(bytes))
                .map_err(|refused| if changed { unknown_outcome() } else { refused })?;
            is_charged = true;
            let mut all = BytesMut::with_capacity(PREFIX_BYTES + bytes);
            all.extend_from_slice(&whole);
            whole = all;
        }
        let _ = answers.flow_control().release_capacity(piece.len());
    }
    let trailers = poll_fn(|cx| answers.poll_trailers(cx)).await.map_err(broken)?;
    outcome(&trailers.unwrap_or_default())?;
    if whole.len() < PREFIX_BYTES {
        return Err(Status::internal("synod: an answer without a message"));
    }
    whole.advance(PREFIX_BYTES);
    Ok(whole.freeze())
}

/// What an answer costs: its message, and what is written of its translation at a time.
fn answer_cost(bytes: usize) -> u64 {
    let bytes = bytes as u64;
    bytes + ((COPIES - 1) * bytes).min(TEXT_BYTES)
}

/// The error of a call whose command was executed, as far as the gateway knows, and whose answer it cannot give.
/// Clients take it as they take a broken connection, and do not try again blindly.
fn unknown_outcome() -> Status {
    Status::unavailable(
        "synod: the outcome is unknown, and the command may have taken effect: there is no memory for its answer as JSON",
    )
}

/// Whether a call has succeeded, from its last headers.
fn outcome(trailers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(trailers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        Some(_) => Ok(()),
        None => Err(Status::internal("synod: an answer without a status")),
    }
}

/// An answer of one object after another: `{"result": ...}`, or at last `{"error": ...}`. It begins with the first one,
/// since its code of HTTP tells of a failure that comes before.
async fn streamed(messages: Messages, shape: &'static Shape, lane: Lane) -> Answer {
    let mut lines =
        Lines { messages, shape, lane, source: None, made: Vec::new().into_iter(), failure: None };
    let first = lines.chunk().await;
    if let Some(status) = &lines.failure {
        return failed(status);
    }
    let chunks = stream::unfold((first, lines), async |(first, mut lines)| {
        let chunk = match first {
            Some(first) => first,
            None => lines.chunk().await?,
        };
        Some((chunk.map(Frame::data), (None, lines)))
    });
    let mut answer = Response::new(StreamBody::new(chunks).boxed_unsync());
    answer.headers_mut().insert(header::CONTENT_TYPE, JSON);
    answer
}

/// The answer to a call for a stream that fails before its first message.
fn failed(status: &Status) -> Answer {
    json_answer(failure_line(status), status_of(status.code()))
}

/// The last line of a stream that fails. It has never had the `error` of other refusals.
fn failure_line(status: &Status) -> Bytes {
    let line = json!({"error": {"code": status.code() as i32, "message": status.message()}});
    (line.to_string() + "\n").into()
}

/// What is before and after the object of a line.
const BEGIN: &[u8] = b"{\"result\":";
const END: &[u8] = b"}\n";

/// A line for each message of an answer.
struct Lines {
    messages: Messages,
    shape: &'static Shape,
    lane: Lane,
    /// What is still to be made of a line, if it is long, and what is made.
    source: Option<Source>,
    made: vec::IntoIter<Bytes>,
    /// Why the answer ends, if it fails.
    failure: Option<Status>,
}

impl Lines {
    /// The next line, or a part of a long one.
    async fn chunk(&mut self) -> Option<Result<Bytes, Failure>> {
        if let Some(piece) = next_piece(&mut self.source, &mut self.made, &self.lane).await {
            return Some(piece);
        }
        if self.messages.ended {
            return None;
        }
        let line = match self.messages.next().await {
            Ok(None) => {
                self.messages.ended = true;
                return None;
            }
            Ok(Some(message)) if message.len() <= SMALL_BYTES => {
                object(message, self.shape).map(|object| [BEGIN, &object[..], END].concat().into())
            }
            Ok(Some(message)) => self.begin(message).await.map(|()| Bytes::from_static(BEGIN)),
            Err(status) => Err(status),
        };
        Some(Ok(line.unwrap_or_else(|status| {
            self.messages.ended = true;
            let line = failure_line(&status);
            self.failure = Some(status);
            line
        })))
    }

    /// Has the rest of a long line made.
    async fn begin(&mut self, message: Bytes) -> Result<(), Status> {
        let (shape, held) = (self.shape, Arc::clone(&self.messages.held));
        let work = move |(message, _): &(Bytes, Arc<Held>)| json::is_whole(message, shape);
        let (is_whole, (message, held)) = self.lane.blocking((message, held), work).await?;
        if !is_whole {
            return Err(untranslated());
        }
        let end = iter::once(Bytes::from_static(END));
        self.source = Some(Box::new(kept(&held, Pieces::new(message, shape)).chain(end)));
        Ok(())
    }
}

/// A message as JSON.
pub(crate) fn object(message: Bytes, shape: &'static Shape) -> Result<Bytes, Status> {
    if !json::is_whole(&message, shape) {
        return Err(untranslated());
    }
    let mut pieces: Vec<_> = Pieces::new(message, shape).collect();
    Ok(if let [_] = &pieces[..] { pieces.remove(0) } else { pieces.concat().into() })
}

fn untranslated() -> Status {
    Status::internal("synod: an answer is not translated: it is no message of its kind")
}

fn refusal(status: &Status, code: StatusCode) -> Answer {
    json_answer(of_status(status).to_string().into(), code)
}

fn json_answer(body: Bytes, code: StatusCode) -> Answer {
    let body = Full::new(body);
    let mut answer = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, JSON);
    answer
}

/// `error` is what etcd called `message` before version 3.6.
fn of_status(status: &Status) -> serde_json::Value {
    json!({"code": status.code() as i32, "error": status.message(), "message": status.message()})
}

/// The codes of HTTP, as etcd's gateway has them.
fn status_of(code: Code) -> StatusCode {
    const CLIENT_CLOSED_REQUEST: u16 = 499;
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(CLIENT_CLOSED_REQUEST).expect("it has three digits"),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn broken(error: h2::Error) -> Status {
    Status::unavailable(format!("synod: the call broke off: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_a_method_has_a_route() {
        assert_eq!(ROUTES.len(), METHODS.iter().map(|method| method.json.len()).sum::<usize>());
        assert!(ROUTES.contains_key("election/observe"));
        assert_eq!(
            ["/v3/kv/put", "/v3beta/kv/put", "/v2/kv/put"].map(route),
            [Some("kv/put"), Some("kv/put"), None]
        );
    }

    #[test]
    fn bodies_are_read_as_generously_as_etcd_reads_them() {
        let put = ROUTES["kv/put"].1.input();
        let watch = ROUTES["watch"].1.input();
        let bytes = |body: &str, input: &MessageDescriptor, many| translate(body.as_bytes(), input, many);
        // A key "k", a lease 7.
        let expected = &b"\0\0\0\0\x05\x0a\x01k\x18\x07"[..];
        for body in [r#"{"key":"aw==","lease":"7"}"#, r#" {"key":"aw", "lease":7, "unknown":[1]} {"#] {
            assert_eq!(bytes(body, &put, false).unwrap(), expected, "{body}");
        }
        assert_eq!(bytes("", &put, false).unwrap(), &b"\0\0\0\0\0"[..]);
        assert_eq!(bytes("", &watch, true).unwrap(), &b""[..]);
        let two = r#"{"create_request":{}} {"cancelRequest":{"watch_id":"1"}}"#;
        assert_eq!(bytes(two, &watch, true).unwrap(), &b"\0\0\0\0\x02\x0a\0\0\0\0\0\x04\x12\x02\x08\x01"[..]);
        for wrong in ["{", r#"{"key":7}"#, "[]", r#"{"lease":"x"}"#] {
            assert_eq!(bytes(wrong, &put, false).unwrap_err().code(), Code::InvalidArgument, "{wrong}");
        }
    }
}
