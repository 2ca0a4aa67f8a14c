//! A client's stream of watches: reads its requests for the hub, and sends what the hub has for it at the client's
//! pace.

use std::{
    collections::HashMap,
    future::{pending, poll_fn},
    mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::{BufMut, Bytes, BytesMut};
use prost::{Message as _, encoding::encode_varint};
use synod_api::etcdserverpb::{ResponseHeader, WatchRequest, WatchResponse, watch_request::RequestUnion};
use synod_grpc::{Charge, Incoming, NOT_TAKEN, Sender, TAKE_BYTES_MIN, TAKE_TIMEOUT, begun};
use synod_kv::watch::{
    Create, Item, NO_WATCH, Outgoing, Request, STREAM_BYTES_MAX, STREAM_BYTES_MIN, Told, Wants,
};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

use super::{Opened, Watches};
use crate::{
    Consistency, Replica,
    auth::{Caller, Judgement, judged_anew, until_marked},
    call::{self, too_many},
    fields::ClientMessages,
    methods::Handler,
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
    body: &mut Incoming,
    sender: &mut Sender,
    caller: &Caller,
) -> Result<(), Status> {
    charge.afford(STREAM_BYTES_MIN as u64)?;
    let opened = watches.open();
    let judgement = store.judgement();
    let (progress, frames) = Default::default();
    let taken = AtomicU64::new(0);
    let judgement = judgement.as_ref();
    let sending =
        Sending { store, charge, opened: &opened, sender, taken: &taken, judgement, progress, frames };
    let messages = ClientMessages::new(body, store.bounds().of(Handler::Watch.method()), charge);
    tokio::select! {
        outcome = sending.run() => outcome,
        failed = read(messages, &opened, charge, store, (caller, judgement)) => Err(failed),
        slow = until_slow(&opened.out, &taken) => Err(slow),
    }
}

/// Waits until a client has taken next to nothing for a minute of a large revision, for whose place others may wait. It
/// must take as much as of any answer, and one part in 32, or in 8 if others do wait. A client that takes nothing of
/// less may take its time.
pub(crate) async fn until_slow(out: &Outgoing, taken: &AtomicU64) -> Status {
    let mut before = None;
    loop {
        sleep(TAKE_TIMEOUT).await;
        let (large, now, waited_for) = (out.large(), taken.load(Relaxed), out.is_waited_for());
        if let (Some((number, bytes)), Some(((same, _), then, were_waiting))) = (large, before)
            && number == same
            && now - then < TAKE_BYTES_MIN.max(bytes / if waited_for && were_waiting { 8 } else { 32 }) as u64
        {
            return Status::resource_exhausted(NOT_TAKEN);
        }
        before = large.map(|large| (large, now, waited_for));
    }
}

/// Reads requests; returns why there can be no more. A client that sends no more may still watch.
async fn read<R: Replica>(
    mut messages: ClientMessages<'_>,
    opened: &Opened,
    charge: &Charge,
    store: &Store<R>,
    (caller, judgement): (&Caller, Option<&Judgement>),
) -> Status {
    let mut is_settled = false;
    loop {
        if let Err(failed) = messages.meanwhile(poll_fn(|cx| opened.out.poll_few(cx))).await {
            return failed;
        }
        let request: WatchRequest = match messages.next().await {
            Ok(Some(request)) => request,
            Ok(None) => return pending().await,
            Err(failed) => return failed,
        };
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => {
                let create = Create::of(&request);
                let cost = create.cost();
                // What the client asked is held beside what becomes of it until it is judged.
                if !charge.grow(2 * cost) {
                    opened.ask(Request::Refuse(too_many().message().to_owned()));
                    continue;
                }
                // A watch from now on begins with what a read of this replica's state shows, also after a restart.
                if request.start_revision <= 0 && !mem::replace(&mut is_settled, true) {
                    // Whatever the answer is, the replica has waited for it.
                    let settled = messages.meanwhile(store.status(Consistency::Serializable)).await;
                    if let Err(failed) = settled {
                        return failed;
                    }
                }
                // If it is refused, it may be tried again on the same stream, as with etcd.
                let judged = match messages.meanwhile(store.may_watch(caller, &request, judgement)).await {
                    Ok(judged) => judged,
                    Err(failed) => return failed,
                };
                charge.give_back(if judged.is_ok() { cost } else { 2 * cost });
                opened.ask(match judged {
                    Ok(()) => Request::Create(Box::new(create)),
                    Err(refused) => Request::Refuse(in_go(&refused)),
                });
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
    sender: &'a mut Sender,
    /// Bytes that the client has taken.
    taken: &'a AtomicU64,
    /// What permitted the watches.
    judgement: Option<&'a Judgement>,
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
            self.sender.little_room(1).await?;
            let item = tokio::select! {
                item = poll_fn(|cx| self.opened.out.poll_next(cx)) => item,
                () = until_marked(self.judgement) => return Err(judged_anew()),
                gone = self.sender.reset() => return Err(gone),
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
            self.opened.out.sent();
        }
    }

    /// Asks how far the watches are that want to know it and had no events, unless much else is asked already.
    fn ask_for_progress(&mut self) {
        if !self.opened.out.has_few() {
            return;
        }
        for (id, quiet) in &mut self.progress {
            if mem::replace(quiet, true) {
                self.opened.ask(Request::Progress(Some(*id)));
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Status> {
        // Nothing of the buffer stays: the stream may be idle from now on.
        let frames = mem::take(&mut self.frames);
        self.sender.send_counted(frames.freeze(), self.taken).await
    }

    fn header(&self, revision: i64) -> Option<ResponseHeader> {
        self.store.header(Some(ResponseHeader { revision, ..ResponseHeader::default() }))
    }

    /// Puts an item as one message or several.
    async fn put(&mut self, item: Item) -> Result<(), Status> {
        // A call that was marked in a slot is told nothing of later ones.
        if self.judgement.is_some_and(Judgement::is_marked) {
            return Err(judged_anew());
        }
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
        // The encodings of what is large would be copies, which a client could have the server keep.
        let is_large = events.iter().map(|told| told.bytes()).sum::<usize>() > STREAM_BYTES_MAX;
        let encoded = |told: &'_ Told| (!is_large).then(|| told.encoded(wants.prev_kv).clone());
        let encoded_len = |told: &Told| {
            if is_large { told.encoded_len(wants.prev_kv) } else { told.encoded(wants.prev_kv).len() }
        };
        let len_of = |told: &Told| {
            let len = encoded_len(told);
            1 + prost::length_delimiter_len(len) + len
        };
        let fragment_bytes_max = if wants.fragments { self.store.message_bytes_max() } else { usize::MAX };
        let mut rest: usize = events.iter().map(|told| len_of(told)).sum();
        while !events.is_empty() {
            head.fragment = false;
            let mut len = head.encoded_len();
            let all = len + rest;
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
            rest -= now.iter().map(|told| len_of(told)).sum::<usize>();
            for told in now {
                self.frames.put_u8(EVENTS_TAG);
                encode_varint(encoded_len(told) as u64, &mut self.frames);
                match encoded(told) {
                    Some(event) => self.put_bytes(&event).await?,
                    None => {
                        for part in told.event().parts(wants.prev_kv) {
                            self.put_bytes(&part).await?;
                        }
                    }
                }
            }
            events = later;
        }
        Ok(())
    }

    /// Puts bytes into the frames, or sends them if they have no place there.
    async fn put_bytes(&mut self, bytes: &Bytes) -> Result<(), Status> {
        if self.frames.len() + bytes.len() <= GATHERED_BYTES {
            self.frames.put_slice(bytes);
            return Ok(());
        }
        self.flush().await?;
        self.sender.send_counted(bytes.clone(), self.taken).await
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_loses_its_stream_if_it_takes_next_to_nothing_of_a_large_revision() {
        const LARGE: usize = 1 << 20;
        let (hub, _received) = mpsc::channel();
        let out = Outgoing::new(1, Arc::default(), hub);
        let taken = AtomicU64::new(0);
        let push = || {
            let item = Item::Events { id: 0, revision: 1, wants: Wants::default(), events: Vec::new() };
            out.push_large(item, LARGE);
        };
        let minutes = |count: u64| Duration::from_secs(60 * count + 1);
        assert!(timeout(minutes(10), until_slow(&out, &taken)).await.is_err(), "nothing large waits");
        push();
        assert!(timeout(minutes(1), until_slow(&out, &taken)).await.is_err());
        let slow = timeout(minutes(2), until_slow(&out, &taken)).await.expect("it takes nothing");
        assert_eq!(slow.message(), NOT_TAKEN);
        let reading = async {
            for second in 1_u64.. {
                sleep(Duration::from_secs(1)).await;
                taken.fetch_add(LARGE as u64 / 32 / 59, Relaxed);
                if second % 50 == 0 {
                    // Each revision is another one.
                    out.next().unwrap();
                    out.sent();
                    push();
                }
            }
        };
        tokio::select! {
            ended = timeout(minutes(30), until_slow(&out, &taken)) => assert!(ended.is_err(), "{ended:?}"),
            () = reading => unreachable!("it goes on"),
        }
    }
}
