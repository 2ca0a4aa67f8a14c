//! Runs an experiment: its points in turns, with a progress bar, and writes the files.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    Environment, Experiment, LabError, Measured, Parameters, Point, Sample, Summary, Timeline, at,
    summary::{self, Claim},
};
use crate::{ground::Ground, statistics};

/// The circumstances of a measurement.
#[derive(Clone, Debug)]
pub struct Conduct {
    /// Becomes true on Ctrl-C.
    pub interrupted: Arc<AtomicBool>,
    /// The program `synod`, for experiments with processes.
    pub program: PathBuf,
    /// The number of the run at this point, from 0; seeds depend on it.
    pub round: u64,
}

impl Conduct {
    /// The circumstances of a single run.
    #[must_use]
    pub fn new(interrupted: Arc<AtomicBool>, program: PathBuf) -> Conduct {
        Conduct { interrupted, program, round: 0 }
    }

    /// Checks whether to go on.
    ///
    /// # Errors
    /// [`LabError::Interrupted`] after Ctrl-C.
    pub fn check(&self) -> Result<(), LabError> {
        if self.interrupted.load(Ordering::Relaxed) { Err(LabError::Interrupted) } else { Ok(()) }
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The folder in which the run makes a folder of its own.
    pub folder: PathBuf,
    /// Whether to use the parameters of a full run.
    pub full: bool,
    /// Parameters as `key=value`.
    pub set: Vec<String>,
    /// The commit that is measured, for the report.
    pub commit: Option<String>,
    /// Whether to show progress on standard error.
    pub progress: bool,
}

/// Runs an experiment and writes its files. After Ctrl-C the files hold what was measured until then, and the
/// error is [`LabError::Interrupted`].
///
/// # Errors
/// Parameters are not valid, replicas do not start or break a promise, or files cannot be written.
pub fn run(experiment: &Experiment, options: &RunOptions, conduct: &Conduct) -> Result<Summary, LabError> {
    let parameters = Parameters::new(experiment, options.full, &options.set)?;
    let points = (experiment.points)(&parameters)?;
    let turns = Turns::new(&parameters)?;
    let name = name(experiment, &parameters);
    let folder = options.folder.join(&name);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let ground = Ground::from_str(parameters.text("on")).expect("the points checked it").describe();
    let commit = options.commit.clone().or_else(|| super::commit_of(&conduct.program));
    let mut environment = Environment::now(commit, ground.to_owned());
    let began = Instant::now();
    let progress = Progress::new(name.clone(), options.progress, points.len() * turns.at_least);
    let mut log = Log::default();
    let outcome = measure(&points, &turns, experiment.headline, conduct, &progress, &mut log);
    progress.finish();
    environment.end();
    let verdicts = experiment.shapes.iter().map(|shape| Claim {
        id: shape.id.to_owned(),
        claim: shape.claim.to_owned(),
        judgement: (shape.judge)(&log.measured),
    });
    let summary = Summary {
        name,
        title: experiment.title.to_owned(),
        source: experiment.source.to_owned(),
        about: experiment.about.to_owned(),
        parameters: parameters.all(),
        charts: experiment.charts.to_vec(),
        facts: experiment.facts.to_vec(),
        points: summary::points(&log.measured),
        timelines: log.timelines,
        verdicts: verdicts.collect(),
        took_seconds: began.elapsed().as_secs_f64(),
        cut_short: outcome.as_ref().err().map(ToString::to_string),
        shorter: parameters.below_default(&["seconds", "runs"]),
    };
    write_raw(&folder.join("raw.csv"), &log.raw)?;
    summary::write(&folder.join("summary.json"), &summary)?;
    summary::write(&folder.join("environment.json"), &environment)?;
    outcome.map(|()| summary)
}

/// The name of a run and of its folder: the experiment's name, followed by the ground if that is not the usual one.
fn name(experiment: &Experiment, parameters: &Parameters) -> String {
    let on = parameters.text("on");
    if parameters.is_default("on") { experiment.name.to_owned() } else { format!("{}-{on}", experiment.name) }
}

/// How often points are run.
struct Turns {
    at_least: usize,
    at_most: usize,
    error: f64,
}

impl Turns {
    fn new(parameters: &Parameters) -> Result<Turns, LabError> {
        let runs = |key| parameters.count(key, 1..=1000).map(|count| count as usize);
        let at_least = runs("runs")?;
        Ok(Turns { at_least, at_most: runs("runs-max")?.max(at_least), error: parameters.get("rse")? })
    }
}

/// The results of all runs.
#[derive(Default)]
struct Log {
    measured: Measured,
    timelines: Vec<Timeline>,
    raw: Vec<(String, f64, u64, Sample)>,
}

fn measure(
    points: &[Point],
    turns: &Turns,
    headline: &str,
    conduct: &Conduct,
    progress: &Progress,
    log: &mut Log,
) -> Result<(), LabError> {
    for turn in 0..turns.at_most {
        let due = |point: &&Point| {
            let values = log.measured.values(&point.series, point.x, headline);
            turn < turns.at_least
                || statistics::relative_standard_error(values).is_some_and(|error| error > turns.error)
        };
        let due: Vec<_> = points.iter().filter(due).collect();
        if turn >= turns.at_least {
            progress.more(due.len());
        }
        for point in due {
            conduct.check()?;
            progress.begin(point, turn);
            let sample = (point.measure)(&Conduct { round: turn as u64, ..conduct.clone() })?;
            for (metric, value) in &sample.figures {
                log.measured.add(&point.series, point.x, metric, *value);
            }
            if turn == 0 && !sample.timeline.is_empty() {
                let (answers, events) = (sample.timeline.clone(), sample.events.clone());
                log.timelines.push(Timeline { series: point.series.clone(), x: point.x, answers, events });
            }
            log.raw.push((point.series.clone(), point.x, turn as u64, sample));
            progress.done();
        }
    }
    Ok(())
}

fn write_raw(path: &Path, raw: &[(String, f64, u64, Sample)]) -> Result<(), LabError> {
    let mut text = "series,x,run,metric,value\n".to_owned();
    for (series, x, run, sample) in raw {
        for (metric, value) in &sample.figures {
            let _ = writeln!(text, "\"{series}\",{x},{run},{metric},{value}");
        }
    }
    fs::write(path, text).map_err(at(path))
}

/// A bar with the remaining time; lines where there is no terminal.
struct Progress {
    bar: ProgressBar,
    name: String,
    lines: bool,
    began: Instant,
}

impl Progress {
    fn new(name: String, shown: bool, steps: usize) -> Progress {
        let bar = ProgressBar::new(steps as u64);
        let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len}  {wide_msg}");
        bar.set_style(style.expect("a constant template"));
        bar.set_prefix(name.clone());
        let lines = shown && bar.is_hidden();
        if shown {
            bar.enable_steady_tick(Duration::from_millis(500));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar, name, lines, began: Instant::now() }
    }

    fn begin(&self, point: &Point, turn: usize) {
        let what = format!("{} at {}, run {}", point.series, point.x, turn + 1);
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        // The estimate assumes that each remaining run takes as long as those before.
        let left = self.began.elapsed().as_secs_f64() / done.max(1) as f64 * (all - done.min(all)) as f64;
        let left = if done == 0 { String::new() } else { format!("{left:.0} s left, ") };
        if self.lines {
            eprintln!("{} {done}/{all}, {left}{what}", self.name);
        }
        self.bar.set_message(format!("{left}{what}"));
    }

    fn more(&self, steps: usize) {
        self.bar.inc_length(steps as u64);
    }

    fn done(&self) {
        self.bar.inc(1);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
