//! Groups in which all voters are needed, though three or more vote: their algorithm decides with more than two thirds.

use synod_consensus::Threshold;
use synod_replica::Group;

/// Those who decide, as words of every day have them.
pub(super) fn most(needed: Threshold) -> &'static str {
    match needed {
        Threshold::Majority => "most voters",
        Threshold::TwoThirds => "more than two thirds of the voters",
    }
}

/// What a set of voters is that cannot decide.
pub(super) fn too_few(needed: Threshold) -> &'static str {
    match needed {
        Threshold::Majority => "no majority",
        Threshold::TwoThirds => "not more than two thirds of all",
    }
}

/// A line for a group that survives the loss of no voter, and would with an algorithm of majorities. There is a number
/// where there are several groups.
pub(super) fn remark(group: &Group, number: Option<usize>) -> Option<String> {
    let (voters, needed) = (group.voters().count(), group.threshold());
    if needed.spare(voters) > 0 || Threshold::Majority.spare(voters) == 0 {
        return None;
    }
    let of = number.map_or(String::new(), |number| format!(" --group {number}"));
    Some(format!(
        "{} decide with these options, so all {voters} are needed, and the loss of one stops the group{}. Of {} voters one \
         may be lost: add members, or choose another algorithm: synod reconfigure{of} --options \"{}\"",
        capitalised(most(needed)),
        number.map_or(String::new(), |number| format!(" {number}")),
        needed.members_for(1),
        group.overrides.without("algorithm")
    ))
}

fn capitalised(text: &str) -> String {
    text[..1].to_uppercase() + &text[1..]
}

#[cfg(test)]
mod tests {
    use synod_consensus::{Options, ProtocolKind};
    use synod_wire::ReplicaId;

    use super::*;

    #[test]
    fn a_group_that_survives_no_loss_says_so_with_the_bound_and_the_remedy() {
        let told = |protocol, options: &str, voters: u64| {
            let mut group = Group::of(&Options::of(protocol), (1..=voters).map(ReplicaId));
            group.overrides = options.parse().expect(options);
            remark(&group, None)
        };
        let thirds = |voters| told(ProtocolKind::Rounds, "algorithm=one-third-rule,window-max=8", voters);
        assert_eq!(
            thirds(3).expect("three are too few"),
            "More than two thirds of the voters decide with these options, so all 3 are needed, and the loss of one stops \
             the group. Of 4 voters one may be lost: add members, or choose another algorithm: synod reconfigure \
             --options \"window-max=8\""
        );
        assert_eq!(thirds(4), None);
        assert_eq!(thirds(2), None, "two survive no loss with any algorithm");
        for voters in 1..6 {
            assert_eq!(told(ProtocolKind::MultiPaxos, "", voters), None);
            assert_eq!(told(ProtocolKind::Rounds, "", voters), None);
        }
    }
}
