//! The results of attacks, as Markdown.

use std::{fmt::Write as _, time::Duration};

use super::{
    cluster::{SERVERS, mib},
    probe::Figures,
};
use crate::study::Environment;

/// A bound, and whether it was kept.
#[derive(Clone, Debug)]
pub struct Claim {
    pub what: String,
    pub holds: bool,
    pub measured: String,
}

/// What an attack did to three servers.
#[derive(Debug, Default)]
pub struct Outcome {
    pub system: &'static str,
    /// The attacked server, which led when the attack began.
    pub leader: String,
    /// Puts at that server before, during and after the attack.
    pub spans: [Figures; 3],
    /// Puts at the others during the attack.
    pub elsewhere: Figures,
    /// Bytes resident before the attack.
    pub resident: [u64; SERVERS],
    /// The most bytes resident.
    pub peaks: [u64; SERVERS],
    pub figures: Vec<(String, String)>,
    pub claims: Vec<Claim>,
}

impl Outcome {
    /// The outcome of an attack that could not be made.
    pub fn failed(system: &'static str, why: String) -> Outcome {
        let claim = Claim { what: "the attack could be made".to_owned(), holds: false, measured: why };
        Outcome { system, claims: vec![claim], ..Outcome::default() }
    }

    /// Whether every bound was kept.
    pub fn kept(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    fn rows(&self) -> Vec<(String, String)> {
        let row = |what: &str, value: String| (what.to_owned(), value);
        let each = |of: fn(&Figures) -> Duration| self.spans.each_ref().map(|span| ms(of(span))).join(" / ");
        let [before, during, after] = &self.spans;
        let both = |figures: &Figures| format!("{}, {}", figures.ok, figures.failed);
        let mut rows = vec![
            row("attacked (leader at the beginning)", self.leader.clone()),
            row("puts there, ok and failed", [before, during, after].map(both).join(" / ")),
            row("their median", each(|span| span.median)),
            row("their p99", each(|span| span.p99)),
            row("longest gap there", each(|span| span.gap)),
            row("puts elsewhere during it, ok and failed", both(&self.elsewhere)),
            row("their median, p99", [self.elsewhere.median, self.elsewhere.p99].map(ms).join(", ")),
            row("resident before", all_mib(self.resident)),
            row("resident at the peak", all_mib(self.peaks)),
        ];
        rows.extend(self.figures.iter().cloned());
        rows
    }
}

/// The head of the report: the machine, and the parameters that were set.
pub fn head(environment: &Environment, set: &[String]) -> String {
    let load = |load: Option<f64>| load.unwrap_or(0.0);
    format!(
        "{}; {} cores of {}, {}; load average {:.1} before and {:.1} after{}. Set: {}.\n\
         Spans of puts are before / during / after the attack; memory is of n1, n2, n3.\n",
        environment.program(),
        environment.cores,
        environment.processor.as_deref().unwrap_or("an unknown processor"),
        environment.kernel,
        load(environment.load_before),
        load(environment.load_after),
        if environment.optimised { "" } else { "; this program was built without optimisations" },
        if set.is_empty() { "nothing".to_owned() } else { set.join(" ") },
    )
}

/// The table of one attack, and its verdicts.
pub fn section(name: &str, about: &str, outcomes: &[Outcome]) -> String {
    let mut text = format!("## {name}\n\nAgainst {about}.\n\n");
    let systems: Vec<_> = outcomes.iter().map(|outcome| outcome.system).collect();
    line(&mut text, "", &systems);
    line(&mut text, "---", &vec!["---"; systems.len()]);
    let columns: Vec<_> = outcomes.iter().map(Outcome::rows).collect();
    // Each system may have rows that the other lacks.
    let mut names: Vec<&str> = Vec::new();
    for (what, _) in columns.iter().flatten() {
        if !names.contains(&what.as_str()) {
            names.push(what);
        }
    }
    for name in names {
        let cell = |rows: &Vec<(String, String)>| {
            rows.iter().find(|(what, _)| what == name).map_or("-".to_owned(), |(_, value)| value.clone())
        };
        let cells: Vec<_> = columns.iter().map(cell).collect();
        line(&mut text, name, &cells);
    }
    for outcome in outcomes {
        let verdict = if outcome.kept() { "every bound kept" } else { "BROKEN" };
        let _ = writeln!(text, "\n{}: {verdict}", outcome.system);
        for claim in &outcome.claims {
            let (mark, colon) = (
                if claim.holds { "kept" } else { "BROKEN" },
                if claim.measured.is_empty() { "" } else { ": " },
            );
            let _ = writeln!(text, "- {mark}: {}{colon}{}", claim.what, claim.measured);
        }
    }
    text
}

fn line(text: &mut String, first: &str, cells: &[impl AsRef<str>]) {
    let cells: Vec<_> = cells.iter().map(AsRef::as_ref).collect();
    let _ = writeln!(text, "| {first} | {} |", cells.join(" | "));
}

/// A time in milliseconds.
pub fn ms(time: Duration) -> String {
    match time {
        Duration::MAX => "never".to_owned(),
        time => format!("{:.1} ms", time.as_secs_f64() * 1e3),
    }
}

/// Bytes of each server in MiB.
pub fn all_mib(bytes: [u64; SERVERS]) -> String {
    format!("{} MiB", bytes.map(|bytes| mib(bytes).to_string()).join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_stand_side_by_side_and_what_is_broken_is_said() {
        let claim = |holds| Claim { what: "all servers live".into(), holds, measured: "n2: dead".into() };
        let synod = Outcome { system: "synod", claims: vec![claim(false)], ..Outcome::default() };
        let mut etcd = Outcome { system: "etcd", claims: vec![claim(true)], ..Outcome::default() };
        etcd.figures.push(("answers".into(), "7".into()));
        assert!(!synod.kept() && etcd.kept());
        let text = section("x", "y", &[synod, etcd]);
        for part in ["|  | synod | etcd |", "| answers | - | 7 |", "- BROKEN: all servers live: n2: dead"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
