//! `synod put|get|del|txn|compact`: the key-value store from a shell.

mod ops;
mod print;
mod txn;

use std::io::{self, IsTerminal, Read};

use clap::Args;
use synod_client::api::CompactionRequest;

use self::ops::{DelOp, GetOp, PutOp};
pub use self::{
    ops::{Range, after_prefix, lease_id},
    print::{GetStyle, header_json, kv_json, kv_lines},
};
use crate::{alarm, client::ClientArgs, failure::Failure};

/// Arguments of `synod put`.
#[derive(Clone, Debug, Args)]
pub struct PutArgs {
    #[command(flatten)]
    op: PutOp,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `synod get`.
#[derive(Clone, Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    op: GetOp,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `synod del`.
#[derive(Clone, Debug, Args)]
pub struct DelArgs {
    #[command(flatten)]
    op: DelOp,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `synod txn`.
#[derive(Clone, Debug, Args)]
pub struct TxnArgs {
    /// Print what to type next; this is the default if standard input is a terminal.
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `synod compact`.
#[derive(Clone, Debug, Args)]
pub struct CompactArgs {
    /// Versions that no read at or after this revision can see are forgotten.
    #[arg(required_unless_present = "disarm")]
    revision: Option<i64>,
    /// Answer once the forgotten versions take no more space, rather than once the compaction is decided.
    /// (Here they never take longer; the flag is etcdctl's.)
    #[arg(long)]
    physical: bool,
    /// The group, counted from 0, whose versions are forgotten; needed where the cluster has several
    /// (`serve --groups`). The revision is that group's.
    #[arg(long)]
    group: Option<u16>,
    /// Then clear all alarms, or those of the group: a store that was full takes puts again. A revision is not needed.
    #[arg(long)]
    disarm: bool,
    #[command(flatten)]
    client: ClientArgs,
}

pub fn put(args: PutArgs) -> Result<(), Failure> {
    let read_value = || {
        let mut value = Vec::new();
        io::stdin().lock().read_to_end(&mut value).map_err(|error| format!("standard input: {error}"))?;
        Ok(value.into())
    };
    let request = args.op.request(read_value).map_err(Failure::input)?;
    let client = args.client.client()?;
    let response = args.client.run(async { Ok(client.put(request).await?) })?;
    print::put(args.client.write_out, &response)
}

pub fn get(args: GetArgs) -> Result<(), Failure> {
    let style = GetStyle { count_only: args.op.count_only, value_only: args.op.print_value_only };
    let client = args.client.client()?;
    let response = args.client.run(async { Ok(client.get(args.op.request()).await?) })?;
    print::get(args.client.write_out, style, &response)
}

pub fn del(args: DelArgs) -> Result<(), Failure> {
    let client = args.client.client()?;
    let response = args.client.run(async { Ok(client.delete(args.op.request()).await?) })?;
    print::del(args.client.write_out, &response)
}

pub fn txn(args: TxnArgs) -> Result<(), Failure> {
    let client = args.client.client()?;
    let mut input = io::stdin().lock();
    let mut prompt = io::stderr();
    let prompted = args.interactive || input.is_terminal();
    let request = txn::read(&mut input, prompted.then_some(&mut prompt as &mut dyn io::Write))
        .map_err(Failure::input)?;
    let response = args.client.run(async { Ok(client.txn(request).await?) })?;
    print::txn(args.client.write_out, &response)
}

pub fn compact(args: CompactArgs) -> Result<(), Failure> {
    let client = args.client.client()?;
    // One run: connections end with it.
    let (compacted, cleared) = args.client.run(async {
        let compacted = match args.revision {
            None => None,
            Some(revision) => {
                let request = CompactionRequest { revision, physical: args.physical };
                Some(match args.group {
                    Some(group) => client.compact_in(group, request).await?,
                    None => client.compact(request).await?,
                })
            }
        };
        let cleared = match args.group {
            _ if !args.disarm => 0,
            Some(group) => client.disarm_in(group).await?.len(),
            None => alarm::disarm(&client).await?.len(),
        };
        Ok((compacted, cleared))
    })?;
    if let Some((response, revision)) = compacted.zip(args.revision) {
        print::compact(args.client.write_out, revision, &response)?;
    }
    if args.disarm {
        print::disarm(args.client.write_out, args.group, cleared)?;
    }
    Ok(())
}
