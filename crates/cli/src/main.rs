//! The program `synod`: everything that Synod can do, as commands.
//!
//! There is no logic here beyond wiring and presentation: `serve` puts the replica, the key-value store and the server
//! together, the other commands ask a cluster, or run another crate's tool.

mod alarm;
mod auth;
mod client;
mod dev;
mod docs;
mod failure;
mod freed;
mod huge_pages;
mod interruption;
mod kv;
#[cfg(feature = "laboratory")]
mod laboratory;
#[cfg(not(feature = "laboratory"))]
#[path = "no_laboratory.rs"]
mod laboratory;
mod lease;
mod member;
mod output;
#[cfg(test)]
mod pages;
mod quorum;
mod recover;
mod round_trips;
mod serve;
mod snapshot;
mod status;
mod tail;
mod threads;
mod wal;
mod watch;

use std::{env, ffi::OsString, process::ExitCode};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::failure::Failure;

/// This allocator gives back memory that is no longer needed: after a compaction, or an attack, a server shrinks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One replicated log with interchangeable consensus: a key-value store that speaks the etcd v3 API, and the tools to
/// run, use, measure and break it.
#[derive(Debug, Parser)]
#[command(
    name = "synod",
    version,
    arg_required_else_help = true,
    args_override_self = true,
    after_help = laboratory::AFTER_HELP
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The end of the help of `serve` and `dev`.
const UNITS: &str = "TIME is in milliseconds, or has a unit: 500us, 100ms, 2s, 10m. SIZE is in bytes, or has a unit: \
                     64KiB, 1.5MiB, 2GiB. All limits are per replica.";

/// The same for `--help`, with all that goes together.
fn end_of_help() -> String {
    format!("{}\n\n{UNITS}", serve::combinations::text())
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cluster on this machine, to try things out
    #[command(after_help = UNITS, after_long_help = end_of_help())]
    Dev(dev::DevArgs),
    /// Run one replica
    #[command(after_help = UNITS, after_long_help = end_of_help())]
    Serve(Box<serve::flags::ServeArgs>),
    /// Write a key
    Put(kv::PutArgs),
    /// Read a key or a range of keys
    Get(kv::GetArgs),
    /// Delete a key or a range of keys
    Del(kv::DelArgs),
    /// Compare, then execute one of two lists of operations, all at one revision; read from standard input
    ///
    /// Three lists, each ended by an empty line: the comparisons; the operations if all of them hold; the
    /// operations otherwise.
    ///
    ///   mod("city") > "0"          mod, create, version or value of a key; =, !=, < or >
    ///
    ///   put city "Lausanne"        put, get and del with the flags of those commands
    ///   get country
    ///
    ///   del city
    #[command(verbatim_doc_comment)]
    Txn(kv::TxnArgs),
    /// Print what happens to a key or a range of keys, as it happens
    ///
    /// With --rev also what has happened since that revision, as far as it is not compacted. The watch goes on until it
    /// is interrupted, through failures of replicas, without a gap or a repetition.
    ///
    ///   synod watch city                     what happens to one key from now on
    ///   synod watch /jobs/ --prefix --rev 1  everything under a prefix, from the beginning
    #[command(verbatim_doc_comment)]
    Watch(watch::WatchArgs),
    /// Grant, renew, revoke and show leases, with which keys go away
    ///
    /// A lease lives for its time to live, and as long again from each renewal. When it ends, or is revoked, the keys
    /// that were put with it are deleted, all at one revision. No replica ends a lease early, also when leaders change.
    ///
    ///   synod lease grant 60                     a lease of a minute; prints its id
    ///   synod put worker/1 busy --lease ID       a key that goes with it
    ///   synod lease keep-alive ID                renews it until this command is interrupted
    #[command(verbatim_doc_comment)]
    Lease(lease::LeaseArgs),
    /// Forget versions that no read at or after a revision can see
    #[command(visible_alias = "compaction")]
    Compact(kv::CompactArgs),
    /// Show and clear alarms: a full store, or members whose contents differ
    Alarm(alarm::AlarmArgs),
    /// Make users count, or not, and show whether they do
    ///
    /// Until then everybody may do everything. Then a request needs a user, whose roles say which keys
    /// it may read and write. The user root has to have the role root, which permits everything.
    ///
    ///   synod user add root
    ///   synod user grant-role root root
    ///   synod role add app
    ///   synod role grant-permission app readwrite app/ --prefix
    ///   synod user add app
    ///   synod user grant-role app app
    ///   synod auth enable
    ///   synod put app/city Bern --user app      with the password in SYNOD_PASSWORD
    #[command(verbatim_doc_comment)]
    Auth(auth::AuthArgs),
    /// Show, add and delete users, and change their passwords and roles
    User(auth::user::UserArgs),
    /// Show, add and delete roles, and change what they permit
    Role(auth::role::RoleArgs),
    /// Show every replica as it sees itself
    Status(status::StatusArgs),
    /// Print what the cluster decides, as it does
    #[command(after_long_help = tail::HELP)]
    Tail(tail::TailArgs),
    /// Show, add, remove and replace members of the cluster
    Member(member::MemberArgs),
    /// Hand the leadership to a member
    MoveLeader(member::MoveLeaderArgs),
    /// Change the protocol, its election and options, or limits, while the cluster runs
    #[command(after_long_help = serve::combinations::text())]
    Reconfigure(member::ReconfigureArgs),
    /// Make a new cluster from the data of one survivor, after the quorum is lost for good
    Recover(recover::RecoverArgs),
    /// Save, inspect and restore backups
    Snapshot(snapshot::SnapshotArgs),
    #[command(flatten)]
    Laboratory(laboratory::Command),
    /// Inspect a replica's write-ahead log
    Wal(wal::WalArgs),
    /// Print a page of the documentation, or a section of it
    Docs(docs::DocsArgs),
    /// Print the version
    Version,
}

fn main() -> ExitCode {
    huge_pages::refuse();
    output::end_with_reader();
    run(env::args_os().collect()).unwrap_or_else(Failure::report)
}

/// The commands with the flags of a replica, which files and etcd's variables may set.
const OF_REPLICAS: [&[&str]; 2] = [&["serve"], &["snapshot", "restore"]];

fn run(mut args: Vec<OsString>) -> Result<ExitCode, Failure> {
    let command = command();
    args = client::behind_the_command(args, &command);
    let name = |place: usize| args.get(place + 1).and_then(|arg| arg.to_str());
    let of_replica = |path: &&&[&str]| path.iter().enumerate().all(|(place, part)| name(place) == Some(part));
    let Some(path) = OF_REPLICAS.iter().find(of_replica) else {
        return dispatch(&command.get_matches_from(&args), &[]);
    };
    let flags =
        path.iter().fold(&command, |command, part| command.find_subcommand(part).expect("it is one of them"));
    args = serve::etcd::as_clap_reads(args, flags);
    let matches = command.clone().get_matches_from(&args);
    let settings = serve::etcd::settings(flags, given(&matches, path))?;
    let mut told = settings.warnings;
    // They are inserted before the user's own arguments, after which clap may not accept an option.
    let own = 1 + path.len();
    args.splice(own..own, settings.arguments);
    let matches = command.clone().get_matches_from(&args);
    told.extend(serve::etcd::judge(given(&matches, path))?);
    dispatch(&matches, &told)
}

/// What was given to a command, by its path.
fn given<'a>(matches: &'a ArgMatches, path: &[&str]) -> &'a ArgMatches {
    path.iter()
        .fold(matches, |matches, part| matches.subcommand_matches(part).expect("it was parsed from one"))
}

/// The command line, with etcd's flags that `serve` does not have itself.
fn command() -> clap::Command {
    Cli::command()
        .mut_subcommand("serve", |serve| serve::etcd::accept(serve).version(env!("CARGO_PKG_VERSION")))
        .mut_subcommand("snapshot", |snapshot| snapshot.mut_subcommand("restore", serve::etcd::accept))
}

fn dispatch(matches: &ArgMatches, told: &[String]) -> Result<ExitCode, Failure> {
    let cli = Cli::from_arg_matches(matches).map_err(Failure::usage)?;
    match cli.command {
        Command::Dev(args) => {
            let (_, given) = matches.subcommand().expect("it was parsed from one");
            dev::run(args, given)
        }
        Command::Serve(args) => serve::serve(&args, told),
        Command::Put(args) => kv::put(args),
        Command::Get(args) => kv::get(args),
        Command::Del(args) => kv::del(args),
        Command::Txn(args) => kv::txn(args),
        Command::Watch(args) => watch::run(args),
        Command::Lease(args) => lease::run(args),
        Command::Compact(args) => kv::compact(args),
        Command::Alarm(args) => alarm::run(args),
        Command::Auth(args) => auth::run(args),
        Command::User(args) => auth::user::run(args),
        Command::Role(args) => auth::role::run(args),
        Command::Status(args) => status::run(args),
        Command::Tail(args) => tail::run(&args),
        Command::Member(args) => member::run(args),
        Command::MoveLeader(args) => member::move_leader(args),
        Command::Reconfigure(args) => member::reconfigure(args),
        Command::Recover(args) => recover::run(args),
        Command::Snapshot(args) => snapshot::run(args, told),
        Command::Wal(args) => wal::run(args),
        Command::Docs(args) => docs::run(&args),
        Command::Version => version(),
        Command::Laboratory(command) => return laboratory::run(command),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn version() -> Result<(), Failure> {
    let protocols = synod_consensus::ProtocolKind::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    output::print(
        format!(
            "synod {}\netcd API {}\nprotocols {}\n",
            env!("CARGO_PKG_VERSION"),
            synod_server::API_VERSION,
            protocols.join(", ")
        )
        .as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
