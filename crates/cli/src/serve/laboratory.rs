//! What a server takes only with `--laboratory`: options of protocols that exist to be measured.
//!
//! They are safe, and slower or less available than what serves. The server refuses them where they would begin to count:
//! when a cluster begins, and when the server is asked for a change. A group that has one already goes on with it, and the
//! server warns.

use synod_replica::{Change, Group};

use super::{
    config::{ConfigError, protocol, wrong},
    flags::Tuning,
};

/// What to do in place of taking an option that exists to be measured.
const OTHERWISE: &str = "or any value on servers that run with --laboratory";

/// Refuses to begin a cluster with an option that exists to be measured.
pub fn check_start(tuning: &Tuning) -> Result<(), ConfigError> {
    let Some(options) = tuning.options.as_ref().filter(|_| !tuning.laboratory) else { return Ok(()) };
    match options.measured(protocol(tuning)).next() {
        Some(option) => {
            let (key, serves) = (option.key, option.serves.join(", "));
            wrong("options", options, format!("{option}; accepted: {key}={serves}, {OTHERWISE}"))
        }
        None => Ok(()),
    }
}

/// Why a server without `--laboratory` refuses a change: it would give the group an option that exists to be measured. An
/// option that the group has already may stay.
pub fn refused(group: &Group, change: &Change) -> Option<String> {
    let Change::Order { protocol, overrides, .. } = change else { return None };
    let mut measured = overrides.measured(*protocol);
    let option = measured.find(|option| group.overrides.get(option.key) != Some(&option.value))?;
    Some(format!("option {option}; accepted: {}={}, {OTHERWISE}", option.key, option.serves.join(", ")))
}

/// A line for each option of a group that exists to be measured. There is a number where there are several groups.
pub fn remarks(group: &Group, number: Option<usize>) -> impl Iterator<Item = String> {
    let of = number.map_or(String::new(), |number| format!(" --group {number}"));
    group.overrides.measured(group.protocol).map(move |option| {
        format!(
            "option {option}. To go back: synod reconfigure{of} --options \"{}\"",
            group.overrides.without(option.key)
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use synod_consensus::{Options, ProtocolKind};
    use synod_replica::ChangeRequest;
    use synod_wire::{ReplicaId, Slot};

    use super::*;
    use crate::serve::{config::check, flags::ServeArgs};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn started(line: &str) -> Result<(), String> {
        let args =
            Cli::try_parse_from(["serve", "--data-dir", "/nowhere"].into_iter().chain(line.split(' ')));
        check(&args.expect(line).args).map(drop).map_err(|error| error.to_string())
    }

    fn order(group: &Group, options: &str) -> Change {
        let (protocol, election) = (group.protocol, group.election);
        Change::Order { protocol, election, overrides: options.parse().expect(options) }
    }

    #[test]
    fn a_cluster_does_not_begin_with_what_exists_to_be_measured() {
        let why = started("--protocol raft --options status-merge=print").expect_err("print stalls");
        for part in
            ["--options status-merge=print: ", "stalls", "accepted: status-merge=vec, ", "--laboratory"]
        {
            assert!(why.contains(part), "{why} should contain {part}");
        }
        for line in [
            "--protocol raft --options check-quorum=off",
            "--protocol ring --options ring-order=measured,ring-reserve=8",
            "--protocol sequence-paxos --options head-start=off",
        ] {
            assert!(started(line).expect_err(line).contains("exists to be measured"), "{line}");
            started(&format!("{line} --laboratory")).expect(line);
        }
        started("--protocol raft --options replication=gossip-status,peer-repair=on,vote-gossip=on").unwrap();
        started("--protocol ring --options ring-order=measured,ring-voters=accept").unwrap();
        let joins = "--initial-cluster a=http://h:1 --initial-cluster-state existing";
        started(&format!("{joins} --protocol raft --options check-quorum=off"))
            .expect("the group has its own");
    }

    #[test]
    fn a_change_may_keep_what_exists_to_be_measured_and_not_add_it() {
        let group = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
        let why = refused(&group, &order(&group, "check-quorum=off,window-max=8")).expect("it is new");
        assert!(why.starts_with("option check-quorum=off exists to be measured, not to serve: "), "{why}");
        assert!(
            why.ends_with("; accepted: check-quorum=on, or any value on servers that run with --laboratory")
        );
        assert_eq!(refused(&group, &order(&group, "check-quorum=on,window-max=8")), None);
        assert_eq!(refused(&group, &Change::Remove(ReplicaId(1))), None);
        assert_eq!(remarks(&group, None).count(), 0);

        let request = ChangeRequest { expected: group.version, change: order(&group, "check-quorum=off") };
        let group = group.apply(Slot(9), &request).expect("a server with --laboratory takes it");
        assert_eq!(refused(&group, &order(&group, "check-quorum=off,window-max=8")), None, "it stays");
        assert!(refused(&group, &order(&group, "check-quorum=off,status-merge=print")).is_some());
        let lines: Vec<_> = remarks(&group, Some(2)).collect();
        let end = ". To go back: synod reconfigure --group 2 --options \"\"";
        assert!(lines.len() == 1 && lines[0].ends_with(end), "{lines:?}");
    }
}
