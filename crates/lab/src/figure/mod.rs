//! Figures as a paper prints them: one model, laid out once as a [`scene::Scene`], written as SVG, PDF and CSV.
//!
//! A figure is a grid of panels that share their horizontal axis. Each line has a colour, a dash pattern and a marker of
//! its own, so that it is told apart without colours too, and its name stands at its end. A caption says what was
//! measured, when, and of which commit.

mod csv;
mod labels;
mod layout;
pub(crate) mod numbers;
mod pdf;
mod scene;
mod style;
mod svg;
mod typeface;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// What it shows.
    pub(crate) title: String,
    /// What the values are, with their unit.
    pub(crate) y_label: String,
    /// What the values are over, with its unit; dots have none.
    pub(crate) x_label: String,
    /// Whether the horizontal axis of lines is logarithmic where that is possible.
    pub(crate) x_log: bool,
    /// How panels are drawn.
    pub(crate) kind: Kind,
    /// Row by row.
    pub(crate) panels: Vec<Panel>,
    /// Panels in a row.
    pub(crate) columns: usize,
    /// Whether each row has a range of values of its own.
    pub(crate) free_rows: bool,
    /// Sentences below it.
    pub(crate) caption: Vec<String>,
}

/// How panels are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Lines over an axis.
    Lines,
    /// A dot plot: a row for each series, its one value on a horizontal axis and in figures.
    Dots,
}

/// One of the small multiples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Panel {
    /// What distinguishes it; empty if it is the only one.
    pub(crate) title: String,
    /// What it shows. A series has the same style in all panels of a figure.
    pub(crate) series: Vec<Series>,
    /// What happened when.
    pub(crate) events: Vec<Event>,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// What stands at its end.
    pub(crate) name: String,
    /// Whether its points are not joined.
    pub(crate) apart: bool,
    /// What was measured, from left to right.
    pub(crate) points: Vec<Point>,
    /// What the document prints: hollow squares.
    pub(crate) printed: Vec<Point>,
}

/// A value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Point {
    /// Its place.
    pub(crate) x: f64,
    /// The value.
    pub(crate) y: f64,
    /// The ends of its interval.
    pub(crate) interval: Option<(f64, f64)>,
}

/// A vertical line with a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Its place.
    pub(crate) x: f64,
    /// What happened.
    pub(crate) label: String,
}

impl Figure {
    /// The figure as an `<svg>` element.
    pub(crate) fn svg(&self) -> String {
        svg::write(&layout::lay_out(self), &self.title)
    }

    /// The figure as a document of one page.
    pub(crate) fn pdf(&self) -> Vec<u8> {
        pdf::write(&layout::lay_out(self), &self.title)
    }

    /// All its values, below its caption in lines that begin with `#`.
    pub(crate) fn csv(&self) -> String {
        csv::write(self)
    }

    /// Writes `BASE.svg`, `BASE.pdf` and `BASE.csv`; their paths.
    pub(crate) fn write(&self, base: &Path) -> Result<[PathBuf; 3], (PathBuf, io::Error)> {
        let path = |extension: &str| {
            let mut path = base.as_os_str().to_owned();
            path.push(extension);
            PathBuf::from(path)
        };
        let paths = [path(".svg"), path(".pdf"), path(".csv")];
        for (path, content) in
            paths.iter().zip([self.svg().into_bytes(), self.pdf(), self.csv().into_bytes()])
        {
            fs::write(path, content).map_err(|error| (path.clone(), error))?;
        }
        Ok(paths)
    }

    /// The names of all lines, in the order in which styles are given to them.
    fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_files_hold_every_value() {
        let point = |x: f64, y: f64| Point { x, y, interval: Some((y - 0.5, y + 0.5)) };
        let a = Series {
            name: "a, \"b\"".to_owned(),
            points: vec![point(1.0, 2.0), point(10.0, 3.5)],
            printed: vec![Point { x: 10.0, y: 4.0, interval: None }],
            apart: false,
        };
        let event = Event { x: 5.0, label: "kill <n1>".to_owned() };
        let figure = Figure {
            title: "A & B".to_owned(),
            y_label: "ms".to_owned(),
            x_label: "clients".to_owned(),
            x_log: true,
            kind: Kind::Lines,
            panels: vec![Panel { title: "raft".to_owned(), series: vec![a], events: vec![event] }],
            columns: 1,
            free_rows: false,
            caption: vec!["2026-11-22, commit abc.".to_owned()],
        };
        let folder = tempfile::tempdir().unwrap();
        let [svg, pdf, csv] = figure.write(&folder.path().join("f-throughput.1")).unwrap();
        assert_eq!(csv.file_name().unwrap(), "f-throughput.1.csv");
        assert_eq!(
            fs::read_to_string(csv).unwrap(),
            "# A & B: ms over clients\n# 2026-11-22, commit abc.\npanel,kind,series,x,y,low,high\n\
             \"raft\",measured,\"a, \"\"b\"\"\",1,2,1.5,2.5\n\"raft\",measured,\"a, \"\"b\"\"\",10,3.5,3,4\n\
             \"raft\",printed,\"a, \"\"b\"\"\",10,4,,\n\"raft\",event,\"kill <n1>\",5,,,\n"
        );
        let svg = fs::read_to_string(svg).unwrap();
        assert!(
            svg.starts_with("<svg xmlns=") && svg.contains("A &amp; B") && svg.contains("kill &lt;n1&gt;"),
            "{svg}"
        );
        assert!(fs::read(pdf).unwrap().starts_with(b"%PDF-"));
        assert!(figure.write(Path::new("/nowhere/f")).is_err());
    }
}
