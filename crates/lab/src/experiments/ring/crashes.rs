//! A member of a ring fails under load.

use std::time::Duration;

use super::{VALUE_BYTES, Way, regime};
use crate::{
    experiments::{
        charts,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, VIRTUAL_WINDOW, sizes},
        points::Field,
        s_paxos::{COSTS, load, setup},
    },
    ground::{Act, Ground, Load, Setup, Victim, What},
    study::{Conduct, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The election time-out.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-crashes",
    title: "Ring: a member dies, the coordinator dies",
    source: "R10: what Benz 2013, section 3.2, describes and does not measure",
    about: "A ring whose members have cards of 100 Mbit/s, which clients at all members fill with commands of 8 KiB. A third \
            into the window a machine fails and is silent from then on; its clients turn to another replica after 0.1 to \
            0.5 s. The election time-out is 1 s: the coordinator leaves out a member that was silent for half of it, and a \
            coordinator is replaced after one. Beside it runs a ring of one member less, in which nobody fails, with as \
            many clients.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "15", full: "60", ..VIRTUAL_WINDOW },
        COSTS,
        Parameter { default: "5", full: "3,5,7", ..REPLICAS },
    ],
    headline: "throughput",
    points,
    charts: &[charts::ANSWERS],
    facts: &[],
    shapes: &[
        Shape {
            id: "R10a",
            claim: "a member's death interrupts service for at most three times half an election time-out (1.5 s), and the \
                    coordinator's for at most three election time-outs (3 s)",
            judge: interruption,
        },
        Shape {
            id: "R10b",
            claim: "in the last third of the window, with the member still down, the ring orders at least 95 % of what the ring \
                    of one member less does then",
            judge: afterwards,
        },
    ],
};

/// The replica that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Member,
    Coordinator,
    /// Nobody, in a ring of one member less.
    Nobody,
}

impl Fails {
    const ALL: [Fails; 3] = [Fails::Member, Fails::Coordinator, Fails::Nobody];

    const fn name(self) -> &'static str {
        match self {
            Fails::Member => "a member dies",
            Fails::Coordinator => "the coordinator dies",
            Fails::Nobody => "one member less",
        }
    }

    const fn victim(self) -> Option<Victim> {
        match self {
            Fails::Member => Some(Victim::Follower),
            Fails::Coordinator => Some(Victim::Leader),
            Fails::Nobody => None,
        }
    }

    /// The longest interruption: three times what it takes to suspect the replica that fails.
    fn bound(self) -> Duration {
        if self == Fails::Coordinator { TIMEOUT * 3 } else { TIMEOUT / 2 * 3 }
    }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        if replicas < 3 {
            return Err(parameters.wrong("replicas", "accepted: at least 3, since one of them fails"));
        }
        for fails in Fails::ALL {
            let (way, regime) = (Way::RingOfAll, regime(VALUE_BYTES));
            let members = if fails == Fails::Nobody { replicas - 1 } else { replicas };
            let mut setup = setup(&field, parameters, members, way.ordering(), (regime, way.arrangement()))?;
            setup.settings.consensus.election_timeout = TIMEOUT;
            let load = load(regime, way.arrangement(), regime.clients * replicas, window);
            let act = |victim| Act { at: window / 3, what: What::Crash(victim) };
            let load = Load { acts: fails.victim().map(act).into_iter().collect(), ..load };
            points.push(with_last_third(&field, fails, replicas, setup, load));
        }
    }
    Ok(points)
}

/// A point, with the throughput of the last third of the window.
fn with_last_third(field: &Field<'_>, fails: Fails, replicas: usize, setup: Setup, load: Load) -> Point {
    let Point { series, x, measure } = field.whole_point(fails.name(), replicas as f64, setup, load);
    let measure = move |conduct: &Conduct| {
        let mut sample = measure(conduct)?;
        let last_third = sample.answers_between(2.0 / 3.0, 1.0);
        sample.figures.insert("last_third", last_third);
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

fn interruption(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "who fails", "longest time without an answer, ms", "bound"]);
    for fails in [Fails::Member, Fails::Coordinator] {
        for x in measured.places(fails.name()) {
            let Some(gap) = measured.mean(fails.name(), x, "gap_ms") else { continue };
            let bound = fails.bound().as_secs_f64() * 1e3;
            let cells = [format!("{x}"), fails.name().to_owned(), format!("{gap:.0}"), format!("{bound:.0}")];
            rows.add(cells, gap <= bound);
        }
    }
    rows.judge("interruptions")
}

fn afterwards(measured: &Measured) -> Judgement {
    let head = ["replicas", "who fails", "commands a second", "with one less", "of that"];
    let mut rows = Rows::new(&head);
    for fails in [Fails::Member, Fails::Coordinator] {
        for x in measured.places(fails.name()) {
            let mean = |of: Fails| measured.mean(of.name(), x, "last_third").filter(|mean| *mean > 0.0);
            let (Some(smaller), Some(after)) = (mean(Fails::Nobody), mean(fails)) else { continue };
            let share = after / smaller;
            let figures = [format!("{after:.0}"), format!("{smaller:.0}"), format!("{share:.2}")];
            rows.add([&[format!("{x}"), fails.name().to_owned()][..], &figures].concat(), share >= 0.95);
        }
    }
    rows.judge("throughput in the last third")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_ring_that_stays_away_for_long_or_stays_slow_is_noticed() {
        let verdicts = |gap: f64, after: f64| {
            let mut measured = Measured::default();
            measured.add(Fails::Member.name(), 5.0, "gap_ms", gap);
            measured.add(Fails::Member.name(), 5.0, "last_third", after);
            measured.add(Fails::Nobody.name(), 5.0, "last_third", 1000.0);
            (interruption(&measured).verdict, afterwards(&measured).verdict)
        };
        assert_eq!(verdicts(1499.0, 951.0), (Verdict::Holds, Verdict::Holds));
        assert_eq!(verdicts(1501.0, 949.0), (Verdict::DoesNotHold, Verdict::DoesNotHold));
    }
}
