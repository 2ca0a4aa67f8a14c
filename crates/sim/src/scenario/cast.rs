//! Who plays in a script: a protocol with an election.

use synod_consensus::{ElectionKind, ProtocolKind};

/// A protocol with an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Its name, which is that of the folder of its golden files: the protocol's, and the election's if that is not
    /// the protocol's own choice.
    pub name: &'static str,
    /// What orders.
    pub protocol: ProtocolKind,
    /// What elects.
    pub election: ElectionKind,
    /// Whether scripts that are for all are for it.
    in_all: bool,
}

/// Every cast.
pub const CASTS: &[Cast] = &[
    Cast {
        name: "multipaxos",
        protocol: ProtocolKind::MultiPaxos,
        election: ElectionKind::Ballot,
        in_all: true,
    },
    Cast {
        name: "multipaxos+rotating",
        protocol: ProtocolKind::MultiPaxos,
        election: ElectionKind::Rotating,
        in_all: false,
    },
    Cast {
        name: "sequence-paxos",
        protocol: ProtocolKind::SequencePaxos,
        election: ElectionKind::Ballot,
        in_all: true,
    },
    Cast {
        name: "sequence-paxos+rotating",
        protocol: ProtocolKind::SequencePaxos,
        election: ElectionKind::Rotating,
        in_all: false,
    },
    Cast { name: "raft", protocol: ProtocolKind::Raft, election: ElectionKind::Randomized, in_all: true },
];

/// The casts that a script is for, by the words of its head: `all` (every protocol with the election that it has by
/// default), the name of an election (every protocol with that election), or the name of a cast.
///
/// # Errors
/// If a word means none of these.
pub(super) fn casts(words: &[&str]) -> Result<Vec<&'static Cast>, String> {
    let means = |word: &str, cast: &Cast| {
        word == cast.name || (word == "all" && cast.in_all) || word == cast.election.to_string()
    };
    for word in words {
        if !CASTS.iter().any(|cast| means(word, cast)) {
            let names: Vec<&str> = CASTS.iter().map(|cast| cast.name).collect();
            return Err(format!(
                "line 1: a script can not be for '{word}'; it can be for: all, {}, or the name of an election",
                names.join(", ")
            ));
        }
    }
    Ok(CASTS.iter().filter(|cast| words.iter().any(|word| means(word, cast))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cast_is_named_after_its_protocol_and_an_election_that_is_not_its_own_choice() {
        for cast in CASTS {
            let elections = cast.protocol.elections();
            assert!(elections.contains(&cast.election), "{}", cast.name);
            let own = cast.election == elections[0];
            let name = cast.protocol.to_string();
            let name = if own { name } else { format!("{name}+{}", cast.election) };
            assert_eq!((cast.name, cast.in_all), (name.as_str(), own));
        }
    }

    #[test]
    fn a_head_names_casts_elections_or_all() {
        let names = |words: &[&str]| -> Vec<&str> {
            casts(words).expect("known").iter().map(|cast| cast.name).collect()
        };
        assert!(names(&["all"]).contains(&"multipaxos"));
        assert_eq!(names(&["multipaxos"]), ["multipaxos"]);
        assert!(names(&["ballot"]).contains(&"multipaxos"));
        assert!(names(&["rotating"]).contains(&"multipaxos+rotating"));
        assert_eq!(names(&["multipaxos", "multipaxos+rotating"]).len(), 2);
        assert!(casts(&["everybody"]).unwrap_err().contains("multipaxos"));
    }
}
