//! The report of a small study that was never made.

use std::{borrow::Cow::Borrowed, collections::BTreeMap};

use super::*;
use crate::study::{Claim, Event, Fact, Form, Judgement, PointSummary, Shape, Timeline};

const CHART: Chart = Chart {
    title: Borrowed("Throughput"),
    metric: Borrowed("throughput"),
    x_label: Borrowed("c"),
    y_label: Borrowed("1/s"),
    form: Form::LogLines,
};

const fn experiment(name: &'static str, charts: &'static [Chart], shapes: &'static [Shape]) -> Experiment {
    Experiment {
        name,
        title: "A <test>",
        source: "Nobody 2020, figure 1 (R5)",
        about: "About & about.",
        parameters: &[],
        headline: "throughput",
        points: |_| Ok(Vec::new()),
        charts,
        facts: &[Fact {
            series: Borrowed("a"),
            x: 10.0,
            metric: Borrowed("throughput"),
            value: 177_310.0,
            place: Borrowed("Table 9"),
        }],
        shapes,
    }
}

const fn shape(id: &'static str, claim: &'static str) -> Shape {
    Shape { id, claim, judge: |_| Judgement::open("nobody judges it") }
}

static FAST: Experiment = experiment(
    "nobody-fast",
    &[
        Chart { form: Form::Timeline, ..CHART },
        CHART,
        Chart { form: Form::Lines, ..CHART },
        Chart { form: Form::Dots, ..CHART },
    ],
    &[shape("R5a", "a is above b"), shape("R5b", "a | b are level")],
);
static SMALL: Experiment =
    experiment("nobody-small", &[Chart { form: Form::Timeline, ..CHART }], &[shape("R6", "c is small")]);
static EXPERIMENTS: [&Experiment; 2] = [&FAST, &SMALL];

const TEXTS: &str = r#"
title = "Nobody 2020"
about = "Two made-up experiments."

[[section]]
experiments = ["nobody-fast"]
heading = "How fast"
brief = "a is above b"
text = "A loop of c."
network = "none"
durability = "`memory`"
clients = "one"

[[section.found]]
of = "c0ffee"
text = "R5b: they are not level."

[[section.found]]
of = "dead"
text = "It was slow."

[[section]]
experiments = ["nobody-small"]
heading = "How small"
brief = "c is small"
text = "A loop of d."
network = "cards"
durability = "`sync`"
clients = "two"
"#;

fn run(experiment: &Experiment, on: &str, mean: f64) -> Run {
    let point = |series: &str, x, mean: f64| PointSummary {
        series: series.to_owned(),
        x,
        metric: "throughput".to_owned(),
        runs: 3,
        mean,
        half_width: Some(mean / 10.0),
        median: mean,
        min: mean * 0.9,
        max: mean * 1.1,
    };
    let judged = |(number, shape): (usize, &Shape)| Claim {
        id: shape.id.to_owned(),
        claim: shape.claim.to_owned(),
        judgement: Judgement::of(number == 0, "1000 > 0")
            .with(&["c", "a | b"], vec![vec!["10".to_owned(), "1,000 | 0".to_owned()]]),
    };
    let usual = if experiment.name == FAST.name { "threads" } else { "virtual" };
    let summary = Summary {
        name: if on == usual { experiment.name.to_owned() } else { format!("{}-{on}", experiment.name) },
        title: experiment.title.to_owned(),
        source: experiment.source.to_owned(),
        about: experiment.about.to_owned(),
        parameters: [("on", on), ("seconds", "2")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        charts: experiment.charts.to_vec(),
        facts: experiment.facts.to_vec(),
        points: vec![point("a", 10.0, mean), point("a", 100.0, 4.0 * mean), point("b", 10.0, 0.0)],
        timelines: vec![Timeline {
            series: "a".to_owned(),
            x: 10.0,
            answers: vec![1.0, 0.0, 3.0],
            events: vec![Event { at: 0.1, what: "to raft, then \"back\"".to_owned() }],
        }],
        verdicts: experiment.shapes.iter().enumerate().map(judged).collect(),
        took_seconds: 1.0,
        cut_short: None,
        shorter: Vec::new(),
    };
    let now = Environment::now(Some("c0ffee".to_owned()), on.to_owned());
    let environment = Environment {
        version: "1.2.3".to_owned(),
        optimised: true,
        cores: 2,
        processor: Some("a processor".to_owned()),
        kernel: "Linux 6".to_owned(),
        load_before: Some(1.0),
        began: 1_795_305_600,
        ..now
    };
    Run::new(summary, environment)
}

/// Writes runs as `synod lab run` does.
fn lay_down(folder: &Path, runs: &[Run]) {
    for run in runs {
        let own = folder.join(&run.summary.name);
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("summary.json"), serde_json::to_string(&run.summary).unwrap()).unwrap();
        fs::write(own.join("environment.json"), serde_json::to_string(&run.environment).unwrap()).unwrap();
    }
}

fn pages(from: Option<&Path>, out: &Path) -> Result<Vec<PathBuf>, LabError> {
    write_pages_of(&[("nobody", Page::parse(TEXTS))], &EXPERIMENTS, from, out)
}

/// All files below a folder with what is in them.
fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.insert(path.clone(), fs::read_to_string(&path).unwrap());
        }
    }
    files
}

#[test]
fn the_html_page_says_what_was_measured_and_what_the_document_prints() {
    let html = html::page(&[Illustrated::new(run(&FAST, "threads", 1000.0))]);
    for part in
        ["R5a", "holds", "1000 &gt; 0", "177,310", "A &lt;test&gt;", "About &amp; about", "<svg", "4,000"]
    {
        assert!(html.contains(part), "{part} is missing");
    }
    let crowded = |load| {
        let mut run = run(&FAST, "threads", 1000.0);
        run.environment.load_before = Some(load);
        html::page(&[Illustrated::new(run)]).contains("a load average of")
    };
    assert!(crowded(25.0) && !crowded(2.0));
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    assert!(!html.contains("NaN") && !html.contains("inf"), "a picture has an impossible place");
    assert!(!html.contains("src=") && !html.contains("href=\"http"), "the page needs something else");
}

#[test]
fn the_page_of_a_document_has_claims_verdicts_a_figure_and_how_it_was_measured() {
    let (lab, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    lay_down(lab.path(), &[run(&FAST, "threads", 1000.0)]);
    let paths = pages(Some(lab.path()), out.path()).unwrap();
    assert_eq!(paths, [out.path().join("nobody.md")]);
    assert_eq!(fs::read_to_string(&paths[0]).unwrap(), include_str!("golden.txt"));
    let read = |file: &str| fs::read_to_string(out.path().join(file)).unwrap();
    assert_eq!(
        read("data/nobody-fast.csv"),
        "# nobody-fast: on=threads, seconds=2. 3 runs a point, 2026-11-22, Synod 1.2.3, commit c0ffee. Rounded; \
         half_width: of the 95 % interval.\nmetric,unit,x_is,series,x,mean,half_width,median,document\n\
         throughput,1/s,c,a,10,1000,100,1000,177310\nthroughput,1/s,c,a,100,4000,400,4000,\n\
         throughput,1/s,c,b,10,0,,0,\n"
    );
    assert_eq!(
        read("data/nobody-fast-claims.csv"),
        "claim,c,a | b\nR5a,10,\"1,000 | 0\"\nclaim,c,a | b\nR5b,10,\"1,000 | 0\"\n"
    );
    assert!(read("figures/nobody-fast.svg").contains("Throughput"));
}

#[test]
fn a_second_time_changes_nothing() {
    let (lab, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    lay_down(lab.path(), &[run(&FAST, "threads", 1234.567), run(&SMALL, "virtual", 0.123_456)]);
    pages(Some(lab.path()), out.path()).unwrap();
    let first = files(out.path());
    pages(None, out.path()).unwrap();
    assert_eq!(files(out.path()), first, "without the runs");
    pages(Some(lab.path()), out.path()).unwrap();
    assert_eq!(files(out.path()), first, "with the runs");
}

#[test]
fn a_run_replaces_nothing_but_its_own() {
    let (lab, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    lay_down(lab.path(), &[run(&FAST, "threads", 1000.0), run(&FAST, "virtual", 10.0)]);
    pages(Some(lab.path()), out.path()).unwrap();
    let before = files(out.path());
    let other = tempfile::tempdir().unwrap();
    lay_down(other.path(), &[run(&SMALL, "virtual", 5.0), run(&FAST, "virtual", 20.0)]);
    let paths = pages(Some(other.path()), out.path()).unwrap();
    let after = files(out.path());
    let changed = |path: &PathBuf| after[path] != before[path];
    let changed: Vec<_> = before.keys().filter(|path| changed(path)).collect();
    let expected = ["data/nobody-fast-virtual.csv", "figures/nobody-fast-virtual.svg", "nobody.md"];
    assert_eq!(changed, expected.map(|file| out.path().join(file)).iter().collect::<Vec<_>>());
    let page = &after[&paths[0]];
    for part in
        ["| claim | threads | virtual time |", "](figures/nobody-fast.svg)", "[figure](figures/nobody-fast-"]
    {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    assert!(!page.contains("not run here"), "{page}");
    // What has figures over time only is shown by one.
    assert!(page.contains("![Throughput, 1/s, over c](figures/nobody-small.svg)"), "{page}");
}

#[test]
fn a_folder_without_runs_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(write(folder.path()).unwrap_err().to_string().contains("no run is here"));
    assert!(pages(None, folder.path()).unwrap_err().to_string().contains("no run is kept here"));
    assert!(pages(Some(folder.path()), folder.path()).unwrap_err().to_string().contains("no run is here"));
    let stranger = folder.path().join("data/moon.json");
    lay_down(folder.path(), &[run(&FAST, "threads", 1.0)]);
    pages(Some(folder.path()), folder.path()).unwrap();
    let record = fs::read_to_string(folder.path().join("data/nobody-fast.json")).unwrap();
    fs::write(stranger, record.replace("nobody-fast", "moon")).unwrap();
    assert!(
        pages(None, folder.path()).unwrap_err().to_string().contains("there is no experiment of a run moon")
    );
}

/// The pages of `docs/results` are what the command makes of the data beside them. `SYNOD_BLESS=1` writes them again.
#[test]
fn the_pages_of_results_are_written_by_the_command() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    // A crate that was packaged has no docs.
    if !results.exists() {
        return;
    }
    if std::env::var_os("SYNOD_BLESS").is_some() {
        write_pages(None, &results).unwrap();
    }
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("data")).unwrap();
    for (path, content) in files(&results.join("data")) {
        fs::write(copy.path().join("data").join(path.file_name().unwrap()), content).unwrap();
    }
    write_pages(None, copy.path()).unwrap();
    for (path, content) in files(copy.path()) {
        let name = path.strip_prefix(copy.path()).unwrap();
        let stands = fs::read_to_string(results.join(name)).unwrap_or_default();
        assert!(
            stands == content,
            "docs/results/{} is not what `synod lab report --out` writes: what people say of an experiment stands in \
             crates/lab/pages, and SYNOD_BLESS=1 with this test writes the pages",
            name.display()
        );
    }
}
