//! The group as its replicas tell it: finds members in it, and prints it.

use std::time::Duration;

use serde_json::{Value, json};
use synod_client::{
    Client,
    native::{ChangeResponse, Goal, Group, GroupMember, StatusResponse},
};

use crate::{
    client::ClientArgs,
    failure::Failure,
    output::{self, Format, object},
};

/// The leader, and its address.
#[derive(Debug)]
pub struct Leading {
    pub id: u64,
    pub endpoint: String,
}

/// The status of each replica, by endpoint; replicas that do not answer are left out.
pub async fn told(args: &ClientArgs) -> Result<Vec<(String, StatusResponse)>, Failure> {
    let client = args.client()?;
    let answers = client.native_status().await;
    let told = client.endpoints().map(str::to_owned).zip(answers);
    Ok(told.filter_map(|(endpoint, answer)| Some((endpoint, answer.ok()?))).collect())
}

/// How long others may take once a replica has told its status.
const GRACE: Duration = Duration::from_secs(1);

/// The latest group that one of the first endpoints to answer knows, of more than half of the voters if this many do.
pub async fn group(client: &Client) -> Result<Group, Failure> {
    let mut answered = 0;
    let most = |status: &StatusResponse| {
        answered += 1;
        let members = status.group.iter().flat_map(|group| &group.members);
        2 * answered > members.filter(|member| member.votes).count()
    };
    let told = client.native_status_soon(GRACE, most).await;
    let groups = told.into_iter().filter_map(|(_, status)| status.group);
    match groups.max_by_key(|group| group.version) {
        Some(latest) => Ok(latest),
        None => Err(nobody_tells(client).await),
    }
}

/// How many groups the cluster has, as the first endpoint says that answers.
pub async fn count_of_groups(client: &Client) -> Result<u16, Failure> {
    let told = client.native_status_soon(GRACE, |_| true).await;
    match told.first().map(|(_, status)| u16::try_from(status.groups.len().max(1))) {
        Some(count) => count.map_err(Failure::failed),
        None => Err(nobody_tells(client).await),
    }
}

/// Why no replica tells of itself.
async fn nobody_tells(client: &Client) -> Failure {
    let why = client.native_status().await.into_iter().find_map(Result::err);
    why.map_or_else(|| Failure::failed("no replica tells who belongs to the group"), Failure::from)
}

/// Finds a member by its name, or by its id in hexadecimal digits, as lists of members show it.
pub fn find<'a>(group: &'a Group, named: &str) -> Result<&'a GroupMember, Failure> {
    let mut same_name = group.members.iter().filter(|member| member.name == named);
    if let Some(member) = same_name.next() {
        return match same_name.next() {
            None => Ok(member),
            Some(other) => Err(Failure::failed(format!(
                "two members have the name {named}; give the id, {:x} or {:x}",
                member.id, other.id
            ))),
        };
    }
    let id = u64::from_str_radix(named, 16).ok();
    group.members.iter().find(|member| Some(member.id) == id).ok_or_else(|| {
        let known: Vec<_> =
            group.members.iter().map(|member| format!("{} ({:x})", member.name, member.id)).collect();
        Failure::failed(format!("{named} is not a member; accepted: {}", known.join(", ")))
    })
}

/// A member's name, or its id if it has none yet.
pub fn named(member: &GroupMember) -> String {
    if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() }
}

/// Finds the leader: asks the given endpoints, then all addresses that the group knows.
pub async fn leader(args: &ClientArgs, group: &Group) -> Result<Leading, Failure> {
    leading(args, group, |status| !status.leader_name.is_empty() && status.leader == status.replica).await
}

/// The same for one of several groups.
pub async fn leader_of(args: &ClientArgs, group: &Group, number: u16) -> Result<Leading, Failure> {
    let told = args.client()?.native_status_soon(GRACE, |_| true).await;
    if let Some((_, status)) = told.first()
        && usize::from(number) >= status.groups.len().max(1)
    {
        let last = status.groups.len().max(1) - 1;
        return Err(Failure::failed(format!("there is no group {number}; accepted: 0 to {last}")));
    }
    leading(args, group, |status| {
        status.groups.get(usize::from(number)).is_some_and(|group| group.role == "leader")
    })
    .await
}

async fn leading(
    args: &ClientArgs,
    group: &Group,
    leads: impl Fn(&StatusResponse) -> bool,
) -> Result<Leading, Failure> {
    let all = group.members.iter().flat_map(|member| member.client_urls.clone());
    let everybody = ClientArgs { endpoints: all.collect(), ..args.clone() };
    for asked in [args, &everybody] {
        if asked.endpoints.is_empty() {
            continue;
        }
        // It may be far away: what is waited for is its answer.
        let told = asked.client()?.native_status_soon(asked.command_timeout, &leads).await;
        if let Some((endpoint, status)) = told.into_iter().find(|(_, status)| leads(status)) {
            return Ok(Leading { id: status.replica, endpoint });
        }
    }
    Err(Failure::unserved(
        "no replica that can be reached leads; name its client URL in --endpoints if the members do not tell it",
    ))
}

/// What becomes of a member, in a word or two.
pub fn standing(group: &Group, member: &GroupMember) -> String {
    if member.votes {
        return "votes".to_owned();
    }
    match member.goal() {
        Goal::Vote => "joining".to_owned(),
        Goal::Learn => "learner".to_owned(),
        Goal::Replace => {
            let old = group.members.iter().find(|other| other.id == member.replaces);
            format!("joining for {}", old.map_or_else(|| format!("{:x}", member.replaces), named))
        }
    }
}

/// Prints what was changed, the new group, and what to do next.
pub fn print_change(
    format: Format,
    changed: &ChangeResponse,
    what: &str,
    next: &[String],
) -> Result<(), Failure> {
    let group = super::group(changed)?;
    match format {
        Format::Simple => {
            let mut text = format!("{what}; the group is at version {}\n", group.version);
            next.iter().for_each(|line| text += &format!("{line}\n"));
            output::print(text.as_bytes())
        }
        Format::Table | Format::Wide => {
            let rows = group.members.iter().map(|member| {
                let urls = [&member.peer_urls, &member.client_urls].map(|urls| urls.join(","));
                let [peers, clients] = urls;
                [format!("{:x}", member.id), standing(group, member), member.name.clone(), peers, clients]
            });
            let table = output::table(["ID", "STANDING", "NAME", "PEER ADDRS", "CLIENT ADDRS"], rows);
            output::print(format!("{table}{}\n", next.join("\n")).as_bytes())
        }
        Format::Json => output::print_json(&object([
            ("version", json!(group.version)),
            ("epoch", json!(group.epoch)),
            ("protocol", json!(group.protocol)),
            ("election", json!(group.election)),
            ("added", json!(changed.added)),
            ("dropped", json!(changed.dropped)),
            ("members", members_json(group)),
            ("next", json!(next)),
        ])),
    }
}

/// The members, with fields that etcd's lists do not have.
pub fn members_json(group: &Group) -> Value {
    let one = |member: &GroupMember| {
        object([
            ("ID", json!(member.id)),
            ("name", json!(member.name)),
            ("peerURLs", json!(member.peer_urls)),
            ("clientURLs", json!(member.client_urls)),
            ("isLearner", json!(!member.votes)),
            ("standing", json!(standing(group, member))),
            ("slot", json!(member.decided_slot)),
        ])
    };
    group.members.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str) -> GroupMember {
        GroupMember { id, name: name.into(), votes: true, ..Default::default() }
    }

    #[test]
    fn members_are_found_by_name_or_id() {
        let learner =
            GroupMember { votes: false, goal: Goal::Replace.into(), replaces: 1, ..member(10, "n1") };
        let group = Group { members: vec![member(1, "n1"), member(2, "n2"), learner], ..Default::default() };
        let id = |named| find(&group, named).map(|member| member.id).map_err(|failure| failure.to_string());
        assert_eq!((id("n2"), id("2"), id("a")), (Ok(2), Ok(2), Ok(10)));
        assert!(id("n1").unwrap_err().contains("give the id, 1 or a"));
        assert!(id("n9").unwrap_err().contains("n2 (2)"));
        assert_eq!(standing(&group, &group.members[2]), "joining for n1");
    }
}
