//! What an operator restores: files of etcd's.

use prost::Message;
use synod_api::synod::v1::{
    KvAnswer, KvBucketEntry, KvEtcdSnapshot, KvQuery, kv_answer::Answer, kv_query::Query,
};
use synod_kv::{KvStore, Restored};
use synod_replica::{Answer as Answered, StateMachine};

use super::{
    Memory, Target, Verdict,
    kv::{gone_on, lived_in},
};

pub(super) const TARGETS: &[Target] = &[Target {
    name: "kv-backup",
    about: "etcd's database as a file: a store that is restored from it has one from which the same store is restored, and goes on",
    run: backup,
    seeds,
    // A database has some pages in any case.
    memory: Memory { base: 4 << 20, times: 256 },
    words: &[b"key", b"lease", b"authUsers", b"meta", b"scheduledCompactRev"],
}];

fn backup(input: &[u8]) -> Verdict {
    let store = match Restored::from_database(input, None) {
        Ok(restored) => restored.store,
        Err(error) => {
            return Verdict::Refused(error.to_string().chars().filter(|c| !c.is_numeric()).collect());
        }
    };
    let again =
        Restored::from_database(&database(&store), None).expect("what was restored can be saved").store;
    assert_eq!(store.digest(), again.digest(), "a backup holds the whole state");
    Verdict::Accepted(gone_on(store))
}

/// The database of a store.
fn database(store: &KvStore) -> Vec<u8> {
    let entry = KvBucketEntry { bucket: "members".into(), key: "1".into(), value: "{}".into() };
    let query = Some(Query::EtcdSnapshot(KvEtcdSnapshot { entries: vec![entry] }));
    let query = KvQuery { query, of_member: true, ..KvQuery::default() };
    let Answered::Pieces(pieces) = store.answer(&query.encode_to_vec().into()) else {
        panic!("a snapshot comes in pieces");
    };
    let mut bytes = Vec::new();
    for piece in pieces {
        if let Some(Answer::EtcdSnapshot(pages)) =
            KvAnswer::decode(piece).expect("a piece is an answer").answer
        {
            bytes.extend_from_slice(&pages);
        }
    }
    bytes
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    vec![("empty".to_owned(), database(&KvStore::new())), ("lived-in".to_owned(), database(&lived_in()))]
}
