//! Finds out why a request was not served: which voters answer, and whether an endpoint speaks TLS that was called
//! without.

use std::{collections::BTreeMap, io, time::Duration};

use futures_util::future::join_all;
use synod_client::native::{Group, StatusResponse};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::ClientArgs,
    member::{named, told},
    serve::units,
};

/// Explains a request that was not served, if too few voters answer for anything to be decided. Asks the
/// endpoints, and then the voters that they name, each for at most half of `timeout`. If none answers, it may be that
/// one speaks TLS.
pub async fn diagnosis(args: &ClientArgs, timeout: Duration) -> Option<String> {
    let ask = |endpoints: Vec<String>| async move {
        let asked = ClientArgs { endpoints, command_timeout: timeout / 2, ..args.clone() };
        told(&asked).await.unwrap_or_default()
    };
    let mut answered = by_replica(ask(args.endpoints.clone()).await);
    let Some(group) = latest(&answered).cloned() else {
        return misses_tls(&args.endpoints, timeout / 3).await;
    };
    let silent = group.members.iter().filter(|member| member.votes && !answered.contains_key(&member.id));
    let urls: Vec<String> = silent.flat_map(|member| member.client_urls.clone()).collect();
    if !urls.is_empty() {
        answered.extend(by_replica(ask(urls).await));
    }
    missing_quorum(&group, |id| answered.contains_key(&id))
}

/// What to write in place of an endpoint without TLS, if it speaks that.
async fn misses_tls(endpoints: &[String], timeout: Duration) -> Option<String> {
    let plain = endpoints.iter().filter(|url| !units::asks_for_tls(url) && !units::is_socket(url));
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
    let (all, present) = (voters().count(), voters().filter(|member| answers(member.id)).count());
    if present > all / 2 {
        return None;
    }
    let names = |there: bool| {
        let names = voters().filter(|member| answers(member.id) == there).map(named);
        names.collect::<Vec<_>>().join(", ")
    };
    let who = if present == 0 { String::new() } else { format!(" ({})", names(true)) };
    let answer = if present == 1 { "answers" } else { "answer" };
    Some(format!(
        "there is no quorum: {present} of {all} voters {answer}{who}, and {} have to. Start {}; if that is not possible, see \
         \"A quorum is lost for good\" in docs/operating.md",
        all / 2 + 1,
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
}
