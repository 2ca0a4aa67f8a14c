//! `synod recover --force-new-cluster`: a new cluster from the data of one survivor.

use std::{
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
};

use clap::Args;
use synod_kv::KvStore;
use synod_node::{
    StartError,
    recover::{Plan, PlannedGroup, RecoverError, force_new_cluster},
};
use synod_storage::{DataDir, Ending};

use crate::{
    failure::Failure,
    serve::{
        etcd::outputs::Output,
        flags::{LogArgs, LogFormat},
        log,
    },
};

/// Arguments of `synod recover`.
///
/// A quorum that comes back, however late, needs none of this: start its replicas again. If it is lost
/// permanently, take the survivor that is furthest (`synod wal verify DIR` of each shows the last slots), run
/// this on its data directory while no replica runs, start the survivor, and add the other replicas again
/// with empty data directories.
#[derive(Clone, Debug, Args)]
pub struct RecoverArgs {
    /// Make a new cluster of which this replica is the only member.
    #[arg(long, required = true)]
    force_new_cluster: bool,
    /// The survivor's data directory. The old contents are kept under another name.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The survivor's name in the new cluster [default: as before].
    #[arg(long)]
    name: Option<String>,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
}

/// The text that the operator has to type.
const CONSENT: &str = "force new cluster";

pub fn run(args: RecoverArgs) -> Result<(), Failure> {
    log::start(&LogArgs {
        log_level: "warn".to_owned(),
        log_outputs: vec![Output::Error],
        log_format: LogFormat::Text,
        enable_log_rotation: false,
        log_rotation_config_json: None,
    })?;
    let marker = DataDir::read(&args.data_dir).map_err(Failure::failed)?.ok_or_else(|| {
        Failure::usage(format!("--data-dir {}: there is no data of a replica", args.data_dir.display()))
    })?;
    if marker.groups.merged.is_some() {
        return Err(Failure::usage(format!(
            "--data-dir {}: its groups are merged into one order ({}), and a new cluster cannot be made of one replica of \
             such a cluster: which batch of a group comes next could depend on a group of which this replica lacks \
             something. Start a majority of the replicas again; or save what one of them has (synod snapshot save needs no \
             leader), and restore that into a new cluster (synod snapshot restore)",
            args.data_dir.display(),
            marker.groups
        )));
    }
    let mut config = synod_node::Config::new(
        marker.identity.cluster,
        marker.identity.replica,
        Vec::new(),
        args.data_dir.clone(),
    );
    config.name = args.name.clone().unwrap_or(marker.name);
    config.durability = marker.durability;
    let loose = !marker.durability.keeps_votes(Ending::Machine);
    let mut refused = None;
    let stores = (0..marker.groups.count).map(|_| KvStore::new()).collect();
    let plan = force_new_cluster(&config, stores, |plan| {
        eprint!("{}", described(plan, &config.name, loose));
        let agreed = if args.yes { Ok(()) } else { ask() };
        refused = agreed.err();
        refused.is_none()
    });
    if let Some(failure) = refused {
        return Err(failure);
    }
    let plan = plan.map_err(|error| match error {
        RecoverError::Start(StartError::Config(_))
        | RecoverError::MountPoint(_)
        | RecoverError::InTheWay(_) => Failure::usage(error),
        _ => Failure::failed(error),
    })?;
    let plan = plan.expect("agreed");
    let member = &plan.groups[0].new.members[0];
    println!(
        "Cluster {} is made; its only member is {} ({:x}). The old data are in {}.\nStart it:\n  {}\n\
         then add others: synod member add NAME --peer-urls URL",
        plan.new_cluster,
        config.name,
        member.id.0,
        plan.aside.display(),
        command(&config.name, &args.data_dir, &member.info.peer_urls, &member.info.client_urls),
    );
    Ok(())
}

/// The command that starts the survivor at the addresses that the group knew.
fn command(name: &str, data_dir: &Path, peer_urls: &[String], client_urls: &[String]) -> String {
    let mut line = format!("synod serve --name {name} --data-dir {}", data_dir.display());
    for (whose, urls) in [("peer", peer_urls), ("client", client_urls)] {
        if !urls.is_empty() {
            let (urls, advertise) =
                (urls.join(","), if whose == "peer" { "initial-advertise" } else { "advertise" });
            line += &format!(" --listen-{whose}-urls {urls} --{advertise}-{whose}-urls {urls}");
        }
    }
    line
}

fn described(plan: &Plan, name: &str, loose: bool) -> String {
    let members = plan.groups[0].old.members.iter().filter(|member| member.id != plan.me);
    let lost: Vec<_> = members.map(|member| format!("{} ({:x})", member.info.name, member.id.0)).collect();
    let mut text = format!(
        "\nFORCE NEW CLUSTER\n\
         {name} leaves cluster {} and becomes the only member of the new cluster {}.\n\
         {}\
         - LOST: whatever the others decided without this replica, though clients may have been told that it was \
         written.\n\
         - The other members, {}, are given up. If one of them still runs, stop it now: clients that reach it would \
         see another history. They are refused by the new cluster; add them again with empty data directories.\n\
         - The old data directory is kept as {}.\n",
        plan.old_cluster,
        plan.new_cluster,
        kept(&plan.groups),
        if lost.is_empty() { "of which there are none".to_owned() } else { lost.join(", ") },
        plan.aside.display()
    );
    if loose {
        text += "- The log was not written with --durability sync: what the last crash took is lost too.\n";
    }
    plan.warnings.iter().for_each(|warning| text += &format!("- WARNING: {warning}.\n"));
    text
}

/// What is kept, a line for each group.
fn kept(groups: &[PlannedGroup]) -> String {
    let line = |(number, PlannedGroup { decided, kept, .. }): (usize, &PlannedGroup)| {
        let of = if groups.len() == 1 { String::new() } else { format!(" of group {number}") };
        format!(
            "- Kept: everything{of} through slot {kept}. Of that it knew {decided} slots to be decided, and had accepted {} \
             more, which become decided now.\n",
            kept.0 - decided.0
        )
    };
    groups.iter().enumerate().map(line).collect()
}

/// Asks for consent on the terminal.
fn ask() -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nobody is here to ask; --yes says that you agree to the above"));
    }
    eprint!("Type '{CONSENT}' to go on: ");
    let mut typed = String::new();
    io::stdin().lock().read_line(&mut typed).map_err(Failure::failed)?;
    if typed.trim() == CONSENT {
        return Ok(());
    }
    Err(Failure::failed("nothing was changed"))
}
