//! Two sets of servers, measured in turns: A B A B ... A disturbance of the machine then affects both, and
//! the spread of the ratios shows how far to trust their median.

use serde::{Deserialize, Serialize};

use super::{
    BenchError, CompareOptions, Load, Operation, Options, Progress, Report, report::Ended, run::run_observed,
};

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of side A.
    pub a_name: String,
    /// The name of side B.
    pub b_name: String,
    /// The results for each number of clients.
    pub levels: Vec<Level>,
}

/// Both sides at one number of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Clients, each with one outstanding request.
    pub clients: usize,
    /// Answers a second.
    pub throughput: Compared,
    /// Median latency in microseconds.
    pub p50_us: Compared,
    /// 99th percentile of latency in microseconds.
    pub p99_us: Compared,
    /// The runs in order. The last pair is complete even if the comparison was interrupted.
    pub pairs: Vec<Pair>,
}

/// A run against A and the run against B that followed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The run against side A.
    pub a: Report,
    /// The run against side B.
    pub b: Report,
}

/// One figure on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Median over the runs against A; `None` if no run had an answer.
    pub a_median: Option<f64>,
    /// Median over the runs against B.
    pub b_median: Option<f64>,
    /// B divided by A, pair by pair; `None` if no pair has the figure on both sides.
    pub b_over_a: Option<Spread>,
}

/// The spread of figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The median; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Comparison {
    /// Whether every run succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.reports().all(Report::succeeded)
    }

    /// Every run, in the order in which they ran.
    pub fn reports(&self) -> impl Iterator<Item = &Report> {
        self.levels.iter().flat_map(|level| &level.pairs).flat_map(|pair| [&pair.a, &pair.b])
    }
}

/// Compares at each number of clients in turn. `observer` learns which run is going on: the side's name, the number
/// of clients, and the number of the pair. Ctrl-C ends the comparison together with the run that it interrupts.
///
/// # Errors
/// Those of [`super::run`].
pub fn compare(
    operation: Operation,
    options: &CompareOptions,
    clients: &[usize],
    load: &Load,
    observer: &mut dyn FnMut(&str, usize, usize, &Progress),
) -> Result<Comparison, BenchError> {
    options.validate(operation, clients, load)?;
    let mut levels = Vec::new();
    for &clients in clients {
        let sides = options.sides(clients, load);
        let mut pairs = Vec::new();
        let mut interrupted = false;
        for number in 1..=options.pairs {
            let pair = run_pair(operation, &sides[0], &sides[1], &mut |is_b, progress| {
                let name = if is_b { &options.b_name } else { &options.a_name };
                observer(name, clients, number, progress);
            })?;
            match pair {
                Some(pair) => pairs.push(pair),
                None => interrupted = true,
            }
            if interrupted {
                break;
            }
        }
        levels.push(Level::of(clients, pairs));
        if interrupted {
            break;
        }
    }
    Ok(Comparison { a_name: options.a_name.clone(), b_name: options.b_name.clone(), levels })
}

/// Runs against A, then against B. Returns `None` if Ctrl-C ended one of the runs early, since they cannot be
/// compared then. `observer` learns whether B is running, and how far it is.
///
/// # Errors
/// Those of [`super::run`].
pub fn run_pair(
    operation: Operation,
    a: &Options,
    b: &Options,
    observer: &mut dyn FnMut(bool, &Progress),
) -> Result<Option<Pair>, BenchError> {
    let a = run_observed(operation, a, &mut |progress| observer(false, progress))?;
    if a.ended == Ended::Interrupted {
        return Ok(None);
    }
    let b = run_observed(operation, b, &mut |progress| observer(true, progress))?;
    Ok((b.ended != Ended::Interrupted).then_some(Pair { a, b }))
}

impl Level {
    fn of(clients: usize, pairs: Vec<Pair>) -> Level {
        let compared = |figure: fn(&Report) -> f64| {
            let of = |report: &Report| (report.answered > 0).then(|| figure(report));
            Compared::of(&pairs.iter().map(|pair| (of(&pair.a), of(&pair.b))).collect::<Vec<_>>())
        };
        Level {
            clients,
            throughput: compared(|report| report.throughput),
            p50_us: compared(|report| report.latency.p50_us as f64),
            p99_us: compared(|report| report.latency.p99_us as f64),
            pairs,
        }
    }
}

impl Compared {
    fn of(pairs: &[(Option<f64>, Option<f64>)]) -> Compared {
        let side = |figures: Vec<f64>| Spread::of(figures).map(|spread| spread.median);
        let ratios =
            pairs.iter().filter_map(|(a, b)| a.zip(*b)).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
        Compared {
            a_median: side(pairs.iter().filter_map(|(a, _)| *a).collect()),
            b_median: side(pairs.iter().filter_map(|(_, b)| *b).collect()),
            b_over_a: Spread::of(ratios.collect()),
        }
    }
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.sort_by(f64::total_cmp);
        let (min, max) = (*figures.first()?, *figures.last()?);
        let middle = figures.len() / 2;
        let median = if figures.len() % 2 == 1 {
            figures[middle]
        } else {
            f64::midpoint(figures[middle - 1], figures[middle])
        };
        Some(Spread { min, median, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        // The machine became twice as slow between the pairs: the sides' medians move, the ratios do not.
        let compared = Compared::of(&[
            (Some(100.0), Some(400.0)),
            (Some(50.0), Some(200.0)),
            (Some(100.0), Some(300.0)),
            (Some(10.0), None),
        ]);
        assert_eq!(compared.b_over_a, Some(Spread { min: 3.0, median: 4.0, max: 4.0 }));
        assert_eq!((compared.a_median, compared.b_median), (Some(75.0), Some(300.0)));
    }

    #[test]
    fn without_figures_there_is_no_ratio() {
        let compared = Compared::of(&[(None, Some(1.0)), (Some(0.0), Some(1.0))]);
        assert_eq!((compared.a_median, compared.b_over_a), (Some(0.0), None));
        assert_eq!(Compared::of(&[]), Compared { a_median: None, b_median: None, b_over_a: None });
    }
}
