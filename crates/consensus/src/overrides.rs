//! Options of ordering that a group fixes for all its replicas, whatever each of them was started with.
//!
//! They are a part of the replicated group, so every replica of an epoch orders with the same ones. All of them can be
//! read from text, `KEY=VALUE,KEY=VALUE`, which is also how they are written.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::{Dissemination, Options, ProtocolKind};

/// What can be fixed: the key, what is accepted, and how it is set.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) accepted: &'static str,
    /// False if the value is none.
    pub(crate) set: fn(&mut Options, &str) -> bool,
    /// If a group fixes it from its beginning on, since its replicas must have it alike.
    pub(crate) shared: Option<Shared>,
    /// Which of its values serve.
    pub(crate) serves: Serves,
}

/// Which values of a key serve. The others are those of documents and exist to be measured: they are safe, and slower
/// or less available than the ones that serve.
pub(crate) enum Serves {
    /// All of them.
    All,
    /// Only these.
    Only {
        /// As they are written.
        values: &'static [&'static str],
        /// What the others are for, or what is wrong with them.
        why: &'static str,
    },
}

/// See [`Key::shared`].
pub(crate) struct Shared {
    /// What these options say; `None` if that is the default.
    pub(crate) value: fn(&Options) -> Option<String>,
    /// Sets the default.
    pub(crate) unset: fn(&mut Options),
}

/// A key whose value is a choice that a group fixes from its beginning on.
macro_rules! chosen {
    ($name:literal, $accepted:literal, $folder:ident.$field:ident) => {
        $crate::overrides::chosen!($name, $accepted, $folder.$field, $crate::overrides::Serves::All)
    };
    ($name:literal, $accepted:literal, $folder:ident.$field:ident, $serves:expr) => {
        $crate::overrides::Key {
            name: $name,
            accepted: $accepted,
            set: |options, value| value.parse().map(|choice| options.$folder.$field = choice).is_ok(),
            shared: Some($crate::overrides::Shared {
                value: |options| {
                    let choice = options.$folder.$field;
                    (choice != Default::default()).then(|| choice.to_string())
                },
                unset: |options| options.$folder.$field = Default::default(),
            }),
            serves: $serves,
        }
    };
}
pub(crate) use chosen;

pub(crate) const ON_OFF: &str = "on, off";
const WINDOW_MAX: usize = 4096;

/// Longer than any value: what is kept is bounded, whatever a number is written like.
const VALUE_BYTES_MAX: usize = 16;

/// What every protocol heeds.
const COMMON: &[Key] = &[
    Key {
        name: WINDOW_MAX_KEY,
        accepted: "1 to 4096 slots",
        set: |options, value| {
            let slots = value.parse().ok().filter(|slots| (1..=WINDOW_MAX).contains(slots));
            slots.map(|slots| options.window_max = slots).is_some()
        },
        shared: None,
        serves: Serves::All,
    },
    Key {
        name: DISSEMINATION,
        accepted: "leader, references, balanced",
        set: |options, value| value.parse().map(|how| options.dissemination = how).is_ok(),
        shared: Some(Shared {
            value: |options| {
                let how = options.dissemination;
                (how != Dissemination::default()).then(|| how.to_string())
            },
            unset: |options| options.dissemination = Dissemination::default(),
        }),
        serves: Serves::All,
    },
];

const WINDOW_MAX_KEY: &str = "window-max";
const DISSEMINATION: &str = "dissemination";

/// The keys that a protocol heeds.
fn heeded(protocol: ProtocolKind) -> impl Iterator<Item = &'static Key> {
    COMMON.iter().chain(protocol.profile().keys)
}

impl ProtocolKind {
    /// Whether the protocol heeds this option ([`Overrides`]).
    #[must_use]
    pub fn heeds(self, option: &str) -> bool {
        heeded(self).any(|key| key.name == option)
    }

    /// The options that only this protocol heeds, for people.
    pub fn own_options(self) -> impl Iterator<Item = OwnOption> {
        self.profile().keys.iter().map(|key| OwnOption {
            key: key.name,
            accepted: key.accepted,
            serves: match &key.serves {
                Serves::All => None,
                Serves::Only { values, .. } => Some(*values),
            },
        })
    }
}

/// An option of one protocol ([`ProtocolKind::own_options`]).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OwnOption {
    /// The key.
    pub key: &'static str,
    /// All its values.
    pub accepted: &'static str,
    /// Those that serve, while the others exist to be measured; `None` if all serve.
    pub serves: Option<&'static [&'static str]>,
}

/// An option with a value that exists to be measured, and does not serve ([`Overrides::measured`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}={value} exists to be measured, not to serve: {why}")]
#[non_exhaustive]
pub struct MeasuredOption {
    /// The key.
    pub key: &'static str,
    /// The value.
    pub value: String,
    /// What it is for, or what is wrong with it.
    pub why: &'static str,
    /// The values that serve.
    pub serves: &'static [&'static str],
    /// Each replica has a value of its own, unless the group fixes one.
    pub is_own: bool,
}

/// The keys that some protocol heeds.
fn keys() -> impl Iterator<Item = &'static Key> {
    COMMON.iter().chain(ProtocolKind::EVERY.iter().flat_map(|(_, protocol)| protocol.profile().keys))
}

/// Sets a switch, if the value is one's.
pub(crate) fn on_off(switch: &mut bool, value: &str) -> bool {
    match value {
        "on" => *switch = true,
        "off" => *switch = false,
        _ => return false,
    }
    true
}

/// Options of ordering that a group fixes for all its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Only keys and values that are accepted.
    values: BTreeMap<&'static str, String>,
}

/// Why options were not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// Not `KEY=VALUE`.
    #[error("{0:?} is not KEY=VALUE")]
    NotAPair(String),
    /// No such key.
    #[error("unknown option {0:?}; accepted: {keys}", keys = names(None))]
    Unknown(String),
    /// Given twice.
    #[error("option {0} is given twice")]
    Twice(&'static str),
    /// The value is none of the key's.
    #[error("{value:?} is not a value of option {key}; accepted: {accepted}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// The protocol does not heed it.
    #[error("option {key} does not go with {protocol}; accepted: {keys}", keys = names(Some(*protocol)))]
    Foreign {
        /// The key.
        key: &'static str,
        /// The protocol.
        protocol: ProtocolKind,
    },
}

fn names(of: Option<ProtocolKind>) -> String {
    let names: Vec<&str> = match of {
        Some(protocol) => heeded(protocol).map(|key| key.name).collect(),
        None => keys().map(|key| key.name).collect(),
    };
    names.join(", ")
}

impl Overrides {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Of these options what a group fixes from its beginning on, since its replicas must have it alike.
    #[must_use]
    pub fn shared(options: &Options) -> Overrides {
        let shared = |key: &Key| Some((key.name, (key.shared.as_ref()?.value)(options)?));
        let values = heeded(options.protocol).filter_map(shared).collect();
        Overrides { values }
    }

    /// How batches reach all replicas.
    #[must_use]
    pub fn dissemination(&self) -> Dissemination {
        let how = self.values.get(DISSEMINATION).and_then(|value| value.parse().ok());
        how.unwrap_or_default()
    }

    /// How many slots a leader may have under way, if they say so.
    #[must_use]
    pub fn window_max(&self) -> Option<usize> {
        self.values.get(WINDOW_MAX_KEY)?.parse().ok()
    }

    /// Forgets what these options say of what is the group's to fix.
    pub fn unset_shared(options: &mut Options) {
        keys().filter_map(|key| key.shared.as_ref()).for_each(|shared| (shared.unset)(options));
    }

    /// Whether a protocol heeds all of them.
    ///
    /// # Errors
    /// Which one it does not heed.
    pub fn check(&self, protocol: ProtocolKind) -> Result<(), OptionError> {
        let foreign = self.keys().find(|key| heeded(protocol).all(|heeded| heeded.name != key.name));
        foreign.map_or(Ok(()), |key| Err(OptionError::Foreign { key: key.name, protocol }))
    }

    /// Those that the protocol heeds and whose values exist to be measured.
    pub fn measured(&self, protocol: ProtocolKind) -> impl Iterator<Item = MeasuredOption> + '_ {
        heeded(protocol).filter_map(|key| {
            let value = self.values.get(key.name)?;
            match &key.serves {
                Serves::Only { values, why } if !values.contains(&value.as_str()) => {
                    let (key, is_own, value) = (key.name, key.shared.is_none(), value.clone());
                    Some(MeasuredOption { key, value, why, serves: values, is_own })
                }
                _ => None,
            }
        })
    }

    /// The keys and their values, by key.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(key, value)| (*key, value.as_str()))
    }

    /// These without one of them.
    #[must_use]
    pub fn without(&self, key: &str) -> Overrides {
        let values = self.values.iter().filter(|(name, _)| **name != key);
        Overrides { values: values.map(|(name, value)| (*name, value.clone())).collect() }
    }

    /// The value of a key, if it is one of them.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Sets them.
    pub fn apply(&self, options: &mut Options) {
        for key in self.keys() {
            (key.set)(options, &self.values[key.name]);
        }
    }

    fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.values.keys().filter_map(|name| keys().find(|key| key.name == *name))
    }
}

impl FromStr for Overrides {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Overrides, OptionError> {
        let mut values = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| OptionError::NotAPair(pair.to_owned()))?;
            let key = keys().find(|key| key.name == name);
            let key = key.ok_or_else(|| OptionError::Unknown(name.to_owned()))?;
            if value.len() > VALUE_BYTES_MAX || !(key.set)(&mut Options::default(), value) {
                let (key, accepted) = (key.name, key.accepted);
                return Err(OptionError::Value { key, value: value.to_owned(), accepted });
            }
            if values.insert(key.name, value.to_owned()).is_some() {
                return Err(OptionError::Twice(key.name));
            }
        }
        Ok(Overrides { values })
    }
}

impl fmt::Display for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.pairs().enumerate() {
            write!(f, "{}{key}={value}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decision;

    #[test]
    fn they_are_read_set_and_written() {
        let given: Overrides = "window-max=7, decision=all,".parse().unwrap();
        assert_eq!(given.to_string(), "decision=all,window-max=7");
        assert_eq!(given.to_string().parse(), Ok(given.clone()));
        let mut options = Options::default();
        given.apply(&mut options);
        assert_eq!((options.multipaxos.decision, options.window_max), (Decision::All, 7));
        assert_eq!((given.window_max(), Overrides::default().window_max()), (Some(7), None));
        let begins = Overrides::shared(&options);
        assert_eq!(begins.to_string(), "decision=all", "the window is each replica's own");
        begins.check(options.protocol).unwrap();
        options.protocol = ProtocolKind::Raft;
        assert!(Overrides::shared(&options).is_empty(), "only what the protocol heeds");
        assert!(Overrides::default().is_empty() && "".parse() == Ok(Overrides::default()));
    }

    #[test]
    fn every_switch_turns_something_off() {
        for key in keys().filter(|key| key.accepted == ON_OFF) {
            let (mut on, mut off) = (Options::default(), Options::default());
            assert!((key.set)(&mut on, "on") && (key.set)(&mut off, "off"));
            assert_ne!(format!("{on:?}"), format!("{off:?}"), "{}", key.name);
        }
    }

    /// What a protocol does without any option serves, so a server never has to refuse a default.
    #[test]
    fn defaults_serve_and_what_exists_to_be_measured_says_why() {
        for key in keys() {
            let Serves::Only { values, why } = &key.serves else { continue };
            assert!(why.len() > 20 && !why.ends_with('.'), "{}: {why}", key.name);
            let is_default = |value: &&str| {
                let mut options = Options::default();
                assert!((key.set)(&mut options, value), "{}={value}", key.name);
                format!("{options:?}") == format!("{:?}", Options::default())
            };
            assert!(values.iter().any(is_default), "{}", key.name);
        }
        let given: Overrides = "check-quorum=off,status-merge=print,round-interval=2ms".parse().unwrap();
        let measured: Vec<_> = given.measured(ProtocolKind::Raft).collect();
        let pairs = measured.iter().map(|it| (it.key, &*it.value, it.serves[0]));
        assert_eq!(
            pairs.collect::<Vec<_>>(),
            [("status-merge", "print", "vec"), ("check-quorum", "off", "on")]
        );
        assert!(
            measured[0].to_string().starts_with("status-merge=print exists to be measured, not to serve: ")
        );
        assert_eq!(given.measured(ProtocolKind::MultiPaxos).count(), 0, "it does not heed them");
        let served =
            "replication=gossip-status,status-merge=vec,check-quorum=on,vote-gossip=on,peer-repair=on";
        assert_eq!(served.parse::<Overrides>().unwrap().measured(ProtocolKind::Raft).count(), 0);
        assert_eq!(given.without("status-merge").to_string(), "check-quorum=off,round-interval=2ms");
    }

    #[test]
    fn every_switch_of_sequence_paxos_is_off_only_to_be_measured() {
        let off = |option: OwnOption| format!("{}=off", option.key);
        let all: Vec<_> = ProtocolKind::SequencePaxos.own_options().map(off).collect();
        let given: Overrides = all.join(",").parse().unwrap();
        assert_eq!(given.measured(ProtocolKind::SequencePaxos).count(), all.len());
    }

    #[test]
    fn what_is_not_accepted_is_named_with_what_is() {
        let why = |text: &str| text.parse::<Overrides>().unwrap_err().to_string();
        assert_eq!(why("head-start"), "\"head-start\" is not KEY=VALUE");
        assert!(
            why("speed=high")
                .starts_with("unknown option \"speed\"; accepted: window-max, dissemination, decision")
        );
        assert_eq!(why("decision=me"), "\"me\" is not a value of option decision; accepted: leader, all");
        assert!(why("window-max=0").ends_with("accepted: 1 to 4096 slots"));
        assert!(why(&format!("window-max={}1", "0".repeat(99))).ends_with("accepted: 1 to 4096 slots"));
        assert_eq!(why("head-start=on,head-start=off"), "option head-start is given twice");
        let foreign = "head-start=off".parse::<Overrides>().unwrap().check(ProtocolKind::Raft);
        let why = foreign.unwrap_err().to_string();
        assert!(
            why.starts_with("option head-start does not go with raft; accepted: window-max, dissemination")
        );
        assert!(why.contains(", replication, status-merge, round-interval, round-fan-out"), "{why}");
    }
}
