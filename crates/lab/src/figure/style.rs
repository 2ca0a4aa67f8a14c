//! Styles by which lines are told apart: colour, dash pattern and marker at once.

use super::scene::{Colour, Shape};

/// Text and axes.
pub(super) const INK: Colour = Colour(0x22, 0x22, 0x22);
/// Secondary text.
pub(super) const GREY: Colour = Colour(0x66, 0x66, 0x66);
/// The line from a curve to its label.
pub(super) const FAINT: Colour = Colour(0xbb, 0xbb, 0xbb);
/// The lines of the grid.
pub(super) const PALE: Colour = Colour(0xe2, 0xe2, 0xe2);
/// The page.
pub(super) const PAPER: Colour = Colour(0xff, 0xff, 0xff);

/// Colours that people with any kind of sight tell apart (Okabe and Ito 2008), without their yellow, which is too pale
/// for a line on white.
const COLOURS: [Colour; 7] = [
    Colour(0x00, 0x72, 0xb2),
    Colour(0xd5, 0x5e, 0x00),
    Colour(0x00, 0x9e, 0x73),
    Colour(0xcc, 0x79, 0xa7),
    Colour(0x00, 0x00, 0x00),
    Colour(0xe6, 0x9f, 0x00),
    Colour(0x56, 0xb4, 0xe9),
];

const DASHES: [&[f64]; 5] = [&[], &[7.0, 3.0], &[2.0, 2.5], &[8.0, 2.5, 2.0, 2.5], &[12.0, 3.0]];

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Style {
    pub(super) colour: Colour,
    pub(super) dash: &'static [f64],
    mark: usize,
}

impl Style {
    /// The style of the line with this number. The first 35 differ in colour or dash pattern. Neighbours
    /// among them also differ in their markers.
    pub(super) fn of(number: usize) -> Style {
        Style {
            colour: COLOURS[number % COLOURS.len()],
            dash: DASHES[number % DASHES.len()],
            mark: number % 6,
        }
    }

    /// Its marker at a place.
    pub(super) fn mark(self, x: f64, y: f64) -> Shape {
        let corners: &[(f64, f64)] = match self.mark {
            0 => &[],
            1 => &[(-3.0, -3.0), (3.0, -3.0), (3.0, 3.0), (-3.0, 3.0)],
            2 => &[(0.0, -4.2), (3.8, 2.8), (-3.8, 2.8)],
            3 => &[(0.0, -4.4), (4.4, 0.0), (0.0, 4.4), (-4.4, 0.0)],
            4 => &[(0.0, 4.2), (3.8, -2.8), (-3.8, -2.8)],
            _ => &[
                (-1.2, -4.0),
                (1.2, -4.0),
                (1.2, -1.2),
                (4.0, -1.2),
                (4.0, 1.2),
                (1.2, 1.2),
                (1.2, 4.0),
                (-1.2, 4.0),
                (-1.2, 1.2),
                (-4.0, 1.2),
                (-4.0, -1.2),
                (-1.2, -1.2),
            ],
        };
        let points = if corners.is_empty() { circle(x, y, 3.4) } else { moved(corners, x, y) };
        Shape::Polygon { points, fill: Some(self.colour), stroke: Some((PAPER, 0.6)) }
    }

    /// A hollow square, around whatever marker is there.
    pub(super) fn printed(self, x: f64, y: f64) -> Shape {
        let points = moved(&[(-4.8, -4.8), (4.8, -4.8), (4.8, 4.8), (-4.8, 4.8)], x, y);
        Shape::Polygon { points, fill: None, stroke: Some((self.colour, 1.2)) }
    }
}

fn moved(corners: &[(f64, f64)], x: f64, y: f64) -> Vec<(f64, f64)> {
    corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect()
}

/// A polygon that looks like a circle at the size of a marker.
fn circle(x: f64, y: f64, radius: f64) -> Vec<(f64, f64)> {
    let angle = |corner: i32| f64::from(corner) * std::f64::consts::TAU / 20.0;
    (0..20).map(|corner| (x + radius * angle(corner).cos(), y + radius * angle(corner).sin())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart_without_colours() {
        let look = |number: usize| (Style::of(number).dash, Style::of(number).mark);
        for (a, b) in (0..30).flat_map(|a| (0..a).map(move |b| (a, b))) {
            assert_ne!(look(a), look(b), "{a} and {b} look alike in print");
        }
    }
}
