//! `synod wal dump|verify`: a replica's write-ahead log for people.

use std::{fmt::Write as _, path::PathBuf};

use clap::{Args, Subcommand};
use synod_replica::LogRecord;
use synod_storage::{
    Keep,
    inspect::{self, Entry, Header, Report},
};
use synod_wire::GroupId;

use crate::{
    failure::Failure,
    output::{self, Bytes},
};

/// Arguments of `synod wal`.
#[derive(Clone, Debug, Args)]
pub struct WalArgs {
    #[command(subcommand)]
    command: WalCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum WalCommand {
    /// Print every record of the log, a line each
    ///
    /// Nothing is written or locked: it works beside a running replica.
    Dump {
        /// The replica's data directory, or the log's own inside it.
        dir: PathBuf,
        /// Only slots from this one on; records that belong to no slot are left out then.
        #[arg(long, value_name = "SLOT")]
        from_slot: Option<u64>,
    },
    /// Read the whole log and say whether a start would find it whole; exit code 1 if not
    ///
    /// Nothing is written or locked: it works beside a running replica.
    Verify {
        /// The replica's data directory, or the log's own inside it.
        dir: PathBuf,
    },
}

pub fn run(args: WalArgs) -> Result<(), Failure> {
    match args.command {
        WalCommand::Dump { dir, from_slot } => {
            let mut printed = Ok(());
            inspect::dump(&dir, |entry| {
                if printed.is_ok()
                    && let Some(line) = line(&entry, from_slot)
                {
                    printed = output::print(line.as_bytes());
                }
            })
            .map_err(Failure::failed)?;
            printed
        }
        WalCommand::Verify { dir } => {
            let report = inspect::verify(&dir).map_err(Failure::failed)?;
            output::print(describe(&report).as_bytes())?;
            match (&report.damage, &report.loss) {
                (None, None) => Ok(()),
                _ => Err(Failure::failed(
                    "the log is not whole; what the replica will do about it is said above",
                )),
            }
        }
    }
}

/// A line of the dump; `None` if it was not asked for.
fn line(entry: &Entry, from_slot: Option<u64>) -> Option<String> {
    Some(match entry {
        Entry::Segment { segment, path, file_bytes, header } => {
            let header = match header {
                Header::Blank => "made ready, not begun".to_owned(),
                Header::Damaged => "ITS HEADER CANNOT BE READ".to_owned(),
                Header::Intact { first_lsn, incarnation, restated } => {
                    format!(
                        "from record {first_lsn}, begun by life {incarnation}, {restated} records restated"
                    )
                }
            };
            format!("segment {segment}: {} ({}), {header}\n", path.display(), Bytes(*file_bytes))
        }
        Entry::Record { offset, lsn, group, keep, restated, durable, bytes, .. } => {
            let place = match keep {
                Keep::Slot(slot) if from_slot.is_some_and(|from| slot.0 < from) => return None,
                Keep::Slot(slot) => format!("slot {slot}"),
                Keep::State(_) if from_slot.is_some() => return None,
                Keep::State(key) => format!("state {key}"),
            };
            let content = match bytes {
                None => "ITS CHECKSUM DOES NOT MATCH".to_owned(),
                Some(bytes) => match LogRecord::decode(bytes.clone()) {
                    Ok(record) => summary(&record),
                    Err(error) => format!("{} bytes that are no record: {error}", bytes.len()),
                },
            };
            let group = if *group == GroupId::FIRST { String::new() } else { format!("{group} ") };
            let restated = if *restated { " (restated)" } else { "" };
            format!(
                "  record {lsn}{restated} at byte {offset}, {group}{place}, durable through {durable}: {content}\n"
            )
        }
        Entry::Unreadable { offset, reason, .. } => format!("  UNREADABLE at byte {offset}: {reason}\n"),
        Entry::Torn { offset, bytes, .. } => {
            format!("  torn end at byte {offset}, {bytes} bytes: half-written, never promised\n")
        }
    })
}

/// The verdict in words.
fn describe(report: &Report) -> String {
    let mut text = String::new();
    let mut say = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    say("log of", format!("{}, life {}", report.identity, report.identity.incarnation));
    let state = match (report.running, report.closed_at) {
        (true, _) => "in use by a running replica; its end may be in the middle of a write".to_owned(),
        (false, Some(lsn)) => format!("closed in good order at record {lsn}"),
        (false, None) => "not closed: the last run was killed, or the machine went down".to_owned(),
    };
    say("state", state);
    if let Some(durability) = report.durability {
        say("durability", durability.to_string());
    }
    say("segments", format!("{} with {}", report.segments, Bytes(report.bytes)));
    say(
        "records",
        match report.records {
            0 => "none".to_owned(),
            records => format!("{records}, from {} to {}", report.first, report.last),
        },
    );
    let several = report.slots.keys().any(|group| *group > GroupId::FIRST);
    for (group, (first, last)) in &report.slots {
        let of = if several { format!(" of group {}", group.0) } else { String::new() };
        say("slots", format!("{first} to {last}{of}"));
    }
    if report.torn_bytes > 0 {
        say("torn end", format!("{}; a start cuts it off, it was never promised", Bytes(report.torn_bytes)));
    }
    for path in &report.set_aside {
        say("set aside", path.display().to_string());
    }
    let verdict = match (&report.damage, &report.loss) {
        (None, None) => "whole".to_owned(),
        (Some(damage), _) => {
            format!(
                "DAMAGED: {damage}. A start sets the damaged files aside, and learns from the other replicas before it votes; \
                 where no other replica votes, it refuses, and changes nothing"
            )
        }
        (None, Some(loss)) => {
            format!(
                "INCOMPLETE: {loss}. The replica learns from the others before it votes; where no other replica votes, its \
                 start says what can be done"
            )
        }
    };
    say("verdict", verdict);
    text
}

/// Letters of a record's description that are shown.
const SUMMARY_MAX: usize = 300;

/// A record in words.
fn summary(record: &LogRecord) -> String {
    let mut text = synod_replica::describe::record(record, &synod_kv::describe::command);
    if let Some((cut, _)) = text.char_indices().nth(SUMMARY_MAX) {
        text.truncate(cut);
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use synod_api::{
        etcdserverpb::AuthUserAddRequest,
        synod::v1::{KvAuthChange, KvAuthenticate, KvCommand, kv_auth_change::Change, kv_command::Command},
    };
    use synod_wire::{Ballot, BatchBuilder, Epoch, Lsn, ReplicaId, SessionId, Slot};

    use super::*;

    fn record(group: u16, slot: u64, bytes: Option<bytes::Bytes>) -> Entry {
        Entry::Record {
            segment: 1,
            offset: 4096,
            lsn: Lsn(7),
            group: GroupId(group),
            keep: Keep::Slot(Slot(slot)),
            restated: false,
            durable: Lsn(6),
            bytes,
        }
    }

    fn accepted(payload: &[u8]) -> LogRecord {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, payload);
        let accepted = synod_consensus::multipaxos::Record::Accepted {
            ballot: Ballot { round: 2, replica: ReplicaId(1) },
            first: Slot(3),
            decided: Slot(2),
            batches: [builder.finish()].into(),
        };
        LogRecord::Protocol { epoch: Epoch(1), record: accepted.into() }
    }

    #[test]
    fn records_are_decoded() {
        let bytes = accepted(b"payload").encode().to_bytes();
        assert_eq!(
            line(&record(0, 3, Some(bytes.clone())), None).unwrap(),
            "  record 7 at byte 4096, slot 3, durable through 6: accepted 2@r1 slot 3, decided 2: s1#1 unreadable\n"
        );
        assert_eq!(line(&record(0, 3, Some(bytes)), Some(4)), None);
        assert!(line(&record(5, 3, None), None).unwrap().contains(", g5 slot 3, "));
        assert!(line(&record(0, 3, None), None).unwrap().contains("CHECKSUM"));
        assert!(line(&record(0, 3, Some("?".into())), None).unwrap().contains("no record"));
    }

    #[test]
    fn no_secret_of_a_user_is_printed() {
        let authenticate = KvAuthenticate { name: "u".into(), secret: "s3cret".into(), ..Default::default() };
        let add = AuthUserAddRequest { hashed_password: "s3cret".into(), ..Default::default() };
        for change in [Change::Authenticate(authenticate), Change::UserAdd(add)] {
            let command = Command::Auth(KvAuthChange { change: Some(change) });
            let payload = KvCommand { command: Some(command), ..Default::default() }.encode_to_vec();
            assert!(payload.windows(6).any(|window| window == b"s3cret"));
            let bytes = accepted(&payload).encode().to_bytes();
            let line = line(&record(0, 3, Some(bytes)), None).unwrap();
            assert!(line.contains("change of users") && !line.contains("s3cret"), "{line}");
        }
    }
}
