//! Where messages go: `--log-outputs`.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use tracing_subscriber::fmt::MakeWriter;

use super::log_files::{RotatingFile, Rotation, append_to};

/// One place for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard error. The journal of a service gets it.
    Error,
    /// Standard output.
    Standard,
    /// The end of a file.
    File(PathBuf),
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Output, String> {
        match text {
            "" => Err("accepted: default, stderr, stdout, systemd/journal, or the path of a file".to_owned()),
            "default" | "stderr" | "systemd/journal" => Ok(Output::Error),
            "stdout" => Ok(Output::Standard),
            path => Ok(Output::File(path.into())),
        }
    }
}

/// All places at once.
#[derive(Clone, Debug)]
pub struct Outputs(Arc<[Open]>);

#[derive(Debug)]
enum Open {
    Error,
    Standard,
    File(File),
    Rotating(Box<RotatingFile>),
}

impl Outputs {
    /// Opens the files, which are rotated if there is a `rotation`.
    ///
    /// # Errors
    /// One cannot be opened; the error names it.
    pub fn open(outputs: &[Output], rotation: Option<&Rotation>) -> io::Result<Outputs> {
        let mut open = Vec::new();
        for (at, output) in outputs.iter().enumerate() {
            // A file must not be rotated twice.
            if outputs[..at].contains(output) {
                continue;
            }
            open.push(match output {
                Output::Error => Open::Error,
                Output::Standard => Open::Standard,
                Output::File(path) => Open::file(path, rotation)
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?,
            });
        }
        Ok(Outputs(open.into()))
    }

    /// Whether people read them as they are written.
    pub fn are_terminals(&self) -> bool {
        self.0.iter().all(|output| match output {
            Open::Error => io::stderr().is_terminal(),
            Open::Standard => io::stdout().is_terminal(),
            Open::File(_) | Open::Rotating(_) => false,
        })
    }
}

impl Open {
    fn file(path: &Path, rotation: Option<&Rotation>) -> io::Result<Open> {
        let file = append_to(path)?;
        match rotation {
            // A pipe or a device has nothing that could be renamed.
            Some(rotation) if file.metadata()?.is_file() => {
                RotatingFile::new(path, file, rotation.clone()).map(|file| Open::Rotating(Box::new(file)))
            }
            _ => Ok(Open::File(file)),
        }
    }
}

impl Write for Outputs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// A place that cannot be written does not keep the message from the others.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.0.iter().map(|output| match output {
            Open::Error => io::stderr().write_all(bytes),
            Open::Standard => io::stdout().write_all(bytes),
            Open::File(file) => { file }.write_all(bytes),
            Open::Rotating(file) => file.write_all(bytes),
        });
        written.fold(Ok(()), Result::and)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl<'a> MakeWriter<'a> for Outputs {
    type Writer = Outputs;

    fn make_writer(&'a self) -> Outputs {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_to_every_file() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        let [a, b] = paths.clone().map(Output::File);
        let named = [a.clone(), b.clone(), a];
        let rotation = Rotation::default();
        let mut outputs = Outputs::open(&named, Some(&rotation)).unwrap();
        assert!(!outputs.are_terminals());
        outputs.write_all(b"one\n").unwrap();
        Outputs::open(&[b], None).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&paths[0]).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&paths[1]).unwrap(), "one\ntwo\n");
        let missing = folder.path().join("no/such/folder");
        let missing = Outputs::open(&[Output::File(missing)], None).unwrap_err();
        assert!(missing.to_string().contains("no/such/folder"));
        // A device is not rotated.
        let null = Outputs::open(&[Output::File("/dev/null".into())], Some(&rotation)).unwrap();
        assert!(matches!(&null.0[..], [Open::File(_)]), "{null:?}");
    }

    #[test]
    fn names_are_etcds() {
        assert_eq!("default".parse(), Ok(Output::Error));
        assert_eq!("stdout".parse(), Ok(Output::Standard));
        assert_eq!("/var/log/x".parse(), Ok(Output::File("/var/log/x".into())));
        assert!("".parse::<Output>().is_err());
    }
}
