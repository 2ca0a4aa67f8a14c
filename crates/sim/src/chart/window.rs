//! The part of a run that a chart shows.

use std::{fmt, str::FromStr, time::Duration};

#[cfg(feature = "cli")]
use clap::Args;

use crate::clock::Moment;

/// How many events the chart of a seed's run shows by default.
const EVENTS: usize = 400;
/// How many of them are after the one that the chart is about.
const EVENTS_AFTER: u64 = 150;
/// The most events of a chart; browsers draw this many without trouble.
const EVENTS_MAX: usize = 20_000;

/// A place in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// An instant of virtual time.
    At(Moment),
    /// The number of an event, as charts show it.
    Event(u64),
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        let wrong = || format!("'{text}': write virtual milliseconds, such as 1250.5, or event:N");
        if let Some(number) = text.strip_prefix("event:") {
            return number.parse().map(Bound::Event).map_err(|_| wrong());
        }
        let ms: f64 = text.strip_suffix("ms").unwrap_or(text).parse().map_err(|_| wrong())?;
        let time = Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| wrong())?;
        Ok(Bound::At(Moment::after(time)))
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::At(moment) => write!(f, "{moment}"),
            Bound::Event(number) => write!(f, "event:{number}"),
        }
    }
}

/// What of a run a chart shows.
#[cfg(feature = "cli")]
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct WindowArgs {
    /// The chart begins at this place: virtual milliseconds, or event:N with the number of an event as charts show it.
    #[arg(long, value_name = "PLACE", requires = "html")]
    pub html_from: Option<Bound>,
    /// The chart ends at this place.
    #[arg(long, value_name = "PLACE", requires = "html")]
    pub html_to: Option<Bound>,
}

#[cfg(feature = "cli")]
impl WindowArgs {
    /// Whether a part of the run was chosen.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.html_from.is_some() || self.html_to.is_some()
    }

    /// The window of a seed's run: by default the last events before its end, or before the violation.
    #[must_use]
    pub fn of_run(&self) -> Window {
        let events_max = if self.is_bounded() { EVENTS_MAX } else { EVENTS };
        Window { from: self.html_from, to: self.html_to, events_max }
    }

    /// The window of a story: all of it by default.
    #[must_use]
    pub fn of_story(&self) -> Window {
        Window { from: self.html_from, to: self.html_to, events_max: EVENTS_MAX }
    }
}

/// The events that are kept for a chart.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    from: Option<Bound>,
    to: Option<Bound>,
    /// The most events that are kept; of those between both bounds the last ones are.
    pub(super) events_max: usize,
}

/// The place of an event relative to a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Before,
    Within,
    After,
}

impl Window {
    /// More than a browser can show.
    #[cfg(test)]
    pub(super) const EVERYTHING: Window = Window { events_max: usize::MAX, ..Window::ALL };

    /// Everything that one chart can show.
    pub const ALL: Window = Window { from: None, to: None, events_max: EVENTS_MAX };

    /// Nothing, for a run of which only the situations are of interest.
    pub(crate) const NOTHING: Window = Window { from: Some(Bound::Event(u64::MAX)), ..Window::ALL };

    /// The window around an event: what led to it, and what came of it.
    pub(crate) fn around(event: u64) -> Window {
        let to = event.saturating_add(EVENTS_AFTER);
        // The first event has the number 1.
        let from = to.saturating_sub(EVENTS as u64) + 1;
        Window { from: Some(Bound::Event(from)), to: Some(Bound::Event(to)), ..Window::ALL }
    }

    /// The window of the first events.
    pub(crate) fn of_beginning() -> Window {
        Window { to: Some(Bound::Event(EVENTS as u64)), ..Window::ALL }
    }

    pub(super) fn place(&self, number: u64, at: Moment) -> Place {
        let before = |bound: Bound| match bound {
            Bound::At(moment) => at < moment,
            Bound::Event(first) => number < first,
        };
        let is_after = |bound: Bound| match bound {
            Bound::At(moment) => at > moment,
            Bound::Event(last) => number > last,
        };
        if self.from.is_some_and(before) {
            Place::Before
        } else if self.to.is_some_and(is_after) {
            Place::After
        } else {
            Place::Within
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_milliseconds_or_events() {
        let at = |micros| Bound::At(Moment::after(Duration::from_micros(micros)));
        assert_eq!("1250.5".parse(), Ok(at(1_250_500)));
        assert_eq!("3ms".parse(), Ok(at(3_000)));
        assert_eq!("event:17".parse(), Ok(Bound::Event(17)));
        for wrong in ["soon", "-1", "event:x", "", "inf", "1e300"] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_bounds_belong_to_the_window() {
        let window = Window { from: Some(Bound::Event(3)), to: Some(Bound::Event(5)), events_max: 10 };
        let places: Vec<Place> = (1..=7).map(|number| window.place(number, Moment::START)).collect();
        use Place::{After, Before, Within};
        assert_eq!(places, [Before, Before, Within, Within, Within, After, After]);
    }

    #[test]
    fn a_window_around_an_event_holds_it_and_as_many_events_as_any_other() {
        for (event, from, to) in [(1, 1, 151), (200, 1, 350), (1000, 751, 1150)] {
            let Window { from: first, to: last, .. } = Window::around(event);
            assert_eq!((first, last), (Some(Bound::Event(from)), Some(Bound::Event(to))));
        }
        assert_eq!(Window::NOTHING.place(u64::MAX - 1, Moment::START), Place::Before);
        assert_eq!(Window::of_beginning().place(401, Moment::START), Place::After);
    }
}
