//! One request, from its headers to the status of its answer.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::{RecvStream, SendStream, server::SendResponse};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header, request::Parts,
    uri::PathAndQuery,
};
use tokio::{
    sync::watch,
    time::{self, Instant, Sleep, sleep},
};
use tonic::{Code, Status};
use tracing::{debug, trace};

use crate::{
    Replica,
    admission::{Charge, REQUEST_BYTES, Share},
    auth::{Caller, judged_anew},
    feeds::Feed,
    message::{Incoming, RequestBody, drain, too_many},
    methods::{Handler, Method},
    readers::{GATHERED_BYTES, Lane},
    requests::RequestMetrics,
    sending::{HANDED_BYTES, Sender},
    services::{Answer, Pieces, Store},
    slow::Answered,
    watch::serve,
};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_TIMEOUT: &str = "grpc-timeout";
const GRPC_ENCODING: &str = "grpc-encoding";
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// How messages of clients may be compressed.
const GZIP: HeaderValue = HeaderValue::from_static("gzip");
/// etcd's header for calls that are to be refused, and streams that are to end, when there is no leader.
const NEEDS_LEADER: &str = "hasleader";
const OK: HeaderValue = HeaderValue::from_static("0");

/// How long a client may take almost nothing of an answer that is sent at the client's pace. Until then the
/// server keeps what the answer is made from.
pub(crate) const TAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// A client must take this many bytes in that time. It is less than a frame, so a client may spend as long on
/// each frame. A smaller bound would let a client with one byte a minute keep everything as well.
pub(crate) const TAKE_BYTES_MIN: usize = 8 << 10;
pub(crate) const NOT_TAKEN: &str =
    "synod: the answer is broken off, since the client took next to nothing of it for a minute";

/// The header and trailer frames of every successful answer. They are cloned, which costs less than making them.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| HeaderMap::from_iter([(header::CONTENT_TYPE, GRPC)]));
static TRAILERS: LazyLock<HeaderMap> = LazyLock::new(|| HeaderMap::from_iter([(GRPC_STATUS, OK)]));

/// A request whose headers are valid.
#[derive(Debug)]
pub(crate) struct Call {
    /// `/package.Service/Method`.
    path: PathAndQuery,
    body: Incoming,
    deadline: Deadline,
    reply: SendResponse<Bytes>,
    came: Instant,
    charge: Charge,
    /// Whether it is to be refused, or to end, when there is no leader.
    needs_leader: bool,
    caller: Caller,
}

impl Call {
    /// Checks the headers and drops them, since thousands of requests may wait. If they are invalid, or there
    /// is no room for the request, it answers the client and returns `None`.
    pub(crate) fn new(
        request: Request<RecvStream>,
        mut reply: SendResponse<Bytes>,
        share: &Share,
        common_name: Option<&Arc<str>>,
    ) -> Option<Call> {
        let (head, body) = request.into_parts();
        let caller = Caller::of(&head.headers, common_name);
        let charge = || share.charge(REQUEST_BYTES + caller.bytes()).ok_or_else(|| Refusal::from(too_many()));
        match deadline(&head).and_then(|deadline| Ok((deadline, charge()?))) {
            Ok((deadline, charge)) => {
                let needs_leader = head.headers.get(NEEDS_LEADER).is_some_and(|value| value == "true");
                let may_be_packed = head.headers.get(GRPC_ENCODING).is_some_and(|encoding| *encoding == GZIP);
                let body = Incoming { stream: body, may_be_packed };
                let path = head.uri.into_parts().path_and_query;
                let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
                trace!(path = path.as_str(), common_name = common_name.map(|name| &**name), "called");
                Some(Call { path, body, deadline, reply, came: Instant::now(), charge, needs_leader, caller })
            }
            Err(refusal) => {
                refusal.send(&mut reply);
                None
            }
        }
    }

    /// Answers the request. If the client is gone before there is an answer, no failure is reported.
    pub(crate) async fn answer<R: Replica>(
        self,
        store: &Store<R>,
        lane: &Lane,
        ending: &watch::Receiver<bool>,
    ) {
        let mut call = self;
        call.caller.mark = Some(lane.mark().clone());
        let method = Method::at(call.path.as_str());
        // Where users count, the connection works when one is found out.
        let works = !store.users_count() && !method.is_some_and(Method::is_of_every_server);
        if let Some(method) = method.filter(|method| method.lasts()) {
            if works {
                lane.mark().works();
            }
            return Box::pin(call.serve_stream(method, store, lane, ending.clone())).await;
        }
        let served = match method {
            _ if call.needs_leader && !store.knows_leader() => Err(no_leader()),
            None => Err(store.unserved(call.path.as_str())),
            Some(method) => Ok(method),
        };
        let method = match served {
            Ok(method) => method,
            Err(refused) => return Box::pin(call.refuse(method, refused, store, ending)).await,
        };
        let Call { path, mut body, mut deadline, mut reply, came, charge, needs_leader: _, caller } = call;
        drop(path);
        let requests = store.requests();
        let answered = |code| requests.answered(Some(method), code, came.elapsed());
        let answer = {
            let mark = works.then(|| lane.mark());
            let body = RequestBody::new(&mut body, method.path, store.bounds(), &charge).marking(mark);
            let answer = store.answer(method, body, lane, &charge, &caller);
            let mut answer = pin!(store.slow().accounting(answer));
            // The future of the answer is dropped when the client resets the request, which frees what the
            // request holds.
            let outcome = poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Pending if reply.poll_reset(cx).is_ready() => Poll::Ready(None),
                Poll::Pending => deadline.poll(cx).map(|status| Some(Err(status))),
                ready => ready.map(Some),
            })
            .await;
            if let Some(outcome) = &outcome {
                let code = outcome.as_ref().map_or_else(Status::code, |_| Code::Ok);
                let bytes = match outcome {
                    Ok(Answer::Message(message) | Answer::Large(message, _)) => Some(message.len()),
                    _ => None,
                };
                let account = answer.as_mut().take_value().flatten();
                let answered = Answered { method: method.path, peer: lane.remote(), came, code, bytes };
                store.slow().look(&answered, account);
            }
            outcome
        };
        match answer {
            None => {}
            Some(Err(status)) => {
                answered(status.code());
                Refusal::from(status).send(&mut reply);
                charge.shrink_to(REQUEST_BYTES);
                until_ended(body.stream, ending).await;
            }
            Some(Ok(Answer::Message(message))) => {
                charge.shrink_to(REQUEST_BYTES + message.len() as u64);
                match send_message(&mut reply, message) {
                    None => answered(Code::Ok),
                    Some((stream, message)) => {
                        answered(Box::pin(send_large(Sender::new(stream), message, deadline)).await);
                    }
                }
            }
            Some(Ok(Answer::Large(message, _place))) => {
                if let Ok(stream) = reply.send_response(head(), false) {
                    charge.shrink_to(REQUEST_BYTES);
                    answered(Box::pin(send_large(Sender::new(stream), message, deadline)).await);
                }
            }
            Some(Ok(Answer::Pieces(pieces))) => {
                if let Ok(stream) = reply.send_response(head(), false) {
                    charge.shrink_to(REQUEST_BYTES);
                    // Boxed, since it is rare and large.
                    let sender = Sender::new(stream);
                    answered(Box::pin(send_pieces(sender, pieces, lane, &charge, deadline)).await);
                }
            }
            Some(Ok(Answer::Feed(feed))) => {
                if let Ok(stream) = reply.send_response(head(), false) {
                    charge.shrink_to(REQUEST_BYTES);
                    let sender = Sender::new(stream);
                    answered(Box::pin(send_feed(sender, feed, (store, &caller), &charge, deadline)).await);
                }
            }
        }
    }
}

impl Call {
    /// Refuses a call before anything of it is read.
    async fn refuse<R: Replica>(
        mut self,
        method: Option<&Method>,
        refused: Status,
        store: &Store<R>,
        ending: &watch::Receiver<bool>,
    ) {
        store.requests().answered(method, refused.code(), self.came.elapsed());
        Refusal::from(refused).send(&mut self.reply);
        self.charge.shrink_to(REQUEST_BYTES);
        until_ended(self.body.stream, ending).await;
    }

    /// Serves a call in which one side or both send messages until one of them ends it.
    async fn serve_stream<R: Replica>(
        self,
        method: &'static Method,
        store: &Store<R>,
        lane: &Lane,
        mut ending: watch::Receiver<bool>,
    ) {
        let Call { path, mut body, deadline, mut reply, came, charge, needs_leader, caller } = self;
        drop(path);
        // A stream whose connection ends is dropped here: its client has cancelled it.
        let mut counted = Counted { requests: store.requests(), method, came, code: Code::Cancelled };
        let served = match method.handler {
            _ if !charge.grow(HANDED_BYTES) => Err(too_many()),
            _ if needs_leader && !store.knows_leader() => Err(no_leader()),
            Handler::Watch | Handler::Observe => store.watches().map(drop),
            Handler::LeaseKeepAlive => store.check_single(),
            _ => Ok(()),
        };
        counted.code = match served {
            Err(refused) => {
                let code = refused.code();
                Refusal::from(refused).send(&mut reply);
                code
            }
            Ok(()) => {
                let Ok(stream) = reply.send_response(head(), false) else { return };
                let mut sender = Sender::new(stream);
                let served = async {
                    match method.handler {
                        Handler::Watch => {
                            serve(store.watches()?, store, &charge, &mut body, &mut sender, &caller).await
                        }
                        Handler::LeaseKeepAlive => {
                            store.keep_alive(&charge, &mut body, &mut sender, &caller).await
                        }
                        Handler::Observe => {
                            let body = RequestBody::new(&mut body, method.path, store.bounds(), &charge);
                            store.observe(body, &mut sender, lane, &charge, &caller).await
                        }
                        Handler::WatchHealth => {
                            let body = RequestBody::new(&mut body, method.path, store.bounds(), &charge);
                            store.watch_health(body, &mut sender).await
                        }
                        _ => store.reflect(method.path, &mut body, &mut sender, &charge).await,
                    }
                };
                let leaderless =
                    async { if needs_leader { store.until_leaderless().await } else { pending().await } };
                let outcome = in_time(deadline, async {
                    tokio::select! {
                        outcome = served => outcome,
                        _ = ending.wait_for(|ending| *ending) => Err(stopped()),
                        () = leaderless => Err(no_leader()),
                    }
                });
                let outcome = outcome.await;
                end(&mut sender, outcome)
            }
        };
        drop(counted);
        until_ended(body.stream, &ending).await;
    }
}

/// Waits until the client of a request that was answered has stopped sending it, unless the server stops.
async fn until_ended(body: RecvStream, ending: &watch::Receiver<bool>) {
    if body.is_end_stream() || *ending.borrow() {
        return;
    }
    let mut ending = ending.clone();
    // Boxed, since it is rare: most requests have come when they are answered.
    let ended = async move {
        tokio::select! {
            () = drain(body) => {}
            _ = ending.wait_for(|ending| *ending) => {}
        }
    };
    Box::pin(ended).await;
}

/// Counts a call when it is dropped.
struct Counted<'a> {
    requests: &'a RequestMetrics,
    method: &'static Method,
    came: Instant,
    code: Code,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.requests.answered(Some(self.method), self.code, self.came.elapsed());
    }
}

fn head() -> Response<()> {
    let mut head = Response::new(());
    *head.headers_mut() = HEAD.clone();
    head
}

fn trailers(outcome: Result<(), Status>) -> HeaderMap {
    match outcome {
        Ok(()) => TRAILERS.clone(),
        Err(status) => {
            let mut trailers = HeaderMap::new();
            add_status(&status, &mut trailers);
            trailers
        }
    }
}

/// Sends a message at once if the client can take all of it now; otherwise returns it, to be sent at the
/// client's pace. A message that is handed over leaves as soon as the connection takes it.
fn send_message(reply: &mut SendResponse<Bytes>, message: Bytes) -> Option<(SendStream<Bytes>, Bytes)> {
    // An error means that the client is gone, and no answer can reach it.
    let mut stream = reply.send_response(head(), false).ok()?;
    stream.reserve_capacity(message.len());
    if stream.capacity() < message.len() {
        return Some((stream, message));
    }
    let _ = stream.send_data(message, false).and_then(|()| stream.send_trailers(trailers(Ok(()))));
    None
}

/// Sends all pieces, one after another, at the client's pace.
async fn send_pieces<R: Replica>(
    mut sender: Sender,
    mut pieces: Box<Pieces<'_, R>>,
    lane: &Lane,
    charge: &Charge,
    deadline: Deadline,
) -> Code {
    let mut places = None;
    let outcome = in_time(deadline, async {
        let mut pace = Pace::new();
        // No piece is made before the client has room for it, nor for a client that left while it waited for its turn.
        pace.room(&mut sender, GATHERED_BYTES).await?;
        places = Some(pace.paused(sender.unless_gone(pieces.places(lane))).await?);
        while !pieces.are_sent() {
            let room = pace.room(&mut sender, GATHERED_BYTES).await?;
            let made = pace.paused(pieces.next(lane, room)).await?;
            // A single value may be larger than the place accounts for; the request is charged for the difference.
            let bytes: usize = made.iter().map(Bytes::len).sum();
            if !charge.grow(bytes.saturating_sub(GATHERED_BYTES) as u64) {
                return Err(too_many());
            }
            for piece in made {
                send_as_taken(&mut sender, piece, &mut pace).await?;
            }
            charge.shrink_to(REQUEST_BYTES);
        }
        Ok(())
    });
    let outcome = outcome.await;
    let code = end_once_left(sender, outcome).await;
    drop(places);
    code
}

/// Sends messages at the client's pace until there is a reason to end.
async fn send_feed<R: Replica>(
    mut sender: Sender,
    mut feed: Box<Feed>,
    (store, caller): (&Store<R>, &Caller),
    charge: &Charge,
    deadline: Deadline,
) -> Code {
    let outcome = in_time(deadline, async {
        let mut pace = Pace::new();
        if !charge.grow(HANDED_BYTES) {
            return Err(too_many());
        }
        loop {
            // Nothing is read for a client that has no room.
            pace.little_room(&mut sender, 1).await?;
            let users_change = feed.users_change();
            let mut message = pace.paused(sender.unless_gone(feed.next())).await??;
            if let Err(refused) = pace.paused(store.may_go_on(&mut feed, caller, users_change)).await {
                debug!(refused = refused.message(), "a subscription ends");
                return Err(judged_anew());
            }
            let len = message.len() as u64;
            if !charge.grow(len) {
                return Err(too_many());
            }
            while !message.is_empty() {
                let room = pace.little_room(&mut sender, message.len()).await?;
                sender.hand(message.split_to(room))?;
                pace.took(room);
            }
            charge.give_back(len);
        }
    });
    let outcome = outcome.await;
    end(&mut sender, outcome)
}

/// Sends one message at the client's pace.
async fn send_large(mut sender: Sender, message: Bytes, deadline: Deadline) -> Code {
    let outcome = in_time(deadline, send_as_taken(&mut sender, message, &mut Pace::new())).await;
    end_once_left(sender, outcome).await
}

/// Whether a client takes its answer fast enough.
pub(crate) struct Pace {
    /// When the client must have taken [`TAKE_BYTES_MIN`] bytes.
    until: Instant,
    /// How many of these bytes it has taken.
    bytes: usize,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { until: Instant::now() + TAKE_TIMEOUT, bytes: 0 }
    }

    /// Waits until the client has room for some of the next `bytes` bytes, as long as it keeps its pace.
    async fn room(&self, sender: &mut Sender, bytes: usize) -> Result<usize, Status> {
        self.kept(sender.room(bytes)).await
    }

    /// The same for what is handed over a little at a time.
    async fn little_room(&self, sender: &mut Sender, bytes: usize) -> Result<usize, Status> {
        self.kept(sender.little_room(bytes)).await
    }

    async fn kept<T>(&self, wait: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let done = time::timeout_at(self.until, wait).await;
        done.map_err(|_| Status::resource_exhausted(NOT_TAKEN))?
    }

    fn took(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TAKE_BYTES_MIN {
            *self = Pace::new();
        }
    }

    /// Sends bytes a little at a time, and waits until they have left.
    pub(crate) async fn send(&mut self, sender: &mut Sender, mut bytes: Bytes) -> Result<(), Status> {
        while !bytes.is_empty() {
            let room = self.little_room(sender, bytes.len()).await?;
            sender.hand(bytes.split_to(room))?;
            self.took(room);
        }
        self.kept(sender.until_left()).await
    }

    /// Waits for work that does not depend on the client, without counting that time against the client.
    pub(crate) async fn paused<T>(&mut self, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = work.await;
        self.until += began.elapsed();
        done
    }
}

async fn in_time<T>(
    mut deadline: Deadline,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Pending => deadline.poll(cx).map(Err),
        ready => ready,
    })
    .await
}

/// Ends a call. An error means that the client is gone, and no status can reach it.
fn end(sender: &mut Sender, outcome: Result<(), Status>) -> Code {
    let code = outcome.as_ref().map_or_else(Status::code, |()| Code::Ok);
    if code == Code::DeadlineExceeded {
        // A message may be cut off here. Clients take a status after that for a broken answer, but they know that a
        // call which is cancelled after their deadline has exceeded it.
        sender.cancel();
    } else {
        sender.end_with(trailers(outcome));
    }
    code
}

/// Ends a call whose answer is not little once its connection has taken it. If nothing of it leaves for a minute, or
/// the client has taken next to nothing for as long already, the rest is thrown away.
async fn end_once_left(mut sender: Sender, outcome: Result<(), Status>) -> Code {
    if outcome.as_ref().is_err_and(|status| status.message() == NOT_TAKEN) && sender.handed() > 0 {
        sender.cancel();
        return Code::ResourceExhausted;
    }
    let code = end(&mut sender, outcome);
    while code != Code::DeadlineExceeded && sender.handed() > 0 {
        match time::timeout(TAKE_TIMEOUT, sender.until_fewer()).await {
            Ok(Ok(())) => {}
            // The client is gone.
            Ok(Err(_)) => break,
            Err(_) => {
                sender.cancel();
                return Code::ResourceExhausted;
            }
        }
    }
    code
}

async fn send_as_taken(sender: &mut Sender, mut piece: Bytes, pace: &mut Pace) -> Result<(), Status> {
    while !piece.is_empty() {
        let room = pace.room(sender, piece.len()).await?;
        let part = piece.split_to(room.min(piece.len()));
        pace.took(part.len());
        sender.hand(part)?;
    }
    Ok(())
}

fn no_leader() -> Status {
    Status::unavailable("etcdserver: no leader")
}

pub(crate) fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

/// Checks a request's headers, and returns how long the client waits. What is wrong is refused in the order and with
/// the codes of gRPC's Go implementation, and mostly in its words, which clients of etcd know.
fn deadline(head: &Parts) -> Result<Deadline, Refusal> {
    if head.headers.get_all(header::HOST).iter().nth(1).is_some() {
        let status = Status::internal("there is more than one header Host; HTTP/2 allows one");
        return Err(Refusal::from(status).with(StatusCode::BAD_REQUEST));
    }
    let content_type = head.headers.get(header::CONTENT_TYPE);
    if !content_type.is_some_and(is_grpc) {
        let content_type = String::from_utf8_lossy(content_type.map_or(&b""[..], HeaderValue::as_bytes));
        let status = Status::invalid_argument(format!("invalid gRPC request content-type {content_type:?}"));
        return Err(Refusal::from(status).with(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let wait = match head.headers.get(GRPC_TIMEOUT).map(timeout) {
        Some(None) => {
            let status = Status::internal(
                "malformed grpc-timeout: give up to eight digits and one of H, M, S, m, u, n",
            );
            return Err(Refusal::from(status).with(StatusCode::BAD_REQUEST));
        }
        wait => wait.flatten(),
    };
    if head.method != http::Method::POST {
        let method = head.method.as_str();
        let text = format!("Received a HEADERS frame with :method {method:?} which should be POST");
        let mut refusal = Refusal::from(Status::internal(text));
        refusal.0.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Err(refusal.with(StatusCode::METHOD_NOT_ALLOWED));
    }
    if wait.is_some_and(|wait| wait.is_zero()) {
        // A command that is as good as given up is not ordered.
        return Err(Refusal::from(too_late()));
    }
    let encoding = head.headers.get(GRPC_ENCODING).filter(|encoding| !encoding.is_empty());
    if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity" && *encoding != GZIP) {
        let encoding = encoding.to_str().unwrap_or_default();
        let text = format!("grpc: Decompressor is not installed for grpc-encoding \"{encoding}\"");
        let mut refusal = Refusal::from(Status::unimplemented(text));
        refusal.0.headers_mut().insert(GRPC_ACCEPT_ENCODING, GZIP);
        return Err(refusal);
    }
    Ok(wait.map_or(Deadline::NONE, Deadline::after))
}

/// Accepts `application/grpc`, whatever follows its `+` or `;`. As with etcd, messages are protobuf in any case.
pub(crate) fn is_grpc(content_type: &HeaderValue) -> bool {
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The time-out in a `grpc-timeout` header, or `None` if it is not valid.
pub(crate) fn timeout(header: &HeaderValue) -> Option<Duration> {
    let (unit, count) = header.as_bytes().split_last()?;
    if !(1..=8).contains(&count.len()) || !count.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(count).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// When the client stops waiting, if its request says so.
#[derive(Debug)]
struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    const NONE: Deadline = Deadline(None);

    fn after(timeout: Duration) -> Deadline {
        Deadline(Some(Box::pin(sleep(timeout))))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| too_late()),
            None => Poll::Pending,
        }
    }
}

/// The text is that of gRPC's Go implementation, which clients of etcd know.
fn too_late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// An answer that consists of a status. The status is put among the headers, so that the answer is one frame.
struct Refusal(Box<Response<()>>);

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        let mut head = head();
        add_status(&status, head.headers_mut());
        Refusal(Box::new(head))
    }
}

impl Refusal {
    /// Sets the HTTP status, for a client that does not speak gRPC.
    fn with(mut self, status: StatusCode) -> Refusal {
        *self.0.status_mut() = status;
        self
    }

    fn send(self, reply: &mut SendResponse<Bytes>) {
        // An error means that the client is gone, and no answer can reach it.
        let _ = reply.send_response(*self.0, true);
    }
}

fn add_status(status: &Status, headers: &mut HeaderMap) {
    // This fails only for invalid metadata or details, which are not used here; the message is escaped.
    let _ = status.add_header(headers);
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// How an answer of a megabyte ends if the client takes it at this pace, and how much of it arrived.
    async fn taken(bytes: usize, every: Duration) -> (Code, usize) {
        let (client, server) = duplex(1 << 20);
        let server = tokio::spawn(async move {
            let mut connection = h2::server::handshake(server).await.unwrap();
            let (_request, mut reply) = connection.accept().await.unwrap().unwrap();
            let stream = reply.send_response(head(), false).unwrap();
            let connection = tokio::spawn(async move { poll_fn(|cx| connection.poll_closed(cx)).await });
            let code = send_large(Sender::new(stream), vec![7; 1 << 20].into(), Deadline::NONE).await;
            let _ = connection.await;
            code
        });
        let window = u32::try_from(bytes).unwrap();
        let mut builder = h2::client::Builder::new();
        let (mut send, connection) =
            builder.initial_window_size(window).handshake::<_, Bytes>(client).await.unwrap();
        let connection = tokio::spawn(connection);
        let (response, _) = send.send_request(Request::post("http://x/").body(()).unwrap(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut came = 0;
        while let Some(Ok(part)) = body.data().await {
            sleep(every).await;
            came += part.len();
            let _ = body.flow_control().release_capacity(part.len());
        }
        drop((send, body));
        let _ = connection.await;
        (server.await.unwrap(), came)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_sent_as_slowly_as_it_is_taken_within_reason() {
        let window = (1 << 16) - 1;
        assert_eq!(taken(window, Duration::from_secs(50)).await, (Code::Ok, 1 << 20));
        assert_eq!(taken(2 << 10, Duration::from_secs(5)).await, (Code::Ok, 1 << 20));
        assert_eq!(taken(window, Duration::from_secs(70)).await, (Code::ResourceExhausted, window));
        // A client that takes a little from time to time could otherwise keep its place, and the source of
        // the answer, for days.
        let (code, came) = taken(100, Duration::from_secs(50)).await;
        assert_eq!(code, Code::ResourceExhausted);
        assert!(came < 1 << 10, "{came}");
    }

    /// Whether what it handed over has left is known of each call by itself.
    #[tokio::test]
    async fn a_large_answer_holds_up_no_call_that_lasts() {
        const LARGE: usize = 8 << 20;
        let (client, server) = duplex(4 << 10);
        let answering = tokio::spawn(async move {
            let mut connection = h2::server::handshake(server).await.unwrap();
            let mut senders = Vec::new();
            while senders.len() < 2 {
                let (_request, mut reply) = connection.accept().await.unwrap().unwrap();
                senders.push(Sender::new(reply.send_response(head(), false).unwrap()));
            }
            tokio::spawn(async move { poll_fn(|cx| connection.poll_closed(cx)).await });
            let (mut lasting, large) = (senders.pop().unwrap(), senders.pop().unwrap());
            let large = tokio::spawn(send_large(large, vec![7; LARGE].into(), Deadline::NONE));
            lasting.send(vec![8; 256 << 10].into()).await.unwrap();
            lasting.until_left().await.unwrap();
            assert!(!large.is_finished(), "it had its turns meanwhile");
            assert_eq!(large.await.unwrap(), Code::Ok);
        });
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 30).initial_connection_window_size(1 << 30);
        let (mut send, connection) = builder.handshake::<_, Bytes>(client).await.unwrap();
        tokio::spawn(connection);
        let mut ask = || send.send_request(Request::post("http://x/").body(()).unwrap(), true).unwrap().0;
        let (large, lasting) = (ask(), ask());
        let mut body = large.await.unwrap().into_body();
        let _lasting = lasting.await.unwrap();
        let mut came = 0;
        while let Some(Ok(part)) = body.data().await {
            came += part.len();
        }
        assert_eq!(came, LARGE);
        answering.await.unwrap();
    }

    #[test]
    fn timeouts_have_units() {
        let timeout = |text: &'static str| timeout(&HeaderValue::from_static(text));
        assert_eq!(timeout("100m"), Some(Duration::from_millis(100)));
        assert_eq!(timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(timeout("3M"), Some(Duration::from_secs(180)));
        assert_eq!(timeout("7u"), Some(Duration::from_micros(7)));
        assert_eq!(timeout("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for wrong in ["", "S", "5", "5s", "-1S", "123456789S", "1 S"] {
            assert_eq!(timeout(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn content_types_of_grpc_are_known() {
        let is_grpc = |text: &'static str| is_grpc(&HeaderValue::from_static(text));
        let bare = ["application/grpc", "application/grpc+", "application/grpc;"];
        let with_more = ["application/grpc+proto", "application/grpc+json", "application/grpc;charset=utf-8"];
        for right in bare.into_iter().chain(with_more) {
            assert!(is_grpc(right), "{right}");
        }
        for wrong in ["", "application/json", "application/grpc-web", "application/grpc proto"] {
            assert!(!is_grpc(wrong), "{wrong}");
        }
    }
}
