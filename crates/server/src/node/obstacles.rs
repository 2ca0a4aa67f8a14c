//! What keeps this replica from other members: why a new cluster does not begin, and which member belongs to another
//! cluster. Each line names the culprit and the remedy. The log has it once, `synod status` as long as it holds, and a
//! request that is not served has it as its hint.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use synod_node::{Handle, NodeStatus, ObstacleKind, Origin, PeerLink, Tls};
use synod_replica::Group;
use synod_wire::{ClusterId, Groups, ReplicaId, Slot};

use crate::urls;

/// How long something may be in the way until an operator hears of it: members of a new cluster do not start at one
/// moment, and a change of the members does not reach all at one moment.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How often a member of another cluster is asked what it was started with.
const ASK_INTERVAL: Duration = Duration::from_secs(60);
/// How long its answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// What may differ where it is not known what does.
const SOMETHING: &str = "--initial-cluster-token, --initial-cluster, --groups or flags of the group differed when it \
                         was started first, or it was restored from another backup, or not restored, or has the data \
                         directory of another cluster";

/// What this replica knows of members that belong to other clusters.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    strangers: Mutex<BTreeMap<ReplicaId, Stranger>>,
}

/// A member that belongs to another cluster.
#[derive(Debug)]
struct Stranger {
    asked: Instant,
    /// What differs between it and this replica, if it answered.
    differs: Option<String>,
}

impl Obstacles {
    /// Asks each member that belongs to another cluster than this one what it was started with, once in a while; blocks
    /// for up to two seconds each.
    pub fn ask(&self, handle: &Handle, cluster: ClusterId, groups: Groups, tls: Option<&Tls>) {
        let (group, status) = (handle.group(), handle.status());
        let is_stranger = |peer: &&PeerLink| {
            peer.obstacle.as_ref().is_some_and(|obstacle| obstacle.kind == ObstacleKind::OtherCluster)
        };
        let strangers: Vec<ReplicaId> = status.peers.iter().filter(is_stranger).map(|peer| peer.id).collect();
        self.strangers().retain(|id, _| strangers.contains(id));
        for id in strangers {
            let is_known =
                self.strangers().get(&id).is_some_and(|stranger| stranger.asked.elapsed() < ASK_INTERVAL);
            let url = group.member(id).and_then(|member| member.info.peer_urls.first());
            let address = url.and_then(|url| urls::peer_address(url).ok());
            let Some(address) = address.filter(|_| !is_known) else { continue };
            let told = Origin::ask_blocking([address.as_str()], tls, ASK_TIMEOUT).ok();
            let told = told.filter(|told| told.cluster != cluster);
            let differs = told.map(|told| difference(&group, cluster, groups, &told));
            self.strangers().insert(id, Stranger { asked: Instant::now(), differs });
        }
    }

    /// A line for each thing that is in the way, for people.
    pub fn lines(&self, group: &Group, status: &NodeStatus) -> Vec<String> {
        let strangers = self.strangers();
        let missed = group.members.iter().filter_map(|member| {
            let peer = status.peers.iter().find(|peer| peer.id == member.id)?;
            let awaited = status.waits_for.contains(&member.id);
            let lasts = peer.obstacle.as_ref().is_some_and(|obstacle| {
                let is_misfit = matches!(obstacle.kind, ObstacleKind::OtherCluster | ObstacleKind::Misfit);
                is_misfit && obstacle.since.elapsed() >= PATIENCE
            });
            let name = member.name();
            let obstacle = peer.obstacle.as_ref().map(|obstacle| (obstacle.kind, &*obstacle.why));
            let differs = strangers.get(&member.id).and_then(|stranger| stranger.differs.as_deref());
            let url = member.info.peer_urls.first().map_or("", String::as_str);
            (awaited || lasts).then_some(Missed { name, url, awaited, obstacle, calls: peer.calls, differs })
        });
        told(&missed.collect::<Vec<_>>())
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeMap<ReplicaId, Stranger>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member with which this replica has no session.
struct Missed<'a> {
    name: String,
    /// Its first peer URL.
    url: &'a str,
    /// Whether this replica waits for it before it votes.
    awaited: bool,
    /// What the last attempt to reach it met, and said.
    obstacle: Option<(ObstacleKind, &'a str)>,
    /// Whether it calls this replica.
    calls: bool,
    /// What differs between it and this replica, if it belongs to another cluster.
    differs: Option<&'a str>,
}

impl Missed<'_> {
    /// Whether its process may not run: nothing answers at its address, and nothing calls under its id.
    fn may_be_down(&self) -> bool {
        let kind = self.obstacle.map(|(kind, _)| kind);
        !self.calls && matches!(kind, Some(ObstacleKind::NobodyListens | ObstacleKind::NoConnection))
    }

    /// What is in the way of it, and what to do about that.
    fn why(&self) -> Option<String> {
        let Missed { name, url, calls, differs, .. } = self;
        let (kind, why) = self.obstacle?;
        Some(match kind {
            ObstacleKind::NobodyListens if *calls => format!(
                "{name} runs, since it calls this replica, but nothing listens at {url}, its peer URL: start it with \
                 --listen-peer-urls at that port, or correct that URL in --initial-cluster of all members"
            ),
            ObstacleKind::NobodyListens => format!(
                "nothing listens at {url}, the peer URL of {name}: start {name}, or compare its --listen-peer-urls with that \
                 if it runs"
            ),
            ObstacleKind::NoConnection if *calls => format!(
                "{name} runs, since it calls this replica, but {url}, its peer URL, cannot be reached ({why}): correct that \
                 URL, or the network"
            ),
            ObstacleKind::NoConnection => format!(
                "{url}, the peer URL of {name}, cannot be reached ({why}): start {name}, or correct that URL or the network"
            ),
            ObstacleKind::OtherCluster => format!(
                "{name} runs, and what answers at {url}, its peer URL, belongs to another cluster: {}. Begin again at the \
                 one that is wrong, with the right values and an empty data directory",
                differs.unwrap_or(SOMETHING)
            ),
            _ => format!("no session with {name} at {url}, its peer URL: {why}"),
        })
    }
}

/// The lines about members that are missed.
fn told(missed: &[Missed<'_>]) -> Vec<String> {
    let awaited: Vec<&Missed<'_>> = missed.iter().filter(|missed| missed.awaited).collect();
    let names: Vec<&str> = awaited.iter().map(|missed| &*missed.name).collect();
    let head = format!(
        "this new cluster has not begun: each of its members votes once it has met all others, and this one has not met {}",
        names.join(", ")
    );
    let mut lines: Vec<String> = (!names.is_empty()).then_some(head).into_iter().collect();
    lines.extend(missed.iter().filter_map(Missed::why));
    // A member that runs is not to be left out: it may hold what the cluster has acknowledged.
    if !awaited.is_empty() && awaited.iter().all(|missed| missed.may_be_down()) {
        lines.push(format!(
            "if {} cannot come, and no member of this cluster has run before and lost its data: see --begin-without-all in \
             `synod serve --help`",
            names.join(", ")
        ));
    }
    lines
}

/// What another replica was started with, where that differs from what this one was started with, whose group is `own`.
fn difference(own: &Group, cluster: ClusterId, groups: Groups, told: &Origin) -> String {
    let mut differing = Vec::new();
    let mut compare = |theirs: String, ours: String| {
        if theirs != ours {
            differing.push((theirs, ours));
        }
    };
    let of_groups = |groups: Groups| format!("--groups {groups}");
    let is_first = own.version == 1 && told.first.version == 1;
    if let Some(theirs) = groups.of(cluster, told.cluster) {
        compare(of_groups(theirs), of_groups(groups));
    } else if is_first {
        compare(of_groups(told.groups()), of_groups(groups));
        for (flag, of) in FLAGS_OF_GROUP {
            let value = |group: &Group| match of(group) {
                value if value.is_empty() => format!("no --{flag}"),
                value => format!("--{flag} {value}"),
            };
            compare(value(&told.first), value(own));
        }
    }
    if differing.is_empty() {
        // Where the cluster began with a backup, its id is made of that too.
        let is_restored = |group: &Group| group.first > Slot(1);
        let differs = match (is_first, is_restored(&told.first), is_restored(own)) {
            (false, ..) => SOMETHING,
            (true, false, false) => "it was started with another --initial-cluster-token",
            (true, true, true) => {
                "it was restored from another backup, or with another --bump-revision or --initial-cluster-token"
            }
            (true, false, true) => {
                "it was not restored, and this one was: `synod snapshot restore` is for each member, with the same backup"
            }
            (true, true, false) => {
                "it was restored from a backup, and this one was not: `synod snapshot restore` is for each member"
            }
        };
        return differs.to_owned();
    }
    let (theirs, ours): (Vec<_>, Vec<_>) = differing.into_iter().unzip();
    format!("it was started with {}, and this one with {}", theirs.join(" "), ours.join(" "))
}

/// A flag and its value, as it stands in the group with which a cluster begins.
type OfGroup = (&'static str, fn(&Group) -> String);

/// The flags that must be the same at all members with which a cluster begins, but for the token.
const FLAGS_OF_GROUP: [OfGroup; 6] = [
    ("initial-cluster", |group| {
        let member = |member: &synod_replica::Member| {
            let urls: Vec<&str> = member.info.peer_urls.iter().map(|url| urls::plain(url)).collect();
            format!("{}={}", member.info.name, urls.join("+"))
        };
        group.members.iter().map(member).collect::<Vec<_>>().join(",")
    }),
    ("protocol", |group| group.protocol.to_string()),
    ("election", |group| group.election.to_string()),
    ("options", |group| group.overrides.to_string()),
    ("max-request-bytes", |group| group.limits.request_bytes_max.to_string()),
    ("max-txn-ops", |group| group.limits.txn_ops_max.to_string()),
];

#[cfg(test)]
mod tests {
    use synod_consensus::{Options, ProtocolKind};
    use synod_replica::{Change, ChangeRequest, Limits, MemberInfo};

    use super::*;

    const OURS: ClusterId = ClusterId(7 << 40);
    const THEIRS: ClusterId = ClusterId(9 << 40);

    fn group(options: &Options, urls: [&str; 3]) -> Group {
        let info = |id: u64, url: &str| MemberInfo::new(format!("n{id}"), vec![url.to_owned()]);
        Group::first(options, (1..).zip(urls).map(|(id, url)| (ReplicaId(id), info(id, url))))
    }

    fn usual() -> Group {
        group(&Options::default(), ["http://a:1", "http://b:1", "http://c:1"])
    }

    fn differs(theirs: Group) -> String {
        difference(&usual(), OURS, Groups::ONE, &Origin::new(THEIRS, theirs))
    }

    #[test]
    fn what_another_cluster_was_started_with_is_compared_flag_by_flag() {
        assert_eq!(differs(usual()), "it was started with another --initial-cluster-token");
        let slash = group(&Options::default(), ["http://a:1/", "http://b:1", "http://c:1"]);
        assert_eq!(differs(slash), "it was started with another --initial-cluster-token");
        let restored = usual().after_backup();
        let told =
            |own: &Group, theirs: Group| difference(own, OURS, Groups::ONE, &Origin::new(THEIRS, theirs));
        assert!(
            told(&usual(), restored.clone())
                .starts_with("it was restored from a backup, and this one was not")
        );
        assert!(told(&restored, usual()).starts_with("it was not restored, and this one was"));
        assert!(
            told(&restored, restored.clone()).starts_with("it was restored from another backup, or with")
        );
        let raft =
            differs(group(&Options::of(ProtocolKind::Raft), ["http://a:1", "http://b:1", "http://c:9"]));
        assert_eq!(
            raft,
            "it was started with --initial-cluster n1=http://a:1,n2=http://b:1,n3=http://c:9 --protocol raft --election \
             randomized, and this one with --initial-cluster n1=http://a:1,n2=http://b:1,n3=http://c:1 --protocol \
             multipaxos --election ballot"
        );
        let limits = Limits::default().with("max-txn-ops=7").unwrap();
        assert_eq!(
            differs(usual().limited(limits)),
            "it was started with --max-txn-ops 7, and this one with --max-txn-ops 128"
        );
    }

    #[test]
    fn groups_are_told_by_the_ids_of_the_clusters_and_a_cluster_that_has_begun_is_not_compared() {
        let four = Groups::shards(4);
        let told = Origin::new(four.named_in(OURS), usual().followed());
        assert_eq!(
            difference(&usual(), OURS, Groups::ONE, &told),
            "it was started with --groups shard:4, and this one with --groups shard:1"
        );
        let request = ChangeRequest { expected: 1, change: Change::Remove(ReplicaId(3)) };
        let later = usual().apply(Slot(2), &request).unwrap();
        let told = Origin::new(THEIRS, usual());
        assert_eq!(difference(&later, OURS, Groups::ONE, &told), SOMETHING);
    }

    fn missed<'a>(name: &str, obstacle: Option<(ObstacleKind, &'a str)>, calls: bool) -> Missed<'a> {
        Missed { name: name.into(), url: "http://c:1", awaited: true, obstacle, calls, differs: None }
    }

    #[test]
    fn a_cluster_that_does_not_begin_names_the_culprit_and_the_remedy() {
        use ObstacleKind::{Misfit, NoConnection, NobodyListens, OtherCluster};
        let nobody = Some((NobodyListens, "Connection refused"));
        let cases = [
            (missed("n3", nobody, false), "start n3, or compare its --listen-peer-urls"),
            (
                missed("n3", nobody, true),
                "n3 runs, since it calls this replica, but nothing listens at http://c:1",
            ),
            (
                missed("n3", Some((NoConnection, "timed out")), false),
                "cannot be reached (timed out): start n3",
            ),
            (missed("n3", Some((NoConnection, "timed out")), true), "n3 runs, since it calls"),
            (
                missed("n3", Some((OtherCluster, "refused")), false),
                "another cluster: --initial-cluster-token,",
            ),
            (missed("n3", Some((Misfit, "refused: why")), false), "no session with n3 at http://c:1"),
        ];
        for (missed, part) in cases {
            let lines = told(&[missed]);
            assert!(lines[0].ends_with("has not met n3"), "{lines:?}");
            assert!(lines[1].contains(part), "{lines:?}");
        }
        let token =
            Missed { differs: Some("the token"), ..missed("n3", Some((OtherCluster, "refused")), true) };
        assert!(
            told(&[token])[1]
                .contains("belongs to another cluster: the token. Begin again at the one that is wrong")
        );
        // Before the first attempt nothing is known.
        assert_eq!(told(&[missed("n3", None, false)]).len(), 1);
        assert_eq!(told(&[]), [""; 0]);
        let met = Missed { awaited: false, ..missed("n3", Some((Misfit, "refused: why")), false) };
        assert_eq!(told(&[met]), ["no session with n3 at http://c:1, its peer URL: refused: why"]);
    }

    #[test]
    fn nobody_is_offered_to_begin_without_a_member_that_runs() {
        let nobody = Some((ObstacleKind::NobodyListens, "Connection refused"));
        let offered =
            |missed: &[Missed<'_>]| told(missed).iter().any(|line| line.contains("--begin-without-all"));
        assert!(offered(&[missed("n2", nobody, false), missed("n3", nobody, false)]));
        assert!(!offered(&[missed("n2", nobody, false), missed("n3", nobody, true)]));
        let stranger = Some((ObstacleKind::OtherCluster, "refused"));
        assert!(!offered(&[missed("n2", nobody, false), missed("n3", stranger, false)]));
        assert!(!offered(&[missed("n3", None, false)]), "it may be about to answer");
    }
}
