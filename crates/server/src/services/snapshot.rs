//! The call Snapshot of etcd's service Maintenance: the store as a file of etcd's database, and the file's SHA-256, so
//! that etcd's tools read it and an etcd can go on from it.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use serde_json::json;
use sha2::{Digest, Sha256};
use synod_api::{
    etcdserverpb::{SnapshotRequest, SnapshotResponse},
    synod::v1::{KvAnswer, KvBucketEntry, KvEtcdSnapshot, kv_answer::Answer as Found, kv_query::Query},
};
use synod_grpc::framed;
use tonic::Status;

use super::{
    Answer, Pieces, STORAGE_VERSION,
    envelope::{Store, unexpected},
};
use crate::{Consistency, Replica, Standing, auth::Who, readers::Source, replica};

/// Bytes of the file in one message, as with etcd.
const BLOB_BYTES: usize = 32 << 10;

impl<R: Replica> Store<R> {
    /// What this replica has executed, whether there is a leader or not, as with etcd.
    pub(super) async fn snapshot(&self, who: &Who, _: SnapshotRequest) -> Result<Answer<'_, R>, Status> {
        let query = Query::EtcdSnapshot(KvEtcdSnapshot { entries: self.entries() });
        match self.asked(who, Ok(query), Consistency::Serializable).await? {
            replica::Answer::Pieces(pieces) => {
                let messages = Messages { pieces, left: None, hash: Sha256::new(), ended: false };
                Ok(Answer::Pieces(Pieces::ready(self, Box::new(messages))))
            }
            other => Err(unexpected(other.whole())),
        }
    }

    /// What the store itself does not know of etcd's database. An etcd that is restored from it makes its own members.
    fn entries(&self) -> Vec<KvBucketEntry> {
        let (status, group) = (self.replica().status(), self.replica().group());
        let entry = |bucket: &str, key: &str, value: Vec<u8>| KvBucketEntry {
            bucket: bucket.to_owned(),
            key: key.to_owned().into(),
            value: value.into(),
        };
        let members = group.members.iter().map(|member| {
            let mut value = json!({"id": member.id.0, "peerURLs": member.info.peer_urls});
            if member.standing != Standing::Voter {
                value["isLearner"] = true.into();
            }
            if !member.info.name.is_empty() {
                value["name"] = member.info.name.clone().into();
            }
            if !member.info.client_urls.is_empty() {
                value["clientURLs"] = member.info.client_urls.clone().into();
            }
            entry("members", &format!("{:x}", member.id.0), value.to_string().into())
        });
        let of = |voters: bool| -> Vec<u64> {
            let of = group.members.iter().filter(|member| (member.standing == Standing::Voter) == voters);
            of.map(|member| member.id.0).collect()
        };
        let members_of_log = json!({"voters": of(true), "learners": of(false), "auto_leave": false});
        let number = |number: u64| number.to_be_bytes().to_vec();
        let meta = [
            entry("meta", "consistent_index", number(status.node.executed.0)),
            entry("meta", "term", number(status.node.ballot.round)),
            entry("meta", "confState", members_of_log.to_string().into()),
            entry("meta", "storageVersion", STORAGE_VERSION.into()),
        ];
        members.chain(meta).collect()
    }
}

/// The messages of an answer, made by the threads that make pieces.
struct Messages {
    pieces: Source,
    /// Bytes of the file that are still to come, once that is told.
    left: Option<u64>,
    hash: Sha256,
    ended: bool,
}

impl Messages {
    fn message(&self, remaining_bytes: u64, blob: Bytes) -> Bytes {
        let version = STORAGE_VERSION.to_owned();
        framed(&SnapshotResponse { remaining_bytes, blob, version, ..SnapshotResponse::default() })
    }
}

impl Iterator for Messages {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let Some(piece) = self.pieces.next() else {
            self.ended = true;
            let hash = self.hash.clone().finalize().to_vec();
            // Without all of the file there is no hash, and the client knows.
            return (self.left == Some(0)).then(|| self.message(0, hash.into()));
        };
        if piece.is_empty() {
            return Some(piece);
        }
        let Ok(KvAnswer { answer: Some(Found::EtcdSnapshot(mut pages)), rest_bytes }) =
            KvAnswer::decode(piece)
        else {
            self.ended = true;
            return None;
        };
        let mut left = self.left.unwrap_or(rest_bytes);
        self.hash.update(&pages);
        let mut messages = BytesMut::new();
        while !pages.is_empty() {
            let blob = pages.split_to(BLOB_BYTES.min(pages.len()));
            left = left.saturating_sub(blob.len() as u64);
            messages.extend_from_slice(&self.message(left, blob));
        }
        self.left = Some(left);
        Some(messages.freeze())
    }
}
