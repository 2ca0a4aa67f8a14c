//! Replicas as threads of this process, over TCP: the runtime of a server without gRPC.
//!
//! The document's client runs on the replicas' machine and speaks their own messages. So this ground measures
//! the protocol with its network and threads, without the API in front of it.

use std::{
    fs,
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_consensus::Overrides;
use synod_node::{Config, MemberAddress, Node};
use synod_replica::Change;
use synod_wire::{ClusterId, ReplicaId};
use tokio::{
    runtime::Builder,
    task::{JoinSet, LocalSet},
    time::sleep,
};

use super::{
    Act, Asked, Load, Outcome, Setup, What,
    client::{Client, Target},
    registry::{Registry, VALUES_MAX, Values},
    waiter::Waiter,
};
use crate::{
    net::{Relay, free_addresses},
    study::{Conduct, LabError},
};

/// How long a group may take to find its first leader.
const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long replicas may take to have the same state once the load is over.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a waiting thread checks whether it was interrupted.
const GLANCE_INTERVAL: Duration = Duration::from_millis(20);

/// Starts the replicas, drives the load against them, and checks that they kept their promises.
///
/// # Errors
/// The replicas do not start or find no leader, an acknowledged value is missing at a replica, replicas
/// disagree, or Ctrl-C was pressed.
pub fn run(setup: &Setup, load: &Load, conduct: &Conduct) -> Result<Outcome, LabError> {
    if load.rate.is_some() || load.asked != Asked::Leader || load.value_bytes != 8 {
        return Err(replicas("threads have a closed loop of 8 bytes at the leader; see `--set on=`"));
    }
    let group = Group::start(setup)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(replicas)?;
    let (outcome, acknowledged) = LocalSet::new().block_on(&runtime, drive(&group, setup, load, conduct))?;
    let registries = runtime.block_on(group.agree(conduct))?;
    verify(&acknowledged, &registries)?;
    for node in group.nodes {
        node.stop_now_blocking().map_err(replicas)?;
    }
    Ok(outcome)
}

fn replicas(error: impl std::fmt::Display) -> LabError {
    LabError::Replicas(error.to_string())
}

/// Running replicas, and the network between them.
struct Group {
    nodes: Vec<Node>,
    ids: Vec<ReplicaId>,
    /// Dropped after the replicas.
    _relay: Option<Relay>,
    _folder: tempfile::TempDir,
}

impl Group {
    fn start(setup: &Setup) -> Result<Group, LabError> {
        let folder = tempfile::tempdir().map_err(replicas)?;
        let ids: Vec<_> = (1..=setup.replicas as u64).map(ReplicaId).collect();
        let own = free_addresses(ids.len()).map_err(replicas)?;
        let relay = match &setup.topology {
            None => None,
            Some(topology) => {
                let targets = ids.iter().copied().zip(own.iter().copied()).collect();
                Some(Relay::start(topology.links(ids.len())?, targets, setup.seed).map_err(replicas)?)
            }
        };
        let advertised = relay.as_ref().map_or(own.clone(), |relay| relay.addresses().to_vec());
        let member = |(id, address): (&ReplicaId, &SocketAddr)| {
            MemberAddress::new(*id, format!("r{}", id.0), address.to_string())
        };
        let members: Vec<_> = ids.iter().zip(&advertised).map(member).collect();
        let mut nodes = Vec::new();
        for (index, (&id, &address)) in ids.iter().zip(&own).enumerate() {
            let data = folder.path().join(format!("r{}", id.0));
            fs::create_dir_all(&data).map_err(replicas)?;
            let mut config = Config::new(ClusterId(0x1ab), id, members.clone(), data);
            config.listen = vec![address];
            config.durability = setup.durability;
            config.settings = setup.settings_of(index);
            nodes.push(Node::start_blocking(config, Registry::default()).map_err(replicas)?);
        }
        Ok(Group { nodes, ids, _relay: relay, _folder: folder })
    }

    fn targets(&self, setup: &Setup) -> Result<Vec<Target>, LabError> {
        let target = |(index, (&id, node)): (usize, (&ReplicaId, &Node))| {
            let way = match &setup.topology {
                None => (Duration::ZERO, Duration::ZERO),
                Some(topology) => topology.client_way(index)?,
            };
            Ok(Target { id, handle: node.handle(), way })
        };
        self.ids.iter().zip(&self.nodes).enumerate().map(target).collect()
    }

    /// Waits until all replicas have executed the same slots, and returns what each holds.
    async fn agree(&self, conduct: &Conduct) -> Result<Vec<Registry>, LabError> {
        let deadline = Instant::now() + AGREEMENT_TIMEOUT;
        loop {
            conduct.check()?;
            let mut digests = Vec::new();
            for node in &self.nodes {
                digests.push(node.handle().digest().await.map_err(replicas)?);
            }
            if digests.windows(2).all(|pair| pair[0] == pair[1]) {
                break;
            }
            let same_slot = digests.windows(2).all(|pair| pair[0].0 == pair[1].0);
            if same_slot && Instant::now() > deadline {
                return Err(LabError::Broken(format!("states differ at slot {}", digests[0].0)));
            }
            if Instant::now() > deadline {
                let slots: Vec<_> = digests.iter().map(|(slot, _)| slot.to_string()).collect();
                let slots = slots.join(", ");
                return Err(LabError::Broken(format!("a replica does not catch up: slots {slots}")));
            }
            sleep(GLANCE_INTERVAL).await;
        }
        let mut registries = Vec::new();
        for node in &self.nodes {
            let bytes = node.handle().query_stale(Bytes::new()).await.map_err(replicas)?;
            registries.push(Registry::decode(&bytes).map_err(replicas)?);
        }
        Ok(registries)
    }
}

/// The check of the test client of Ng 2020 (section 4.5.1), for all replicas rather than a majority: all of them
/// have every acknowledged value. (`agree` has already waited until they hold the same values in the same order.)
fn verify(acknowledged: &Values, registries: &[Registry]) -> Result<(), LabError> {
    for (registry, id) in registries.iter().zip(1..) {
        if let Some(value) = acknowledged.first_missing_in(&registry.values) {
            let all = acknowledged.len();
            let what = format!("value {value}, one of {all} that were acknowledged, is not in replica {id}");
            return Err(LabError::Broken(what));
        }
    }
    Ok(())
}

async fn drive(
    group: &Group,
    setup: &Setup,
    load: &Load,
    conduct: &Conduct,
) -> Result<(Outcome, Values), LabError> {
    let client = Client::new(group.targets(setup)?, load);
    let mut waiters = Vec::new();
    if load.thread_each {
        for _ in 0..load.concurrent {
            waiters.push(Waiter::start().map_err(replicas)?);
        }
    }
    let mut tasks = JoinSet::new();
    tasks.spawn_local(Rc::clone(&client).follow());
    let deadline = Instant::now() + FIRST_LEADER_TIMEOUT;
    while client.leader().is_none() {
        conduct.check()?;
        if Instant::now() > deadline {
            return Err(replicas(format!("nobody leads after {FIRST_LEADER_TIMEOUT:?}")));
        }
        sleep(GLANCE_INTERVAL).await;
    }
    let mut waiters = waiters.into_iter();
    for _ in 0..load.concurrent {
        tasks.spawn_local(Rc::clone(&client).propose(waiters.next()));
    }
    pause(load.warm_up, &client, conduct).await?;
    client.open(load.window);
    let began = Instant::now();
    let mut acts = Vec::new();
    for act in &load.acts {
        pause(act.at.saturating_sub(began.elapsed()), &client, conduct).await?;
        let asked = began.elapsed();
        perform(act, group, &client, conduct).await?;
        acts.push((asked, began.elapsed() - asked));
    }
    pause(load.window.saturating_sub(began.elapsed()), &client, conduct).await?;
    client.stop();
    // Every outstanding proposal is answered or times out, so all acknowledgements are known before replicas
    // are compared.
    while tasks.join_next().await.is_some() {
        conduct.check()?;
    }
    let (mut outcome, acknowledged) = client.finish();
    outcome.acts = acts;
    Ok((outcome, acknowledged))
}

/// Sleeps, and checks regularly whether it was interrupted.
async fn pause(time: Duration, client: &Client, conduct: &Conduct) -> Result<(), LabError> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        conduct.check()?;
        if client.values() > VALUES_MAX {
            return Err(replicas(format!("more than {VALUES_MAX} values; choose a shorter window")));
        }
        sleep(GLANCE_INTERVAL.min(until.saturating_duration_since(Instant::now()))).await;
    }
    Ok(())
}

/// Asks the leader for a change until it is made. If a change was made but its answer was lost, the group shows it.
async fn perform(act: &Act, group: &Group, client: &Client, conduct: &Conduct) -> Result<(), LabError> {
    let What::Order(protocol, election) = act.what else {
        return Err(replicas("replicas as threads cannot be replaced; see `--set on=virtual`"));
    };
    loop {
        conduct.check()?;
        let handle = client.leader().map_or_else(|| group.nodes[0].handle(), |leader| leader.handle.clone());
        let now = handle.group();
        if (now.protocol, now.election) == (protocol, election) {
            return Ok(());
        }
        let asked = handle
            .change(now.version, Change::Order { protocol, election, overrides: Overrides::default() })
            .await;
        if asked.is_err() {
            sleep(GLANCE_INTERVAL).await;
        }
    }
}
