//! `synod member list`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    client::{ClientArgs, block_on},
    failure::Failure,
    kv::header_json,
    output::{self, Format, object},
};

/// Arguments of `synod member`.
#[derive(Clone, Debug, Args)]
pub struct MemberArgs {
    #[command(subcommand)]
    command: MemberCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum MemberCommand {
    /// The replicas of the cluster: id, state, name, peer URLs, client URLs, whether it has no vote
    List {
        #[command(flatten)]
        client: ClientArgs,
    },
}

pub fn run(args: MemberArgs) -> Result<(), Failure> {
    let MemberCommand::List { client: args } = args.command;
    let client = args.client()?;
    let response = block_on(async { Ok(client.member_list(true).await?) })?;
    let rows = response.members.iter().map(|member| {
        let id = format!("{:x}", member.id);
        let urls = [&member.peer_ur_ls, &member.client_ur_ls].map(|urls| urls.join(","));
        let [peers, clients] = urls;
        [id, "started".to_owned(), member.name.clone(), peers, clients, member.is_learner.to_string()]
    });
    match args.write_out {
        Format::Simple => {
            let lines: String = rows.map(|row| row.join(", ") + "\n").collect();
            output::print(lines.as_bytes())
        }
        Format::Table => {
            let head = ["ID", "STATUS", "NAME", "PEER ADDRS", "CLIENT ADDRS", "IS LEARNER"];
            output::print(output::table(head, rows).as_bytes())
        }
        Format::Json => {
            let members: Value = response
                .members
                .iter()
                .map(|member| {
                    object([
                        ("ID", json!(member.id)),
                        ("name", json!(member.name)),
                        ("peerURLs", json!(member.peer_ur_ls)),
                        ("clientURLs", json!(member.client_ur_ls)),
                        ("isLearner", json!(member.is_learner)),
                    ])
                })
                .collect();
            output::print_json(&object([
                ("header", header_json(response.header.as_ref())),
                ("members", members),
            ]))
        }
    }
}
