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
    /// Users are to count, and there is no user root.
    #[error("etcdserver: root user does not exist")]
    RootUserMissing,
    /// Users are to count, and the user root has not the role root.
    #[error("etcdserver: root user does not have root role")]
    RootRoleMissing,
    /// A user that is added exists.
    #[error("etcdserver: user name already exists")]
    UserExists,
    /// A user without a name, or a request without a user.
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    /// A user that does not exist.
    #[error("etcdserver: user name not found")]
    UserNotFound,
    /// A role that is added exists.
    #[error("etcdserver: role name already exists")]
    RoleExists,
    /// A role that does not exist.
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    /// A role without a name.
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    /// A user that does not exist, or a wrong password.
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    /// A password for a user who cannot have one, or a password hash that is none. etcd's text has this prefix, too.
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    /// A permission is to be granted, and none is given.
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    /// The user may not do that.
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    /// A role is to be revoked from a user who does not have it.
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    /// A permission is to be revoked from a role that does not have it.
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    /// A token is asked for, and users do not count.
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    /// A token that is not known, or not any more.
    #[error("etcdserver: invalid auth token")]
    InvalidAuthToken,
    /// A change without which nobody could manage users, or a permission for no range.
    #[error("etcdserver: invalid auth management")]
    InvalidAuthMgmt,
    /// Users or roles have changed since the server found out who the user is.
    #[error("etcdserver: revision of auth store is old")]
    AuthOldRevision,
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
        const UNKNOWN: i32 = 2;
        const INVALID_ARGUMENT: i32 = 3;
        const NOT_FOUND: i32 = 5;
        const PERMISSION_DENIED: i32 = 7;
        const RESOURCE_EXHAUSTED: i32 = 8;
        const FAILED_PRECONDITION: i32 = 9;
        const OUT_OF_RANGE: i32 = 11;
        const DATA_LOSS: i32 = 15;
        const UNAUTHENTICATED: i32 = 16;
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
            | KvError::UserEmpty
            | KvError::RoleEmpty
            | KvError::AuthFailed
            | KvError::PermissionNotGiven
            | KvError::InvalidAuthMgmt
            | KvError::AuthOldRevision
            | KvError::Malformed(_) => INVALID_ARGUMENT,
            KvError::Compacted | KvError::FutureRevision | KvError::LeaseTtlTooLarge => OUT_OF_RANGE,
            KvError::LeaseExists
            | KvError::RootUserMissing
            | KvError::RootRoleMissing
            | KvError::UserExists
            | KvError::UserNotFound
            | KvError::RoleExists
            | KvError::RoleNotFound
            | KvError::RoleNotGranted
            | KvError::PermissionNotGranted
            | KvError::AuthNotEnabled => FAILED_PRECONDITION,
            KvError::PermissionDenied => PERMISSION_DENIED,
            KvError::InvalidAuthToken => UNAUTHENTICATED,
            KvError::NoPasswordUser => UNKNOWN,
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
