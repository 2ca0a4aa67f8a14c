//! What watchers were told, and whether that is what happened.
//!
//! Every watcher watches all keys, and every change of the store has a revision of its own. So the revisions that a
//! watcher is told must follow each other without a gap and without a repetition: that alone shows that no event is
//! lost, doubled or out of order. Besides, all watchers must be told the same at each revision; it must be what clients
//! were told when they wrote or read; and it must lead to what the store holds in the end.

use std::collections::BTreeMap;

use synod_client::mvccpb::{Event, KeyValue, event::EventType};

/// Violations that are kept of each watcher, so that one error does not fill the report.
const KEPT: usize = 10;
/// Events that each watcher must be told. With fewer, watches are not covered.
pub const EVENTS_MIN: u64 = 100;

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: String,
    /// The value without the padding at its end, and how long it is with it; `None` if the key is deleted.
    value: Option<(String, usize)>,
    created: i64,
    version: i64,
}

impl Change {
    fn of(kind: EventType, kv: &KeyValue) -> Change {
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        let value = (kind == EventType::Put).then(|| unpadded(&kv.value));
        Change { key, value, created: kv.create_revision, version: kv.version }
    }
}

fn unpadded(value: &[u8]) -> (String, usize) {
    (String::from_utf8_lossy(value).trim_end_matches('.').to_owned(), value.len())
}

/// A write of which a client knows: from its answer, or since it read the value.
#[derive(Clone, Debug)]
pub struct Known {
    /// The revision at which it was executed.
    pub revision: i64,
    /// The key.
    pub key: String,
    /// The value, without padding at its end.
    pub value: String,
}

/// A watcher.
#[derive(Clone, Debug)]
pub struct Watcher {
    /// Its name in the report.
    pub name: String,
    /// The revision that it must be told next.
    pub next: i64,
    /// Events that it was told.
    pub events: u64,
    /// How often it asked for its watch again.
    pub resumed: u64,
    violations: Vec<String>,
}

impl Watcher {
    fn violates(&mut self, what: String) {
        if self.violations.len() < KEPT {
            self.violations.push(format!("{}: {what}", self.name));
        }
    }
}

/// What all watchers were told.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The changes at each revision, as they were told first, and by which watcher.
    told: BTreeMap<i64, (usize, Vec<Change>)>,
    watchers: Vec<Watcher>,
}

impl Ledger {
    /// Adds a watcher that must be told everything from this revision on.
    pub fn add(&mut self, name: String, next: i64) -> usize {
        self.watchers.push(Watcher { name, next, events: 0, resumed: 0, violations: Vec::new() });
        self.watchers.len() - 1
    }

    /// The watchers.
    pub fn watchers(&self) -> &[Watcher] {
        &self.watchers
    }

    /// All watchers have been told everything before this revision.
    pub fn position(&self) -> i64 {
        self.watchers.iter().map(|watcher| watcher.next).min().unwrap_or(1)
    }

    /// Records a watch that is asked for again.
    pub fn resumes(&mut self, watcher: usize) {
        self.watchers[watcher].resumed += 1;
    }

    /// Records something that must not happen to a watcher.
    pub fn violates(&mut self, watcher: usize, what: String) {
        self.watchers[watcher].violates(what);
    }

    /// Records a response. What its first violation is follows from the order of the events in it.
    pub fn note(&mut self, number: usize, events: &[Event]) {
        let watcher = &mut self.watchers[number];
        let events: Vec<_> =
            events.iter().filter_map(|event| Some((event.r#type(), event.kv.as_ref()?))).collect();
        for same in events.chunk_by(|(_, one), (_, other)| one.mod_revision == other.mod_revision) {
            let revision = same[0].1.mod_revision;
            watcher.events += same.len() as u64;
            if revision < watcher.next {
                let before = watcher.next - 1;
                watcher.violates(format!("it was told revision {revision} after revision {before}"));
                continue;
            }
            if revision > watcher.next {
                let due = watcher.next;
                watcher.violates(format!("it was told revision {revision} when revision {due} was due"));
            }
            watcher.next = revision + 1;
            let changes: Vec<_> = same.iter().map(|(kind, kv)| Change::of(*kind, kv)).collect();
            match self.told.get(&revision) {
                None => _ = self.told.insert(revision, (number, changes)),
                Some((other, told)) if *told != changes => {
                    watcher.violates(format!(
                        "it was told {changes:?} at revision {revision}, and watcher {other} was told {told:?}"
                    ));
                }
                Some(_) => {}
            }
        }
    }

    /// The values that a key was given, with their revisions.
    pub fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (i64, &'a str)> {
        self.told.iter().flat_map(move |(revision, (_, changes))| {
            let of_key = changes.iter().filter(move |change| change.key == key);
            of_key.filter_map(|change| Some((*revision, change.value.as_ref()?.0.as_str())))
        })
    }

    /// Checks what was told up to a revision. `known` are writes of which clients know, and `held` is what the store
    /// holds at that revision, if it could be read.
    pub fn check(&self, until: i64, known: &[Known], held: Option<&[KeyValue]>) -> Vec<String> {
        let mut violations: Vec<_> =
            self.watchers.iter().flat_map(|watcher| watcher.violations.clone()).collect();
        if let Some(held) = held {
            for watcher in self.watchers.iter().filter(|watcher| watcher.next <= until) {
                let Watcher { name, next, .. } = watcher;
                violations.push(format!("{name}: it was not told revisions {next} to {until}"));
            }
            violations.extend(self.compare(until, held));
        }
        let misses = |known: &&Known| {
            let told = self.told.get(&known.revision);
            let same = |change: &Change| {
                change.key == known.key
                    && change.value.as_ref().is_some_and(|(value, _)| *value == known.value)
            };
            // Without a final read the watchers may not have come so far.
            told.map_or(held.is_some() && known.revision <= until, |(_, changes)| !changes.iter().any(same))
        };
        for known in known.iter().filter(misses).take(KEPT) {
            let told = self.told.get(&known.revision);
            violations.push(format!("a client knows of {known:?}, and watchers were told {told:?}"));
        }
        violations
    }

    /// Compares what the events lead to with what the store holds.
    fn compare(&self, until: i64, held: &[KeyValue]) -> Vec<String> {
        let mut state = BTreeMap::new();
        for (revision, (_, changes)) in self.told.range(..=until) {
            for change in changes {
                match &change.value {
                    Some(_) => _ = state.insert(change.key.clone(), (*revision, change.clone())),
                    None => _ = state.remove(&change.key),
                }
            }
        }
        let in_store = held.iter().map(|kv| {
            let change = Change::of(EventType::Put, kv);
            (change.key.clone(), (kv.mod_revision, change))
        });
        let in_store: BTreeMap<_, _> = in_store.collect();
        let keys: std::collections::BTreeSet<_> = state.keys().chain(in_store.keys()).collect();
        let differ = keys.into_iter().filter(|key| state.get(*key) != in_store.get(*key));
        let text = |key: &String| {
            let (told, holds) = (state.get(key), in_store.get(key));
            format!("the events lead to {told:?} for {key}, and the store holds {holds:?}")
        };
        differ.take(KEPT).map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn put(key: &str, value: &str, revision: i64) -> Event {
        let kv = KeyValue {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            ..KeyValue::default()
        };
        Event { r#type: EventType::Put.into(), kv: Some(kv), prev_kv: None }
    }

    fn delete(key: &str, revision: i64) -> Event {
        let kv = KeyValue { key: key.to_owned().into(), mod_revision: revision, ..KeyValue::default() };
        Event { r#type: EventType::Delete.into(), kv: Some(kv), prev_kv: None }
    }

    fn known(revision: i64, key: &str, value: &str) -> Known {
        Known { revision, key: key.to_owned(), value: value.to_owned() }
    }

    /// Two watchers that are told these responses, each from revision 2 on.
    fn told(first: &[&[Event]], second: &[&[Event]]) -> Ledger {
        let mut ledger = Ledger::default();
        for (name, responses) in [("first", first), ("second", second)] {
            let watcher = ledger.add(name.to_owned(), 2);
            responses.iter().for_each(|events| ledger.note(watcher, events));
        }
        ledger
    }

    fn only(violations: Vec<String>, what: &str) {
        assert!(violations.len() == 1 && violations[0].contains(what), "{violations:?}");
    }

    #[test]
    fn what_is_told_once_in_order_and_completely_is_in_order() {
        let all = [put("a", "1..", 2), put("b", "2", 3), delete("a", 4), delete("b", 4), put("b", "3", 5)];
        let ledger = told(&[&all[..1], &all[1..]], &[&all]);
        let held: Vec<_> = all[4].kv.iter().cloned().collect();
        let known = [known(2, "a", "1"), known(5, "b", "3")];
        assert_eq!(ledger.check(5, &known, Some(&held)), Vec::<String>::new());
        assert_eq!(ledger.values("b").collect::<Vec<_>>(), [(3, "2"), (5, "3")]);
        assert_eq!((ledger.position(), ledger.watchers()[1].events), (6, 5));
    }

    #[test]
    fn a_lost_event_is_found() {
        let [a, b, c] = [put("a", "1", 2), put("b", "2", 3), put("c", "3", 4)];
        let ledger = told(&[&[a.clone(), b.clone(), c.clone()]], &[from_ref(&a), from_ref(&c)]);
        only(ledger.check(4, &[], None), "second: it was told revision 4 when revision 3 was due");
        // By all watchers, at the end.
        let ledger = told(&[&[a.clone(), b.clone()]], &[&[a.clone(), b.clone()]]);
        let held: Vec<_> = [&a, &b, &c].into_iter().filter_map(|event| event.kv.clone()).collect();
        let found = ledger.check(4, &[], Some(&held));
        assert!(found.len() == 3 && found[0].contains("it was not told revisions 4 to 4"), "{found:?}");
        assert!(found[2].contains("the events lead to None for c"), "{found:?}");
        // One of the two of a revision.
        let both = [delete("a", 3), delete("b", 3)];
        let ledger = told(&[from_ref(&a), &both], &[from_ref(&a), &both[..1]]);
        only(ledger.check(3, &[], None), "second: it was told");
    }

    #[test]
    fn an_event_that_comes_twice_or_late_is_found() {
        let [a, b, c] = [put("a", "1", 2), put("b", "2", 3), put("c", "3", 4)];
        let ledger = told(&[&[a.clone(), b.clone()], &[b.clone(), c.clone()]], &[]);
        only(ledger.check(4, &[], None), "first: it was told revision 3 after revision 3");
        let ledger = told(&[&[a.clone(), c.clone(), b.clone()]], &[]);
        let found = ledger.check(4, &[], None);
        assert!(found.len() == 2 && found[1].contains("revision 3 after revision 4"), "{found:?}");
        // Two parts of one revision in two responses.
        let ledger = told(&[from_ref(&a), &[delete("a", 3)], &[delete("b", 3)]], &[]);
        only(ledger.check(3, &[], None), "revision 3 after revision 3");
    }

    #[test]
    fn another_event_than_others_or_clients_know_of_is_found() {
        let a = put("a", "1", 2);
        let ledger = told(&[from_ref(&a)], &[&[put("a", "2", 2)]]);
        only(ledger.check(2, &[], None), "and watcher 0 was told");
        let ledger = told(&[from_ref(&a)], &[from_ref(&a)]);
        only(ledger.check(2, &[known(2, "a", "2")], None), "a client knows of");
        only(ledger.check(2, &[known(2, "b", "1")], None), "a client knows of");
        let held = [KeyValue { version: 2, ..a.kv.clone().unwrap() }];
        only(ledger.check(2, &[], Some(&held)), "for a, and the store holds");
        // A broken run ends before watchers were told everything.
        assert_eq!(ledger.check(9, &[known(9, "a", "2")], None), Vec::<String>::new());
    }
}
