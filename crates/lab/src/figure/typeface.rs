//! How wide text is. A figure names the typefaces [`FAMILY`], and a reader has any one of them, so a figure has room
//! for the wider of two: Helvetica, which every reader of PDF has, and whose widths Arial and Liberation Sans share;
//! and DejaVu Sans, which machines with none of these three have.

use synod_sim::chart::DEJAVU_SANS;

/// The typefaces of a picture, in the order in which a reader looks for them.
pub(super) const FAMILY: &str = "Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif";

/// Height of a line above its base, as a share of the size.
pub(super) const ASCENT: f64 = 0.74;
/// Depth of a line below its base.
#[cfg(test)]
pub(super) const DESCENT: f64 = 0.21;

/// Widths of the characters from the space to the tilde in Helvetica, in thousandths of the size (Adobe's metrics).
const HELVETICA: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556,
    556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278,
    500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469,
    556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500,
    278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];

/// The width of a text in the widest of the typefaces.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let of = |character: char| match character {
        ' '..='~' => HELVETICA[character as usize - 32].max(DEJAVU_SANS[character as usize - 32]),
        '±' | '×' => 838,
        '–' => 556,
        _ => LETTER_MAX,
    };
    sum(text, size, of)
}

/// The width of a text in Helvetica, in which documents are printed.
pub(super) fn width_in_print(text: &str, size: f64) -> f64 {
    let of = |character: char| match character {
        ' '..='~' => HELVETICA[character as usize - 32],
        '±' | '×' => 584,
        '–' => 556,
        _ => LETTER_MAX,
    };
    sum(text, size, of)
}

/// No letter is wider.
const LETTER_MAX: u16 = 1000;

fn sum(text: &str, size: f64, of: impl Fn(char) -> u16) -> f64 {
    text.chars().map(|character| f64::from(of(character))).sum::<f64>() * size / 1000.0
}

/// Breaks a text into lines of at most this width, between words where that is possible.
pub(super) fn wrap(text: &str, size: f64, most: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if width(&longer, size) <= most {
            *line = longer;
            continue;
        }
        if !line.is_empty() {
            lines.push(String::new());
        }
        for character in word.chars() {
            let line = lines.last_mut().expect("there is a line");
            if !line.is_empty() && width(&format!("{line}{character}"), size) > most {
                lines.push(character.to_string());
            } else {
                line.push(character);
            }
        }
    }
    lines
}

/// The beginning of a text that is not wider than this, with an ellipsis if something is left out.
pub(super) fn clip(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.chars() {
        if width(&format!("{kept}{character}…"), size) > most {
            break;
        }
        kept.push(character);
    }
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_they_may_be_and_lose_nothing() {
        let text =
            "answers a second, of the first run at pneumonoultramicroscopicsilicovolcanoconiosis each point";
        for most in [30.0, 60.0, 200.0, 2000.0] {
            let lines = wrap(text, 10.0, most);
            assert!(lines.iter().all(|line| width(line, 10.0) <= most), "{lines:?}");
            let letters = |text: &str| text.replace(' ', "");
            assert_eq!(letters(&lines.concat()), letters(text));
        }
        assert_eq!(wrap("", 10.0, 50.0), [""]);
        assert_eq!(width_in_print("iW", 1000.0), 222.0 + 944.0);
        assert_eq!(width("iW@", 1000.0), 278.0 + 989.0 + 1015.0, "each in the typeface that has it widest");
    }

    #[test]
    fn what_does_not_fit_is_cut_visibly() {
        assert_eq!(clip("raft", 10.0, 50.0), "raft");
        let cut = clip("sequence-paxos", 10.0, 40.0);
        assert!(cut.ends_with('…') && width(&cut, 10.0) <= 40.0, "{cut}");
    }
}
