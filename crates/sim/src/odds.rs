//! How often something random happens.

use fastrand::Rng;

/// A probability, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds(u32);

impl Odds {
    /// Something that does not happen.
    pub const NEVER: Odds = Odds(0);
    /// Something that always happens.
    pub const ALWAYS: Odds = Odds(1_000_000);

    /// Something that happens this many times in a hundred.
    #[must_use]
    pub const fn percent(percent: u32) -> Odds {
        Odds(percent * 10_000)
    }

    /// Something that happens this many times in a million.
    #[must_use]
    pub const fn per_million(parts: u32) -> Odds {
        Odds(parts)
    }

    /// Whether it happens this time. If it never happens, no number is drawn.
    pub fn hit(self, rng: &mut Rng) -> bool {
        self.0 > 0 && rng.u32(0..1_000_000) < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_exact() {
        let mut rng = Rng::with_seed(3);
        assert!((0..1000).all(|_| Odds::ALWAYS.hit(&mut rng) && !Odds::NEVER.hit(&mut rng)));
        let hits = (0..10_000).filter(|_| Odds::percent(30).hit(&mut rng)).count();
        assert!((2_700..3_300).contains(&hits), "{hits}");
    }
}
