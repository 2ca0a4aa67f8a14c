//! The results of a run with its circumstances, since a figure without them is worth little.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What ran, where, and against which servers.
    pub setup: Setup,
    /// How the run ended.
    pub ended: Ended,
    /// Length of the window in seconds. If `--total` or a user ended it, it lasts until the last answer.
    pub seconds: f64,
    /// Answers a second, counted inside the window.
    pub throughput: f64,
    /// Requests due in the window that were answered; the latencies are theirs.
    pub answered: u64,
    /// Requests due in the window that failed.
    pub failed: u64,
    /// Requests of the warm-up that failed; they count nowhere else.
    pub failed_in_warmup: u64,
    /// Requests that were due but had no answer yet when the run was ended early.
    pub unfinished: u64,
    /// Gets that found their key, if anything was read.
    pub found: Option<u64>,
    /// Latency of all answered requests. In an open loop it counts from the time at which each was due.
    pub latency: Latency,
    /// Latency of puts and of gets, if both were sent.
    pub by_operation: Vec<(String, Latency)>,
    /// In an open loop, the time from when a request was due until a client sent it.
    pub lateness: Option<Latency>,
    /// The resources that the generator itself used.
    pub generator: GeneratorCost,
    /// How often each error occurred, most frequent first, including those of the warm-up.
    pub errors: Vec<ErrorCount>,
    /// The first few errors.
    pub first_errors: Vec<FirstError>,
    /// Throughput and latency over time.
    pub series: Vec<Interval>,
}

/// What ran, where, and against which servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// `put`, `get` or `mixed`.
    pub operation: String,
    /// The share of reads, for `mixed`.
    pub read_ratio: Option<f64>,
    /// `linearizable` or `serializable`, if anything is read.
    pub consistency: Option<String>,
    /// The servers, and how many connections each got.
    pub endpoints: Vec<EndpointStatus>,
    /// Whether only the leader got requests.
    pub target_leader: bool,
    /// The leader that the servers named after the run, in hexadecimal, if one answered.
    pub leader_at_end: Option<String>,
    /// Clients, each with one outstanding request.
    pub clients: usize,
    /// Connections.
    pub conns: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// Requests due a second in an open loop; none in a closed loop.
    pub rate: Option<f64>,
    /// Whether arrivals of the open loop were a Poisson process.
    pub poisson: bool,
    /// Length of the warm-up in seconds.
    pub warmup_seconds: f64,
    /// Planned length of the window in seconds, unless `total` ended it.
    pub duration_seconds: Option<f64>,
    /// Planned number of requests.
    pub total: Option<u64>,
    /// Bytes in a key.
    pub key_size: usize,
    /// Bytes in a value.
    pub val_size: usize,
    /// Different keys.
    pub key_space_size: u64,
    /// Whether keys were taken in order.
    pub sequential_keys: bool,
    /// Whether values differed.
    pub random_values: bool,
    /// Time after which a request had failed, in seconds.
    pub timeout_seconds: f64,
    /// The seed.
    pub seed: u64,
    /// When the run began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// Where the generator ran.
    pub client_host: ClientHost,
}

/// A server's status before the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// `host:port`.
    pub endpoint: String,
    /// Connections that the run had to it.
    pub connections: usize,
    /// Its version.
    pub version: String,
    /// Its member id, in hexadecimal.
    pub member: String,
    /// Whether it led.
    pub leads: bool,
    /// The member that it took for the leader, in hexadecimal.
    pub leader: String,
    /// The term (ballot) that it was in.
    pub term: u64,
    /// The size of its database.
    pub database_bytes: i64,
}

/// Where the generator ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientHost {
    /// Its name.
    pub host: String,
    /// System and release.
    pub system: String,
    /// Cores that the generator could use.
    pub cores: usize,
    /// Whether every server was reached over loopback. Client and servers then shared these cores.
    pub loopback: bool,
    /// Load average of the last minute before the run, where the system tells.
    pub load_average: Option<f64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// It ended as planned.
    Complete,
    /// Ctrl-C ended it.
    Interrupted,
    /// It was given up, since requests had only failed for `--give-up-after`.
    GaveUp,
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many there are.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub stddev_us: f64,
    /// The least.
    pub min_us: u64,
    /// Median.
    pub p50_us: u64,
    /// 75th percentile.
    pub p75_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 95th percentile.
    pub p95_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// The greatest.
    pub max_us: u64,
}

/// The resources that the generator itself used, from the start of the window to the end of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeneratorCost {
    /// CPU time of its threads in seconds.
    pub cpu_seconds: f64,
    /// CPU time a request in microseconds; 0 without requests.
    pub cpu_us_per_request: f64,
    /// Cores that it kept busy on average.
    pub cores: f64,
}

/// An error, and how often it occurred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// The gRPC code by name.
    pub code: String,
    /// The message.
    pub message: String,
    /// How often.
    pub count: u64,
}

/// One error as it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstError {
    /// Seconds since the start of the window; negative in the warm-up.
    pub at_seconds: f64,
    /// The server it came from, or should have been sent to.
    pub endpoint: String,
    /// The gRPC code by name.
    pub code: String,
    /// The message.
    pub message: String,
}

/// One interval of the time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its start, in seconds since the start of the window.
    pub from_seconds: f64,
    /// Its end. The last interval is that in which the last answers came.
    pub to_seconds: f64,
    /// Answers that came in it.
    pub answered: u64,
    /// Requests that failed in it.
    pub failed: u64,
    /// Answers a second.
    pub throughput: f64,
    /// Median latency of these answers in microseconds; none without answers.
    pub p50_us: Option<u64>,
    /// 99th percentile.
    pub p99_us: Option<u64>,
    /// The greatest.
    pub max_us: Option<u64>,
}

impl Latency {
    /// Sums up a histogram of microseconds.
    pub(super) fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Latency {
            count: histogram.len(),
            mean_us: histogram.mean(),
            stddev_us: histogram.stdev(),
            min_us: histogram.min(),
            p50_us: at(0.5),
            p75_us: at(0.75),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max(),
        }
    }
}

impl Report {
    /// Whether every request was answered, and the run was not given up.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.failed == 0 && self.ended != Ended::GaveUp
    }
}
