//! The first start of a replica that joins a cluster: it finds out which cluster it joins, and with which id.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use synod_node::{AskError, Config, Merging, Origin, Repeats, Tls};
use synod_replica::{Member, Skips, Standing};
use synod_wire::{Groups, ReplicaId};

use super::Error;
use crate::urls;

/// How long all the other replicas may be silent before this one gives up.
const WAIT_MAX: Duration = Duration::from_secs(15);
/// The pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(500);

/// What a joining replica says of itself, and which replicas it may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joining {
    /// The name of this replica.
    pub name: String,
    /// The URL at which the other replicas reach this one.
    pub peer_url: String,
    /// The `host:port` of each other replica, or `https://host:port`.
    pub others: Vec<String>,
    /// The groups that the cluster must have, if that matters.
    pub groups: Option<Groups>,
    /// When a group goes on in the common order if it orders less than others, if the cluster's are merged.
    pub skips: Skips,
}

/// Asks which number this replica has in its cluster and what the group is, and writes it into `config`. Returns the
/// groups of the cluster.
pub(super) fn join(joining: &Joining, config: &mut Config, stop: &AtomicBool) -> Result<Groups, Error> {
    let (me, origin) = ask(joining, config.tls.as_ref(), stop)?;
    let groups = groups(&origin, joining.groups)?;
    tracing::info!(%me, cluster = %origin.cluster, %groups, "joining");
    config.merging = Merging::of_cluster(groups, joining.skips);
    (config.me, config.cluster, config.joins) = (me, origin.cluster, Some(origin));
    Ok(groups)
}

/// Asks the other replicas until one answers, and finds this replica among the members.
fn ask(joining: &Joining, tls: Option<&Tls>, stop: &AtomicBool) -> Result<(ReplicaId, Origin), Error> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut warnings = Repeats::default();
    tracing::info!(others = joining.others.join(","), "asking who belongs to the cluster");
    let origin = loop {
        match Origin::ask_blocking(joining.others.iter().map(String::as_str), tls, WAIT_MAX) {
            Ok(origin) => break origin,
            Err(error @ AskError::Divided { .. }) => {
                return Err(Error::Join(format!("--initial-cluster: {error}")));
            }
            Err(error) if Instant::now() + PAUSE >= deadline || stop.load(Ordering::Acquire) => {
                return Err(Error::Join(format!(
                    "--initial-cluster-state existing: {error}. Name members of the cluster that run in \
                     --initial-cluster; give --initial-cluster-state new if the cluster is to begin now"
                )));
            }
            Err(error) => {
                if warnings.admit(&error.to_string()).is_some() {
                    tracing::warn!("{error}; trying again");
                }
            }
        }
        thread::sleep(PAUSE);
    };
    let me = find(joining, &origin)?;
    Ok((me, origin))
}

/// The groups of the cluster, which must be those that a flag asks for.
fn groups(origin: &Origin, asked_for: Option<Groups>) -> Result<Groups, Error> {
    let groups = origin.groups();
    match asked_for.filter(|asked| *asked != groups) {
        Some(other) => Err(Error::Setting(format!(
            "--groups {other}: the cluster to be joined has other groups; accepted: --groups {groups}"
        ))),
        None => Ok(groups),
    }
}

fn find(joining: &Joining, origin: &Origin) -> Result<ReplicaId, Error> {
    let Joining { name, peer_url, .. } = joining;
    let group = &origin.present;
    let has_url =
        |member: &&Member| member.info.peer_urls.iter().any(|url| urls::plain(url) == urls::plain(peer_url));
    let has_name = |member: &&Member| member.info.name == *name;
    let members = || group.members.iter();
    // A replica that replaces another may have its address, so the youngest counts.
    let found = members().rev().find(has_url).or_else(|| members().rev().find(has_name));
    let Some(member) = found else {
        let removed = group.former.iter().any(|member| has_url(&member) || has_name(&member));
        let known: Vec<_> = members()
            .map(|member| format!("{}={}", member.info.name, member.info.peer_urls.join(",")))
            .collect();
        let what = if removed { "was removed from the cluster" } else { "is not a member of the cluster" };
        return Err(Error::Join(format!(
            "{name} at {peer_url} {what}, whose members are {}. Add it first:\n  synod member add {name} --peer-urls \
             {peer_url}",
            known.join(", ")
        )));
    };
    if member.standing == Standing::Voter {
        return Err(Error::Join(format!(
            "{name} at {peer_url} votes in the cluster already, so it had data once, and they are not in its data \
             directory. A replica that lost its data cannot come back under its old id, since it forgot what it \
             promised. If they are elsewhere, correct --data-dir; if they are lost, replace it:\n  synod member \
             replace {} {name} --peer-urls {peer_url}",
            member.info.name,
        )));
    }
    Ok(member.id)
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_replica::{Change, ChangeRequest, Goal, Group, MemberInfo};
    use synod_wire::{ClusterId, Slot};

    use super::*;

    fn info(name: &str, url: &str) -> MemberInfo {
        MemberInfo::new(name, vec![url.into()])
    }

    fn changed(group: &Group, change: Change) -> Group {
        group.apply(Slot(9), &ChangeRequest { expected: group.version, change }).unwrap()
    }

    fn ask(group: &Group, name: &str, url: &str) -> Result<u64, String> {
        let (groups, skips) = (None, Skips::default());
        let joining = Joining { name: name.into(), peer_url: url.into(), others: Vec::new(), groups, skips };
        let origin = Origin::new(ClusterId(1), group.clone());
        find(&joining, &origin).map(|id| id.0).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_replica_finds_itself_by_address_or_name() {
        let first = Group::first(&Options::default(), [(ReplicaId(1), info("a", "http://a:1"))]);
        let error = ask(&first, "b", "http://b:1").unwrap_err();
        assert!(error.contains("synod member add b --peer-urls http://b:1"), "{error}");
        let joined = changed(&first, Change::Add { info: info("", "http://b:1"), goal: Goal::Vote });
        assert_eq!(ask(&joined, "b", "http://b:1/"), Ok(2));
        let named = changed(&first, Change::Add { info: info("b", "http://b:1"), goal: Goal::Vote });
        assert_eq!(ask(&named, "b", "http://elsewhere:1"), Ok(2));
        // This member replaces another at the same address.
        let goal = Goal::Replace(ReplicaId(1));
        let replacing = changed(&first, Change::Add { info: info("a", "http://a:1"), goal });
        assert_eq!(ask(&replacing, "a", "http://a:1"), Ok(2));
    }

    #[test]
    fn the_number_of_groups_is_that_of_the_cluster() {
        let first = Group::first(&Options::default(), [(ReplicaId(1), info("a", "http://a:1"))]).followed();
        let others = vec![first.clone().following(1); 3];
        let mut origin = Origin::new(ClusterId(1), first);
        origin.others = others;
        for asked in [None, Some(Groups::shards(4))] {
            assert_eq!(groups(&origin, asked).unwrap(), Groups::shards(4));
        }
        let error = groups(&origin, Some(Groups::shards(2))).unwrap_err().to_string();
        assert!(
            error.contains("--groups shard:2") && error.contains("accepted: --groups shard:4"),
            "{error}"
        );
    }

    #[test]
    fn an_operator_whose_member_votes_or_was_removed_is_told_what_to_do() {
        let first = Group::first(&Options::default(), [(ReplicaId(1), info("a", "http://a:1"))]);
        let error = ask(&first, "a", "http://a:1").unwrap_err();
        assert!(error.contains("synod member replace a a --peer-urls http://a:1"), "{error}");
        let joined = changed(&first, Change::Add { info: info("b", "http://b:1"), goal: Goal::Vote });
        let left = changed(&joined, Change::Remove(ReplicaId(2)));
        let error = ask(&left, "b", "http://b:1").unwrap_err();
        assert!(error.contains("was removed") && error.contains("synod member add b"), "{error}");
    }
}
