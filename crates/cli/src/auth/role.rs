//! `synod role`: roles, and what these permit.

use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use synod_client::{
    Client,
    authpb::{Permission, permission::Type},
};
use synod_kv::ROOT;

use super::{Role, change, print_names};
use crate::{
    client::ClientArgs,
    failure::Failure,
    kv::{Range, after_prefix, header_json},
    output::{self, Format, base64, object},
};

/// How a range ends that has no last key. It is etcd's.
const OPEN_END: &[u8] = b"\0";

/// Arguments of `synod role`.
#[derive(Clone, Debug, Args)]
pub struct RoleArgs {
    #[command(subcommand)]
    command: RoleCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum RoleCommand {
    /// Add a role, which permits nothing yet
    Add {
        #[command(flatten)]
        role: Role,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Delete a role, and take it away from all users
    Delete {
        #[command(flatten)]
        role: Role,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show what a role permits
    Get {
        #[command(flatten)]
        role: Role,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the names of all roles
    List {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Let the users of a role read, write, or both, a key or a range of keys
    GrantPermission {
        #[command(flatten)]
        role: Role,
        /// What is permitted. It takes the place of what was permitted for exactly this key or range.
        #[arg(value_name = "PERMISSION", value_enum, ignore_case = true)]
        kind: Kind,
        #[command(flatten)]
        range: Range,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Take a permission away from a role, by exactly the key or range that it was granted for
    RevokePermission {
        #[command(flatten)]
        role: Role,
        #[command(flatten)]
        range: Range,
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// The kinds of permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Reading and watching.
    Read,
    /// Putting and deleting.
    Write,
    /// Both.
    Readwrite,
}

impl From<Kind> for Type {
    fn from(kind: Kind) -> Type {
        match kind {
            Kind::Read => Type::Read,
            Kind::Write => Type::Write,
            Kind::Readwrite => Type::Readwrite,
        }
    }
}

pub fn run(args: RoleArgs) -> Result<(), Failure> {
    match args.command {
        RoleCommand::Add { role: Role { role }, client } => {
            let (done, fields) = (format!("Role {role} created"), json!({"role": role}));
            change(&client, &done, &fields, |cluster| async move { cluster.role_add(&role).await })
        }
        RoleCommand::Delete { role: Role { role }, client } => {
            let (done, fields) = (format!("Role {role} deleted"), json!({"role": role}));
            change(&client, &done, &fields, |cluster| async move { cluster.role_delete(&role).await })
        }
        RoleCommand::Get { role: Role { role }, client } => {
            let cluster = client.client()?;
            let found = client.run(async { Ok(cluster.role_get(&role).await?) })?;
            match client.write_out {
                Format::Json => output::print_json(&object([
                    ("header", header_json(found.header.as_ref())),
                    ("perm", permissions_json(&found.perm)),
                ])),
                _ => output::print(permissions_lines(&role, &found.perm).as_bytes()),
            }
        }
        RoleCommand::List { client } => {
            let cluster = client.client()?;
            let roles = client.run(async { Ok(cluster.roles().await?) })?;
            print_names(client.write_out, "roles", &roles)
        }
        RoleCommand::GrantPermission { role: Role { role }, kind, range, client } => {
            let (done, fields) = (format!("Role {role} updated"), json!({"role": role}));
            let (key, end) = range.bounds();
            let send =
                |cluster: Client| async move { cluster.role_grant(&role, kind.into(), key, end).await };
            change(&client, &done, &fields, send)
        }
        RoleCommand::RevokePermission { role: Role { role }, range, client } => {
            let typed = range.key.clone();
            let (key, end) = range.bounds();
            let of = match &end[..] {
                [] => format!("key {typed}"),
                end => format!("range {}", between(typed.as_bytes(), end)),
            };
            let done = format!("Permission of {of} is revoked from role {role}");
            let fields = json!({"role": role});
            let send = |cluster: Client| async move { cluster.role_revoke(&role, key, end).await };
            change(&client, &done, &fields, send)
        }
    }
}

/// What a role permits. The role root permits everything, and need not have been added.
pub async fn permissions(cluster: &Client, role: &str) -> Result<Vec<Permission>, Failure> {
    if role == ROOT {
        let range_end = Bytes::from_static(OPEN_END);
        return Ok(vec![Permission { perm_type: Type::Readwrite.into(), key: Bytes::new(), range_end }]);
    }
    Ok(cluster.role_get(role).await?.perm)
}

/// What a role permits, as etcdctl prints it.
pub fn permissions_lines(role: &str, permissions: &[Permission]) -> String {
    let of = |kinds: [Type; 2]| {
        // A kind that is not defined permits nothing.
        let permitted =
            permissions.iter().filter(|found| kinds.iter().any(|kind| *kind as i32 == found.perm_type));
        permitted.map(line).collect::<String>()
    };
    let (read, write) = (of([Type::Read, Type::Readwrite]), of([Type::Write, Type::Readwrite]));
    format!("Role {role}\nKV Read:\n{read}KV Write:\n{write}")
}

/// The line of a permission: its key or range.
fn line(permission: &Permission) -> String {
    let (key, end) = (&permission.key[..], &permission.range_end[..]);
    let text = String::from_utf8_lossy(key);
    if end.is_empty() {
        return format!("\t{text}\n");
    }
    let is_prefix = !key.is_empty() && after_prefix(key)[..] == *end;
    let prefix = if is_prefix { format!(" (prefix {text})") } else { String::new() };
    format!("\t{}{prefix}\n", between(key, end))
}

/// A range, as etcdctl prints it.
fn between(key: &[u8], end: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    if end == OPEN_END {
        format!("[{key}, <open ended>")
    } else {
        format!("[{key}, {})", String::from_utf8_lossy(end))
    }
}

/// Permissions with etcdctl's names. Those to read have no `permType`, since their kind is 0.
pub fn permissions_json(permissions: &[Permission]) -> Value {
    let one = |found: &Permission| {
        object([
            ("permType", json!(found.perm_type)),
            ("key", base64(&found.key)),
            ("range_end", base64(&found.range_end)),
        ])
    };
    permissions.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(kind: Type, key: &'static str, end: &'static str) -> Permission {
        Permission { perm_type: kind.into(), key: key.into(), range_end: end.into() }
    }

    #[test]
    fn permissions_are_those_of_etcdctl() {
        let all = [
            permission(Type::Read, "a", ""),
            permission(Type::Readwrite, "b", "c"),
            permission(Type::Write, "d", "f"),
            permission(Type::Read, "g", "\0"),
            Permission { perm_type: 7, ..permission(Type::Read, "h", "") },
        ];
        let text = "Role r\nKV Read:\n\ta\n\t[b, c) (prefix b)\n\t[g, <open ended>\n\
                    KV Write:\n\t[b, c) (prefix b)\n\t[d, f)\n";
        assert_eq!(permissions_lines("r", &all), text);
        let json = r#"[{"key":"YQ=="},{"key":"Yg==","permType":2,"range_end":"Yw=="}]"#;
        assert_eq!(permissions_json(&all[..2]).to_string(), json);
    }
}
