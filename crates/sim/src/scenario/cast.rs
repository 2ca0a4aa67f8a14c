//! The protocol and the election that play a script.

use std::sync::LazyLock;

use synod_consensus::{ElectionKind, ProtocolKind};

/// A protocol with an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Its name, which is that of the folder of its golden files: the protocol's, followed by the election's
    /// unless that is the protocol's default.
    pub name: &'static str,
    /// The protocol.
    pub protocol: ProtocolKind,
    /// The election.
    pub election: ElectionKind,
    /// Whether it plays scripts with the head `all`.
    in_all: bool,
}

/// Every cast: each protocol with each election that it works with. Protocols from outside are registered before
/// anybody asks for casts.
pub static CASTS: LazyLock<Vec<Cast>> = LazyLock::new(|| {
    let cast = |protocol: ProtocolKind, election: ElectionKind| {
        let is_default = election == protocol.elections()[0];
        let name = if is_default { protocol.to_string() } else { format!("{protocol}+{election}") };
        let in_all = is_default && protocol.laboratory().is_none();
        Cast { name: name.leak(), protocol, election, in_all }
    };
    let protocols = ProtocolKind::known().map(|(_, protocol)| protocol);
    protocols
        .flat_map(|protocol| protocol.elections().iter().map(move |&election| cast(protocol, election)))
        .collect()
});

/// The casts in which a replica leads.
pub fn led() -> impl Iterator<Item = &'static Cast> {
    CASTS.iter().filter(|cast| cast.protocol.has_leader())
}

/// The casts that play a script, given the words of its head: `all` (every protocol that serves, with its default
/// election), the name of an election (every protocol with that election), or the name of a cast.
///
/// # Errors
/// A word is none of these.
pub(super) fn casts(words: &[&str]) -> Result<Vec<&'static Cast>, String> {
    let means = |word: &str, cast: &Cast| {
        word == cast.name || (word == "all" && cast.in_all) || word == cast.election.to_string()
    };
    for word in words {
        if !CASTS.iter().any(|cast| means(word, cast)) {
            let names: Vec<&str> = CASTS.iter().map(|cast| cast.name).collect();
            return Err(format!(
                "line 1: a script cannot be for '{word}'; it can be for: all, {}, or the name of an election",
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
        let names: Vec<&str> = CASTS.iter().map(|cast| cast.name).collect();
        let paxos = ["multipaxos", "multipaxos+rotating", "multipaxos+latency"];
        assert_eq!(names[..3], paxos);
        assert_eq!(
            names[3..7],
            ["sequence-paxos", "sequence-paxos+rotating", "sequence-paxos+latency", "raft"]
        );
        let serves = |cast: &Cast| cast.protocol.laboratory().is_none();
        assert!(CASTS.iter().all(|cast| cast.in_all == (serves(cast) && !cast.name.contains('+'))));
        assert!(CASTS.iter().any(|cast| cast.name == "rounds") && led().all(|cast| cast.name != "rounds"));
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
