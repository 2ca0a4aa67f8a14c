//! Replicas far from each other: three continents, two sides of an ocean, and who leads.

use std::borrow::Cow::Borrowed;

use synod_consensus::{ElectionKind, ProtocolKind};

use super::*;
use crate::{
    ground::Ordering,
    net::Topology,
    study::{Chart, Fact, Form, Judgement, Measured, Shape},
};

/// Election timeouts suit the distances: the longest round trip is 400 ms.
const ELECTION_TIMEOUT_MS: u64 = 3000;

const CONCURRENT: Parameter = Parameter {
    key: "concurrent",
    help: "Proposals outstanding at a time.",
    default: "1,100,1000,10000",
    full: "1,100,1000,10000,100000",
};

const ON_ANY: Parameter = Parameter {
    key: "on",
    help: "virtual: the replicas' code in virtual time; threads: replicas as threads, with a relay that delays.",
    default: "virtual",
    full: "virtual",
};

/// A wide-area setup with the leader at a place, by priority; none: whoever wins.
fn setup(
    parameters: &Parameters,
    ordering: Ordering,
    topology: &str,
    replicas: usize,
    leader: Option<usize>,
) -> Result<Setup, LabError> {
    let mut setup = Setup {
        seed: parameters.get("seed")?,
        topology: Some(Topology::named(topology)?),
        ..Setup::new(replicas, ordering.protocol, ordering.election)
    };
    let consensus = &mut setup.settings.consensus;
    consensus.election_timeout = Duration::from_millis(ELECTION_TIMEOUT_MS);
    consensus.heartbeat_interval = Duration::from_millis(300);
    consensus.retransmit_after = Duration::from_millis(1500);
    if let Some(leader) = leader {
        setup.priorities = (0..replicas).map(|place| if place == leader { u8::MAX } else { 0 }).collect();
    }
    Ok(setup)
}

fn point(parameters: &Parameters, series: String, x: f64, setup: Setup, load: Load) -> Point {
    if parameters.text("on") == "threads" {
        threads_point(series, x, setup, load)
    } else {
        virtual_point(series, x, setup, load)
    }
}

/// Orderings whose election knows priorities, so that a leader can be placed.
fn placeable() -> Vec<Ordering> {
    let all = ProtocolKind::ALL.iter().map(|&(_, protocol)| protocol);
    let election = |protocol: ProtocolKind| {
        let known = protocol.elections().iter().copied();
        known
            .filter(|election| *election != ElectionKind::Rotating)
            .map(move |election| Ordering { protocol, election })
    };
    all.flat_map(election).collect()
}

/// Three continents.
pub const GEO: Experiment = Experiment {
    name: "ng-geo",
    title: "Three continents, the leader at each",
    source: "Ng 2020, section 6.2, figures 16 to 19, table 6.1 (N82, R8)",
    about: "The client is in Ireland, the replicas are in Cape Town, Sydney and California; a priority places the \
            leader at each in turn. The document gives no distances; those of the topology `geo` reproduce its \
            latencies. It leaves the place of Raft's leader to chance, and finds that this explains the differences; \
            so here each place is measured, for every protocol, and `ng-leader-placement` shows the chance.",
    parameters: &[ON_ANY, LONG_WINDOW, CONCURRENT],
    headline: "throughput",
    points: geo_points,
    charts: &[
        Chart {
            title: Borrowed("Throughput"),
            metric: Borrowed("throughput"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("proposals decided a second"),
            form: Form::LogLines,
        },
        Chart {
            title: Borrowed("Median latency"),
            metric: Borrowed("median_ms"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("ms"),
            form: Form::LogLines,
        },
    ],
    facts: &[
        geo_fact("sequence-paxos, leader in california", 1.0, "median_ms", 283.0),
        geo_fact("raft, leader in california", 1.0, "median_ms", 282.0),
        geo_fact("sequence-paxos, leader in california", 1e4, "throughput", 35_024.0),
        geo_fact("raft, leader in california", 1e4, "throughput", 33_378.0),
        geo_fact("sequence-paxos, leader in california", 1e6, "throughput", 129_465.0),
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

const fn geo_fact(series: &'static str, x: f64, metric: &'static str, value: f64) -> Fact {
    let place = Borrowed("section 6.2; machines of a cloud");
    Fact { series: Borrowed(series), x, metric: Borrowed(metric), value, place }
}

/// Sites of `geo` in the order of its replicas, with the latency that the distances give.
const SITES: [(&str, f64); 3] = [("cape-town", 445.0), ("sydney", 402.0), ("california", 280.0)];

fn geo_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual", "threads"])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for concurrent in concurrencies(parameters)? {
        for ordering in placeable() {
            for (place, (site, _)) in SITES.iter().enumerate() {
                let setup = setup(parameters, ordering, "geo", 3, Some(place))?;
                let mut load = Load::new(concurrent, window);
                load.warm_up = Duration::from_secs(1);
                let series = format!("{ordering}, leader in {site}");
                points.push(point(parameters, series, concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

/// Series and the latency of the place that their leader is in.
fn geo_series(measured: &Measured) -> Vec<(String, usize, f64)> {
    let place =
        |series: &str| SITES.iter().position(|(site, _)| series.ends_with(&format!("leader in {site}")));
    let all = measured.series().into_iter().map(|series| (series.to_owned(), place(series)));
    all.filter_map(|(series, place)| place.map(|place| (series, place, SITES[place].1))).collect()
}

fn closed_loop(measured: &Measured) -> Judgement {
    let (mut worst, mut holds): (Option<(f64, String)>, bool) = (None, true);
    for (series, _, latency) in geo_series(measured) {
        for x in measured.places(&series).into_iter().filter(|&x| x <= 10_000.0) {
            let Some(throughput) = measured.mean(&series, x, "throughput") else { continue };
            let ratio = throughput / (x / latency * 1e3);
            holds &= (0.9..=1.1).contains(&ratio);
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
        Some((_, where_)) => Judgement::of(holds, format!("farthest off is {where_}")),
    }
}

fn same_place(measured: &Measured) -> Judgement {
    let all = geo_series(measured);
    let mut worst: Option<(f64, String)> = None;
    for (place, (site, _)) in SITES.iter().enumerate() {
        let own: Vec<_> = all.iter().filter(|(_, its, _)| *its == place).map(|(series, ..)| series).collect();
        let places = own.first().map(|series| measured.places(series)).unwrap_or_default();
        for x in places {
            let rates: Vec<_> =
                own.iter().filter_map(|series| measured.mean(series, x, "throughput")).collect();
            let (low, high) = range(&rates);
            if rates.len() > 1 && worst.as_ref().is_none_or(|(worst, _)| high / low > *worst) {
                worst = Some((high / low, format!("{site}, c={x}: {low:.0} to {high:.0}/s")));
            }
        }
    }
    match worst {
        None => Judgement::open("only one protocol was measured"),
        Some((ratio, where_)) => Judgement::of(ratio <= 1.1, format!("they differ most in {where_}")),
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

fn placed(measured: &Measured) -> Judgement {
    let (mut runs, mut elsewhere) = (0, Vec::new());
    for (series, place, _) in geo_series(measured) {
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
    let all = geo_series(measured);
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

/// Two sides of an ocean.
pub const TRANS_PACIFIC: Experiment = Experiment {
    name: "ng-trans-pacific",
    title: "Two sides of the Pacific, a slow minority",
    source: "Ng 2020, section 6.3, figures 20 and 21 (N82, R9)",
    about: "Three replicas and the client are in California, two replicas in Sydney. With the leader in California the \
            majority is near; with the leader in Sydney every decision crosses the ocean twice. The series without \
            Sydney has only the three replicas in California, to show what the far ones cost.",
    parameters: &[
        ON_ANY,
        VIRTUAL_WINDOW,
        Parameter { default: "1,100", full: "1,100,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "throughput",
    points: pacific_points,
    charts: &[
        Chart {
            title: Borrowed("Throughput"),
            metric: Borrowed("throughput"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("proposals decided a second"),
            form: Form::LogLines,
        },
        Chart {
            title: Borrowed("Median latency"),
            metric: Borrowed("median_ms"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("ms"),
            form: Form::LogLines,
        },
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R9a",
            claim: "with the majority near the client, the two far replicas cost less than 10 % at c = 1",
            judge: far_ones_cost_nothing,
        },
        Shape {
            id: "R9b",
            claim: "with the leader in the far site the latency is about 284 ms (within 5 %), and throughput c over it",
            judge: far_leader,
        },
    ],
};

fn pacific_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual", "threads"])?;
    let window = parameters.seconds("seconds")?;
    let near = "about = 'The three replicas in California alone.'\nreplicas = ['california']\nclient = 'california'\n\
                [[link]]\nfrom = 'california'\nto = 'california'\ndelay-ms = 0.15\nmegabits-per-second = 10000";
    let mut points = Vec::new();
    for concurrent in concurrencies(parameters)? {
        for ordering in placeable() {
            for (name, replicas, leader) in [
                ("leader in california", 5, 4),
                ("leader in sydney", 5, 1),
                ("leader in california, without sydney", 3, 2),
            ] {
                let mut setup = setup(parameters, ordering, "trans-pacific", replicas, Some(leader))?;
                if replicas == 3 {
                    setup.topology = Some(Topology::parse("california", near)?);
                }
                let mut load = Load::new(concurrent, window);
                load.warm_up = Duration::from_secs(1);
                points.push(point(parameters, format!("{ordering}, {name}"), concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

fn names(measured: &Measured, suffix: &str) -> Vec<String> {
    let all = measured.series().into_iter().filter(|series| series.ends_with(suffix));
    all.map(str::to_owned).collect()
}

fn far_ones_cost_nothing(measured: &Measured) -> Judgement {
    let mut reasons = Vec::new();
    let mut holds = true;
    for alone in names(measured, "leader in california, without sydney") {
        let all = alone.trim_end_matches(", without sydney");
        let mean = |series| measured.mean(series, 1.0, "throughput");
        let (Some(with), Some(without)) = (mean(all), mean(&alone)) else { continue };
        holds &= with >= without * 0.9;
        reasons.push(format!("{all}: {with:.0}/s with, {without:.0}/s without"));
    }
    if reasons.is_empty() {
        return Judgement::open("c = 1 was not measured");
    }
    Judgement::of(holds, reasons.join("; "))
}

fn far_leader(measured: &Measured) -> Judgement {
    // From the client to Sydney and back, and from there to California and back.
    let expected = 284.0;
    let mut reasons = Vec::new();
    let mut holds = true;
    for series in names(measured, "leader in sydney") {
        let Some(median) = measured.mean(&series, 1.0, "median_ms") else { continue };
        holds &= (median / expected - 1.0_f64).abs() < 0.05;
        reasons.push(format!("{series}: {}", ms(median)));
    }
    if reasons.is_empty() {
        return Judgement::open("c = 1 was not measured");
    }
    Judgement::of(holds, reasons.join("; "))
}

/// Who leads, with and without priorities.
pub const LEADER_PLACEMENT: Experiment = Experiment {
    name: "ng-leader-placement",
    title: "Where the leader is, with and without priorities",
    source: "Ng 2020, section 6.2, table 6.1, and chapter 7: predictable placement (N82, R8)",
    about: "The group of `ng-geo` starts again and again, the replicas in random order within 20 ms, once without \
            priorities and once with the highest in California, nearest to the client. The place of the horizontal \
            axis is the number of the start. Ballot leader election prefers the highest id (California has it), Raft's \
            leader is whoever's random timeout ends first; MultiPaxos' own election begins with the lowest id.",
    parameters: &[
        ON_VIRTUAL,
        VIRTUAL_WINDOW,
        PROTOCOLS,
        Parameter {
            key: "starts",
            help: "How often the group starts, 1 to 1000.",
            default: "10",
            full: "50",
        },
    ],
    headline: "leader",
    points: placement_points,
    charts: &[Chart {
        title: Borrowed("Who leads: 1 Cape Town, 2 Sydney, 3 California"),
        metric: Borrowed("leader"),
        x_label: Borrowed("start"),
        y_label: Borrowed("replica"),
        form: Form::Lines,
    }],
    facts: &[],
    shapes: &[
        Shape {
            id: "R8e",
            claim: "with priorities, elections that know them put the leader in California in every start",
            judge: always_placed,
        },
        Shape {
            id: "R8f",
            claim: "without priorities, ballot leader election always elects the highest id",
            judge: highest_id,
        },
        Shape {
            id: "R8g",
            claim: "without priorities, the place of Raft's leader varies",
            judge: raft_varies,
        },
    ],
};

fn placement_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual"])?;
    let window = parameters.seconds("seconds")?;
    let starts = parameters.count("starts", 1..=1000)?;
    let mut points = Vec::new();
    for ordering in Ordering::list(parameters, "protocols")? {
        for (name, leader) in [("without priorities", None), ("california first", Some(2))] {
            for start in 1..=starts {
                let mut setup = setup(parameters, ordering, "geo", 3, leader)?;
                setup.seed = setup.seed.wrapping_mul(1009).wrapping_add(start * 7919);
                let series = format!("{ordering}/{}, {name}", ordering.election);
                points.push(virtual_point(
                    series,
                    start as f64,
                    setup,
                    Load::new(10, window.min(Duration::from_secs(2))),
                ));
            }
        }
    }
    Ok(points)
}

/// How often each replica led, over all series that `of` takes.
fn leaders(measured: &Measured, of: impl Fn(&str) -> bool) -> [usize; 4] {
    let mut counts = [0; 4];
    for (_, _, _, values) in
        measured.iter().filter(|(series, _, metric, _)| *metric == "leader" && of(series))
    {
        values.iter().for_each(|&leader| counts[(leader as usize).min(3)] += 1);
    }
    counts
}

fn count_words(counts: [usize; 4]) -> String {
    let [_, cape_town, sydney, california] = counts;
    format!("Cape Town {cape_town}, Sydney {sydney}, California {california} times")
}

fn always_placed(measured: &Measured) -> Judgement {
    let counts =
        leaders(measured, |series| series.ends_with("california first") && !series.contains("rotating"));
    if counts.iter().sum::<usize>() == 0 {
        return Judgement::open("no election that knows priorities was measured");
    }
    Judgement::of(counts[1] + counts[2] == 0, count_words(counts))
}

fn highest_id(measured: &Measured) -> Judgement {
    let counts =
        leaders(measured, |series| series.ends_with("without priorities") && series.contains("/ballot"));
    if counts.iter().sum::<usize>() == 0 {
        return Judgement::open("ballot leader election was not measured");
    }
    Judgement::of(counts[1] + counts[2] == 0, count_words(counts))
}

fn raft_varies(measured: &Measured) -> Judgement {
    let counts =
        leaders(measured, |series| series.starts_with("raft") && series.ends_with("without priorities"));
    if counts.iter().sum::<usize>() == 0 {
        return Judgement::open("Raft was not measured");
    }
    Judgement::of(counts[1..].iter().filter(|&&count| count > 0).count() > 1, count_words(counts))
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

    #[test]
    fn a_slow_minority_is_told_from_a_burden() {
        for (with, verdict) in [(990.0, Verdict::Holds), (300.0, Verdict::DoesNotHold)] {
            let mut measured = Measured::default();
            measured.add("raft, leader in california", 1.0, "throughput", with);
            measured.add("raft, leader in california, without sydney", 1.0, "throughput", 1000.0);
            assert_eq!(far_ones_cost_nothing(&measured).verdict, verdict);
        }
    }

    #[test]
    fn places_are_counted() {
        let mut measured = Measured::default();
        for (start, leader) in [3.0, 3.0, 1.0].into_iter().enumerate() {
            measured.add("raft/randomized, without priorities", start as f64, "leader", leader);
            measured.add("sequence-paxos/ballot, without priorities", start as f64, "leader", 3.0);
        }
        assert_eq!(raft_varies(&measured).verdict, Verdict::Holds);
        assert_eq!(highest_id(&measured).verdict, Verdict::Holds);
        assert_eq!(always_placed(&measured).verdict, Verdict::NotDecided);
    }
}
