//! Message-sequence charts of runs and scenarios, for people: one lifeline a replica, time goes down, and every message
//! is an arrow from where it left to where it arrived or was lost.
//!
//! | file | story |
//! | --- | --- |
//! | `mod.rs` | what is written, and where |
//! | `window.rs` | which part of a run is shown |
//! | `record.rs` | what a world tells while it runs |
//! | `layout.rs` | rows and lifelines |
//! | `style.rs` | how kinds of messages look |
//! | `svg.rs`, `chart.css` | the picture |
//! | `html.rs`, `page.css`, `chart.js` | the page around it |
//!
//! A world with a [`Recorder`] runs in the same way as one without: a recorder receives events, draws no
//! random number and decides nothing. Messages about histories (`PeerMessage::History`) are independent of
//! all others, and are not shown.

mod html;
mod layout;
mod record;
mod style;
mod svg;
#[cfg(test)]
mod tests;
mod window;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use layout::Layout;
pub use record::Recorder;
pub(crate) use record::{Key, Lane, Mark};
pub use style::DEJAVU_SANS;
use style::{NOISE, NOISE_OF_RUNS};
#[cfg(feature = "cli")]
pub use window::WindowArgs;
pub use window::{Bound, Window};

/// The texts of a chart besides what was recorded.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// Its description, a paragraph each.
    pub about: Vec<String>,
    /// The command that draws it again.
    pub command: Option<String>,
    /// The violation, if there was one.
    pub violation: Option<String>,
    /// Whether it shows the run of a seed, and not the story of a script.
    pub of_run: bool,
}

impl Chart {
    /// The page: a picture of each recorded world, with filters, and all fields of the message under the pointer.
    #[must_use]
    pub fn html(&self, recorded: &[Recorder]) -> String {
        let layouts: Vec<Layout> = recorded.iter().map(|recorder| Layout::new(recorder, &[])).collect();
        html::page(self, &layouts)
    }

    /// The bare picture of one world. It has no filters: kinds that a page hides at first are left out.
    #[must_use]
    pub fn svg(&self, recorded: &Recorder) -> String {
        svg::draw(&Layout::new(recorded, self.hidden()), &self.title, None)
    }

    /// The kinds of messages and marks that are not shown at first.
    fn hidden(&self) -> &'static [&'static str] {
        if self.of_run { NOISE_OF_RUNS } else { NOISE }
    }

    /// Writes the page; or, if the name of the file ends in `.svg`, the bare picture.
    ///
    /// # Errors
    /// If the file cannot be written, or a picture is to hold more than one world.
    pub fn write(&self, path: &Path, recorded: &[Recorder]) -> io::Result<()> {
        let picture = path.extension().is_some_and(|extension| extension == "svg");
        let text = match recorded {
            [one] if picture => self.svg(one),
            _ if picture => {
                let error =
                    format!("a picture holds one cluster, not {}; write a page (.html)", recorded.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
            }
            _ => self.html(recorded),
        };
        fs::write(path, text)
    }
}

/// The file of a chart, from its name.
///
/// # Errors
/// The name does not say whether a page or a picture is wanted.
pub fn file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm" | "svg") => Ok(path),
        _ => Err("a chart is a page (a name that ends in .html) or a picture (.svg)".to_owned()),
    }
}

/// Checks before a long run whether a file can be written; an existing file stays.
///
/// # Errors
/// It cannot be written.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let known = path.exists();
    fs::OpenOptions::new().append(true).create(true).open(path)?;
    if known { Ok(()) } else { fs::remove_file(path) }
}
