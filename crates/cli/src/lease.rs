//! `synod lease`: leases from a shell, with etcdctl's answers.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use synod_client::{Client, api::LeaseTimeToLiveResponse};
use tokio::time::sleep;

use crate::{
    client::{ClientArgs, block_on},
    failure::Failure,
    kv::{header_json, lease_id},
    output::{self, Format, base64, object},
};

/// Arguments of `synod lease`.
#[derive(Clone, Debug, Args)]
pub struct LeaseArgs {
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum LeaseCommand {
    /// Grant a lease
    Grant {
        /// Its time to live in seconds; at least 2 are granted.
        #[arg(value_name = "SECONDS", allow_hyphen_values = true)]
        ttl: i64,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// End a lease, and delete its keys
    Revoke {
        #[command(flatten)]
        lease: Named,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show for how long a lease lives
    #[command(name = "timetolive", visible_alias = "time-to-live")]
    TimeToLive {
        #[command(flatten)]
        lease: Named,
        /// Show its keys too.
        #[arg(long)]
        keys: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show all leases
    List {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Renew a lease until it ends or this command is interrupted
    #[command(visible_alias = "keepalive")]
    KeepAlive {
        #[command(flatten)]
        lease: Named,
        /// Renew it once.
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// A lease.
#[derive(Clone, Debug, Args)]
struct Named {
    /// The lease's id in hexadecimal, as it was printed.
    #[arg(value_name = "LEASE", value_parser = lease_id)]
    id: i64,
}

pub fn run(args: LeaseArgs) -> Result<(), Failure> {
    match args.command {
        LeaseCommand::Grant { ttl, client } => {
            let cluster = client.client()?;
            let granted = client.run(async { Ok(cluster.lease_grant(ttl, 0).await?) })?;
            let (id, ttl) = (granted.id, granted.ttl);
            let header = header_json(granted.header.as_ref());
            let fields = object([("header", header), ("id", json!(id)), ("ttl", json!(ttl))]);
            output::answer(client.write_out, format!("lease {id:016x} granted with TTL({ttl}s)"), &fields)
        }
        LeaseCommand::Revoke { lease: Named { id }, client } => {
            let cluster = client.client()?;
            let revoked = client.run(async { Ok(cluster.lease_revoke(id).await?) })?;
            let fields = object([("header", header_json(revoked.header.as_ref()))]);
            output::answer(client.write_out, format!("lease {id:016x} revoked"), &fields)
        }
        LeaseCommand::TimeToLive { lease: Named { id }, keys, client } => {
            let cluster = client.client()?;
            let found = client.run(async { Ok(cluster.lease_time_to_live(id, keys).await?) })?;
            output::answer(client.write_out, time_to_live(&found, keys), &time_to_live_json(&found))
        }
        LeaseCommand::List { client } => {
            let cluster = client.client()?;
            let found = client.run(async { Ok(cluster.leases().await?) })?;
            let ids: Vec<i64> = found.leases.iter().map(|lease| lease.id).collect();
            let lines = ids.iter().map(|id| format!("\n{id:016x}"));
            let text = format!("found {} leases{}", ids.len(), lines.collect::<String>());
            let leases = ids.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>();
            let fields = object([("header", header_json(found.header.as_ref())), ("leases", json!(leases))]);
            output::answer(client.write_out, text, &fields)
        }
        LeaseCommand::KeepAlive { lease: Named { id }, once, client } => {
            let cluster = client.client()?;
            if once {
                return client.run(renew(&cluster, id, client.write_out)).map(drop);
            }
            block_on(async {
                while let Some(ttl) = renew(&cluster, id, client.write_out).await? {
                    // As etcd's clients do: two renewals may be lost.
                    sleep(Duration::from_secs_f64(ttl as f64 / 3.0)).await;
                }
                Ok(())
            })
        }
    }
}

/// Renews a lease; returns its time to live, unless it has ended.
async fn renew(cluster: &Client, id: i64, format: Format) -> Result<Option<i64>, Failure> {
    let renewed = cluster.lease_keep_alive(id).await?;
    let ttl = renewed.ttl;
    let header = header_json(renewed.header.as_ref());
    let fields = object([("header", header), ("id", json!(id)), ("ttl", json!(ttl))]);
    let text = match ttl {
        0 => format!("lease {id:016x} expired or revoked."),
        ttl => format!("lease {id:016x} keepalived with TTL({ttl})"),
    };
    output::answer(format, text, &fields)?;
    Ok(Some(ttl).filter(|ttl| *ttl > 0))
}

fn time_to_live(found: &LeaseTimeToLiveResponse, keys: bool) -> String {
    let (id, ttl, granted) = (found.id, found.ttl, found.granted_ttl);
    if ttl < 0 {
        return format!("lease {id:016x} already expired");
    }
    let text = format!("lease {id:016x} granted with TTL({granted}s), remaining({ttl}s)");
    if !keys {
        return text;
    }
    let attached: Vec<_> = found.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
    format!("{text}, attached keys([{}])", attached.join(" "))
}

fn time_to_live_json(found: &LeaseTimeToLiveResponse) -> Value {
    object([
        ("header", header_json(found.header.as_ref())),
        ("id", json!(found.id)),
        ("ttl", json!(found.ttl)),
        ("granted-ttl", json!(found.granted_ttl)),
        ("keys", found.keys.iter().map(|key| base64(key)).collect()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_etcdctl() {
        let found = LeaseTimeToLiveResponse {
            id: 0x1234,
            ttl: 5,
            granted_ttl: 10,
            keys: vec!["a".into(), "b".into()],
            ..Default::default()
        };
        let text = "lease 0000000000001234 granted with TTL(10s), remaining(5s)";
        assert_eq!(time_to_live(&found, false), text);
        assert_eq!(time_to_live(&found, true), format!("{text}, attached keys([a b])"));
        let gone = LeaseTimeToLiveResponse { ttl: -1, ..found };
        assert_eq!(time_to_live(&gone, true), "lease 0000000000001234 already expired");
        assert!(lease_id("0000000000001234") == Ok(0x1234) && lease_id("x").is_err());
    }
}
