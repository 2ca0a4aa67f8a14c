//! `synod lab run attacks`: what one hostile client can do to a cluster, and what honest clients notice of it.
//!
//! Each attack of `ALL` gets three servers of its own. Honest clients put at each of them before, during and
//! after the attack (`probe`); the memory of the servers is watched all the time (`cluster`). Then the
//! attack's bounds are judged. With `--etcd` the same is done to etcd, whose figures stand beside Synod's.

mod bodies;
pub(crate) mod cluster;
mod honest;
mod large;
mod native;
mod pages;
mod probe;
mod report;
mod sockets;
mod unread;
mod users;
mod wire;

use std::{
    fs,
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::sleep;

use self::{
    cluster::{Cluster, SERVERS, System, mib},
    probe::Probe,
    report::{Claim, Outcome},
};
use crate::study::Environment;

/// The arguments of `synod lab run attacks`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// Attacks to run [default: all of them; `--list` shows them].
    names: Vec<String>,
    /// Show the attacks, what they assert and their parameters.
    #[arg(long)]
    list: bool,
    /// The program `etcd`. Attack three of its servers as well; bounds that it breaks are shown and do not count.
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,
    /// Set a parameter.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write the report to this file, too, as Markdown.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The commit that is attacked, for the report.
    #[arg(long, value_name = "ID")]
    commit: Option<String>,
    /// The program `synod` [default: this one, or the one built beside it].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// An attack.
struct Attack {
    name: &'static str,
    /// What is attacked, and how.
    about: &'static str,
    store: Store,
    latency: Latency,
    /// Descriptors that a server may have; otherwise as many as this program.
    nofile: Option<u64>,
    /// Kill all servers at the end and start them again: what is in the log must do no harm when it is replayed.
    restarts: bool,
    run: for<'a> fn(&'a mut Scene<'_>) -> Doing<'a>,
}

type Doing<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>;

/// The contents of the servers when the attack begins.
#[derive(Clone, Copy)]
enum Store {
    Nothing,
    /// Pairs of 1 KiB: `small-keys`.
    Small,
    /// Pairs of 64 bytes: `keys`.
    Large,
}

/// The bound on what clients at the attacked server may notice.
#[derive(Clone, Copy)]
enum Latency {
    /// The 99th percentile is less than 10 ms higher than before; on a busy machine, less than twice what it was.
    P99Near,
    /// The median at most doubles.
    MedianTwice,
    /// A put succeeds at least once a second: the attack itself uses the processors of the servers.
    Serves,
}

const ALL: &[Attack] = &[
    Attack {
        name: "poison",
        about: "the log: a transaction of one put and 250 ranges over the whole store, one of 104,976",
        store: Store::Small,
        latency: Latency::Serves,
        nofile: None,
        restarts: true,
        run: |scene| Box::pin(large::poison(scene)),
    },
    Attack {
        name: "large-range",
        about: "the executor: ranges over all of `keys` keys at the leader, one after the other",
        store: Store::Large,
        latency: Latency::P99Near,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(large::range(scene)),
    },
    Attack {
        name: "unread",
        about: "memory: 20 connections of `streams` whole-store ranges with window 0, then 50 of a fifth as many whose answers nobody reads",
        store: Store::Small,
        latency: Latency::MedianTwice,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(large::unread(scene)),
    },
    Attack {
        name: "unread-watches",
        about: "memory: 10 connections of `streams` watches of the whole store that nobody reads, while it is filled and deleted at once; then with sockets that nobody reads",
        store: Store::Small,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(unread::watches(scene)),
    },
    Attack {
        name: "unread-answers",
        about: "memory: 10 connections of `streams` requests for 5,000 leases, then for the leader of an election with a MiB, with window 0",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(unread::answers(scene)),
    },
    Attack {
        name: "idle",
        about: "descriptors: `connections` idle HTTP/2 connections to each server, which may have 1024 descriptors, while logs grow",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: Some(1024),
        restarts: false,
        run: |scene| Box::pin(sockets::idle(scene)),
    },
    Attack {
        name: "half-open",
        about: "the peer ports: 350 connections a second that say nothing, while a replica is killed and restarts",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(sockets::half_open(scene)),
    },
    Attack {
        name: "resets",
        about: "HTTP/2: streams that are opened and reset at once",
        store: Store::Small,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(sockets::resets(scene)),
    },
    Attack {
        name: "pings",
        about: "HTTP/2: pings and settings as fast as they are taken, with answers that are read and that are not",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(sockets::pings(scene)),
    },
    Attack {
        name: "half-requests",
        about: "HTTP/2: 10 connections of 1,000 requests that hardly begin, then 20 of 200 of a MiB that never end",
        store: Store::Nothing,
        latency: Latency::MedianTwice,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(sockets::half_requests(scene)),
    },
    Attack {
        name: "garbage",
        about: "all ports: random bytes, frames with random contents, and headers without an end",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(sockets::garbage(scene)),
    },
    Attack {
        name: "random",
        about: "memory: transactions at random, nested, with ranges, puts and deletions, by 4 clients",
        store: Store::Small,
        latency: Latency::Serves,
        nofile: None,
        restarts: true,
        run: |scene| Box::pin(large::random(scene)),
    },
    Attack {
        name: "json-bodies",
        about: "what is made of requests: 40 connections of JSON, 4 MB each of which every 11 bytes are a message",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(bodies::bodies(scene)),
    },
    Attack {
        name: "json-resets",
        about: "what is made of requests: the same on 6 connections, each of which is closed when its body is sent",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(bodies::resets(scene)),
    },
    Attack {
        name: "json-answers",
        about: "memory: 4 clients that read 300,000 keys as JSON, again and again",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(bodies::answers(scene)),
    },
    Attack {
        name: "empty-operations",
        about: "what is made of requests: 8 connections of 8 transactions of a million operations, each of 2 bytes",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(bodies::operations(scene)),
    },
    Attack {
        name: "silent-pages",
        about: "places: 40 connections at the metrics port and `connections` at the client port, which may have 1024 descriptors, that ask for /metrics a thousand times and read nothing",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: Some(1024),
        restarts: false,
        run: |scene| Box::pin(pages::silent(scene)),
    },
    Attack {
        name: "scrapers",
        about: "the threads that serve: 500 connections that read /metrics at the client port",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(pages::scrapers(scene)),
    },
    Attack {
        name: "native-queries",
        about: "Synod's own API: 4 connections of queries with a transaction of 700,000 empty operations",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(native::queries(scene)),
    },
    Attack {
        name: "native-commands",
        about: "Synod's own API: commands of 700,000 empty operations, 100,000 puts, 500,000 renewals, and with a quota of the client's",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: true,
        run: |scene| Box::pin(native::commands(scene)),
    },
    Attack {
        name: "sessions",
        about: "the table of sessions: 8 connections from one address that open them, while one of another address rests",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(native::sessions(scene)),
    },
    Attack {
        name: "honest-leases",
        about: "no attack: one client keeps `leases` leases on one stream, and all its renewals leave at once",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(honest::leases(scene)),
    },
    Attack {
        name: "honest-watches",
        about: "no attack: one client begins `watches` watches on one stream at once",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(honest::watches(scene)),
    },
    Attack {
        name: "locks",
        about: "the log: 30 connections of `locks` calls that wait for one lock, and leave",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(honest::locks(scene)),
    },
    Attack {
        name: "stealer",
        about: "users: a stranger subscribes and watches at each server; then users begin to count, and log in at each",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(users::steal(scene)),
    },
    Attack {
        name: "logins",
        about: "users: wrong passwords on 200 connections from one address, while an honest user logs in from there and from another",
        store: Store::Nothing,
        latency: Latency::Serves,
        nofile: None,
        restarts: false,
        run: |scene| Box::pin(users::logins(scene)),
    },
];

/// Keys of parameters, with their defaults and descriptions.
const SETTINGS: [(&str, u64, &str); 13] = [
    ("keys", 1_000_000, "keys of the store of large-range"),
    ("small-keys", 9_000, "keys, of 1 KiB each, of the other stores"),
    ("streams", 500, "streams on a connection of unread, unread-watches and unread-answers"),
    ("connections", 1_100, "connections to each server of idle, and to one of silent-pages"),
    ("seconds", 10, "how long the puts before and after an attack last, and most attacks"),
    (
        "memory-mib",
        512,
        "what each server may have resident beyond what it had before the attack: most answers of 64 MiB at once are 8",
    ),
    ("guard-mib", 6_144, "a server with more resident is killed, to save the machine"),
    ("seed", 1, "what random transactions are drawn from"),
    ("written-mib", 160, "MiB that an honest client writes during idle: logs begin new segments"),
    ("ranges", 250, "whole-store ranges of the smaller transaction of poison"),
    ("leases", 12_000, "leases of honest-leases"),
    ("watches", 20_000, "watches of honest-watches"),
    ("locks", 200, "calls on a connection of locks"),
];

/// The values of the parameters.
#[derive(Debug)]
struct Settings([u64; SETTINGS.len()]);

impl Settings {
    fn new(set: &[String]) -> Result<Settings, String> {
        let mut settings = Settings(SETTINGS.map(|(_, default, _)| default));
        for set in set {
            let known = SETTINGS.map(|(key, _, _)| key).join(", ");
            let (key, value) = set.split_once('=').ok_or(format!("--set {set}: KEY=VALUE is wanted"))?;
            let place = SETTINGS.iter().position(|(known, _, _)| *known == key);
            let place = place.ok_or(format!("--set {key}: there are {known}"))?;
            settings.0[place] = value.parse().map_err(|error| format!("--set {set}: {error}"))?;
        }
        Ok(settings)
    }

    fn get(&self, key: &str) -> u64 {
        let place = SETTINGS.iter().position(|(known, _, _)| *known == key);
        self.0[place.expect("a key of the table")]
    }

    fn seconds(&self) -> Duration {
        Duration::from_secs(self.get("seconds"))
    }
}

/// What an attack has to work with.
struct Scene<'a> {
    cluster: Cluster,
    settings: &'a Settings,
    /// The attacked server, which is the leader.
    target: usize,
    /// A server that the attack itself killed; puts there may fail.
    killed: Option<usize>,
    /// Figures of this attack alone.
    figures: Vec<(String, String)>,
    claims: Vec<Claim>,
}

impl Scene<'_> {
    fn note(&mut self, what: impl Into<String>, value: impl ToString) {
        self.figures.push((what.into(), value.to_string()));
    }

    fn claim(&mut self, what: impl Into<String>, holds: bool, measured: impl ToString) {
        self.claims.push(Claim { what: what.into(), holds, measured: measured.to_string() });
    }
}

/// Runs the attacks and prints the report. The exit code is 0 if Synod kept every bound, 1 otherwise, and 2
/// for a wrong argument.
pub(crate) fn main(args: &Args, interrupted: &AtomicBool, own_program: &Path) -> ExitCode {
    let (settings, attacks) = match (Settings::new(&args.set), chosen(&args.names)) {
        (Ok(settings), Ok(attacks)) => (settings, attacks),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if args.list {
        list();
        return ExitCode::SUCCESS;
    }
    let synod = System::Synod(args.program.clone().unwrap_or_else(|| own_program.to_owned()));
    let systems: Vec<_> = [synod].into_iter().chain(args.etcd.clone().map(System::Etcd)).collect();
    match run(args, &settings, &attacks, &systems, interrupted) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Attack>, String> {
    if let Some(unknown) = names.iter().find(|name| ALL.iter().all(|attack| attack.name != **name)) {
        let known: Vec<_> = ALL.iter().map(|attack| attack.name).collect();
        return Err(format!("no attack {unknown}; there are {}", known.join(", ")));
    }
    Ok(ALL.iter().filter(|attack| names.is_empty() || names.iter().any(|name| name == attack.name)).collect())
}

fn list() {
    for attack in ALL {
        println!("{:14} {}", attack.name, attack.about);
        println!("{:14} {}", "", attack.latency.bound());
    }
    println!(
        "\nOf every attack: all servers live, no put fails at a server that was not killed, the leader stays, memory stays within its bound.\n"
    );
    for (key, default, help) in SETTINGS {
        println!("  {key}={default}\n      {help}");
    }
}

/// Runs the attacks. Returns whether Synod kept every bound.
fn run(
    args: &Args,
    settings: &Settings,
    attacks: &[&Attack],
    systems: &[System],
    interrupted: &AtomicBool,
) -> Result<bool, String> {
    // An attacker with as many connections as a server accepts needs as many descriptors; the servers get the
    // former limit.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let nofile = limit.current.unwrap_or(1 << 20);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("threads: {error}"))?;
    let mut environment = Environment::now(args.commit.clone(), "loopback".to_owned());
    let (mut kept, mut text) = (true, String::new());
    for attack in attacks {
        let mut outcomes = Vec::new();
        for system in systems {
            eprintln!("{}: {}", attack.name, system.name());
            let outcome = runtime.block_on(async {
                let stopped = async {
                    while !interrupted.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(50)).await;
                    }
                };
                tokio::select! {
                    outcome = play(attack, system, settings, nofile) => Ok(outcome),
                    () = stopped => Err("interrupted"),
                }
            })?;
            let outcome = outcome.unwrap_or_else(|why| Outcome::failed(system.name(), why));
            kept &= matches!(system, System::Etcd(_)) || outcome.kept();
            outcomes.push(outcome);
        }
        let section = report::section(attack.name, attack.about, &outcomes);
        println!("{section}");
        text += &section;
        text += "\n";
    }
    environment.end();
    let head = report::head(&environment, &args.set);
    println!("{head}");
    if let Some(path) = &args.out {
        fs::write(path, format!("{head}\n{text}")).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(kept)
}

/// Runs one attack on three servers of one system.
async fn play(attack: &Attack, system: &System, settings: &Settings, nofile: u64) -> Result<Outcome, String> {
    let folder = tempfile::Builder::new().prefix("synod-attacks-").tempdir();
    let folder = folder.map_err(|error| format!("temporary folder: {error}"))?;
    let guard = settings.get("guard-mib") << 20;
    let mut cluster = Cluster::start(system, folder.path(), attack.nofile.unwrap_or(nofile), guard)?;
    cluster.await_service().await?;
    let target = cluster.leader().await?;
    match attack.store {
        Store::Nothing => {}
        Store::Small => large::fill(&cluster, target, settings.get("small-keys"), 1 << 10).await?,
        Store::Large => large::fill(&cluster, target, settings.get("keys"), 64).await?,
    }
    let resident = cluster.resident();
    let leads = cluster.leads().await?;
    let probe = Probe::start(&cluster)?;
    let busy = attack.latency.is_lenient() && Environment::now(None, String::new()).is_busy();
    let mut scene =
        Scene { cluster, settings, target, killed: None, figures: Vec::new(), claims: Vec::new() };

    let began = Instant::now();
    sleep(settings.seconds()).await;
    let from = Instant::now();
    let done = (attack.run)(&mut scene).await;
    let to = Instant::now();
    sleep(settings.seconds()).await;
    let ended = Instant::now();
    let puts = probe.stop();

    let dead = scene.cluster.dead();
    let at_target = |place| place == target;
    let spans = [(began, from), (from, to), (to, ended)].map(|span| puts.figures(span, at_target));
    let killed = scene.killed;
    let elsewhere = puts.figures((from, to), |place| place != target && Some(place) != killed);
    if let Err(why) = done {
        scene.claim("the attack could be made", false, why);
    }
    scene.claim("all servers live", dead.is_empty(), dead.join("; "));
    let [before, during, after] = spans;
    let failed = during.failed + after.failed + elsewhere.failed;
    scene.claim("no put fails", failed == 0, format!("{failed} failed"));
    let (holds, measured) = attack.latency.judge(&before, &during, busy);
    scene.claim(attack.latency.bound(), holds, measured);
    let again = after.gap < Duration::from_secs(1);
    scene.claim("afterwards a put succeeds at least once a second", again, report::ms(after.gap));
    let leads_now = scene.cluster.leads().await;
    let told = leads_now.as_ref().map_or_else(Clone::clone, |now| format!("{now:?} after {leads:?}"));
    scene.claim("the leader and its term stay", leads_now == Ok(leads), told);
    let peaks = scene.cluster.peaks();
    judge_memory(&mut scene, "memory", resident, peaks);
    if attack.restarts {
        restart(&mut scene, resident).await?;
    }
    let names = [0, 1, 2].map(Cluster::name);
    let leader = names[target].clone();
    Ok(Outcome {
        system: system.name(),
        leader,
        spans,
        elsewhere,
        resident,
        peaks,
        figures: scene.figures,
        claims: scene.claims,
    })
}

fn judge_memory(scene: &mut Scene<'_>, what: &str, before: [u64; SERVERS], peaks: [u64; SERVERS]) {
    let bound = scene.settings.get("memory-mib");
    let more = (0..SERVERS).map(|place| mib(peaks[place].saturating_sub(before[place]))).max().unwrap_or(0);
    scene.claim(
        format!("{what}: at most {bound} MiB more than before"),
        more <= bound,
        format!("{more} MiB"),
    );
}

/// Kills all servers and starts them again with their logs.
async fn restart(scene: &mut Scene<'_>, resident: [u64; SERVERS]) -> Result<(), String> {
    (0..SERVERS).for_each(|place| scene.cluster.kill(place));
    for place in 0..SERVERS {
        scene.cluster.restart(place)?;
    }
    match scene.cluster.await_service().await {
        Ok(time) => {
            scene.note("all serve after a restart", report::ms(time));
            scene.claim("all serve after a restart", true, "");
            let same = scene.cluster.compare().await;
            scene.claim("all hold the same after a restart", same.is_ok(), same.err().unwrap_or_default());
        }
        Err(why) => {
            scene.note("all serve after a restart", "never");
            scene.claim("all serve after a restart", false, why);
        }
    }
    let peaks = scene.cluster.peaks();
    scene.note("resident at the peak after a restart", report::all_mib(peaks));
    judge_memory(scene, "memory after a restart", resident, peaks);
    Ok(())
}

impl Latency {
    fn bound(self) -> &'static str {
        match self {
            Latency::P99Near => {
                "the p99 of puts rises by less than 10 ms (on a busy machine: at most doubles)"
            }
            Latency::MedianTwice => "the median of puts at most doubles",
            Latency::Serves => "a put succeeds at least once a second",
        }
    }

    fn is_lenient(self) -> bool {
        matches!(self, Latency::P99Near)
    }

    fn judge(self, before: &probe::Figures, during: &probe::Figures, busy: bool) -> (bool, String) {
        let near = Duration::from_millis(10);
        let compared = |before, during| format!("{} after {}", report::ms(during), report::ms(before));
        match self {
            Latency::P99Near => {
                let allowed = if busy { near.max(before.p99) } else { near };
                let holds = during.p99.saturating_sub(before.p99) < allowed;
                (holds, compared(before.p99, during.p99) + if busy { ", busy machine" } else { "" })
            }
            Latency::MedianTwice => {
                (during.median <= before.median.saturating_mul(2), compared(before.median, during.median))
            }
            Latency::Serves => (during.gap < Duration::from_secs(1), report::ms(during.gap)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{probe::Figures, *};

    fn figures(ms: u64) -> Figures {
        let time = Duration::from_millis(ms);
        Figures { ok: 1, failed: 0, median: time, p99: time, gap: time }
    }

    #[test]
    fn bounds_hold_up_to_where_they_say() {
        let judge = |latency: Latency, before, during, busy| {
            latency.judge(&figures(before), &figures(during), busy).0
        };
        assert!(judge(Latency::P99Near, 20, 29, false) && !judge(Latency::P99Near, 20, 30, false));
        assert!(judge(Latency::P99Near, 20, 39, true) && !judge(Latency::P99Near, 20, 40, true));
        assert!(judge(Latency::MedianTwice, 4, 8, false) && !judge(Latency::MedianTwice, 4, 9, false));
        assert!(judge(Latency::Serves, 1, 999, false) && !judge(Latency::Serves, 1, 1000, false));
    }

    #[test]
    fn what_is_set_is_known_or_refused() {
        let set = |text: &str| Settings::new(&[text.to_owned()]);
        assert_eq!(set("keys=7").unwrap().get("keys"), 7);
        assert_eq!(set("keys=7").unwrap().get("streams"), 500);
        assert!(set("kys=7").unwrap_err().contains("keys") && set("keys=x").is_err() && set("keys").is_err());
        assert!(chosen(&["poisson".to_owned()]).err().unwrap().contains("poison"));
        assert_eq!(chosen(&[]).unwrap().len(), ALL.len());
    }
}
