//! Groups in which links between some replicas are cut for good.

use std::{collections::BTreeSet, time::Duration};

use super::{FAN_OUT, INTERVAL, MEASURED_COSTS, TOPOLOGY, Way, closed_loop, setup};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{CONCURRENT, ON_VIRTUAL, REPLICAS, SHORT_WINDOW, concurrencies, sizes},
        points::Field,
    },
    ground::{Ground, Load},
    study::{
        Conduct, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Sample, Shape,
    },
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "driftwood-partitions",
    title: "Driftwood: progress where links are cut",
    source: "Driftwood 2023, section 5.8, figures 20 and 21",
    about: "Links between replicas are cut in both directions before the group begins, and stay so; clients reach every replica. \
            With 5 replicas there is a network for each number of cut links from 0 to 6, by what the text says of figure 20: \
            with 1 or 2 the first replica has all its links, with 3 only the third has, with more nobody, and with 6 the \
            first is the only way between the second, the third and the fourth, which is the only one that reaches the \
            fifth. With more replicas links are cut at random, as many as do not take a replica's last way to \
            the others: the document's numbers, which are up to 6 for each replica, and half and nine tenths of all. The \
            place on the axis is the number of links that are cut. Version 2 gathers votes by gossip and repairs from \
            peers. A group that finds no leader in a minute counts as 0 commands a second.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "1", full: "5", ..SHORT_WINDOW },
        MEASURED_COSTS,
        TOPOLOGY,
        Parameter { default: "5,53,125", full: "5,53,125", ..REPLICAS },
        Parameter { default: "10", full: "10", ..CONCURRENT },
        CUTS,
        INTERVAL,
        FAN_OUT,
    ],
    headline: "throughput",
    points,
    charts: &[
        lines("Throughput", "throughput", "commands a second", "links that are cut"),
        lines("Mean latency", "mean_ms", "ms", "links that are cut"),
        lines("Changes of the leader", "leader_changes", "changes in the window", "links that are cut"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "E7a",
            claim: "version 2 goes on in every network, all of which connect a majority",
            judge: |measured| goes_on(measured, Way::Statuses, |_| true),
        },
        Shape {
            id: "E7b",
            claim: "version 1 goes on in every network in which some replica has direct links to a majority",
            judge: |measured| goes_on(measured, Way::Replies, |has_hub| has_hub),
        },
        Shape {
            id: "E7c",
            claim: "batching Raft goes on in every network in which some replica has direct links to a majority",
            judge: |measured| goes_on(measured, Way::Batching, |has_hub| has_hub),
        },
    ],
};

pub(super) const CUTS: Parameter = Parameter {
    key: "cuts",
    help: "With more than 5 replicas: how many of all links are cut, in per cent, separated by commas; document: as many as \
           in its tables.",
    default: "document,50,90",
    full: "document,50,75,90",
};

/// Version 2 waits for elections that take longer where few links work.
pub(super) const WARM_UP: Duration = Duration::from_millis(1500);

pub(super) type Cuts = Vec<(usize, usize)>;

/// The networks of five replicas, by the number of links that are cut.
fn of_five() -> [Cuts; 7] {
    // Places count from 0.
    [
        vec![],
        vec![(3, 4)],
        vec![(3, 4), (1, 4)],
        vec![(0, 4), (3, 4), (1, 3)],
        vec![(0, 4), (3, 4), (1, 3), (2, 4)],
        vec![(0, 4), (1, 3), (2, 4), (1, 4), (2, 3)],
        vec![(0, 4), (1, 3), (2, 4), (1, 4), (2, 3), (1, 2)],
    ]
}

/// Cuts this many links at random, fewer if the next would take the last way between two replicas.
fn at_random(replicas: usize, count: usize, seed: u64) -> Cuts {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut links: Cuts =
        (0..replicas).flat_map(|one| (one + 1..replicas).map(move |other| (one, other))).collect();
    random.shuffle(&mut links);
    // A tree that connects all is left: the first links that join two parts.
    let mut part: Vec<usize> = (0..replicas).collect();
    let mut kept = BTreeSet::new();
    for &(one, other) in &links {
        if part[one] != part[other] {
            let (from, to) = (part[other], part[one]);
            part.iter_mut().filter(|of| **of == from).for_each(|of| *of = to);
            kept.insert((one, other));
        }
    }
    links.retain(|link| !kept.contains(link));
    random.shuffle(&mut links);
    links.truncate(count);
    links
}

/// The most replicas that any reaches directly, itself included.
pub(super) fn widest(replicas: usize, cuts: &Cuts) -> usize {
    let cut = |place: usize| cuts.iter().filter(|(one, other)| *one == place || *other == place).count();
    (0..replicas).map(|place| replicas - cut(place)).max().unwrap_or(0)
}

pub(super) fn networks(parameters: &Parameters, replicas: usize) -> Result<Vec<Cuts>, LabError> {
    if replicas == 5 {
        return Ok(of_five().into());
    }
    let seed = parameters.get::<u64>("seed")?;
    let links = replicas * (replicas - 1) / 2;
    let mut counts = BTreeSet::new();
    for cuts in parameters.list::<String>("cuts")? {
        match cuts.parse::<usize>() {
            Ok(share) if share <= 100 => drop(counts.insert(links * share / 100)),
            Err(_) if cuts == "document" => counts.extend((0..=6).step_by(2).map(|each| each * replicas)),
            _ => return Err(parameters.wrong("cuts", "accepted: document, and 0 to 100 per cent")),
        }
    }
    let all = counts.into_iter().map(|count| at_random(replicas, count.min(links), seed ^ count as u64));
    Ok(all.collect())
}

const WAYS: [Way; 3] = [Way::Batching, Way::Replies, Way::Statuses];

fn series(way: Way, replicas: usize) -> String {
    format!("n={replicas}, {}", way.name())
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        let networks = networks(parameters, replicas)?;
        let places: BTreeSet<usize> = networks.iter().map(Vec::len).collect();
        for count in places {
            let cuts = networks.iter().find(|cuts| cuts.len() == count).expect("it was counted");
            for way in WAYS {
                for clients in concurrencies(parameters)? {
                    let mut setup = setup(&field, parameters, way, replicas)?;
                    setup.cuts = cuts.clone();
                    let raft = &mut setup.settings.consensus.raft;
                    (raft.vote_gossip, raft.peer_repair) = (way == Way::Statuses, way == Way::Statuses);
                    let load = Load { warm_up: WARM_UP, ..closed_loop(clients, window) };
                    let point = field.point(series(way, replicas), count as f64, setup, load);
                    points.push(that_may_stall(point, widest(replicas, cuts)));
                }
            }
        }
    }
    Ok(points)
}

/// A group without progress is a result here. It still has to keep its promises.
pub(super) fn that_may_stall(point: Point, widest: usize) -> Point {
    let Point { series, x, measure } = point;
    let measure = move |conduct: &Conduct| {
        let mut sample = match measure(conduct) {
            Err(LabError::Stalled(_)) => Sample::default(),
            other => other?,
        };
        let throughput = *sample.figures.entry("throughput").or_insert(0.0);
        sample.figures.insert("went_on", if throughput > 0.0 { 100.0 } else { 0.0 });
        sample.figures.insert("widest", widest as f64);
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

/// Whether a way made progress in each network that the claim is about; `counts` is told whether a replica there has
/// direct links to a majority.
fn goes_on(measured: &Measured, way: Way, counts: fn(bool) -> bool) -> Judgement {
    let mut rows = Rows::new(&[
        "replicas",
        "cut links",
        "some replica reaches",
        "commands a second",
        "mean latency, ms",
    ]);
    for name in measured.series() {
        let Some(replicas) = name.strip_prefix("n=").and_then(|rest| rest.split_once(", ")) else { continue };
        let (replicas, of) = replicas;
        let size: f64 = replicas.parse().unwrap_or(0.0);
        for x in measured.places(name).into_iter().filter(|_| of == way.name()) {
            let mean = |metric| measured.mean(name, x, metric);
            let (Some(throughput), Some(widest)) = (mean("throughput"), mean("widest")) else { continue };
            let cells = [
                replicas.to_owned(),
                format!("{x}"),
                format!("{widest}"),
                format!("{throughput:.0}"),
                mean("mean_ms").map_or(String::from("-"), |latency| format!("{latency:.2}")),
            ];
            rows.add(cells, throughput > 0.0 || !counts(2.0 * widest > size));
        }
    }
    rows.judge(way.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(replicas: usize, cuts: &Cuts) -> bool {
        let mut reached = BTreeSet::from([0]);
        let mut rest = vec![0];
        while let Some(one) = rest.pop() {
            for other in 0..replicas {
                let cut = cuts.contains(&(one, other)) || cuts.contains(&(other, one));
                if one != other && !cut && reached.insert(other) {
                    rest.push(other);
                }
            }
        }
        reached.len() == replicas
    }

    #[test]
    fn networks_of_five_are_as_the_text_says() {
        for (count, cuts) in of_five().into_iter().enumerate() {
            assert_eq!(cuts.len(), count);
            assert_eq!(cuts.iter().collect::<BTreeSet<_>>().len(), count, "each link once");
            assert!(connected(5, &cuts), "{cuts:?}");
            let of_place =
                |place| cuts.iter().filter(|(one, other)| *one == place || *other == place).count();
            let full: Vec<usize> = (0..5).filter(|&place| of_place(place) == 0).collect();
            match count {
                0..=2 => assert!(full.contains(&0), "{cuts:?}"),
                3 => assert_eq!(full, [2]),
                _ => assert!(full.is_empty(), "{cuts:?}"),
            }
        }
        let six = &of_five()[6];
        assert_eq!(widest(5, six), 4);
    }

    #[test]
    fn cuts_at_random_leave_a_way_between_all() {
        for (replicas, count) in [(7, 21), (53, 318), (53, 1240), (53, 1378)] {
            let cuts = at_random(replicas, count, 1);
            assert!(cuts.len() <= count && connected(replicas, &cuts), "{replicas} {count}");
            assert!(cuts.len() == count || cuts.len() == replicas * (replicas - 1) / 2 - (replicas - 1));
        }
    }
}
