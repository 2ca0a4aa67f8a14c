//! How many requests were answered, how, and how long that took: what `/metrics` says of the server itself.

use std::{
    array, fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use tonic::Code;

/// Counted apart; whatever else a client asks for is counted together, so that clients can not make up series.
const METHODS: [&str; 22] = [
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
    "/synod.v1.Native/OpenSession",
    "/synod.v1.Native/Status",
    "/synod.v1.Native/Change",
];
const OTHER: &str = "other";

/// Upper bounds in seconds: doublings from a tenth of a millisecond to some ten seconds.
const BOUNDS: usize = 18;
const FIRST_BOUND: Duration = Duration::from_micros(100);

/// gRPC has the codes 0 to 16.
const CODES: usize = 17;

/// Counters of requests. Clones count together.
#[derive(Clone, Default)]
pub struct RequestMetrics {
    methods: Arc<Methods>,
}

struct Methods([Method; METHODS.len() + 1]);

#[derive(Default)]
struct Method {
    codes: [AtomicU64; CODES],
    /// Answers by the first bound that they did not exceed; the last are those above all.
    times: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
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
        method.times[bound(took)].fetch_add(1, Relaxed);
        method.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }
}

/// The first bound that is not exceeded.
fn bound(took: Duration) -> usize {
    let over = took.as_nanos().div_ceil(FIRST_BOUND.as_nanos()).max(1);
    (over.next_power_of_two().trailing_zeros() as usize).min(BOUNDS)
}

impl Collector for RequestMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let methods = || METHODS.into_iter().chain([OTHER]).zip(&self.methods.0);
        let mut requests = encoder.encode_descriptor(
            "synod_requests",
            "Requests of clients that were answered, by method and gRPC code",
            None,
            MetricType::Counter,
        )?;
        for (name, method) in methods() {
            for (code, count) in method.codes.iter().enumerate() {
                let count = count.load(Relaxed);
                if count > 0 {
                    let code = format!("{:?}", Code::from(code as i32));
                    let labels = [("method", name), ("code", code.as_str())];
                    requests.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
            }
        }
        let mut seconds = encoder.encode_descriptor(
            "synod_request_seconds",
            "From the headers of a request to its answer, by method",
            None,
            MetricType::Histogram,
        )?;
        for (name, method) in methods() {
            let times = method.times.each_ref().map(|count| count.load(Relaxed));
            let count: u64 = times.iter().sum();
            if count > 0 {
                let bounds = (0..BOUNDS).map(|exponent| FIRST_BOUND.as_secs_f64() * f64::from(1 << exponent));
                let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(times).collect();
                let sum = method.nanos.load(Relaxed) as f64 / 1e9;
                let labels = [("method", name)];
                seconds.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::{encoding::text, registry::Registry};

    #[test]
    fn a_time_counts_under_the_first_bound_that_it_does_not_exceed() {
        let micros = Duration::from_micros;
        assert_eq!([micros(0), micros(1), micros(100), micros(101), micros(200)].map(bound), [0, 0, 0, 1, 1]);
        assert_eq!(bound(micros(100 << 17)), 17);
        assert_eq!([micros(101 << 17), Duration::MAX].map(bound), [BOUNDS, BOUNDS]);
    }

    #[test]
    fn methods_and_codes_are_told_apart_and_made_up_ones_are_not() {
        let requests = RequestMetrics::default();
        for path in ["/etcdserverpb.KV/Put", "/made.Up/One", "/made.Up/Two"] {
            requests.answered(path, Code::Ok, Duration::from_micros(150));
        }
        requests.clone().answered("/etcdserverpb.KV/Put", Code::ResourceExhausted, Duration::from_millis(3));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(requests));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"Ok\"} 1",
            "synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"ResourceExhausted\"} 1",
            "synod_requests_total{method=\"other\",code=\"Ok\"} 2",
            "synod_request_seconds_bucket{le=\"0.0001\",method=\"/etcdserverpb.KV/Put\"} 0",
            "synod_request_seconds_bucket{le=\"0.0002\",method=\"/etcdserverpb.KV/Put\"} 1",
            "synod_request_seconds_bucket{le=\"+Inf\",method=\"/etcdserverpb.KV/Put\"} 2",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("made"), "{page}");
    }
}
