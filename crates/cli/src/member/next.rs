//! The next step after a member was added: the command line that starts it.

use synod_client::native::{Goal, Group};
use synod_server::urls;

use super::view;

/// The lines to print.
pub fn steps(group: &Group, name: &str, peer_url: &str, goal: Goal) -> Vec<String> {
    let then = match goal {
        Goal::Learn => {
            format!(
                "It learns and does not vote; `synod member promote {name}` lets it vote once it has caught up."
            )
        }
        Goal::Vote => "It votes by itself once it has caught up.".to_owned(),
        Goal::Replace => "It takes the other one's place by itself once it has caught up.".to_owned(),
    };
    vec![
        "Start it, with an empty data directory (the client URL is a proposal):".to_owned(),
        format!("  {}", command(group, name, peer_url)),
        then,
    ]
}

/// The command line that starts the new member. It proposes a client port in etcd's way: the number before
/// the peer port.
fn command(group: &Group, name: &str, peer_url: &str) -> String {
    let client_url = client_url(peer_url).unwrap_or_else(|| "http://HOST:2379".to_owned());
    let others = group.members.iter().filter(|member| member.votes && member.name != name);
    let url = |urls: &[String]| urls.first().cloned().unwrap_or_default();
    let mut cluster: Vec<_> =
        others.map(|member| format!("{}={}", view::named(member), url(&member.peer_urls))).collect();
    cluster.push(format!("{name}={peer_url}"));
    format!(
        "synod serve --name {name} --data-dir {name}.synod --listen-peer-urls {peer_url} \
         --initial-advertise-peer-urls {peer_url} --listen-client-urls {client_url} --advertise-client-urls \
         {client_url} --initial-cluster {} --initial-cluster-state existing",
        cluster.join(",")
    )
}

fn client_url(peer_url: &str) -> Option<String> {
    let (host, port) = urls::authority(peer_url).ok()?.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    (port > 1).then(|| format!("http://{host}:{}", port - 1))
}

#[cfg(test)]
mod tests {
    use synod_client::native::GroupMember;

    use super::*;

    #[test]
    fn the_command_names_the_others_and_itself() {
        let member = |id, name: &str, votes| GroupMember {
            id,
            name: name.into(),
            peer_urls: vec![format!("http://{name}:2380")],
            votes,
            ..Default::default()
        };
        let members = vec![member(1, "n1", true), member(2, "n2", true), member(4, "n4", false)];
        let group = Group { members, ..Default::default() };
        let command = command(&group, "n4", "http://n4:2380");
        assert!(
            command.contains("--initial-cluster n1=http://n1:2380,n2=http://n2:2380,n4=http://n4:2380 "),
            "{command}"
        );
        assert!(command.contains("--listen-client-urls http://n4:2379 "), "{command}");
        assert!(command.ends_with("--initial-cluster-state existing"), "{command}");
    }
}
