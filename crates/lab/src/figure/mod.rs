//! Figures as a paper prints them. A figure is laid out once as a [`scene::Scene`] and written as SVG, PDF and CSV.
//!
//! A figure is a grid of panels that share their horizontal axis, but where the places of one would hide at an end of
//! it. Each line has its own colour, dash pattern and marker, so that lines can be told apart without colours too, and
//! its name stands at its end. A caption says what was measured, when, and of which commit.

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
    /// Its title.
    pub(crate) title: String,
    /// The label of the vertical axis, with the unit.
    pub(crate) y_label: String,
    /// The label of the horizontal axis, with the unit; dots have none.
    pub(crate) x_label: String,
    /// Whether the horizontal axis of lines is logarithmic where that is possible.
    pub(crate) x_log: bool,
    /// How panels are drawn.
    pub(crate) kind: Kind,
    /// The panels, row by row.
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
    /// The values that distinguish it from the other panels; empty if it is the only one.
    pub(crate) title: String,
    /// Its lines. A series has the same style in all panels of a figure.
    pub(crate) series: Vec<Series>,
    /// Events, drawn as vertical lines.
    pub(crate) events: Vec<Event>,
}

/// A line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series {
    /// The name at its end.
    pub(crate) name: String,
    /// Whether its points are drawn without a line between them.
    pub(crate) apart: bool,
    /// Measured values, from left to right.
    pub(crate) points: Vec<Point>,
    /// Values that the document prints, drawn as hollow squares.
    pub(crate) printed: Vec<Point>,
}

/// A value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Point {
    /// Its place on the horizontal axis.
    pub(crate) x: f64,
    /// The value.
    pub(crate) y: f64,
    /// The ends of its interval.
    pub(crate) interval: Option<(f64, f64)>,
}

/// A vertical line with a label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Its place on the horizontal axis.
    pub(crate) x: f64,
    /// Its label.
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

    /// Writes `BASE.svg`, `BASE.pdf` and `BASE.csv`, and returns their paths.
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
