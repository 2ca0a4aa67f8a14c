//! `synod snapshot`: backups of a cluster in etcd's format, and new clusters from them.

use std::{
    fs::File,
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use serde_json::json;
use synod_client::Client;
use synod_kv::{Backup, BackupError, BackupStatus, Bump, Restored};
use synod_node::restore::{RestoreError, from_backup};
use synod_storage::StorageError;
use tokio::sync::oneshot;

use crate::{
    client::{ClientArgs, block_on},
    failure::Failure,
    interruption::Interruption,
    output::{self, Bytes, Format},
    serve::{
        config::{self, Checked},
        etcd::dns::discover,
        flags::ServeArgs,
    },
};

/// Arguments of `synod snapshot`.
#[derive(Clone, Debug, Args)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum SnapshotCommand {
    /// Save all that a cluster holds to a file, while it serves
    ///
    /// The file has etcd's format: `synod snapshot restore` and `etcdutl snapshot restore` make a new cluster of it. It
    /// holds everything that the replica has executed: keys with their history since the last compaction, leases, users
    /// with the hashes of their passwords, and roles. So only its owner can read it.
    Save(SaveArgs),
    /// Show what a file holds, and check it
    Status(StatusArgs),
    /// Make the data directory of a member of a new cluster
    ///
    /// Run it for each member, on its machine, with the same file and with the flags, variables or configuration file
    /// with which `synod serve` will start the member; then start all of them.
    ///
    /// The file is one of `synod snapshot save` or `etcdctl snapshot save`, or with --skip-hash-check the database
    /// (member/snap/db) of an etcd that does not run. Keys are restored with all their revisions, leases with their
    /// whole time to live, users and roles as they were. The members of the old cluster, and alarms that they raised,
    /// are not.
    ///
    /// The new cluster has an id of its own, so members of the old one that still run are refused. Its revisions go on
    /// where the file ends. Clients of the old cluster may have seen later ones, which the new one uses again for other
    /// changes: with --bump-revision it skips them, and with --mark-compacted watches of before end and begin again.
    Restore(Box<RestoreArgs>),
}

#[derive(Clone, Debug, Args)]
struct SaveArgs {
    /// The file to write. It replaces one of that name once it is whole.
    file: PathBuf,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Clone, Debug, Args)]
struct StatusArgs {
    /// The file.
    file: PathBuf,
    /// Take a file without a hash at its end, or with a wrong one, such as a database that was copied.
    #[arg(long)]
    skip_hash_check: bool,
    /// How the answer is printed.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "simple")]
    write_out: Format,
}

#[derive(Clone, Debug, Args)]
struct RestoreArgs {
    /// The file to restore.
    file: PathBuf,
    /// Take a file without a hash at its end, or with a wrong one, such as a database that was copied.
    #[arg(long)]
    skip_hash_check: bool,
    /// Skip this many revisions: more than the old cluster can have made since the file was saved.
    #[arg(long, value_name = "REVISIONS", default_value_t = 0, requires = "mark_compacted")]
    bump_revision: u64,
    /// Let all revisions before the skipped ones count as compacted.
    #[arg(long, requires = "bump_revision")]
    mark_compacted: bool,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Runs a command. `told` are warnings about where the flags of a restore come from.
pub fn run(args: SnapshotArgs, told: &[String]) -> Result<(), Failure> {
    match args.command {
        SnapshotCommand::Save(args) => save(&args),
        SnapshotCommand::Status(args) => status(&args),
        SnapshotCommand::Restore(args) => restore(&args, told),
    }
}

fn of_file(path: &Path) -> impl Fn(BackupError) -> Failure + '_ {
    move |error| {
        let hint = match error {
            BackupError::NoHash => Some(
                "if it is the database of an etcd that does not run, --skip-hash-check takes it; otherwise save it again"
                    .to_owned(),
            ),
            BackupError::WrongHash | BackupError::Damaged(_) => Some("take an earlier file".to_owned()),
            _ => None,
        };
        Failure::failed(format!("{}: {error}", path.display())).with_hint(hint)
    }
}

fn save(args: &SaveArgs) -> Result<(), Failure> {
    let path = &args.file;
    let failed = |error| Failure::failed(format!("{}: {error}", path.display()));
    let name = path.file_name().ok_or_else(|| Failure::usage("FILE: accepted: the name of a file"))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // For its owner alone. It is removed unless it gets its name.
    let part = tempfile::Builder::new()
        .prefix(name)
        .suffix(".part")
        .tempfile_in(folder)
        .map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
    let cluster = args.client.client()?;
    let name = part.path().to_owned();
    let mut received = part.as_file().try_clone().map_err(failed)?;
    let unchanged = |why: String| Failure::failed(format!("{why}; {} is as it was", path.display()));
    let saving = async {
        // It takes as long as it takes; each piece has the time of a command.
        receive(&cluster, &mut received, failed).await?;
        // On a thread that ends with the program if nobody waits for it any more.
        let (sender, checked) = oneshot::channel();
        thread::spawn(move || {
            let saved = received.sync_all().map_err(BackupError::from);
            sender.send(saved.and_then(|()| Backup::open(&name, true)?.status()))
        });
        let saved = checked.await.map_err(Failure::failed)?;
        saved.map_err(|error| match error {
            BackupError::Read(error) => failed(error),
            error => unchanged(format!("what was received is no backup: {error}")),
        })
    };
    let saved = block_on(async {
        let mut interruption = Interruption::listen().map_err(failed)?;
        tokio::select! {
            saved = saving => saved,
            () = interruption.comes() => Err(unchanged("interrupted".to_owned())),
        }
    })?;
    part.persist(path).map_err(|error| failed(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    let BackupStatus { revision, keys, bytes, .. } = saved;
    let text = format!("{} saved: revision {revision}, {keys} keys, {}", path.display(), Bytes(bytes));
    let fields =
        json!({"file": path.display().to_string(), "revision": revision, "keys": keys, "bytes": bytes});
    output::answer(args.client.write_out, &text, &fields)
}

/// Receives the file from the first endpoint that has it.
async fn receive(
    cluster: &Client,
    file: &mut File,
    failed: impl Fn(std::io::Error) -> Failure,
) -> Result<(), Failure> {
    let mut refused = None;
    // Those that know a leader come first, then others that answer. An etcd does not know the question.
    let told = cluster.native_status_soon(HEAD_START, |status| status.leader != 0).await;
    let mut endpoints: Vec<usize> = (0..cluster.endpoints().count()).collect();
    endpoints.sort_by_key(|&index| {
        let url = cluster.endpoints().nth(index);
        let status = told.iter().find(|(of, _)| Some(&**of) == url).map(|(_, status)| status);
        (status.is_none_or(|status| status.leader == 0), status.is_none())
    });
    for endpoint in endpoints {
        let mut snapshot = match cluster.snapshot(endpoint).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                refused.get_or_insert(error);
                continue;
            }
        };
        let mut progress = Progress::begin();
        while let Some(piece) = snapshot.next().await? {
            file.write_all(&piece).map_err(&failed)?;
            progress.add(piece.len() as u64);
        }
        return Ok(());
    }
    Err(refused.map_or_else(|| Failure::usage("--endpoints: there is none"), Failure::from))
}

/// How long others may take once a replica has answered that knows no leader.
const HEAD_START: Duration = Duration::from_millis(300);

/// Says on a terminal, once a second, how much there is.
struct Progress {
    bytes: u64,
    said: Instant,
    shows: bool,
}

impl Progress {
    const INTERVAL: Duration = Duration::from_secs(1);

    fn begin() -> Progress {
        Progress { bytes: 0, said: Instant::now(), shows: std::io::stderr().is_terminal() }
    }

    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.shows && self.said.elapsed() >= Progress::INTERVAL {
            self.said = Instant::now();
            eprint!("\r{} so far ", Bytes(self.bytes));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shows {
            eprint!("\r\x1b[K");
        }
    }
}

fn status(args: &StatusArgs) -> Result<(), Failure> {
    let backup = Backup::open(&args.file, !args.skip_hash_check).map_err(of_file(&args.file))?;
    let BackupStatus { hash, revision, keys, bytes, version, .. } =
        backup.status().map_err(of_file(&args.file))?;
    match args.write_out {
        Format::Json => output::print_json(&json!({
            "hash": hash, "revision": revision, "totalKey": keys, "totalSize": bytes, "version": version
        })),
        Format::Simple => {
            // etcd writes its version from 3.6 on.
            let version = if version.is_empty() { String::new() } else { format!(", {version}") };
            output::print(format!("{hash:x}, {revision}, {keys}, {}{version}\n", Bytes(bytes)).as_bytes())
        }
        Format::Table | Format::Wide => {
            let head = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "STORAGE VERSION"];
            let row = [
                format!("{hash:x}"),
                revision.to_string(),
                keys.to_string(),
                Bytes(bytes).to_string(),
                version,
            ];
            output::print(output::table(head, [row]).as_bytes())
        }
    }
}

fn restore(args: &RestoreArgs, told: &[String]) -> Result<(), Failure> {
    let backup = Backup::open(&args.file, !args.skip_hash_check).map_err(of_file(&args.file))?;
    let found = discover(&args.serve)?;
    let serve = found.as_ref().unwrap_or(&args.serve);
    let Checked { mut node, groups, joining, warnings, .. } = config::check(serve).map_err(Failure::usage)?;
    told.iter().chain(&warnings).for_each(|warning| eprintln!("warning: {warning}"));
    if joining.is_some() {
        let why = "a restore begins a cluster; accepted: new, or leave it out";
        return Err(Failure::usage(format!("--initial-cluster-state existing: {why}")));
    }
    if groups.count > 1 && groups.merged.is_none() {
        let why = "a backup has one order of revisions, and each of these groups has its own; accepted: merge:N, or no \
                   --groups";
        return Err(Failure::usage(format!("--groups {groups}: {why}")));
    }
    let bump = Some(Bump(args.bump_revision)).filter(|_| args.mark_compacted);
    let hash = backup.sha256().map_err(of_file(&args.file))?;
    node.cluster = config::restored_cluster(node.cluster, groups, &hash, bump.map(|Bump(by)| by));
    let Restored { store, leases, users, roles, left_out, .. } =
        backup.restore(bump).map_err(of_file(&args.file))?;
    let (revision, keys) = (store.revision(), store.key_count());
    from_backup(&node, store).map_err(|error| match error {
        RestoreError::NotEmpty(_) | RestoreError::MountPoint(_) | RestoreError::InTheWay(_) => {
            Failure::usage(format!("--data-dir {error}"))
        }
        RestoreError::LogNotEmpty(_)
        | RestoreError::Storage(StorageError::NoLogDir { .. } | StorageError::LogMount { .. }) => {
            Failure::usage(format!("--wal-dir {error}"))
        }
        RestoreError::Config(_) => Failure::usage(error),
        _ => Failure::failed(error),
    })?;
    left_out.iter().for_each(|left| eprintln!("left out: {left}"));
    let members: Vec<_> = node.members.iter().map(|member| &member.name[..]).collect();
    output::print(
        format!(
            "{} is restored into {}: revision {revision}, {keys} keys, {leases} leases, {users} users, {roles} roles\n\
             The new cluster {} begins once this is done for each of its members ({}) and `synod serve` has started all of \
             them, each with the flags that it was restored with.\n",
            args.file.display(),
            node.data_dir.display(),
            node.cluster,
            members.join(", "),
        )
        .as_bytes(),
    )
}
