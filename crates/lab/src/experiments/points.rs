//! Makes the points of an experiment on any ground.

use std::{str::FromStr, time::Duration};

use super::parameters::{concurrencies, sizes};
use crate::{
    ground::{
        Ground, Load, Ordering, Setup,
        hardware::{Card, Costs, Hardware},
    },
    net::Topology,
    study::{Conduct, LabError, Parameters, Point},
};

/// The ground on which a run measures its points, as its parameters say.
pub(super) struct Field<'a> {
    parameters: &'a Parameters,
    ground: Ground,
}

impl Field<'_> {
    /// Refuses a ground on which the experiment cannot run.
    pub(super) fn new<'a>(parameters: &'a Parameters, accepted: &[Ground]) -> Result<Field<'a>, LabError> {
        let known: Vec<_> = accepted.iter().map(ToString::to_string).collect();
        let wrong = || parameters.wrong("on", format!("accepted: {}", known.join(", ")));
        let ground = Ground::from_str(parameters.text("on")).map_err(|()| wrong())?;
        if accepted.contains(&ground) { Ok(Field { parameters, ground }) } else { Err(wrong()) }
    }

    pub(super) fn is_virtual(&self) -> bool {
        self.ground == Ground::Virtual
    }

    /// A group, with the settings of all points.
    pub(super) fn setup(&self, replicas: usize, ordering: Ordering) -> Result<Setup, LabError> {
        let mut setup = Setup::new(replicas, ordering.protocol, ordering.election);
        setup.seed = self.parameters.get("seed")?;
        if self.parameters.declares("durability") {
            setup.durability = self.parameters.get("durability")?;
        }
        Ok(setup)
    }

    /// The same on machines of virtual time with these costs and, if their cards are limited, this many megabits a
    /// second in each direction.
    pub(super) fn machines(
        &self,
        replicas: usize,
        ordering: Ordering,
        costs: Costs,
        megabits: Option<f64>,
        topology: &str,
    ) -> Result<Setup, LabError> {
        let mut setup = self.setup(replicas, ordering)?;
        let card = Card { bytes_per_second: megabits.map(|megabits| megabits * 125_000.0) };
        setup.hardware = Hardware { costs, card, ..Hardware::default() };
        setup.topology = Some(Topology::named(topology)?);
        // What waits in front of a slow card or disk is neither sent again nor taken for the silence of a leader.
        setup.settings.consensus.retransmit_after = Duration::from_secs(2);
        setup.settings.consensus.election_timeout = Duration::from_secs(5);
        Ok(setup)
    }

    /// A point. Each of its runs has another seed.
    pub(super) fn point(&self, series: impl Into<String>, x: f64, setup: Setup, load: Load) -> Point {
        let happens = !load.acts.is_empty();
        let Point { series, x, measure } = self.whole_point(series, x, setup, load);
        let measure = move |conduct: &Conduct| {
            let mut sample = measure(conduct)?;
            if !happens {
                sample.timeline.clear();
            }
            Ok(sample)
        };
        Point { series, x, measure: Box::new(measure) }
    }

    /// The same with the course of the answers, also where nothing happens in the window.
    pub(super) fn whole_point(&self, series: impl Into<String>, x: f64, setup: Setup, load: Load) -> Point {
        let ground = self.ground;
        let measure = move |conduct: &Conduct| ground.run(&of_round(&setup, conduct), &load, conduct);
        Point { series: series.into(), x, measure: Box::new(measure) }
    }

    /// Makes the points of all group sizes and numbers of outstanding proposals with `at`.
    pub(super) fn sweep(
        &self,
        mut at: impl FnMut(usize, usize, &mut Vec<Point>) -> Result<(), LabError>,
    ) -> Result<Vec<Point>, LabError> {
        let mut points = Vec::new();
        for replicas in sizes(self.parameters)? {
            for concurrent in concurrencies(self.parameters)? {
                at(replicas, concurrent, &mut points)?;
            }
        }
        Ok(points)
    }
}

/// The setup of a point's run: each has another seed.
pub(super) fn of_round(setup: &Setup, conduct: &Conduct) -> Setup {
    Setup { seed: setup.seed.wrapping_add(conduct.round << 32), ..setup.clone() }
}
