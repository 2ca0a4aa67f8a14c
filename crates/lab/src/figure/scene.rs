//! The shapes that every backend can draw: lines, polygons, and text in the typeface of the reader.

#[cfg(test)]
use super::typeface;

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(pub(super) u8, pub(super) u8, pub(super) u8);

/// The part of a text that is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Places and sizes are in pixels of 1/96 inch, from the upper left corner.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Line {
        points: Vec<(f64, f64)>,
        colour: Colour,
        width: f64,
        dash: &'static [f64],
    },
    Polygon {
        points: Vec<(f64, f64)>,
        fill: Option<Colour>,
        stroke: Option<(Colour, f64)>,
    },
    /// `y` is that of the base line.
    Text {
        x: f64,
        y: f64,
        size: f64,
        anchor: Anchor,
        colour: Colour,
        text: String,
    },
}

/// A drawing on a white page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scene {
    pub(super) width: f64,
    pub(super) height: f64,
    /// In the order in which they are drawn.
    pub(super) shapes: Vec<Shape>,
}

impl Shape {
    /// Left, top, right and bottom.
    #[cfg(test)]
    pub(super) fn bounds(&self) -> [f64; 4] {
        match self {
            Shape::Line { points, .. } | Shape::Polygon { points, .. } => {
                let mut bounds = [f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY];
                for &(x, y) in points {
                    bounds = [bounds[0].min(x), bounds[1].min(y), bounds[2].max(x), bounds[3].max(y)];
                }
                bounds
            }
            Shape::Text { size, text, y, .. } => {
                let left = self.text_left(typeface::width);
                let width = typeface::width(text, *size);
                [left, y - typeface::ASCENT * size, left + width, y + typeface::DESCENT * size]
            }
        }
    }

    /// The left end of a text that is so wide; 0 for other shapes.
    pub(super) fn text_left(&self, width: fn(&str, f64) -> f64) -> f64 {
        let Shape::Text { x, size, anchor, text, .. } = self else { return 0.0 };
        let width = width(text, *size);
        match anchor {
            Anchor::Start => *x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        }
    }
}

impl Scene {
    pub(super) fn line(&mut self, points: Vec<(f64, f64)>, colour: Colour, width: f64, dash: &'static [f64]) {
        self.shapes.push(Shape::Line { points, colour, width, dash });
    }

    pub(super) fn text(
        &mut self,
        (x, y): (f64, f64),
        size: f64,
        anchor: Anchor,
        colour: Colour,
        text: impl Into<String>,
    ) {
        let text = text.into();
        if !text.is_empty() {
            self.shapes.push(Shape::Text { x, y, size, anchor, colour, text });
        }
    }
}
