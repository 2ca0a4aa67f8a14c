//! The machine and the program of a run.

use std::{fs, path::Path, process::Command};

use serde::{Deserialize, Serialize};

/// Everything that the figures of a run depend on besides its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Synod's version.
    pub version: String,
    /// The commit that was measured: the value of `--commit`, or the commit of the checkout in which the
    /// program was built, with `-dirty` if files had changed since.
    pub commit: Option<String>,
    /// Whether the program was built with optimisations. Figures without them are useless except for tests.
    pub optimised: bool,
    /// Processors that this process may use.
    pub cores: usize,
    /// The model of the processor.
    pub processor: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel's name and release.
    pub kernel: String,
    /// The load average when the run began, since other programs may have used the machine.
    pub load_before: Option<f64>,
    /// The load average when it ended.
    pub load_after: Option<f64>,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// The ground, the network, and the durability.
    pub ground: String,
}

impl Environment {
    /// The environment of this process, now.
    #[must_use]
    pub fn now(commit: Option<String>, ground: String) -> Environment {
        let system = rustix::system::uname();
        let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Environment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit,
            optimised: !cfg!(debug_assertions),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
                .map(|kilobytes| kilobytes * 1024),
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            load_before: load(),
            load_after: None,
            began: began.map_or(0, |since| since.as_secs()),
            ground,
        }
    }

    /// Whether other programs used the machine at the beginning: more threads wanted to run than there are processors.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.load_before.is_some_and(|load| load > self.cores as f64)
    }

    /// Records the load average at the end.
    pub fn end(&mut self) {
        self.load_after = load();
    }

    /// The machine and the program, for people.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!(
            "{} cores of {}, {}, {}; load average {:.2} before and {:.2} after",
            self.cores,
            self.processor.as_deref().unwrap_or("an unknown processor"),
            self.kernel,
            self.program(),
            self.load_before.unwrap_or(0.0),
            self.load_after.unwrap_or(0.0),
        )
    }

    /// The program that was measured, for people.
    pub(crate) fn program(&self) -> String {
        program(&self.version, self.commit.as_deref())
    }
}

/// A version of Synod, with its commit if that is known: a program that was built outside of git has a version only.
pub(crate) fn program(version: &str, commit: Option<&str>) -> String {
    match commit {
        Some(commit) => format!("Synod {version}, commit {commit}"),
        None => format!("Synod {version}"),
    }
}

/// The commit of the checkout that a program lies in, if git knows one.
pub(crate) fn commit_of(program: &Path) -> Option<String> {
    let checkout = program.ancestors().find(|folder| folder.join("Cargo.toml").exists())?;
    let mut git = Command::new("git");
    git.arg("-C").arg(checkout).args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!commit.is_empty()).then_some(commit)
}

fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// The value of a line `name : value`; only Linux has these files.
fn field(path: impl AsRef<Path>, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_commit_has_its_version_only() {
        let commit = Some("c0ffee".to_owned());
        let with = Environment { version: "1.2.3".to_owned(), ..Environment::now(commit, String::new()) };
        assert_eq!(with.program(), "Synod 1.2.3, commit c0ffee");
        let without = Environment { commit: None, ..with };
        assert_eq!(without.program(), "Synod 1.2.3");
        assert!(!without.in_words().contains("commit"), "{}", without.in_words());
    }
}
