//! What a replica counts of itself: a page of `/metrics`, and what was counted from one page to a later one.

use std::{
    future::poll_fn,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt as _, Limited};
use tonic::{Status, body::Body, client::GrpcService, transport::Channel};

use crate::{Client, Error, endpoints::failed_at};

/// A page is not larger, with any number of peers, groups and methods.
const PAGE_BYTES_MAX: usize = 16 << 20;

impl Client {
    /// Reads the metrics of every endpoint. All are asked at the same time; the answers are in the order of
    /// [`endpoints`](Client::endpoints).
    ///
    /// # Errors
    /// The endpoint cannot be reached, does not answer in time, or has no such page.
    pub async fn metrics(&self) -> Vec<Result<Metrics, Error>> {
        let endpoints = self.endpoints_used();
        let within = endpoints.config().attempt_timeout;
        let asked: Vec<_> = (0..endpoints.count())
            .map(|index| {
                let page = page(endpoints.channel(index));
                // It is read when it has come, since rates are counted from then.
                tokio::spawn(tokio::time::timeout(within, async {
                    page.await.map(|text| Metrics::parse(&text))
                }))
            })
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for (task, url) in asked.into_iter().zip(self.endpoints()) {
            let answer = task.await.expect("reading a page does not panic");
            let answer = answer.unwrap_or_else(|_| Err(late(within)));
            answers.push(answer.map_err(|status| failed_at(url.to_owned(), &status)));
        }
        answers
    }
}

fn late(within: Duration) -> Status {
    Status::unavailable(format!("no answer within {within:?}"))
}

async fn page(mut channel: Channel) -> Result<String, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::unavailable(error.to_string());
    let request = http::Request::get("/metrics").body(Body::empty()).map_err(|error| failed(&error))?;
    poll_fn(|cx| GrpcService::<Body>::poll_ready(&mut channel, cx)).await.map_err(|error| failed(&error))?;
    let answer = GrpcService::call(&mut channel, request).await.map_err(|error| failed(&error))?;
    if !answer.status().is_success() {
        let why = "with --listen-client-http-urls or --listen-metrics-urls a server has the page there";
        return Err(Status::unavailable(format!("/metrics: it answers {}; {why}", answer.status())));
    }
    let body = Limited::new(answer.into_body(), PAGE_BYTES_MAX).collect().await;
    let bytes = body.map_err(|error| failed(&error))?.to_bytes();
    String::from_utf8(bytes.into()).map_err(|_| Status::unavailable("/metrics: it is no text"))
}

/// A page of metrics in Prometheus's classic text, and when it was read.
#[derive(Clone, Debug)]
pub struct Metrics {
    at: Instant,
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    family: String,
    labels: String,
    value: f64,
}

impl Metrics {
    /// Reads a page. Lines that are none of a sample are passed over, also those of an answer's head.
    #[must_use]
    pub fn parse(text: &str) -> Metrics {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            let (family, labels) = name.split_once('{').unwrap_or((name, ""));
            Some(Sample { family: family.to_owned(), labels: labels.to_owned(), value: value.parse().ok()? })
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Metrics { at: Instant::now(), samples: lines.filter_map(sample).collect() }
    }

    /// The samples of a family, whose labels contain `labels`, together; `None` if there are none.
    #[must_use]
    pub fn value(&self, family: &str, labels: &str) -> Option<f64> {
        let found = self.samples.iter().filter(|one| one.family == family && one.labels.contains(labels));
        found.map(|one| one.value).reduce(|sum, value| sum + value)
    }

    /// The values of a family's samples, each with its label of this name.
    #[must_use]
    pub fn labelled(&self, family: &str, label: &str) -> Vec<(String, f64)> {
        let key = format!("{label}=\"");
        let found = self.samples.iter().filter(|one| one.family == family);
        let of = |one: &Sample| {
            let (_, rest) = one.labels.split_once(&key)?;
            Some((rest.split_once('"')?.0.to_owned(), one.value))
        };
        found.filter_map(of).collect()
    }
}

/// What was counted between two pages of a replica.
#[derive(Clone, Copy, Debug)]
pub struct Between<'a> {
    /// The earlier page.
    pub before: &'a Metrics,
    /// The later one.
    pub after: &'a Metrics,
}

impl Between<'_> {
    /// How much a counter grew.
    #[must_use]
    pub fn grown(&self, family: &str, labels: &str) -> f64 {
        let value = |page: &Metrics| page.value(family, labels).unwrap_or(0.0);
        value(self.after) - value(self.before)
    }

    /// Seconds from the one page to the other.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (self.after.at - self.before.at).as_secs_f64().max(1e-9)
    }

    /// How much it grew a second.
    #[must_use]
    pub fn rate(&self, family: &str, labels: &str) -> f64 {
        self.grown(family, labels) / self.seconds()
    }

    /// The mean of what a histogram took in; `None` if that was nothing.
    #[must_use]
    pub fn mean(&self, histogram: &str, labels: &str) -> Option<f64> {
        let number = self.grown(&format!("{histogram}_count"), labels);
        (number > 0.0).then(|| self.grown(&format!("{histogram}_sum"), labels) / number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAGE: &str = "HTTP/1.1 200 OK\r\n\r\n# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 1.5\n\
                        synod_requests_total{method=\"/etcdserverpb.KV/Put\",code=\"OK\"} 30\n\
                        synod_requests_total{method=\"/etcdserverpb.KV/Range\",code=\"OK\"} 7\n\
                        synod_peer_sent_bytes_total{peer=\"2\"} 100\nsynod_peer_sent_bytes_total{peer=\"3\"} 50\n";

    #[test]
    fn a_page_is_read_by_family_and_label() {
        let page = Metrics::parse(PAGE);
        assert_eq!(page.value("process_cpu_seconds_total", ""), Some(1.5));
        assert_eq!(page.value("synod_requests_total", "KV/Put\""), Some(30.0));
        assert_eq!(page.value("synod_requests_total", ""), Some(37.0));
        assert_eq!(page.value("synod_window_max", ""), None);
        let sent = page.labelled("synod_peer_sent_bytes_total", "peer");
        assert_eq!(sent, [("2".to_owned(), 100.0), ("3".to_owned(), 50.0)]);
    }

    #[test]
    fn what_was_counted_meanwhile_is_told() {
        let before = Metrics::parse("a_total 3\nb_seconds_sum 1\nb_seconds_count 2\n");
        let mut after = Metrics::parse("a_total 9\nb_seconds_sum 2\nb_seconds_count 6\nc_total 4\n");
        after.at = before.at + Duration::from_secs(2);
        let between = Between { before: &before, after: &after };
        assert_eq!((between.grown("a_total", ""), between.rate("a_total", "")), (6.0, 3.0));
        assert_eq!(between.rate("c_total", ""), 2.0, "a counter begins at 0");
        assert_eq!(between.mean("b_seconds", ""), Some(0.25));
        assert_eq!(between.mean("none", ""), None);
    }
}
