//! The options of a run: the command line, its defaults and its bounds.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use synod_tls::{Connector, Identity, Policy, Trust};

use super::{
    BenchError,
    target::{self, Target},
};

const CLIENTS_MAX: usize = 100_000;
const CONNS_MAX: usize = 10_000;
const THREADS_MAX: usize = 256;
const KEY_BYTES_MAX: usize = 64 << 10;
const VALUE_BYTES_MAX: usize = 64 << 20;
const RATE_MAX: f64 = 10_000_000.0;
const PAIRS_MAX: usize = 1_000;
/// Histograms end here (see `tally.rs`).
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// The arguments of `synod bench`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `synod bench`.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Write keys.
    Put {
        /// The run.
        #[command(flatten)]
        options: Options,
        /// What is done with the keys afterwards.
        #[command(flatten)]
        after: After,
        /// Where results go.
        #[command(flatten)]
        output: Output,
    },
    /// Read keys. Reads of keys that do not exist are quick: run `put --sequential-keys --keep` with the same
    /// sizes first.
    Get {
        /// The consistency of the reads.
        #[arg(long, value_enum, default_value = "l")]
        consistency: Consistency,
        /// The run.
        #[command(flatten)]
        options: Options,
        /// Where results go.
        #[command(flatten)]
        output: Output,
    },
    /// Read and write.
    Mixed {
        /// The share of reads, from 0 to 1.
        #[arg(long, default_value_t = 0.5)]
        read_ratio: f64,
        /// The consistency of the reads.
        #[arg(long, value_enum, default_value = "l")]
        consistency: Consistency,
        /// The run.
        #[command(flatten)]
        options: Options,
        /// What is done with the keys afterwards.
        #[command(flatten)]
        after: After,
        /// Where results go.
        #[command(flatten)]
        output: Output,
    },
    /// Run against A, then B, then A again, ..., and report the ratio of each pair of runs.
    Compare {
        /// The two sides.
        #[command(flatten)]
        options: CompareOptions,
        /// The command for both sides.
        #[command(subcommand)]
        command: CompareCommand,
    },
}

/// A command for both sides of a comparison.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum CompareCommand {
    /// Write keys.
    Put {
        /// The load.
        #[command(flatten)]
        load: Levels,
        /// What is done with the keys afterwards.
        #[command(flatten)]
        after: After,
        /// Where results go.
        #[command(flatten)]
        output: Output,
    },
    /// Read keys.
    Get {
        /// The consistency of the reads.
        #[arg(long, value_enum, default_value = "l")]
        consistency: Consistency,
        /// The load.
        #[command(flatten)]
        load: Levels,
        /// Where results go.
        #[command(flatten)]
        output: Output,
    },
    /// Read and write.
    Mixed {
        /// The share of reads, from 0 to 1.
        #[arg(long, default_value_t = 0.5)]
        read_ratio: f64,
        /// The consistency of the reads.
        #[arg(long, value_enum, default_value = "l")]
        consistency: Consistency,
        /// The load.
        #[command(flatten)]
        load: Levels,
        /// What is done with the keys afterwards.
        #[command(flatten)]
        after: After,
        /// Where results go.
        #[command(flatten)]
        output: Output,
    },
}

/// What is done after the run.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct After {
    /// Leave the keys that were written. Without this flag they are removed at the end, including those that
    /// existed before and were overwritten. (Either way the store keeps their versions until it is compacted.) A
    /// cluster of several groups needs it.
    #[arg(long)]
    pub keep: bool,
}

/// The kind of requests that are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// One key is written.
    Put,
    /// One key is read.
    Get(Consistency),
    /// One key is written or read, at random.
    Mixed {
        /// The share of reads, from 0 to 1.
        read_ratio: f64,
        /// The consistency of the reads.
        consistency: Consistency,
    },
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Consistency {
    /// Linearizable: the read sees every write that was answered before it was sent.
    #[value(name = "l", alias = "linearizable")]
    Linearizable,
    /// Serializable: the read is answered from the replica's own state, which may lag.
    #[value(name = "s", alias = "serializable")]
    Serializable,
}

/// One run against one set of endpoints.
#[derive(Clone, Debug, ClapArgs)]
pub struct Options {
    /// The servers, as host:port, or http://, https://host:port or unix://path. Connections are spread over them in
    /// turn.
    #[arg(
        long,
        env = "SYNOD_ENDPOINTS",
        value_delimiter = ',',
        default_value = "127.0.0.1:2379",
        value_name = "URL,..."
    )]
    pub endpoints: Vec<String>,
    /// Send only to the endpoint that leads when the run begins.
    #[arg(long)]
    pub target_leader: bool,
    /// Clients, each with one outstanding request; they share the connections.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub clients: usize,
    /// The load.
    #[command(flatten)]
    pub load: Load,
}

/// A load for one set of servers or for both sides of a comparison.
#[derive(Clone, Debug, ClapArgs)]
pub struct Load {
    /// Connections; at most one a client is opened. Default: one for each 64 clients, and at least one an endpoint.
    #[arg(long = "connections", alias = "conns", value_name = "COUNT")]
    pub conns: Option<usize>,
    /// End after this many requests (warm-up not counted).
    #[arg(long, conflicts_with = "duration", value_name = "COUNT")]
    pub total: Option<u64>,
    /// End after this time (warm-up not counted). Default without --total: 10s.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// Send for this long first, and discard what is measured.
    #[arg(long, value_parser = duration, default_value = "0s", value_name = "TIME")]
    pub warmup: Duration,
    /// What each key begins with, before its number.
    #[arg(skip)]
    pub key_prefix: String,
    /// Ends the run when it becomes true, as Ctrl-C does; it is looked at once an interval.
    #[arg(skip)]
    pub stop: Arc<AtomicBool>,
    /// Bytes in a key.
    #[arg(long, default_value_t = 8, value_name = "BYTES")]
    pub key_size: usize,
    /// Bytes in a value.
    #[arg(long, default_value_t = 256, value_name = "BYTES")]
    pub val_size: usize,
    /// How many different keys there are. A key is its number in decimal, padded with zeros to --key-size.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    pub key_space_size: u64,
    /// Take the keys in order, over and over, rather than at random.
    #[arg(long)]
    pub sequential_keys: bool,
    /// Write a different piece of random bytes each time, rather than the same one.
    #[arg(long)]
    pub random_values: bool,
    /// Open loop: this many requests are due each second, whether or not earlier ones are answered, and latency
    /// counts from the time at which a request was due. Without it each client sends when it has its answer.
    #[arg(long, value_name = "PER-SECOND")]
    pub rate: Option<f64>,
    /// With --rate: requests are due at random (a Poisson process) rather than at fixed intervals.
    #[arg(long, requires = "rate")]
    pub poisson: bool,
    /// A request without an answer this long after it was due has failed.
    #[arg(
        long = "command-timeout",
        alias = "timeout",
        value_name = "TIME",
        default_value = "5s",
        value_parser = duration
    )]
    pub timeout: Duration,
    /// End the run after requests have only failed for this long.
    #[arg(long, value_parser = duration, default_value = "10s", value_name = "TIME")]
    pub give_up_after: Duration,
    /// Seed of keys, values and arrival times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads of the generator. Default: 1 on one or two cores, else half the cores, at most 8.
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<usize>,
    /// Length of the intervals of the time series.
    #[arg(long, value_parser = duration, default_value = "1s", value_name = "TIME")]
    pub interval: Duration,
    /// TLS, for endpoints with https://.
    #[command(flatten)]
    pub tls: TlsOptions,
}

/// How servers with TLS are connected to.
#[derive(Clone, Debug, ClapArgs)]
pub struct TlsOptions {
    /// The authorities of servers' certificates, in PEM [default: those that the system trusts].
    #[arg(long, env = "SYNOD_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// The certificate to show to servers that ask for one, in PEM.
    #[arg(long, env = "SYNOD_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    #[arg(long, env = "SYNOD_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Do not check servers' certificates.
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
}

impl TlsOptions {
    /// The servers that these URLs name; `flag` is the one with which they were given.
    pub(crate) fn targets(&self, flag: &'static str, urls: &[String]) -> Result<Vec<Target>, BenchError> {
        let connector = self.connector_for(urls)?;
        urls.iter().map(|url| target::parse(flag, url, connector.as_ref())).collect()
    }

    /// What makes connections with TLS, if one of these URLs asks for it.
    pub(crate) fn connector_for(&self, urls: &[String]) -> Result<Option<Connector>, BenchError> {
        let asks_for_tls = |url: &String| url.starts_with("https://") || url.starts_with("unixs://");
        urls.iter().any(asks_for_tls).then(|| self.connector()).transpose()
    }

    fn connector(&self) -> Result<Connector, BenchError> {
        let identity = self.cert.clone().zip(self.key.clone());
        let identity = identity.map(|(certificate, key)| Identity::of(certificate, key));
        let trust = self.cacert.clone().map(Trust::of).unwrap_or_default();
        let trust = Some(trust).filter(|_| !self.insecure_skip_tls_verify);
        Connector::new(identity, trust, Policy::default(), &["h2"]).map_err(|error| BenchError::Argument {
            flag: "--cacert",
            value: self.cacert.as_ref().map_or_else(String::new, |path| path.display().to_string()),
            accepted: format!("files that can be used are: {error}"),
        })
    }
}

/// Two sets of endpoints.
#[derive(Clone, Debug, ClapArgs)]
pub struct CompareOptions {
    /// The servers of side A.
    #[arg(long, value_delimiter = ',', required = true, value_name = "URL,...")]
    pub a_endpoints: Vec<String>,
    /// The servers of side B.
    #[arg(long, value_delimiter = ',', required = true, value_name = "URL,...")]
    pub b_endpoints: Vec<String>,
    /// What to call side A.
    #[arg(long, default_value = "A")]
    pub a_name: String,
    /// What to call side B.
    #[arg(long, default_value = "B")]
    pub b_name: String,
    /// How often each side runs, at each number of clients.
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
    /// Send only to the endpoint that leads when a run begins.
    #[arg(long)]
    pub target_leader: bool,
}

/// A load at several numbers of clients.
#[derive(Clone, Debug, ClapArgs)]
pub struct Levels {
    /// Clients, each with one outstanding request; several numbers are compared one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "CLIENTS,...")]
    pub clients: Vec<usize>,
    /// The load.
    #[command(flatten)]
    pub load: Load,
}

/// Where results go.
#[derive(Clone, Debug, ClapArgs)]
pub struct Output {
    /// Write the time series (of a comparison: one line a run) to this file.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write the whole report to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw answers and latency (over time; of a comparison: over clients): FILE.svg, FILE.pdf and FILE.csv.
    #[arg(long, value_name = "FILE")]
    pub figure: Option<PathBuf>,
    /// The format of standard output.
    #[arg(short, long, value_enum, default_value = "simple", value_name = "FORMAT")]
    pub write_out: Format,
    /// Exit with 0 although requests failed.
    #[arg(long)]
    pub allow_errors: bool,
}

/// The format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people.
    Simple,
    /// The report as JSON.
    Json,
    /// Tables with more columns than fit into 80 characters.
    Wide,
}

impl Default for Options {
    /// The options of a command line without arguments.
    fn default() -> Options {
        #[derive(Parser)]
        struct Empty {
            #[command(flatten)]
            options: Options,
        }
        Empty::parse_from(["bench"]).options
    }
}

impl Options {
    /// Checks every bound that clap does not.
    ///
    /// # Errors
    /// [`BenchError::Argument`] names the flag and what it accepts.
    pub fn validate(&self, operation: Operation) -> Result<(), BenchError> {
        check(!self.endpoints.is_empty(), "--endpoints", "", || "at least one endpoint is needed".into())?;
        self.load.tls.targets("--endpoints", &self.endpoints)?;
        check_clients(self.clients)?;
        if let Operation::Mixed { read_ratio, .. } = operation {
            let fits = (0.0..=1.0).contains(&read_ratio);
            check(fits, "--read-ratio", read_ratio, || {
                "a number from 0 (only puts) to 1 (only gets) is".into()
            })?;
        }
        self.load.validate()
    }

    /// Connections that a run opens to `endpoints` servers.
    pub(super) fn conns(&self, endpoints: usize) -> usize {
        let wanted = self.load.conns.unwrap_or_else(|| self.clients.div_ceil(64).max(endpoints));
        wanted.clamp(1, self.clients)
    }
}

impl Load {
    /// The time from the start of the run to the end of the window, if time ends it.
    pub(super) fn window(&self) -> Option<Duration> {
        match self.total {
            Some(_) => None,
            None => Some(self.duration.unwrap_or(Duration::from_secs(10))),
        }
    }

    /// Threads of a run over `conns` connections: no thread is without a connection.
    pub(super) fn threads(&self, conns: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = self.threads.unwrap_or(if cores <= 2 { 1 } else { (cores / 2).min(8) });
        wanted.clamp(1, conns)
    }

    fn validate(&self) -> Result<(), BenchError> {
        if let Some(conns) = self.conns {
            let fits = (1..=CONNS_MAX).contains(&conns);
            check(fits, "--connections", conns, || format!("a number from 1 to {CONNS_MAX} is"))?;
        }
        if let Some(total) = self.total {
            check(total > 0, "--total", total, || "a number of requests above 0 is".into())?;
            check(self.duration.is_none(), "--duration", "together with --total", || {
                "one of them is".into()
            })?;
        }
        if let Some(duration) = self.duration {
            positive("--duration", duration)?;
        }
        self.validate_sizes()?;
        if let Some(rate) = self.rate {
            let fits = rate > 0.0 && rate <= RATE_MAX;
            check(fits, "--rate", rate, || {
                format!("a number of requests a second above 0, at most {RATE_MAX}, is")
            })?;
        }
        check(self.rate.is_some() || !self.poisson, "--poisson", "without --rate", || {
            "give --rate, or leave --poisson out".into()
        })?;
        positive("--command-timeout", self.timeout)?;
        check(self.timeout <= TIMEOUT_MAX, "--command-timeout", format!("{:?}", self.timeout), || {
            "at most 10m is".into()
        })?;
        positive("--give-up-after", self.give_up_after)?;
        let fits = self.interval >= Duration::from_millis(10);
        check(fits, "--interval", format!("{:?}", self.interval), || "10ms or more is".into())?;
        let fits = self.threads.is_none_or(|threads| (1..=THREADS_MAX).contains(&threads));
        check(fits, "--threads", self.threads.unwrap_or(0), || format!("a number from 1 to {THREADS_MAX} is"))
    }

    fn validate_sizes(&self) -> Result<(), BenchError> {
        let fits = (1..=KEY_BYTES_MAX).contains(&self.key_size);
        check(fits, "--key-size", self.key_size, || {
            format!("a number of bytes from 1 to {KEY_BYTES_MAX} is")
        })?;
        let fits = self.val_size <= VALUE_BYTES_MAX;
        check(fits, "--val-size", self.val_size, || {
            format!("a number of bytes from 0 to {VALUE_BYTES_MAX} is")
        })?;
        let keys = self.key_space_size;
        check(keys > 0, "--key-space-size", keys, || "a number of keys above 0 is".into())?;
        let digits = (keys - 1).checked_ilog10().unwrap_or(0) as usize + 1;
        check(digits <= self.key_size, "--key-size", self.key_size, || {
            format!("{keys} different keys (--key-space-size) need {digits} bytes or more")
        })
    }
}

impl CompareOptions {
    /// The runs against A and against B with this many clients.
    pub(super) fn sides(&self, clients: usize, load: &Load) -> [Options; 2] {
        [&self.a_endpoints, &self.b_endpoints].map(|endpoints| Options {
            endpoints: endpoints.clone(),
            target_leader: self.target_leader,
            clients,
            load: load.clone(),
        })
    }

    pub(super) fn validate(
        &self,
        operation: Operation,
        levels: &[usize],
        load: &Load,
    ) -> Result<(), BenchError> {
        for (flag, endpoints) in [("--a-endpoints", &self.a_endpoints), ("--b-endpoints", &self.b_endpoints)]
        {
            check(!endpoints.is_empty(), flag, "", || "at least one endpoint is needed".into())?;
            load.tls.targets(flag, endpoints)?;
        }
        let fits = (1..=PAIRS_MAX).contains(&self.pairs);
        check(fits, "--pairs", self.pairs, || format!("a number from 1 to {PAIRS_MAX} is"))?;
        check(!levels.is_empty(), "--clients", "", || "at least one number of clients is needed".into())?;
        for &clients in levels {
            check_clients(clients)?;
        }
        self.sides(levels[0], load)[0].validate(operation)
    }
}

fn check_clients(clients: usize) -> Result<(), BenchError> {
    let fits = (1..=CLIENTS_MAX).contains(&clients);
    check(fits, "--clients", clients, || format!("a number from 1 to {CLIENTS_MAX} is"))
}

fn positive(flag: &'static str, value: Duration) -> Result<(), BenchError> {
    check(!value.is_zero(), flag, "0s", || "a time above 0, such as 10s or 500ms, is".into())
}

fn check(
    fits: bool,
    flag: &'static str,
    value: impl ToString,
    accepted: impl FnOnce() -> String,
) -> Result<(), BenchError> {
    if fits {
        Ok(())
    } else {
        Err(BenchError::Argument { flag, value: value.to_string(), accepted: accepted() })
    }
}

/// Reads `500ms`, `10s`, `1.5m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let accepted = || format!("`{text}` is not a time; write 500ms, 10s, 2m or 1h");
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(accepted)?;
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.parse().map_err(|_| accepted())?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(accepted()),
    };
    // A year is longer than any run, and far below what Instant arithmetic can represent.
    if !(0.0..=31_536_000.0).contains(&seconds) {
        return Err(accepted());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn refused(change: impl FnOnce(&mut Options), operation: Operation) -> String {
        let mut options = Options::default();
        change(&mut options);
        options.validate(operation).expect_err("must be refused").to_string()
    }

    #[test]
    fn the_defaults_are_valid() {
        Options::default().validate(Operation::Put).unwrap();
        assert_eq!(Options::default().load.window(), Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_refusal_names_the_flag_and_what_is_accepted() {
        let put = Operation::Put;
        let cases: [(String, &str, &str); 12] = [
            (refused(|o| o.clients = 0, put), "--clients 0", "from 1 to 100000"),
            (refused(|o| o.load.conns = Some(0), put), "--connections 0", "from 1 to 10000"),
            (refused(|o| o.load.rate = Some(0.0), put), "--rate 0", "above 0"),
            (refused(|o| o.load.rate = Some(f64::NAN), put), "--rate NaN", "above 0"),
            (refused(|o| o.load.poisson = true, put), "--poisson", "--rate"),
            (refused(|o| o.load.total = Some(0), put), "--total 0", "above 0"),
            (refused(|o| o.load.duration = Some(Duration::ZERO), put), "--duration 0s", "500ms"),
            (
                refused(|o| o.load.key_size = 4, put),
                "--key-size 4",
                "100000 different keys (--key-space-size) need 5",
            ),
            (refused(|o| o.load.val_size = usize::MAX, put), "--val-size", "from 0 to 67108864"),
            (refused(|o| o.endpoints = vec!["nope".into()], put), "--endpoints nope", "host:port"),
            (refused(|o| o.load.timeout = Duration::from_secs(601), put), "--command-timeout 601s", "10m"),
            (
                refused(|_| {}, Operation::Mixed { read_ratio: 1.5, consistency: Consistency::Serializable }),
                "--read-ratio 1.5",
                "from 0 (only puts) to 1 (only gets)",
            ),
        ];
        for (message, flag, accepted) in cases {
            assert!(message.starts_with(flag), "{message} should begin with {flag}");
            assert!(message.contains(accepted), "{message} should contain {accepted}");
        }
    }

    #[test]
    fn a_comparison_is_checked_like_a_run() {
        let options = CompareOptions {
            a_endpoints: vec!["127.0.0.1:1".into()],
            b_endpoints: vec!["b".into()],
            a_name: "A".into(),
            b_name: "B".into(),
            pairs: 1,
            target_leader: false,
        };
        let load = Options::default().load;
        let error = options.validate(Operation::Put, &[1], &load).unwrap_err().to_string();
        assert!(error.starts_with("--b-endpoints b"), "{error}");
        let fixed = CompareOptions { b_endpoints: vec!["127.0.0.1:2".into()], ..options };
        fixed.validate(Operation::Put, &[1], &load).unwrap();
        let error = fixed.validate(Operation::Put, &[1, 0], &load).unwrap_err().to_string();
        assert!(error.starts_with("--clients 0"), "{error}");
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "10", "s", "-1s", "10 parsecs", "1e300h"] {
            assert!(duration(wrong).unwrap_err().contains("10s"), "{wrong} must be refused");
        }
    }

    #[test]
    fn the_command_line_is_understood() {
        let line = "bench mixed --endpoints 127.0.0.1:1,127.0.0.1:2 --clients 64 --read-ratio 0.9 --consistency s \
                    --total 1000 --rate 5000 --poisson -w json";
        let Command::Mixed { options, read_ratio, consistency, output, after } =
            Cli::parse_from(line.split_whitespace()).args.command
        else {
            panic!("not mixed");
        };
        assert_eq!((options.endpoints.len(), options.clients, read_ratio), (2, 64, 0.9));
        assert_eq!(
            (options.load.window(), consistency, output.write_out),
            (None, Consistency::Serializable, Format::Json)
        );
        assert!(!after.keep, "what is written is removed unless one wants it");

        let line = "bench put --conns 9 --timeout 2s --val-size 33 --keep";
        let Command::Put { options, after, .. } = Cli::parse_from(line.split_whitespace()).args.command
        else {
            panic!("not put");
        };
        assert_eq!((options.load.conns, options.load.timeout), (Some(9), Duration::from_secs(2)));
        assert!(after.keep);

        let line = "bench compare --a-endpoints 127.0.0.1:1 --b-endpoints 127.0.0.1:2 put --clients 1,64,512";
        let Command::Compare { command: CompareCommand::Put { load, .. }, .. } =
            Cli::parse_from(line.split_whitespace()).args.command
        else {
            panic!("not compare put");
        };
        assert_eq!(load.clients, [1, 64, 512]);
        for wrong in ["bench put --poisson", "bench put --total 1 --duration 1s", "bench put --duration 10"] {
            assert!(Cli::try_parse_from(wrong.split_whitespace()).is_err(), "{wrong} must be refused");
        }
    }

    #[test]
    fn connections_and_threads_fit_the_clients() {
        let mut options = Options { clients: 512, ..Options::default() };
        assert_eq!(options.conns(3), 8);
        options.clients = 64;
        assert_eq!(options.conns(3), 3);
        options.clients = 1;
        assert_eq!(options.conns(3), 1);
        options.load.conns = Some(10);
        assert_eq!(options.conns(3), 1);
        options.load.threads = Some(4);
        assert_eq!(options.load.threads(2), 2);
    }
}
