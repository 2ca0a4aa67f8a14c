//! What was found, on a page for people, as JSON, and as a file of settings.

use std::fmt::Write as _;

use serde_json::{Value, json};
use synod_model::batching::{Bound, Instance};

use super::{
    Findings, LOSS_MAX,
    advice::{self, Step},
    load::Measured,
};

/// The width of the page.
const WIDTH: usize = 80;
/// The width of its first column.
const NAMES: usize = 13;

/// Processors that other programs may keep busy without a word.
const ELSEWHERE_MAX: f64 = 0.2;

/// The page.
pub(super) fn text(found: &Findings, explain: bool) -> String {
    let mut page = Page::default();
    about(found, &mut page);
    measured(found, &mut page);
    bound(found, &mut page);
    settings(found, &mut page);
    steps(found, &mut page);
    target(found, &mut page);
    if explain {
        explained(found, &mut page);
    }
    page.text.trim_end().to_owned()
}

/// Entries, each with a name and lines that are broken where they are too long.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn entry(&mut self, name: &str, what: &str) {
        let mut line = format!("{name:<NAMES$}");
        let mut is_first = true;
        for word in what.split(' ') {
            let length = line.chars().count() + word.chars().count() + 1;
            if !is_first && length > WIDTH {
                let _ = writeln!(self.text, "{}", line.trim_end());
                line = " ".repeat(NAMES);
                is_first = true;
            }
            let gap = if is_first { "" } else { " " };
            let _ = write!(line, "{gap}{word}");
            is_first = false;
        }
        let _ = writeln!(self.text, "{}", line.trim_end());
    }

    fn gap(&mut self) {
        self.text.push('\n');
    }
}

fn about(found: &Findings, page: &mut Page) {
    let cluster = &found.cluster;
    let names: Vec<&str> = cluster.members.iter().map(|member| member.status.name.as_str()).collect();
    page.entry("Cluster", &format!("{} ({} leads); {}", names.join(", "), names[0], cluster.ordering()));
    let place = if found.cluster.is_one_machine() {
        format!("all members and this program on one machine with {} cores", found.runs.cores)
    } else {
        let trip = found.foreteller.round_trip * 1e3;
        format!("members on other machines, up to {trip:.2} ms there and back between two of them")
    };
    page.entry("Machines", &place);
    let others = &found.runs.others;
    let others = match (others.are_present(), others.mean) {
        (false, _) => "none while this program watched".to_owned(),
        (true, Some(mean)) => format!(
            "{:.0} requests a second beforehand, {:.2} ms each; {} watches",
            others.per_second,
            mean * 1e3,
            others.watches
        ),
        (true, None) => {
            format!("{:.0} puts a second beforehand; {} watches", others.per_second, others.watches)
        }
    };
    page.entry("Others", &others);
    page.gap();
}

fn measured(found: &Findings, page: &mut Page) {
    let top = found.runs.top();
    let alone = &found.runs.loads[0];
    page.entry(
        "It can do",
        &format!(
            "{:.0} puts of {} bytes a second ({} clients, median {:.2} ms, 99th percentile {:.2} ms)",
            top.puts_per_second, top.value_bytes, top.clients, top.median_ms, top.p99_ms
        ),
    );
    page.entry(
        "One client",
        &format!("{:.0} puts a second, median {:.2} ms", alone.puts_per_second, alone.median_ms),
    );
    if let Some(why) = found.runs.cut_short {
        page.entry("", &format!("Larger loads were left out: {why}. It can do more."));
    }
    for (measured, foretold) in &found.foretold {
        page.entry(
            if std::ptr::eq(measured, &found.foretold[0].0) { "Foretold" } else { "" },
            &format!(
                "{} clients: {:.0} puts a second, measured {:.0} ({:+.0} %)",
                measured.clients,
                foretold.puts_per_second,
                measured.puts_per_second,
                (foretold.puts_per_second / measured.puts_per_second - 1.0) * 100.0
            ),
        );
    }
    let trust = match error(found) {
        Some(error) if error <= super::ERROR_MAX => {
            format!("What follows is by virtual time, which was off by up to {:.0} % here.", error * 100.0)
        }
        Some(error) => format!(
            "Virtual time was off by {:.0} %: what follows names directions, not figures, and decides nothing.",
            error * 100.0
        ),
        None => "Nothing was held out to test virtual time: what follows names directions, not figures."
            .to_owned(),
    };
    page.entry("", &trust);
    page.gap();
}

/// The largest error of the loads that were foretold, as a share.
pub(super) fn error(found: &Findings) -> Option<f64> {
    let errors = found
        .foretold
        .iter()
        .map(|(measured, foretold)| (foretold.puts_per_second / measured.puts_per_second - 1.0).abs());
    errors.reduce(f64::max)
}

fn bound(found: &Findings, page: &mut Page) {
    let what = match found.advice.binds() {
        Some((what, gain)) => format!("{what} would bring {:+.0} %", gain * 100.0),
        None => "nothing that is tried brings more than 5 %".to_owned(),
    };
    page.entry("What binds", &what);
    let top = found.runs.top();
    let leader = &top.members[0];
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let processors = if found.cluster.is_one_machine() {
        let elsewhere =
            top.elsewhere.map_or_else(String::new, |busy| format!(", {busy:.1} more by other programs"));
        format!("{:.1} of {} processors busy{elsewhere}", top.processors(), found.runs.cores)
    } else {
        format!("{:.1} processors busy at {}", leader.counted.busy, leader.name)
    };
    page.entry(
        "",
        &format!(
            "Under that load: {processors}; at {} ordering worked {} of the time, the log {} ({:.2} ms a commit), execution {}, {:.1} of {} slots were under way",
            leader.name,
            percent(leader.protocol),
            percent(leader.log),
            leader.commit.unwrap_or(0.0) * 1e3,
            percent(leader.executor),
            top.in_flight,
            found.advice.settings.window_max,
        ),
    );
    if top.elsewhere.is_some_and(|busy| busy > ELSEWHERE_MAX) {
        page.entry("", "Other programs took processors meanwhile: a quiet machine gives better figures.");
    }
    page.gap();
}

fn settings(found: &Findings, page: &mut Page) {
    let (now, proposed) = (found.advice.settings, found.advice.proposed);
    let said = |settings: advice::Settings| {
        format!("--window-max {} --batch-bytes-max {}", settings.window_max, kib(settings.batch_bytes_max))
    };
    let untold = if found.cluster.tells_settings {
        ""
    } else {
        " (its version does not tell; these are the defaults)"
    };
    page.entry("Settings", &format!("{}{untold}", said(now)));
    let what = if proposed == now {
        "as they are: no window and no batch brings more than 3 %".to_owned()
    } else {
        format!("{}, which brings {:+.0} %", said(proposed), found.advice.gain() * 100.0)
    };
    let what = match found.advice.fixed_window {
        true if proposed.window_max != now.window_max => format!(
            "{what}. The group fixes the window: synod reconfigure --options window-max={}",
            proposed.window_max
        ),
        _ => what,
    };
    page.entry("Proposed", &what);
    page.gap();
}

fn kib(bytes: usize) -> String {
    if bytes.is_multiple_of(1024) { format!("{}KiB", bytes / 1024) } else { bytes.to_string() }
}

fn steps(found: &Findings, page: &mut Page) {
    let _ = writeln!(
        page.text,
        "{:<36}{:>15}{:>17}",
        "Next steps, by virtual time", "puts a second", "one client waits"
    );
    for step in found.advice.machines.iter().chain(&found.advice.changes) {
        let _ = writeln!(page.text, "{}", row(step));
    }
    page.gap();
}

fn row(step: &Step) -> String {
    let change = |ratio: f64| format!("{:+.0} %", (ratio - 1.0) * 100.0);
    let row = format!("{:<36}{:>15}{:>17}", step.what, change(step.throughput), change(step.alone));
    if step.how.is_empty() || step.throughput < 1.0 + advice::BINDS {
        row
    } else {
        format!("{row}\n    {}", step.how)
    }
}

fn target(found: &Findings, page: &mut Page) {
    let Some(target) = &found.target else { return };
    let asked = format!("{:.0} puts a second, each within {} ms", target.rate, target.seconds * 1e3);
    page.entry("Target", &asked);
    let said = match target.requests {
        None => format!(
            "The model says that it cannot be met: a batch of one put takes {:.2} ms.",
            target.duration * 1e3
        ),
        Some(requests) => format!(
            "By the model: --batch-bytes-max {} (at most {requests} puts; such a batch fills and is ordered in time) \
             --window-max {}; {:.0} puts a second at most.",
            target.batch_bytes, target.window, target.puts_per_second
        ),
    };
    page.entry("", &said);
    let said = match &target.now {
        Some(now) => format!(
            "With the present settings, by virtual time: median {:.2} ms, 99th percentile {:.2} ms.",
            now.median_ms, now.p99_ms
        ),
        None => "That rate is more than the cluster did under any load here.".to_owned(),
    };
    page.entry("", &said);
    page.gap();
}

/// The costs, and the document's formulas with these numbers, for the batch that the largest load made.
fn explained(found: &Findings, page: &mut Page) {
    let costs = found.foreteller.costs();
    let micros = |nanos: f64| format!("{:.2} µs", nanos / 1e3);
    page.entry(
        "Costs",
        &format!(
            "{} a command taken and answered, {} executed",
            micros(costs.request_nanos),
            micros(costs.execute_nanos)
        ),
    );
    page.entry(
        "",
        &format!("{} a message at each end, {:.2} ns a byte", micros(costs.message_nanos), costs.byte_nanos),
    );
    page.entry(
        "",
        &format!(
            "{} a burst of what came together; {:.0} µs a commit of one record",
            micros(costs.burst_nanos),
            costs.fsync_micros
        ),
    );
    let bytes = found.runs.loads[0].command_bytes();
    let (deployment, load, headers, model) = advice::model(&found.foreteller, bytes);
    page.entry(
        "Model",
        "Santos 2012, equations 8.1 to 8.10, with a cost a burst, and commits as part of the round trip:",
    );
    let _ = writeln!(
        page.text,
        "{:>8}{:>16}{:>16}{:>14}{:>10}{:>14}",
        "puts", "processor, ms", "instance, ms", "bound by", "window", "puts/s at most"
    );
    for power in [0, 2, 4, 6, 8] {
        let Some(one) = Instance::foretell(&deployment, &load, &headers, &model, 1 << power) else {
            continue;
        };
        let bound = match one.bound {
            Bound::Processor => "processor",
            Bound::Bandwidth => "bandwidth",
            Bound::Latency => "round trip",
        };
        let _ = writeln!(
            page.text,
            "{:>8}{:>15.3}{:>14.3}{bound:>12}{:>9}{:>18.0}",
            one.requests,
            one.processor * 1e3,
            one.duration * 1e3,
            one.window(),
            one.requests_per_second()
        );
    }
    page.gap();
}

/// The findings as JSON.
pub(super) fn json(found: &Findings) -> String {
    let load = |one: &Measured| {
        json!({
            "clients": one.clients,
            "value_bytes": one.value_bytes,
            "puts_per_second": one.puts_per_second,
            "median_ms": one.median_ms,
            "p99_ms": one.p99_ms,
            "processors": one.members.iter().map(|one| (one.name.clone(), json!(one.counted.busy))).collect::<serde_json::Map<_, _>>(),
        })
    };
    let foretold = found.foretold.iter().map(|(measured, foretold)| {
        json!({ "clients": measured.clients, "measured": measured.puts_per_second, "foretold": foretold })
    });
    let told = json!({
        "members": found.cluster.members.iter().map(|member| member.status.name.clone()).collect::<Vec<_>>(),
        "leader": found.cluster.members[0].status.name,
        "ordering": found.cluster.ordering(),
        "others_per_second": found.runs.others.per_second,
        "cut_short": found.runs.cut_short,
        "loads": found.runs.loads.iter().map(load).collect::<Vec<_>>(),
        "foretold": foretold.collect::<Vec<Value>>(),
        "busy_elsewhere": found.runs.top().elsewhere,
        "error": error(found),
        "binds": found.advice.binds().map(|(what, _)| what),
        "advice": found.advice,
        "gain": found.advice.gain(),
        "costs": found.foreteller.costs(),
        "target": found.target,
    });
    serde_json::to_string_pretty(&told).expect("figures and texts can be written")
}

/// The proposed settings, as a file for `synod serve --config-file`.
pub(super) fn settings_file(found: &Findings) -> String {
    let proposed = found.advice.proposed;
    let verdict =
        if found.advice.gain() > LOSS_MAX { "worth a restart of each member in turn" } else { "no hurry" };
    format!(
        "# Proposed by `synod tune` for {}: {:+.0} % puts a second by virtual time, {verdict}.\nwindow-max: {}\n\
         batch-bytes-max: {}\n",
        found.cluster.ordering(),
        found.advice.gain() * 100.0,
        proposed.window_max,
        proposed.batch_bytes_max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_entries_are_broken_between_words() {
        let mut page = Page::default();
        page.entry("Name", &"word ".repeat(40));
        assert!(page.text.lines().count() > 2);
        assert!(page.text.lines().all(|line| line.len() <= WIDTH), "{}", page.text);
        assert!(page.text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(NAMES))));
    }

    #[test]
    fn a_step_tells_how_it_is_made_if_it_pays() {
        let step = Step {
            what: "protocol ring".into(),
            how: "synod reconfigure --protocol ring".into(),
            throughput: 1.2,
            alone: 1.5,
        };
        let told = row(&step);
        assert!(
            told.contains("+20 %") && told.contains("+50 %") && told.ends_with("--protocol ring"),
            "{told}"
        );
        assert!(!row(&Step { throughput: 1.01, ..step }).contains("reconfigure"));
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!((kib(64 << 10), kib(100)), ("64KiB".to_owned(), "100".to_owned()));
    }
}
