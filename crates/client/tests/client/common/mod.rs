//! Two endpoints of one store, each of which can be made to fail.

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use synod_client::Config;
use synod_kv::KvStore;
use synod_server::{
    Answer, ChangeError, Changed, Config as ServerConfig, Consistency, Elsewhere, Group, InMemory, Limits,
    Member, MemberInfo, MoveError, Registry, Replica, RequestError, Server, Start, Status, SubscribeError,
    Subscription, Wanted, Watches,
};
use synod_wire::{ClusterId, GroupId, ReplicaId, SessionId};

/// What an endpoint does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It executes the request, and answers with an error.
    LoseAnswer(RequestError),
    /// It executes the request, and never answers.
    Hang,
    /// It does not execute the request, and answers with an error at once.
    Refuse(RequestError),
    /// It does not execute the request, and answers with an error after two seconds.
    RefuseLate(RequestError),
    /// It does so with every other request.
    EveryOther(Box<Fault>),
}

/// A replica that fails as a test demands.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: InMemory,
    fault: Arc<Mutex<Fault>>,
    /// The members that take part in its groups, if it does not.
    elsewhere: Arc<Mutex<Option<Elsewhere>>>,
    /// Why it refuses the next subscriptions.
    refusals: Arc<Mutex<VecDeque<SubscribeError>>>,
    /// Requests that came, commands and queries alike.
    seen: Arc<AtomicUsize>,
    /// Whether it says that it knows no leader.
    leaderless: Arc<AtomicBool>,
}

impl Faulty {
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    pub fn send_on(&self, elsewhere: Option<Elsewhere>) {
        *self.elsewhere.lock().unwrap() = elsewhere;
    }

    pub fn refuse_to_be_followed(&self, refusals: impl IntoIterator<Item = SubscribeError>) {
        *self.refusals.lock().unwrap() = refusals.into_iter().collect();
    }

    pub fn knows_leader(&self, knows: bool) {
        self.leaderless.store(!knows, Ordering::SeqCst);
    }

    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }

    async fn meddle<T>(
        &self,
        execute: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        let fault = match self.fault.lock().unwrap().clone() {
            Fault::EveryOther(fault) => {
                if seen.is_multiple_of(2) {
                    *fault
                } else {
                    Fault::None
                }
            }
            fault => fault,
        };
        match fault {
            Fault::EveryOther(_) => unreachable!("it is another fault by now"),
            Fault::Refuse(error) => Err(error),
            Fault::RefuseLate(error) => {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Err(error)
            }
            Fault::None => execute.await,
            Fault::LoseAnswer(error) => execute.await.and(Err(error)),
            Fault::Hang => {
                execute.await?;
                pending().await
            }
        }
    }
}

impl Replica for Faulty {
    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.meddle(self.inner.execute(command)).await
    }
    async fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        self.meddle(self.inner.execute_in_session(session, sequence, lowest_outstanding, command)).await
    }
    async fn open_session(&self) -> Result<SessionId, RequestError> {
        self.meddle(self.inner.open_session()).await
    }
    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        self.meddle(self.inner.query(query, consistency)).await
    }
    fn term(&self) -> u64 {
        self.inner.term()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn status(&self) -> Status {
        let mut status = self.inner.status();
        status.node.leader = status.node.leader.filter(|_| !self.leaderless.load(Ordering::SeqCst));
        status
    }
    fn group(&self) -> Arc<Group> {
        self.inner.group()
    }
    fn elsewhere(&self) -> Option<Elsewhere> {
        self.elsewhere.lock().unwrap().clone()
    }
    async fn subscribe(&self, _: Vec<GroupId>, _: Start) -> Result<Box<dyn Subscription>, SubscribeError> {
        Err(self.refusals.lock().unwrap().pop_front().unwrap_or(SubscribeError::NoLog))
    }
    async fn change(&self, expected: Option<u64>, wanted: &Wanted<'_>) -> Result<Changed, ChangeError> {
        self.inner.change(expected, wanted).await
    }
    async fn move_leader(&self, to: ReplicaId) -> Result<(), MoveError> {
        self.inner.move_leader(to).await
    }
}

pub fn member() -> Member {
    Member::voter(ReplicaId(1), MemberInfo::new("one", Vec::new()))
}

/// Two servers of one store.
pub struct Pair {
    pub replicas: [Faulty; 2],
    pub servers: [Option<Server>; 2],
    pub urls: Vec<String>,
}

impl Pair {
    pub fn start() -> Pair {
        Pair::of_groups(1)
    }

    /// Two servers of the stores of so many groups. What is set and seen at a replica concerns all its groups.
    pub fn of_groups(groups: usize) -> Pair {
        let store = |_| InMemory::start(KvStore::new(), ClusterId(1), member()).unwrap();
        let stores: Vec<_> = (0..groups).map(store).collect();
        let replicas = [(), ()].map(|()| Faulty {
            inner: stores[0].clone(),
            fault: Arc::new(Mutex::new(Fault::None)),
            elsewhere: Arc::default(),
            refusals: Arc::default(),
            seen: Arc::default(),
            leaderless: Arc::default(),
        });
        let config = ServerConfig {
            client_addresses: vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()],
            ..ServerConfig::default()
        };
        let servers = replicas.each_ref().map(|replica| {
            let groups = stores.iter().map(|store| Faulty { inner: store.clone(), ..replica.clone() });
            Some(Server::start_groups(&config, groups.collect(), Registry::default()).unwrap())
        });
        let urls = servers.iter().flatten().map(|server| server.client_addresses()[0].to_string()).collect();
        Pair { replicas, servers, urls }
    }

    /// One server at two addresses, whose store can be watched. What is set and seen at a replica concerns both.
    pub fn watched() -> Pair {
        let watches = Watches::new();
        let store = KvStore::new().feeding(watches.feed());
        let replica = Faulty {
            inner: InMemory::start(store, ClusterId(1), member()).unwrap(),
            fault: Arc::new(Mutex::new(Fault::None)),
            elsewhere: Arc::default(),
            refusals: Arc::default(),
            seen: Arc::default(),
            leaderless: Arc::default(),
        };
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let config = ServerConfig {
            client_addresses: vec![address.into(), address.into()],
            watches: Some(watches),
            ..ServerConfig::default()
        };
        let server = Server::start(&config, replica.clone(), Registry::default()).unwrap();
        let urls = server.client_addresses().iter().map(ToString::to_string).collect();
        Pair { replicas: [replica.clone(), replica], servers: [Some(server), None], urls }
    }

    /// The client begins with the first endpoint, and gives up an attempt soon.
    pub fn config(&self) -> Config {
        let mut config = Config::new(&self.urls);
        config.first_endpoint = Some(0);
        config.attempt_timeout = Duration::from_millis(200);
        config.request_timeout = Duration::from_secs(2);
        config
    }

    /// The same with other settings.
    pub fn config_with(&self, tune: impl FnOnce(&mut Config)) -> Config {
        let mut config = self.config();
        tune(&mut config);
        config
    }

    /// Stops a server: connections to its endpoint are refused from now on.
    pub async fn stop(&mut self, index: usize) {
        let server = self.servers[index].take().unwrap();
        tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    }
}
