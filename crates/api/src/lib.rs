//! The wire formats of Synod's server: the etcd v3 API (packages `etcdserverpb`, `mvccpb`, `v3lockpb` and
//! `v3electionpb`) and Synod's own (package `synod.v1`), generated from the files in `proto/`.
//!
//! By default this crate holds the messages only. With the feature `grpc` the same modules also hold tonic's clients
//! and servers, such as `etcdserverpb::kv_server` and `synod::v1::native_client`. Messages and fields are
//! documented in `proto/`, as far as their names do not say it.

pub mod shards;

/// All files of `proto/`, as a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Keys, values and events of the etcd v3 API.
#[allow(
    clippy::all,
    missing_debug_implementations,
    missing_docs,
    reason = "generated; the files in proto/ have the docs"
)]
pub mod mvccpb {
    include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
}

/// Permissions of the etcd v3 API.
#[allow(
    clippy::all,
    missing_debug_implementations,
    missing_docs,
    reason = "generated; the files in proto/ have the docs"
)]
pub mod authpb {
    include!(concat!(env!("OUT_DIR"), "/authpb.rs"));
}

/// Requests, responses and services of the etcd v3 API.
#[allow(
    clippy::all,
    missing_debug_implementations,
    missing_docs,
    reason = "generated; the files in proto/ have the docs"
)]
pub mod etcdserverpb {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

/// etcd's service Lock.
#[allow(
    clippy::all,
    missing_debug_implementations,
    missing_docs,
    reason = "generated; the files in proto/ have the docs"
)]
pub mod v3lockpb {
    include!(concat!(env!("OUT_DIR"), "/v3lockpb.rs"));
}

/// etcd's service Election.
#[allow(
    clippy::all,
    missing_debug_implementations,
    missing_docs,
    reason = "generated; the files in proto/ have the docs"
)]
pub mod v3electionpb {
    include!(concat!(env!("OUT_DIR"), "/v3electionpb.rs"));
}

/// The services that gRPC has for every server.
pub mod grpc {
    /// Health.
    pub mod health {
        /// Package `grpc.health.v1`.
        #[allow(
            clippy::all,
            missing_debug_implementations,
            missing_docs,
            reason = "generated; the files in proto/ have the docs"
        )]
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
        }
    }

    /// Reflection.
    pub mod reflection {
        /// Package `grpc.reflection.v1`.
        #[allow(
            clippy::all,
            missing_debug_implementations,
            missing_docs,
            reason = "generated; the files in proto/ have the docs"
        )]
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
        }
    }
}

/// Synod's own interface (the service `Native`) and the payloads of the key-value state machine (`KvCommand`,
/// `KvReply`, `KvQuery`, `KvAnswer`).
pub mod synod {
    /// Package `synod.v1`.
    #[allow(
        clippy::all,
        missing_debug_implementations,
        missing_docs,
        reason = "generated; the files in proto/ have the docs"
    )]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/synod.v1.rs"));
    }
}
