//! Prints the leader whenever it changes.

use std::time::Duration;

use synod_client::{Client, Config, native::StatusResponse};
use tokio::time::sleep;

use super::say;
use crate::status::{ballot, ballot_round, epoch};

const INTERVAL: Duration = Duration::from_millis(250);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// An election takes a second or two; after this long without a leader the user is told.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Asks the replicas again and again. `advice` is printed once some replica leads and the cluster knows every
/// replica's address, or some time later, since it concerns all of them.
pub async fn leader(endpoints: Vec<String>, advice: String) {
    let mut config = Config::new(endpoints);
    config.request_timeout = ANSWER_TIMEOUT;
    let client = Client::new(config).expect("the plan's URLs are well formed");
    let mut advice = Some(advice);
    let mut last: Option<(String, String)> = None;
    let mut without = Duration::ZERO;
    let mut led = Duration::ZERO;
    loop {
        let answers: Vec<_> = client.native_status().await.into_iter().flatten().collect();
        match leading(&answers) {
            Some(status) => {
                let now = (status.name.clone(), ballot(status));
                if last.as_ref() != Some(&now) {
                    let what = if status.groups.len() > 1 { " group 0" } else { "" };
                    say(format_args!("{} leads{what} (ballot {})", now.0, now.1));
                    last = Some(now);
                }
                if (answers.iter().all(all_told) || led >= WAIT_MAX)
                    && let Some(advice) = advice.take()
                {
                    say(format_args!("{advice}"));
                }
                led += INTERVAL;
                without = Duration::ZERO;
            }
            None => {
                let before = without;
                without += INTERVAL;
                if before < WAIT_MAX && without >= WAIT_MAX {
                    say(format_args!(
                        "nobody leads; {} of the replicas answer, and a majority is needed",
                        answers.len()
                    ));
                    last = None;
                }
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Whether all members have told the addresses for their clients, as far as this replica knows.
fn all_told(status: &StatusResponse) -> bool {
    status
        .group
        .as_ref()
        .is_some_and(|group| group.members.iter().all(|member| !member.client_urls.is_empty()))
}

/// The leader: of several replicas that claim to lead, the one with the highest ballot of the latest epoch, since a
/// deposed one may not know that yet.
fn leading(answers: &[StatusResponse]) -> Option<&StatusResponse> {
    let round = |status: &&StatusResponse| (epoch(status), ballot_round(&status.ballot));
    answers.iter().filter(|status| status.role == "leader").max_by_key(round)
}

#[cfg(test)]
mod tests {
    use synod_client::native::Group;

    use super::*;

    #[test]
    fn of_two_leaders_the_later_one_leads() {
        let status = |name: &str, role: &str, epoch: u64, ballot: &str| StatusResponse {
            name: name.into(),
            role: role.into(),
            ballot: ballot.into(),
            group: Some(Group { epoch, ..Group::default() }),
            ..StatusResponse::default()
        };
        let all = [
            status("n1", "leader", 1, "9@r1"),
            status("n2", "leader", 1, "10@r2"),
            status("n3", "follower", 1, "10@r2"),
        ];
        assert_eq!(leading(&all).map(|status| &*status.name), Some("n2"));
        assert!(leading(&all[2..]).is_none());
        let next = [status("n2", "leader", 1, "512@r2"), status("n1", "leader", 2, "256@r1")];
        assert_eq!(leading(&next).map(ballot).as_deref(), Some("256@r1 of epoch 2"));
    }
}
