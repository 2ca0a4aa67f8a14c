//! The options of all commands that talk to a cluster.

use std::{
    ffi::OsString,
    future::Future,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{Args, Command};
use synod_client::{Client, Config};
use synod_server::urls;
use synod_tls::{Connector, Identity, Policy, TlsError, Trust};

use crate::{failure::Failure, output::Format, quorum, serve::units};

/// The endpoints to ask, for how long, and how to print the answer.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct ClientArgs {
    /// Client URLs of the replicas. Each can answer every request; one that does not answer is skipped.
    #[arg(
        long,
        env = "SYNOD_ENDPOINTS",
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub endpoints: Vec<String>,
    /// The authorities of servers' certificates, in PEM, for endpoints with https:// or unixs:// [default: those that
    /// the system trusts].
    #[arg(long, env = "SYNOD_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// The certificate to show to servers that ask for one, in PEM.
    #[arg(long, env = "SYNOD_CERT", value_name = "FILE", requires = "cert_key")]
    pub cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    #[arg(long = "key", env = "SYNOD_KEY", value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
    /// Do not check servers' certificates: anybody in between can read and change everything.
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
    /// The user for whom the command is executed, NAME or NAME:PASSWORD, where users count (`synod auth enable`).
    #[arg(long, env = "SYNOD_USER", value_name = "NAME[:PASSWORD]", hide_env_values = true)]
    pub user: Option<String>,
    /// The user's password, if it is not in --user.
    #[arg(long, env = "SYNOD_PASSWORD", value_name = "PASSWORD", hide_env_values = true, requires = "user")]
    pub password: Option<String>,
    /// How long the command may take in all.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration_above_zero)]
    pub command_timeout: Duration,
    /// How the answer is printed.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "simple")]
    pub write_out: Format,
}

impl ClientArgs {
    /// A client of these endpoints.
    pub fn client(&self) -> Result<Client, Failure> {
        let mut config = Config::new(self.endpoints.iter().cloned());
        // The first one that the user gave is preferred.
        config.first_endpoint = Some(0);
        config.request_timeout = self.command_timeout - self.reserve();
        // All can be tried one after the other, and nothing was sent to those that cannot be reached.
        let share = config.request_timeout.mul_f64(0.6)
            / u32::try_from(self.endpoints.len().max(1)).unwrap_or(u32::MAX);
        config.connect_timeout = config.connect_timeout.min(share);
        config.give_up_unreachable = true;
        config.tls = self.tls().map_err(Failure::usage)?;
        config.user = self.user()?;
        Ok(Client::new(config)?)
    }

    /// How connections with TLS are made, if there is one or a flag asks for it.
    fn tls(&self) -> Result<Option<Connector>, TlsError> {
        let is_wanted = self.insecure_skip_tls_verify || self.cacert.is_some() || self.cert.is_some();
        if !is_wanted && !self.endpoints.iter().any(|url| urls::asks_for_tls(url)) {
            return Ok(None);
        }
        let identity = self.cert.clone().zip(self.cert_key.clone());
        let identity = identity.map(|(certificate, key)| Identity::of(certificate, key));
        let trust = self.cacert.clone().map(Trust::of).unwrap_or_default();
        let trust = Some(trust).filter(|_| !self.insecure_skip_tls_verify);
        Connector::new(identity, trust, Policy::default(), &["h2"]).map(Some)
    }

    fn user(&self) -> Result<Option<(String, String)>, Failure> {
        let Some(user) = &self.user else { return Ok(None) };
        // A variable that is set to nothing is as one that is not set.
        let password = self.password.as_ref().filter(|password| !password.is_empty());
        let (name, password) = match (password, user.split_once(':')) {
            (Some(password), _) => (user.as_str(), password.as_str()),
            (None, Some(both)) => both,
            (None, None) => {
                let why = "the password is missing; accepted: --user NAME:PASSWORD, or --password, or SYNOD_PASSWORD";
                return Err(Failure::usage(format!("--user {user}: {why}")));
            }
        };
        Ok(Some((name.to_owned(), password.to_owned())))
    }

    /// The part of the command's time that is reserved for finding out why a request was not served.
    fn reserve(&self) -> Duration {
        (self.command_timeout / 10).min(Duration::from_secs(1))
    }

    /// Runs a command's requests. Together with finding out why one was not served they take no longer than
    /// the command's time-out.
    pub fn run<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let deadline = Instant::now() + self.command_timeout;
        block_on(async {
            let failure = match tokio::time::timeout_at(deadline.into(), work).await {
                Ok(Err(failure)) if failure.is_unserved() => failure,
                Ok(result) => return result,
                Err(_) => {
                    return Err(Failure::failed(format!(
                        "not done within {:?} (--command-timeout); if it was to change something, that may be done all \
                         the same",
                        self.command_timeout
                    )));
                }
            };
            let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
            let diagnosis = tokio::time::timeout(left, quorum::diagnosis(self, left)).await;
            Err(failure.with_hint(diagnosis.ok().flatten()))
        })
    }
}

/// The arguments with the options of a connection that stand before the command moved behind it, where clap takes them:
/// as with etcdctl, `synod --endpoints URL get a` is `synod get --endpoints URL a`.
pub fn behind_the_command(mut args: Vec<OsString>, program: &Command) -> Vec<OsString> {
    let options = ClientArgs::augment_args(Command::new("options"));
    let word = |at: usize| args.get(at).and_then(|word| word.to_str());
    let mut command_at = 1;
    while let Some(length) = word(command_at).and_then(|text| words_of(text, &options)) {
        command_at += length;
    }
    let (mut command, mut end) = (program, command_at);
    while let Some(inner) = word(end).and_then(|name| command.find_subcommand(name)) {
        (command, end) = (inner, end + 1);
    }
    // Where no command follows, clap says so.
    if end > command_at {
        args[1..end].rotate_left(command_at - 1);
    }
    args
}

/// Of how many words an option is that begins with this one; `None` if it is none of `options`.
fn words_of(text: &str, options: &Command) -> Option<usize> {
    let (option, has_value) = match text.strip_prefix("--") {
        Some(long) => {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            (options.get_arguments().find(|arg| arg.get_long() == Some(name))?, value.is_some())
        }
        None => {
            let mut letters = text.strip_prefix('-')?.chars();
            let letter = letters.next()?;
            let option = options.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
            (option, letters.next().is_some())
        }
    };
    Some(if option.get_action().takes_values() && !has_value { 2 } else { 1 })
}

/// Runs asynchronous work on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::failed)?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_connection_may_stand_before_the_command() {
        let program = Command::new("synod")
            .subcommand(Command::new("get"))
            .subcommand(Command::new("member").subcommand(Command::new("list")));
        let moved = |line: &str| {
            let args = line.split(' ').map(OsString::from).collect();
            let moved = behind_the_command(args, &program);
            moved.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (given, read) in [
            ("synod get a --endpoints x", "synod get a --endpoints x"),
            ("synod --endpoints x get a", "synod get --endpoints x a"),
            ("synod --endpoints=x -w json get a -- -b", "synod get --endpoints=x -w json a -- -b"),
            (
                "synod -wjson --insecure-skip-tls-verify get a",
                "synod get -wjson --insecure-skip-tls-verify a",
            ),
            ("synod --command-timeout 9s member list", "synod member list --command-timeout 9s"),
            // What is none, or leads to no command, is clap's to refuse.
            ("synod --nonsense get a", "synod --nonsense get a"),
            ("synod --endpoints get", "synod --endpoints get"),
            ("synod --endpoints x", "synod --endpoints x"),
            ("synod --help", "synod --help"),
            ("synod", "synod"),
        ] {
            assert_eq!(moved(given), read, "{given}");
        }
    }
}
