//! Warns of flags that differ from the group's settings, or name another cluster than the one that the replica has data
//! of.
//!
//! These flags count when a cluster begins, when all replicas must get the same values (the cluster's id is
//! made of them). From then on they are in the group's log, and change for all replicas at once. A replica
//! that restarts or joins uses the group's values, since two replicas that differ in them would not
//! understand each other.

use synod_consensus::{Options, Overrides};
use synod_replica::Group;
use synod_server::urls;
use synod_wire::{ClusterId, Groups};

use super::{
    config::{cluster_id, initial_members},
    flags::{ClusterState, ServeArgs, Tuning},
};

/// A line if the flags would begin another cluster than this one, and do not name its present members either, as those
/// do that were corrected after a member has moved.
pub fn begins_another(args: &ServeArgs, cluster: ClusterId, groups: Groups, group: &Group) -> Option<String> {
    let begins =
        args.cluster.initial_cluster_state == ClusterState::New && !args.cluster.initial_cluster.is_empty();
    let given = initial_members(args).ok().filter(|_| begins)?;
    let url = |member: &synod_replica::Member| {
        member.info.peer_urls.first().map_or_else(String::new, |url| urls::plain(url).to_owned())
    };
    let members = group.members.iter().map(|member| (member.info.name.clone(), url(member)));
    let mut members: Vec<_> = members.collect();
    members.sort();
    let are_given = given.iter().map(|(name, url)| (name.as_str(), urls::plain(url)));
    let are_present = are_given.eq(members.iter().map(|(name, url)| (name.as_str(), url.as_str())));
    if are_present || cluster_id(args, groups, &given) == cluster {
        return None;
    }
    let members: Vec<_> = members.iter().map(|(name, url)| format!("{name}={url}")).collect();
    Some(format!(
        "--initial-cluster and what belongs to it count at the first start only; this replica has data of cluster {cluster}, \
         which its flags would not begin. Leave them out, or name the present members: --initial-cluster {}",
        members.join(",")
    ))
}

/// A line for each given flag that differs from the value of the group, which is one of these.
pub fn differing(tuning: &Tuning, group: &Group, groups: Groups) -> Vec<String> {
    let options = group.options(&Options::default());
    let decision = tuning.decision.filter(|_| options.protocol.heeds("decision"));
    let options_change = |key: &str, value: String| {
        let others = group.overrides.to_string();
        let is_other = |pair: &&str| !pair.is_empty() && pair.split('=').next() != Some(key);
        let others = others.split(',').filter(is_other).map(str::to_owned);
        let options: Vec<_> = others.chain([format!("{key}={value}")]).collect();
        format!("--options {}", options.join(","))
    };
    [
        line("protocol", tuning.protocol, options.protocol, |protocol| format!("--protocol {protocol}")),
        line("election", tuning.election, options.election, |election| format!("--election {election}")),
        line("decision", decision, options.multipaxos.decision, |decision| {
            options_change("decision", decision)
        }),
        line("dissemination", tuning.dissemination, options.dissemination, |how| {
            options_change("dissemination", how)
        }),
        differing_options(tuning, group),
        line("max-request-bytes", tuning.max_request_bytes, group.limits.request_bytes_max, |bytes| {
            format!("--limits max-request-bytes={bytes}")
        }),
        line(
            "max-txn-ops",
            tuning.max_txn_ops.map(|count| count as usize),
            group.limits.txn_ops_max,
            |count| format!("--limits max-txn-ops={count}"),
        ),
    ]
    .into_iter()
    .flatten()
    // It ends with the command that changes the group.
    .map(|line| if groups.count > 1 { format!("{line} --all-groups") } else { line })
    .collect()
}

fn differing_options(tuning: &Tuning, group: &Group) -> Option<String> {
    let given = tuning.options.as_ref().filter(|given| given.check(group.protocol).is_ok())?;
    let mut changed = group.options(&Options::default());
    let agreed = Overrides::shared(&changed);
    given.apply(&mut changed);
    let changed = Overrides::shared(&changed);
    let named = |options: &Overrides| {
        if options.is_empty() { "the defaults".to_owned() } else { options.to_string() }
    };
    let change = |_| format!("--options {changed}");
    // The server would refuse the command, and what it warns of says what to do.
    let refused = !tuning.laboratory && given.measured(group.protocol).next().is_some();
    (agreed != changed && !refused)
        .then(|| line("options", Some(given.to_string()), named(&agreed), change))?
}

fn line<T: PartialEq + ToString>(
    flag: &str,
    given: Option<T>,
    agreed: T,
    change: impl FnOnce(String) -> String,
) -> Option<String> {
    let given = given.filter(|given| *given != agreed)?.to_string();
    let agreed = agreed.to_string();
    Some(format!(
        "--{flag} {given}: the group has {agreed}, and that counts for all its replicas. Leave the flag out, or change \
         the group: synod reconfigure {}",
        change(given.clone())
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use synod_consensus::ProtocolKind;
    use synod_replica::{Change, ChangeRequest, MemberInfo};
    use synod_wire::{ReplicaId, Slot};

    use super::*;
    use crate::serve::flags::ServeArgs;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn lines(flags: &str, group: &Group) -> Vec<String> {
        let args = Cli::try_parse_from(["serve"].into_iter().chain(flags.split_whitespace())).unwrap().args;
        differing(&args.tuning, group, Groups::ONE)
    }

    fn changed(group: &Group, change: Change) -> Group {
        group.apply(Slot(9), &ChangeRequest { expected: group.version, change }).unwrap()
    }

    #[test]
    fn flags_that_name_neither_the_first_nor_the_present_members_are_warned_of() {
        let flags = |list: &str, more: &str| {
            let line = format!("serve --name a --initial-cluster {list} {more}");
            Cli::try_parse_from(line.split_whitespace()).unwrap().args
        };
        let (first, moved) = ("a=http://a:1,b=http://b:1", "a=http://a:1,b=http://b:9");
        let args = flags(first, "");
        let cluster = cluster_id(&args, Groups::ONE, &initial_members(&args).unwrap());
        let info = |name: &str, url: &str| MemberInfo::new(name, vec![url.to_owned()]);
        let members = [(ReplicaId(1), info("a", "http://a:1")), (ReplicaId(2), info("b", "http://b:9/"))];
        let group = Group::first(&Options::default(), members);
        let told = |list, more| begins_another(&flags(list, more), cluster, Groups::ONE, &group);
        assert_eq!(told(first, ""), None, "with these it began");
        assert_eq!(told(moved, ""), None, "these it has now");
        assert_eq!(told("a=http://a:2", "--initial-cluster-state existing"), None, "these are to be asked");
        for (list, more) in [("a=http://a:1,b=http://b:2", ""), (first, "--initial-cluster-token other")] {
            let line = told(list, more).expect("it names another cluster");
            assert!(line.ends_with("name the present members: --initial-cluster a=http://a:1,b=http://b:9"));
        }
    }

    #[test]
    fn a_flag_that_the_group_overrules_is_named_with_both_values_and_the_remedy() {
        let group = Group::of(&Options::default(), [ReplicaId(1)]);
        let (protocol, election) = (group.protocol, group.election);
        let overrides = "decision=all,window-max=9".parse().unwrap();
        let group = changed(&group, Change::Order { protocol, election, overrides });
        let group = changed(&group, Change::Limits(group.limits.with("max-txn-ops=7").unwrap()));
        assert_eq!(lines("", &group), [""; 0], "what nobody said is no difference");
        let same =
            "--decision all --max-txn-ops 7 --protocol multipaxos --max-request-bytes 1.5MiB --window-max 3";
        assert_eq!(lines(same, &group), [""; 0]);
        for (flags, parts) in [
            (
                "--decision leader",
                ["--decision leader: the group has all", "--options window-max=9,decision=leader"],
            ),
            ("--max-txn-ops 8", ["--max-txn-ops 8: the group has 7", "reconfigure --limits max-txn-ops=8"]),
            (
                "--max-request-bytes 1MiB",
                ["1048576: the group has 1572864", "--limits max-request-bytes=1048576"],
            ),
            (
                "--protocol raft",
                ["--protocol raft: the group has multipaxos", "synod reconfigure --protocol raft"],
            ),
            ("--election rotating", ["the group has ballot", "synod reconfigure --election rotating"]),
        ] {
            let [line] = &lines(flags, &group)[..] else { panic!("{flags}") };
            parts.iter().for_each(|part| assert!(line.contains(part), "{line} should contain {part}"));
        }
        let [line] = &lines("--options decision=leader", &group)[..] else { panic!("the group has all") };
        assert!(line.contains("--options decision=leader: the group has decision=all"), "{line}");
        assert_eq!(lines("--options decision=all", &group), [""; 0]);
        let tuning = Cli::try_parse_from(["serve", "--protocol", "raft"]).unwrap().args.tuning;
        let [line] = &differing(&tuning, &group, Groups::shards(2))[..] else { panic!("it has multipaxos") };
        assert!(line.ends_with("synod reconfigure --protocol raft --all-groups"), "{line}");
        let raft = Group::of(&Options::of(ProtocolKind::Raft), [ReplicaId(1)]);
        assert_eq!(lines("--decision all", &raft), [""; 0], "it would mean nothing there");
    }
}
