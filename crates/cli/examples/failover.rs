//! Measures how long service is missing after `kill -9` of the leader: `cargo build --release && cargo run
//! --release --example failover`.
//!
//! Three `synod serve` run on this machine, with durable logs. A client writes without pause and records when
//! each write was answered; a write that fails is sent again, to the next endpoint. The gap is the longest
//! time without an answer around the kill. All connections are over loopback, so a dead process is noticed at
//! once: suspicion and election are measured, as a multiple of the election time-out.

use std::{
    env,
    error::Error,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Parser;
use synod_client::{Client, Config, api::PutRequest};
use synod_testkit::processes::Cluster;
use tokio::time::sleep;

/// Measures how long service is missing after the end of the leader.
#[derive(Parser)]
struct Args {
    /// The program `synod` [default: the one beside this program's folder].
    #[arg(long)]
    synod: Option<PathBuf>,
    /// How many times the leader is killed.
    #[arg(long, default_value_t = 10)]
    kills: usize,
    /// The election time-out in milliseconds; a heartbeat is a tenth of it.
    #[arg(long, default_value_t = 1000)]
    election_timeout: u64,
    /// The election.
    #[arg(long, default_value = "rotating")]
    election: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let beside = || Ok::<_, std::io::Error>(env::current_exe()?.with_file_name("../synod"));
    let program = args.synod.map_or_else(beside, Ok)?;
    if !program.exists() {
        return Err(
            format!("{} is not there; build it first, with the same profile", program.display()).into()
        );
    }
    let timeout = Duration::from_millis(args.election_timeout);
    let flags = [
        format!("--election={}", args.election),
        format!("--election-timeout={}", args.election_timeout),
        format!("--heartbeat-interval={}", (args.election_timeout / 10).max(1)),
    ];
    let folder = tempfile::tempdir()?;
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(&program, folder.path(), 3, &flags);
    let mut config = Config::new(cluster.endpoints());
    config.request_timeout = Duration::from_secs(60);
    (config.attempt_timeout, config.connect_timeout) = (timeout / 4, timeout / 4);
    config.retry_writes = true;
    let client = Client::new(config)?;
    write_for(&client, timeout * 2).await?;

    println!(
        "3 replicas on one machine, durability sync, election {}, election timeout {timeout:?}; gaps without an answer:",
        args.election
    );
    let mut gaps = Vec::new();
    for _ in 0..args.kills {
        let leader = leader(&client).await;
        cluster.kill(leader);
        let gap = write_for(&client, timeout * 4).await?;
        println!("  n{} killed: {:>6.0} ms", leader + 1, gap.as_secs_f64() * 1e3);
        gaps.push(gap);
        cluster.restart(leader);
        write_for(&client, timeout * 2).await?;
    }
    gaps.sort_unstable();
    let show = |name: &str, gap: Duration| {
        let multiple = gap.as_secs_f64() / timeout.as_secs_f64();
        println!("{name}: {:.0} ms, {multiple:.2} election timeouts", gap.as_secs_f64() * 1e3);
    };
    if let (Some(median), Some(most)) = (gaps.get(gaps.len() / 2), gaps.last()) {
        show("median", *median);
        show("longest", *most);
    }
    Ok(())
}

/// Writes without pause; returns the longest time without an answer.
async fn write_for(client: &Client, duration: Duration) -> Result<Duration, synod_client::Error> {
    let begun = Instant::now();
    let mut answered = begun;
    let mut longest = Duration::ZERO;
    while begun.elapsed() < duration {
        client.put(PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() }).await?;
        longest = longest.max(answered.elapsed());
        answered = Instant::now();
    }
    Ok(longest)
}

async fn leader(client: &Client) -> usize {
    loop {
        let answers = client.native_status().await;
        if let Some(leader) =
            answers.iter().position(|answer| answer.as_ref().is_ok_and(|s| s.role == "leader"))
        {
            return leader;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
