//! The inputs in the tree: what encoders write, and what was found.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::Target;

/// The inputs of one target.
#[derive(Clone, Debug, Default)]
pub struct Corpus {
    /// The names of the files, and their contents, in the order of names.
    pub inputs: Vec<(String, Vec<u8>)>,
}

impl Corpus {
    /// The folder of a target's inputs.
    #[must_use]
    pub fn folder(target: &Target) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
    }

    /// Reads the inputs in the tree.
    ///
    /// # Errors
    /// A file cannot be read, or the target has none.
    pub fn read(target: &Target) -> io::Result<Corpus> {
        let mut inputs = Vec::new();
        for entry in fs::read_dir(Corpus::folder(target))? {
            let entry = entry?;
            inputs.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
        inputs.sort();
        Ok(Corpus { inputs })
    }
}

/// Writes the inputs that a target's encoders make into the tree, and returns how many there are. What was found stays.
///
/// # Errors
/// A file cannot be written.
pub fn written(target: &Target) -> io::Result<usize> {
    let folder = Corpus::folder(target);
    fs::create_dir_all(&folder)?;
    let seeds = (target.seeds)();
    for (name, bytes) in &seeds {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(seeds.len())
}
