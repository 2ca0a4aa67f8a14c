//! etcd's service Cluster, and what other services use of it: the list of members, and changes of the group.
//!
//! Synod differs from etcd in one point: a member that is added without `isLearner` does not vote at once. It
//! joins as a learner, and the leader promotes it once it has caught up; until then `MemberList` shows a
//! learner. So adding a member never costs the quorum, however long the new member takes to start.

use synod_api::etcdserverpb::{
    self, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse,
};
use synod_wire::ReplicaId;
use tonic::{Code, Status};

use super::envelope::{Store, failure};
use crate::{Change, ChangeError, Consistency, Goal, Group, Member, Replica, Standing};

/// Most addresses that a member may have.
const URLS_MAX: usize = 16;
/// Most bytes of a name, or of an address.
const TEXT_BYTES_MAX: usize = 1024;

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
        let group =
            self.change(self.replica(), None, Change::Add { name: String::new(), peer_urls, goal }).await?;
        let members = listed(group);
        Ok(MemberAddResponse { header: self.header(None), member: members.last().cloned(), members })
    }

    pub(super) async fn member_remove(
        &self,
        request: MemberRemoveRequest,
    ) -> Result<MemberRemoveResponse, Status> {
        let group = self.change(self.replica(), None, Change::Remove(ReplicaId(request.id))).await?;
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
                Err(ChangeError::NotAMember)
            }
            outcome => outcome,
        };
        let group = match outcome {
            // etcd does not take this for an error.
            Err(ChangeError::NothingToDo) => self.replica().group(),
            outcome => outcome.map_err(unchanged)?,
        };
        Ok(MemberUpdateResponse { header: self.header(None), members: listed(group) })
    }

    pub(super) async fn member_promote(
        &self,
        request: MemberPromoteRequest,
    ) -> Result<MemberPromoteResponse, Status> {
        let group = self.change(self.replica(), None, Change::Promote(ReplicaId(request.id))).await?;
        Ok(MemberPromoteResponse { header: self.header(None), members: listed(group) })
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
    ) -> Result<Group, Status> {
        self.try_change(replica, expected, change).await.map_err(unchanged)
    }

    async fn try_change(
        &self,
        replica: &R,
        expected: Option<u64>,
        change: Change,
    ) -> Result<Group, ChangeError> {
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
    let (code, whose) = match &error {
        ChangeError::Request(error) => return failure(error.clone()),
        ChangeError::NotAMember => (Code::NotFound, "etcdserver"),
        ChangeError::NotALearner
        | ChangeError::AddressTaken
        | ChangeError::LastVoter
        | ChangeError::TooManyLearners => (Code::FailedPrecondition, "etcdserver"),
        ChangeError::Unacceptable(why) if why == BAD_URLS => (Code::InvalidArgument, "etcdserver"),
        ChangeError::Unacceptable(_) => (Code::InvalidArgument, "synod"),
        ChangeError::Stale { .. } => (Code::Aborted, "synod"),
        ChangeError::Full | ChangeError::NothingToDo => (Code::FailedPrecondition, "synod"),
        ChangeError::Unsettled => (Code::Unavailable, "synod"),
    };
    Status::new(code, format!("{whose}: {error}"))
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

    #[test]
    fn refusals_are_told_in_etcds_words() {
        let told = |error| {
            let status = unchanged(error);
            (status.code(), status.message().to_owned())
        };
        let cases = [
            (ChangeError::NotAMember, Code::NotFound, "etcdserver: member not found"),
            (ChangeError::AddressTaken, Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
            (
                ChangeError::NotALearner,
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
                ChangeError::LastVoter,
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
                ChangeError::Stale { expected: 3, current: 4 },
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
