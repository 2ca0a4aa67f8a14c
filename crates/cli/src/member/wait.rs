//! Waits for a new member, and shows what it has yet to fetch.

use std::time::{Duration, Instant};

use synod_client::native::{Group, StatusResponse};
use tokio::time::sleep;

use super::view;
use crate::{client::ClientArgs, failure::Failure, output::Bytes};

/// The time between two questions.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Shows the progress of a member that was added with a version of the group on standard error, until it votes: in
/// every group, if there are several.
pub async fn until_it_votes(
    args: &ClientArgs,
    id: u64,
    added_in: u64,
    timeout: Duration,
) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    let mut last_said = String::new();
    loop {
        // The new replica itself tells more than the others, once they know its client URLs.
        let mut asked = args.clone();
        let mut told = view::told(&asked).await?;
        if let Some(own) = latest(&told).and_then(|group| own_url(group, id))
            && !asked.endpoints.contains(&own)
        {
            asked.endpoints = vec![own];
            told.extend(view::told(&asked).await?);
        }
        let said = match latest(&told)
            .map(|group| (group, group.members.iter().find(|member| member.id == id)))
        {
            None => "no replica answers".to_owned(),
            Some((_, Some(member))) if member.votes => match groups_pending(&told) {
                None => {
                    eprintln!("{} votes", view::named(member));
                    return Ok(());
                }
                Some(pending) => pending,
            },
            Some((_, Some(_))) => progress(&told, id),
            // At the moment only a lagging replica may answer.
            Some((group, None)) if group.version < added_in => "no replica that knows it answers".to_owned(),
            Some((_, None)) => return Err(Failure::failed(format!("{id:x} is not a member any more"))),
        };
        if said != last_said {
            eprintln!("{said}");
            last_said = said;
        }
        if Instant::now() >= deadline {
            return Err(Failure::failed(format!(
                "{id:x} does not vote after {timeout:?} ({last_said}); it will once it has caught up. `synod member remove \
                 {id:x}` takes it out again"
            )));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

fn latest(told: &[(String, StatusResponse)]) -> Option<&Group> {
    told.iter().filter_map(|(_, status)| status.group.as_ref()).max_by_key(|group| group.version)
}

fn own_url(group: &Group, id: u64) -> Option<String> {
    group.members.iter().find(|member| member.id == id)?.client_urls.first().cloned()
}

/// Which groups do not have the members of group 0 yet, as the replica says that knows most of them; `None` if all have
/// them.
fn groups_pending(told: &[(String, StatusResponse)]) -> Option<String> {
    let version = |status: &StatusResponse| status.group.as_ref().map_or(0, |group| group.version);
    let latest = told.iter().map(|(_, status)| version(status)).max()?;
    let informed = told.iter().filter(|(_, status)| version(status) == latest);
    let informed: Vec<_> = informed.map(|(_, status)| status).collect();
    let count = informed.iter().map(|status| status.groups.len()).max()?;
    // A replica that takes no part in a group knows nothing of it.
    let of = |number: usize| informed.iter().filter_map(move |status| status.groups.get(number));
    let pending = (0..count).filter_map(|number| {
        let told = of(number).filter(|group| group.role != "away");
        let told = told.min_by_key(|group| !group.members_pending.is_empty())?;
        (!told.members_pending.is_empty()).then_some((number, told))
    });
    let pending: Vec<_> = pending.collect();
    let (number, first) = pending.first()?;
    let more = match pending.len() {
        1 => String::new(),
        2 => ", and 1 more group".to_owned(),
        count => format!(", and {} more groups", count - 1),
    };
    Some(format!("group 0 has it; group {number}: {}{more}", first.members_pending))
}

/// A learner's progress, from its own status and those of the others.
fn progress(told: &[(String, StatusResponse)], id: u64) -> String {
    let statuses = || told.iter().map(|(_, status)| status);
    let decided = statuses().map(|status| status.decided_slot).max().unwrap_or(0);
    let own = statuses().find(|status| status.replica == id);
    if let Some(status) = own.filter(|status| status.snapshot_bytes_total > 0) {
        let (received, total) = (status.snapshot_bytes_received, status.snapshot_bytes_total);
        return format!("receiving a snapshot: {} of {}", Bytes(received), Bytes(total));
    }
    let others = statuses().filter_map(|status| status.group.as_ref()).flat_map(|group| &group.members);
    let told = others.filter(|member| member.id == id).map(|member| member.decided_slot);
    match own.map(|status| status.decided_slot).into_iter().chain(told).max().unwrap_or(0) {
        0 => "waiting for it to start".to_owned(),
        slot => {
            let sources = own.map_or(0, |status| status.sources);
            let from = match sources {
                0 => String::new(),
                1 => ", from 1 replica".to_owned(),
                more => format!(", from {more} replicas"),
            };
            format!("catching up: slot {slot} of {}{from}", slot.max(decided))
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_client::native::{GroupMember, GroupStatus};

    use super::*;

    #[test]
    fn groups_that_do_not_follow_yet_are_told() {
        let pending = |pending: &str| GroupStatus { members_pending: pending.into(), ..Default::default() };
        let status = |version, groups| {
            let group = Some(Group { version, ..Default::default() });
            (String::new(), StatusResponse { group, groups, ..Default::default() })
        };
        let lags = status(4, vec![pending(""), pending("")]);
        assert_eq!(groups_pending(&[lags.clone(), status(5, vec![])]), None);
        let knows = status(5, vec![pending(""), pending("n4 learns"), pending("n4 learns")]);
        let said = groups_pending(&[lags, knows.clone()]);
        assert_eq!(said.as_deref(), Some("group 0 has it; group 1: n4 learns, and 1 more group"));
        let others = vec![pending("n4 joins"); 3];
        let said = groups_pending(&[status(6, [vec![pending("")], others].concat())]);
        assert_eq!(said.as_deref(), Some("group 0 has it; group 1: n4 joins, and 2 more groups"));
        assert_eq!(groups_pending(&[knows.clone(), status(5, vec![pending(""); 3])]), None);
        let away = GroupStatus { role: "away".into(), ..GroupStatus::default() };
        let said = groups_pending(&[knows, status(5, vec![pending(""), away, pending("")])]);
        assert_eq!(
            said.as_deref(),
            Some("group 0 has it; group 1: n4 learns"),
            "it knows nothing of group 1"
        );
    }

    #[test]
    fn progress_is_what_the_best_informed_says() {
        let group = |slot| Group {
            members: vec![GroupMember { id: 4, decided_slot: slot, ..Default::default() }],
            ..Default::default()
        };
        let status = |replica, decided_slot, learned| {
            let group = Some(group(learned));
            (String::new(), StatusResponse { replica, decided_slot, group, ..Default::default() })
        };
        assert_eq!(progress(&[status(1, 90, 0)], 4), "waiting for it to start");
        assert_eq!(progress(&[status(1, 90, 0), status(2, 88, 30)], 4), "catching up: slot 30 of 90");
        let mut own = status(4, 40, 0);
        assert_eq!(progress(&[status(1, 90, 30), own.clone()], 4), "catching up: slot 40 of 90");
        own.1.sources = 2;
        assert_eq!(
            progress(&[status(1, 90, 30), own.clone()], 4),
            "catching up: slot 40 of 90, from 2 replicas"
        );
        (own.1.snapshot_bytes_received, own.1.snapshot_bytes_total) = (1024, 2048);
        assert_eq!(progress(&[status(1, 90, 0), own], 4), "receiving a snapshot: 1.0 KiB of 2.0 KiB");
    }
}
