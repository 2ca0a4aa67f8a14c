//! A stream of watches between commands, and what its client must be told.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, header::CONTENT_TYPE};
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        CompactionRequest, DeleteRangeRequest, PutRequest, WatchCancelRequest, WatchCreateRequest,
        WatchProgressRequest, WatchRequest, WatchResponse, watch_create_request::FilterType,
        watch_request::RequestUnion,
    },
    mvccpb::event::EventType,
    synod::v1::{KvCommand, KvReply, kv_command::Command, kv_reply::Reply},
};
use synod_grpc::framed;
use synod_wire::SessionId;
use tokio::{
    io::duplex,
    time::{sleep, timeout},
};

use super::{END_MAX, HUB_INTERVAL, InPlace, PIPE_BYTES, QUIET_MAX, in_a_runtime, serve, store};
use crate::{Replica as _, services::Store};

/// What happens next.
#[derive(Clone, Debug)]
pub enum Step {
    /// The client begins a watch.
    Create(WatchCreateRequest),
    /// The client ends the watch with this id.
    Cancel(i64),
    /// The client asks how far its watches are.
    Progress,
    /// The client sends these bytes as a message.
    Bytes(Vec<u8>),
    /// Somebody puts a key.
    Put(Vec<u8>, Vec<u8>),
    /// Somebody deletes a key, or a range.
    Delete(Vec<u8>, Vec<u8>),
    /// Somebody compacts the store at this revision.
    Compact(i64),
}

/// What the client was told, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Watches that were begun.
    pub created: usize,
    /// Watches that were refused.
    pub refused: usize,
    /// Watches that ended because their client said so.
    pub canceled: usize,
    /// Watches that ended because what they ask for is compacted.
    pub compacted: usize,
    /// Notes of progress.
    pub progress: usize,
    /// Events.
    pub events: usize,
    /// The stream ended before its client did.
    pub ended: bool,
}

/// A change of a key: revision, key, and whether it was deleted.
type Change = (i64, Bytes, bool);

/// Has these steps happen on one stream of watches, and checks all that its client is told against a model: each watch
/// that is asked for is answered once, in order; it is told exactly what changes in its range from its first revision
/// on, in order, unless it ends.
///
/// # Panics
/// The client is told something else.
#[must_use]
pub fn watch(steps: &[Step]) -> Seen {
    in_a_runtime(async {
        let (client, server) = duplex(PIPE_BYTES);
        let store = store();
        let served = tokio::spawn(serve(server, Arc::clone(&store)));
        let seen = run(client, &store, steps).await;
        let served = timeout(END_MAX, served).await.expect("a connection ends when its client is gone");
        // How it ends does not matter, unless it panicked.
        let _ = served.expect("a connection does not panic");
        seen
    })
}

async fn run(client: tokio::io::DuplexStream, store: &Store<InPlace>, steps: &[Step]) -> Seen {
    let request = Request::post("http://synod/etcdserverpb.Watch/Watch")
        .header(CONTENT_TYPE, "application/grpc")
        .body(())
        .expect("it is valid");
    let (send, connection) = h2::client::handshake(client).await.expect("the server speaks HTTP/2");
    tokio::spawn(connection);
    let mut send = send.ready().await.expect("the server takes a request");
    let (response, mut stream) = send.send_request(request, false).expect("the server takes a request");
    let told = Arc::new(Mutex::new(Told::default()));
    let reader = tokio::spawn(read(response, Arc::clone(&told)));
    let mut model = Model::default();
    for step in steps {
        let asked = match step {
            Step::Create(create) => Some(RequestUnion::CreateRequest(create.clone())),
            Step::Cancel(watch_id) => {
                Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: *watch_id }))
            }
            Step::Progress => Some(RequestUnion::ProgressRequest(WatchProgressRequest {})),
            _ => None,
        };
        // A stream that has ended takes nothing, and the model is told so.
        match step {
            Step::Bytes(bytes) => {
                let prefix = u32::try_from(bytes.len()).expect("it is small").to_be_bytes();
                let _ = stream.send_data([&[0], &prefix[..], bytes].concat().into(), false);
                model.is_lost = true;
            }
            _ if asked.is_some() => {
                let _ = stream.send_data(framed(&WatchRequest { request_union: asked }), false);
            }
            _ => model.execute(store, step).await,
        }
        if let Step::Create(create) = step {
            model.asked.push((create.clone(), model.revision));
        }
        sleep(4 * HUB_INTERVAL).await;
        model.take(&told);
    }
    sleep(QUIET_MAX).await;
    model.take(&told);
    let ended = told.lock().unwrap_or_else(PoisonError::into_inner).ended;
    model.finish(ended);
    reader.abort();
    model.seen
}

/// What has come and is not looked at.
#[derive(Default)]
struct Told {
    responses: Vec<WatchResponse>,
    ended: bool,
}

async fn read(response: h2::client::ResponseFuture, told: Arc<Mutex<Told>>) {
    if let Ok(response) = response.await {
        let (mut body, mut bytes) = (response.into_body(), BytesMut::new());
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
            bytes.extend_from_slice(&piece);
            while bytes.len() >= 5 {
                let len = u32::from_be_bytes(bytes[1..5].try_into().expect("4 bytes")) as usize;
                if bytes.len() < 5 + len {
                    break;
                }
                bytes.advance(5);
                let response = WatchResponse::decode(bytes.split_to(len).freeze());
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.responses.push(response.expect("a server sends what can be read"));
            }
        }
    }
    told.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
}

/// A watch that is open, and what it is still to be told.
struct Open {
    request: WatchCreateRequest,
    /// The next revision of which it is told.
    next: i64,
    /// It has been told of this many changes of that revision.
    sub: usize,
}

impl Open {
    fn wants(&self, (_, key, deleted): &Change) -> bool {
        let filter = if *deleted { FilterType::Nodelete } else { FilterType::Noput };
        let WatchCreateRequest { key: from, range_end, filters, .. } = &self.request;
        let in_range = match &range_end[..] {
            [] => key == from,
            [0] => key >= from,
            end => key >= from && &key[..] < end,
        };
        in_range && !filters.contains(&filter.into())
    }

    /// What it is to be told, of these changes.
    fn due<'a>(&'a self, changes: &'a [Change]) -> impl Iterator<Item = &'a Change> {
        changes.iter().filter(|change| change.0 >= self.next && self.wants(change)).skip(self.sub)
    }
}

struct Model {
    revision: i64,
    compacted: i64,
    keys: BTreeSet<Bytes>,
    changes: Vec<Change>,
    /// The watches that were asked for and are not answered, each with the revision at which it was.
    asked: Vec<(WatchCreateRequest, i64)>,
    open: BTreeMap<i64, Open>,
    /// The client sent what the model does not know.
    is_lost: bool,
    seen: Seen,
}

impl Default for Model {
    fn default() -> Model {
        let (keys, changes, asked, open, seen) = Default::default();
        Model { revision: 1, compacted: -1, keys, changes, asked, open, is_lost: false, seen }
    }
}

impl Model {
    async fn execute(&mut self, store: &Store<InPlace>, step: &Step) {
        let command = match step {
            Step::Put(key, value) => {
                let (key, value) = (key.clone().into(), value.clone().into());
                Command::Put(PutRequest { key, value, ..PutRequest::default() })
            }
            Step::Delete(key, end) => {
                let (key, range_end) = (key.clone().into(), end.clone().into());
                Command::DeleteRange(DeleteRangeRequest { key, range_end, ..DeleteRangeRequest::default() })
            }
            Step::Compact(revision) => {
                Command::Compact(CompactionRequest { revision: *revision, physical: false })
            }
            _ => return,
        };
        let command = KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec().into();
        let reply = store.replica().execute_in_session(SessionId(1), 1, 1, command).await;
        let reply = KvReply::decode(reply.expect("the store answers")).expect("the store's reply is read");
        match (step, reply.reply.expect("there is always a reply")) {
            (_, Reply::Error(_)) => {}
            (Step::Put(key, _), _) => {
                let key = Bytes::from(key.clone());
                self.revision += 1;
                self.changes.push((self.revision, key.clone(), false));
                self.keys.insert(key);
            }
            (Step::Delete(key, end), _) => {
                let range = |of: &&Bytes| match &end[..] {
                    [] => of[..] == key[..],
                    [0] => of[..] >= key[..],
                    end => of[..] >= key[..] && &of[..] < end,
                };
                let gone: Vec<_> = self.keys.iter().filter(range).cloned().collect();
                self.revision += i64::from(!gone.is_empty());
                for key in gone {
                    self.keys.remove(&key);
                    self.changes.push((self.revision, key, true));
                }
            }
            (Step::Compact(revision), _) => self.compacted = *revision,
            _ => {}
        }
    }

    fn take(&mut self, told: &Mutex<Told>) {
        let responses = std::mem::take(&mut told.lock().unwrap_or_else(PoisonError::into_inner).responses);
        for response in responses {
            if !self.is_lost {
                self.check(response);
            }
        }
    }

    fn check(&mut self, response: WatchResponse) {
        let id = response.watch_id;
        let revision = response.header.as_ref().expect("a response has a header").revision;
        if response.created {
            assert!(!self.asked.is_empty(), "a watch is answered that nobody asked for: {response:?}");
            let (request, at) = self.asked.remove(0);
            if response.canceled {
                assert!(id == -1 && !response.cancel_reason.is_empty(), "{response:?}");
                self.seen.refused += 1;
                return;
            }
            assert!(request.watch_id == 0 || request.watch_id == id, "{request:?} has id {id}");
            let next = if request.start_revision == 0 { at + 1 } else { request.start_revision };
            let before = self.open.insert(id, Open { request, next, sub: 0 });
            assert!(before.is_none(), "two watches have the id {id}");
            self.seen.created += 1;
        } else if response.canceled {
            let watch = self.open.remove(&id);
            match response.compact_revision {
                0 => self.seen.canceled += 1,
                compacted => {
                    let watch = watch.expect("a compaction ends an open watch");
                    assert!(watch.next < compacted && compacted <= self.compacted, "{response:?}");
                    self.seen.compacted += 1;
                }
            }
        } else if response.events.is_empty() {
            assert!(revision <= self.revision, "{response:?}");
            let watches = self.open.iter().filter(|(of, _)| id == -1 || **of == id);
            for (of, watch) in watches {
                let missing = watch.due(&self.changes).find(|change| change.0 <= revision);
                assert!(missing.is_none(), "watch {of} is said to be at {revision} before {missing:?}");
            }
            self.seen.progress += 1;
        } else {
            let watch = self.open.get_mut(&id).expect("an open watch has events");
            for event in response.events {
                let kv = event.kv.expect("an event has a pair");
                let change = (kv.mod_revision, kv.key, event.r#type == i32::from(EventType::Delete));
                assert_eq!(watch.due(&self.changes).next(), Some(&change), "the next event of watch {id}");
                watch.sub = if change.0 == watch.next { watch.sub + 1 } else { 1 };
                watch.next = change.0;
                self.seen.events += 1;
            }
        }
    }

    /// Nothing more comes.
    fn finish(&mut self, ended: bool) {
        self.seen.ended = ended;
        if self.is_lost {
            return;
        }
        assert!(!ended, "a stream lasts as long as its client wants");
        assert!(self.asked.is_empty(), "no answer to {:?}", self.asked);
        for (id, watch) in &self.open {
            assert_eq!(watch.due(&self.changes).next(), None, "watch {id} is told everything");
        }
    }
}
