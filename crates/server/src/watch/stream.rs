//! A client's stream of watches: reads its requests for the hub, and sends what the hub has for it at the client's
//! pace.

use std::{
    collections::HashMap,
    future::{pending, poll_fn},
    pin::pin,
    sync::Arc,
};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use prost::{Message as _, encoding::encode_varint};
use synod_api::etcdserverpb::{ResponseHeader, WatchRequest, WatchResponse, watch_request::RequestUnion};
use synod_kv::watch::{Create, Item, NO_WATCH, Request, Told, Wants};
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::{Opened, Watches};
use crate::{
    Replica,
    admission::Charge,
    auth::Caller,
    call,
    message::{ClientMessages, begun, too_many},
    services::Store,
};

/// Bytes that are gathered before they are sent.
const GATHERED_BYTES: usize = 64 << 10;
/// The largest message that gRPC's Go implementation takes, and so what clients of etcd know.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;
/// The field of a response that holds an event, with its wire type.
const EVENTS_TAG: u8 = 11 << 3 | 2;

/// Serves a stream until its client leaves.
pub(crate) async fn serve<R: Replica>(
    watches: &Watches,
    store: &Store<R>,
    charge: &Charge,
    body: RecvStream,
    stream: &mut SendStream<Bytes>,
    caller: &Caller,
) -> Result<(), Status> {
    let opened = watches.open();
    let (progress, frames) = Default::default();
    let sending = Sending { store, charge, opened: &opened, stream, progress, frames };
    let messages = ClientMessages::new(body, store.message_bytes_max(), charge);
    tokio::select! {
        outcome = sending.run() => outcome,
        failed = read(messages, &opened, charge, store, caller) => Err(failed),
    }
}

/// Reads requests; returns why there can be no more. A client that sends no more may still watch.
async fn read<R: Replica>(
    mut messages: ClientMessages<'_>,
    opened: &Opened,
    charge: &Charge,
    store: &Store<R>,
    caller: &Caller,
) -> Status {
    loop {
        poll_fn(|cx| opened.out.poll_few(cx)).await;
        let request: WatchRequest = match messages.next().await {
            Ok(Some(request)) => request,
            Ok(None) => return pending().await,
            Err(failed) => return failed,
        };
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => {
                let create = Create::of(&request);
                if let Err(refused) = store.may_watch(caller, &request).await {
                    // It may be tried again on the same stream, as with etcd.
                    opened.ask(Request::Refuse(in_go(&refused)));
                } else if charge.grow(create.cost()) {
                    opened.ask(Request::Create(Box::new(create)));
                } else {
                    opened.ask(Request::Refuse(too_many().message().to_owned()));
                }
            }
            Some(RequestUnion::CancelRequest(request)) => opened.ask(Request::Cancel(request.watch_id)),
            Some(RequestUnion::ProgressRequest(_)) => opened.ask(Request::Progress(None)),
            // A later version of etcd may know other requests.
            None => {}
        }
    }
}

/// A status as gRPC's Go implementation writes it, since etcd's clients compare it.
fn in_go(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

/// The direction to the client.
struct Sending<'a, R> {
    store: &'a Store<R>,
    charge: &'a Charge,
    opened: &'a Opened,
    stream: &'a mut SendStream<Bytes>,
    /// The watches that want to know from time to time how far they are, and whether they had no events lately.
    progress: HashMap<i64, bool>,
    /// What is to be sent next.
    frames: BytesMut,
}

impl<R: Replica> Sending<'_, R> {
    async fn run(mut self) -> Result<(), Status> {
        let interval = self.store.watch_progress_interval();
        // Streams that began together, as when a server restarts, do not ask together.
        let jitter = (self.opened.number % 64) as u32;
        let next_tick = || Instant::now() + interval + interval / 10 * jitter / 64;
        let mut tick = pin!(sleep_until(next_tick()));
        loop {
            // Nothing is taken for a client that has no room: it waits where it is counted.
            call::room_patiently(self.stream, 1).await?;
            let item = tokio::select! {
                item = poll_fn(|cx| self.opened.out.poll_next(cx)) => item,
                _ = poll_fn(|cx| self.stream.poll_reset(cx)) => return Err(call::gone("it has given the request up")),
                () = tick.as_mut() => {
                    tick.as_mut().reset(next_tick());
                    self.ask_for_progress();
                    continue;
                }
            };
            self.put(item.ok_or_else(call::stopped)?).await?;
            while self.frames.len() < GATHERED_BYTES
                && let Some(item) = self.opened.out.next()
            {
                self.put(item).await?;
            }
            self.flush().await?;
        }
    }

    /// Asks how far the watches are that want to know it and had no events, unless much else is asked already.
    fn ask_for_progress(&mut self) {
        if !self.opened.out.has_few() {
            return;
        }
        for (id, quiet) in &mut self.progress {
            if std::mem::replace(quiet, true) {
                self.opened.ask(Request::Progress(Some(*id)));
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Status> {
        call::send_patiently(self.stream, self.frames.split().freeze()).await
    }

    fn header(&self, revision: i64) -> Option<ResponseHeader> {
        self.store.header(Some(ResponseHeader { revision, ..ResponseHeader::default() }))
    }

    /// Puts an item as one message or several.
    async fn put(&mut self, item: Item) -> Result<(), Status> {
        let message = match item {
            Item::Events { id, revision, wants, events } => {
                if let Some(quiet) = self.progress.get_mut(&id) {
                    *quiet = false;
                }
                return self.put_events(id, revision, wants, &events).await;
            }
            Item::Created { id, revision, progress } => {
                if progress {
                    self.progress.insert(id, true);
                }
                let header = self.header(revision);
                WatchResponse { header, watch_id: id, created: true, ..WatchResponse::default() }
            }
            Item::Refused { revision, free, reason } => {
                self.charge.give_back(free);
                WatchResponse {
                    header: self.header(revision),
                    watch_id: NO_WATCH,
                    created: true,
                    canceled: true,
                    cancel_reason: reason,
                    ..WatchResponse::default()
                }
            }
            Item::Progress { id, revision } => {
                WatchResponse { header: self.header(revision), watch_id: id, ..WatchResponse::default() }
            }
            Item::Canceled { id, revision, free } => {
                self.progress.remove(&id);
                self.charge.give_back(free);
                let header = self.header(revision);
                WatchResponse { header, watch_id: id, canceled: true, ..WatchResponse::default() }
            }
            Item::Compacted { id, compact_revision, free } => {
                self.progress.remove(&id);
                self.charge.give_back(free);
                WatchResponse {
                    // As etcd, which does not know the revision here.
                    header: self.header(0),
                    watch_id: id,
                    canceled: true,
                    compact_revision,
                    ..WatchResponse::default()
                }
            }
        };
        self.frames.put(begun(&message, message.encoded_len() as u64));
        Ok(())
    }

    /// Puts events as one message, unless it would be large and the watch wants such a message in fragments. What has
    /// no place in the frames is sent: a large message is never copied as a whole, since other streams send it too.
    async fn put_events(
        &mut self,
        id: i64,
        revision: i64,
        wants: Wants,
        mut events: &[Arc<Told>],
    ) -> Result<(), Status> {
        let mut head =
            WatchResponse { header: self.header(revision), watch_id: id, ..WatchResponse::default() };
        let len_of = |told: &Told| {
            let len = told.encoded(wants.prev_kv).len();
            1 + prost::length_delimiter_len(len) + len
        };
        let fragment_bytes_max = if wants.fragments { self.store.message_bytes_max() } else { usize::MAX };
        while !events.is_empty() {
            head.fragment = false;
            let mut len = head.encoded_len();
            let all = len + events.iter().map(|told| len_of(told)).sum::<usize>();
            let mut count = events.len();
            if all >= fragment_bytes_max {
                head.fragment = true;
                len = head.encoded_len();
                count = 0;
                for told in events {
                    if count > 0 && len + len_of(told) >= fragment_bytes_max {
                        break;
                    }
                    len += len_of(told);
                    count += 1;
                }
                if count == events.len() {
                    head.fragment = false;
                    len -= 2;
                }
            } else {
                len = all;
            }
            if len > MESSAGE_BYTES_MAX {
                let text = format!("trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
                return Err(Status::resource_exhausted(text));
            }
            self.frames.put(begun(&head, len as u64));
            let (now, later) = events.split_at(count);
            for told in now {
                let event = told.encoded(wants.prev_kv);
                self.frames.put_u8(EVENTS_TAG);
                encode_varint(event.len() as u64, &mut self.frames);
                if self.frames.len() + event.len() <= GATHERED_BYTES {
                    self.frames.put_slice(event);
                } else {
                    self.flush().await?;
                    call::send_patiently(self.stream, event.clone()).await?;
                }
            }
            events = later;
        }
        Ok(())
    }
}
