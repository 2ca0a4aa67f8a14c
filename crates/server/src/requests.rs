//! Counters of the server's requests for `/metrics`: how many were answered, how, and how long that took.

use std::{
    array, fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use synod_metrics::{Durations, Families};
use tonic::Code;

/// Methods that are counted separately. All others are counted together, so that clients cannot create series at will.
pub(crate) const METHODS: [&str; 54] = [
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/Range",
    "/synod.v1.Native/Execute",
    "/synod.v1.Native/Query",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/DeleteRange",
    "/etcdserverpb.KV/RangeStream",
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Cluster/MemberList",
    "/etcdserverpb.Cluster/MemberAdd",
    "/etcdserverpb.Cluster/MemberRemove",
    "/etcdserverpb.Cluster/MemberUpdate",
    "/etcdserverpb.Cluster/MemberPromote",
    "/etcdserverpb.Maintenance/MoveLeader",
    "/etcdserverpb.Maintenance/Alarm",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/Snapshot",
    "/etcdserverpb.Maintenance/Downgrade",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Leader",
    "/v3electionpb.Election/Observe",
    "/v3electionpb.Election/Resign",
    "/etcdserverpb.Auth/AuthEnable",
    "/etcdserverpb.Auth/AuthDisable",
    "/etcdserverpb.Auth/AuthStatus",
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/UserAdd",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/UserDelete",
    "/etcdserverpb.Auth/UserChangePassword",
    "/etcdserverpb.Auth/UserGrantRole",
    "/etcdserverpb.Auth/UserRevokeRole",
    "/etcdserverpb.Auth/RoleAdd",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/etcdserverpb.Auth/RoleDelete",
    "/etcdserverpb.Auth/RoleGrantPermission",
    "/etcdserverpb.Auth/RoleRevokePermission",
    "/synod.v1.Native/OpenSession",
    "/synod.v1.Native/Status",
    "/synod.v1.Native/Change",
];
const OTHER: &str = "other";

/// gRPC has the codes 0 to 16.
const CODES: usize = 17;

/// Counters of requests. Clones share them.
#[derive(Clone, Default)]
pub struct RequestMetrics {
    methods: Arc<Methods>,
}

struct Methods([Method; METHODS.len() + 1]);

#[derive(Default)]
struct Method {
    codes: [AtomicU64; CODES],
    times: Durations,
}

impl Default for Methods {
    fn default() -> Methods {
        Methods(array::from_fn(|_| Method::default()))
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestMetrics")
    }
}

impl RequestMetrics {
    pub(crate) fn answered(&self, path: &str, code: Code, took: Duration) {
        let index = METHODS.iter().position(|method| *method == path).unwrap_or(METHODS.len());
        let method = &self.methods.0[index];
        method.codes[code as usize].fetch_add(1, Relaxed);
        method.times.record(took);
    }
}

impl RequestMetrics {
    /// The same as etcd's gRPC library names and labels it, and what etcd counts of writes.
    fn encode_as_grpc(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let counts = METHODS.into_iter().zip(&self.methods.0).flat_map(|(path, method)| {
            let (service, name) = service_and_name(path);
            let counts = method.codes.iter().map(|count| count.load(Relaxed)).enumerate();
            counts.filter(|(_, count)| *count > 0).map(move |(code, count)| {
                // In the order in which Go's library writes them.
                let labels = [
                    ("grpc_code", code_name(code)),
                    ("grpc_method", name.to_owned()),
                    ("grpc_service", service.to_owned()),
                    ("grpc_type", stream_kind(name).to_owned()),
                ];
                (labels, count)
            })
        });
        families.counters(
            "grpc_server_handled",
            "Calls of clients that ended, by method and code",
            None,
            counts,
        )?;
        let called = METHODS.into_iter().zip(&self.methods.0).filter(|(_, method)| !method.times.is_empty());
        families.histograms(
            "grpc_server_handling",
            "From the headers of a call of a client to its end, by method",
            called.map(|(path, method)| {
                let (service, name) = service_and_name(path);
                let labels =
                    [("grpc_method", name), ("grpc_service", service), ("grpc_type", stream_kind(name))];
                (labels, &method.times)
            }),
        )?;
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        let failed = METHODS.into_iter().zip(&self.methods.0).filter(|(path, _)| proposes(path));
        families.counter(
            "etcd_server_proposals_failed",
            "Writes of clients that were answered with Unavailable or DeadlineExceeded",
            failed.flat_map(|(_, method)| codes.map(|code| method.codes[code as usize].load(Relaxed))).sum(),
        )
    }
}

fn service_and_name(path: &str) -> (&str, &str) {
    path[1..].split_once('/').expect("a path has a service and a method")
}

/// Whether calls of a method are writes.
pub(crate) fn proposes(path: &str) -> bool {
    let (service, name) = service_and_name(path);
    match service {
        "etcdserverpb.KV" => !name.starts_with("Range"),
        "etcdserverpb.Lease" => matches!(name, "LeaseGrant" | "LeaseRevoke"),
        "etcdserverpb.Cluster" => name != "MemberList",
        "etcdserverpb.Auth" => !["Get", "List", "Status"].iter().any(|reads| name.ends_with(reads)),
        "etcdserverpb.Maintenance" => name == "Alarm",
        "synod.v1.Native" => matches!(name, "Execute" | "Change"),
        _ => false,
    }
}

/// Which sides of a method's calls are streams.
fn stream_kind(method: &str) -> &'static str {
    match method {
        "Watch" | "LeaseKeepAlive" => "bidi_stream",
        "Snapshot" | "RangeStream" | "Observe" => "server_stream",
        _ => "unary",
    }
}

/// A code's name as in other metrics of gRPC.
fn code_name(code: usize) -> String {
    match Code::from(code as i32) {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

impl Collector for RequestMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(&mut encoder);
        let methods = || METHODS.into_iter().chain([OTHER]).zip(&self.methods.0);
        let counts = methods().flat_map(|(name, method)| {
            let counts = method.codes.iter().map(|count| count.load(Relaxed)).enumerate();
            let counted = counts.filter(|(_, count)| *count > 0);
            counted
                .map(move |(code, count)| ([("method", name.to_owned()), ("code", code_name(code))], count))
        });
        families.counters(
            "synod_requests",
            "Requests of clients that were answered, by method and gRPC code",
            None,
            counts,
        )?;
        self.encode_as_grpc(&mut families)?;
        let times = methods().filter(|(_, method)| !method.times.is_empty());
        families.histograms(
            "synod_request",
            "From the headers of a request to its answer, by method",
            times.map(|(name, method)| ([("method", name)], &method.times)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::{encoding::text, registry::Registry};

    #[test]
    fn methods_and_codes_are_told_apart_and_made_up_ones_are_not() {
        let requests = RequestMetrics::default();
        for path in ["/etcdserverpb.KV/Put", "/made.Up/One", "/made.Up/Two"] {
            requests.answered(path, Code::Ok, Duration::from_micros(150));
        }
        requests.clone().answered("/etcdserverpb.KV/Put", Code::ResourceExhausted, Duration::from_millis(3));
        for path in ["/etcdserverpb.KV/Txn", "/etcdserverpb.Auth/UserAdd", "/etcdserverpb.KV/Range"] {
            requests.answered(path, Code::Unavailable, Duration::from_secs(7));
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(requests));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"OK\"} 1",
            "synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"ResourceExhausted\"} 1",
            "synod_requests_total{method=\"other\",code=\"OK\"} 2",
            "grpc_server_handled_total{grpc_code=\"ResourceExhausted\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1",
            "grpc_server_handling_seconds_count{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 2",
            "etcd_server_proposals_failed_total 2",
            "synod_request_seconds_bucket{le=\"0.0001\",method=\"/etcdserverpb.KV/Put\"} 0",
            "synod_request_seconds_bucket{le=\"0.0002\",method=\"/etcdserverpb.KV/Put\"} 1",
            "synod_request_seconds_bucket{le=\"+Inf\",method=\"/etcdserverpb.KV/Put\"} 2",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("made"), "{page}");
    }
}
