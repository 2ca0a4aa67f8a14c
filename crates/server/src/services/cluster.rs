//! etcd's service Cluster, and what other services use of it: the list of members, and changes of the group.
//!
//! Synod differs from etcd in one point: a member that is added without `isLearner` does not vote at once. It
//! joins as a learner, and the leader promotes it once it has caught up; until then `MemberList` shows a
//! learner. So adding a member never costs the quorum, however long the new member takes to start.
//!
//! A change that would leave the cluster stuck the leader refuses by itself. What is looked at here besides is etcd's
//! rule (`--strict-reconfig-check`), which its clients expect: it wants some voters to have been connected for a
//! while.

use std::time::{Duration, Instant};

use synod_api::{
    etcdserverpb::{
        MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
        MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
        MemberUpdateResponse,
    },
    synod::v1::{AddMember, Goal, UpdateMember, change_request::Change as Asked},
};
use synod_wire::ReplicaId;
use tokio::time::sleep;
use tonic::Status;

use super::{
    envelope::Store,
    translation::{self, members, unchanged},
};
use crate::{ChangeError, Changed, Consistency, PeerLink, Refusal, Replica, RequestError};

/// How long a promotion waits for a learner that has not caught up, as far as is known.
const HEARD_OF_WITHIN: Duration = Duration::from_secs(1);

/// Most addresses that a member may have.
const URLS_MAX: usize = 16;
/// Most bytes of a name, or of an address.
const TEXT_BYTES_MAX: usize = 1024;

/// How long a voter has to be connected before a change of members counts on it (etcd's `HealthInterval`).
const HEALTHY_AFTER: Duration = Duration::from_secs(5);

impl<R: Replica> Store<R> {
    /// A linearizable list is taken after a linearizable read, which proves that this replica is up to date.
    pub(super) async fn member_list(&self, request: MemberListRequest) -> Result<MemberListResponse, Status> {
        if request.linearizable {
            self.status(Consistency::Linearizable).await?;
        }
        Ok(MemberListResponse { header: self.header(None), members: members(&self.replica().group()) })
    }

    pub(super) async fn member_add(&self, request: MemberAddRequest) -> Result<MemberAddResponse, Status> {
        let MemberAddRequest { peer_ur_ls: peer_urls, is_learner } = request;
        let goal = if is_learner { Goal::Learn } else { Goal::Vote };
        check_urls(&peer_urls).map_err(unchanged)?;
        self.check_health(Health::may_add)?;
        let add = AddMember { peer_urls, goal: goal.into(), ..AddMember::default() };
        let Changed { group, .. } = self.change(self.replica(), None, Asked::Add(add)).await?;
        let members = members(&group);
        Ok(MemberAddResponse { header: self.header(None), member: members.last().cloned(), members })
    }

    pub(super) async fn member_remove(
        &self,
        request: MemberRemoveRequest,
    ) -> Result<MemberRemoveResponse, Status> {
        let id = ReplicaId(request.id);
        if self.is_voter_that_answers(id) {
            self.check_health(Health::may_remove)?;
        }
        let Changed { group, .. } = self.change(self.replica(), None, Asked::Remove(id.0)).await?;
        Ok(MemberRemoveResponse { header: self.header(None), members: members(&group) })
    }

    pub(super) async fn member_update(
        &self,
        request: MemberUpdateRequest,
    ) -> Result<MemberUpdateResponse, Status> {
        let id = ReplicaId(request.id);
        let update = Asked::Update(UpdateMember { member: id.0, peer_urls: request.peer_ur_ls });
        let outcome = match self.try_change(self.replica(), None, update).await {
            // As with etcd, the addresses do not matter then.
            Err(ChangeError::Unacceptable(why))
                if why == BAD_URLS && self.replica().group().member(id).is_none() =>
            {
                Err(Refusal::NotAMember(id).into())
            }
            outcome => outcome,
        };
        let group = match outcome {
            // etcd does not take this for an error.
            Err(error) if error == Refusal::NothingToDo.into() => self.replica().group(),
            Err(error) => return Err(unchanged(error)),
            Ok(changed) => changed.group,
        };
        Ok(MemberUpdateResponse { header: self.header(None), members: members(&group) })
    }

    pub(super) async fn member_promote(
        &self,
        request: MemberPromoteRequest,
    ) -> Result<MemberPromoteResponse, Status> {
        // A learner that has just started serves clients before every replica has heard of it, and how far it is. With
        // etcd a promotion at that moment succeeds, so clients do not try again.
        let until = Instant::now() + HEARD_OF_WITHIN;
        let group = loop {
            match self.try_change(self.replica(), None, Asked::Promote(request.id)).await {
                Err(error) if error == RequestError::NotCaughtUp.into() && Instant::now() < until => {
                    sleep(HEARD_OF_WITHIN / 10).await;
                }
                outcome => break outcome.map_err(unchanged)?.group,
            }
        };
        Ok(MemberPromoteResponse { header: self.header(None), members: members(&group) })
    }

    /// Refuses a change of members if too few voters are there for it by etcd's rule, unless it is turned off.
    fn check_health(&self, suffices: fn(Health) -> bool) -> Result<(), Status> {
        let (status, group) = (self.replica().status(), self.replica().group());
        let lasts = |id: ReplicaId| {
            let link = status.node.peers.iter().find(|peer| peer.id == id).and_then(|peer| peer.up_since);
            id == status.replica || link.is_some_and(|since| since.elapsed() >= HEALTHY_AFTER)
        };
        let health = Health {
            voters: group.voters().count(),
            connected: group.voters().filter(|&id| lasts(id)).count(),
        };
        if self.strict_reconfig_check() && !suffices(health) {
            return Err(unchanged(RequestError::Unhealthy.into()));
        }
        Ok(())
    }

    /// Whether a member votes and is this replica, or there is a connection to it.
    fn is_voter_that_answers(&self, id: ReplicaId) -> bool {
        let (status, group) = (self.replica().status(), self.replica().group());
        let up = |peer: &PeerLink| peer.id == id && peer.up_since.is_some();
        group.votes(id) && (id == status.replica || status.node.peers.iter().any(up))
    }

    /// Changes the group, or explains in etcd's words why it was not changed.
    pub(super) async fn change(
        &self,
        replica: &R,
        expected: Option<u64>,
        asked: Asked,
    ) -> Result<Changed, Status> {
        self.try_change(replica, expected, asked).await.map_err(unchanged)
    }

    async fn try_change(
        &self,
        replica: &R,
        expected: Option<u64>,
        asked: Asked,
    ) -> Result<Changed, ChangeError> {
        match &asked {
            Asked::Add(add) => {
                translation::goal(add)?;
                if add.name.len() > TEXT_BYTES_MAX {
                    let why = format!("the name has {} bytes; accepted: {TEXT_BYTES_MAX}", add.name.len());
                    return Err(ChangeError::Unacceptable(why));
                }
                check_urls(&add.peer_urls)?;
            }
            Asked::Update(update) => check_urls(&update.peer_urls)?,
            _ => {}
        }
        replica.change(expected, &|group| translation::change(group, &asked)).await
    }
}

/// The voters of a group, as one replica sees them.
#[derive(Clone, Copy, Debug)]
struct Health {
    voters: usize,
    /// How many of them have been connected for a while, this replica among them.
    connected: usize,
}

impl Health {
    /// Whether those that are connected would be a quorum also if the new member voted and never came. A lone voter
    /// may always have others added.
    fn may_add(self) -> bool {
        self.voters == 1 || self.connected > self.voters.div_ceil(2)
    }

    /// Whether those that stay connected after one of them is removed are more than half of what is left. (Of a lone
    /// voter something else is said.)
    fn may_remove(self) -> bool {
        self.voters == 1 || self.connected >= 2 + (self.voters - 1) / 2
    }
}

/// etcd's text for addresses that are not valid.
pub(super) const BAD_URLS: &str = "given member URLs are invalid";

fn check_urls(urls: &[String]) -> Result<(), ChangeError> {
    let fits = |url: &String| {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let address = rest.and_then(|rest| rest.rsplit_once(':'));
        let dialled = address.is_some_and(|(host, port)| {
            !host.is_empty()
                && !host.contains(['/', '@', ' ', ','])
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        dialled && url.len() <= TEXT_BYTES_MAX
    };
    if (1..=URLS_MAX).contains(&urls.len()) && urls.iter().all(fits) {
        return Ok(());
    }
    Err(ChangeError::Unacceptable(BAD_URLS.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// quorum(n + 1) = (n + 1) / 2 + 1 of the voters to add one, and 2 + (n - 1) / 2 to remove one (etcd 3.7.3,
    /// `mayAddMember` and `mayRemoveMember` in server/etcdserver/server.go).
    #[test]
    fn so_many_voters_have_to_be_connected_for_a_change_of_members() {
        let least = |voters: usize, suffices: fn(Health) -> bool| {
            (0..=voters).find(|&connected| suffices(Health { voters, connected })).unwrap()
        };
        let add: Vec<_> = (2..=7).map(|voters| least(voters, Health::may_add)).collect();
        assert_eq!(add, [2, 3, 3, 4, 4, 5]);
        let remove: Vec<_> = (2..=7).map(|voters| least(voters, Health::may_remove)).collect();
        assert_eq!(remove, [2, 3, 3, 4, 4, 5]);
        assert_eq!((least(1, Health::may_add), least(1, Health::may_remove)), (0, 0));
    }

    #[test]
    fn addresses_are_such_that_one_can_dial() {
        for url in ["http://10.0.0.1:2380", "https://host:1", "http://[::1]:2380"] {
            assert_eq!(check_urls(&[url.to_owned()]), Ok(()));
        }
        for url in ["", "host:1", "ftp://host:1", "http://host", "http://:1", "http://h:0", "http://h/x:1"] {
            assert!(check_urls(&[url.to_owned()]).is_err(), "{url}");
        }
        assert!(check_urls(&vec!["http://h:1".to_owned(); URLS_MAX + 1]).is_err());
    }
}
