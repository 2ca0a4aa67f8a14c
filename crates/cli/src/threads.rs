//! `synod status --threads`: what the threads of each replica do with their time, how long its queues are, and what
//! that says of its bottleneck (Santos 2012, section 9.6).

use std::time::Duration;

use serde_json::{Value, json};
use synod_client::{Between, Client, Metrics};

use crate::{
    failure::Failure,
    output::{self, Format},
};

/// How long threads are watched.
const WATCHED: Duration = Duration::from_secs(1);
/// Threads that had a processor for less of the time are told together, unless they were held up for as much.
const WORTH_A_ROW: f64 = 0.005;
/// A thread, a disk or a window that is used for this share of the time has nothing left.
const FULL: f64 = 0.85;
/// Threads that were ready for a processor for this long, together, were short of processors.
const SHORT: f64 = 0.5;
/// A thread that was blocked for this share waits for others too often.
const CONTENDED: f64 = 0.1;

/// Watches the replicas at all endpoints of a client, and tells.
pub async fn run(client: &Client, format: Format) -> Result<(), Failure> {
    let before = client.metrics().await;
    tokio::time::sleep(WATCHED).await;
    let after = client.metrics().await;
    let mut told = Vec::new();
    let mut silent = Vec::new();
    for ((endpoint, before), after) in client.endpoints().zip(before).zip(after) {
        match (before, after) {
            (Ok(before), Ok(after)) => told.push(Watched::of(endpoint, &before, &after)),
            (Err(why), _) | (_, Err(why)) => silent.push(why.to_string()),
        }
    }
    match format {
        Format::Json => output::print_json(&told.iter().map(Watched::json).collect())?,
        Format::Simple | Format::Table | Format::Wide => {
            let texts: Vec<String> = told.iter().map(Watched::text).collect();
            output::print(texts.join("\n").as_bytes())?;
        }
    }
    silent.iter().for_each(|why| eprintln!("{why}"));
    match silent.len() {
        0 => Ok(()),
        number => Err(Failure::failed(format!("{number} of {} replicas told nothing", told.len() + number))),
    }
}

/// Shares of the watched time.
#[derive(Clone, Debug, Default, PartialEq)]
struct Thread {
    name: String,
    number: f64,
    busy: f64,
    ready: f64,
    blocked: f64,
    waiting: f64,
}

impl Thread {
    /// What is left: a disk, a socket, a sleep.
    fn other(&self) -> f64 {
        (self.number - self.busy - self.ready - self.blocked - self.waiting).max(0.0)
    }
}

/// A replica that was watched.
#[derive(Clone, Debug, Default, PartialEq)]
struct Watched {
    endpoint: String,
    leads: bool,
    threads: Vec<Thread>,
    /// What waits for the protocol, the log and the executor at the end.
    queues: [f64; 3],
    /// The share of time in which the log worked or waited for the disk, and the mean of its commits in seconds.
    log: f64,
    commit: Option<f64>,
    /// Slots under way at the end, and how many there may be, if the replica tells.
    in_flight: f64,
    window: Option<f64>,
    /// Commands a second.
    commands: f64,
}

impl Watched {
    fn of(endpoint: &str, before: &Metrics, after: &Metrics) -> Watched {
        let between = Between { before, after };
        let share = |name: &str, state: &str| {
            // Labels are told in the order in which the server writes them, so one of them is looked for at a time.
            let family = "synod_thread_seconds_total";
            let of = |page: &Metrics| {
                page.value(family, &format!("thread=\"{name}\",state=\"{state}\"")).unwrap_or(0.0)
            };
            (of(after) - of(before)) / between.seconds()
        };
        let threads = after.labelled("synod_threads", "thread").into_iter().map(|(name, number)| {
            let [busy, ready, blocked, waiting] =
                ["busy", "ready", "blocked", "waiting"].map(|state| share(&name, state).clamp(0.0, number));
            // A thread that was woken is ready, and has waited until it has its processor: that counts once.
            let waiting = waiting.min(number - busy - ready - blocked).max(0.0);
            Thread { name, number, busy, ready, blocked, waiting }
        });
        let gauge = |family: &str| after.value(family, "").unwrap_or(0.0);
        Watched {
            endpoint: endpoint.to_owned(),
            leads: gauge("synod_role") == 2.0,
            threads: threads.collect(),
            queues: [gauge("synod_queue_inputs"), gauge("synod_queue_log"), gauge("synod_queue_executor")],
            log: between.rate("synod_log_busy_seconds_total", ""),
            commit: between.mean("synod_log_commit_seconds", ""),
            in_flight: gauge("synod_slots_in_flight"),
            window: after.value("synod_window_max", ""),
            commands: between.rate("synod_commands_total", ""),
        }
    }

    fn text(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let row = |thread: &Thread| {
            let name = if thread.number > 1.0 {
                format!("{} ({:.0})", thread.name, thread.number)
            } else {
                thread.name.clone()
            };
            let shares = [thread.busy, thread.ready, thread.blocked, thread.waiting, thread.other()];
            let [busy, ready, blocked, waiting, other] = shares.map(percent);
            [name, busy, ready, blocked, waiting, other]
        };
        let (shown, rest): (Vec<&Thread>, Vec<&Thread>) = self
            .threads
            .iter()
            .partition(|thread| thread.busy + thread.ready + thread.blocked >= WORTH_A_ROW);
        let mut rows: Vec<_> = shown.into_iter().map(row).collect();
        let others =
            rest.iter().fold(Thread { name: "others".to_owned(), ..Thread::default() }, |sum, thread| {
                Thread {
                    number: sum.number + thread.number,
                    busy: sum.busy + thread.busy,
                    ready: sum.ready + thread.ready,
                    blocked: sum.blocked + thread.blocked,
                    waiting: sum.waiting + thread.waiting,
                    ..sum
                }
            });
        if others.number > 0.0 {
            rows.push(row(&others));
        }
        let role = if self.leads { ", leader" } else { "" };
        let mut text = format!("{}{role}\n", self.endpoint);
        text += &output::table(["THREAD", "BUSY", "READY", "BLOCKED", "WAITING", "OTHER"], rows);
        let [inputs, log, executor] = self.queues;
        text += &output::entry("Queues", &format!("protocol {inputs}, log {log}, executor {executor}"));
        if self.leads {
            let window = self.window.map_or_else(String::new, |window| format!(" of {window}"));
            text += &output::entry("Window", &format!("{}{window} slots under way", self.in_flight));
        }
        let commit =
            self.commit.map_or_else(String::new, |commit| format!(", {:.2} ms a commit", commit * 1e3));
        text += &output::entry("Log", &format!("busy for {} of the time{commit}", percent(self.log)));
        text + &output::entry("Diagnosis", &self.diagnosis())
    }

    /// What binds the replica, in a sentence: the first of these that holds.
    fn diagnosis(&self) -> String {
        let Some(busiest) = self.threads.iter().max_by(|one, other| of_one(one).total_cmp(&of_one(other)))
        else {
            return "the replica does not tell of its threads (before 0.3.0, or not on Linux)".to_owned();
        };
        let ready: f64 = self.threads.iter().map(|thread| thread.ready).sum();
        let contended =
            self.threads.iter().find(|thread| thread.blocked / thread.number.max(1.0) > CONTENDED);
        if of_one(busiest) > FULL {
            return format!(
                "{} had a processor for {:.0} % of the time and has none left: a faster one helps, or more groups",
                busiest.name,
                of_one(busiest) * 100.0
            );
        }
        if self.log > FULL {
            return "the log waited for its disk nearly all of the time: a faster disk helps".to_owned();
        }
        if ready > SHORT {
            return format!(
                "too few processors: threads that could have worked waited for one for {ready:.1} s each second"
            );
        }
        if let Some(thread) = contended {
            return format!(
                "{} was blocked by locks for {:.0} % of the time",
                thread.name,
                thread.blocked / thread.number.max(1.0) * 100.0
            );
        }
        if self.leads && self.window.is_some_and(|window| self.in_flight >= window * FULL) {
            return "the window is full: it waits for the followers and their disks, and a larger --window-max helps"
                .to_owned();
        }
        if self.commands < 1.0 && !self.leads {
            return "it has little to do".to_owned();
        }
        "nothing is used up: it waits for clients, and for round trips to others".to_owned()
    }

    fn json(&self) -> Value {
        let threads = self.threads.iter().map(|thread| {
            json!({
                "thread": thread.name,
                "threads": thread.number,
                "busy": thread.busy,
                "ready": thread.ready,
                "blocked": thread.blocked,
                "waiting": thread.waiting,
                "other": thread.other(),
            })
        });
        let [inputs, log, executor] = self.queues;
        json!({
            "endpoint": self.endpoint,
            "leader": self.leads,
            "threads": threads.collect::<Vec<_>>(),
            "queues": { "protocol": inputs, "log": log, "executor": executor },
            "log_busy": self.log,
            "commit_seconds": self.commit,
            "slots_in_flight": self.in_flight,
            "window_max": self.window,
            "commands_per_second": self.commands,
            "diagnosis": self.diagnosis(),
        })
    }
}

/// The share of time for which one thread of this name had a processor, on average.
fn of_one(thread: &Thread) -> f64 {
    thread.busy / thread.number.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(name: &str, busy: f64, ready: f64, blocked: f64) -> Thread {
        let waiting = (1.0 - busy - ready - blocked).max(0.0);
        Thread { name: name.to_owned(), number: 1.0, busy, ready, blocked, waiting }
    }

    fn leader(threads: Vec<Thread>) -> Watched {
        Watched { leads: true, threads, window: Some(32.0), commands: 100.0, ..Watched::default() }
    }

    #[track_caller]
    fn says(watched: &Watched, part: &str) {
        let said = watched.diagnosis();
        assert!(said.contains(part), "{said}");
    }

    #[test]
    fn the_bottleneck_is_named() {
        let calm = leader(vec![thread("protocol-1", 0.3, 0.01, 0.0), thread("log-1", 0.1, 0.0, 0.0)]);
        says(&calm, "waits for clients");
        says(&leader(vec![thread("protocol-1", 0.95, 0.02, 0.0)]), "protocol-1 had a processor for 95 %");
        says(&Watched { log: 0.97, ..calm.clone() }, "disk");
        says(&Watched { in_flight: 32.0, ..calm.clone() }, "--window-max");
        says(&leader(vec![thread("protocol-1", 0.4, 0.6, 0.0)]), "too few processors");
        says(&leader(vec![thread("client-io-0", 0.3, 0.0, 0.4)]), "blocked by locks for 40 %");
        says(&Watched { leads: false, commands: 0.0, ..calm }, "little to do");
        says(&Watched::default(), "does not tell");
    }

    #[test]
    fn shares_are_what_was_counted_between_two_pages() {
        let page = |busy: f64, waiting: f64| {
            Metrics::parse(&format!(
                "synod_threads{{thread=\"log-1\"}} 1\nsynod_role 2\nsynod_window_max 8\n\
                 synod_thread_seconds_total{{thread=\"log-1\",state=\"busy\"}} {busy}\n\
                 synod_thread_seconds_total{{thread=\"log-1\",state=\"waiting\"}} {waiting}\n"
            ))
        };
        let (before, after) = (page(1.0, 5.0), page(1.0, 5.0));
        let watched = Watched::of("x", &before, &after);
        assert_eq!((watched.leads, watched.window), (true, Some(8.0)));
        assert_eq!(watched.threads, [Thread { name: "log-1".to_owned(), number: 1.0, ..Thread::default() }]);
        assert_eq!(watched.threads[0].other(), 1.0);
        // No thread can have done more than there was time for.
        std::thread::sleep(Duration::from_millis(50));
        let watched = Watched::of("x", &before, &page(1.01, 5.01));
        let Thread { busy, waiting, .. } = watched.threads[0].clone();
        assert!(busy > 0.0 && busy <= 0.2 && (busy / waiting - 1.0).abs() < 1e-6, "{watched:?}");
        let watched = Watched::of("x", &before, &page(9.0, 5.0));
        assert_eq!((watched.threads[0].busy, watched.threads[0].waiting), (1.0, 0.0));
    }

    #[test]
    fn quiet_threads_share_a_row() {
        let watched = leader(vec![
            thread("log-1", 0.3, 0.0, 0.0),
            thread("watch", 0.0, 0.0, 0.0),
            thread("peers", 0.0, 0.0, 0.0),
        ]);
        let text = watched.text();
        assert!(
            text.contains("| log-1 ") && text.contains("| others (2) ") && !text.contains("watch"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
