//! What it costs to compare a password with the hashes that are stored.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// bcrypt's highest cost.
const COST_MAX: usize = 31;

/// How many hashes there are of each cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs([u64; COST_MAX + 1]);

impl Costs {
    pub(super) fn add(&mut self, hash: &str) {
        if let Some(cost) = cost_of(hash) {
            self.0[cost] += 1;
        }
    }

    pub(super) fn remove(&mut self, hash: &str) {
        if let Some(cost) = cost_of(hash) {
            self.0[cost] -= 1;
        }
    }

    /// The highest; 0 if there is none.
    pub(super) fn highest(&self) -> u32 {
        self.0.iter().rposition(|count| *count > 0).unwrap_or(0) as u32
    }
}

/// The cost of a hash, such as `$2b$10$...` in base64. What is none has no cost.
fn cost_of(hash: &str) -> Option<usize> {
    let hash = STANDARD.decode(hash).ok()?;
    let cost = std::str::from_utf8(&hash).ok()?.split('$').nth(2)?.parse().ok()?;
    (cost <= COST_MAX).then_some(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_cost_is_that_of_a_hash_that_is_there() {
        let hash = |cost: &str| STANDARD.encode(format!("$2b${cost}$/CzYnnbuGy/kNp1H0BWSueuKSSUIZ8hcQN"));
        let mut costs = Costs::default();
        assert_eq!(costs.highest(), 0);
        for none in ["", "?", "aGFzaA==", &STANDARD.encode([0xff]), &hash("32"), &hash("x")] {
            costs.add(none);
            assert_eq!(costs.highest(), 0, "{none}");
            costs.remove(none);
        }
        ["10", "12", "12", "04"].iter().for_each(|cost| costs.add(&hash(cost)));
        assert_eq!(costs.highest(), 12);
        costs.remove(&hash("12"));
        assert_eq!(costs.highest(), 12);
        costs.remove(&hash("12"));
        assert_eq!(costs.highest(), 10);
    }
}
