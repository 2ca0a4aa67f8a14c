use synod_api::synod::v1::KvFailure;

/// Why a request is refused. The messages and codes are those of etcd 3.7, since clients match on both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// A request without a key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` on a key that does not exist, or an empty operation in a transaction.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// `ignore_value` together with a value.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// `ignore_lease` together with a lease.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// A transaction with more operations than allowed.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A transaction that may modify a key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// A sort order or target that is not defined.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A request above the size limit.
    #[error("etcdserver: request is too large")]
    RequestTooLarge,
    /// The revision is below the last compaction.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision is above the store's.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// The space quota is used up, or its alarm is still raised.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The answer would have more bytes than this limit.
    #[error("etcdserver: trying to send message larger than max ({0} bytes)")]
    AnswerTooLarge(u64),
    /// A transaction that looks at more keys than its budget allows, a small multiple of what the store
    /// holds, or does other work that costs as much.
    #[error("synod: the transaction looks at too many keys")]
    TooManyKeys,
    /// Transactions within transactions, more than [`TXN_DEPTH_MAX`](crate::validate::TXN_DEPTH_MAX) deep.
    #[error("etcdserver: transactions are nested too deeply")]
    NestedTooDeeply,
    /// A put with a lease that does not exist.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A grant of a lease that exists.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// A lease for longer than there can be one.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The alarm that replicas differ is raised.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// More alarms than [`ALARMS_MAX`](crate::ALARMS_MAX), or an alarm that is not defined.
    #[error("synod: {0}")]
    BadAlarm(&'static str),
    /// A query with an operation that writes.
    #[error("synod: a query must not hold a put or a deletion; send it as a command")]
    QueryWrites,
    /// Bytes that are no command or query of this version. The decoder's own message is left out: it may
    /// differ between builds, and replicas must give equal replies.
    #[error("synod: malformed {0}")]
    Malformed(&'static str),
}

impl KvError {
    /// The gRPC status code.
    #[must_use]
    pub fn code(&self) -> i32 {
        const INVALID_ARGUMENT: i32 = 3;
        const NOT_FOUND: i32 = 5;
        const RESOURCE_EXHAUSTED: i32 = 8;
        const FAILED_PRECONDITION: i32 = 9;
        const OUT_OF_RANGE: i32 = 11;
        const DATA_LOSS: i32 = 15;
        match self {
            KvError::EmptyKey
            | KvError::KeyNotFound
            | KvError::ValueProvided
            | KvError::LeaseProvided
            | KvError::TooManyOps
            | KvError::NestedTooDeeply
            | KvError::DuplicateKey
            | KvError::InvalidSortOption
            | KvError::RequestTooLarge
            | KvError::BadAlarm(_)
            | KvError::QueryWrites
            | KvError::Malformed(_) => INVALID_ARGUMENT,
            KvError::Compacted | KvError::FutureRevision | KvError::LeaseTtlTooLarge => OUT_OF_RANGE,
            KvError::LeaseExists => FAILED_PRECONDITION,
            KvError::NoSpace | KvError::AnswerTooLarge(_) | KvError::TooManyKeys => RESOURCE_EXHAUSTED,
            KvError::LeaseNotFound => NOT_FOUND,
            KvError::Corrupt => DATA_LOSS,
        }
    }
}

impl From<&KvError> for KvFailure {
    fn from(error: &KvError) -> KvFailure {
        KvFailure { code: error.code(), message: error.to_string() }
    }
}
