//! `synod member`, `synod move-leader` and `synod reconfigure`: the members of the cluster, its leader, and
//! its protocol.

mod next;
mod view;
mod wait;

use std::time::Duration;

pub use self::view::{members_json, named, told};

use clap::{ArgAction, Args, Subcommand, ValueEnum};
use futures_util::future::join_all;
use serde_json::{Value, json};
use synod_client::{
    Client,
    api::Member,
    native::{
        AddMember, ChangeRequest, ChangeResponse, Goal, Group, GroupMember, Place, Reconfigure, UpdateMember,
        change_request::Change,
    },
};

use crate::{
    client::{ClientArgs, block_on},
    failure::Failure,
    kv::header_json,
    output::{self, Format, object},
    serve::units,
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
    /// Make a replica a member, which joins as a learner and votes once it has caught up
    ///
    /// Prints how to start it, and waits until it votes. Until then the present members go on as before.
    Add {
        /// The name of the new member.
        name: String,
        /// Addresses at which the others will reach it.
        #[arg(long, value_name = "URL,...", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
        /// The new member stays a learner, which follows and does not vote, until it is promoted.
        #[arg(long)]
        learner: bool,
        #[command(flatten)]
        wait: WaitArgs,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove a member from the cluster
    Remove {
        /// Its name, or its id as `synod member list` prints it.
        member: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Let a learner vote
    Promote {
        /// Its name, or its id as `synod member list` prints it.
        member: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Change the addresses at which the others reach a member
    Update {
        /// Its name, or its id as `synod member list` prints it.
        member: String,
        /// Its new addresses.
        #[arg(long, value_name = "URL,...", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Put a new replica in a member's place, in one step once it has caught up
    ///
    /// In this way a replica comes back that lost its data or its machine: under a new id, perhaps with the
    /// old name and the old address. Prints how to start it, and waits until it votes.
    Replace {
        /// The member that leaves: its name, or its id as `synod member list` prints it.
        old: String,
        /// The name of the new member; may be that of the old one.
        name: String,
        /// Addresses at which the others will reach it; may be those of the old one.
        #[arg(long, value_name = "URL,...", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
        #[command(flatten)]
        wait: WaitArgs,
        #[command(flatten)]
        change: ChangeArgs,
    },
}

/// Whether to wait for a new member.
#[derive(Clone, Debug, Args)]
struct WaitArgs {
    /// Show progress until the new member votes; not for a member that stays a learner.
    #[arg(
        long, value_name = "true|false", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set
    )]
    wait: bool,
    /// How long to wait. The member joins even if it takes longer.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::duration_above_zero)]
    wait_timeout: Duration,
}

/// Arguments of all changes.
#[derive(Clone, Debug, Args)]
struct ChangeArgs {
    /// Refuse unless this is the group's version, as `synod status` shows it.
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u64).range(1..))]
    expected_version: Option<u64>,
    #[command(flatten)]
    client: ClientArgs,
}

/// The group of a cluster that has several.
#[derive(Clone, Copy, Debug, Args)]
struct OneGroup {
    /// The group, counted from 0; needed where the cluster has several (`serve --groups`).
    #[arg(long, value_name = "NUMBER")]
    group: Option<u16>,
}

/// Arguments of `synod move-leader`.
#[derive(Clone, Debug, Args)]
pub struct MoveLeaderArgs {
    /// The member that is to lead: its name, or its id as `synod member list` prints it.
    member: String,
    #[command(flatten)]
    of: OneGroup,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `synod reconfigure`.
#[derive(Clone, Debug, Args)]
pub struct ReconfigureArgs {
    /// The new protocol [default: the present one].
    #[arg(long)]
    protocol: Option<synod_consensus::ProtocolKind>,
    /// The new election [default: the protocol's own if --protocol is given, else the present one].
    #[arg(long)]
    election: Option<synod_consensus::ElectionKind>,
    /// Options that all replicas use from now on, whatever they were started with, such as
    /// decision=all,window-max=8, in place of the present ones; "" for none [default: none if --protocol is
    /// given, else the present ones].
    #[arg(long, value_name = "KEY=VALUE,...")]
    options: Option<synod_consensus::Overrides>,
    /// Limits that all replicas apply from now on, such as max-txn-ops=256; limits that are not named stay.
    /// Nothing waits for this change.
    #[arg(long, value_name = "KEY=NUMBER,...", conflicts_with_all = ["protocol", "election", "options"])]
    limits: Option<String>,
    /// The members that vote in the group from now on, by name, or by id as `synod member list` prints it. All of them
    /// vote in group 0, which has no voters of its own. Those that did not vote in the group before learn first.
    #[arg(
        long, value_name = "MEMBER,...", value_delimiter = ',', requires = "group",
        conflicts_with_all = ["protocol", "election", "options", "limits"]
    )]
    voters: Vec<String>,
    /// What the other members are to the group: they learn what it decides, or take no part in it (not where groups are
    /// merged into one order).
    #[arg(long, requires = "voters", default_value = "learn")]
    others: OtherMembers,
    /// Those that vote in group 0 vote in the group again.
    #[arg(
        long, requires = "group", conflicts_with_all = ["protocol", "election", "options", "limits", "voters"]
    )]
    members_follow: bool,
    #[command(flatten)]
    of: OneGroup,
    /// Every group of a cluster that has several. One that has it already stays as it is, so a command that failed in a
    /// part of them can be given again.
    #[arg(long, conflicts_with_all = ["group", "voters", "members_follow", "expected_version"])]
    all_groups: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// What the members are to a group that do not vote in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OtherMembers {
    /// They learn what the group decides.
    Learn,
    /// They take no part in the group.
    Away,
}

pub fn run(args: MemberArgs) -> Result<(), Failure> {
    match args.command {
        MemberCommand::List { client } => list(&client),
        MemberCommand::Add { name, peer_urls, learner, wait, change } => {
            let goal = if learner { Goal::Learn } else { Goal::Vote };
            let wait = WaitArgs { wait: wait.wait && !learner, ..wait };
            change.add(None, &name, peer_urls, goal, &wait)
        }
        MemberCommand::Replace { old, name, peer_urls, wait, change } => {
            change.add(Some(&old), &name, peer_urls, Goal::Replace, &wait)
        }
        MemberCommand::Remove { member, change } => change.client.run(change.on_member(&member, |member| {
            let then = format!(
                "Leave {} running until it ends by itself, when the others go on without it. To use its machine again, \
                 delete its data directory then.",
                view::named(member)
            );
            (Change::Remove(member.id), format!("Member {:x} removed", member.id), then)
        })),
        MemberCommand::Promote { member, change } => change.client.run(change.on_member(&member, |member| {
            let then = format!("{} votes from now on.", view::named(member));
            (Change::Promote(member.id), format!("Member {:x} promoted", member.id), then)
        })),
        MemberCommand::Update { member, peer_urls, change } => {
            change.client.run(change.on_member(&member, |member| {
                let then = format!(
                    "The others reach {} there from now on; it must listen there: --listen-peer-urls.",
                    view::named(member)
                );
                let update = UpdateMember { member: member.id, peer_urls };
                (Change::Update(update), format!("Member {:x} updated", member.id), then)
            }))
        }
    }
}

/// Changes the protocol, its election or options.
pub fn reconfigure(args: ReconfigureArgs) -> Result<(), Failure> {
    let ReconfigureArgs {
        protocol,
        election,
        options,
        limits,
        voters,
        others,
        members_follow,
        of,
        all_groups,
        change,
    } = args;
    if !voters.is_empty() || members_follow {
        return place(&change, of, &voters, others);
    }
    if let Some(limits) = limits {
        // The members know the present limits; this only finds a value that no member would accept.
        synod_replica::Limits::default().with(&limits).map_err(Failure::usage)?;
        let limits = Change::Limits(limits);
        if all_groups {
            return in_all_groups(&change, &limits, limits_of);
        }
        return change_limits(&change, of, limits);
    }
    if protocol.is_none() && election.is_none() && options.is_none() {
        return Err(Failure::usage(
            "give --protocol, --election, --options or --limits, or --group with --voters or --members-follow",
        ));
    }
    let text = |kind: Option<String>| kind.unwrap_or_default();
    let order = Reconfigure {
        protocol: text(protocol.map(|kind| kind.to_string())),
        election: text(election.map(|kind| kind.to_string())),
        options: options.map(|options| options.to_string()),
    };
    let order = Change::Reconfigure(order);
    if all_groups {
        return in_all_groups(&change, &order, order_of);
    }
    change.client.run(async {
        let client = change.client.client()?;
        let changed = change.send(&client, Some(of), order).await?;
        let what = order_of(group(&changed)?);
        let next = "Every replica goes over by itself; `synod status --cluster` shows how far they are.";
        let lines = dropped_of(&changed).into_iter().chain([next.to_owned()]).collect::<Vec<_>>();
        view::print_change(change.client.write_out, &changed, &what, &lines)
    })
}

/// What orders in a group after a change.
fn order_of(group: &Group) -> String {
    let Group { epoch, protocol, election, options, .. } = group;
    let options = if options.is_empty() { String::new() } else { format!(" and {options}") };
    format!("Epoch {epoch}: {protocol} with election {election}{options}")
}

/// What a group lost with its previous protocol, if anything.
fn dropped_of(changed: &ChangeResponse) -> Option<String> {
    let dropped = &changed.dropped;
    (!dropped.is_empty()).then(|| format!("Dropped with the previous protocol: {}", dropped.join(", ")))
}

/// The limits of a group after a change.
fn limits_of(group: &Group) -> String {
    format!("Limits: {}", group.limits)
}

/// Makes a change in every group, in all at the same time; `told` says what a group is then.
fn in_all_groups(change: &ChangeArgs, wanted: &Change, told: fn(&Group) -> String) -> Result<(), Failure> {
    change.client.run(async {
        let client = change.client.client()?;
        let count = view::count_of_groups(&client).await?;
        let changes = (0..count).map(|number| {
            let (client, of) = (&client, OneGroup { group: Some(number) });
            async move { change.send(client, Some(of), wanted.clone()).await }
        });
        let outcomes = join_all(changes).await;
        let (text, failed) = outcomes_told(outcomes, change.client.write_out, told);
        output::print(text.as_bytes())?;
        failed.map_or(Ok(()), Err)
    })
}

/// What a server says of a change that a group has already.
const NOTHING_TO_DO: &str = "nothing would change";

/// What became of a change in each group, and the failure, if it failed in one of them or there was nothing to do in
/// any.
fn outcomes_told(
    outcomes: Vec<Result<ChangeResponse, Failure>>,
    format: Format,
    told: fn(&Group) -> String,
) -> (String, Option<Failure>) {
    let (mut lines, mut rows, mut failed) = (String::new(), Vec::new(), Vec::new());
    let mut changed = 0;
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let (version, dropped) = match outcome.and_then(|answer| Ok((group(&answer)?.clone(), answer))) {
            Ok((group, answer)) => {
                changed += 1;
                let what = told(&group);
                lines += &format!("Group {number}: {what}; the group is at version {}\n", group.version);
                let line = dropped_of(&answer).map(|dropped| format!("Group {number}: {dropped}\n"));
                lines += &line.unwrap_or_default();
                (Some(group.version), answer.dropped)
            }
            Err(why) if why.to_string().contains(NOTHING_TO_DO) => {
                lines += &format!("Group {number}: {NOTHING_TO_DO}\n");
                (None, Vec::new())
            }
            Err(why) => {
                failed.push((number, why));
                continue;
            }
        };
        rows.push(json!({"group": number, "version": version, "dropped": dropped}));
    }
    let rows_count = rows.len();
    let text = match format {
        Format::Json => format!("{}\n", Value::from(rows)),
        _ => lines,
    };
    let mut lines: Vec<_> = failed.iter().map(|(number, why)| format!("group {number}: {why}")).collect();
    if rows_count > 0 {
        lines.push("The other groups have it; give the command again for these".to_owned());
    }
    let failure = match (failed.into_iter().next(), changed) {
        // What helps one of them helps the others.
        (Some((_, why)), _) => Some(why.saying(lines.join("\n"))),
        (None, 0) => Some(Failure::failed(format!("{NOTHING_TO_DO} in any group"))),
        (None, _) => None,
    };
    (text, failure)
}

/// Changes limits of the group.
fn change_limits(change: &ChangeArgs, of: OneGroup, limits: Change) -> Result<(), Failure> {
    change.client.run(async {
        let client = change.client.client()?;
        let changed = change.send(&client, Some(of), limits).await?;
        let what = limits_of(group(&changed)?);
        let next = "They hold at every replica from the same slot on.";
        view::print_change(change.client.write_out, &changed, &what, &[next.to_owned()])
    })
}

/// Changes who of the members votes in a group.
fn place(change: &ChangeArgs, of: OneGroup, voters: &[String], others: OtherMembers) -> Result<(), Failure> {
    change.client.run(async {
        let client = change.client.client()?;
        let members = view::group(&client).await?;
        let found = voters.iter().map(|named| view::find(&members, named)).collect::<Result<Vec<_>, _>>()?;
        let place = Place {
            voters: found.iter().map(|member| member.id).collect(),
            others_stay_away: others == OtherMembers::Away,
        };
        let changed = change.send(&client, Some(of), Change::Place(place)).await?;
        let number = of.group.unwrap_or_default();
        let what = match &found[..] {
            [] => format!("Group {number}: those that vote in group 0 vote"),
            found => {
                let names: Vec<_> = found.iter().copied().map(view::named).collect();
                let others = if others == OtherMembers::Away { "stay away" } else { "learn" };
                let vote = if names.len() == 1 { "votes" } else { "vote" };
                format!("Group {number}: {} {vote}, the others {others}", names.join(", "))
            }
        };
        let next = "Members that did not vote there learn first; `synod status` shows what is missing.";
        view::print_change(change.client.write_out, &changed, &what, &[next.to_owned()])
    })
}

/// Finds the leader of a group, and has it hand over.
async fn move_leader_of(
    args: &MoveLeaderArgs,
    members: &Group,
    group: u16,
    to: &GroupMember,
) -> Result<(), Failure> {
    let leading = view::leader_of(&args.client, members, group).await?;
    let said = if leading.id == to.id {
        format!("{} leads group {group} already\n", view::named(to))
    } else {
        let at_leader = ClientArgs { endpoints: vec![leading.endpoint], ..args.client.clone() };
        at_leader.client()?.move_leader_of(group.into(), to.id).await?;
        format!("Leadership of group {group} moved to {}\n", view::named(to))
    };
    match args.client.write_out {
        Format::Json => output::print_json(&json!({"group": group, "from": leading.id, "to": to.id})),
        _ => output::print(said.as_bytes()),
    }
}

/// Finds the leader, and has it hand over.
pub fn move_leader(args: MoveLeaderArgs) -> Result<(), Failure> {
    args.client.run(async {
        let client = args.client.client()?;
        let group = view::group(&client).await?;
        let to = view::find(&group, &args.member)?;
        if let Some(of) = args.of.group {
            return move_leader_of(&args, &group, of, to).await;
        }
        let leading = view::leader(&args.client, &group).await?;
        if leading.id == to.id && args.client.write_out != Format::Json {
            return output::print(format!("{} leads already\n", view::named(to)).as_bytes());
        }
        let mut at_leader = args.client.clone();
        at_leader.endpoints = vec![leading.endpoint.clone()];
        let response = at_leader.client()?.move_leader(to.id).await?;
        match args.client.write_out {
            Format::Json => output::print_json(&object([
                ("header", header_json(response.header.as_ref())),
                ("from", json!(leading.id)),
                ("to", json!(to.id)),
            ])),
            Format::Table | Format::Wide => {
                let row = [format!("{:x}", leading.id), format!("{:x}", to.id), view::named(to)];
                output::print(output::table(["FROM", "TO", "NAME"], [row]).as_bytes())
            }
            Format::Simple => {
                let from = group.members.iter().find(|member| member.id == leading.id);
                let from = from.map_or_else(|| format!("{:x}", leading.id), view::named);
                output::print(format!("Leadership moved from {from} to {}\n", view::named(to)).as_bytes())
            }
        }
    })
}

impl ChangeArgs {
    /// `of`: the group, for a change that is of one.
    async fn send(
        &self,
        client: &Client,
        of: Option<OneGroup>,
        change: Change,
    ) -> Result<ChangeResponse, Failure> {
        let expected_version = self.expected_version.unwrap_or(0);
        let group = of.and_then(|of| of.group).map(u32::from);
        Ok(client.change(ChangeRequest { expected_version, change: Some(change), group }).await?)
    }

    /// Changes an existing member.
    async fn on_member(
        &self,
        member: &str,
        change: impl FnOnce(&GroupMember) -> (Change, String, String),
    ) -> Result<(), Failure> {
        let client = self.client.client()?;
        let (change, what, next) = change(view::find(&view::group(&client).await?, member)?);
        let changed = self.send(&client, None, change).await?;
        view::print_change(self.client.write_out, &changed, &what, &[next])
    }

    fn add(
        &self,
        replaced: Option<&str>,
        name: &str,
        peer_urls: Vec<String>,
        goal: Goal,
        wait: &WaitArgs,
    ) -> Result<(), Failure> {
        let (added, version) = self.client.run(async {
            let client = self.client.client()?;
            let replaces = match replaced {
                Some(old) => view::find(&view::group(&client).await?, old)?.id,
                None => 0,
            };
            let url = peer_urls.first().cloned().unwrap_or_default();
            let add = AddMember { name: name.to_owned(), peer_urls, goal: goal.into(), replaces };
            let changed = self.send(&client, None, Change::Add(add)).await?;
            let group = group(&changed)?;
            let what = match replaced {
                Some(old) => format!("Member {:x} added, to take the place of {old}", changed.added),
                None => format!("Member {:x} added", changed.added),
            };
            view::print_change(
                self.client.write_out,
                &changed,
                &what,
                &next::steps(group, name, &url, goal),
            )?;
            Ok((changed.added, group.version))
        })?;
        if wait.wait {
            block_on(wait::until_it_votes(&self.client, added, version, wait.wait_timeout))
        } else {
            Ok(())
        }
    }
}

/// The group after a change.
fn group(changed: &ChangeResponse) -> Result<&Group, Failure> {
    changed.group.as_ref().ok_or_else(|| Failure::failed("the answer does not say what the group is now"))
}

fn list(args: &ClientArgs) -> Result<(), Failure> {
    let client = args.client()?;
    let response = args.run(async { Ok(client.member_list(true).await?) })?;
    let urls = |urls: &[String]| urls.join(",");
    let state = |member: &Member| if member.client_ur_ls.is_empty() { "unstarted" } else { "started" };
    let rows = response.members.iter().map(|member| {
        let id = format!("{:x}", member.id);
        let (peers, clients) = (urls(&member.peer_ur_ls), urls(&member.client_ur_ls));
        [id, state(member).to_owned(), member.name.clone(), peers, clients, member.is_learner.to_string()]
    });
    match args.write_out {
        Format::Simple => {
            let lines: String = rows.map(|row| row.join(", ") + "\n").collect();
            output::print(lines.as_bytes())
        }
        // What fits into 80 columns.
        Format::Table => {
            let rows = response.members.iter().map(|member| {
                let state = match state(member) {
                    "started" if member.is_learner => "learner",
                    state => state,
                };
                let (peers, clients) = (urls(&member.peer_ur_ls), urls(&member.client_ur_ls));
                [format!("{:x}", member.id), member.name.clone(), state.to_owned(), peers, clients]
            });
            let head = ["ID", "NAME", "STATUS", "PEER ADDRS", "CLIENT ADDRS"];
            output::print(output::table(head, rows).as_bytes())
        }
        Format::Wide => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_all_groups_tells_of_each_and_can_be_given_again() {
        let changed = |version| {
            let group = Group { version, limits: "max-txn-ops=9".into(), ..Group::default() };
            Ok(ChangeResponse { group: Some(group), ..ChangeResponse::default() })
        };
        let refused = |why: &str| Err(Failure::failed(why));
        let told = |outcomes| outcomes_told(outcomes, Format::Simple, limits_of);
        let (text, failure) = told(vec![changed(4), refused("nothing would change")]);
        let first = "Group 0: Limits: max-txn-ops=9; the group is at version 4\n";
        assert_eq!(text, format!("{first}Group 1: nothing would change\n"));
        assert!(failure.is_none());
        let (text, failure) = told(vec![changed(4), refused("etcdserver: no leader")]);
        let failure = failure.expect("a group does not have it").to_string();
        assert!(text == first && failure.starts_with("group 1: etcdserver: no leader\n"), "{failure}");
        let (_, failure) = told(vec![refused("nothing would change"), refused("nothing would change")]);
        assert!(failure.is_some_and(|failure| failure.to_string() == "nothing would change in any group"));
        let outcomes = vec![changed(4), refused("nothing would change")];
        let (text, _) = outcomes_told(outcomes, Format::Json, limits_of);
        let rows: Value = serde_json::from_str(&text).unwrap();
        let row =
            |number: u64, version: Option<u64>| json!({"group": number, "version": version, "dropped": []});
        assert_eq!(rows, json!([row(0, Some(4)), row(1, None)]));
    }

    #[test]
    fn what_a_change_of_protocol_drops_is_told_of_each_group() {
        let changed = |dropped: &[&str]| {
            let dropped = dropped.iter().map(|it| (*it).to_owned()).collect();
            let group = Group { protocol: "raft".into(), election: "randomized".into(), ..Group::default() };
            ChangeResponse { group: Some(group), dropped, ..ChangeResponse::default() }
        };
        assert_eq!(dropped_of(&changed(&[])), None);
        let outcomes = vec![Ok(changed(&["election=ballot", "decision=all"])), Ok(changed(&[]))];
        let (text, _) = outcomes_told(outcomes, Format::Simple, order_of);
        let line = "Group 0: Dropped with the previous protocol: election=ballot, decision=all\n";
        assert!(text.contains(line) && text.matches("Dropped").count() == 1, "{text}");
    }
}
