//! The bounds of time-outs: below them a round can miss what is still under way, and a group may never decide.
//!
//! The document gives those of chapter 4 for clocks that drift (Lemma 4.2, Corollary 4.2), and those of chapter 5 in
//! steps of equal length (Theorems 5.1 and 5.4). What phase synchronisation needs, and chapter 5 where clocks drift,
//! is derived in docs/rounds.md.

use std::{fmt, time::Duration};

use super::Synchronisation;

/// What is known of a network and of replicas in a good period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The members of the group (`n`).
    pub replicas: u32,
    /// The longest time from sending a message to its arrival (`Δ`).
    pub delay_max: Duration,
    /// The longest time that a replica needs for a step: sending one message, or receiving what has arrived (`Φ`).
    pub step_max: Duration,
    /// How far the slowest clock advances in a million seconds (`α`), at least 1.
    pub clock_slowest: u32,
    /// How far the fastest clock advances in a million seconds (`β`).
    pub clock_fastest: u32,
}

/// A time-out below its bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the time-out {name} is {is:?}, and must be at least {least:?}, which is {bound}, with {bounds}: raise it, or \
     promise a shorter delay"
)]
pub struct TimeoutError {
    /// The time-out, by the document's name.
    pub name: &'static str,
    /// What was set.
    pub is: Duration,
    /// The least that may be set.
    pub least: Duration,
    /// What `least` is computed from.
    pub bound: &'static str,
    /// With which bounds.
    pub bounds: Bounds,
}

/// Parts in a million of a clock that is right.
const RIGHT: u32 = 1_000_000;

impl Bounds {
    /// Those of clocks that are right.
    #[must_use]
    pub fn exact(replicas: u32, delay_max: Duration, step_max: Duration) -> Bounds {
        Bounds { replicas, delay_max, step_max, clock_slowest: RIGHT, clock_fastest: RIGHT }
    }

    /// Full synchronisation of one instance, with the least time-out (Lemma 4.2).
    #[must_use]
    pub fn full(&self) -> Synchronisation {
        Synchronisation::Full { round: self.on_clock(self.real(2, 2, -1)) }
    }

    /// Full synchronisation of many instances, with the least time-out: rounds have a step for input and one for
    /// output (Theorem 5.1).
    #[must_use]
    pub fn repeated(&self) -> Synchronisation {
        Synchronisation::Full { round: self.on_clock(self.real(2, 2, 5)) }
    }

    /// Phase synchronisation with the least time-outs ("The time-outs of phase synchronisation" in docs/rounds.md).
    #[must_use]
    pub fn phase(&self) -> Synchronisation {
        let exchange = self.on_clock(self.real(2, 2, -1));
        Synchronisation::Phase {
            estimates: self.on_clock(self.real(2, 2, 1)) + self.drift(exchange),
            vote: self.on_clock(self.real(1, 1, 0)),
            exchange,
        }
    }

    /// Synchronisation by a coordinator with the least time-outs (Corollary 4.2, with Santos E4).
    #[must_use]
    pub fn coordinator(&self) -> Synchronisation {
        let decision = self.on_clock(self.real(2, 2, -3));
        Synchronisation::Coordinator {
            estimates: self.on_clock(self.real(3, 3, 0)) + self.drift(decision),
            acknowledgements: self.on_clock(self.real(3, 2, 0)),
            decision,
        }
    }

    /// Swift rounds with the least time-outs (Theorem 5.4).
    #[must_use]
    pub fn swift(&self) -> Synchronisation {
        let next = self.on_clock(self.real(1, 1, -1));
        let round = self.on_clock(self.longest(next) + self.real(2, 2, 5));
        Synchronisation::Swift { round, next, alive: self.on_clock(self.longest(round) + self.real(1, 2, 1)) }
    }

    /// Whether time-outs suffice in a group with these bounds.
    ///
    /// # Errors
    /// One is below its bound; the error names it, the bound, and what to do.
    pub fn check(&self, synchronisation: &Synchronisation) -> Result<(), TimeoutError> {
        let least = |name, is, least, bound| {
            let error = || TimeoutError { name, is, least, bound, bounds: *self };
            (is >= least).then_some(()).ok_or_else(error)
        };
        match *synchronisation {
            Synchronisation::Full { round } => {
                least("TO", round, self.on_clock(self.real(2, 2, 5)), "(2Δ + (2n+5)Φ)β")
            }
            Synchronisation::Phase { estimates, vote, exchange } => {
                least("τ_C3", exchange, self.on_clock(self.real(2, 2, -1)), "(2Δ + (2n-1)Φ)β")?;
                let bound = self.on_clock(self.real(2, 2, 1)) + self.drift(exchange);
                least("τ_C1", estimates, bound, "(2Δ + (2n+1)Φ)β + τ_C3(β/α - 1)")?;
                least("τ_C2", vote, self.on_clock(self.real(1, 1, 0)), "(Δ + nΦ)β")
            }
            Synchronisation::Coordinator { estimates, acknowledgements, decision } => {
                least("τ_C4", decision, self.on_clock(self.real(2, 2, -3)), "(2Δ + (2n-3)Φ)β")?;
                let bound = self.on_clock(self.real(3, 3, 0)) + self.drift(decision);
                least("τ_C1", estimates, bound, "(3Δ + 3nΦ)β + τ_C4(β/α - 1)")?;
                least("τ_C3", acknowledgements, self.on_clock(self.real(3, 2, 0)), "(3Δ + 2nΦ)β")
            }
            Synchronisation::Swift { round, next, alive } => {
                least("TO_D", next, self.on_clock(self.real(1, 1, -1)), "(Δ + (n-1)Φ)β")?;
                let bound = self.on_clock(self.longest(next) + self.real(2, 2, 5));
                least("TO", round, bound, "(TO_D/α + 2Δ + (2n+5)Φ)β")?;
                let bound = self.on_clock(self.longest(round) + self.real(1, 2, 1));
                least("TO_A", alive, bound, "(TO/α + Δ + (2n+1)Φ)β")
            }
            Synchronisation::Suspecting => Ok(()),
        }
    }

    /// So many delays, and `per_replica · n + more` steps.
    fn real(&self, delays: u32, per_replica: u32, more: i64) -> Duration {
        let steps = i64::from(per_replica) * i64::from(self.replicas) + more;
        let steps = u32::try_from(steps.max(0)).unwrap_or(u32::MAX);
        self.delay_max.saturating_mul(delays).saturating_add(self.step_max.saturating_mul(steps))
    }

    /// What a clock must show so that at least `real` has gone by (Lemma 4.1, `τ_C = β·τ_L`).
    fn on_clock(&self, real: Duration) -> Duration {
        scaled(real, self.clock_fastest, RIGHT)
    }

    /// The longest time in which a clock shows that `shown` has gone by (Lemma 4.1, `τ_U`).
    fn longest(&self, shown: Duration) -> Duration {
        scaled(shown, RIGHT, self.clock_slowest.max(1))
    }

    /// By how much the slowest clock is late when the fastest one shows `shown`: `shown · (β/α - 1)`.
    fn drift(&self, shown: Duration) -> Duration {
        scaled(shown, self.clock_fastest, self.clock_slowest.max(1)).saturating_sub(shown)
    }
}

/// `duration · by / of`, rounded up.
fn scaled(duration: Duration, by: u32, of: u32) -> Duration {
    let nanos = (duration.as_nanos() * u128::from(by)).div_ceil(u128::from(of));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n = {}, Δ = {:?}, Φ = {:?}", self.replicas, self.delay_max, self.step_max)?;
        if (self.clock_slowest, self.clock_fastest) != (RIGHT, RIGHT) {
            let rate = |parts| f64::from(parts) / f64::from(RIGHT);
            write!(f, ", α = {}, β = {}", rate(self.clock_slowest), rate(self.clock_fastest))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Duration = Duration::from_micros(1);

    fn bounds(slowest: u32, fastest: u32) -> Bounds {
        let bounds = Bounds::exact(5, 1_000 * UNIT, 10 * UNIT);
        Bounds { clock_slowest: slowest, clock_fastest: fastest, ..bounds }
    }

    /// The printed formulas, with Δ = 1000, Φ = 10 and n = 5, in numbers that are not whole.
    #[test]
    fn the_least_time_outs_are_the_printed_ones() {
        for (alpha, beta) in [(1.0, 1.0), (0.9, 1.1), (0.5, 1.0)] {
            let micros = |value: f64| (value * 1e3).ceil() / 1e3;
            let close = |is: Duration, printed: f64| {
                let is = is.as_nanos() as f64 / 1e3;
                assert!((is - micros(printed)).abs() < 0.01, "{is} {printed}, α {alpha}, β {beta}");
            };
            let bounds = bounds((alpha * 1e6) as u32, (beta * 1e6) as u32);
            let Synchronisation::Full { round } = bounds.full() else { panic!() };
            close(round, (2000.0 + 90.0) * beta);
            let Synchronisation::Coordinator { estimates, acknowledgements, decision } = bounds.coordinator()
            else {
                panic!()
            };
            close(decision, (2000.0 + 70.0) * beta);
            close(acknowledgements, (3000.0 + 100.0) * beta);
            // As Corollary 4.2 prints it, not as Lemma 4.3 does.
            close(estimates, (1000.0 + 80.0) * beta + (2000.0 + 70.0) * beta * beta / alpha);
            let Synchronisation::Swift { round, next, alive } = bounds.swift() else { panic!() };
            close(next, (1000.0 + 40.0) * beta);
            close(round, ((1040.0 * beta) / alpha + 2000.0 + 150.0) * beta);
            close(alive, (((1040.0 * beta) / alpha + 2150.0) * beta / alpha + 1000.0 + 110.0) * beta);
        }
    }

    /// B6 of the checklist: each time-out is refused a moment below its bound, and the error names it.
    #[test]
    fn b6_a_time_out_below_its_bound_is_refused_with_the_bound() {
        for bounds in [bounds(RIGHT, RIGHT), bounds(900_000, 1_100_000)] {
            let refused = |changed: Synchronisation, name: &str| {
                let error = bounds.check(&changed).unwrap_err();
                assert_eq!(error.name, name, "{changed:?}");
                assert_eq!(error.least, error.is + Duration::from_nanos(1));
                let text = error.to_string();
                assert!(
                    text.contains("at least") && text.contains("n = 5") && text.contains("raise"),
                    "{text}"
                );
            };
            let short = |timeout: Duration| timeout - Duration::from_nanos(1);
            for whole in [
                bounds.repeated(),
                bounds.phase(),
                bounds.coordinator(),
                bounds.swift(),
                Synchronisation::Suspecting,
            ] {
                assert_eq!(bounds.check(&whole), Ok(()));
                match whole {
                    Synchronisation::Full { round } => {
                        refused(Synchronisation::Full { round: short(round) }, "TO");
                    }
                    Synchronisation::Phase { estimates, vote, exchange } => {
                        let phase =
                            |estimates, vote, exchange| Synchronisation::Phase { estimates, vote, exchange };
                        refused(phase(short(estimates), vote, exchange), "τ_C1");
                        refused(phase(estimates, short(vote), exchange), "τ_C2");
                        refused(phase(estimates, vote, short(exchange)), "τ_C3");
                    }
                    Synchronisation::Coordinator { estimates, acknowledgements, decision } => {
                        let of = |estimates, acknowledgements, decision| Synchronisation::Coordinator {
                            estimates,
                            acknowledgements,
                            decision,
                        };
                        refused(of(short(estimates), acknowledgements, decision), "τ_C1");
                        refused(of(estimates, short(acknowledgements), decision), "τ_C3");
                        refused(of(estimates, acknowledgements, short(decision)), "τ_C4");
                    }
                    Synchronisation::Swift { round, next, alive } => {
                        let swift = |round, next, alive| Synchronisation::Swift { round, next, alive };
                        refused(swift(short(round), next, alive), "TO");
                        refused(swift(round, short(next), alive), "TO_D");
                        refused(swift(round, next, short(alive)), "TO_A");
                    }
                    Synchronisation::Suspecting => {}
                }
            }
        }
    }
}
