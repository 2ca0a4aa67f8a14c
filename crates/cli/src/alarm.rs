//! `synod alarm`: what stands in the way of writes, with etcdctl's answers.

use clap::{Args, Subcommand};
use serde_json::json;
use synod_client::{Client, api::AlarmMember};

use crate::{
    client::ClientArgs,
    failure::Failure,
    output::{self, Format, object},
};

/// Arguments of `synod alarm`.
#[derive(Clone, Debug, Args)]
pub struct AlarmArgs {
    #[command(subcommand)]
    command: AlarmCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum AlarmCommand {
    /// Show the alarms that are raised
    List {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Clear all alarms, and show which those were
    ///
    /// With NOSPACE first make room: delete keys, and forget old versions (`synod compact`); otherwise the next put
    /// raises it again. With CORRUPT first replace the members whose contents differ (`synod member replace`).
    Disarm {
        #[command(flatten)]
        client: ClientArgs,
    },
}

pub fn run(args: AlarmArgs) -> Result<(), Failure> {
    match args.command {
        AlarmCommand::List { client } => {
            let cluster = client.client()?;
            let raised = client.run(async { Ok(cluster.alarms().await?) })?;
            print(client.write_out, &raised)
        }
        AlarmCommand::Disarm { client } => {
            let cluster = client.client()?;
            let cleared = client.run(disarm(&cluster))?;
            print(client.write_out, &cleared)
        }
    }
}

/// Clears all alarms that are raised; returns them.
pub async fn disarm(cluster: &Client) -> Result<Vec<AlarmMember>, Failure> {
    let mut cleared = Vec::new();
    for raised in cluster.alarms().await? {
        cleared.extend(cluster.disarm(raised.member_id, raised.alarm()).await?);
    }
    Ok(cleared)
}

fn print(format: Format, alarms: &[AlarmMember]) -> Result<(), Failure> {
    match format {
        Format::Json => {
            let alarms: Vec<_> = alarms
                .iter()
                .map(|raised| json!({"memberID": raised.member_id, "alarm": raised.alarm}))
                .collect();
            output::print_json(&object([("alarms", json!(alarms))]))
        }
        _ => {
            // The space at the end is etcdctl's.
            let lines = alarms.iter().map(|raised| {
                format!("memberID:{} alarm:{} \n", raised.member_id, raised.alarm().as_str_name())
            });
            output::print(lines.collect::<String>().as_bytes())
        }
    }
}
