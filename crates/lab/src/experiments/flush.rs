//! Measures what Synod does in place of a flush timer.

use std::{borrow::Cow::Borrowed, time::Duration};

use super::{
    charts::log_lines,
    judging::{Rows, ms},
    parameters::{DURABILITY, ON_THREADS_OR_PROCESSES, PROTOCOLS, WINDOW},
    points::Field,
};
use crate::{
    figure::numbers::number,
    ground::{Ground, Load, Ordering},
    study::{Chart, Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-flush",
    title: "Latency, without a flush timer to scale with",
    source: "Ng 2020, sections 5.5.3 and 7.1 (N49, R7: flush period 0.2, 1, 5 ms)",
    about: "In the document a message waits for the next flush, at both ends, so that latency is two flush periods. \
            Synod has the design of its section 7.1 instead, in which an input's effects leave at once, so there is no \
            period to set. What there is to set are two delays that are only used where nobody waits: of a batch for \
            more commands while the window is full, and of a decision for the next proposal to take it along. Both are \
            set to the same time here, with one proposal outstanding and three replicas.",
    parameters: &[
        ON_THREADS_OR_PROCESSES,
        DURABILITY,
        WINDOW,
        PROTOCOLS,
        Parameter {
            key: "delays",
            help: "Both delays in milliseconds, 0.01 to 1000.",
            default: "0.2,1,5",
            full: "0.2,1,5",
        },
    ],
    headline: "mean_ms",
    points,
    charts: &[chart("Median latency", "median_ms"), chart("Mean latency", "mean_ms")],
    facts: &[fact("sequence-paxos"), fact("raft")],
    shapes: &[Shape {
        id: "R7c",
        claim: "latency does not scale with any delay: 25 times as long, the median is less than twice as high",
        judge: does_not_scale,
    }],
};

const fn chart(title: &'static str, metric: &'static str) -> Chart {
    log_lines(title, metric, "ms", "delay in ms (in the document: flush period)")
}

const fn fact(series: &'static str) -> Fact {
    let place = Borrowed("section 5.5.3; 16 cores");
    Fact { series: Borrowed(series), x: 1.0, metric: Borrowed("median_ms"), value: 2.0, place }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Threads, Ground::Processes])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for delay in parameters.list::<f64>("delays")? {
        if !(0.01..=1000.0).contains(&delay) {
            return Err(parameters.wrong("delays", "accepted: 0.01 to 1000, separated by commas"));
        }
        for ordering in Ordering::list(parameters, "protocols")? {
            let mut setup = field.setup(3, ordering)?;
            setup.settings.batch_delay_max = Duration::from_secs_f64(delay / 1e3);
            setup.settings.consensus.announce_delay_max = Duration::from_secs_f64(delay / 1e3);
            points.push(field.point(ordering.to_string(), delay, setup, Load::new(1, window)));
        }
    }
    Ok(points)
}

fn does_not_scale(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "shortest delay, ms", "its median", "longest delay, ms", "its median"]);
    let mut most = 0.0_f64;
    for series in measured.series() {
        let places = measured.places(series);
        let median = |x: &f64| measured.mean(series, *x, "median_ms");
        let (Some(first), Some(last)) = (places.first(), places.last()) else { continue };
        let (Some(short), Some(long)) = (median(first), median(last)) else { continue };
        if *last < first * 10.0 {
            return Judgement::open(format!("{first} and {last} ms are too close to tell"));
        }
        most = most.max(long / short);
        let cells = [series.to_owned(), number(*first), ms(short), number(*last), ms(long)];
        rows.add(cells, long < short * 2.0);
    }
    rows.judge(format!("at most {most:.2} times as high"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_latency_of_two_periods_is_recognised() {
        for (long, verdict) in [(0.2, Verdict::Holds), (10.0, Verdict::DoesNotHold)] {
            let mut measured = Measured::default();
            measured.add("raft", 0.2, "median_ms", 0.19);
            measured.add("raft", 5.0, "median_ms", long);
            assert_eq!(does_not_scale(&measured).verdict, verdict);
        }
        let mut close = Measured::default();
        close.add("raft", 1.0, "median_ms", 0.2);
        close.add("raft", 2.0, "median_ms", 0.2);
        assert_eq!(does_not_scale(&close).verdict, Verdict::NotDecided);
    }
}
