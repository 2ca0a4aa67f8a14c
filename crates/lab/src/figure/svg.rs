//! A scene as SVG.

use std::fmt::Write as _;

use super::{
    scene::{Anchor, Colour, Scene, Shape},
    typeface::FAMILY,
};

/// Text inside XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn colour(Colour(red, green, blue): Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn places(points: &[(f64, f64)]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// The `<svg>` element, which is also a complete file.
pub(super) fn write(scene: &Scene, title: &str) -> String {
    let (width, height) = (scene.width, scene.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"{FAMILY}\" role=\"img\">\n\
         <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escape(title)
    );
    for shape in &scene.shapes {
        // Writing to a string does not fail.
        let _ = match shape {
            Shape::Line { points, colour: line, width, dash } => {
                let _ = write!(
                    svg,
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\"",
                    places(points),
                    colour(*line)
                );
                if !dash.is_empty() {
                    let dash: Vec<_> = dash.iter().map(f64::to_string).collect();
                    let _ = write!(svg, " stroke-dasharray=\"{}\"", dash.join(","));
                }
                writeln!(svg, "/>")
            }
            Shape::Polygon { points, fill, stroke } => {
                let fill = fill.map_or("none".to_owned(), colour);
                let _ = write!(svg, "<polygon points=\"{}\" fill=\"{fill}\"", places(points));
                if let Some((line, width)) = stroke {
                    let _ = write!(svg, " stroke=\"{}\" stroke-width=\"{width}\"", colour(*line));
                }
                writeln!(svg, "/>")
            }
            Shape::Text { x, y, size, anchor, colour: ink, text } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{}\">{}</text>",
                    colour(*ink),
                    escape(text)
                )
            }
        };
    }
    svg.push_str("</svg>\n");
    svg
}
