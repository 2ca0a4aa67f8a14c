//! The store as a state machine of a replica.

use std::{
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use synod_api::{
    etcdserverpb::AlarmType,
    synod::v1::{KvAnswer, KvCommand, KvFailure, KvQuery, KvReply, kv_answer::Answer, kv_reply::Reply},
};
use synod_replica::{Context, Frozen, SnapshotReader, StateMachine};
use synod_wire::SessionId;

use crate::{
    KvBug, KvError, KvStore, planted,
    put::PlainPut,
    snapshot::{self, FrozenStore},
};

impl StateMachine for KvStore {
    /// Takes an encoded [`KvCommand`], and returns an encoded [`KvReply`].
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        self.now_ms = millis(context);
        let reply = self.apply_for(command, context.reply_wanted);
        if !context.reply_wanted {
            return Bytes::new();
        }
        let reply = reply.unwrap_or_else(|error| Reply::Error(KvFailure::from(&error)));
        KvReply { reply: Some(reply) }.encode_to_vec().into()
    }

    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        self.show_view();
        KvStore::clock_moved(self, millis(context), mover.0);
    }

    fn waits_for(&self) -> Option<Duration> {
        // While replicas are known to differ, no lease ends.
        let waits_for = self.leases.waits_for().filter(|_| !self.has_alarm(AlarmType::Corrupt));
        waits_for.map(Duration::from_millis)
    }

    /// Takes an encoded [`KvQuery`], and returns an encoded [`KvAnswer`].
    fn query(&self, query: &Bytes) -> Bytes {
        let query = KvQuery::decode(query.clone()).map_err(|_| KvError::Malformed("query"));
        encoded(query.and_then(|query| KvStore::query(self, &query)))
    }

    fn answer(&self, query: &Bytes) -> synod_replica::Answer {
        match KvQuery::decode(query.clone()) {
            Ok(query) => self.answer_in_pieces(query),
            Err(_) => synod_replica::Answer::Whole(encoded(Err(KvError::Malformed("query")))),
        }
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(FrozenStore(self.view_with_leases()))
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        self.replace(snapshot::read_store(snapshot)?);
        Ok(())
    }

    fn reader() -> Option<SnapshotReader<KvStore>> {
        Some(|snapshot| {
            let read = snapshot::read_store(snapshot)?;
            Ok(Box::new(|store| Box::new(store.replace(read))))
        })
    }

    fn digest(&self) -> u64 {
        KvStore::digest(self)
    }
}

fn millis(context: &Context) -> u64 {
    u64::try_from(context.time.as_millis()).unwrap_or(u64::MAX)
}

/// An answer as it is sent.
pub(crate) fn encoded(answer: Result<Answer, KvError>) -> Bytes {
    let answer = answer.unwrap_or_else(|error| Answer::Error(KvFailure::from(&error)));
    KvAnswer { answer: Some(answer), ..KvAnswer::default() }.encode_to_vec().into()
}

impl KvStore {
    /// Puts a store that was read from a snapshot in place of this one, which it returns.
    fn replace(&mut self, mut read: KvStore) -> KvStore {
        if planted::has(KvBug::KeepRightsAtRestore) {
            Arc::make_mut(&mut read.auth).keep_rights_of(&self.auth);
        }
        read.counted = self.counted;
        read.feed = self.feed.take();
        read.comparer = self.comparer.take();
        read.auth_feed = self.auth_feed.take();
        let before = std::mem::replace(self, read);
        if let Some(feed) = &self.feed {
            feed.replaced();
        }
        self.tell_auth_replaced();
        before
    }

    fn apply_for(&mut self, command: &Bytes, wanted: bool) -> Result<Reply, KvError> {
        match PlainPut::read(command) {
            Some(put) => self.execute_plain_put(&put).map(Reply::Put),
            None => {
                let command =
                    KvCommand::decode(command.clone()).map_err(|_| KvError::Malformed("command"))?;
                self.execute_for(&command, wanted)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_api::{
        etcdserverpb::{HashKvRequest, PutRequest},
        synod::v1::{KvStatusRequest, kv_command::Command, kv_query::Query},
    };

    use synod_wire::Slot;

    use super::*;
    use crate::{
        testing::{all, command, op_range, op_txn, put, range},
        validate::TXN_DEPTH_MAX,
    };

    fn apply(store: &mut KvStore, command: &[u8]) -> Reply {
        let reply = store.apply(&Bytes::copy_from_slice(command), &Context::new(Slot(1)));
        KvReply::decode(reply).unwrap().reply.expect("there is always a reply")
    }

    fn query(store: &KvStore, query: Query) -> Answer {
        let query = KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec().into();
        let answer = StateMachine::query(store, &query);
        KvAnswer::decode(answer).unwrap().answer.expect("there is always an answer")
    }

    #[test]
    fn commands_and_queries_as_bytes() {
        let mut store = KvStore::new();
        let reply = apply(&mut store, &command(Command::Put(put("k", "v"))).encode_to_vec());
        let Reply::Put(reply) = reply else { panic!("{reply:?}") };
        assert_eq!(reply.header.unwrap().revision, 2);
        let answer = query(&store, Query::Range(range("k", "")));
        let Answer::Range(range) = answer else { panic!("{answer:?}") };
        assert_eq!(&range.kvs[0].value[..], b"v");
        let Answer::Status(status) = query(&store, Query::Status(KvStatusRequest {})) else {
            panic!("no status")
        };
        assert_eq!((status.revision, status.compact_revision, status.keys, status.versions), (2, 0, 1, 1));
        assert_eq!((status.size_bytes, status.puts, status.deletions), (store.size_bytes(), 1, 0));
        let Answer::HashKv(hash) = query(&store, Query::HashKv(HashKvRequest { revision: 2 })) else {
            panic!("no hash")
        };
        assert_eq!(hash, store.hash_kv(0).unwrap());
    }

    #[test]
    fn errors_carry_code_and_wording() {
        let mut store = KvStore::new();
        let reply = apply(&mut store, &command(Command::Put(PutRequest::default())).encode_to_vec());
        let failure = KvFailure { code: 3, message: "etcdserver: key is not provided".into() };
        assert_eq!(reply, Reply::Error(failure));
        let mut future = range("k", "");
        future.revision = 5;
        let message = "etcdserver: mvcc: required revision is a future revision".into();
        assert_eq!(query(&store, Query::Range(future)), Answer::Error(KvFailure { code: 11, message }));
    }

    #[test]
    fn what_may_be_nested_is_read_as_a_command_and_as_a_query() {
        let nested =
            |depth| (1..depth).fold(all(vec![op_range("k", "")]), |inner, _| all(vec![op_txn(inner)]));
        let mut store = KvStore::new();
        let (deepest, deeper) = (nested(TXN_DEPTH_MAX), nested(TXN_DEPTH_MAX + 1));
        let reply = apply(&mut store, &command(Command::Txn(deepest.clone())).encode_to_vec());
        assert!(matches!(reply, Reply::Txn(_)), "{reply:?}");
        assert!(matches!(query(&store, Query::Txn(deepest)), Answer::Txn(_)));
        let message = "etcdserver: transactions are nested too deeply".to_owned();
        let failure = KvFailure { code: 3, message };
        let reply = apply(&mut store, &command(Command::Txn(deeper.clone())).encode_to_vec());
        assert_eq!(reply, Reply::Error(failure.clone()));
        assert_eq!(query(&store, Query::Txn(deeper)), Answer::Error(failure));
    }

    #[test]
    fn bytes_that_are_no_command_are_answered_and_change_nothing() {
        let mut store = KvStore::new();
        let before = store.digest();
        let valid = command(Command::Put(put("key", "value"))).encode_to_vec();
        let mut random = fastrand::Rng::with_seed(1);
        let garbage = (0..2000).map(|_| (0..random.usize(0..40)).map(|_| random.u8(..)).collect());
        let cut = (0..valid.len()).map(|end| valid[..end].to_vec());
        for bytes in cut.chain(garbage).collect::<Vec<Vec<u8>>>() {
            let reply = apply(&mut store, &bytes);
            assert!(matches!(reply, Reply::Error(_)), "{bytes:?} gave {reply:?}");
            let answer = StateMachine::query(&store, &bytes.into());
            assert!(KvAnswer::decode(answer).unwrap().answer.is_some());
        }
        assert_eq!(store.digest(), before);
    }
}
