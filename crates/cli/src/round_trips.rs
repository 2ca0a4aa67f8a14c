//! The matrix of round trips in `synod status`: how long each replica waits for each other, within which time it has
//! exchanged messages with a majority, and what each write would gain if it led.

use std::collections::BTreeMap;

use synod_client::native::StatusResponse;
use synod_consensus::{VoterSets, election::latency::majority_time};
use synod_wire::ReplicaId;

use crate::{
    output,
    status::{ballot_round, epoch},
};

/// What the replicas that answered measured, where the election measures it.
pub struct RoundTrips<'a> {
    /// Names of the voters, by id.
    voters: BTreeMap<u64, &'a str>,
    /// Nanoseconds from each replica to each other.
    rows: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Thousandths of the commands that came from each replica lately, where the election weighs that.
    origins: BTreeMap<u64, u64>,
    leader: u64,
}

impl<'a> RoundTrips<'a> {
    pub fn of(replicas: impl Iterator<Item = &'a StatusResponse> + Clone) -> RoundTrips<'a> {
        let latest =
            replicas.clone().max_by_key(|status| status.group.as_ref().map_or(0, |group| group.version));
        let members = latest.and_then(|status| status.group.as_ref()).map(|group| group.members.iter());
        let voters = members.into_iter().flatten().filter(|member| member.votes);
        let row = |status: &StatusResponse| {
            let measured = status.peers.iter().filter(|peer| peer.round_trip_nanos > 0);
            measured.map(|peer| (peer.replica, peer.round_trip_nanos)).collect()
        };
        // One that leads no more may not know it yet.
        let leads = |status: &&StatusResponse| status.leader == status.replica && status.leader > 0;
        let place = |status: &&StatusResponse| (epoch(status), ballot_round(&status.ballot));
        let leader = replicas.clone().filter(leads).max_by_key(place);
        // A ring measures links, too, and a write takes another way there.
        let measured = replicas.filter(|status| status.election == "latency");
        let origins = measured.clone().map(|status| (status.replica, status.commands_thousandths));
        RoundTrips {
            origins: origins.filter(|(_, share)| *share > 0).collect(),
            voters: voters.map(|member| (member.id, &*member.name)).collect(),
            rows: measured.map(|status| (status.replica, row(status))).collect(),
            leader: leader.map_or(0, |leader| leader.replica),
        }
    }

    /// Nanoseconds within which a voter has exchanged messages with a majority, itself included (Santos 2012, section
    /// 6.2).
    pub fn majority_time(&self, replica: u64) -> Option<u64> {
        self.voters.contains_key(&replica).then_some(())?;
        let row = self.rows.get(&replica)?;
        let voters = VoterSets::simple(self.voters.keys().copied().map(ReplicaId).collect());
        let time = |to: ReplicaId| match to.0 {
            own if own == replica => 0,
            other => row.get(&other).copied().unwrap_or(u64::MAX),
        };
        Some(majority_time(&voters, time)).filter(|nanos| *nanos < u64::MAX)
    }

    /// Nanoseconds that a write waits if this voter leads: for a majority and, where the election weighs from where
    /// commands come, in the mean for the way from there to the leader and back.
    fn write_time(&self, replica: u64) -> Option<u64> {
        let row = self.rows.get(&replica)?;
        let (mut sum, mut all) = (0, 0);
        for (&origin, &share) in &self.origins {
            let time = if origin == replica { 0 } else { *row.get(&origin)? };
            (sum, all) = (sum + u128::from(share) * u128::from(time), all + u128::from(share));
        }
        let way = u64::try_from(sum / all.max(1)).ok()?;
        self.majority_time(replica)?.checked_add(way)
    }

    /// Nanoseconds that each write would wait less if this voter led, or more if that is negative.
    pub fn gain(&self, replica: u64) -> Option<i64> {
        let (now, then) = (self.write_time(self.leader)?, self.write_time(replica)?);
        Some(i64::try_from(now).ok()? - i64::try_from(then).ok()?)
    }

    /// The matrix as a table; nothing where nothing was measured.
    pub fn table(&self) -> String {
        if self.rows.values().all(BTreeMap::is_empty) {
            return String::new();
        }
        let names = self.voters.values().map(|name| (*name).to_owned());
        let weighs = !self.origins.is_empty();
        let last =
            ["MAJORITY", "COMMANDS", "IF IT LED"].into_iter().filter(|name| weighs || *name != "COMMANDS");
        let head = ["RTT, MS".to_owned()].into_iter().chain(names).chain(last.map(str::to_owned));
        let rows = self.voters.iter().map(|(&from, &name)| {
            let cells =
                self.voters.keys().map(move |&to| match self.rows.get(&from).and_then(|row| row.get(&to)) {
                    _ if from == to => String::new(),
                    time => time.map_or_else(|| "-".to_owned(), |&time| millis(time)),
                });
            let majority = self.majority_time(from).map_or_else(|| "-".to_owned(), millis);
            let gain = match self.gain(from) {
                _ if from == self.leader => "leads".to_owned(),
                Some(gain) if gain.unsigned_abs() < ROUNDS_TO_ZERO => millis(0),
                Some(gain) => format!("{}{}", if gain < 0 { "+" } else { "-" }, millis(gain.unsigned_abs())),
                None => "-".to_owned(),
            };
            let share = self.origins.get(&from).copied().unwrap_or_default();
            let share = weighs.then(|| format!("{:.1} %", share as f64 / 10.0));
            let last = [Some(majority), share, Some(gain)].into_iter().flatten();
            [name.to_owned()].into_iter().chain(cells).chain(last).collect::<Vec<_>>()
        });
        output::grid(head.collect::<Vec<_>>(), rows)
    }
}

/// Nanoseconds that [`millis`] shows as zero.
const ROUNDS_TO_ZERO: u64 = 50_000;

/// Nanoseconds as milliseconds.
fn millis(nanos: u64) -> String {
    format!("{:.1}", nanos as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use synod_client::native::{Group, GroupMember, PeerStatus};

    use super::*;

    const MS: u64 = 1_000_000;

    /// The links of a leader that is far from two others.
    fn three(times: [[u64; 3]; 3]) -> Vec<StatusResponse> {
        let member = |id| GroupMember { id, name: format!("n{id}"), votes: id < 4, ..GroupMember::default() };
        let group = Group { version: 3, members: (1..=4).map(member).collect(), ..Group::default() };
        (1..=3u64)
            .map(|replica| {
                let peer = |to: u64| PeerStatus {
                    replica: to,
                    round_trip_nanos: times[replica as usize - 1][to as usize - 1] * MS,
                    ..PeerStatus::default()
                };
                let peers = (1..=3).filter(|&to| to != replica).map(peer).collect();
                StatusResponse {
                    replica,
                    leader: 1,
                    election: "latency".to_owned(),
                    peers,
                    group: Some(group.clone()),
                    ..StatusResponse::default()
                }
            })
            .collect()
    }

    /// The cells of the row that begins with this name; the first is empty.
    fn cells(table: &str, name: &str) -> Vec<String> {
        let line = table.lines().find(|line| line.starts_with(&format!("| {name} "))).expect(name);
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn the_matrix_says_what_a_move_would_gain() {
        let told = three([[0, 120, 130], [120, 0, 2], [131, 3, 0]]);
        let times = RoundTrips::of(told.iter());
        assert_eq!(
            [1, 2, 3, 4].map(|id| times.majority_time(id)),
            [Some(120 * MS), Some(2 * MS), Some(3 * MS), None]
        );
        assert_eq!(times.gain(2), Some(118 * MS as i64));
        let table = times.table();
        let cells = |name| cells(&table, name);
        assert_eq!(cells("RTT, MS")[2..7], ["n1", "n2", "n3", "MAJORITY", "IF IT LED"]);
        assert_eq!(cells("n1")[2..7], ["", "120.0", "130.0", "120.0", "leads"]);
        assert_eq!(cells("n2")[2..7], ["120.0", "", "2.0", "2.0", "-118.0"]);
        assert!(!table.contains("n4"), "a learner is no part of a majority");
    }

    #[test]
    fn where_the_choice_weighs_origins_the_gain_does_too() {
        let mut told = three([[0, 20, 200], [20, 0, 30], [200, 30, 0]]);
        (told[0].commands_thousandths, told[2].commands_thousandths) = (250, 750);
        let times = RoundTrips::of(told.iter());
        // 20 ms and three quarters of 200, against 30 ms and a quarter of 200.
        assert_eq!(times.gain(3), Some(90 * MS as i64));
        let table = times.table();
        assert_eq!(cells(&table, "RTT, MS")[5..8], ["MAJORITY", "COMMANDS", "IF IT LED"]);
        assert_eq!(cells(&table, "n3")[5..8], ["30.0", "75.0 %", "-90.0"]);
    }

    #[test]
    fn what_was_not_measured_is_left_open() {
        // r3 answers nobody, and was not asked.
        let mut told = three([[0, 5, 0], [5, 0, 0], [0, 0, 0]]);
        told.truncate(2);
        let times = RoundTrips::of(told.iter());
        assert_eq!([1, 2, 3].map(|id| times.majority_time(id)), [Some(5 * MS), Some(5 * MS), None]);
        assert_eq!((times.gain(2), times.gain(3)), (Some(0), None));
        let table = times.table();
        assert_eq!(cells(&table, "n2")[2..7], ["5.0", "", "-", "5.0", "0.0"]);
        assert_eq!(cells(&table, "n3")[2..7], ["-", "-", "", "-", "-"]);
        let unmeasured = three([[0; 3]; 3]);
        assert_eq!(RoundTrips::of(unmeasured.iter()).table(), "");
    }
}
