//! Throughput and latency by the number of clients, by the rate of commands, and by what the network is like.

use super::{
    DOCUMENTS_COSTS, DOCUMENTS_TOPOLOGY, FAN_OUT, INTERVAL, MEASURED_COSTS, TOPOLOGY, WINDOW, Way, charts,
    closed_loop, setup,
};
use crate::{
    experiments::{
        judging::Rows,
        parameters::{CONCURRENT, ON_VIRTUAL, REPLICAS, concurrencies, sizes},
        points::Field,
    },
    ground::{Ground, Load},
    net::Topology,
    study::{Chart, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const LARGEST: Parameter = Parameter { default: "125", full: "125", ..REPLICAS };
const CLIENTS: Parameter = Parameter { default: "1,10,30,50,100", full: "1,10,30,50,75,100", ..CONCURRENT };

const BY_CLIENTS: &[Chart] = &charts("clients");
const BY_RATE: &[Chart] = &charts("commands a second that clients send");
const BY_DELAY: &[Chart] = &charts("ms between two machines");

/// By the number of clients.
pub const CLIENTS_MEASURED: Experiment = Experiment {
    name: "driftwood-clients",
    title: "Driftwood: throughput and latency by the number of clients",
    source: "Driftwood 2023, section 5.5, figure 16",
    about: "As driftwood-scaling, with 125 replicas.",
    parameters: &[ON_VIRTUAL, WINDOW, MEASURED_COSTS, TOPOLOGY, LARGEST, CLIENTS, INTERVAL, FAN_OUT],
    headline: "throughput",
    points: by_clients,
    charts: BY_CLIENTS,
    facts: &[],
    shapes: &[
        Shape {
            id: "E4a",
            claim: "version 2 is faster than unbatched Raft with any number of clients from 10 on",
            judge: faster,
        },
        Shape {
            id: "E4b",
            claim: "with 100 clients version 2 keeps at least 35 % of its peak (the document, with the merge as printed: 14 %)",
            judge: keeps,
        },
    ],
};

/// The same with costs of the document's program.
pub const CLIENTS_DOCUMENTS: Experiment = Experiment {
    name: "driftwood-document-clients",
    title: "Driftwood: by the number of clients, with costs of the document's machine",
    about: "As driftwood-document, with 125 replicas.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        DOCUMENTS_COSTS,
        DOCUMENTS_TOPOLOGY,
        LARGEST,
        CLIENTS,
        INTERVAL,
        FAN_OUT,
    ],
    ..CLIENTS_MEASURED
};

/// By the rate of commands.
pub const RATES: Experiment = Experiment {
    name: "driftwood-document-rates",
    title: "Driftwood: latency and processors by the rate of commands, with costs of the document's machine",
    source: "Driftwood 2023, sections 5.4 and 5.6, figures 15 and 18",
    about: "As driftwood-document, with 125 replicas; commands come at random at a constant rate, whether or not others are \
            answered (the document: ten clients that wait, with a limit on their rate).",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        DOCUMENTS_COSTS,
        DOCUMENTS_TOPOLOGY,
        LARGEST,
        Parameter {
            key: "rates",
            help: "Commands a second, separated by commas. A series ends where its group no longer keeps up.",
            default: "50,100,200,400,800,1400",
            full: "50,100,200,400,600,800,1000,1200,1400,1800",
        },
        INTERVAL,
        FAN_OUT,
    ],
    headline: "throughput",
    points: by_rate,
    charts: BY_RATE,
    facts: &[],
    shapes: &[Shape {
        id: "E3",
        claim: "unbatched Raft is the first that does not keep up",
        judge: keeps_up,
    }],
};

/// By the distance of machines.
pub const DELAYS: Experiment = Experiment {
    name: "driftwood-delays",
    title: "Driftwood: throughput and latency by the delay and loss of the network",
    source: "Driftwood 2023, section 6.3, which asks for it",
    about: "As driftwood-scaling, with machines that are further apart, and with links that lose their session with each \
            thousandth message. The time from round to round is the document's, though rounds overtake each other where \
            machines are far apart.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        MEASURED_COSTS,
        Parameter {
            key: "delays",
            help: "Milliseconds from one machine to another, separated by commas.",
            default: "0.1,1,5,25",
            full: "0.1,0.5,1,5,25,50",
        },
        Parameter {
            key: "losses",
            help: "The shares of messages that are lost, with their session, separated by commas.",
            default: "0,0.001",
            full: "0,0.001",
        },
        TOPOLOGY,
        Parameter { default: "51", full: "51,125", ..REPLICAS },
        Parameter { default: "10", full: "10", ..CONCURRENT },
        INTERVAL,
        FAN_OUT,
    ],
    headline: "throughput",
    points: by_delay,
    charts: BY_DELAY,
    facts: &[],
    shapes: &[Shape {
        id: "E8",
        claim: "every way goes on with any delay and loss, and each answer comes",
        judge: goes_on,
    }],
};

fn by_clients(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for clients in concurrencies(parameters)? {
            for way in Way::ALL {
                let setup = setup(&field, parameters, way, replicas)?;
                points.push(field.point(way.name(), clients as f64, setup, closed_loop(clients, window)));
            }
        }
    }
    Ok(points)
}

/// Rates that unbatched Raft of this many replicas is offered: above them it would only queue.
const UNBATCHED_RATE_MAX: f64 = 400.0;

fn by_rate(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for rate in parameters.list::<f64>("rates")? {
            if !(1.0..=1e6).contains(&rate) {
                return Err(parameters.wrong("rates", "accepted: 1 to 1000000"));
            }
            for way in Way::ALL {
                if way == Way::Unbatched && rate > UNBATCHED_RATE_MAX {
                    continue;
                }
                let setup = setup(&field, parameters, way, replicas)?;
                let load = Load { rate: Some(rate), ..closed_loop(1, window) };
                points.push(field.point(way.name(), rate, setup, load));
            }
        }
    }
    Ok(points)
}

fn by_delay(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let sizes = sizes(parameters)?;
    let mut points = Vec::new();
    for &replicas in &sizes {
        for loss in parameters.list::<f64>("losses")? {
            for delay in parameters.list::<f64>("delays")? {
                if !(0.0..=0.5).contains(&loss) || !(0.0..=1000.0).contains(&delay) {
                    return Err(parameters.wrong("delays", "accepted: delays to 1000 ms, losses to 0.5"));
                }
                let text = format!(
                    "about = 'Machines {delay} ms apart.'\nreplicas = ['all']\nclient = 'all'\nlink = []\n[default]\n\
                     delay-ms = {delay}\nloss = {loss}"
                );
                for way in Way::ALL {
                    for clients in concurrencies(parameters)? {
                        let mut setup = setup(&field, parameters, way, replicas)?;
                        setup.topology = Some(Topology::parse("delays", &text)?);
                        let size = if sizes.len() > 1 { format!("n={replicas}, ") } else { String::new() };
                        let lossy = if loss > 0.0 { format!(", loss {loss}") } else { String::new() };
                        let series = format!("{size}{}{lossy}", way.name());
                        points.push(field.point(series, delay, setup, closed_loop(clients, window)));
                    }
                }
            }
        }
    }
    Ok(points)
}

fn faster(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["clients", "version 2 over unbatched Raft", "over batching Raft"]);
    for x in measured.places(Way::Statuses.name()).into_iter().filter(|x| *x >= 10.0) {
        let over = |way: Way| {
            let other = measured.mean(way.name(), x, "throughput").filter(|mean| *mean > 0.0)?;
            Some(measured.mean(Way::Statuses.name(), x, "throughput")? / other)
        };
        let (Some(unbatched), Some(batching)) = (over(Way::Unbatched), over(Way::Batching)) else { continue };
        rows.add([format!("{x}"), format!("{unbatched:.2}"), format!("{batching:.2}")], unbatched > 1.0);
    }
    rows.judge("version 2 over unbatched Raft")
}

fn keeps(measured: &Measured) -> Judgement {
    let series = Way::Statuses.name();
    let at = |x: f64| measured.mean(series, x, "throughput");
    let peak = measured.places(series).into_iter().filter_map(at).fold(0.0, f64::max);
    match at(100.0).filter(|_| peak > 0.0) {
        Some(there) => {
            Judgement::of(there >= 0.35 * peak, format!("{:.0} % of the peak", 100.0 * there / peak))
        }
        None => Judgement::open("100 clients were not measured"),
    }
}

fn keeps_up(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["way", "rate at which it keeps up, within 5 %"]);
    let best = |way: Way| {
        let series = way.name();
        let answered = |x: &f64| measured.mean(series, *x, "throughput").is_some_and(|at| at >= 0.95 * x);
        measured.places(series).into_iter().filter(answered).fold(0.0, f64::max)
    };
    let unbatched = best(Way::Unbatched);
    for way in Way::ALL {
        let there = best(way);
        if !measured.places(way.name()).is_empty() {
            let agrees = if way == Way::Unbatched { there > 0.0 } else { there > unbatched };
            rows.add([way.name().to_owned(), format!("{there:.0}")], agrees);
        }
    }
    rows.judge(format!("unbatched Raft keeps up with {unbatched:.0} a second"))
}

fn goes_on(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["series", "ms between machines", "commands a second", "mean latency, ms"]);
    for series in measured.series() {
        for x in measured.places(series) {
            let mean = |metric| measured.mean(series, x, metric);
            let (Some(throughput), Some(latency), Some(lost)) =
                (mean("throughput"), mean("mean_ms"), mean("timed_out"))
            else {
                continue;
            };
            let cells =
                [series.to_owned(), format!("{x}"), format!("{throughput:.0}"), format!("{latency:.2}")];
            rows.add(cells, throughput > 0.0 && lost == 0.0);
        }
    }
    rows.judge("all go on")
}
