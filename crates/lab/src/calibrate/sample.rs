//! A group of processes under load: what each of them did and spent in the middle of it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use synod_client::{Between, Metrics};

use super::fit::Row;
use crate::{
    bench,
    ground::{Load, Setup, processes::Processes},
    study::{Conduct, LabError},
};

/// How long a replica may take to answer with its metrics.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The outcome of a load.
#[derive(Debug)]
pub(super) struct Measurement {
    /// Puts a second.
    pub(super) throughput: f64,
    /// The median latency in milliseconds.
    pub(super) median_ms: f64,
    /// What a put cost the load generator, in nanoseconds of a processor.
    pub(super) client_nanos: f64,
    /// The load, for people.
    pub(super) what: String,
    /// Of each replica, a second.
    replicas: Vec<Counters>,
}

impl Measurement {
    /// How many processors the replicas and the generator kept busy.
    pub(super) fn processors(&self) -> f64 {
        self.replicas.iter().map(|one| one.busy).sum::<f64>() + self.throughput * self.client_nanos / 1e9
    }

    /// What a put cost all replicas and the generator, in microseconds of a processor.
    pub(super) fn micros(&self) -> f64 {
        let puts: f64 = self.replicas.iter().map(|one| one.puts).sum();
        self.replicas.iter().map(|one| one.busy).sum::<f64>() / puts.max(1.0) * 1e6 + self.client_nanos / 1e3
    }

    /// A row for each replica. A command that is taken has this many bytes.
    pub(super) fn rows(&self, command_bytes: usize) -> Vec<Row> {
        let executed = self.replicas.iter().map(|one| one.puts).sum();
        let row = |(one, place): (&Counters, usize)| {
            one.row(format!("{}, replica {place}", self.what), executed, command_bytes)
        };
        self.replicas.iter().zip(1..).map(row).collect()
    }
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counters {
    /// Seconds of a processor.
    pub(crate) busy: f64,
    /// Puts that it answered.
    pub(crate) puts: f64,
    /// Bursts of events, each of which it handled as one.
    bursts: f64,
    /// Frames that it sent and received.
    frames: f64,
    /// Their bytes.
    bytes: f64,
}

impl Counters {
    /// What was counted between two pages, a second.
    pub(crate) fn of(between: Between<'_>) -> Counters {
        let both = |sent: &str, received: &str| between.rate(sent, "") + between.rate(received, "");
        Counters {
            busy: between.rate("process_cpu_seconds_total", ""),
            puts: between.rate("synod_requests_total", "KV/Put\""),
            bursts: between.rate("synod_protocol_bursts_total", ""),
            frames: both("synod_peer_frames_sent_total", "synod_peer_frames_received_total"),
            bytes: both("synod_peer_sent_bytes_total", "synod_peer_received_bytes_total"),
        }
    }

    /// The row of a replica in a group that executed this many puts. A command that is taken has this many bytes.
    pub(crate) fn row(&self, what: String, executed: f64, command_bytes: usize) -> Row {
        Row {
            what,
            requests: self.puts,
            executed,
            bursts: self.bursts,
            messages: self.frames,
            bytes: self.bytes + self.puts * command_bytes as f64,
            busy: self.busy,
        }
    }
}

/// Reads the page of a replica.
fn read(address: &str) -> std::io::Result<Metrics> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let page = Metrics::parse(&text);
    if page.value("process_cpu_seconds_total", "").is_none() {
        return Err(std::io::Error::other("the page has no process_cpu_seconds_total"));
    }
    Ok(page)
}

/// Runs a load against processes.
pub(super) fn measure(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<Measurement, LabError> {
    conduct.check()?;
    let mut processes = Processes::start(setup, conduct)?;
    processes.wait_until_serving(setup, conduct)?;
    let options = processes.options(setup, load);
    let read = || {
        let all = processes.direct.iter().map(|address| read(address));
        all.collect::<Result<Vec<_>, _>>().map_err(|error| LabError::Replicas(format!("metrics: {error}")))
    };
    let (report, before, after) = thread::scope(|scope| {
        let driven = scope.spawn(|| bench::run(bench::Operation::Put, &options));
        thread::sleep(options.load.warmup + load.window / 5);
        let before = read();
        thread::sleep(load.window * 3 / 5);
        let after = read();
        (driven.join().expect("the generator reports its errors"), before, after)
    });
    conduct.check()?;
    let (report, before, after) = (report?, before?, after?);
    processes.check()?;
    let counted = |(before, after): (&Metrics, &Metrics)| Counters::of(Between { before, after });
    Ok(Measurement {
        throughput: report.throughput,
        median_ms: report.latency.p50_us as f64 / 1e3,
        client_nanos: report.generator.cpu_us_per_request * 1e3,
        what: format!(
            "{} replicas, {} clients, {} bytes, {}, {}",
            setup.replicas,
            load.concurrent,
            load.value_bytes,
            setup.settings.consensus.dissemination,
            setup.durability
        ),
        replicas: before.iter().zip(&after).map(counted).collect(),
    })
}
