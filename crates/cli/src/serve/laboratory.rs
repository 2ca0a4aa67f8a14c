//! What a server takes only with `--laboratory`: options of protocols that exist to be measured, and settings of a
//! replica that are derived otherwise.
//!
//! Options are safe, and slower or less available than what serves. They are refused where they would begin to count:
//! here when a cluster begins, and when a replica joins with one of its own. A server that runs refuses a change with
//! one, and warns of those that it has ([`measured`]).

use std::time::Duration;

use synod_consensus::{MeasuredOption, ProtocolKind};
use synod_replica::{Skips, StateTransfer};

use super::{
    config::{ConfigError, protocol, wrong},
    flags::{Derived, Tuning, Window},
};

/// What to do in place of taking an option that exists to be measured, where a cluster may have begun with it: its id
/// is made of such settings.
const AS_OTHERS: &str =
    "or any value with --laboratory, which a member needs whose cluster has begun with it";

/// Refuses what a server derives, and says of what; and a window that is not ready to serve.
pub fn check_replica(tuning: &Tuning) -> Result<(), ConfigError> {
    if tuning.window_max == Window::Auto && !tuning.laboratory {
        let why = "fills a narrow link no better than a fixed window where leaders change (docs/results/santos-2012.md)";
        return wrong(
            "window-max",
            Window::Auto,
            format!("{why}; accepted: a number of slots, or --laboratory"),
        );
    }
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
    if let Some(why) = protocol(tuning).laboratory() {
        let serve = ProtocolKind::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return wrong("protocol", protocol(tuning), format!("{why}; accepted: {serve}, {AS_OTHERS}"));
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

#[cfg(test)]
mod tests {
    use crate::serve::{config::check, flags::ServeArgs};
    use clap::Parser;

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
        let window = started("--window-max auto").expect_err("it is measured");
        assert!(window.contains("--window-max auto: ") && window.contains("a number of slots"), "{window}");
        started("--window-max auto --laboratory").expect("a laboratory's");
        started("--election latency").expect("it serves");
        let kernel = started("--protocol kernel-paxos").expect_err("nobody has read it");
        assert!(
            kernel.contains("--protocol kernel-paxos: is new") && kernel.contains("--laboratory"),
            "{kernel}"
        );
        started("--protocol kernel-paxos --options prepare=ahead --laboratory").expect("a laboratory's");
        let rounds = started("--protocol rounds").expect_err("it is tested less");
        for part in
            ["--protocol rounds: orders a log without a leader", "accepted: multipaxos, ", "--laboratory"]
        {
            assert!(rounds.contains(part), "{rounds} should contain {part}");
        }
        started("--protocol rounds --laboratory --options rounds=timed,algorithm=last-voting-4")
            .expect("it is");
        for (flags, why) in [
            ("--election ballot", "accepted: none"),
            (
                "--dissemination balanced",
                "--dissemination balanced: dissemination balanced does not go with rounds",
            ),
            ("--dissemination references", "accepted: leader"),
            ("--options decision=all", "option decision does not go with rounds"),
        ] {
            let refused = started(&format!("--protocol rounds --laboratory {flags}")).expect_err(flags);
            assert!(refused.contains(why), "{refused} should contain {why}");
        }
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
}
