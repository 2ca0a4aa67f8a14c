//! From where commands come lately. Beyond the source, which chooses the member that is nearest to a majority: a
//! command of a client at another replica also waits for the way from there to the leader and back.

use super::rules::UNREACHABLE;

/// With each round of pings an eighth of what was counted is forgotten.
const FORGETS: u64 = 8;
/// One command, so that of few the shares are kept until they are forgotten.
const ONE: u64 = 1 << 16;

/// How many commands came from each member, the older ones counted less.
#[derive(Clone, Debug)]
pub(super) struct Origins(Vec<u64>);

impl Origins {
    pub(super) fn new(members: usize) -> Origins {
        Origins(vec![0; members])
    }

    /// Commands of a member's clients were ordered.
    pub(super) fn add(&mut self, member: usize, commands: u64) {
        self.0[member] = self.0[member].saturating_add(commands.saturating_mul(ONE));
    }

    /// Pings leave.
    pub(super) fn forget(&mut self) {
        self.0.iter_mut().for_each(|count| *count -= count.div_ceil(FORGETS));
    }

    /// The members are others from now on; `place_before` says where each stood, if it was one.
    pub(super) fn change_members(&mut self, place_before: &[Option<usize>]) {
        self.0 = place_before.iter().map(|place| place.map_or(0, |at| self.0[at])).collect();
    }

    /// Thousandths of the commands that came from each member; all 0 if none came.
    pub(super) fn thousandths(&self) -> Vec<u64> {
        let all: u128 = self.0.iter().map(|&count| u128::from(count)).sum();
        let part = |&count: &u64| u64::try_from(u128::from(count) * 1000 / all.max(1)).unwrap_or(1000);
        self.0.iter().map(part).collect()
    }

    /// Nanoseconds of the way from the client's replica to a member and back, in the mean over the commands. `row` are
    /// that member's times. Members that the present leader does not reach, as its times say, count for nothing: their
    /// clients are elsewhere. A member that does not reach all others is [`UNREACHABLE`].
    pub(super) fn way(&self, row: &[u64], of_leader: &[u64]) -> u64 {
        let counted = self
            .0
            .iter()
            .zip(row)
            .zip(of_leader)
            .filter(|((count, _), from_leader)| **count > 0 && **from_leader != UNREACHABLE);
        let (mut sum, mut all) = (0u128, 0u128);
        for ((&count, &time), _) in counted {
            if time == UNREACHABLE {
                return UNREACHABLE;
            }
            sum += u128::from(count) * u128::from(time);
            all += u128::from(count);
        }
        u64::try_from(sum / all.max(1)).unwrap_or(UNREACHABLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_the_mean_over_the_commands() {
        let mut origins = Origins::new(3);
        assert_eq!(origins.way(&[0, 50, 90], &[0, 50, 90]), 0, "no commands");
        origins.add(0, 30);
        origins.add(2, 10);
        assert_eq!(origins.thousandths(), [750, 0, 250]);
        assert_eq!(origins.way(&[0, 50, 80], &[0, 50, 80]), 20);
        assert_eq!(origins.way(&[80, 50, 0], &[0, 50, 80]), 60);
        assert_eq!(origins.way(&[80, UNREACHABLE, 0], &[0, 50, 80]), 60, "no command comes from there");
        assert_eq!(origins.way(&[UNREACHABLE, 50, 0], &[0, 50, 80]), UNREACHABLE);
        assert_eq!(origins.way(&[0, 50, UNREACHABLE], &[0, 50, UNREACHABLE]), 0, "nobody reaches it");
    }

    #[test]
    fn old_commands_count_less_and_less() {
        let mut origins = Origins::new(2);
        origins.add(0, 1000);
        (0..40).for_each(|_| origins.forget());
        origins.add(1, 1000);
        assert!(origins.thousandths()[1] > 990);
    }

    #[test]
    fn members_that_stay_keep_their_counts() {
        let mut origins = Origins::new(3);
        origins.add(2, 5);
        origins.change_members(&[None, Some(2)]);
        assert_eq!(origins.thousandths(), [0, 1000]);
    }
}
