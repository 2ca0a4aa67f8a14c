//! `synod auth`, `synod user` and `synod role`: who may do what, with etcdctl's answers.

mod password;
pub mod role;
pub mod user;

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use synod_client::{Client, Error};

use crate::{
    client::ClientArgs,
    failure::Failure,
    kv::header_json,
    output::{self, Format, object},
};

/// Arguments of `synod auth`.
#[derive(Clone, Debug, Args)]
pub struct AuthArgs {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum AuthCommand {
    /// Make users count: from then on a request needs one
    ///
    /// There must be a user root with the role root, who manages everything from then on.
    Enable {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Make users count no more; users and roles stay as they are
    Disable {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show whether users count, and the revision of users and roles
    Status {
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// A role, named on the command line.
#[derive(Clone, Debug, Args)]
struct Role {
    /// The name of the role.
    #[arg(value_name = "ROLE", value_parser = NonEmptyStringValueParser::new())]
    role: String,
}

pub fn run(args: AuthArgs) -> Result<(), Failure> {
    match args.command {
        AuthCommand::Enable { client } => {
            let fields = json!({"enabled": true});
            let send = |cluster: Client| async move { cluster.auth_enable().await };
            change(&client, "Authentication Enabled", &fields, send)
        }
        AuthCommand::Disable { client } => {
            let fields = json!({"enabled": false});
            let send = |cluster: Client| async move { cluster.auth_disable().await };
            change(&client, "Authentication Disabled", &fields, send)
        }
        AuthCommand::Status { client } => {
            let cluster = client.client()?;
            let found = client.run(async { Ok(cluster.auth_status().await?) })?;
            let (enabled, revision) = (found.enabled, found.auth_revision);
            let text = format!("Authentication Status: {enabled}\nAuthRevision: {revision}");
            let fields = object([
                ("header", header_json(found.header.as_ref())),
                ("enabled", json!(enabled)),
                ("authRevision", json!(revision)),
            ]);
            output::answer(client.write_out, text, &fields)
        }
    }
}

/// Makes a change, and prints what was done.
fn change<F>(
    args: &ClientArgs,
    done: &str,
    fields: &Value,
    send: impl FnOnce(Client) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Error>>,
{
    let cluster = args.client()?;
    args.run(async { Ok(send(cluster).await?) })?;
    output::answer(args.write_out, done, fields)
}

/// Prints names, each in a line.
fn print_names(format: Format, what: &str, names: &[String]) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(&object([(what, json!(names))])),
        _ => {
            let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
            output::print(lines.as_bytes())
        }
    }
}
