//! Lock-free histograms, and a writer of metric families in the format of OpenMetrics.
//!
//! The histogram of `prometheus-client` takes a lock for each observation. [`Durations`] takes none, since
//! the threads that order, log and answer record in it. `Families` writes one family at a time, with its
//! help and unit; it takes the feature `exposition`.

#[cfg(feature = "exposition")]
use std::fmt;
use std::{
    array,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

#[cfg(feature = "exposition")]
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

/// How many bounds there are: doublings from 25 microseconds to about 13 seconds.
const BOUNDS: usize = 20;
const FIRST_BOUND: Duration = Duration::from_micros(25);

/// A histogram of durations. Recording one costs two atomic additions, takes no lock and allocates nothing.
#[derive(Debug)]
pub struct Durations {
    /// How many durations fell below each bound and not below the one before. The last element counts those
    /// above all bounds.
    counts: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { counts: array::from_fn(|_| AtomicU64::new(0)), nanos: AtomicU64::new(0) }
    }
}

impl Durations {
    /// Records one duration.
    pub fn record(&self, took: Duration) {
        self.counts[bound(took)].fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether no duration was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Relaxed) == 0)
    }

    #[cfg(feature = "exposition")]
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // Each counter is read once, so that the total is the sum of the buckets even while other threads
        // record.
        let counts = self.counts.each_ref().map(|count| count.load(Relaxed));
        let bounds = (0..BOUNDS).map(|exponent| FIRST_BOUND.as_secs_f64() * f64::from(1 << exponent));
        let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts).collect();
        let seconds = self.nanos.load(Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(seconds, counts.iter().sum(), &buckets, None)
    }
}

/// The index of the first bound that the duration does not exceed.
fn bound(took: Duration) -> usize {
    let over = took.as_nanos().div_ceil(FIRST_BOUND.as_nanos()).max(1);
    (over.next_power_of_two().trailing_zeros() as usize).min(BOUNDS)
}

/// Writes metric families.
///
/// A name is given without the suffix of its type (`_total`, `_info`) and without its unit: both are added. A
/// family without a sample is left out, since some parsers take its head for that of the next family.
#[cfg(feature = "exposition")]
#[derive(Debug)]
pub struct Families<'a, 'b>(pub &'a mut DescriptorEncoder<'b>);

#[cfg(feature = "exposition")]
impl Families<'_, '_> {
    /// Writes a gauge: a number that rises and falls.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&signed(value))
    }

    /// Writes a gauge of bytes: `NAME_bytes`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn gauge_bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        encoder.encode_gauge(&signed(value))
    }

    /// Writes a point in time, in seconds since 1970: `NAME_seconds`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn gauge_seconds(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        encoder.encode_gauge(&seconds)
    }

    /// Writes a gauge for each set of labels.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family(name, help, (None, MetricType::Gauge), values, |mut encoder, value| {
            encoder.encode_gauge(&signed(value))
        })
    }

    /// Writes a gauge of time for each set of labels: `NAME_seconds`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn gauges_seconds<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, Duration)>,
    ) -> fmt::Result {
        self.family(name, help, (Some(&Unit::Seconds), MetricType::Gauge), values, |mut encoder, value| {
            encoder.encode_gauge(&value.as_secs_f64())
        })
    }

    /// Writes a value for each set of labels. A family without any is left out.
    fn family<L: EncodeLabelSet, T>(
        &mut self,
        name: &str,
        help: &str,
        (unit, kind): (Option<&Unit>, MetricType),
        values: impl IntoIterator<Item = (L, T)>,
        mut encode: impl FnMut(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in values {
            encode(encoder.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    /// Writes a counter, a number that only rises: `NAME_total`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes a counter of bytes: `NAME_bytes_total`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counter_bytes(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes a counter of time: `NAME_seconds_total`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counter_seconds(&mut self, name: &str, help: &str, time: Duration) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&time.as_secs_f64(), None)
    }

    /// Writes a counter of time for each set of labels: `NAME_seconds_total`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counters_seconds<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, Duration)>,
    ) -> fmt::Result {
        self.family(name, help, (Some(&Unit::Seconds), MetricType::Counter), values, |mut encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value.as_secs_f64(), None)
        })
    }

    /// Writes a counter for each set of labels, in this unit if there is one.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        self.family(name, help, (unit, MetricType::Counter), values, |mut encoder, value| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Writes a histogram: `NAME_seconds`. Only the name tells the unit, since some parsers accept no `UNIT`
    /// line for a histogram.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn histogram(&mut self, name: &str, help: &str, durations: &Durations) -> fmt::Result {
        let name = format!("{name}_seconds");
        durations.encode(self.0.encode_descriptor(&name, help, None, MetricType::Histogram)?)
    }

    /// Writes a histogram for each set of labels: `NAME_seconds`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn histograms<'d, L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        durations: impl IntoIterator<Item = (L, &'d Durations)>,
    ) -> fmt::Result {
        let name = format!("{name}_seconds");
        self.family(&name, help, (None, MetricType::Histogram), durations, |encoder, durations| {
            durations.encode(encoder)
        })
    }

    /// Writes facts that are words, as labels of the constant 1: `NAME_info`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn info(&mut self, name: &str, help: &str, labels: &impl EncodeLabelSet) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(labels)
    }
}

/// Gauges are signed in the exposition, so a value above the range is shown as the largest.
#[cfg(feature = "exposition")]
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(all(test, feature = "exposition"))]
mod tests {
    use super::*;
    use prometheus_client::{collector::Collector, encoding::text, registry::Registry};

    #[test]
    fn a_time_counts_under_the_first_bound_that_it_does_not_exceed() {
        let micros = Duration::from_micros;
        assert_eq!([micros(0), micros(1), micros(25), micros(26), micros(50)].map(bound), [0, 0, 0, 1, 1]);
        assert_eq!(bound(micros(25 << 19)), 19);
        assert_eq!([micros(26 << 19), Duration::MAX].map(bound), [BOUNDS, BOUNDS]);
    }

    #[test]
    fn every_kind_of_family_is_written_by_the_rules() {
        #[derive(Debug)]
        struct Some;
        impl Collector for Some {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
                let mut families = Families(&mut encoder);
                families.gauge_bytes("size", "How large", 3)?;
                let waits = [Duration::ZERO, Duration::from_millis(2500)];
                families.gauges_seconds(
                    "waits",
                    "How long now",
                    ["0", "1"].map(|of| [("of", of)]).into_iter().zip(waits),
                )?;
                families.counter_seconds("busy", "How long", Duration::from_millis(1500))?;
                let took = Durations::default();
                took.record(Duration::from_micros(60));
                families.histogram("took", "How long each", &took)?;
                families.info("build", "What", &[("version", "1")])
            }
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Some));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        for line in [
            "# UNIT size_bytes bytes",
            "size_bytes 3",
            "# UNIT waits_seconds seconds",
            "waits_seconds{of=\"1\"} 2.5",
            "# TYPE busy_seconds counter",
            "busy_seconds_total 1.5",
            "# TYPE took_seconds histogram",
            "took_seconds_bucket{le=\"0.00005\"} 0",
            "took_seconds_bucket{le=\"0.0001\"} 1",
            "took_seconds_bucket{le=\"+Inf\"} 1",
            "took_seconds_count 1",
            "build_info{version=\"1\"} 1",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} is not in\n{page}");
        }
    }
}
