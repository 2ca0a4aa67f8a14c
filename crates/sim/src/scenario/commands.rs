//! The commands of scripts.

use std::{collections::BTreeMap, time::Duration};

use synod_consensus::{OptionError, Overrides, ProtocolKind, UnknownName};
use synod_replica::{Change, Choice, Goal, Group, Others, SessionCommand, Settings, Skips, Take};
use synod_wire::{GroupId, ReplicaId, SessionId};

use super::Cast;
use crate::{
    chart::{Recorder, Window},
    describe::CLASSES,
    network::{NetworkPlan, Wire},
    odds::Odds,
    ops::{Answer, Op},
    plan::{
        BridgePlan, ChangePlan, ClientPlan, DiskPlan, Durability, Ending, Family, FaultPlan, FaultWeights,
        JointPlan, Plan, SPARES_MAX, WatchPlan,
    },
    trace::Trace,
    world::{UnderWay, World, member_info, promotion},
};

/// Every command, with its description.
pub const COMMANDS: &[(&str, &str)] = &[
    ("cluster N [SETTING=VALUE ...]", "start N replicas with empty disks and sessions between all of them"),
    ("use-group G", "from now on commands are of group G, in a cluster of several groups"),
    ("quietly COMMAND", "do it, and print nothing: for what the story is not about"),
    ("elect N", "let replica N time out, and deliver messages, until it leads"),
    (
        "timeout N",
        "set the clock of replica N forward to its next deadline; whom it asks whether it may try to lead is willing",
    ),
    ("put N KEY=VALUE ... [as sS#Q]", "a client asks replica N to write keys, each in one command"),
    (
        "put N KEY=VALUE every TIME for TIME",
        "a client asks replica N again and again to write a key, as time passes",
    ),
    ("delete N KEY [as sS#Q]", "a client asks replica N to delete a key"),
    ("get N [KEY]", "a client reads at replica N, linearizably"),
    ("peek N", "show all keys as replica N has them, without asking anybody"),
    ("open-session N", "a client asks replica N for a session; its commands say 'as s1#1'"),
    (
        "deliver A->B [KIND] [COUNT]",
        "deliver messages that are under way from A to B; KIND is a class or a name",
    ),
    ("drop A->B [KIND] [COUNT]", "lose messages that are under way from A to B"),
    ("messages", "show all messages that are under way"),
    ("stabilize", "deliver all messages until none is under way"),
    ("tick TIME", "let time pass; no message arrives"),
    (
        "run TIME",
        "let time pass; every message arrives at once, or after the latency of the cluster; signs of life are not shown",
    ),
    ("transfer N M", "ask replica N, which leads, to let replica M lead"),
    ("member N add [vote|learn|replace M]", "ask replica N for a new member, which starts at once"),
    ("member N promote M", "ask replica N to let learner M vote"),
    ("member N remove M", "ask replica N to take member M out of the group"),
    (
        "member N follow VERSION",
        "ask replica N to have the group follow this version of group 0, as a replica may",
    ),
    (
        "member N place M,M,... learn|away",
        "ask replica N to have members M vote in a group that follows, and the others learn or stay away",
    ),
    ("member N place none", "ask replica N to have the voters of group 0 vote in the group again"),
    (
        "first-group add|promote|remove ...",
        "group 0 changes, whose members this group follows; the words are those of 'member N'",
    ),
    (
        "see N [VERSION]",
        "the node of replica N sees the latest members of group 0, or those of an earlier version",
    ),
    ("group N", "show the group as replica N knows it"),
    (
        "reconfigure N PROTOCOL [ELECTION]",
        "an operator asks replica N for an epoch in which another protocol orders, with its own election or this one",
    ),
    ("partition A B | C ...", "cut all links between groups of replicas, and end their sessions"),
    ("cut A->B", "cut one direction, and end its session"),
    ("refuse A->B", "the session of A to B ends, and A is refused by B's machine; `heal` begins another"),
    ("slow A-B TIME", "while time passes with `run`, messages between two replicas take this much longer"),
    ("links A-B ...", "keep these links, in both directions, and cut all others"),
    ("heal", "mend all cuts; sessions begin"),
    ("crash N ...", "end replicas with their machines; what is not durable is gone"),
    ("kill N ...", "end their processes: as crash, and their machines refuse the others"),
    ("restart N ...", "start replicas again"),
    ("lose-log N [keep-snapshots]", "a crashed replica loses its log and its snapshots, or only its log"),
    (
        "wipe N",
        "a crashed replica loses everything, its identity too; it starts as if it never had, and asks to join",
    ),
    ("copy N", "copy the disk of replica N"),
    ("put-back N", "a crashed replica gets its copy back, and what it had is the copy"),
    ("pause N", "stop a replica as it is"),
    ("resume N", "let it go on"),
    ("jump N TIME", "the clock of a replica jumps forward"),
    ("stall-disk N", "from now on nothing becomes durable at N"),
    ("sync N", "make durable what N has written so far; the disk stays stalled"),
    ("unstall-disk N", "let the disk go on"),
    ("slow-disk N TIME", "from now on each commit of N takes this much longer"),
    ("status", "show all replicas"),
    ("log N", "show the log of replica N"),
    ("situations", "show the dangerous situations that the cluster has come to so far"),
];

/// A command has a client write at most this many times.
const PUTS_MAX: u32 = 1000;

/// The settings of `cluster`.
const SETTINGS: &str = "protocol, election, dissemination, priorities, decision, decisions, durability, window, announce-delay, batch-bytes, promise-bytes, \
                        snapshot-slots, keep-slots, chunk-bytes, fetch-bytes, undurable-bytes, state-transfer, clock-interval, \
                        latency, follows, groups, backup, and the options of protocols, such as replication";

type Result<T> = std::result::Result<T, String>;

/// The cluster that a script plays with.
#[derive(Debug)]
pub(super) struct Stage {
    cast: Cast,
    world: Option<World>,
    /// The window of each cluster that is recorded for a chart, if one is wanted.
    window: Option<Window>,
    /// The recordings of the clusters before the present one.
    recorded: Vec<Recorder>,
}

/// Commands that only show something.
const VIEWS: [&str; 6] = ["status", "situations", "messages", "group", "log", "peek"];

impl Stage {
    pub(super) fn new(cast: Cast) -> Stage {
        Stage { cast, world: None, window: None, recorded: Vec::new() }
    }

    /// Records clusters from now on.
    pub(super) fn record(&mut self, window: Window) {
        self.window = Some(window);
    }

    /// The recordings, one for each cluster.
    pub(super) fn into_recorded(mut self) -> Vec<Recorder> {
        self.recorded.extend(self.world.as_mut().and_then(World::take_recorder));
        self.recorded
    }

    /// Plays one command. Returns the lines that it prints.
    pub(super) fn play(&mut self, command: &str) -> Result<Vec<String>> {
        let (quiet, said) = match command.strip_prefix("quietly ") {
            Some(command) => (true, command),
            None => (false, command),
        };
        self.chart(|chart| {
            if !VIEWS.iter().any(|view| said.starts_with(view)) {
                chart.begins(command);
            }
            chart.quiet = quiet;
        });
        let played = self.carry_out(said);
        self.chart(|chart| {
            chart.quiet = false;
            if let Err(error) = &played {
                chart.fails(error);
            }
        });
        if quiet { played.map(|_| Vec::new()) } else { played }
    }

    fn chart(&mut self, tell: impl FnOnce(&mut Recorder)) {
        if let Some(world) = &mut self.world {
            world.chart(tell);
        }
    }

    fn carry_out(&mut self, command: &str) -> Result<Vec<String>> {
        let mut words = command.split_whitespace();
        let name = words.next().ok_or("a command is missing")?;
        let words: Vec<&str> = words.collect();
        if name == "cluster" {
            self.recorded.extend(self.world.as_mut().and_then(World::take_recorder));
            let mut world = cluster(&words, self.cast)?;
            if let Some(window) = self.window {
                world.record(Recorder::new(window));
            }
            self.world = Some(world);
        }
        let Some(world) = &mut self.world else {
            return Err("there is no cluster yet; begin with 'cluster 3'".to_owned());
        };
        let mut printed = Vec::new();
        match name {
            "cluster" => {
                checked(world.start_all())?;
                world.take_trace();
                world.chart(|chart| chart.begin_with(command));
            }
            "use-group" => use_group(world, &words)?,
            "status" => printed = status(world),
            "situations" => printed = world.reached().iter().map(|reached| reached.to_string()).collect(),
            "messages" => printed = messages(world),
            "group" => printed.push(world.group(one_replica(world, &words)?).ok_or("it is down")?),
            "log" => printed = world.log(one_replica(world, &words)?),
            "peek" => printed.push(peek(world, &words)?),
            _ => act(world, name, &words)?,
        }
        let mut lines = world.take_trace();
        lines.append(&mut printed);
        Ok(lines)
    }
}

#[cfg(test)]
impl Stage {
    /// The situations that the cluster has reached so far.
    pub(super) fn reached(&self) -> crate::situations::Reached {
        self.world.as_ref().map(World::reached).unwrap_or_default()
    }
}

fn use_group(world: &mut World, words: &[&str]) -> Result<()> {
    let [word] = words else { return Err("write use-group 1".to_owned()) };
    let group = word.trim_start_matches('g').parse().map(GroupId).ok();
    let turned = group.is_some_and(|group| world.turn_to(group));
    if turned { Ok(()) } else { Err(format!("'{word}' is no group of this cluster")) }
}

fn checked(result: std::result::Result<(), crate::check::Violation>) -> Result<()> {
    result.map_err(|violation| format!("violates {violation}"))
}

/// The commands that change something: first those of clients, messages, time and the group.
fn act(world: &mut World, name: &str, words: &[&str]) -> Result<()> {
    match name {
        "elect" => {
            let of = one_replica(world, words)?;
            elect(world, of)
        }
        "timeout" => checked(world.let_time_out(one_replica(world, words)?)),
        "put" | "delete" | "get" | "open-session" => ask(world, name, words),
        "deliver" | "drop" => {
            let (link, rest) = words.split_first().ok_or("which link? write 1->2")?;
            let (from, to) = parse_link(world, link)?;
            transmit(world, from, to, rest, name == "deliver")
        }
        "stabilize" => checked(world.stabilize()),
        "tick" => checked(world.pass(time(words)?)),
        "run" => checked(world.pass_and_deliver(time(words)?)),
        "transfer" => {
            let [of, to] = replicas(world, words)?[..] else { return Err("write transfer 1 2".to_owned()) };
            checked(world.transfer(of, to))
        }
        "member" => member(world, words),
        "first-group" => first_group(world, words),
        "see" => see(world, words),
        "reconfigure" => reconfigure(world, words),
        _ => act_on_links(world, name, words),
    }
}

/// The commands that change links; all others are of machines.
fn act_on_links(world: &mut World, name: &str, words: &[&str]) -> Result<()> {
    match name {
        "partition" => {
            let links = between_groups(world, words)?;
            checked(world.part(links))
        }
        "cut" => {
            let [link] = words else { return Err("write cut 1->2".to_owned()) };
            let link = parse_link(world, link)?;
            checked(world.part(vec![link]))
        }
        "slow" => {
            let [pair, by] = words else { return Err("write slow 1-2 40ms".to_owned()) };
            let (one, other) = pair.split_once('-').ok_or("which link? write slow 1-2 40ms")?;
            world.slow_down(replica(world, one)?, replica(world, other)?, duration(by)?);
            Ok(())
        }
        "refuse" => {
            let [link] = words else { return Err("write refuse 1->2".to_owned()) };
            let link = parse_link(world, link)?;
            checked(world.refuse(link))
        }
        "links" => links_only(world, words),
        "heal" => checked(world.join()),
        _ => act_on_machine(world, name, words),
    }
}

/// The commands that change processes, clocks and disks; there is no other.
fn act_on_machine(world: &mut World, name: &str, words: &[&str]) -> Result<()> {
    match name {
        "crash" | "kill" => {
            let ending = if name == "kill" { Ending::Process } else { Ending::Machine };
            for of in replicas(world, words)? {
                world.end_life(of, ending);
            }
            checked(world.settle())
        }
        "restart" => restart(world, words),
        "lose-log" => lose_log(world, words),
        "wipe" => {
            world.take_everything(crashed(world, words)?);
            Ok(())
        }
        "copy" => {
            world.copy_disk(one_replica(world, words)?);
            Ok(())
        }
        "put-back" => {
            let of = crashed(world, words)?;
            world
                .put_copy_back(of)
                .then_some(())
                .ok_or(format!("there is no copy; write copy {} first", of + 1))
        }
        "pause" => {
            world.pause(one_replica(world, words)?);
            Ok(())
        }
        "resume" => {
            let of = one_replica(world, words)?;
            checked(world.resume(of))?;
            checked(world.settle())
        }
        "jump" => {
            let (of, by) = words.split_first().ok_or("which replica? write jump 1 2s")?;
            world.jump(replica(world, of)?, time(by)?);
            checked(world.settle())
        }
        "stall-disk" => {
            world.stall(one_replica(world, words)?);
            Ok(())
        }
        "sync" => checked(world.sync(one_replica(world, words)?)),
        "slow-disk" => {
            let [of, slower] = words else { return Err("write slow-disk 1 100ms".to_owned()) };
            world.slow_disk(replica(world, of)?, duration(slower)?);
            Ok(())
        }
        "unstall-disk" => {
            world.unstall(one_replica(world, words)?);
            checked(world.settle())
        }
        _ => {
            let names: Vec<&str> = COMMANDS.iter().map(|(usage, _)| *usage).collect();
            Err(format!("there is no such command; there are: {}", names.join("; ")))
        }
    }
}

/// A change of the group that this one follows.
fn first_group(world: &mut World, words: &[&str]) -> Result<()> {
    // It may be a member that this group does not have yet.
    let named = |word: &str| word.parse().map(ReplicaId).map_err(|_| format!("'{word}' is no replica"));
    let change = change_of_members(words, named)?;
    world.change_first_in_script(change)
}

/// A node sees what the group that this one follows has decided.
fn see(world: &mut World, words: &[&str]) -> Result<()> {
    let (of, version) = words.split_first().ok_or("which replica? write see 1 2")?;
    let version = match version {
        [] => None,
        [version] => Some(number_of_version(version)?),
        _ => return Err("write see 1, or see 1 2".to_owned()),
    };
    world.see_in_script(replica(world, of)?, version)
}

/// Keeps these links, and cuts all others.
fn links_only(world: &mut World, words: &[&str]) -> Result<()> {
    let kept = links(world, words)?;
    checked(world.join())?;
    let all = (0..world.replicas()).flat_map(|a| (0..world.replicas()).map(move |b| (a, b)));
    let others = all.filter(|&(a, b)| a != b && !kept.contains(&(a, b)) && !kept.contains(&(b, a)));
    let others: Vec<_> = others.collect();
    if others.is_empty() { Ok(()) } else { checked(world.part(others)) }
}

fn restart(world: &mut World, words: &[&str]) -> Result<()> {
    for of in replicas(world, words)? {
        if world.view(of).is_some() {
            return Err(format!("r{} is up", of + 1));
        }
        if !world.may_join(of) {
            return Err(format!("r{} is told that it is no learner, or by nobody that it is", of + 1));
        }
        checked(world.start(of))?;
    }
    checked(world.join())
}

/// The one replica that the words name, which must not run.
fn crashed(world: &World, words: &[&str]) -> Result<usize> {
    let of = one_replica(world, words)?;
    if world.view(of).is_some() { Err(format!("r{} is up; crash it first", of + 1)) } else { Ok(of) }
}

fn lose_log(world: &mut World, words: &[&str]) -> Result<()> {
    let (words, snapshots) = match words {
        [of, "keep-snapshots"] => (&[*of][..], false),
        _ => (words, true),
    };
    let of = crashed(world, words)?;
    world.lose_log(of, snapshots);
    Ok(())
}

/// Changes of the group.
fn member(world: &mut World, words: &[&str]) -> Result<()> {
    let (of, rest) = words.split_first().ok_or("which replica is asked? write member 1 add")?;
    let of = replica(world, of)?;
    if let ["follow", version] = rest {
        return world.follow_in_script(of, number_of_version(version)?);
    }
    if let ["place", choice @ ..] = rest {
        let choice = choice_of_voters(choice)?;
        return checked(world.change_in_script(of, |_| Change::Place(choice)));
    }
    let named = |word: &str| replica(world, word).map(|index| ReplicaId(index as u64 + 1));
    let change = change_of_members(rest, named)?;
    checked(world.change_in_script(of, change))
}

/// The choice of voters that a script's words ask for.
fn choice_of_voters(words: &[&str]) -> Result<Option<Choice>> {
    let (voters, others) = match words {
        ["none"] => return Ok(None),
        [voters, "learn"] => (voters, Others::Learn),
        [voters, "away"] => (voters, Others::StayAway),
        _ => {
            return Err(
                "write member 1 place 1,2 learn, member 1 place 1,2 away, or member 1 place none".to_owned()
            );
        }
    };
    let voters = voters.split(',').map(|word| word.parse().map(ReplicaId));
    let voters = voters.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    Ok(Some(Choice::of(voters, others)))
}

/// Makes a change for a group.
type ChangeMaker = Box<dyn FnOnce(&Group) -> Change>;

/// The change of members that a script's words ask for.
fn change_of_members(words: &[&str], named: impl Fn(&str) -> Result<ReplicaId>) -> Result<ChangeMaker> {
    let (goal, id) = match words {
        ["add"] | ["add", "vote"] => (Some(Goal::Vote), ReplicaId(0)),
        ["add", "learn"] => (Some(Goal::Learn), ReplicaId(0)),
        ["add", "replace", old] => (Some(Goal::Replace(named(old)?)), ReplicaId(0)),
        ["promote", id] | ["remove", id] => (None, named(id)?),
        _ => {
            return Err(
                "write member 1 add [vote|learn|replace 2], member 1 promote 4, or member 1 remove 4"
                    .to_owned(),
            );
        }
    };
    let promotes = words[0] == "promote";
    Ok(Box::new(move |group| match goal {
        Some(goal) => Change::Add { info: member_info(group.next_id, 0), goal },
        None if promotes => promotion(group, id),
        None => Change::Remove(id),
    }))
}

fn number_of_version(word: &str) -> Result<u64> {
    word.parse().map_err(|_| format!("'{word}' is no version of a group"))
}

fn cluster(words: &[&str], cast: Cast) -> Result<World> {
    let (count, rest) = words.split_first().ok_or("how many replicas? write 'cluster 3'")?;
    let replicas = count.parse().ok().filter(|count| (1..=7).contains(count));
    let replicas: usize = replicas.ok_or(format!("'{count}' is not a number of replicas from 1 to 7"))?;
    let mut plan = calm_plan(replicas, cast);
    let mut groups = None;
    for word in rest {
        let (key, value) = word.split_once('=').ok_or(format!("'{word}' is not SETTING=VALUE"))?;
        if key == "groups" {
            groups = Some(value);
        } else {
            set(&mut plan, key, value)?;
        }
    }
    if let Some(groups) = groups {
        plan = of_groups(plan, groups)?;
    }
    Ok(World::new(plan, Trace::Script(Vec::new())))
}

/// The same with several groups: `merge:2`, which take turns one batch each and follow each other, or `shard:2`.
fn of_groups(plan: Plan, groups: &str) -> Result<Plan> {
    let wrong = || format!("'{groups}' is not merge:N or shard:N, with 2 to 4 groups");
    let (kind, count) = groups.split_once(':').ok_or_else(wrong)?;
    let count: usize = count.parse().ok().filter(|count| (2..=4).contains(count)).ok_or_else(wrong)?;
    match kind {
        "merge" => {
            let mut plan = plan.merging(count);
            if let Some(merging) = &mut plan.merging {
                (merging.take, merging.skips) = (Take::MIN, Skips::Follow);
            }
            Ok(plan)
        }
        "shard" => Ok(plan.of_groups(count)),
        _ => Err(wrong()),
    }
}

/// Durations of a world in which everything is immediate.
const AT_ONCE: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);

/// A script's clients are its commands.
const NO_CLIENTS: ClientPlan = ClientPlan {
    direct: 0,
    sessions: 0,
    pipeline: 0,
    keys: 9,
    operations: 0,
    think: AT_ONCE,
    timeout: Duration::ZERO,
    padding_max: 0,
    stale_reads: Odds::NEVER,
    leases: 0,
    outlives_leases: false,
    cancels: Odds::NEVER,
    presses_on: Duration::ZERO,
};

/// A world without accidents, in which everything is immediate.
pub(crate) fn calm_plan(replicas: usize, cast: Cast) -> Plan {
    let mut settings = Settings::default();
    settings.consensus.protocol = cast.protocol;
    settings.consensus.election = cast.election;
    // Time passes in a script only when a command lets it, so announcements must not wait.
    settings.consensus.announce_delay_max = Duration::ZERO;
    // Ticks of the replicated clock would appear in stories about other subjects.
    settings.clock_interval = Duration::from_secs(3600);
    Plan {
        seed: 0,
        replicas,
        groups: 1,
        merging: None,
        settings,
        own: Vec::new(),
        durability: Durability::Sync,
        network: NetworkPlan {
            wire: Wire::Manual,
            delay_min: Duration::ZERO,
            delay_max: Duration::ZERO,
            slow: Odds::NEVER,
            late_max: Duration::ZERO,
            loss: Odds::NEVER,
            duplicate: Odds::NEVER,
            reset: Odds::NEVER,
            damage: Odds::NEVER,
            keep_max: 0,
        },
        disk: DiskPlan {
            sync: AT_ONCE,
            snapshot: AT_ONCE,
            snapshot_fails: Odds::NEVER,
            trim_waits: Odds::NEVER,
            snapshots_lost: Odds::NEVER,
            repairs: false,
            files: None,
        },
        clock_drift_ppm: 0,
        timer_late: Duration::ZERO,
        execute: AT_ONCE,
        turn_ends: Odds::NEVER,
        burst: Duration::ZERO,
        faults: FaultPlan {
            gap: AT_ONCE,
            lasts: AT_ONCE,
            long_pauses: Odds::NEVER,
            leader: Odds::NEVER,
            any_step: Odds::NEVER,
            weights: FaultWeights::default(),
            between_pages: Odds::NEVER,
            bridge: BridgePlan::default(),
            joint: JointPlan::default(),
        },
        trials: 0,
        priorities: Vec::new(),
        clients: NO_CLIENTS,
        watches: WatchPlan::NONE,
        changes: ChangePlan { spares: SPARES_MAX, ..ChangePlan::NONE },
        begins_with_backup: false,
        births_later: false,
        family: Family::General,
        duration: Duration::ZERO,
    }
}

fn set(plan: &mut Plan, key: &str, value: &str) -> Result<()> {
    fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
        value.parse().map_err(|_| format!("{key}: '{value}' is not a number"))
    }
    fn truth(key: &str, value: &str) -> Result<bool> {
        value.parse().map_err(|_| format!("{key}: '{value}' is not true or false"))
    }
    let settings = &mut plan.settings;
    let consensus = &mut settings.consensus;
    match key {
        "protocol" => consensus.protocol = value.parse().map_err(|error| format!("{error}"))?,
        "election" => consensus.election = value.parse().map_err(|error| format!("{error}"))?,
        "dissemination" => consensus.dissemination = value.parse().map_err(|error| format!("{error}"))?,
        "decision" => consensus.multipaxos.decision = value.parse().map_err(|error| format!("{error}"))?,
        "durability" => {
            plan.durability = value.parse().map_err(|error| format!("durability: {error}"))?;
        }
        "priorities" => {
            let priorities: Result<Vec<u8>> = value.split(',').map(|value| number(key, value)).collect();
            plan.priorities = priorities?;
        }
        "decisions" => {
            for (of, value) in value.split(',').enumerate() {
                plan.own.resize(plan.own.len().max(of + 1), settings.clone());
                plan.own[of].consensus.multipaxos.decision =
                    value.parse().map_err(|error| format!("{error}"))?;
            }
        }
        "window" => consensus.window_max = number(key, value)?,
        "announce-delay" => consensus.announce_delay_max = duration(value)?,
        "promise-bytes" => consensus.page_bytes_max = number(key, value)?,
        "batch-bytes" => settings.batch_bytes_max = number(key, value)?,
        "paced" => settings.paced = truth(key, value)?,
        "snapshot-slots" => settings.snapshot_slots = number(key, value)?,
        "keep-slots" => settings.keep_slots = number(key, value)?,
        "chunk-bytes" => settings.chunk_bytes_max = number(key, value)?,
        "undurable-bytes" => settings.undurable_bytes_max = number(key, value)?,
        "fetch-bytes" => settings.fetch_bytes_max = number(key, value)?,
        "state-transfer" => settings.state_transfer = value.parse().map_err(|error| format!("{error}"))?,
        "latency" => plan.network.delay_min = duration(value)?,
        "follows" => plan.changes.follows = truth(key, value)?,
        "backup" => plan.begins_with_backup = truth(key, value)?,
        "clock-interval" => settings.clock_interval = duration(value)?,
        _ => match format!("{key}={value}").parse::<Overrides>() {
            Ok(overrides) => overrides.apply(consensus),
            Err(OptionError::Unknown(_)) => {
                return Err(format!(
                    "there is no setting '{key}'; there are {SETTINGS}, and the options of protocols"
                ));
            }
            Err(error) => return Err(error.to_string()),
        },
    }
    Ok(())
}

fn replica(world: &World, word: &str) -> Result<usize> {
    let number: Option<usize> = word.trim_start_matches('r').parse().ok();
    let index = number.and_then(|number| number.checked_sub(1)).filter(|&index| index < world.replicas());
    index.ok_or(format!("'{word}' is no replica; there are 1 to {}", world.replicas()))
}

fn replicas(world: &World, words: &[&str]) -> Result<Vec<usize>> {
    if words.is_empty() {
        return Err("which replica?".to_owned());
    }
    words.iter().map(|word| replica(world, word)).collect()
}

/// `reconfigure 1 raft`: for the group as r1 knows it.
fn reconfigure(world: &mut World, words: &[&str]) -> Result<()> {
    let (of, protocol, election) = match words {
        [of, protocol] => (replica(world, of)?, protocol, None),
        [of, protocol, election] => (replica(world, of)?, protocol, Some(election)),
        _ => return Err("write reconfigure 1 raft, or reconfigure 1 multipaxos ballot".to_owned()),
    };
    let protocol: ProtocolKind = protocol.parse().map_err(|error: UnknownName| error.to_string())?;
    let election = match election {
        Some(election) => election.parse().map_err(|error: UnknownName| error.to_string())?,
        None => protocol.elections()[0],
    };
    checked(world.reorder(of, protocol, election))
}

fn one_replica(world: &World, words: &[&str]) -> Result<usize> {
    let [word] = words else { return Err("name one replica".to_owned()) };
    replica(world, word)
}

fn parse_link(world: &World, word: &str) -> Result<(usize, usize)> {
    let (from, to) = word.split_once("->").ok_or(format!("'{word}' is no link; write 1->2"))?;
    let link = (replica(world, from)?, replica(world, to)?);
    if link.0 == link.1 { Err(format!("'{word}' leads nowhere")) } else { Ok(link) }
}

/// Links that work in both directions: `1-2 2-3`.
fn links(world: &World, words: &[&str]) -> Result<Vec<(usize, usize)>> {
    let link = |word: &&str| {
        let (a, b) = word.split_once('-').ok_or(format!("'{word}' is no link; write 1-2"))?;
        Ok((replica(world, a)?, replica(world, b)?))
    };
    words.iter().map(link).collect()
}

fn duration(word: &str) -> Result<Duration> {
    let (number, unit) = word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()));
    let number: u64 = number.parse().map_err(|_| format!("'{word}' is no time; write 50ms or 2s"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("'{word}' is no time; write 50ms or 2s")),
    }
}

fn time(words: &[&str]) -> Result<Duration> {
    let [word] = words else { return Err("how long? write 50ms or 2s".to_owned()) };
    duration(word)
}

/// All links between replicas of different groups.
fn between_groups(world: &World, words: &[&str]) -> Result<Vec<(usize, usize)>> {
    let mut groups = BTreeMap::new();
    for (group, words) in words.split(|word| *word == "|").enumerate() {
        for of in replicas(world, words)? {
            if groups.insert(of, group).is_some() {
                return Err(format!("r{} is in two groups", of + 1));
            }
        }
    }
    let all: Vec<(usize, usize)> = groups.into_iter().collect();
    let pairs = all.iter().flat_map(|&from| all.iter().map(move |&to| (from, to)));
    Ok(pairs.filter(|(from, to)| from.1 != to.1).map(|(from, to)| (from.0, to.0)).collect())
}

fn elect(world: &mut World, of: usize) -> Result<()> {
    // The replica's next deadline may have another purpose than the election.
    for tries in 1..=20 {
        if world.leads(of) {
            return Ok(());
        }
        if tries > 4 {
            // Others may keep to a leader that they have heard recently.
            checked(world.let_timeouts_end())?;
        }
        checked(world.let_time_out(of))?;
        checked(world.stabilize())?;
    }
    Err(format!("r{} does not become leader", of + 1))
}

fn transmit(world: &mut World, from: usize, to: usize, rest: &[&str], arrives: bool) -> Result<()> {
    let (mut kind, mut count) = ("", usize::MAX);
    for word in rest {
        match word.parse() {
            Ok(number) => count = number,
            Err(_) => kind = word,
        }
    }
    // Only messages that are in flight now are delivered, not answers to them.
    let waiting = world.under_way(from, to);
    let is_meant = |&place: &usize| {
        let message: &UnderWay = &waiting[place];
        kind.is_empty() || message.class == kind || message.text.split(' ').next() == Some(kind)
    };
    let places: Vec<usize> = (0..waiting.len()).filter(is_meant).take(count).collect();
    if places.is_empty() {
        return Err(format!("no such message is under way; classes are: {}", CLASSES.join(", ")));
    }
    for (taken, place) in places.into_iter().enumerate() {
        if arrives {
            checked(world.deliver(from, to, place - taken))?;
        } else {
            world.lose(from, to, place - taken);
        }
    }
    Ok(())
}

/// A session's command: `as s1#2`. Its number counts as the lowest outstanding one.
fn session<'a>(words: &[&'a str]) -> Result<(Vec<&'a str>, Option<SessionCommand>)> {
    let Some(place) = words.iter().position(|word| *word == "as") else { return Ok((words.to_vec(), None)) };
    let wrong = || "write 'as s1#2' at the end: session 1, command 2".to_owned();
    let [word] = &words[place + 1..] else { return Err(wrong()) };
    let parts = word.strip_prefix('s').and_then(|word| word.split_once('#')).ok_or_else(wrong)?;
    let id = parts.0.parse().map_err(|_| wrong())?;
    let sequence = parts.1.parse().map_err(|_| wrong())?;
    let command = SessionCommand { session: SessionId(id), sequence, lowest_outstanding: sequence };
    Ok((words[..place].to_vec(), Some(command)))
}

fn key(word: &str) -> Result<u8> {
    let key =
        word.strip_prefix('k').and_then(|number| number.parse().ok()).filter(|key| (1..=9).contains(key));
    key.ok_or(format!("'{word}' is no key; there are k1 to k9"))
}

fn ask(world: &mut World, name: &str, words: &[&str]) -> Result<()> {
    let (first, rest) = words.split_first().ok_or("which replica?")?;
    let of = replica(world, first)?;
    if let ("put", [put, "every", interval, "for", lasts]) = (name, rest) {
        return put_at_intervals(world, of, put, time(&[interval])?, time(&[lasts])?);
    }
    let (rest, session) = session(rest)?;
    // A command that is sent again must be the same, byte by byte.
    let id = session.map(|place| place.session.0 << 32 | place.sequence);
    let mut questions: Vec<(Option<Op>, String)> = Vec::new();
    match (name, rest.as_slice()) {
        ("open-session", []) => questions.push((None, "open-session".to_owned())),
        ("get", []) => questions.push((Some(Op::Get { first: 1, last: 9 }), "get".to_owned())),
        ("get", [word]) => {
            let key = key(word)?;
            questions.push((Some(Op::Get { first: key, last: key }), format!("get {word}")));
        }
        ("delete", [word]) => {
            let key = key(word)?;
            questions.push((Some(Op::Delete { first: key, last: key }), format!("delete {word}")));
        }
        ("put", [_, ..]) => {
            for word in rest {
                questions.push((Some(put(word)?), format!("put {word}")));
            }
        }
        _ => {
            let usage = COMMANDS.iter().find(|(usage, _)| usage.split(' ').next() == Some(name));
            return Err(format!("write {}", usage.map_or(name, |(usage, _)| usage)));
        }
    }
    if session.is_some() && questions.len() > 1 {
        return Err("a number of a session is for one command".to_owned());
    }
    for (op, text) in questions {
        checked(world.ask_in_script(of, op, id, session, text, Duration::ZERO).map(|_| ()))?;
    }
    checked(world.settle())
}

fn put(word: &str) -> Result<Op> {
    let wrong = || format!("'{word}' is not KEY=NUMBER");
    let (name, value) = word.split_once('=').ok_or_else(wrong)?;
    let value = value.parse().map_err(|_| wrong())?;
    Ok(Op::Put { key: key(name)?, value })
}

fn put_at_intervals(
    world: &mut World,
    of: usize,
    word: &str,
    interval: Duration,
    lasts: Duration,
) -> Result<()> {
    let op = put(word)?;
    let times = if interval.is_zero() { 0 } else { lasts.as_nanos() / interval.as_nanos() };
    let times = u32::try_from(times).ok().filter(|times| (1..=PUTS_MAX).contains(times));
    let times = times.ok_or(format!("a client writes 1 to {PUTS_MAX} times"))?;
    for place in 1..=times {
        let (text, wait) = (format!("put {word}"), interval * place);
        checked(world.ask_in_script(of, Some(op.clone()), None, None, text, wait).map(|_| ()))?;
    }
    Ok(())
}

fn status(world: &World) -> Vec<String> {
    let line = |of: usize| {
        let name = format!("r{}", of + 1);
        match world.view(of) {
            Some(view) => {
                let snapshot =
                    if view.snapshot == 0 { String::new() } else { format!(", snapshot {}", view.snapshot) };
                format!(
                    "{name}  {:<10} {}, decided {}, executed {}{snapshot}",
                    view.role, view.ballot, view.decided, view.executed
                )
            }
            None => format!("{name}  down"),
        }
    };
    (0..world.replicas()).map(line).collect()
}

fn messages(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    for from in 0..world.replicas() {
        for to in (0..world.replicas()).filter(|&to| to != from) {
            let waiting = world.under_way(from, to);
            lines.extend(
                waiting.into_iter().map(|message| format!("r{} → r{}  {}", from + 1, to + 1, message.text)),
            );
        }
    }
    if lines.is_empty() {
        lines.push("none".to_owned());
    }
    lines
}

fn peek(world: &World, words: &[&str]) -> Result<String> {
    let of = one_replica(world, words)?;
    let op = Op::Get { first: 1, last: 9 };
    let reply = world.look(of, &op.encode(0, 0)).ok_or(format!("r{} is down", of + 1))?;
    Answer::decode(&op, &reply).map(|answer| answer.to_string()).ok_or("an answer of another kind".to_owned())
}
