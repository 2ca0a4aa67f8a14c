//! One request, from its headers to the status of its answer.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use futures_util::future::Either;
use h2::{RecvStream, server::SendResponse};
use http::{Request, uri::PathAndQuery};
use synod_grpc::{
    Charge, Deadline, GATHERED_BYTES, HANDED_BYTES, Handler as Answers, Incoming, Pace, Presence,
    REQUEST_BYTES, Refusal, Remote, Sender, Share, Terms, end, end_once_left, head, send_large, send_message,
    until_ended,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::Instant,
};
use tonic::{Code, Status};
use tracing::{debug, trace};

use crate::{
    Replica,
    auth::{Caller, judged_anew},
    feeds::Feed,
    fields::RequestBody,
    methods::{Handler, Method},
    readers::Lane,
    requests::RequestMetrics,
    services::{Answer, Pieces, Store},
    slow::Answered,
    watch::serve,
    web::Web,
};

/// etcd's header for calls that are to be refused, and streams that are to end, when there is no leader.
const NEEDS_LEADER: &str = "hasleader";
/// What a client is told for which there is no memory or no place, in etcd's words. It may ask again.
pub(crate) const TOO_MANY: &str = "etcdserver: too many requests";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where a connection comes from, and the common name of the certificate that its client has shown.
pub(crate) type Client = (Remote, Option<Arc<str>>);

/// Serves a connection of HTTP/2 until it ends; without `web` only calls of gRPC. A certificate that the client has
/// shown was verified.
///
/// # Errors
/// As those of [`synod_grpc::serve`].
pub(crate) async fn serve_http2<R: Replica>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    (remote, common_name): Client,
    store: &Store<R>,
    web: Option<&Web<R>>,
    terms: Terms,
    stop: Pin<&mut impl Future<Output = ()>>,
    place: Presence,
) -> Result<(), Failure> {
    let lane = store.lane(remote).of(place.mark());
    let connection = Connection { store, web, lane, common_name };
    synod_grpc::serve(stream, &connection, store.share(), terms, stop, place).await
}

/// What answers the requests of one connection.
struct Connection<'c, R> {
    store: &'c Store<R>,
    web: Option<&'c Web<R>>,
    lane: Lane,
    common_name: Option<Arc<str>>,
}

impl<R: Replica> Answers for Connection<'_, R> {
    fn answer<'a>(
        &'a self,
        request: Request<RecvStream>,
        reply: SendResponse<Bytes>,
        share: &'a Share,
        ending: &'a watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()>> {
        if let Some(web) = self.web.filter(|web| web.takes(&request)) {
            return Some(Either::Right(Box::pin(web.answer_http2(request, reply))));
        }
        let call = Call::new(request, reply, share, self.common_name.as_ref())?;
        Some(Either::Left(call.answer(self.store, &self.lane, ending)))
    }
}

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
        let charge = || share.charge(REQUEST_BYTES + caller.bytes()).map_err(Refusal::from);
        match Deadline::of(&head).and_then(|deadline| Ok((deadline, charge()?))) {
            Ok((deadline, charge)) => {
                let needs_leader = head.headers.get(NEEDS_LEADER).is_some_and(|value| value == "true");
                let body = Incoming::new(&head, body);
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
            let body = RequestBody::new(&mut body, store.bounds().of(method), &charge).marking(mark);
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
                until_ended(body.into_rest(), ending).await;
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
        until_ended(self.body.into_rest(), ending).await;
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
        let served = charge.afford(HANDED_BYTES).and_then(|()| match method.handler {
            _ if needs_leader && !store.knows_leader() => Err(no_leader()),
            Handler::Watch | Handler::Observe => store.watches().map(drop),
            Handler::LeaseKeepAlive => store.check_single(),
            _ => Ok(()),
        });
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
                            let body = RequestBody::new(&mut body, store.bounds().of(method), &charge);
                            store.observe(body, &mut sender, lane, &charge, &caller).await
                        }
                        Handler::WatchHealth => {
                            let body = RequestBody::new(&mut body, store.bounds().of(method), &charge);
                            store.watch_health(body, &mut sender).await
                        }
                        _ => store.reflect(method, &mut body, &mut sender, &charge).await,
                    }
                };
                let leaderless =
                    async { if needs_leader { store.until_leaderless().await } else { pending().await } };
                let outcome = deadline.bounds(async {
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
        until_ended(body.into_rest(), &ending).await;
    }
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

/// Sends all pieces, one after another, at the client's pace.
async fn send_pieces<R: Replica>(
    mut sender: Sender,
    mut pieces: Box<Pieces<'_, R>>,
    lane: &Lane,
    charge: &Charge,
    deadline: Deadline,
) -> Code {
    let mut places = None;
    let outcome = deadline.bounds(async {
        let mut pace = Pace::begin();
        // No piece is made before the client has room for it, nor for a client that left while it waited for its turn.
        pace.room(&mut sender, GATHERED_BYTES).await?;
        places = Some(pace.paused(sender.unless_gone(pieces.places(lane))).await?);
        while !pieces.are_sent() {
            let room = pace.room(&mut sender, GATHERED_BYTES).await?;
            let made = pace.paused(pieces.next(lane, room)).await?;
            // A single value may be larger than the place accounts for; the request is charged for the difference.
            let bytes: usize = made.iter().map(Bytes::len).sum();
            charge.afford(bytes.saturating_sub(GATHERED_BYTES) as u64)?;
            for piece in made {
                pace.send_as_taken(&mut sender, piece).await?;
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
    let outcome = deadline.bounds(async {
        let mut pace = Pace::begin();
        charge.afford(HANDED_BYTES)?;
        loop {
            // Nothing is read for a client that has no room.
            pace.little_room(&mut sender, 1).await?;
            let users_change = feed.users_change();
            let message = pace.paused(sender.unless_gone(feed.next())).await??;
            if let Err(refused) = pace.paused(store.may_go_on(&mut feed, caller, users_change)).await {
                debug!(refused = refused.message(), "a subscription ends");
                return Err(judged_anew());
            }
            let len = message.len() as u64;
            charge.afford(len)?;
            pace.send_little(&mut sender, message).await?;
            charge.give_back(len);
        }
    });
    let outcome = outcome.await;
    end(&mut sender, outcome)
}

fn no_leader() -> Status {
    Status::unavailable("etcdserver: no leader")
}

pub(crate) fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

pub(crate) fn too_many() -> Status {
    Status::resource_exhausted(TOO_MANY)
}
