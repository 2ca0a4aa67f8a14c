//! Messages and records as people read them.

use synod_wire::{Batch, Slot};

use super::{AcceptSync, Extent, Message, Prepare, Promise, Record};
use crate::{BatchText, Describe, batches::last_of, describe::amnesia};

impl Describe for Message {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Message::Prepare(Prepare { ballot, has, page }) => {
                let page =
                    if *page == Slot::ZERO { String::new() } else { format!(", the page from slot {page}") };
                format!("Prepare {ballot}, has {}{page}", extent(has))
            }
            Message::Promise(Promise { ballot, has, first, batches, more, .. }) => {
                let elements = elements(", with", *first, batches, *more, batch);
                format!("Promise {ballot}, has {}{elements}", extent(has))
            }
            Message::AcceptSync(AcceptSync { ballot, first, from, batches, more, decided }) => {
                let elements = elements("", *from, batches, *more, batch);
                format!("AcceptSync {ballot} from slot {first}, decided {decided}:{elements}")
            }
            Message::SyncNext { ballot, first, from } => {
                format!("SyncNext {ballot} from slot {first}, the page from slot {from}")
            }
            Message::Accept { ballot, first, decided, batches } => {
                format!("Accept {ballot}, decided {decided}:{}", elements("", *first, batches, false, batch))
            }
            Message::Accepted { ballot, last } => format!("Accepted {ballot} through slot {last}"),
            Message::Decide { ballot, through } => format!("Decide {ballot} through slot {through}"),
            Message::PrepareReq { promised } => format!("PrepareReq promised {promised}"),
            Message::Lagging { ballot, through } => format!("Lagging {ballot}, decided {through}"),
            Message::Heartbeat { ballot, decided, round } => {
                format!("Heartbeat {ballot} round {round}, decided {decided}")
            }
            Message::HeartbeatAck { ballot, round } => format!("HeartbeatAck {ballot} round {round}"),
            Message::Reject { promised } => format!("Reject promised {promised}"),
            Message::TakeOver { ballot } => format!("TakeOver from {ballot}"),
        }
    }
}

impl Describe for Record {
    fn describe(&self, batch: BatchText<'_>) -> String {
        match self {
            Record::Promised(ballot) => format!("promised {ballot}"),
            Record::Accepted { ballot, first, decided, batches } => {
                let elements = elements("", *first, batches, false, batch);
                format!("accepted {ballot}, decided {decided}:{elements}")
            }
            Record::Staged { ballot, first, from, batches } => {
                let elements = elements("", *from, batches, true, batch);
                format!("staged {ballot} from slot {first}:{elements}")
            }
            Record::Adopted { ballot, first, from, decided, batches, .. } => {
                let elements = elements("", *from, batches, false, batch);
                format!("adopted {ballot} from slot {first}, decided {decided}:{elements}")
            }
            Record::Learned { slot, batch: learned, .. } => {
                format!("learned slot {slot}: {}", batch(learned))
            }
            Record::Amnesia(lost) => amnesia(*lost),
            Record::Trimmed { slot, accepted_in } => {
                format!("a snapshot covers slots through {slot}; accepted {accepted_in}")
            }
        }
    }
}

fn extent(has: &Extent) -> String {
    format!("{} through slot {}, decided {}", has.accepted_in, has.last, has.decided)
}

/// Elements of a sequence.
fn elements(before: &str, first: Slot, batches: &[Batch], more: bool, batch: BatchText<'_>) -> String {
    let more = if more { ", and more" } else { "" };
    match batches {
        [] if before.is_empty() => format!(" nothing{more}"),
        [] => more.to_owned(),
        [only] => format!("{before} slot {first}: {}{more}", batch(only)),
        _ => {
            let last = last_of(first, batches);
            let all: Vec<String> = batches.iter().map(batch).collect();
            format!("{before} slots {first} to {last}: {}{more}", all.join(" | "))
        }
    }
}
