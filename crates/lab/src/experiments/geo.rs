//! Replicas on three continents, with the leader at each of them.

use std::borrow::Cow::Borrowed;

use super::{
    charts,
    judging::{Rows, range},
    parameters::{CONCURRENT, DURABILITY, ON_ANY, VIRTUAL_WINDOW, concurrencies},
    points::Field,
    wide_area::{PLACEABLE, load, placeable, spread_out},
};
use crate::{
    figure::numbers::number,
    ground::Ground,
    net::Topology,
    study::{Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-geo",
    title: "Three continents, the leader at each",
    source: "Ng 2020, section 6.2, figures 16 to 19, table 6.1 (N82, R8)",
    about: "The client is in Ireland, the replicas are in Cape Town, Sydney and California; a priority places the \
            leader at each in turn. The document gives no distances; those of the topology `geo` reproduce its \
            latencies. It leaves the place of Raft's leader to chance, and finds that this explains the differences; \
            so here each place is measured, for every protocol, and `ng-leader-placement` shows the chance.",
    parameters: &[
        ON_ANY,
        DURABILITY,
        PLACEABLE,
        Parameter { default: "20", full: "60", ..VIRTUAL_WINDOW },
        Parameter { default: "1,1000,10000,100000", full: "1,100,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "throughput",
    points,
    charts: &[charts::THROUGHPUT, charts::MEDIAN_LATENCY],
    facts: &[
        fact("sequence-paxos, leader in california", 1.0, "median_ms", 283.0),
        fact("raft, leader in california", 1.0, "median_ms", 282.0),
        fact("sequence-paxos, leader in california", 1e4, "throughput", 35_024.0),
        fact("raft, leader in california", 1e4, "throughput", 33_378.0),
        fact("sequence-paxos, leader in california", 1e6, "throughput", 129_465.0),
    ],
    shapes: &[
        Shape {
            id: "R8a",
            claim: "up to c = 10,000 throughput is c over the latency of the leader's place, within 10 %",
            judge: closed_loop,
        },
        Shape {
            id: "R8b",
            claim: "with the leader in the same place all protocols have the same throughput, within 10 %",
            judge: same_place,
        },
        Shape { id: "R8c", claim: "the leader is where priorities place it in all runs", judge: placed },
        Shape {
            id: "R8d",
            claim: "the places differ less at the largest c than at c = 1",
            judge: spread_shrinks,
        },
    ],
};

const fn fact(series: &'static str, x: f64, metric: &'static str, value: f64) -> Fact {
    let place = Borrowed("section 6.2; machines of a cloud");
    Fact { series: Borrowed(series), x, metric: Borrowed(metric), value, place }
}

/// Sites of `geo` in the order of its replicas, with the latency that the distances give.
const SITES: [(&str, f64); 3] = [("cape-town", 445.0), ("sydney", 402.0), ("california", 280.0)];

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual, Ground::Threads, Ground::Processes])?;
    let mut points = Vec::new();
    for concurrent in concurrencies(parameters)? {
        for ordering in placeable(parameters)? {
            for (place, (site, _)) in SITES.iter().enumerate() {
                let mut setup = field.setup(SITES.len(), ordering)?;
                spread_out(&mut setup, Topology::named("geo")?, Some(place));
                let series = format!("{ordering}, leader in {site}");
                let load = load(parameters, concurrent)?;
                points.push(field.point(series, concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

/// The series, each with its leader's place and the latency of that place.
fn series(measured: &Measured) -> Vec<(String, usize, f64)> {
    let place =
        |series: &str| SITES.iter().position(|(site, _)| series.ends_with(&format!("leader in {site}")));
    let all = measured.series().into_iter().map(|series| (series.to_owned(), place(series)));
    all.filter_map(|(series, place)| place.map(|place| (series, place, SITES[place].1))).collect()
}

fn closed_loop(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "c", "proposals a second", "share of c over the latency"]);
    let mut worst: Option<(f64, String)> = None;
    for (series, _, latency) in series(measured) {
        for x in measured.places(&series).into_iter().filter(|&x| x <= 10_000.0) {
            let Some(throughput) = measured.mean(&series, x, "throughput") else { continue };
            let ratio = throughput / (x / latency * 1e3);
            let cells = [series.clone(), number(x), number(throughput), format!("{ratio:.2}")];
            rows.add(cells, (0.9..=1.1).contains(&ratio));
            let off = (ratio - 1.0).abs();
            if worst.as_ref().is_none_or(|(worst, _)| off > *worst) {
                worst = Some((
                    off,
                    format!("{series}, c={x}: {throughput:.0}/s, {ratio:.2} of c over {latency} ms"),
                ));
            }
        }
    }
    match worst {
        None => Judgement::open("nothing was measured"),
        Some((_, where_)) => rows.judge(format!("Farthest off is {where_}")),
    }
}

fn same_place(measured: &Measured) -> Judgement {
    let all = series(measured);
    let mut rows = Rows::new(&["leader in", "c", "lowest, a second", "highest, a second"]);
    let mut worst: Option<(f64, String)> = None;
    for (place, (site, _)) in SITES.iter().enumerate() {
        let own: Vec<_> = all.iter().filter(|(_, its, _)| *its == place).map(|(series, ..)| series).collect();
        let places = own.first().map(|series| measured.places(series)).unwrap_or_default();
        for x in places {
            let rates: Vec<_> =
                own.iter().filter_map(|series| measured.mean(series, x, "throughput")).collect();
            let (low, high) = range(&rates);
            if rates.len() > 1 {
                rows.add([(*site).to_owned(), number(x), number(low), number(high)], high <= low * 1.1);
            }
            if rates.len() > 1 && worst.as_ref().is_none_or(|(worst, _)| high / low > *worst) {
                worst = Some((high / low, format!("{site}, c={x}: {low:.0} to {high:.0}/s")));
            }
        }
    }
    match worst {
        None => Judgement::open("only one protocol was measured"),
        Some((_, where_)) => rows.judge(format!("They differ most in {where_}")),
    }
}

fn placed(measured: &Measured) -> Judgement {
    let (mut runs, mut elsewhere) = (0, Vec::new());
    for (series, place, _) in series(measured) {
        for x in measured.places(&series) {
            for &leader in measured.values(&series, x, "leader") {
                runs += 1;
                if leader != place as f64 + 1.0 {
                    elsewhere.push(format!("{series} c={x}: r{leader}"));
                }
            }
        }
    }
    if runs == 0 {
        return Judgement::open("nothing was measured");
    }
    let first = elsewhere.first().map(|first| format!(", such as {first}")).unwrap_or_default();
    Judgement::of(
        elsewhere.is_empty(),
        format!("{} of {runs} runs had another leader{first}", elsewhere.len()),
    )
}

fn spread_shrinks(measured: &Measured) -> Judgement {
    let all = series(measured);
    let spread = |x: f64| {
        let rates: Vec<_> =
            all.iter().filter_map(|(series, ..)| measured.mean(series, x, "throughput")).collect();
        let (low, high) = range(&rates);
        (rates.len() > 1).then_some(high / low)
    };
    let largest = all.first().and_then(|(series, ..)| measured.places(series).last().copied());
    let Some((largest, (Some(small), Some(large)))) =
        largest.map(|largest| (largest, (spread(1.0), spread(largest))))
    else {
        return Judgement::open("c = 1 and a larger c were not both measured");
    };
    let reason = format!("highest over lowest throughput: {small:.2} at c=1, {large:.2} at c={largest}");
    if largest < 100_000.0 && large > small * 0.95 {
        return Judgement::open(format!("{reason}; at this c throughput is still c over the latency"));
    }
    Judgement::of(large < small, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn the_closed_loop_is_recognised() {
        let mut good = Measured::default();
        let mut bad = Measured::default();
        for (place, (site, latency)) in SITES.iter().enumerate() {
            let series = format!("raft, leader in {site}");
            for x in [1.0, 100.0] {
                good.add(&series, x, "throughput", x / latency * 1e3);
                bad.add(&series, x, "throughput", x / latency * 500.0);
                good.add(&series, x, "leader", place as f64 + 1.0);
                bad.add(&series, x, "leader", 1.0);
            }
        }
        for judge in [closed_loop, placed] {
            assert_eq!((judge(&good).verdict, judge(&bad).verdict), (Verdict::Holds, Verdict::DoesNotHold));
        }
    }
}
