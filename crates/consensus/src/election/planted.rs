//! The rule of an election that each planted bug replaces ([`crate::Bug`]).

use super::rules::Rules;
use crate::Bug;

/// The rules of an election in which this bug is planted.
#[inline]
pub(super) fn rules(planted: Option<Bug>) -> Rules {
    let mut rules = Rules::SOUND;
    match planted {
        Some(Bug::ElectionEchoesHighest) => {
            rules.shown = |_, _, _, follows| follows;
            rules.is_word_of_leader = |said, follows| said.happy && said.ballot == follows;
        }
        Some(Bug::ElectionMajorityOffByOne) => {
            rules.is_connected = |members, answered| members.is_quorum(answered);
        }
        Some(Bug::ElectionIgnoresHappiness) => rules.is_content = |happy, _| happy,
        Some(Bug::ElectionForgetsPromise) => rules.begins_with = |known, _| known,
        Some(Bug::ElectionOfHungDisk) => {
            // The disk that hangs is not noticed in Phase 1, either, nor by the replica that gives up.
            rules.is_fit = |_| true;
            rules.phase_1_rounds = |timeout| timeout;
            rules.abstains = |timeout, _, failures| (timeout, failures);
        }
        Some(Bug::ElectionWithoutRehearsal) => rules.may_try = |_, _| true,
        _ => {}
    }
    rules
}
