//! What a server takes only with `--laboratory`: options of protocols that exist to be measured, and settings of a
//! replica that are derived otherwise.
//!
//! Options are safe, and slower or less available than what serves. The server refuses them where they would begin to
//! count: when a cluster begins, when a replica joins with one of its own, and when the server is asked for a change. A
//! group that has one already goes on with it, as does a replica that was started with one of its own, and the server
//! warns.

use std::time::Duration;

use synod_consensus::MeasuredOption;
use synod_replica::{Change, Group, Skips, StateTransfer};

use super::{
    config::{ConfigError, protocol, wrong},
    flags::{Derived, Tuning},
};

/// What to do in place of taking an option that exists to be measured.
const OTHERWISE: &str = "or any value on servers that run with --laboratory";
/// The same, where a cluster may have begun with the option: its id is made of such settings.
const AS_OTHERS: &str =
    "or any value with --laboratory, which a member needs whose cluster has begun with it";

/// Refuses what a server derives, and says of what.
pub fn check_replica(tuning: &Tuning) -> Result<(), ConfigError> {
    let Derived {
        retransmit_after,
        announce_delay_max,
        batch_delay_max,
        forward_window_max,
        state_transfer,
        client_io_threads,
    } = tuning.derived;
    let time = |time: Option<Duration>| time.map(|time| format!("{time:?}"));
    let skips = Some(tuning.skips).filter(|skips| matches!(skips, Skips::Lambda(_)));
    let eager = state_transfer.filter(|how| *how == StateTransfer::Eager);
    let given = [
        (
            "retransmit-after",
            time(retransmit_after),
            "a replica sends again after --heartbeat-interval, and not before 100 ms",
        ),
        ("announce-delay-max", time(announce_delay_max), "a decision waits up to 5 ms for the next proposal"),
        ("batch-delay-max", time(batch_delay_max), "a batch waits up to 1 ms for a place in --window-max"),
        (
            "forward-window-max",
            forward_window_max.map(|batches| batches.to_string()),
            "a follower has up to 8 batches in flight to the leader, and no more than --window-max",
        ),
        ("state-transfer", eager.map(|how| how.to_string()), "a replica that joins asks for what it lacks"),
        (
            "client-io-threads",
            client_io_threads.map(|count| count.to_string()),
            "a thread serves clients with --threads spread, and the protocol's own with --threads compact",
        ),
        ("skips", skips.map(|skips| skips.to_string()), "follow and demand know what others wait for"),
    ];
    let refused = given.into_iter().find_map(|(flag, value, instead)| Some((flag, value?, instead)));
    match refused.filter(|_| !tuning.laboratory) {
        Some((flag, value, instead)) => wrong(
            flag,
            value,
            format!(
                "is no setting of a server any more: {instead}; leave it out, or give --laboratory as well"
            ),
        ),
        None => Ok(()),
    }
}

/// Refuses to begin a cluster with what exists to be measured.
pub fn check_start(tuning: &Tuning) -> Result<(), ConfigError> {
    if tuning.laboratory {
        return Ok(());
    }
    if let Some(groups) = tuning.groups.filter(|groups| groups.merged.is_some_and(|take| take.get() > 1)) {
        let why = format!(
            "executes several batches of a group in a row, which exists to be measured; accepted: merge:{}, {AS_OTHERS}",
            groups.count
        );
        return wrong("groups", groups, why);
    }
    refuse_measured(tuning, |_| true)
}

/// Refuses to join with an option of this replica's own that exists to be measured. The others are the group's to fix.
pub fn check_joiner(tuning: &Tuning) -> Result<(), ConfigError> {
    if tuning.laboratory { Ok(()) } else { refuse_measured(tuning, |option| option.is_own) }
}

fn refuse_measured(tuning: &Tuning, counts: impl Fn(&MeasuredOption) -> bool) -> Result<(), ConfigError> {
    let Some(options) = &tuning.options else { return Ok(()) };
    match options.measured(protocol(tuning)).find(|option| counts(option)) {
        Some(option) => {
            let (key, serves) = (option.key, option.serves.join(", "));
            wrong("options", options, format!("{option}; accepted: {key}={serves}, {AS_OTHERS}"))
        }
        None => Ok(()),
    }
}

/// A line for each option of this replica's own that exists to be measured. It counts unless the group fixes it.
pub fn own_remarks(tuning: &Tuning, group: &Group) -> Vec<String> {
    let measured = tuning.options.iter().flat_map(|options| options.measured(group.protocol));
    let counts = measured.filter(|option| option.is_own && group.overrides.get(option.key).is_none());
    counts
        .map(|option| {
            let key = option.key;
            format!("option {option}. It is this replica's own: leave {key} out of its --options, or give --laboratory")
        })
        .collect()
}

/// Why a server without `--laboratory` refuses a change: it would give the group an option that exists to be measured.
/// An option that the group has already may stay.
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
        started("--election latency").expect("it serves");
        started("--protocol raft --options replication=gossip-status,peer-repair=on,vote-gossip=on").unwrap();
        started("--protocol ring --options ring-order=measured,ring-voters=accept").unwrap();
        let joins = "--initial-cluster a=http://h:1 --initial-cluster-state existing";
        started(&format!("{joins} --protocol raft --options status-merge=print"))
            .expect("the group has its own");
        let own = format!("{joins} --protocol raft --options check-quorum=off");
        assert!(
            started(&own).expect_err("the replica would").contains("check-quorum=off exists to be measured")
        );
        started(&format!("{own} --laboratory")).expect("it is a laboratory's");
    }

    #[test]
    fn a_replica_that_goes_on_with_an_option_of_its_own_says_so() {
        let tuning = |line: &str| {
            let words = ["serve", "--data-dir", "/nowhere"].into_iter().chain(line.split(' '));
            Cli::try_parse_from(words).expect(line).args.tuning
        };
        let group = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
        let lines = own_remarks(&tuning("--options check-quorum=off,status-merge=print"), &group);
        assert!(
            lines.len() == 1 && lines[0].contains("leave check-quorum out of its --options"),
            "{lines:?}"
        );
        assert_eq!(own_remarks(&tuning("--options check-quorum=on"), &group), [""; 0]);
        let request = ChangeRequest { expected: group.version, change: order(&group, "check-quorum=on") };
        let fixed = group.apply(Slot(9), &request).expect("it is a change");
        assert_eq!(own_remarks(&tuning("--options check-quorum=off"), &fixed), [""; 0], "the group fixes it");
    }

    #[test]
    fn what_a_server_derives_is_refused_with_what_it_follows() {
        for (flags, instead) in [
            ("--retransmit-after 50ms", "--heartbeat-interval"),
            ("--announce-delay-max 0", "5 ms"),
            ("--batch-delay-max 2ms", "1 ms"),
            ("--forward-window-max 4", "--window-max"),
            ("--state-transfer eager", "asks for what it lacks"),
            ("--client-io-threads 2", "--threads compact"),
            ("--groups merge:2 --skips lambda:9", "follow and demand"),
            ("--groups merge:2:3", "accepted: merge:2, "),
        ] {
            let why = started(flags).expect_err(flags);
            assert!(why.contains(instead) && why.contains("--laboratory"), "{why}");
            started(&format!("{flags} --laboratory")).expect(flags);
        }
        started("--state-transfer pull --groups merge:2 --skips demand").expect("that is what a server does");
    }

    #[test]
    fn a_replica_sends_again_after_a_heartbeat_and_not_before_100_ms() {
        let after = |line: &str| {
            let words = ["serve", "--data-dir", "/nowhere"].into_iter().chain(line.split(' '));
            let args = Cli::try_parse_from(words).expect(line).args;
            check(&args).expect(line).node.settings.consensus.retransmit_after.as_millis()
        };
        assert_eq!(after("--heartbeat-interval 20ms"), 100);
        assert_eq!(after("--heartbeat-interval 300ms"), 300);
        assert_eq!(after("--laboratory --retransmit-after 7ms --heartbeat-interval 300ms"), 7);
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
