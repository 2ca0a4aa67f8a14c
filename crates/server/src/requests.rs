//! Counters of the server's requests for `/metrics`: how many were answered, how, and how long that took.

use std::{
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use synod_metrics::{Durations, Families};
use tonic::Code;

use crate::methods::{Counted, METHODS, Method};

/// The methods that are not counted separately, and what is no method: otherwise clients could create series at will.
const OTHER: &str = "other";

/// gRPC has the codes 0 to 16.
const CODES: usize = 17;

/// Counters of requests. Clones share them.
#[derive(Clone)]
pub struct RequestMetrics {
    /// Those of each method, and at last those of the others.
    counters: Arc<[Counters]>,
}

#[derive(Default)]
struct Counters {
    codes: [AtomicU64; CODES],
    times: Durations,
}

impl Default for RequestMetrics {
    fn default() -> RequestMetrics {
        let counters = iter::repeat_with(Counters::default).take(METHODS.len() + 1);
        RequestMetrics { counters: counters.collect() }
    }
}

impl fmt::Debug for RequestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestMetrics")
    }
}

impl RequestMetrics {
    /// Counts a call of this method, or of none that is served.
    pub(crate) fn answered(&self, method: Option<&Method>, code: Code, took: Duration) {
        let method = method.filter(|method| method.counted != Counted::Together);
        let counters = &self.counters[method.map_or(METHODS.len(), |method| method.handler as usize)];
        counters.codes[code as usize].fetch_add(1, Relaxed);
        counters.times.record(took);
    }

    /// The methods that are counted separately, with their counters.
    fn apart(&self) -> impl Iterator<Item = (&'static Method, &Counters)> {
        METHODS.iter().zip(&self.counters[..]).filter(|(method, _)| method.counted != Counted::Together)
    }

    /// The same as etcd's gRPC library names and labels it, and what etcd counts of writes.
    fn encode_as_grpc(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let counts = self.apart().flat_map(|(method, counters)| {
            let (service, name) = method.service_and_name();
            counters.by_code().map(move |(code, count)| {
                // In the order in which Go's library writes them.
                let labels = [
                    ("grpc_code", code_name(code)),
                    ("grpc_method", name.to_owned()),
                    ("grpc_service", service.to_owned()),
                    ("grpc_type", method.kind.name().to_owned()),
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
        let called = self.apart().filter(|(_, counters)| !counters.times.is_empty());
        families.histograms(
            "grpc_server_handling",
            "From the headers of a call of a client to its end, by method",
            called.map(|(method, counters)| {
                let (service, name) = method.service_and_name();
                let labels =
                    [("grpc_method", name), ("grpc_service", service), ("grpc_type", method.kind.name())];
                (labels, &counters.times)
            }),
        )?;
        let codes = [Code::Unavailable, Code::DeadlineExceeded];
        let failed = self.apart().filter(|(method, _)| method.counted == Counted::Proposal);
        families.counter(
            "etcd_server_proposals_failed",
            "Writes of clients that were answered with Unavailable or DeadlineExceeded",
            failed
                .flat_map(|(_, counters)| codes.map(|code| counters.codes[code as usize].load(Relaxed)))
                .sum(),
        )
    }
}

impl Counters {
    /// The codes that calls were answered with, and how many.
    fn by_code(&self) -> impl Iterator<Item = (usize, u64)> {
        let counts = self.codes.iter().map(|count| count.load(Relaxed)).enumerate();
        counts.filter(|(_, count)| *count > 0)
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
        let others = (OTHER, &self.counters[METHODS.len()]);
        let methods = || self.apart().map(|(method, counters)| (method.path, counters)).chain([others]);
        let counts = methods().flat_map(|(name, counters)| {
            let labels = move |code| [("method", name.to_owned()), ("code", code_name(code))];
            counters.by_code().map(move |(code, count)| (labels(code), count))
        });
        families.counters(
            "synod_requests",
            "Requests of clients that were answered, by method and gRPC code",
            None,
            counts,
        )?;
        self.encode_as_grpc(&mut families)?;
        let times = methods().filter(|(_, counters)| !counters.times.is_empty());
        families.histograms(
            "synod_request",
            "From the headers of a request to its answer, by method",
            times.map(|(name, counters)| ([("method", name)], &counters.times)),
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
        for path in ["/etcdserverpb.KV/Put", "/made.Up/One", "/made.Up/Two", "/grpc.health.v1.Health/Check"] {
            requests.answered(Method::at(path), Code::Ok, Duration::from_micros(150));
        }
        let put = Method::at("/etcdserverpb.KV/Put");
        requests.clone().answered(put, Code::ResourceExhausted, Duration::from_millis(3));
        requests.answered(Method::at("/synod.v1.Native/Subscribe"), Code::Cancelled, Duration::from_secs(1));
        for path in ["/etcdserverpb.KV/Txn", "/etcdserverpb.Auth/UserAdd", "/etcdserverpb.KV/Range"] {
            requests.answered(Method::at(path), Code::Unavailable, Duration::from_secs(7));
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(requests));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"OK\"} 1",
            "synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"ResourceExhausted\"} 1",
            "synod_requests_total{method=\"other\",code=\"OK\"} 3",
            "synod_requests_total{method=\"/synod.v1.Native/Subscribe\",code=\"Canceled\"} 1",
            "grpc_server_handled_total{grpc_code=\"Canceled\",grpc_method=\"Subscribe\",grpc_service=\"synod.v1.Native\",grpc_type=\"server_stream\"} 1",
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
