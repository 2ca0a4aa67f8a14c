//! Options that exist to be measured: which a server refuses of which it is asked, and which it warns of.
//!
//! They are safe, and slower or less available than what serves. A server takes a change with a new one only in a
//! laboratory. A group that has one already goes on with it, as does a replica that was started with one of its own,
//! and the server warns.

use synod_consensus::{Overrides, ProtocolKind};
use synod_replica::{Change, Group};

/// What to do in place of taking an option that exists to be measured.
const OTHERWISE: &str = "or any value on servers that run with --laboratory";

/// Why a server without `--laboratory` refuses a change: it would give the group an option that exists to be measured.
/// An option that the group has already may stay.
pub(super) fn refused(group: &Group, change: &Change) -> Option<String> {
    let Change::Order { protocol, overrides, .. } = change else { return None };
    if let Some(why) = protocol.laboratory().filter(|_| *protocol != group.protocol) {
        return Some(format!(
            "--protocol {protocol} {why}; accepted: another, or {protocol} on servers that run with --laboratory"
        ));
    }
    let mut measured = overrides.measured(*protocol);
    let option = measured.find(|option| group.overrides.get(option.key) != Some(&option.value))?;
    Some(format!("option {option}; accepted: {}={}, {OTHERWISE}", option.key, option.serves.join(", ")))
}

/// A line for each option that exists to be measured and counts in a group: those of the group, and those of this
/// replica's own. There is a number where there are several groups.
pub(super) fn remarks(
    group: &Group,
    number: Option<usize>,
    own: Option<&Overrides>,
) -> impl Iterator<Item = String> {
    of_group(group, number).chain(own_remarks(own, group))
}

fn of_group(group: &Group, number: Option<usize>) -> impl Iterator<Item = String> {
    let of = number.map_or(String::new(), |number| format!(" --group {number}"));
    let protocol = group.protocol.laboratory().map(|why| {
        let (name, serves) = (group.protocol, ProtocolKind::MultiPaxos);
        format!("protocol {name} {why}. To go back: synod reconfigure{of} --protocol {serves}")
    });
    let options = group.overrides.measured(group.protocol).map(move |option| {
        format!(
            "option {option}. To go back: synod reconfigure{of} --options \"{}\"",
            group.overrides.without(option.key)
        )
    });
    protocol.into_iter().chain(options)
}

/// A line for each option of this replica's own that exists to be measured. It counts unless the group fixes it.
fn own_remarks(own: Option<&Overrides>, group: &Group) -> impl Iterator<Item = String> {
    let measured = own.into_iter().flat_map(|options| options.measured(group.protocol));
    let counts = measured.filter(|option| option.is_own && group.overrides.get(option.key).is_none());
    counts.map(|option| {
        let key = option.key;
        format!("option {option}. It is this replica's own: leave {key} out of its --options, or give --laboratory")
    })
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_replica::ChangeRequest;
    use synod_wire::{ReplicaId, Slot};

    use super::*;

    fn order(group: &Group, options: &str) -> Change {
        let (protocol, election) = (group.protocol, group.election);
        Change::Order { protocol, election, overrides: options.parse().expect(options) }
    }

    #[test]
    fn a_replica_that_goes_on_with_an_option_of_its_own_says_so() {
        let lines = |options: &str, group: &Group| -> Vec<String> {
            own_remarks(Some(&options.parse().expect(options)), group).collect()
        };
        let group = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
        let told = lines("check-quorum=off,status-merge=print", &group);
        assert!(told.len() == 1 && told[0].contains("leave check-quorum out of its --options"), "{told:?}");
        assert_eq!(lines("check-quorum=on", &group), [""; 0]);
        let request = ChangeRequest { expected: group.version, change: order(&group, "check-quorum=on") };
        let fixed = group.apply(Slot(9), &request).expect("it is a change");
        assert_eq!(lines("check-quorum=off", &fixed), [""; 0], "the group fixes it");
    }

    #[test]
    fn a_group_does_not_change_to_a_protocol_of_the_laboratory_and_one_that_has_it_says_so() {
        let group = |protocol| Group::of(&Options::of(protocol), [1, 2, 3].map(ReplicaId));
        let (paxos, rounds) = (group(ProtocolKind::MultiPaxos), group(ProtocolKind::Rounds));
        let why = refused(&paxos, &order(&rounds, "")).expect("it is new");
        assert!(why.starts_with("--protocol rounds orders a log without a leader"), "{why}");
        assert!(
            why.ends_with("; accepted: another, or rounds on servers that run with --laboratory"),
            "{why}"
        );
        assert_eq!(refused(&rounds, &order(&rounds, "window-max=8")), None, "it stays");
        let lines: Vec<_> = remarks(&rounds, Some(2), None).collect();
        let end = ". To go back: synod reconfigure --group 2 --protocol multipaxos";
        assert!(lines.len() == 1 && lines[0].ends_with(end), "{lines:?}");
    }

    #[test]
    fn a_change_may_keep_what_exists_to_be_measured_and_not_add_it() {
        let paxos = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        let kernel = Group::of(&Options::of(ProtocolKind::KernelPaxos), [1, 2, 3].map(ReplicaId));
        let change = order(&kernel, "window-max=8");
        assert!(
            refused(&paxos, &change)
                .expect("it is new")
                .contains("kernel-paxos on servers that run with --laboratory")
        );
        assert_eq!(refused(&kernel, &change), None, "it stays");
        let group = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
        let why = refused(&group, &order(&group, "check-quorum=off,window-max=8")).expect("it is new");
        assert!(why.starts_with("option check-quorum=off exists to be measured, not to serve: "), "{why}");
        assert!(
            why.ends_with("; accepted: check-quorum=on, or any value on servers that run with --laboratory")
        );
        assert_eq!(refused(&group, &order(&group, "check-quorum=on,window-max=8")), None);
        assert_eq!(refused(&group, &Change::Remove(ReplicaId(1))), None);
        assert_eq!(remarks(&group, None, None).count(), 0);

        let request = ChangeRequest { expected: group.version, change: order(&group, "check-quorum=off") };
        let group = group.apply(Slot(9), &request).expect("a server with --laboratory takes it");
        assert_eq!(refused(&group, &order(&group, "check-quorum=off,window-max=8")), None, "it stays");
        assert!(refused(&group, &order(&group, "check-quorum=off,status-merge=print")).is_some());
        let lines: Vec<_> = remarks(&group, Some(2), None).collect();
        let end = ". To go back: synod reconfigure --group 2 --options \"\"";
        assert!(lines.len() == 1 && lines[0].ends_with(end), "{lines:?}");
    }
}
