//! A figure of the operations that clients complete over time, with the faults.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use super::clients::Pulse;
use crate::figure::{Event, Figure, Kind, Panel, Point, Series};

/// Operations are counted in intervals of this length.
const INTERVAL: Duration = Duration::from_millis(100);
/// Seconds that a row of the figure shows.
const ROW_SECONDS: f64 = 30.0;

/// Counts completed operations, and records faults.
#[derive(Debug)]
pub struct Timeline {
    began: Instant,
    /// Samples: a time in seconds, and how many operations had been completed by then.
    counts: Arc<Mutex<Vec<(f64, u64)>>>,
    counting: JoinHandle<()>,
    events: Vec<(f64, String)>,
}

impl Timeline {
    /// Begins to count, in a task of its own.
    pub fn begin(pulse: Arc<Pulse>) -> Timeline {
        let (began, counts) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let counted = Arc::clone(&counts);
        let counting = tokio::spawn(async move {
            let mut tick = interval(INTERVAL);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                counted.push((began.elapsed().as_secs_f64(), pulse.completed()));
            }
        });
        Timeline { began, counts, counting, events: Vec::new() }
    }

    /// Records an event that happens now.
    pub fn mark(&mut self, what: &str) {
        self.events.push((self.began.elapsed().as_secs_f64(), what.to_owned()));
    }

    /// Stops counting, and draws the figure: a row for every half minute.
    pub(crate) fn end(&self) -> Figure {
        self.counting.abort();
        draw(&self.counts.lock().unwrap_or_else(PoisonError::into_inner), &self.events)
    }
}

fn draw(counts: &[(f64, u64)], events: &[(f64, String)]) -> Figure {
    let rows = counts.last().map_or(1, |(end, _)| (end / ROW_SECONDS).ceil().max(1.0) as usize);
    let panel = |row: usize| {
        let from = row as f64 * ROW_SECONDS;
        let within = |at: f64| (from..from + ROW_SECONDS).contains(&at);
        let point = |pair: &[(f64, u64)]| {
            let [(start, before), (end, after)] = [pair[0], pair[1]];
            let x = f64::midpoint(start, end);
            let y = (after - before) as f64 / (end - start).max(1e-3);
            within(x).then_some(Point { x: x - from, y, interval: None })
        };
        let event = |(at, label): &(f64, String)| Event { x: at - from, label: label.clone() };
        let series = Series { points: counts.windows(2).filter_map(point).collect(), ..Series::default() };
        Panel {
            title: if rows > 1 { format!("from {from:.0} s on") } else { String::new() },
            series: vec![series],
            events: events.iter().filter(|(at, _)| within(*at)).map(event).collect(),
        }
    };
    Figure {
        title: "Operations under faults".to_owned(),
        y_label: "operations completed a second, reads and writes".to_owned(),
        x_label: "seconds".to_owned(),
        x_log: false,
        kind: Kind::Lines,
        panels: (0..rows).map(panel).collect(),
        columns: 1,
        free_rows: false,
        caption: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_minute_has_its_operations_and_its_faults() {
        let counts: Vec<_> = (0..=350_u64).map(|tenth| (tenth as f64 / 10.0, tenth * 50)).collect();
        let events = [(1.0, "kill n1".to_owned()), (31.0, "pause n2".to_owned())];
        let figure = draw(&counts, &events);
        let [first, second] = &figure.panels[..] else { panic!("{} panels", figure.panels.len()) };
        let points = |panel: &Panel| panel.series[0].points.len();
        assert_eq!((points(first), points(second)), (300, 50));
        assert!((second.series[0].points[0].y - 500.0).abs() < 1e-6, "{:?}", second.series[0].points[0]);
        let events = [&first.events, &second.events].map(|events| (events[0].x, events[0].label.as_str()));
        assert_eq!(events, [(1.0, "kill n1"), (1.0, "pause n2")]);
    }
}
