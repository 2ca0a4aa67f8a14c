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

use synod_api::etcdserverpb::{
    self, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse,
};
use synod_wire::ReplicaId;
use tokio::time::sleep;
use tonic::{Code, Status};

use super::envelope::{Store, failure};
use crate::{
    Change, ChangeError, Changed, Consistency, Goal, Group, Member, PeerStatus, Refusal, Replica,
    RequestError, Standing,
};

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
        Ok(MemberListResponse { header: self.header(None), members: listed(self.replica().group()) })
    }

    pub(super) async fn member_add(&self, request: MemberAddRequest) -> Result<MemberAddResponse, Status> {
        let MemberAddRequest { peer_ur_ls: peer_urls, is_learner } = request;
        let goal = if is_learner { Goal::Learn } else { Goal::Vote };
        check_urls(&peer_urls).map_err(unchanged)?;
        self.check_health(Health::may_add)?;
        let add = Change::Add { name: String::new(), peer_urls, goal };
        let Changed { group, .. } = self.change(self.replica(), None, add).await?;
        let members = listed(group);
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
        let Changed { group, .. } = self.change(self.replica(), None, Change::Remove(id)).await?;
        Ok(MemberRemoveResponse { header: self.header(None), members: listed(group) })
    }

    pub(super) async fn member_update(
        &self,
        request: MemberUpdateRequest,
    ) -> Result<MemberUpdateResponse, Status> {
        let change = Change::Update { id: ReplicaId(request.id), peer_urls: request.peer_ur_ls };
        let outcome = match self.try_change(self.replica(), None, change).await {
            // As with etcd, the addresses do not matter then.
            Err(ChangeError::Unacceptable(why)) if why == BAD_URLS && !self.has_member(request.id) => {
                Err(Refusal::NotAMember(ReplicaId(request.id)).into())
            }
            outcome => outcome,
        };
        let group = match outcome {
            // etcd does not take this for an error.
            Err(ChangeError::Refused(Refusal::NothingToDo)) => self.replica().group(),
            outcome => outcome.map_err(unchanged)?.group,
        };
        Ok(MemberUpdateResponse { header: self.header(None), members: listed(group) })
    }

    pub(super) async fn member_promote(
        &self,
        request: MemberPromoteRequest,
    ) -> Result<MemberPromoteResponse, Status> {
        // A learner that has just started serves clients before every replica has heard of it, and how far it is. With
        // etcd a promotion at that moment succeeds, so clients do not try again.
        let until = Instant::now() + HEARD_OF_WITHIN;
        let group = loop {
            match self.try_change(self.replica(), None, Change::Promote(ReplicaId(request.id))).await {
                Err(ChangeError::Request(RequestError::NotCaughtUp)) if Instant::now() < until => {
                    sleep(HEARD_OF_WITHIN / 10).await;
                }
                outcome => break outcome.map_err(unchanged)?.group,
            }
        };
        Ok(MemberPromoteResponse { header: self.header(None), members: listed(group) })
    }

    /// Refuses a change of members if too few voters are there for it by etcd's rule, unless it is turned off.
    fn check_health(&self, suffices: fn(Health) -> bool) -> Result<(), Status> {
        let (status, group) = (self.replica().status(), self.replica().group());
        let lasts = |id: ReplicaId| {
            let link = status.peers.iter().find(|peer| peer.replica == id).and_then(|peer| peer.up_since);
            id == status.replica || link.is_some_and(|since| since.elapsed() >= HEALTHY_AFTER)
        };
        let voters = || group.members.iter().filter(|member| member.standing == Standing::Voter);
        let health = Health {
            voters: voters().count(),
            connected: voters().filter(|member| lasts(member.id)).count(),
        };
        if self.strict_reconfig_check() && !suffices(health) {
            return Err(unchanged(ChangeError::Request(RequestError::Unhealthy)));
        }
        Ok(())
    }

    /// Whether a member votes and is this replica, or there is a connection to it.
    fn is_voter_that_answers(&self, id: ReplicaId) -> bool {
        let (status, group) = (self.replica().status(), self.replica().group());
        let votes = group.members.iter().any(|member| member.id == id && member.standing == Standing::Voter);
        let up = |peer: &PeerStatus| peer.replica == id && peer.up_since.is_some();
        votes && (id == status.replica || status.peers.iter().any(up))
    }

    fn has_member(&self, id: u64) -> bool {
        self.replica().group().members.iter().any(|member| member.id.0 == id)
    }

    /// Changes the group, or explains in etcd's words why it was not changed.
    pub(super) async fn change(
        &self,
        replica: &R,
        expected: Option<u64>,
        change: Change,
    ) -> Result<Changed, Status> {
        self.try_change(replica, expected, change).await.map_err(unchanged)
    }

    async fn try_change(
        &self,
        replica: &R,
        expected: Option<u64>,
        change: Change,
    ) -> Result<Changed, ChangeError> {
        if let Change::Add { name, peer_urls, .. } = &change {
            if name.len() > TEXT_BYTES_MAX {
                let why = format!("the name has {} bytes; accepted: {TEXT_BYTES_MAX}", name.len());
                return Err(ChangeError::Unacceptable(why));
            }
            check_urls(peer_urls)?;
        }
        if let Change::Update { peer_urls, .. } = &change {
            check_urls(peer_urls)?;
        }
        replica.change(expected, change).await
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
const BAD_URLS: &str = "given member URLs are invalid";

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

/// The status for a change that failed, in etcd's words where etcd has some, since its clients match on them.
fn unchanged(error: ChangeError) -> Status {
    let refusal = match error {
        ChangeError::Refused(refusal) => refusal,
        ChangeError::Request(error) => return failure(error),
        ChangeError::TooManyLearners => return Status::failed_precondition(format!("etcdserver: {error}")),
        ChangeError::Unacceptable(why) if why == BAD_URLS => {
            return Status::invalid_argument(format!("etcdserver: {why}"));
        }
        ChangeError::Unacceptable(why) => return Status::invalid_argument(format!("synod: {why}")),
    };
    let (code, text) = match refusal {
        Refusal::NotAMember(_) => (Code::NotFound, "etcdserver: member not found"),
        Refusal::NotALearner(_) => {
            (Code::FailedPrecondition, "etcdserver: can only promote a learner member")
        }
        Refusal::AddressTaken(..) => (Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
        Refusal::LastVoter(_) => {
            let text = "etcdserver: re-configuration failed due to not enough started members";
            (Code::FailedPrecondition, text)
        }
        Refusal::Full => (Code::FailedPrecondition, "synod: the group has as many members as it can have"),
        Refusal::Stale { expected, current } => {
            return Status::aborted(format!(
                "synod: the change was made for version {expected} of the group, and it is at version {current}: look at it again"
            ));
        }
        Refusal::NothingToDo => return Status::failed_precondition(format!("synod: {refusal}")),
        Refusal::Unsettled => return Status::unavailable(format!("synod: {refusal}")),
        other => return Status::invalid_argument(format!("synod: {other}")),
    };
    Status::new(code, text)
}

fn listed(group: Group) -> Vec<etcdserverpb::Member> {
    group.members.into_iter().map(etcdserverpb::Member::from).collect()
}

impl From<Member> for etcdserverpb::Member {
    fn from(member: Member) -> etcdserverpb::Member {
        etcdserverpb::Member {
            id: member.id.0,
            name: member.name,
            peer_ur_ls: member.peer_urls,
            client_ur_ls: member.client_urls,
            is_learner: member.standing != Standing::Voter,
        }
    }
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
    fn refusals_are_told_in_etcds_words() {
        let told = |error| {
            let status = unchanged(error);
            (status.code(), status.message().to_owned())
        };
        let cases = [
            (Refusal::NotAMember(ReplicaId(4)).into(), Code::NotFound, "etcdserver: member not found"),
            (
                Refusal::AddressTaken(ReplicaId(4), String::new()).into(),
                Code::FailedPrecondition,
                "etcdserver: Peer URLs already exists",
            ),
            (
                Refusal::NotALearner(ReplicaId(4)).into(),
                Code::FailedPrecondition,
                "etcdserver: can only promote a learner member",
            ),
            (
                ChangeError::Request(crate::RequestError::NotCaughtUp),
                Code::FailedPrecondition,
                "etcdserver: can only promote a learner member which is in sync with leader",
            ),
            (
                ChangeError::Request(crate::RequestError::Unhealthy),
                Code::Unavailable,
                "etcdserver: unhealthy cluster",
            ),
            (
                Refusal::LastVoter(ReplicaId(4)).into(),
                Code::FailedPrecondition,
                "etcdserver: re-configuration failed due to not enough started members",
            ),
            (
                ChangeError::TooManyLearners,
                Code::FailedPrecondition,
                "etcdserver: too many learner members in cluster",
            ),
            (
                check_urls(&[]).unwrap_err(),
                Code::InvalidArgument,
                "etcdserver: given member URLs are invalid",
            ),
            (
                Refusal::Stale { expected: 3, current: 4 }.into(),
                Code::Aborted,
                "synod: the change was made for version 3 of the group, and it is at version 4: look at it again",
            ),
        ];
        for (error, code, message) in cases {
            assert_eq!(told(error), (code, message.to_owned()));
        }
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
