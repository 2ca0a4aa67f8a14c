//! `synod user`: users, their passwords and their roles.

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use serde_json::{Value, json};
use synod_client::{Client, authpb::Permission};

use super::{Role, change, password::NewPassword, print_names, role};
use crate::{
    client::ClientArgs,
    failure::Failure,
    output::{self, Format, object},
};

/// Arguments of `synod user`.
#[derive(Clone, Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum UserCommand {
    /// Add a user, who may do nothing until a role is granted
    ///
    /// At a terminal the command asks for the password, and does not show it. Otherwise the password is the first line
    /// of standard input.
    Add {
        /// The name of the user. As with etcdctl, NAME:PASSWORD gives the password too, which others on this machine
        /// can then see in the list of processes. With --no-password, --new-password or --new-password-file all of it
        /// is the name.
        #[arg(value_name = "NAME[:PASSWORD]", value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// The user has no password, and shows a certificate with NAME as its common name.
        #[arg(long, conflicts_with_all = ["new_password", "new_password_file"])]
        no_password: bool,
        #[command(flatten)]
        source: NewPassword,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Delete a user
    Delete {
        #[command(flatten)]
        user: User,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the roles of a user
    Get {
        #[command(flatten)]
        user: User,
        /// Show what each role permits.
        #[arg(long)]
        detail: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the names of all users
    List {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Give a user another password, which ends what was begun with the old one
    ///
    /// At a terminal the command asks for the password, and does not show it. Otherwise the password is the first line
    /// of standard input. A user that was added with --no-password stays without one.
    Passwd {
        #[command(flatten)]
        user: User,
        #[command(flatten)]
        source: NewPassword,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Give a user a role; the role root permits everything
    GrantRole(RoleOfUser),
    /// Take a role away from a user
    RevokeRole(RoleOfUser),
}

/// A user, and a role that it has or gets.
#[derive(Clone, Debug, Args)]
struct RoleOfUser {
    #[command(flatten)]
    user: User,
    #[command(flatten)]
    role: Role,
    #[command(flatten)]
    client: ClientArgs,
}

/// A user, named on the command line. (The user for whom the command is executed is `--user`.)
#[derive(Clone, Debug, Args)]
struct User {
    /// The name of the user.
    #[arg(value_name = "USER", value_parser = NonEmptyStringValueParser::new())]
    name: String,
}

pub fn run(args: UserArgs) -> Result<(), Failure> {
    match args.command {
        UserCommand::Add { name, no_password, source, client } => {
            let (name, password) = if no_password {
                (name, None)
            } else {
                let (name, password) = source.of_new_user(name)?;
                (name, Some(password))
            };
            let (done, fields) = (format!("User {name} created"), json!({"user": name}));
            let send = |cluster: Client| async move { cluster.user_add(&name, password.as_deref()).await };
            change(&client, &done, &fields, send)
        }
        UserCommand::Delete { user: User { name }, client } => {
            let (done, fields) = (format!("User {name} deleted"), json!({"user": name}));
            change(&client, &done, &fields, |cluster| async move { cluster.user_delete(&name).await })
        }
        UserCommand::Get { user: User { name }, detail, client } => get(&client, &name, detail),
        UserCommand::List { client } => {
            let cluster = client.client()?;
            let users = client.run(async { Ok(cluster.users().await?) })?;
            print_names(client.write_out, "users", &users)
        }
        UserCommand::Passwd { user: User { name }, source, client } => {
            let password = source.of_user(&name)?;
            let fields = json!({"user": name});
            let send = |cluster: Client| async move { cluster.user_change_password(&name, &password).await };
            change(&client, "Password updated", &fields, send)
        }
        UserCommand::GrantRole(RoleOfUser { user: User { name }, role: Role { role }, client }) => {
            let done = format!("Role {role} is granted to user {name}");
            let fields = json!({"user": name, "role": role});
            let send = |cluster: Client| async move { cluster.user_grant_role(&name, &role).await };
            change(&client, &done, &fields, send)
        }
        UserCommand::RevokeRole(RoleOfUser { user: User { name }, role: Role { role }, client }) => {
            let done = format!("Role {role} is revoked from user {name}");
            let fields = json!({"user": name, "role": role});
            let send = |cluster: Client| async move { cluster.user_revoke_role(&name, &role).await };
            change(&client, &done, &fields, send)
        }
    }
}

/// Prints the roles of a user, and with `detail` what they permit.
fn get(args: &ClientArgs, name: &str, detail: bool) -> Result<(), Failure> {
    let cluster = args.client()?;
    let (roles, permitted) = args.run(async {
        let roles = cluster.user_roles(name).await?;
        let mut permitted: Vec<(String, Vec<Permission>)> = Vec::new();
        for role in roles.iter().filter(|_| detail) {
            permitted.push((role.clone(), role::permissions(&cluster, role).await?));
        }
        Ok((roles, permitted))
    })?;
    match args.write_out {
        Format::Json => {
            let permitted = permitted.iter().map(|(role, permissions)| {
                object([("role", json!(role)), ("perm", role::permissions_json(permissions))])
            });
            let permitted: Value = permitted.collect();
            output::print_json(&object([("roles", json!(roles)), ("detail", permitted)]))
        }
        _ if detail => {
            let parts = permitted
                .iter()
                .map(|(role, permissions)| format!("\n{}", role::permissions_lines(role, permissions)));
            output::print(format!("User: {name}\n{}", parts.collect::<String>()).as_bytes())
        }
        _ => {
            let named: String = roles.iter().map(|role| format!(" {role}")).collect();
            output::print(format!("User: {name}\nRoles:{named}\n").as_bytes())
        }
    }
}
