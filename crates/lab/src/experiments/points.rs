//! Makes the points of an experiment on any ground.

use std::str::FromStr;

use super::parameters::{concurrencies, sizes};
use crate::{
    ground::{Ground, Load, Ordering, Setup},
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

    /// A group, with the settings of all points.
    pub(super) fn setup(&self, replicas: usize, ordering: Ordering) -> Result<Setup, LabError> {
        let mut setup = Setup::new(replicas, ordering.protocol, ordering.election);
        setup.seed = self.parameters.get("seed")?;
        if self.parameters.declares("durability") {
            setup.durability = self.parameters.get("durability")?;
        }
        Ok(setup)
    }

    /// A point. Each of its runs has another seed.
    pub(super) fn point(&self, series: impl Into<String>, x: f64, setup: Setup, load: Load) -> Point {
        let ground = self.ground;
        let measure = move |conduct: &Conduct| {
            let setup = Setup { seed: setup.seed.wrapping_add(conduct.round << 32), ..setup.clone() };
            let mut sample = ground.run(&setup, &load, conduct)?;
            if load.acts.is_empty() {
                sample.timeline.clear();
            }
            Ok(sample)
        };
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
