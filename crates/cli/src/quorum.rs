//! Finds out why a request was not served: whether the cluster has not begun yet, which voters answer, what those that
//! do say of themselves, and whether an endpoint speaks TLS that was called without.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use futures_util::future::join_all;
use synod_client::native::{Group, GroupMember, StatusResponse};
use synod_server::urls;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::ClientArgs,
    member::{named, told},
    status::own_troubles,
};

/// The most lines of what replicas say of themselves.
const LINES_MAX: usize = 8;

/// Explains a request that was not served, if too few voters answer for anything to be decided, or those that do know
/// of a reason. Asks the endpoints, and then the voters that they name, each for at most half of `timeout`. If none
/// answers, it may be that one speaks TLS.
pub async fn diagnosis(args: &ClientArgs, timeout: Duration) -> Option<String> {
    let ask = |endpoints: Vec<String>| async move {
        let asked = ClientArgs { endpoints, command_timeout: timeout / 2, ..args.clone() };
        told(&asked).await.unwrap_or_default()
    };
    let mut answered = by_replica(ask(args.endpoints.clone()).await);
    let Some(group) = latest(&answered).cloned() else {
        return misses_tls(&args.endpoints, timeout / 3).await;
    };
    let given: BTreeSet<u64> = answered.keys().copied().collect();
    let silent = group.members.iter().filter(|member| member.votes && !answered.contains_key(&member.id));
    let urls: Vec<String> = silent.flat_map(|member| member.client_urls.clone()).collect();
    if !urls.is_empty() {
        answered.extend(by_replica(ask(urls).await));
    }
    cut_off(&group, &answered, &given, &args.endpoints).or_else(|| explained(&group, &answered))
}

/// That the replicas at the given endpoints, of which these answered, know no leader, and others do.
fn cut_off(
    group: &Group,
    answered: &BTreeMap<u64, StatusResponse>,
    given: &BTreeSet<u64>,
    endpoints: &[String],
) -> Option<String> {
    let leads = |id: &u64| answered.get(id).is_some_and(|status| status.leader != 0);
    let is_named = |member: &&GroupMember| member.client_urls.iter().any(|url| endpoints.contains(url));
    let others = group.members.iter().filter(|member| !given.contains(&member.id) && leads(&member.id));
    let others = others.filter(|member| !is_named(member));
    let others: Vec<&GroupMember> = others.collect();
    (!given.iter().any(leads) && !others.is_empty()).then(|| {
        let names = others.iter().map(|member| named(member)).collect::<Vec<_>>().join(", ");
        let urls = others.iter().flat_map(|member| member.client_urls.first()).cloned();
        format!(
            "the replicas at --endpoints know no leader, and {names} do: name these too, {}",
            urls.collect::<Vec<_>>().join(",")
        )
    })
}

/// Why nothing is decided, as far as those that answered know.
fn explained(group: &Group, answered: &BTreeMap<u64, StatusResponse>) -> Option<String> {
    let votes = |id: u64| answered.get(&id).is_some_and(|status| status.waits_for.is_empty());
    if !has_quorum(group, votes) {
        // Of a cluster that has not begun, one replica's view is enough, and the one that misses the fewest tells best.
        let waiting = answered.values().filter(|status| !status.waits_for.is_empty());
        let told = waiting.min_by_key(|status| status.waits_for.len()).and_then(|status| said([status]));
        if told.is_some() {
            return told;
        }
    }
    missing_quorum(group, |id| answered.contains_key(&id)).or_else(|| said(answered.values()))
}

/// What replicas say of their own troubles, a line each; `None` if they have none.
fn said<'a>(replicas: impl IntoIterator<Item = &'a StatusResponse>) -> Option<String> {
    let mut lines = own_troubles(replicas);
    lines.truncate(LINES_MAX);
    (!lines.is_empty()).then(|| lines.join("\n      "))
}

/// How many of these voters decide, where a replica tells `quorum`. One of a version before 0.3.0 tells 0, and knows
/// majorities alone.
pub fn needed(quorum: u32, voters: usize) -> usize {
    if quorum == 0 { voters / 2 + 1 } else { quorum as usize }
}

/// Whether enough voters are present to decide something.
fn has_quorum(group: &Group, present: impl Fn(u64) -> bool) -> bool {
    let voters = || group.members.iter().filter(|member| member.votes);
    voters().filter(|member| present(member.id)).count() >= needed(group.quorum, voters().count())
}

/// What to write in place of an endpoint without TLS, if it speaks that.
async fn misses_tls(endpoints: &[String], timeout: Duration) -> Option<String> {
    let plain = endpoints.iter().filter(|url| !urls::asks_for_tls(url) && !urls::is_socket(url));
    let asked = plain.map(|url| async move {
        let address = url.split_once("://").map_or(url.as_str(), |(_, address)| address);
        let address = address.trim_end_matches('/');
        let answer = tokio::time::timeout(timeout, answers_with_tls(address)).await;
        matches!(answer, Ok(Ok(true))).then(|| {
            format!(
                "{url} speaks TLS: write https://{address}, and --cacert with the authority of its certificate if the system \
                 does not know it"
            )
        })
    });
    join_all(asked).await.into_iter().flatten().next()
}

/// Whether what listens there answers what is no TLS as servers do that expect it.
async fn answers_with_tls(address: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
    let mut answer = [0; 256];
    let count = stream.read(&mut answer).await?;
    // An alert, or, from what is written in Go, words.
    Ok(answer[..count].starts_with(&[0x15]) || answer[..count].ends_with(b"to an HTTPS server.\n"))
}

fn by_replica(told: Vec<(String, StatusResponse)>) -> BTreeMap<u64, StatusResponse> {
    told.into_iter().map(|(_, status)| (status.replica, status)).collect()
}

fn latest(answered: &BTreeMap<u64, StatusResponse>) -> Option<&Group> {
    answered.values().filter_map(|status| status.group.as_ref()).max_by_key(|group| group.version)
}

fn missing_quorum(group: &Group, answers: impl Fn(u64) -> bool) -> Option<String> {
    let voters = || group.members.iter().filter(|member| member.votes);
    if has_quorum(group, &answers) {
        return None;
    }
    let (all, present) = (voters().count(), voters().filter(|member| answers(member.id)).count());
    let names = |there: bool| {
        let names = voters().filter(|member| answers(member.id) == there).map(named);
        names.collect::<Vec<_>>().join(", ")
    };
    let who = if present == 0 { String::new() } else { format!(" ({})", names(true)) };
    let answer = if present == 1 { "answers" } else { "answer" };
    Some(format!(
        "there is no quorum: {present} of {all} voters {answer}{who}, and {} have to. Start {}; if that is not possible, see \
         \"A quorum is lost for good\" in docs/operating.md (`synod docs operating`)",
        needed(group.quorum, all),
        names(false)
    ))
}

#[cfg(test)]
mod tests {
    use synod_client::native::GroupMember;

    use super::*;

    #[test]
    fn a_quorum_is_missed_where_no_majority_of_the_voters_answers() {
        let member = |id, votes| GroupMember { id, name: format!("n{id}"), votes, ..Default::default() };
        let group = Group {
            members: vec![member(1, true), member(2, true), member(3, true), member(4, false)],
            ..Group::default()
        };
        let said = |present: &[u64]| missing_quorum(&group, |id| present.contains(&id));
        assert_eq!(said(&[1, 3]), None);
        let said = said(&[1, 4]).unwrap();
        assert!(said.contains("1 of 3 voters answers (n1), and 2 have to. Start n2, n3;"), "{said}");
    }

    #[test]
    fn as_many_voters_are_missed_as_the_group_says() {
        let member = |id| GroupMember { id, name: format!("n{id}"), votes: true, ..Default::default() };
        let group = |quorum| Group { members: (1..=4).map(member).collect(), quorum, ..Group::default() };
        let said = |quorum, present: &[u64]| missing_quorum(&group(quorum), |id| present.contains(&id));
        assert_eq!((said(3, &[1, 2, 3]), said(0, &[1, 2, 3])), (None, None));
        assert!(
            said(4, &[1, 2, 3])
                .unwrap()
                .contains("3 of 4 voters answer (n1, n2, n3), and 4 have to. Start n4;")
        );
        assert!(said(0, &[1, 2]).unwrap().contains("and 3 have to"), "one of an earlier version");
    }

    #[test]
    fn a_cluster_that_has_not_begun_is_explained_by_the_replica_that_misses_the_fewest() {
        let member = |id| GroupMember { id, name: format!("n{id}"), votes: true, ..Default::default() };
        let group = Group { members: (1..=3).map(member).collect(), ..Group::default() };
        let status = |replica: u64, misses: &[&str]| StatusResponse {
            replica,
            name: format!("n{replica}"),
            waits_for: misses.iter().map(|name| (*name).to_owned()).collect(),
            troubles: misses.iter().map(|name| format!("synod: start {name}")).collect(),
            ..StatusResponse::default()
        };
        let explained = |answered: &[StatusResponse]| {
            let by_replica = answered.iter().map(|status| (status.replica, status.clone()));
            explained(&group, &by_replica.collect::<BTreeMap<_, _>>())
        };
        // All have to come at first, so it is not said that two are enough.
        assert_eq!(
            explained(&[status(1, &["n2", "n3"])]).as_deref(),
            Some("n1: start n2\n      n1: start n3")
        );
        let all = [status(1, &["n3"]), status(2, &["n3"]), status(3, &["n1", "n2"])];
        assert_eq!(explained(&all).as_deref(), Some("n1: start n3"));
        // Two have begun, and the third is not what they lack.
        let begun = [status(1, &[]), status(2, &[]), status(3, &["n1"])];
        assert_eq!(explained(&begun).as_deref(), Some("n3: start n1"));
        assert_eq!(explained(&begun[..2]), None);
        assert!(explained(&begun[..1]).unwrap().contains("there is no quorum: 1 of 3 voters"));
        let troubled = StatusResponse { troubles: vec!["synod: why".into()], ..status(1, &[]) };
        assert_eq!(explained(&[troubled, status(2, &[])]).as_deref(), Some("n1: why"));
    }
}
