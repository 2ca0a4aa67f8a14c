//! Writes a scene as a PDF of one page, in vectors, with text as text.

use pdf_writer::{Content, Name, Pdf, Rect, Ref, Str, TextStr};

use super::{
    scene::{Colour, Scene, Shape},
    typeface::width_in_print,
};

/// Points (1/72 inch) a pixel: a figure is as wide as the text of a letter or A4 page, 6.5 inches.
const SCALE: f64 = 468.0 / super::layout::WIDTH;

/// The document.
pub(super) fn write(scene: &Scene, title: &str) -> Vec<u8> {
    let [catalog, pages, page, font, content, info] = [1, 2, 3, 4, 5, 6].map(Ref::new);
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(pages);
    pdf.document_info(info).title(TextStr(title)).producer(TextStr("synod lab"));
    pdf.pages(pages).kids([page]).count(1);
    let (width, height) = ((scene.width * SCALE) as f32, (scene.height * SCALE) as f32);
    pdf.page(page)
        .media_box(Rect::new(0.0, 0.0, width, height))
        .parent(pages)
        .contents(content)
        .resources()
        .fonts()
        .pair(Name(b"F"), font);
    pdf.type1_font(font).base_font(Name(b"Helvetica")).encoding_predefined(Name(b"WinAnsiEncoding"));
    pdf.stream(content, &draw(scene));
    pdf.finish()
}

/// The drawing's instructions.
fn draw(scene: &Scene) -> Vec<u8> {
    // PDF counts from the lower left corner.
    let place = |x: f64, y: f64| ((x * SCALE) as f32, ((scene.height - y) * SCALE) as f32);
    let length = |pixels: f64| (pixels * SCALE) as f32;
    let mut content = Content::new();
    for shape in &scene.shapes {
        match shape {
            Shape::Line { points, colour, width, dash } => {
                stroke(&mut content, *colour, length(*width));
                content.set_dash_pattern(dash.iter().map(|&dash| length(dash)), 0.0);
                path(&mut content, points.iter().map(|&(x, y)| place(x, y)));
                content.stroke();
            }
            Shape::Polygon { points, fill, stroke: line } => {
                if let Some(Colour(red, green, blue)) = *fill {
                    let [red, green, blue] = [red, green, blue].map(share);
                    content.set_fill_rgb(red, green, blue);
                }
                if let Some((colour, width)) = *line {
                    stroke(&mut content, colour, length(width));
                    content.set_dash_pattern([], 0.0);
                }
                path(&mut content, points.iter().map(|&(x, y)| place(x, y)));
                match (fill, line) {
                    (Some(_), Some(_)) => content.close_fill_nonzero_and_stroke(),
                    (Some(_), None) => content.fill_nonzero(),
                    (None, Some(_)) => content.close_and_stroke(),
                    (None, None) => content.end_path(),
                };
            }
            Shape::Text { y, size, colour: Colour(red, green, blue), text, .. } => {
                let [red, green, blue] = [*red, *green, *blue].map(share);
                let (x, y) = place(shape.text_left(width_in_print), *y);
                content.set_fill_rgb(red, green, blue);
                content.begin_text().set_font(Name(b"F"), length(*size)).next_line(x, y);
                content.show(Str(&encode(text))).end_text();
            }
        }
    }
    content.finish().to_vec()
}

fn share(part: u8) -> f32 {
    f32::from(part) / 255.0
}

fn stroke(content: &mut Content, Colour(red, green, blue): Colour, width: f32) {
    let [red, green, blue] = [red, green, blue].map(share);
    content.set_stroke_rgb(red, green, blue).set_line_width(width);
}

fn path(content: &mut Content, points: impl Iterator<Item = (f32, f32)>) {
    for (index, (x, y)) in points.enumerate() {
        if index == 0 {
            content.move_to(x, y)
        } else {
            content.line_to(x, y)
        };
    }
}

/// Text in the encoding of Windows' Latin alphabet; what it lacks becomes a question mark.
fn encode(text: &str) -> Vec<u8> {
    let byte = |character: char| match character {
        '…' => 0x85,
        '–' => 0x96,
        '—' => 0x97,
        '’' => 0x92,
        ' '..='~' | '\u{a0}'..='\u{ff}' => character as u8,
        _ => b'?',
    };
    text.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::scene::Anchor;

    /// The number that follows a word, searched from the end.
    fn number_after(pdf: &[u8], word: &str) -> usize {
        let text = String::from_utf8_lossy(pdf).into_owned();
        let after = text.rsplit_once(word).unwrap_or_else(|| panic!("no {word}")).1;
        after.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[test]
    fn the_table_of_objects_leads_to_every_object() {
        let mut scene = Scene { width: 760.0, height: 300.0, ..Scene::default() };
        scene.line(vec![(0.0, 0.0), (9.0, 9.0)], Colour(0, 0, 0), 1.0, &[2.0, 1.0]);
        scene.text((5.0, 5.0), 10.0, Anchor::Middle, Colour(0, 0, 0), "a b) \\ ± …");
        let pdf = write(&scene, "A title");
        assert!(pdf.starts_with(b"%PDF-1."));
        assert!(pdf.trim_ascii_end().ends_with(b"%%EOF"));
        let table = number_after(&pdf, "startxref");
        assert!(pdf[table..].starts_with(b"xref\n0 7\n"));
        let entries = pdf[table..].split(|&byte| byte == b'\n').skip(3).take(6);
        for (object, entry) in (1..).zip(entries) {
            let offset: usize = std::str::from_utf8(&entry[..10]).unwrap().parse().unwrap();
            assert!(pdf[offset..].starts_with(format!("{object} 0 obj").as_bytes()), "object {object}");
        }
        // Text with characters outside ASCII is written in hexadecimal.
        assert!(String::from_utf8_lossy(&pdf).contains("<61206229205C20B12085>"), "the text is not there");
    }

    #[test]
    fn letters_that_the_font_lacks_are_not_dropped() {
        assert_eq!(encode("aé→"), [b'a', 0xe9, b'?']);
    }
}
