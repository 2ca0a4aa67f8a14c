//! The models of consensus in rounds: how long a good period must be until this many instances are decided (Santos
//! 2012, chapter 4), and how long an instance takes with rounds that carry all instances (chapter 5).
//!
//! Lengths are multiples of Δ, the longest delay of a message, and of Φ, the longest time of a step; `rho` is β/α, the
//! ratio of the fastest and the slowest clock.

use std::ops::{Add, Mul, Sub};

/// A length of time: this many Δ and this many Φ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Length {
    /// Multiples of Δ.
    pub delays: f64,
    /// Multiples of Φ.
    pub steps: f64,
}

impl Length {
    /// This many Δ and this many Φ.
    #[must_use]
    pub const fn new(delays: f64, steps: f64) -> Length {
        Length { delays, steps }
    }

    /// The length, for a Δ and a Φ in one unit of time.
    #[must_use]
    pub fn of(self, delay: f64, step: f64) -> f64 {
        self.delays * delay + self.steps * step
    }
}

impl Add for Length {
    type Output = Length;

    fn add(self, other: Length) -> Length {
        Length::new(self.delays + other.delays, self.steps + other.steps)
    }
}

impl Sub for Length {
    type Output = Length;

    fn sub(self, other: Length) -> Length {
        self + other * -1.0
    }
}

impl Mul<f64> for Length {
    type Output = Length;

    fn mul(self, times: f64) -> Length {
        Length::new(self.delays * times, self.steps * times)
    }
}

/// An algorithm with a way to make its rounds: a line of the document's Table 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// OneThirdRule in uniform rounds.
    OneThirdRule,
    /// LastVoting of three rounds in uniform rounds.
    LastVoting3,
    /// LastVoting of three rounds with phase synchronisation.
    Phase,
    /// LastVoting of three rounds, with estimates that travel with the acknowledgements of the phase before.
    Piggybacking,
    /// LastVoting of four rounds in uniform rounds.
    LastVoting4,
    /// LastVoting of four rounds, synchronised by a coordinator.
    Coordinator,
}

/// What a good period costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// From the start of a good period until the first instance can begin.
    pub initialization: Length,
    /// Each instance after that.
    pub consensus: Length,
    /// Messages until the first instance can begin, a replica's to itself among them.
    pub initialization_messages: f64,
    /// Messages of each instance.
    pub consensus_messages: f64,
}

impl Line {
    /// All lines, in the document's order.
    pub const ALL: [Line; 6] = [
        Line::OneThirdRule,
        Line::LastVoting3,
        Line::Phase,
        Line::Piggybacking,
        Line::LastVoting4,
        Line::Coordinator,
    ];

    /// The rounds that an instance takes.
    #[must_use]
    pub fn rounds(self) -> u32 {
        match self {
            Line::OneThirdRule => 2,
            Line::LastVoting3 | Line::Phase | Line::Piggybacking => 3,
            Line::LastVoting4 | Line::Coordinator => 4,
        }
    }

    /// What a good period costs with `n` replicas. `None` where the document has no formula: with piggybacking, whose
    /// algorithm is not in it, for clocks that drift apart.
    #[must_use]
    pub fn cost(self, n: u32, rho: f64) -> Option<Cost> {
        let n = f64::from(n);
        let (initialization, consensus) = match self {
            Line::OneThirdRule => (uniform_rounds(n, rho, 0.0), uniform_round(n, rho) * 2.0),
            Line::LastVoting3 => (uniform_rounds(n, rho, 3.0), uniform_round(n, rho) * 3.0),
            Line::LastVoting4 => (uniform_rounds(n, rho, 4.0), uniform_round(n, rho) * 4.0),
            Line::Phase => phase_synchronisation(n, rho),
            Line::Piggybacking if rho == 1.0 => {
                (Length::new(8.0, 12.0 * n - 1.0), Length::new(4.0, 4.0 * n + 1.0))
            }
            Line::Piggybacking => return None,
            Line::Coordinator => {
                (good_phases(n, rho, 0.0), good_phases(n, rho, 1.0) - good_phases(n, rho, 0.0))
            }
        };
        let all = n * n;
        let (initialization_messages, consensus_messages) = match self {
            Line::OneThirdRule => (all, 2.0 * all),
            Line::LastVoting3 => (4.0 * all, 3.0 * all),
            Line::LastVoting4 => (5.0 * all, 4.0 * all),
            Line::Phase | Line::Piggybacking => (2.0 * all + 2.0 * n, all + 2.0 * n),
            Line::Coordinator => (2.0 * all + 3.0 * n, 4.0 * n),
        };
        Some(Cost { initialization, consensus, initialization_messages, consensus_messages })
    }
}

/// The longest time that a timer of `real` takes on a slow clock (Lemma 4.1: `τ_U = (β/α)·τ_L`).
#[must_use]
pub fn longest(rho: f64, real: Length) -> Length {
    real * rho
}

/// A uniform round (`ϑ` of Corollary 4.1).
#[must_use]
pub fn uniform_round(n: f64, rho: f64) -> Length {
    longest(rho, Length::new(2.0, 2.0 * n - 1.0)) + Length::new(0.0, n)
}

/// A good period in which this many rounds in a row are uniform (Theorem 4.1).
#[must_use]
pub fn uniform_rounds(n: f64, rho: f64, rounds: f64) -> Length {
    uniform_round(n, rho) * (rounds + 1.0) + Length::new(1.0, n)
}

/// A good period in which this many phases in a row decide, synchronised by a coordinator (Theorem 4.2).
#[must_use]
pub fn good_phases(n: f64, rho: f64, phases: f64) -> Length {
    let decision = Length::new(2.0, 2.0 * n - 3.0);
    let phase = decision * rho + Length::new(4.0, 2.0 * n + 5.0);
    let start =
        decision * (rho * rho) + Length::new(5.0, 5.0 * n - 3.0) * rho + Length::new(1.0, 3.0 * n + 1.0);
    phase * phases + start
}

/// Initialization and phase of phase synchronisation with the time-outs of docs/rounds.md, which derives both. Of right
/// clocks the document prints 8Δ + (12n-1)Φ, which is the same, and 5Δ + (7n+2)Φ, which is more.
fn phase_synchronisation(n: f64, rho: f64) -> (Length, Length) {
    let exchange = Length::new(2.0, 2.0 * n - 1.0);
    let estimates = Length::new(2.0, 2.0 * n + 1.0) + exchange * (rho - 1.0);
    let vote = Length::new(1.0, n);
    let start = longest(rho, exchange * 2.0 + estimates + vote) + Length::new(1.0, 5.0 * n);
    let phase = longest(rho, vote + exchange) + Length::new(2.0, 2.0 * n + 3.0);
    (start, phase)
}

/// Chapter 5: replicas take one step in each unit of time, in which delays and time-outs are counted too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// Replicas (`n`).
    pub replicas: f64,
    /// The longest delay that is promised (`Δ`).
    pub delay_max: f64,
    /// The longest delay that there is (`δ`).
    pub delay: f64,
    /// The time-out of a round (`TO`).
    pub round: f64,
    /// The time-out after the first letter of the next round (`TO_D`).
    pub next: f64,
    /// The time-out of life (`TO_A`).
    pub alive: f64,
}

impl Steps {
    /// How long after its start, or after the start of the good period, an instance is decided at the latest, in
    /// rounds that end by time-outs (Theorem 5.1).
    #[must_use]
    pub fn decided_after(&self) -> f64 {
        3.0 * self.round + self.delay_max + 4.0 * self.replicas + 8.0
    }

    /// How long an instance takes at most in a good period, in rounds that end by time-outs (Lemma 5.3).
    #[must_use]
    pub fn instance_at_most(&self) -> f64 {
        2.0 * self.round + self.delay + 3.0 * self.replicas + 6.0
    }

    /// How long an instance over a failure detector takes at most once the detector is right (Theorem 5.3).
    #[must_use]
    pub fn suspecting_at_most(&self) -> f64 {
        3.0 * self.delay + 6.0 * self.replicas + 6.0
    }

    /// How long after its start, or after the start of the good period, an instance is decided at the latest in swift
    /// rounds (Theorem 5.4).
    #[must_use]
    pub fn swift_decided_after(&self) -> f64 {
        self.alive + 2.0 * self.round + self.next + 3.0 * self.delay_max + 6.0 * self.replicas + 15.0
    }

    /// How long after the start of the good period every instance that starts is swift (`X` of Theorem 5.5).
    #[must_use]
    pub fn swift_from(&self) -> f64 {
        self.alive + 3.0 * (self.round + self.replicas + 2.0) + 2.0
    }

    /// How long an instance then takes at most (Theorem 5.5; its proof ends with two steps less: Santos E7).
    #[must_use]
    pub fn swift_at_most(&self) -> f64 {
        3.0 * self.delay + 3.0 * self.replicas + 5.0
    }
}
