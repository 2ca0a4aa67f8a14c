//! Where messages go: `--log-outputs`.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

use tracing_subscriber::fmt::MakeWriter;

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
}

impl Outputs {
    /// Opens the files.
    ///
    /// # Errors
    /// One cannot be opened; the error names it.
    pub fn open(outputs: &[Output]) -> io::Result<Outputs> {
        let mut distinct = outputs.to_vec();
        distinct.dedup();
        let open = distinct.iter().map(|output| match output {
            Output::Error => Ok(Open::Error),
            Output::Standard => Ok(Open::Standard),
            Output::File(path) => {
                // Keys of the store and names of users may stand in it.
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
                file.map(Open::File)
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
            }
        });
        Ok(Outputs(open.collect::<io::Result<Vec<_>>>()?.into()))
    }

    /// Whether people read them as they are written.
    pub fn are_terminals(&self) -> bool {
        self.0.iter().all(|output| match output {
            Open::Error => io::stderr().is_terminal(),
            Open::Standard => io::stdout().is_terminal(),
            Open::File(_) => false,
        })
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
        let named = paths.clone().map(Output::File);
        let mut outputs = Outputs::open(&named).unwrap();
        assert!(!outputs.are_terminals());
        outputs.write_all(b"one\n").unwrap();
        Outputs::open(&named[1..]).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&paths[0]).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&paths[1]).unwrap(), "one\ntwo\n");
        let missing = folder.path().join("no/such/folder");
        assert!(Outputs::open(&[Output::File(missing)]).unwrap_err().to_string().contains("no/such/folder"));
    }

    #[test]
    fn names_are_etcds() {
        assert_eq!("default".parse(), Ok(Output::Error));
        assert_eq!("stdout".parse(), Ok(Output::Standard));
        assert_eq!("/var/log/x".parse(), Ok(Output::File("/var/log/x".into())));
        assert!("".parse::<Output>().is_err());
    }
}
