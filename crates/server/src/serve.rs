//! The server's threads, its connections, and how it stops.

use std::{
    io, mem,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use prometheus_client::registry::Registry;
use prost::Message as _;
use synod_api::synod::v1::{KvQuery, KvStatusRequest, kv_query::Query};
use synod_grpc::{
    Accepted, Admission, Bound, Established, Listener, Places, Presence, Remote, Socket, Terms, establish,
};
use synod_tls::Acceptor;
use synod_transport::{LeftOut, Repeats};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    Address, At, Config, Consistency, EventLoop, Replica, Speaks, Watches,
    call::{TOO_MANY, serve_http2},
    exposition::Exposition,
    feeds::Feeds,
    gateway::Gateway,
    http::Pages,
    http1,
    openings::Openings,
    readers::Readers,
    services::Store,
    web::{Browsers, Web},
};

/// How long a client may take for the handshake of TLS, to show which protocol it speaks, and to send the head of a
/// request for a page.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections for pages: at the addresses for pages alone, and as many at those for clients once all places there
/// are taken. The oldest gives way to a new one.
pub(crate) const PAGES_MAX: u32 = 32;
/// How long to pause after accepting has failed, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a thread may take to drop its tasks. None of them blocks, so this is never needed.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A running server. Dropping it breaks its connections off, but lets requests end on the event loop of a replica;
/// [`stop`](Server::stop) lets them end and waits for that.
#[derive(Debug)]
pub struct Server {
    client_addresses: Vec<SocketAddr>,
    http_addresses: Vec<SocketAddr>,
    metrics_addresses: Vec<SocketAddr>,
    reuse_port: bool,
    stopping: watch::Sender<bool>,
    clients: Places,
    pages: Places,
    /// For pages, where clients have taken all places.
    spare: Places,
    stop_timeout: Duration,
    /// Begins to listen at an address for clients; empty once the server is open.
    openings: Vec<Opening>,
    /// A task for each listener. It ends, and closes the listener, once the server is stopping.
    acceptances: Vec<JoinHandle<()>>,
    /// The client-I/O threads. Empty once the server has ended.
    threads: Vec<Runtime>,
    /// The replica's loop, in place of client-I/O threads.
    event_loop: Option<Arc<EventLoop>>,
    /// The watches, whose thread ends with the server.
    watches: Option<Watches>,
}

impl Server {
    /// Listens, and serves `replica` on threads of its own. The page `/metrics` shows `metrics` and the state
    /// of the store and the group; the families of the latter must not be among `metrics`.
    ///
    /// # Errors
    /// The server cannot listen at an address, or cannot start a thread.
    pub fn start(config: &Config, replica: impl Replica, metrics: Registry) -> io::Result<Server> {
        Server::start_groups(config, vec![replica], metrics)
    }

    /// [`Server::start`] for a replica of several groups, over which the keys are spread ([`synod_api::shards`]): at
    /// least one, in the order of their numbers, each with a key-value store of its own. Where there are several,
    /// clients use Synod's own service, and etcd's are refused but for members and status.
    ///
    /// # Errors
    /// As those of [`Server::start`]; there is no group, or more than 65,535.
    pub fn start_groups<R: Replica>(
        config: &Config,
        groups: Vec<R>,
        metrics: Registry,
    ) -> io::Result<Server> {
        let mut server = Server::prepare_groups(config, groups, metrics)?;
        server.open()?;
        Ok(server)
    }

    /// [`Server::start_groups`] without clients: the addresses for clients are taken, and connections there refused
    /// until [`Server::open`]. The addresses for the pages alone are served.
    ///
    /// # Errors
    /// As those of [`Server::start_groups`].
    pub fn prepare_groups<R: Replica>(
        config: &Config,
        groups: Vec<R>,
        metrics: Registry,
    ) -> io::Result<Server> {
        if groups.is_empty() || u16::try_from(groups.len()).is_err() {
            let error = format!("{} groups; there can be 1 to {}", groups.len(), u16::MAX);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let connections_max = u32::try_from(config.connections_max);
        let count = if config.event_loop.is_some() { 0 } else { config.client_io_threads.max(1) };
        let threads = (0..count).map(client_io_thread).collect::<io::Result<Vec<_>>>()?;
        let handles: Vec<_> = match &config.event_loop {
            Some(event_loop) => vec![event_loop.handle().clone()],
            None => threads.iter().map(|thread| thread.handle().clone()).collect(),
        };
        let (stopping, _) = watch::channel(false);
        let mut server = Server {
            client_addresses: Vec::new(),
            http_addresses: Vec::new(),
            metrics_addresses: Vec::new(),
            reuse_port: config.reuse_port,
            stopping,
            clients: Places::new(connections_max.unwrap_or(u32::MAX)),
            pages: Places::giving_way(PAGES_MAX),
            spare: Places::giving_way(PAGES_MAX),
            stop_timeout: config.stop_timeout,
            openings: Vec::new(),
            acceptances: Vec::new(),
            threads,
            event_loop: config.event_loop.clone(),
            watches: None,
        };
        if let Some(watches) = config.watches.as_ref().filter(|_| groups.len() == 1) {
            let (thread, replica) = (handles[0].clone(), groups[0].clone());
            watches.start(move || drop(thread.spawn(ask(replica.clone()))))?;
            server.watches = Some(watches.clone());
        }
        let metrics = Arc::new(Exposition::new(metrics));
        let rejected = Arc::<Mutex<Repeats>>::default();
        let (readers, admission) = (Readers::new(), Admission::new(config.requests_bytes_max, TOO_MANY));
        let feeds = Feeds::new(server.stopping.subscribe());
        let openings = Arc::<Openings>::default();
        let terms = Terms {
            streams_max: config.streams_per_connection_max,
            head_timeout: HEAD_TIMEOUT,
            keep_alive: config.keep_alive,
        };
        let browsers = Arc::new(Browsers { hosts: config.hosts.clone(), origins: config.origins.clone() });
        let threads = handles.into_iter().map(|thread| {
            let gathering = groups.iter().map(|replica| {
                let (replica, task) = replica.gathering();
                thread.spawn(task);
                replica
            });
            let gathering = gathering.collect();
            let (readers, admission) = (readers.clone(), admission.clone());
            let store =
                Store::new(config, gathering, readers, admission, feeds.clone(), Arc::clone(&openings));
            let store = Arc::new(store);
            let pages = Pages::new(store.clone(), Arc::clone(&metrics));
            let protocols = Protocols {
                store,
                pages,
                terms,
                browsers: Arc::clone(&browsers),
                json: config.json,
                tls: config.tls.clone(),
                names_are_users: config.names_are_users,
                rejected: Arc::clone(&rejected),
            };
            (thread, protocols)
        });
        let threads: Vec<_> = threads.collect();
        let purpose = if config.http_addresses.is_empty() { Purpose::Clients } else { Purpose::Calls };
        for address in &config.client_addresses {
            let (bound, opening) = server.bind(address, threads.clone(), purpose)?;
            server.client_addresses.extend(bound);
            server.openings.push(opening);
        }
        for address in &config.http_addresses {
            let (bound, opening) = server.bind(address, threads.clone(), Purpose::Http)?;
            server.http_addresses.extend(bound);
            server.openings.push(opening);
        }
        for address in &config.metrics_addresses {
            let (bound, opening) = server.bind(address, threads.clone(), Purpose::Pages)?;
            server.metrics_addresses.extend(bound);
            server.acceptances.push(opening.0()?);
        }
        Ok(server)
    }

    /// Begins to listen at the addresses for clients.
    ///
    /// # Errors
    /// The server cannot listen at an address.
    pub fn open(&mut self) -> io::Result<()> {
        for opening in mem::take(&mut self.openings) {
            self.acceptances.push(opening.0()?);
        }
        Ok(())
    }

    /// The addresses for clients, without unix sockets, and with the ports that were chosen for port 0.
    #[must_use]
    pub fn client_addresses(&self) -> &[SocketAddr] {
        &self.client_addresses
    }

    /// The addresses for clients that ask for pages, where these are apart.
    #[must_use]
    pub fn http_addresses(&self) -> &[SocketAddr] {
        &self.http_addresses
    }

    /// The addresses for the pages alone.
    #[must_use]
    pub fn metrics_addresses(&self) -> &[SocketAddr] {
        &self.metrics_addresses
    }

    /// Accepts no more connections and requests, waits for the outstanding requests for at most the
    /// configured time, and ends. It blocks: asynchronous code calls it through `spawn_blocking`.
    pub fn stop(mut self) {
        self.stopping.send_replace(true);
        let acceptances = mem::take(&mut self.acceptances);
        let (clients, pages, spare) = (self.clients.clone(), self.pages.clone(), self.spare.clone());
        let mut all_closed = pin!(async move {
            for acceptance in acceptances {
                // A task that panicked has closed its listener as well.
                let _ = acceptance.await;
            }
            tokio::join!(clients.all(), pages.all(), spare.all());
        });
        let (threads, event_loop) = (mem::take(&mut self.threads), self.event_loop.take());
        let closed = match (&event_loop, threads.first()) {
            (Some(event_loop), _) => event_loop.wait(all_closed.as_mut(), Instant::now() + self.stop_timeout),
            (None, Some(thread)) => {
                thread.block_on(async { timeout(self.stop_timeout, all_closed).await.is_ok() })
            }
            (None, None) => true,
        };
        if !closed {
            let left = self.clients.taken() + self.pages.taken() + self.spare.taken();
            warn!(left, "connections are broken off, since their requests did not end in time");
        }
        threads.into_iter().for_each(|thread| thread.shutdown_timeout(SHUTDOWN_TIMEOUT));
    }

    /// Takes an address, and tells which one it is and how to listen there.
    fn bind<R: Replica>(
        &self,
        address: &Address,
        threads: Vec<(Handle, Protocols<R>)>,
        purpose: Purpose,
    ) -> io::Result<(Option<SocketAddr>, Opening)> {
        let Address { at, speaks } = address.clone();
        if speaks != Speaks::Plain && threads[0].1.tls.is_none() {
            let error = format!("cannot listen at {at} with TLS: there is no certificate");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        let failed = |at: &At, error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen at {at}: {error}"))
        };
        let bound = Bound::new(&at, self.reuse_port).map_err(|error| failed(&at, error))?;
        let at = bound.address()?;
        let acceptor = threads[0].0.clone();
        let acceptance = Acceptance {
            threads,
            places: if purpose == Purpose::Pages { self.pages.clone() } else { self.clients.clone() },
            spare: matches!(purpose, Purpose::Clients | Purpose::Http).then(|| self.spare.clone()),
            refused: Repeats::default(),
            stopping: self.stopping.subscribe(),
        };
        let address = if let At::Tcp(address) = at { Some(address) } else { None };
        let opening = move || {
            let listener = {
                let _context = acceptor.enter();
                bound.listen().map_err(|error| failed(&at, error))?
            };
            info!(address = %at, ?purpose, ?speaks, "listening");
            Ok(acceptor.spawn(acceptance.run(listener, purpose, speaks)))
        };
        Ok((address, Opening(Box::new(opening))))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(watches) = &self.watches {
            watches.stop();
        }
        // Dropping a runtime would block, which is not allowed in asynchronous code.
        let ended = self.event_loop.as_ref().and_then(|event_loop| event_loop.take_ended());
        self.threads.drain(..).chain(ended).for_each(Runtime::shutdown_background);
        // On the event loop of a replica that lives on, connections end after their outstanding requests.
        self.acceptances.drain(..).for_each(|acceptance| acceptance.abort());
    }
}

/// A runtime of one thread. It is of tokio's multi-thread kind, because another thread wakes that executor
/// without a system call while it is awake, and under load replies come in bursts from another thread.
/// (Measured on two busy cores with an in-memory replica: one such thread costs the least for one client; with
/// 512 clients it costs what the single-threaded kind does, and two threads cost a tenth more a request.)
fn client_io_thread(number: usize) -> io::Result<Runtime> {
    // The first one is the worker; what may block goes to others.
    let is_first = AtomicBool::new(true);
    let name = move || match is_first.swap(false, Ordering::Relaxed) {
        true => format!("client-io-{number}"),
        false => "client-work".to_owned(),
    };
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name_fn(name)
        .on_thread_park(synod_node::threads::park)
        .on_thread_unpark(synod_node::threads::unpark)
        .enable_all()
        .build()
}

/// Asks the store anything, so that it looks at what its feed wants. The watches ask again if that fails.
async fn ask(replica: impl Replica) {
    let query = KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() };
    let _ = replica.query(query.encode_to_vec().into(), Consistency::Present).await;
}

/// Begins to listen at an address that was taken.
struct Opening(Box<dyn FnOnce() -> io::Result<JoinHandle<()>> + Send>);

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opening")
    }
}

/// The use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// gRPC, and pages.
    Clients,
    /// gRPC alone.
    Calls,
    /// Pages, for clients.
    Http,
    /// Pages, for operators and their tools.
    Pages,
}

/// A connection that was accepted, with its place, if there is one.
struct Claimed {
    stream: Accepted,
    peer: Remote,
    place: Option<Presence>,
    /// It is one for pages, since all others are taken.
    is_spare: bool,
}

/// Accepts connections and distributes them over the threads in turn.
struct Acceptance<R> {
    /// The threads, each with its state for the protocols.
    threads: Vec<(Handle, Protocols<R>)>,
    places: Places,
    /// Where pages are answered, those for pages when all are taken.
    spare: Option<Places>,
    refused: Repeats,
    stopping: watch::Receiver<bool>,
}

impl<R: Replica> Acceptance<R> {
    async fn run(mut self, listener: Listener, purpose: Purpose, speaks: Speaks) {
        let mut accepted: usize = 0;
        let (mut claims, mut stopping) = (FuturesUnordered::new(), self.stopping.clone());
        let (mut is_paused, mut pause_until) = (false, tokio::time::Instant::now());
        loop {
            // Accepting goes on while newcomers wait for a place: in the kernel's queue a thousand from one address
            // would keep one from another waiting. Claims bound how many wait; those that are turned away are closed
            // first.
            let connection = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                Some(claimed) = claims.next(), if !claims.is_empty() => {
                    self.admit(claimed, accepted, purpose, speaks);
                    accepted += 1;
                    continue;
                }
                () = sleep_until(pause_until), if is_paused => {
                    is_paused = false;
                    continue;
                }
                connection = listener.accept(), if !is_paused => connection,
            };
            match connection {
                Ok((stream, peer)) => {
                    let (places, spare) = (self.places.clone(), self.spare.clone());
                    claims.push(async move {
                        let place = places.claim(peer.origin()).await;
                        let is_spare = place.is_none();
                        let place = match (place, &spare) {
                            (None, Some(spare)) => spare.claim(peer.origin()).await,
                            (place, _) => place,
                        };
                        Claimed { stream, peer, place, is_spare }
                    });
                }
                Err(error) => {
                    if let Some(LeftOut(others)) = self.refused.admit("accept") {
                        warn!(%error, others, "accepting a connection failed");
                    }
                    (is_paused, pause_until) = (true, tokio::time::Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Serves a connection on one of the threads, if it has a place.
    fn admit(&mut self, claimed: Claimed, accepted: usize, purpose: Purpose, speaks: Speaks) {
        let Claimed { stream, peer, place, is_spare } = claimed;
        if is_spare && let Some(LeftOut(others)) = self.refused.admit("places") {
            warn!(%peer, others, "a connection is refused, but for pages: there are as many as connections_max allows");
        }
        let Some(mut place) = place else { return };
        // From here on, and not only once its task runs, so that newer connections are not refused meanwhile.
        let gives_way = place.idle(Instant::now());
        // The socket moves to the other thread's reactor.
        let stream = match stream.rest() {
            Ok(stream) => stream,
            Err(error) => {
                debug!(%peer, %error, "a connection broke at once");
                return;
            }
        };
        let (thread, protocols) = &self.threads[accepted % self.threads.len()];
        let (protocols, stopping) = (protocols.clone(), self.stopping.clone());
        let admitted = Admitted { peer, purpose, speaks, place, is_spare, gives_way };
        thread.spawn(async move {
            match stream.wake() {
                Ok(stream) => protocols.serve(stream, admitted, stopping).await,
                Err(error) => debug!(%peer, %error, "a connection broke at once"),
            }
        });
    }
}

/// The protocols that the server speaks on a connection.
#[derive(Debug)]
struct Protocols<R> {
    store: Arc<Store<R>>,
    pages: Pages<R>,
    terms: Terms,
    browsers: Arc<Browsers>,
    json: bool,
    tls: Option<Acceptor>,
    names_are_users: bool,
    /// Warnings of handshakes that failed, over all connections.
    rejected: Arc<Mutex<Repeats>>,
}

impl<R> Clone for Protocols<R> {
    fn clone(&self) -> Protocols<R> {
        Protocols {
            store: self.store.clone(),
            pages: self.pages.clone(),
            terms: self.terms,
            browsers: Arc::clone(&self.browsers),
            json: self.json,
            tls: self.tls.clone(),
            names_are_users: self.names_are_users,
            rejected: Arc::clone(&self.rejected),
        }
    }
}

/// A connection that has a place.
struct Admitted {
    peer: Remote,
    purpose: Purpose,
    speaks: Speaks,
    place: Presence,
    /// The place is none of those of clients, so that it may ask for a page only.
    is_spare: bool,
    /// It has sent no request yet, and another one needs its place.
    gives_way: oneshot::Receiver<()>,
}

impl<R: Replica> Protocols<R> {
    /// Serves a connection until it ends or must give way.
    async fn serve(self, socket: Socket, admitted: Admitted, mut stopping: watch::Receiver<bool>) {
        let Admitted { peer, purpose, speaks, place, is_spare, gives_way } = admitted;
        let served_stopping = stopping.clone();
        let mut stop = pin!(async move { _ = stopping.wait_for(|stopping| *stopping).await });
        let http1_only = matches!(purpose, Purpose::Http | Purpose::Pages);
        let established = tokio::select! {
            established = timeout(HEAD_TIMEOUT, establish(socket, speaks, self.tls.as_ref(), http1_only)) => established,
            // The client has not sent a request.
            () = stop.as_mut() => return,
            _ = gives_way => return,
        };
        let established = match established {
            Ok(Ok(established)) => established,
            Ok(Err(error)) if speaks != Speaks::Plain => return self.reject(peer, &error),
            Ok(Err(error)) => return debug!(%peer, %error, "a connection broke"),
            Err(_) => return debug!(%peer, "the client did not begin in time"),
        };
        let Established { stream, common_name, is_http2 } = established;
        let client = (peer, common_name.filter(|_| self.names_are_users));
        let web = match purpose {
            _ if is_spare && is_http2 => None,
            _ if is_spare => Some(Web::spare(self.pages.clone(), Arc::clone(&self.browsers))),
            Purpose::Pages => Some(Web::of_pages(self.pages.clone())),
            Purpose::Clients | Purpose::Http => {
                let (store, client, mark) = (self.store.clone(), client.clone(), place.mark());
                let gateway = || Gateway::new(store, client, self.terms, served_stopping, mark);
                let gateway = self.json.then(gateway);
                Some(Web::new(self.pages.clone(), gateway, Arc::clone(&self.browsers)))
            }
            Purpose::Calls => None,
        };
        let served = match web {
            _ if is_spare && is_http2 => Err("all places of clients are taken".into()),
            web if is_http2 => {
                serve_http2(stream, client, &self.store, web.as_ref(), self.terms, stop, place).await
            }
            Some(web) => http1::serve(stream, &web, stop, place).await,
            None => Err("the client does not speak HTTP/2, and pages are served at other addresses".into()),
        };
        if let Err(error) = served {
            debug!(%peer, error, "a connection broke");
        }
    }

    /// Tells the operator, now and then, whose handshake failed, in etcd's words.
    fn reject(&self, peer: Remote, error: &io::Error) {
        let kind = format!("{:?} {error}", peer.origin());
        let others = self.rejected.lock().unwrap_or_else(PoisonError::into_inner).admit(&kind);
        if let Some(LeftOut(others)) = others {
            warn!(%peer, others, "rejected connection on client endpoint: {error}");
        }
    }
}
