//! The output for people and programs: a progress bar, tables, CSV and JSON. Also the main function of the
//! command line.

use std::{fmt::Write as _, fs, path::Path, process::ExitCode};

use comfy_table::{CellAlignment, LineStyle, Table, presets::UTF8_HORIZONTAL_ONLY};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{
    After, Args, BenchError, Command, CompareCommand, CompareOptions, Comparison, Ended, Format, Latency,
    Load, Operation, Options, Output, Progress, Report, Spread, clean::Before, compare::compare, figure,
    options::Levels, run::run_observed,
};
use crate::figure::Figure;

/// Runs `synod bench`. Results go to standard output, progress and errors to standard error.
///
/// The exit code is 0 if all requests were answered (or `--allow-errors` is given), 1 if not, 2 if nothing could run.
#[must_use]
pub fn main(args: Args) -> ExitCode {
    let outcome = match args.command {
        Command::Put { options, after, output } => single(Operation::Put, &options, after, &output),
        Command::Get { consistency, options, output } => {
            single(Operation::Get(consistency), &options, NOTHING_WRITTEN, &output)
        }
        Command::Mixed { read_ratio, consistency, options, after, output } => {
            single(Operation::Mixed { read_ratio, consistency }, &options, after, &output)
        }
        Command::Compare { options, command } => match command {
            CompareCommand::Put { load, after, output } => {
                pair(Operation::Put, &options, &load, after, &output)
            }
            CompareCommand::Get { consistency, load, output } => {
                pair(Operation::Get(consistency), &options, &load, NOTHING_WRITTEN, &output)
            }
            CompareCommand::Mixed { read_ratio, consistency, load, after, output } => {
                pair(Operation::Mixed { read_ratio, consistency }, &options, &load, after, &output)
            }
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// After reads there is nothing to remove.
const NOTHING_WRITTEN: After = After { keep: true };

fn single(
    operation: Operation,
    options: &Options,
    after: After,
    output: &Output,
) -> Result<bool, BenchError> {
    options.validate(operation)?;
    let before = befores(after, &options.load, &[("--endpoints", &options.endpoints)])?;
    let mut bar = Bar::new(&options.load);
    let report = run_observed(operation, options, &mut |progress| bar.show("", progress))?;
    bar.clear();
    let figure = || Some(figure::of_report(&report));
    deliver(output, &report, || report_csv(&report), figure, |wide| report_text(&report, wide))?;
    let clean = restored(&before, &options.load);
    Ok(clean && (report.succeeded() || (output.allow_errors && report.ended != Ended::GaveUp)))
}

fn pair(
    operation: Operation,
    options: &CompareOptions,
    load: &Levels,
    after: After,
    output: &Output,
) -> Result<bool, BenchError> {
    options.validate(operation, &load.clients, &load.load)?;
    let sides = [("--a-endpoints", &options.a_endpoints[..]), ("--b-endpoints", &options.b_endpoints)];
    let before = befores(after, &load.load, &sides)?;
    let mut bar = Bar::new(&load.load);
    let comparison =
        compare(operation, options, &load.clients, &load.load, &mut |name, clients, number, progress| {
            let what = format!("{clients} clients, pair {number} of {}, {name}: ", options.pairs);
            bar.show(&what, progress);
        })?;
    bar.clear();
    let text = |_| comparison_text(&comparison);
    let figure = || figure::of_comparison(&comparison);
    deliver(output, &comparison, || comparison_csv(&comparison), figure, text)?;
    let clean = restored(&before, &load.load);
    let gave_up = comparison.reports().any(|report| report.ended == Ended::GaveUp);
    Ok(clean && (comparison.succeeded() || (output.allow_errors && !gave_up)))
}

/// Looks at the stores before anything is written. The list is empty if the keys stay.
fn befores(
    after: After,
    load: &Load,
    sides: &[(&'static str, &[String])],
) -> Result<Vec<Before>, BenchError> {
    let sides = sides.iter().filter(|_| !after.keep);
    sides.map(|(flag, endpoints)| Before::look(flag, endpoints, load)).collect()
}

/// Removes the keys that were written, and says so, after the results are out. Returns false if they could
/// not be removed.
fn restored(befores: &[Before], load: &Load) -> bool {
    let mut clean = true;
    for before in befores {
        match before.restore(load) {
            Ok(removed) => {
                eprintln!("Removed the {} keys that were written (--keep leaves them).", grouped(removed))
            }
            Err(error) => {
                eprintln!("error: keys that were written are still there: {error}");
                clean = false;
            }
        }
    }
    clean
}

fn deliver<T: Serialize>(
    output: &Output,
    result: &T,
    csv: impl FnOnce() -> String,
    figure: impl FnOnce() -> Option<Figure>,
    text: impl FnOnce(bool) -> String,
) -> Result<(), BenchError> {
    let json = serde_json::to_string_pretty(result)
        .map_err(|error| BenchError::Write { path: "JSON".into(), reason: error.to_string() })?;
    // The results are shown first: a full disk must not swallow them.
    match output.write_out {
        Format::Simple => print!("{}", text(false)),
        Format::Wide => print!("{}", text(true)),
        Format::Json => println!("{json}"),
    }
    if let Some(path) = &output.csv {
        write(path, &csv())?;
    }
    if let Some(path) = &output.json {
        write(path, &json)?;
    }
    if let Some((base, figure)) = output.figure.as_ref().and_then(|base| Some((base, figure()?))) {
        let written = figure.write(base);
        written.map_err(|(path, error)| BenchError::Write {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    fs::write(path, text)
        .map_err(|error| BenchError::Write { path: path.display().to_string(), reason: error.to_string() })
}

/// The progress bar. Nothing is drawn if standard error is not a terminal.
#[derive(Debug)]
struct Bar {
    bar: ProgressBar,
    /// Whether it counts requests instead of milliseconds.
    counts: bool,
}

impl Bar {
    fn new(load: &Load) -> Bar {
        let length = match (load.total, load.window()) {
            (Some(total), _) => total,
            (None, window) => {
                window.map_or(0, |window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX))
            }
        };
        let style =
            ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}").expect("the template is constant");
        Bar { bar: ProgressBar::new(length).with_style(style), counts: load.total.is_some() }
    }

    fn show(&mut self, what: &str, progress: &Progress) {
        let milliseconds = u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX);
        self.bar.set_position(if self.counts { progress.answered } else { milliseconds });
        self.bar.set_message(match &progress.interval {
            _ if progress.warming_up => format!("{what}warming up"),
            None => what.to_string(),
            Some(interval) => {
                let time = |us: Option<u64>| us.map_or("-".into(), |us| latency(us as f64));
                let failed = if progress.failed > 0 {
                    format!(", {} failed", grouped(progress.failed))
                } else {
                    String::new()
                };
                let rate = grouped(interval.throughput.round() as u64);
                format!(
                    "{what}{rate}/s, p50 {}, p99 {}{failed}",
                    time(interval.p50_us),
                    time(interval.p99_us)
                )
            }
        });
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The report as text: in 80 columns, or with all figures.
#[must_use]
pub fn report_text(report: &Report, wide: bool) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_report(&mut text, report, wide);
    text
}

fn write_report(out: &mut String, report: &Report, wide: bool) -> std::fmt::Result {
    write_setup(out, report)?;
    let seconds = report.seconds;
    match report.ended {
        Ended::Complete => {}
        Ended::Interrupted => writeln!(
            out,
            "\nINTERRUPTED after {seconds:.1} s; {} requests were unfinished.",
            report.unfinished
        )?,
        Ended::GaveUp => {
            writeln!(out, "\nGIVEN UP: requests only failed. {} were unfinished.", report.unfinished)?
        }
    }
    writeln!(
        out,
        "\nThroughput  {}/s over {seconds:.2} s; {} answered, {} failed",
        grouped(report.throughput.round() as u64),
        grouped(report.answered),
        grouped(report.failed),
    )?;
    if let Some(found) = report.found {
        let gets = report
            .by_operation
            .iter()
            .find(|(name, _)| name == "get")
            .map_or(report.answered, |(_, of)| of.count);
        writeln!(out, "Found       {} of {} keys read", grouped(found), grouped(gets))?;
        if found == 0 && gets > 0 {
            writeln!(
                out,
                "            None: write the keys first (put --sequential-keys --keep, same sizes)."
            )?;
        }
    }
    let cost = &report.generator;
    writeln!(
        out,
        "Generator   {:.1} µs of CPU time a request, {:.2} cores",
        cost.cpu_us_per_request, cost.cores
    )?;
    if report.answered > 0 {
        writeln!(out, "\n{}", latency_table(report, wide))?;
    }
    if report.series.len() > 1 {
        writeln!(out, "\n{}", series_table(report))?;
    }
    write_errors(out, report)
}

fn write_setup(out: &mut String, report: &Report) -> std::fmt::Result {
    let setup = &report.setup;
    let mut what = setup.operation.clone();
    if let Some(ratio) = setup.read_ratio {
        let _ = write!(what, " ({:.0}% reads)", ratio * 100.0);
    }
    let mut operation = vec![what];
    operation.extend(setup.consistency.iter().map(|consistency| format!("{consistency} reads")));
    let order = if setup.sequential_keys { "in order" } else { "at random" };
    let values = if setup.random_values { "different" } else { "identical" };
    operation.push(format!("{} keys of {} B {order}", grouped(setup.key_space_size), setup.key_size));
    operation.push(format!("{values} values of {} B", setup.val_size));
    operation.push(format!("seed {}", setup.seed));
    entry(out, "Operation", &operation)?;

    let clients = counted(setup.clients, "client");
    let mut load = vec![format!("{clients} over {}", counted(setup.conns, "connection"))];
    load.push(counted(setup.threads, "thread"));
    match setup.rate {
        None => load.push("closed loop".into()),
        Some(rate) => {
            let arrivals = if setup.poisson { " (Poisson)" } else { "" };
            load.push("open loop".into());
            load.push(format!("{rate} requests/s{arrivals}"));
            load.push("latency from the due time".into());
        }
    }
    load.push(format!("warm-up {} s", setup.warmup_seconds));
    load.push(format!("time-out {} s", setup.timeout_seconds));
    entry(out, "Load", &load)?;

    for (at, endpoint) in setup.endpoints.iter().enumerate() {
        let role = if endpoint.leads { "leader" } else { "follower" };
        let parts = [
            format!("{} {role}", endpoint.endpoint),
            format!("version {}", endpoint.version),
            counted(endpoint.connections, "connection"),
            format!("{:.1} MB stored", endpoint.database_bytes as f64 / 1e6),
        ];
        entry(out, if at == 0 { "Servers" } else { "" }, &parts)?;
    }
    let before = setup.endpoints.iter().map(|endpoint| &endpoint.leader).find(|leader| *leader != "0");
    if let (Some(before), Some(after)) = (before, &setup.leader_at_end)
        && before != after
    {
        writeln!(out, "            The leader changed during the run, from {before} to {after}.")?;
    }
    let host = &setup.client_host;
    let place =
        if host.loopback { "servers on the same machine (loopback)" } else { "servers over the network" };
    let mut client = vec![host.host.clone(), host.system.clone(), counted(host.cores, "core"), place.into()];
    client.extend(host.load_average.map(|load| format!("load average {load} before")));
    entry(out, "Client", &client)
}

/// A name and its parts, in lines of at most 80 columns.
fn entry(out: &mut String, name: &str, parts: &[String]) -> std::fmt::Result {
    const COLUMNS: usize = 80;
    let mut line = format!("{name:<12}");
    let mut begun = false;
    for (at, part) in parts.iter().enumerate() {
        let part = if at + 1 < parts.len() { format!("{part},") } else { part.clone() };
        if begun && line.chars().count() + 1 + part.chars().count() > COLUMNS {
            writeln!(out, "{line}")?;
            (line, begun) = (" ".repeat(12), false);
        }
        if begun {
            line.push(' ');
        }
        line.push_str(&part);
        begun = true;
    }
    writeln!(out, "{line}")
}

/// `1 client`, `2 clients`.
fn counted(number: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(number as u64), if number == 1 { "" } else { "s" })
}

fn latency_table(report: &Report, wide: bool) -> Table {
    const HEAD: [&str; 11] =
        ["Latency", "p50", "p75", "p90", "p95", "p99", "p99.9", "max", "mean", "stddev", "count"];
    /// The columns that fit into 80 characters.
    const NARROW: [&str; 7] = ["Latency", "p50", "p90", "p99", "p99.9", "max", "count"];
    let shown = |column: usize| wide || NARROW.contains(&HEAD[column]);
    let head: Vec<&str> =
        (0..HEAD.len()).filter(|&column| shown(column)).map(|column| HEAD[column]).collect();
    let mut table = table(&head);
    let mut row = |name: &str, of: &Latency| {
        let times = [of.p50_us, of.p75_us, of.p90_us, of.p95_us, of.p99_us, of.p999_us, of.max_us];
        let mut cells = vec![name.to_string()];
        cells.extend(times.map(|us| latency(us as f64)));
        cells.extend([latency(of.mean_us), latency(of.stddev_us), grouped(of.count)]);
        table.add_row(
            cells.into_iter().enumerate().filter(|(column, _)| shown(*column)).map(|(_, cell)| cell),
        );
    };
    row("all", &report.latency);
    for (name, of) in &report.by_operation {
        row(name, of);
    }
    if let Some(lateness) = &report.lateness {
        row("before sending", lateness);
    }
    align(table)
}

/// A table of at most twenty rows. For a longer run each row sums up several intervals.
fn series_table(report: &Report) -> Table {
    const ROWS_MAX: usize = 20;
    let mut table = table(&["Seconds", "answers/s", "p50", "p99", "max", "failed"]);
    let time = |us: Option<u64>| us.map_or("-".into(), |us| latency(us as f64));
    for rows in report.series.chunks(report.series.len().div_ceil(ROWS_MAX)) {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
        let answered: u64 = rows.iter().map(|row| row.answered).sum();
        let seconds = last.to_seconds - first.from_seconds;
        table.add_row([
            format!("{:.1}-{:.1}", first.from_seconds, last.to_seconds),
            grouped((answered as f64 / seconds).round() as u64),
            // Percentiles cannot be added up, so the worst of the intervals is shown.
            time(rows.iter().filter_map(|row| row.p50_us).max()),
            time(rows.iter().filter_map(|row| row.p99_us).max()),
            time(rows.iter().filter_map(|row| row.max_us).max()),
            grouped(rows.iter().map(|row| row.failed).sum()),
        ]);
    }
    align(table)
}

fn write_errors(out: &mut String, report: &Report) -> std::fmt::Result {
    if report.errors.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nErrors ({} in the warm-up)", grouped(report.failed_in_warmup))?;
    for error in &report.errors {
        writeln!(out, "  {:>9}  {}: {}", grouped(error.count), error.code, error.message)?;
    }
    writeln!(out, "The first of them")?;
    for error in &report.first_errors {
        writeln!(
            out,
            "  {:>8.3} s  {}  {}: {}",
            error.at_seconds, error.endpoint, error.code, error.message
        )?;
    }
    Ok(())
}

/// The comparison as text.
#[must_use]
pub fn comparison_text(comparison: &Comparison) -> String {
    let (a, b) = (&comparison.a_name, &comparison.b_name);
    let mut out = String::new();
    for (name, report) in [(a, comparison.reports().next()), (b, comparison.reports().nth(1))] {
        if let Some(report) = report {
            // Writing to a string does not fail.
            let _ = writeln!(out, "--- {name}, first run");
            let _ = write_setup(&mut out, report);
        }
    }
    let mut table = table(&["Clients", "pairs", "figure", a, b, &format!("{b} / {a}"), "min", "max"]);
    for level in &comparison.levels {
        let rate: fn(f64) -> String = |rate| format!("{}/s", grouped(rate.round() as u64));
        let figures = [
            ("throughput", level.throughput, rate),
            ("p50", level.p50_us, latency),
            ("p99", level.p99_us, latency),
        ];
        for (name, compared, show) in figures {
            let side = |median: Option<f64>| median.map_or("-".into(), show);
            let ratio = |of: fn(&Spread) -> f64| {
                compared.b_over_a.as_ref().map_or("-".into(), |spread| format!("{:.2}", of(spread)))
            };
            table.add_row([
                level.clients.to_string(),
                level.pairs.len().to_string(),
                name.to_string(),
                side(compared.a_median),
                side(compared.b_median),
                ratio(|spread| spread.median),
                ratio(|spread| spread.min),
                ratio(|spread| spread.max),
            ]);
        }
    }
    let _ = writeln!(out, "\nMedians of the runs; ratios pair by pair\n{}", align(table));
    for (name, report) in
        comparison.levels.iter().flat_map(|level| &level.pairs).flat_map(|p| [(a, &p.a), (b, &p.b)])
    {
        if !report.succeeded() {
            let _ = writeln!(
                out,
                "\n{name}, {} clients: {} requests failed",
                report.setup.clients, report.failed
            );
            let _ = write_errors(&mut out, report);
        }
    }
    out
}

/// The time series as CSV.
#[must_use]
pub fn report_csv(report: &Report) -> String {
    let mut csv = String::from("from_seconds,to_seconds,answered,failed,throughput,p50_us,p99_us,max_us\n");
    let some = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    for row in &report.series {
        let (p50, p99, max) = (some(row.p50_us), some(row.p99_us), some(row.max_us));
        let _ = writeln!(
            csv,
            "{:.3},{:.3},{},{},{:.1},{p50},{p99},{max}",
            row.from_seconds, row.to_seconds, row.answered, row.failed, row.throughput
        );
    }
    csv
}

/// The runs of a comparison as CSV, one line a run.
#[must_use]
pub fn comparison_csv(comparison: &Comparison) -> String {
    let mut csv = String::from(
        "clients,pair,side,throughput,p50_us,p90_us,p99_us,p999_us,max_us,mean_us,answered,failed,generator_cpu_us\n",
    );
    for level in &comparison.levels {
        for (number, pair) in level.pairs.iter().enumerate() {
            for (name, report) in [(&comparison.a_name, &pair.a), (&comparison.b_name, &pair.b)] {
                let of = &report.latency;
                // A quoted name, with its own quotes doubled, may contain any character.
                let _ = writeln!(
                    csv,
                    "{},{},\"{}\",{:.1},{},{},{},{},{},{:.1},{},{},{:.1}",
                    level.clients,
                    number + 1,
                    name.replace('"', "\"\""),
                    report.throughput,
                    of.p50_us,
                    of.p90_us,
                    of.p99_us,
                    of.p999_us,
                    of.max_us,
                    of.mean_us,
                    report.answered,
                    report.failed,
                    report.generator.cpu_us_per_request
                );
            }
        }
    }
    csv
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none())).set_header(header);
    table
}

/// Aligns numbers at the right.
fn align(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A time in microseconds, with three significant digits.
fn latency(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = match value {
        value if value >= 99.95 || unit == "µs" => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// A number with its thousands separated.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_thing_is_broken_between_its_parts() {
        let parts: Vec<String> = (0..12).map(|number| format!("part number {number}")).collect();
        let mut text = String::new();
        entry(&mut text, "Parts", &parts).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= 80), "{text}");
        assert!(lines[0].starts_with("Parts       part number 0, part number 1,"), "{text}");
        assert!(lines[1].starts_with("            part number "), "{text}");
        assert!(text.ends_with("part number 11\n"));
        assert_eq!(
            (counted(1, "client"), counted(1000, "client")),
            ("1 client".into(), "1,000 clients".into())
        );
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let times = [7.0, 812.4, 999.7, 1_104.0, 65_040.0, 250_000.0, 2_310_000.0];
        assert_eq!(
            times.map(latency),
            ["7 µs", "812 µs", "1.00 ms", "1.10 ms", "65.0 ms", "250 ms", "2.31 s"]
        );
    }
}
