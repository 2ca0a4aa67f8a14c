//! A group of processes under load: what each of them did and spent in the middle of it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

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
        let row = |(one, place): (&Counters, usize)| Row {
            what: format!("{}, replica {place}", self.what),
            requests: one.puts,
            executed,
            bursts: one.bursts,
            messages: one.frames,
            bytes: one.bytes + one.puts * command_bytes as f64,
            busy: one.busy,
        };
        self.replicas.iter().zip(1..).map(row).collect()
    }
}

/// What a replica says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counters {
    /// Seconds of a processor.
    busy: f64,
    /// Puts that it answered.
    puts: f64,
    /// Bursts of events, each of which it handled as one.
    bursts: f64,
    /// Frames that it sent and received.
    frames: f64,
    /// Their bytes.
    bytes: f64,
}

impl Counters {
    fn parse(page: &str) -> Counters {
        let mut counters = Counters::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (family, labels) = name.split_once('{').unwrap_or((name, ""));
            match family {
                "process_cpu_seconds_total" => counters.busy += value,
                "synod_protocol_bursts_total" => counters.bursts += value,
                "synod_requests_total" if labels.contains("KV/Put\"") => counters.puts += value,
                "synod_peer_frames_sent_total" | "synod_peer_frames_received_total" => {
                    counters.frames += value
                }
                "synod_peer_sent_bytes_total" | "synod_peer_received_bytes_total" => counters.bytes += value,
                _ => {}
            }
        }
        counters
    }

    fn read(address: &str) -> std::io::Result<(Instant, Counters)> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: text/plain\r\nConnection: close\r\n\r\n"
        )?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        let counters = Counters::parse(&page);
        if counters.busy == 0.0 {
            return Err(std::io::Error::other("the page has no process_cpu_seconds_total"));
        }
        Ok((Instant::now(), counters))
    }

    /// What was counted since, a second.
    fn since(&self, before: &Counters, seconds: f64) -> Counters {
        Counters {
            busy: (self.busy - before.busy) / seconds,
            puts: (self.puts - before.puts) / seconds,
            bursts: (self.bursts - before.bursts) / seconds,
            frames: (self.frames - before.frames) / seconds,
            bytes: (self.bytes - before.bytes) / seconds,
        }
    }
}

/// Runs a load against processes.
pub(super) fn measure(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<Measurement, LabError> {
    conduct.check()?;
    let mut processes = Processes::start(setup, conduct)?;
    processes.wait_until_serving(setup, conduct)?;
    let options = processes.options(setup, load);
    let read = || {
        let all = processes.direct.iter().map(|address| Counters::read(address));
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
    let counted = |(before, after): (&(Instant, Counters), &(Instant, Counters))| {
        after.1.since(&before.1, (after.0 - before.0).as_secs_f64())
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_replica_says_is_read() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 1.5\n\
                    synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"OK\"} 30\n\
                    synod_requests_total{method=\"/etcdserverpb.KV/Range\",code=\"OK\"} 7\n\
                    synod_protocol_bursts_total 12\n\
                    synod_peer_frames_sent_total{peer=\"2\"} 4\nsynod_peer_frames_received_total{peer=\"2\"} 5\n\
                    synod_peer_sent_bytes_total{peer=\"2\"} 100\nsynod_peer_sent_bytes_total{peer=\"3\"} 50\n";
        let counters = Counters::parse(page);
        assert_eq!(counters, Counters { busy: 1.5, puts: 30.0, bursts: 12.0, frames: 9.0, bytes: 150.0 });
        let half = Counters { busy: 0.5, puts: 10.0, bursts: 2.0, frames: 9.0, bytes: 50.0 };
        assert_eq!(
            counters.since(&half, 2.0),
            Counters { busy: 0.5, puts: 10.0, bursts: 5.0, frames: 0.0, bytes: 50.0 }
        );
    }
}
