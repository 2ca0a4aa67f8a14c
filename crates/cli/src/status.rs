//! `synod status`: every replica as it describes itself, side by side.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde_json::{Value, json};
use synod_client::{
    Error,
    api::Member,
    native::{PeerStatus, StatusResponse},
};

use crate::{
    client::ClientArgs,
    failure::Failure,
    member::members_json,
    output::{self, Bytes, Emphasis, Format},
    quorum::needed,
    round_trips::RoundTrips,
    threads,
};

/// Arguments of `synod status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Ask all members that the endpoints know of.
    #[arg(long)]
    cluster: bool,
    /// Tell what the threads of each replica do with their time, watched for a second, and what binds it.
    #[arg(long)]
    threads: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// What one replica said.
struct Asked {
    /// The endpoint at which the replica was asked; empty if it is not known.
    endpoint: String,
    answer: Result<StatusResponse, Silence>,
}

/// Why a replica said nothing.
struct Silence {
    /// Why, in a word or two.
    state: &'static str,
    why: String,
    /// The replica's name, if it is known.
    name: String,
}

impl From<Error> for Silence {
    fn from(error: Error) -> Silence {
        let state = match error {
            Error::Refused { code: synod_client::Code::Unimplemented, .. } => "not synod",
            Error::Refused { .. } => "refused",
            _ => "unreachable",
        };
        let why = match error {
            // Each endpoint is asked once.
            Error::Unavailable { endpoint, cause, .. } => format!("{endpoint}: {cause}"),
            Error::Refused { endpoint, code, message, .. } => format!("{endpoint}: {message} ({code:?})"),
            error => error.to_string(),
        };
        Silence { state, why, name: String::new() }
    }
}

/// The rows, of which those after the first `told` are of endpoints that no member has told: such a row counts if it is
/// of one of the members that have told none, `silent`. The others of these come last.
fn with_unstarted(mut asked: Vec<Asked>, told: usize, silent: &[Member]) -> Vec<Asked> {
    let is_of = |asked: &Asked, member: &Member| {
        asked.answer.as_ref().is_ok_and(|status| status.replica == member.id)
    };
    let mut row = 0;
    asked.retain(|asked| {
        row += 1;
        row <= told || silent.iter().any(|member| is_of(asked, member))
    });
    let has_no_row = |member: &&Member| !asked.iter().any(|asked| is_of(asked, member));
    let unstarted: Vec<Asked> = silent.iter().filter(has_no_row).map(unstarted).collect();
    asked.extend(unstarted);
    asked
}

/// Names the members that gave no status, as far as the others know them by their endpoints.
fn name_silent(asked: &mut [Asked], mut names: BTreeMap<String, String>) {
    let groups = asked.iter().filter_map(|asked| asked.answer.as_ref().ok()?.group.as_ref());
    for member in groups.flat_map(|group| &group.members) {
        names.extend(member.client_urls.iter().map(|url| (url.clone(), member.name.clone())));
    }
    for Asked { endpoint, answer } in asked {
        if let (Err(silence), Some(name)) = (answer, names.get(&*endpoint)) {
            silence.why = format!("{name} at {}", silence.why);
            silence.name.clone_from(name);
        }
    }
}

/// The row of a member that has never told where clients reach it.
fn unstarted(member: &Member) -> Asked {
    let Member { id, name, .. } = member;
    let why = format!(
        "member {id} ({name}) has not told its client URLs: it has not started yet, or it joins, and serves clients once it \
         has caught up (its log says what it waits for)"
    );
    Asked { endpoint: String::new(), answer: Err(Silence { state: "unstarted", why, name: name.clone() }) }
}

pub fn run(mut args: StatusArgs) -> Result<(), Failure> {
    let given = args.client.clone();
    let asked = given.run(async {
        let mut silent = Vec::new();
        let mut names = BTreeMap::new();
        let mut told = usize::MAX;
        if args.cluster {
            let members = args.client.client()?.member_list(false).await?.members;
            // Before a new group has decided anything, no member has told its URLs: then the given endpoints are asked.
            if members.iter().any(|member| !member.client_ur_ls.is_empty()) {
                let mut urls = Vec::new();
                for member in &members {
                    urls.extend(member.client_ur_ls.iter().cloned());
                    names.extend(member.client_ur_ls.iter().map(|url| (url.clone(), member.name.clone())));
                }
                told = urls.len();
                silent.extend(members.into_iter().filter(|member| member.client_ur_ls.is_empty()));
                // A member that has told none yet may be one of those that the user knows.
                if !silent.is_empty() {
                    let given = args.client.endpoints.iter().filter(|url| !names.contains_key(*url));
                    urls.extend(given.cloned());
                }
                args.client.endpoints = urls;
            }
        }
        let client = args.client.client()?;
        if args.threads {
            threads::run(&client, args.client.write_out).await?;
            return Ok(None);
        }
        let answers = client.native_status().await.into_iter().map(|answer| answer.map_err(Silence::from));
        let asked = client.endpoints().map(str::to_owned).zip(answers);
        let asked = asked.map(|(endpoint, answer)| Asked { endpoint, answer }).collect();
        let mut asked = with_unstarted(asked, told, &silent);
        name_silent(&mut asked, names);
        Ok(Some(asked))
    })?;
    let Some(asked) = asked else { return Ok(()) };
    // How far the cluster is, as far as any replica that was asked knows.
    let newest =
        asked.iter().filter_map(|asked| asked.answer.as_ref().ok()).map(|status| status.decided_slot);
    let newest = newest.max().unwrap_or(0);
    match args.client.write_out {
        // Both formats are for people, and the table side by side needs columns.
        Format::Simple | Format::Table => {
            output::print(narrow(&asked, newest, output::colours()).as_bytes())?
        }
        Format::Wide => output::print(wide(&asked, newest, output::colours()).as_bytes())?,
        Format::Json => {
            let times = round_trips(&asked);
            output::print_json(&asked.iter().map(|asked| to_json(asked, newest, &times)).collect())?;
        }
    }
    troubles(&asked).iter().for_each(|trouble| eprintln!("{trouble}"));
    let silent: Vec<_> = asked.iter().filter_map(|asked| asked.answer.as_ref().err()).collect();
    for Silence { why, .. } in &silent {
        eprintln!("{why}");
    }
    match silent.len() {
        0 => Ok(()),
        number => Err(Failure::failed(format!("{number} of {} replicas gave no status", asked.len()))),
    }
}

/// A list in 80 columns: first what is the same at all replicas, then what is not.
fn narrow(asked: &[Asked], newest: u64, colours: bool) -> String {
    let mut text = String::new();
    let mut told = |what: &str, value: &dyn Fn(&StatusResponse) -> String| {
        for (line, value) in by_replica(asked, value).iter().enumerate() {
            let what = if line == 0 { what } else { "" };
            text += &format!("{what:<12}{value}\n");
        }
    };
    told("Leader", &|status| format!("{}, ballot {}", or_none(&status.leader_name), ballot(status)));
    told("Ordering", &ordering);
    told("Group", &|status| {
        let group = status.group.as_ref();
        let (epoch, version) = group.map_or((0, 0), |group| (group.epoch, group.version));
        format!("epoch {epoch}, version {version}")
    });
    told("Survives", &survives);
    told("Durability", &|status| status.durability.clone());
    let is_tcp = |status: &StatusResponse| matches!(status.transport.as_str(), "" | "tcp");
    if !asked.iter().filter_map(|asked| asked.answer.as_ref().ok()).all(is_tcp) {
        told("Transport", &transport);
    }
    let rows = asked.iter().map(|asked| {
        let endpoint = asked.endpoint.split_once("://").map_or(&*asked.endpoint, |(_, rest)| rest).to_owned();
        match &asked.answer {
            Ok(status) => [
                status.name.clone(),
                status.role.clone(),
                status.decided_slot.to_string(),
                lag(status, newest).to_string(),
                Bytes(status.log_bytes).to_string(),
                peers_up(status),
                endpoint,
            ],
            Err(Silence { state, name, .. }) => {
                let [slot, lag, log, peers] = [const { String::new() }; 4];
                [name.clone(), (*state).to_owned(), slot, lag, log, peers, endpoint]
            }
        }
    });
    text += &painted(
        output::table(["NAME", "ROLE", "SLOT", "LAG", "LOG", "PEERS UP", "ENDPOINT"], rows),
        asked,
        newest,
        colours,
    );
    for status in asked.iter().filter_map(|asked| asked.answer.as_ref().ok()) {
        if let Some(what) = receives(status) {
            text += &format!("{} receives {what}\n", status.name);
        }
    }
    text + &round_trips(asked).table() + &groups(asked)
}

/// How long replicas wait for each other.
fn round_trips(asked: &[Asked]) -> RoundTrips<'_> {
    RoundTrips::of(asked.iter().filter_map(|asked| asked.answer.as_ref().ok()))
}

/// The groups, if there are several: the leader of each, the last slots that were decided and that each replica has
/// executed, the size of its part of the store (or its position, if the groups have one order), and whether the members
/// are those of group 0.
fn groups(asked: &[Asked]) -> String {
    let told = || asked.iter().filter_map(|asked| asked.answer.as_ref().ok());
    let count = told().map(|status| status.groups.len()).max().unwrap_or(0);
    if count < 2 {
        return String::new();
    }
    // The replica that knows the latest members says which groups do not have them; of several the first, which was not
    // the last to join.
    let version = |status: &&StatusResponse| status.group.as_ref().map_or(0, |group| group.version);
    let of_informed = |number: usize| {
        let takes_part =
            |status: &&StatusResponse| status.groups.get(number).is_some_and(|group| group.role != "away");
        told().filter(takes_part).rev().max_by_key(version)?.groups.get(number)
    };
    let row = |number: usize| {
        let told = || told().filter_map(|status| Some((&status.name, status.groups.get(number)?)));
        // Of replicas that name different leaders, the one with the highest ballot of the latest epoch is the last to
        // have heard.
        let present = told().filter(|(_, group)| group.role != "away");
        let latest = present.max_by_key(|(_, group)| (group.epoch, ballot_round(&group.ballot)));
        let decided = told().map(|(_, group)| group.decided_slot).max().unwrap_or(0);
        let applied = told().map(|(name, group)| match group.role.as_str() {
            "away" => format!("{name} away"),
            "recovering" => format!("{name} {} recovering", group.applied_slot),
            _ => format!("{name} {}", group.applied_slot),
        });
        let applied: Vec<_> = applied.collect();
        // What the replica has that has executed most.
        let size = told().max_by_key(|(_, group)| group.applied_slot).map_or(0, |(_, group)| group.db_size);
        let leader = latest.map_or_else(String::new, |(_, group)| or_none(&group.leader_name));
        let members = of_informed(number);
        let members = members.map_or("", |group| match group.members_pending.as_str() {
            "" => group.placement.as_str(),
            pending => pending,
        });
        let members = if members.is_empty() { "as group 0" } else { members };
        // Of merged groups all have one store.
        let position =
            told().map(|(_, group)| group.position).max().and_then(|position| position.checked_sub(1));
        let size = position.map_or_else(|| Bytes(size).to_string(), |position| position.to_string());
        [number.to_string(), leader, decided.to_string(), applied.join(", "), size, members.to_owned()]
    };
    let merged = told().any(|status| status.groups.iter().any(|group| group.position > 0));
    let (size, order) = if merged { ("POSITION", " in one order") } else { ("SIZE", "") };
    let table = output::table(["GROUP", "LEADER", "SLOT", "APPLIED", size, "MEMBERS"], (0..count).map(row));
    format!("{count} groups{order}; what is said above of a group is said of group 0\n{table}")
}

/// The epoch of a replica's group, as far as it knows.
pub fn epoch(status: &StatusResponse) -> u64 {
    status.group.as_ref().map_or(0, |group| group.epoch)
}

/// A replica's ballot, for people. It is named with its epoch, since each epoch begins with the lowest ballots again.
pub fn ballot(status: &StatusResponse) -> String {
    format!("{} of epoch {}", status.ballot, epoch(status))
}

/// The round of a ballot such as `10@r2`.
pub fn ballot_round(ballot: &str) -> u64 {
    ballot.split('@').next().and_then(|round| round.parse().ok()).unwrap_or(0)
}

/// What carries messages between replicas, and which peers get no datagrams although others do.
fn transport(status: &StatusResponse) -> String {
    let sent_over_tcp = |peer: &&PeerStatus| peer.up && !peer.datagrams;
    let names: Vec<_> = status.peers.iter().filter(sent_over_tcp).map(|peer| peer.name.as_str()).collect();
    match (status.transport.as_str(), names.is_empty()) {
        // A replica of an earlier version does not tell.
        ("", _) => "tcp".to_owned(),
        ("udp", false) => format!("udp, and tcp to {}", names.join(", ")),
        (other, _) => other.to_owned(),
    }
}

/// What orders, how its leader is elected, and how batches reach all replicas.
fn ordering(status: &StatusResponse) -> String {
    let StatusResponse { protocol, election, dissemination, .. } = status;
    // A replica of an earlier version does not tell the last.
    let dissemination =
        if dissemination.is_empty() { String::new() } else { format!(", dissemination {dissemination}") };
    format!("{protocol}, election {election}{dissemination}")
}

/// How many voters may be missing while the others decide. Of several groups, it is said of the first.
fn survives(status: &StatusResponse) -> String {
    let members = status.group.iter().flat_map(|group| &group.members);
    let voters = members.filter(|member| member.votes).count();
    let quorum = status.group.as_ref().map_or(0, |group| group.quorum);
    match voters.saturating_sub(needed(quorum, voters)) {
        0 => format!("the loss of none of {voters} voters"),
        spare => format!("the loss of {spare} of {voters} voters"),
    }
}

/// What replicas say: once if they agree, and otherwise each value with the names of the replicas that say it.
fn by_replica(asked: &[Asked], value: impl Fn(&StatusResponse) -> String) -> Vec<String> {
    let mut values: Vec<(String, Vec<&str>)> = Vec::new();
    for status in asked.iter().filter_map(|asked| asked.answer.as_ref().ok()) {
        let value = value(status);
        match values.iter_mut().find(|(known, _)| *known == value) {
            Some((_, names)) => names.push(&status.name),
            None => values.push((value, vec![&status.name])),
        }
    }
    match &values[..] {
        [(value, _)] => vec![value.clone()],
        values => values.iter().map(|(value, names)| format!("{}: {value}", names.join(", "))).collect(),
    }
}

const HEAD: [&str; 19] = [
    "ENDPOINT",
    "REPLICA",
    "ROLE",
    "LEADER",
    "BALLOT",
    "PROTOCOL",
    "ELECTION",
    "DISSEMINATION",
    "DURABILITY",
    "EPOCH",
    "GROUP",
    "SLOT",
    "APPLIED",
    "LAG",
    "LOG",
    "SNAPSHOT",
    "REVISION",
    "PEERS UP",
    "RECEIVES",
];

/// The table of all replicas, side by side.
fn wide(asked: &[Asked], newest: u64, colours: bool) -> String {
    let row = |asked: &Asked| {
        let mut row = [const { String::new() }; HEAD.len()];
        row[0].clone_from(&asked.endpoint);
        let status = match &asked.answer {
            Ok(status) => status,
            Err(Silence { state, name, .. }) => {
                row[1].clone_from(name);
                row[2] = (*state).to_owned();
                return row;
            }
        };
        let group = status.group.as_ref();
        let snapshot = match status.snapshot_slot {
            0 => "none".to_owned(),
            slot => slot.to_string(),
        };
        row[1..].clone_from_slice(&[
            status.name.clone(),
            status.role.clone(),
            or_none(&status.leader_name),
            status.ballot.clone(),
            status.protocol.clone(),
            status.election.clone(),
            status.dissemination.clone(),
            status.durability.clone(),
            epoch(status).to_string(),
            group.map_or(0, |group| group.version).to_string(),
            status.decided_slot.to_string(),
            status.applied_slot.to_string(),
            lag(status, newest).to_string(),
            Bytes(status.log_bytes).to_string(),
            snapshot,
            status.revision.to_string(),
            peers_up(status),
            receives(status).unwrap_or_default(),
        ]);
        row
    };
    painted(output::table(HEAD, asked.iter().map(row)), asked, newest, colours)
        + &round_trips(asked).table()
        + &groups(asked)
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "none".to_owned() } else { text.to_owned() }
}

fn lag(status: &StatusResponse, newest: u64) -> u64 {
    newest.saturating_sub(status.applied_slot)
}

/// How many of the others a replica exchanges messages with, and which of them it does not.
fn peers_up(status: &StatusResponse) -> String {
    let down = status.peers.iter().filter(|peer| !peer.up).map(|peer| match peer.name.as_str() {
        "" => format!("{:x}", peer.replica),
        name => name.to_owned(),
    });
    let down: Vec<String> = down.collect();
    let up = format!("{} of {}", status.peers.len() - down.len(), status.peers.len());
    if down.is_empty() { up } else { format!("{up}, not {}", down.join(" ")) }
}

/// The table with colours: replicas that are silent stand out, and so do replicas that lag, have no vote for
/// now or miss a peer.
fn painted(table: String, asked: &[Asked], newest: u64, colours: bool) -> String {
    if !colours {
        return table;
    }
    let emphasis = |asked: &Asked| match &asked.answer {
        Err(_) => Emphasis::Alarm,
        Ok(status)
            if lag(status, newest) > 0
                || status.without_memory
                || status.groups.iter().any(|group| group.leader_name.is_empty() && group.role != "away")
                || status.leader_name.is_empty()
                || status.peers.iter().any(|peer| !peer.up) =>
        {
            Emphasis::Warning
        }
        Ok(_) => Emphasis::None,
    };
    output::paint(&table, &asked.iter().map(emphasis).collect::<Vec<_>>())
}

/// What an operator should know of the replicas that answered.
fn troubles(asked: &[Asked]) -> Vec<String> {
    let mut answered: Vec<&StatusResponse> =
        asked.iter().filter_map(|asked| asked.answer.as_ref().ok()).collect();
    // A replica may have several URLs.
    let mut seen = BTreeSet::new();
    answered.retain(|status| seen.insert((status.replica, status.name.as_str())));
    let mut told = own_troubles(answered.iter().copied());
    let count = answered.iter().map(|status| status.groups.len().max(1)).max().unwrap_or(0);
    told.extend((0..count).filter_map(|number| lost_memory(&answered, number, count)));
    told
}

/// What replicas say of their own troubles, a line each. What several say is said once, with their names.
pub fn own_troubles<'a>(replicas: impl IntoIterator<Item = &'a StatusResponse>) -> Vec<String> {
    let mut told: Vec<(&str, String)> = Vec::new();
    for status in replicas {
        for trouble in &status.troubles {
            let text = trouble.strip_prefix("synod: ").unwrap_or(trouble);
            match told.iter_mut().find(|(other, _)| *other == text) {
                Some((_, names)) => *names += &format!(", {}", status.name),
                None => told.push((text, status.name.clone())),
            }
        }
    }
    told.into_iter().map(|(text, names)| format!("{names}: {text}")).collect()
}

/// That the voters of a group which have not lost their logs are no quorum. `count`: the number of groups.
fn lost_memory(answered: &[&StatusResponse], number: usize, count: usize) -> Option<String> {
    // A replica of an earlier version tells nothing of its groups but this.
    let lost = |status: &&&StatusResponse| match status.groups.get(number) {
        Some(group) => group.without_memory || count == 1 && status.without_memory,
        None => number == 0 && status.without_memory,
    };
    // Of replicas that know different voters, the one that knows the most members says who votes.
    let version = |status: &&&StatusResponse| status.group.as_ref().map_or(0, |group| group.version);
    let newest = answered.iter().max_by_key(version)?;
    let voters: Vec<&str> = match newest.groups.get(number).filter(|group| !group.voters.is_empty()) {
        Some(group) => group.voters.iter().map(String::as_str).collect(),
        None => {
            let members = newest.group.iter().flat_map(|group| &group.members);
            members.filter(|member| member.votes).map(|member| member.name.as_str()).collect()
        }
    };
    let lost = answered.iter().filter(lost).map(|status| status.name.as_str());
    let lost: Vec<&str> = lost.filter(|name| voters.contains(name)).collect();
    let left = voters.len() - lost.len();
    let quorum = match newest.groups.get(number) {
        Some(group) => group.quorum,
        None => newest.group.as_ref().map_or(0, |group| group.quorum),
    };
    if left >= needed(quorum, voters.len()) || lost.is_empty() {
        return None;
    }
    let of_group = if count > 1 { format!(" of group {number}") } else { String::new() };
    let outlook = if lost.len() > left {
        "and wait for each other: none of them votes again by itself"
    } else {
        "and the others are too few to decide: none of them votes again by itself, unless a leader is left"
    };
    let (lost, names) = (lost.len(), lost.join(", "));
    Some(format!(
        "{lost} of {} voters{of_group} have lost (part of) their logs ({names}) {outlook}. See 'Replicas without memory' in \
         docs/operating.md (`synod docs operating`)",
        voters.len()
    ))
}

/// What a replica is receiving, and from how many others, if it is.
fn receives(status: &StatusResponse) -> Option<String> {
    if !status.waits_for.is_empty() {
        return Some(format!("nothing: it waits for {}", status.waits_for.join(", ")));
    }
    let (received, total) = (status.snapshot_bytes_received, status.snapshot_bytes_total);
    if total > 0 {
        return Some(format!("snapshot, {} of {}, from {}", Bytes(received), Bytes(total), status.sources));
    }
    let slots = (status.sources > 0 && status.slots_missing > 0).then_some(status.slots_missing)?;
    Some(format!("{slots} slots from {}", status.sources))
}

/// The other members: whether there is a connection, and the shortest time in which each answered lately.
fn peers_json(status: &StatusResponse) -> Vec<Value> {
    let peer = |peer: &PeerStatus| {
        let round_trip = (peer.round_trip_nanos > 0).then(|| peer.round_trip_nanos as f64 / 1e6);
        json!({
            "id": peer.replica,
            "name": peer.name,
            "up": peer.up,
            "round_trip_ms": round_trip,
            "datagrams": peer.datagrams,
        })
    };
    status.peers.iter().map(peer).collect()
}

fn to_json(asked: &Asked, newest: u64, times: &RoundTrips<'_>) -> Value {
    let status = match &asked.answer {
        Ok(status) => status,
        Err(Silence { state, why, name }) => {
            return json!({"endpoint": asked.endpoint, "name": name, "state": state, "error": why});
        }
    };
    let group = status.group.as_ref();
    let groups = status.groups.iter().map(|group| {
        json!({
            "role": group.role,
            "leader": group.leader_name,
            "ballot": group.ballot,
            "slot": group.decided_slot,
            "applied": group.applied_slot,
            "snapshot_slot": group.snapshot_slot,
            "members_pending": group.members_pending,
            "placement": group.placement,
            "voters": group.voters,
            "without_memory": group.without_memory,
            "quorum": group.quorum,
            "position": group.position.checked_sub(1),
            "waited_for_ms": group.waited_for_ms,
            "db_bytes": group.db_size,
            "keys": group.keys,
            "revision": group.revision,
        })
    });
    json!({
        "endpoint": asked.endpoint,
        "state": "reachable",
        "cluster_id": status.cluster_id,
        "id": status.replica,
        "name": status.name,
        "role": status.role,
        "leader": status.leader,
        "leader_name": status.leader_name,
        "ballot": status.ballot,
        "protocol": status.protocol,
        "election": status.election,
        "dissemination": status.dissemination,
        "transport": status.transport,
        "options": group.map_or("", |group| group.options.as_str()),
        "limits": group.map_or("", |group| group.limits.as_str()),
        "durability": status.durability,
        "slot": status.decided_slot,
        "applied": status.applied_slot,
        "lag": newest.saturating_sub(status.applied_slot),
        "log_bytes": status.log_bytes,
        "snapshot_slot": status.snapshot_slot,
        "sessions": status.sessions,
        "revision": status.revision,
        "db_bytes": status.db_size,
        "peers": peers_json(status),
        "majority_ms": times.majority_time(status.replica).map(|nanos| nanos as f64 / 1e6),
        "gain_if_it_led_ms": times.gain(status.replica).map(|nanos| nanos as f64 / 1e6),
        "epoch": group.map_or(0, |group| group.epoch),
        "group_version": group.map_or(0, |group| group.version),
        "members": group.map(members_json),
        "snapshot_bytes_received": status.snapshot_bytes_received,
        "snapshot_bytes_total": status.snapshot_bytes_total,
        "slots_missing": status.slots_missing,
        "sources": status.sources,
        "without_memory": status.without_memory,
        "troubles": status.troubles,
        "waits_for": status.waits_for,
        "quorum": group.map_or(0, |group| group.quorum),
        "groups": groups.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_received_is_told() {
        let status = |slots_missing, sources, snapshot_bytes_total| StatusResponse {
            slots_missing,
            sources,
            snapshot_bytes_received: snapshot_bytes_total / 2,
            snapshot_bytes_total,
            ..StatusResponse::default()
        };
        assert_eq!(receives(&status(0, 0, 0)), None);
        assert_eq!(receives(&status(3, 0, 0)), None, "what is on its way by itself");
        assert_eq!(receives(&status(70, 2, 0)).as_deref(), Some("70 slots from 2"));
        let snapshot = receives(&status(70, 1, 2048));
        assert_eq!(snapshot.as_deref(), Some("snapshot, 1.0 KiB of 2.0 KiB, from 1"));
        let waiting = StatusResponse { waits_for: vec!["n2".into(), "n3".into()], ..status(0, 0, 0) };
        assert_eq!(receives(&waiting).as_deref(), Some("nothing: it waits for n2, n3"));
    }

    #[test]
    fn a_majority_that_lost_its_logs_is_told_of_once_and_a_minority_is_not() {
        use synod_client::native::{Group, GroupMember};
        let member =
            |id| GroupMember { id, name: format!("n{id}"), votes: id <= 3, ..GroupMember::default() };
        let members = (1..=4).map(member).collect();
        let group = Some(Group { version: 1, members, ..Group::default() });
        let status = |replica: u64, without_memory| Asked {
            endpoint: String::new(),
            answer: Ok(StatusResponse {
                replica,
                name: format!("n{replica}"),
                group: group.clone(),
                without_memory,
                troubles: if without_memory { vec!["synod: it waits".into()] } else { Vec::new() },
                ..StatusResponse::default()
            }),
        };
        let twice = [status(1, false), status(2, true), status(2, true), status(3, false)];
        assert_eq!(troubles(&twice), ["n2: it waits"], "it was asked at two URLs");
        let one = [status(1, false), status(2, true), status(3, false), status(4, true)];
        assert_eq!(troubles(&one), ["n2, n4: it waits"], "n4 has no vote anyway");
        let two = troubles(&[status(1, false), status(2, true), status(3, true)]);
        assert_eq!(two.len(), 2);
        assert!(two[1].contains("2 of 3 voters have") && two[1].contains("(n2, n3)"), "{}", two[1]);
    }

    #[test]
    fn lost_logs_are_told_of_each_group_by_its_own_voters() {
        use synod_client::native::GroupStatus;
        let group = |without_memory, voters: &[&str]| GroupStatus {
            role: if without_memory { "recovering".into() } else { "follower".into() },
            without_memory,
            voters: voters.iter().map(|name| (*name).to_owned()).collect(),
            ..GroupStatus::default()
        };
        let all = ["n1", "n2", "n3"];
        let status = |name: &str, lost: [bool; 3]| Asked {
            endpoint: String::new(),
            answer: Ok(StatusResponse {
                name: name.into(),
                without_memory: lost.contains(&true),
                groups: vec![group(lost[0], &all), group(lost[1], &["n1", "n2"]), group(lost[2], &all)],
                ..StatusResponse::default()
            }),
        };
        let no = [false; 3];
        // A voter of three is not missed, and one of two is.
        let one = troubles(&[status("n1", [true, true, false]), status("n2", no), status("n3", no)]);
        assert_eq!(one.len(), 1, "{one:?}");
        assert!(
            one[0].contains("1 of 2 voters of group 1 have lost (part of) their logs (n1)"),
            "{}",
            one[0]
        );
        let two = [status("n1", [false, false, true]), status("n2", no), status("n3", [false, false, true])];
        let told = troubles(&two);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("2 of 3 voters of group 2") && told[0].contains("(n1, n3)"), "{}", told[0]);
        let rows = groups(&two);
        assert!(rows.contains("n1 0 recovering, n2 0, n3 0 recovering"), "{rows}");
        let json = to_json(&two[0], 9, &round_trips(&two));
        assert_eq!(
            (&json["without_memory"], &json["groups"][2]["without_memory"]),
            (&true.into(), &true.into())
        );
        assert_eq!(json["groups"][0]["without_memory"], false);

        // Ballots begin again with each epoch.
        let mut heard = two;
        for (asked, (epoch, ballot, leader)) in
            heard.iter_mut().zip([(2, "256@r1", "n1"), (2, "0@r0", ""), (1, "768@r3", "n3")])
        {
            for group in asked.answer.as_mut().map(|status| &mut status.groups).into_iter().flatten() {
                (group.epoch, group.ballot, group.leader_name) = (epoch, ballot.into(), leader.into());
            }
        }
        let rows = groups(&heard);
        assert_eq!(rows.matches("| n1     |").count(), 3, "{rows}");
    }

    #[test]
    fn what_replicas_agree_on_is_said_once() {
        let status = |name: &str, durability: &str| Asked {
            endpoint: String::new(),
            answer: Ok(StatusResponse {
                name: name.into(),
                durability: durability.into(),
                protocol: "raft".into(),
                election: "term".into(),
                // One replica is of an earlier version.
                dissemination: if name == "n2" { "" } else { "balanced" }.into(),
                ..StatusResponse::default()
            }),
        };
        let text = narrow(&[status("n1", "sync"), status("n2", "async"), status("n3", "sync")], 0, false);
        let ordering = "Ordering    n1, n3: raft, election term, dissemination balanced\n            n2: raft, election term\n";
        assert!(text.contains(ordering), "{text}");
        assert!(text.contains("Durability  n1, n3: sync\n            n2: async\n"), "{text}");
    }

    #[test]
    fn a_member_that_answers_is_not_called_unstarted_though_it_has_told_no_address() {
        let row = |endpoint: &str, replica: u64| Asked {
            endpoint: endpoint.into(),
            answer: Ok(StatusResponse { replica, ..StatusResponse::default() }),
        };
        let member = |id: u64| Member { id, name: format!("n{id}"), ..Member::default() };
        // The first has told its address; the user knows two more, one by another address.
        let asked = vec![row("http://a:1", 1), row("http://other:1", 1), row("http://b:1", 2)];
        let rows = with_unstarted(asked, 1, &[member(2), member(3)]);
        let told: Vec<_> = rows.iter().map(|row| (&*row.endpoint, row.answer.is_ok())).collect();
        assert_eq!(told, [("http://a:1", true), ("http://b:1", true), ("", false)]);
        assert!(rows[2].answer.as_ref().is_err_and(|silence| silence.name == "n3"));
    }

    #[test]
    fn a_member_that_gives_no_status_is_named_by_those_that_know_its_endpoint() {
        use synod_client::native::{Group, GroupMember};
        let member = GroupMember {
            name: "n2".into(),
            client_urls: vec!["http://b:1".into()],
            ..GroupMember::default()
        };
        let group = Some(Group { members: vec![member], ..Group::default() });
        let answer = Ok(StatusResponse { group, ..StatusResponse::default() });
        let error = |endpoint: &str| Error::Unavailable {
            attempts: 1,
            endpoint: endpoint.into(),
            cause: "Connection refused".into(),
            reached: false,
        };
        let mut asked = vec![Asked { endpoint: "http://a:1".into(), answer }];
        asked.extend(
            ["http://b:1", "http://c:1"]
                .map(|endpoint| Asked { endpoint: endpoint.into(), answer: Err(error(endpoint).into()) }),
        );
        name_silent(&mut asked, BTreeMap::new());
        let told = asked[1..].iter().map(|asked| asked.answer.as_ref().expect_err("it is silent"));
        let told: Vec<_> = told.map(|silence| (&*silence.name, &*silence.why)).collect();
        let known = ("n2", "n2 at http://b:1: Connection refused");
        assert_eq!(told, [known, ("", "http://c:1: Connection refused")]);
    }

    #[test]
    fn a_silent_replica_has_a_row_too() {
        let status = StatusResponse {
            name: "n1".into(),
            role: "leader".into(),
            decided_slot: 9,
            applied_slot: 7,
            log_bytes: 4096,
            ..StatusResponse::default()
        };
        let error = Error::Unavailable {
            attempts: 1,
            endpoint: "http://b:1".into(),
            cause: "refused".into(),
            reached: false,
        };
        let asked = [
            Asked { endpoint: "http://a:1".into(), answer: Ok(status) },
            Asked { endpoint: "http://b:1".into(), answer: Err(error.into()) },
            unstarted(&Member { id: 3, name: "n3".into(), ..Member::default() }),
        ];
        let table = wide(&asked, 9, false);
        let line =
            |table: &str, part: &str| table.lines().find(|line| line.contains(part)).expect(part).to_owned();
        let cells = |line: String| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        assert_eq!(cells(line(&table, "http://a:1"))[2..5], ["n1", "leader", "none"]);
        assert_eq!(cells(line(&table, "http://a:1"))[12..17], ["9", "7", "2", "4.0 KiB", "none"]);
        assert!(line(&table, "http://b:1").contains("unreachable"));
        assert!(line(&table, "unstarted").contains("| n3 "));
        let table = narrow(&asked, 9, false);
        let cells = cells(line(&table, " a:1 "));
        assert_eq!(cells[1..8], ["n1", "leader", "9", "2", "4.0 KiB", "0 of 0", "a:1"]);
        assert!(line(&table, " b:1 ").contains("unreachable"));
        let colours = narrow(&asked, 9, true);
        assert!(line(&colours, " a:1 ").starts_with("\x1b[33m|"), "it lags");
        assert!(line(&colours, " b:1 ").starts_with("\x1b[31m|"));
        let times = round_trips(&asked);
        assert_eq!(to_json(&asked[0], 9, &times)["lag"], 2);
        assert_eq!(to_json(&asked[1], 9, &times)["state"], "unreachable");
        assert_eq!(to_json(&asked[2], 9, &times)["name"], "n3");
    }
}
