//! A figure's values.

use std::fmt::Write as _;

use super::Figure;

/// Text in a field.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Writes a line for every measured point, every printed point and every event.
pub(super) fn write(figure: &Figure) -> String {
    let mut csv = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(csv, "# {}: {} over {}", figure.title, figure.y_label, figure.x_label);
    for sentence in &figure.caption {
        let _ = writeln!(csv, "# {sentence}");
    }
    csv.push_str("panel,kind,series,x,y,low,high\n");
    for panel in &figure.panels {
        let title = quoted(&panel.title);
        for series in &panel.series {
            let name = quoted(&series.name);
            for (kind, points) in [("measured", &series.points), ("printed", &series.printed)] {
                for point in points {
                    let ends = point.interval.map_or(",".to_owned(), |(low, high)| format!("{low},{high}"));
                    let _ = writeln!(csv, "{title},{kind},{name},{},{},{ends}", point.x, point.y);
                }
            }
        }
        for event in &panel.events {
            let _ = writeln!(csv, "{title},event,{},{},,,", quoted(&event.label), event.x);
        }
    }
    csv
}
