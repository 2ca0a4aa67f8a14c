//! Several endpoints, one of them in use, and the loop that moves on when it fails.

use std::{
    collections::BTreeMap,
    fmt, iter,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use synod_api::shards::ENDPOINTS;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{
    Response, Status,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};
use tracing::debug;

use crate::{
    Config, Error,
    auth::{Line, RENEWALS_MAX, Token},
    dial::Dial,
    error::{Failure, NO_LEADER},
    greeting::Search,
};

/// The first pause after all endpoints have failed; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// Bytes that a stream and a connection may have in flight. The default of 64 KiB would make one large answer
/// wait for window updates.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// A server that does not even answer a ping for this long is taken for dead, and the requests to it fail.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many endpoints besides its own a client gets to know.
const NAMED_MAX: usize = 256;

/// When a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Whenever an attempt fails, since the request only reads.
    Reads,
    /// Whenever an attempt fails, since sending the request twice does no harm.
    Freely,
    /// Only while no attempt may have been executed.
    IfNotExecuted,
}

/// The endpoints of a cluster.
pub(crate) struct Endpoints {
    config: Config,
    all: Vec<Node>,
    /// The endpoint in use. A request that sees it fail moves on to the next.
    current: AtomicUsize,
    /// Endpoints that replicas named for groups in which they take no part, with their channels.
    named: Mutex<BTreeMap<String, Channel>>,
    token: Token,
    pub(crate) search: Search,
}

struct Node {
    url: String,
    target: Target,
    /// Made at the first use, because making it needs a runtime. It connects by itself, and connects again
    /// after a failure.
    channel: OnceLock<Channel>,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|node| &node.url)).finish()
    }
}

impl Endpoints {
    pub(crate) fn new(config: Config) -> Result<Arc<Endpoints>, Error> {
        let wrong = |what: String, why: &str| Error::Config { what, why: why.to_owned() };
        let all = config
            .endpoints
            .iter()
            .map(|given| {
                let scheme = if config.tls.is_some() { "https" } else { "http" };
                let url = if given.contains("://") { given.clone() } else { format!("{scheme}://{given}") };
                let target =
                    Target::to(&config, &url).map_err(|why| wrong(format!("endpoint {given:?}"), &why))?;
                Ok(Node { url, target, channel: OnceLock::new() })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let first = match (all.len(), config.first_endpoint) {
            (0, _) => {
                return Err(wrong("no endpoint is given".into(), "give at least one, http://host:port"));
            }
            (n, Some(first)) if first >= n => {
                return Err(wrong(
                    format!("first_endpoint is {first}"),
                    &format!("there are {n}, counted from 0"),
                ));
            }
            (_, Some(first)) => first,
            (n, None) => fastrand::usize(..n),
        };
        Ok(Arc::new(Endpoints {
            config,
            all,
            current: AtomicUsize::new(first),
            named: Mutex::default(),
            token: Token::default(),
            search: Search::default(),
        }))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|node| node.url.as_str())
    }

    /// The endpoint in use.
    pub(crate) fn current_url(&self) -> String {
        self.all[self.current.load(Ordering::Relaxed)].url.clone()
    }

    /// The number of the endpoint in use.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Uses this endpoint from now on, by this channel if it has none.
    pub(crate) fn use_next(&self, index: usize, channel: Channel) {
        self.all[index].channel.get_or_init(|| channel);
        self.current.store(index, Ordering::Relaxed);
    }

    /// Another channel to an endpoint.
    pub(crate) fn new_channel(&self, index: usize) -> Channel {
        self.all[index].target.channel()
    }

    /// Moves on from the endpoint in use, which has failed.
    pub(crate) fn leave_current(&self) {
        self.move_on(self.current());
    }

    /// The connection to an endpoint, for a client that has a token if it needs one.
    pub(crate) async fn line(&self, index: usize) -> Result<Line, Status> {
        self.with_token(self.channel(index)).await
    }

    async fn with_token(&self, channel: Channel) -> Result<Line, Status> {
        self.token.obtain(&self.config, channel.clone()).await?;
        Ok(InterceptedService::new(channel, self.token.clone()))
    }

    /// Whether a request was refused for its token, so that it may be sent again for another.
    pub(crate) fn needs_token(&self, reason: &str) -> bool {
        self.token.is_refused(&self.config, reason)
    }

    pub(crate) fn channel(&self, index: usize) -> Channel {
        let node = &self.all[index];
        node.channel.get_or_init(|| node.target.channel()).clone()
    }

    /// The channel to an endpoint that a replica named; `None` if that is no address.
    fn channel_to(&self, url: &str) -> Option<Channel> {
        if let Some(index) = self.all.iter().position(|node| node.url == url) {
            return Some(self.channel(index));
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = named.get(url) {
            return Some(channel.clone());
        }
        let channel = Target::to(&self.config, url).ok().filter(|_| named.len() < NAMED_MAX)?.channel();
        named.insert(url.to_owned(), channel.clone());
        Some(channel)
    }

    /// Moves on from `failed`, unless another request already has.
    pub(crate) fn move_on(&self, failed: usize) {
        let next = (failed + 1) % self.all.len();
        let _ = self.current.compare_exchange(failed, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// One attempt at one endpoint, for requests that are about that endpoint.
    pub(crate) async fn call_at<T, F>(&self, index: usize, send: impl Fn(Line) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_at_within(index, self.config.request_timeout, send).await
    }

    /// [`call_at`](Endpoints::call_at) with another time-out than that of the configuration.
    pub(crate) async fn call_at_within<T, F>(
        &self,
        index: usize,
        timeout: Duration,
        send: impl Fn(Line) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + timeout;
        let endpoint = self.all[index].url.clone();
        let attempt = async {
            for _ in 0..RENEWALS_MAX {
                match send(self.line(index).await?).await {
                    Err(status) if self.needs_token(status.message()) => {}
                    answer => return answer,
                }
            }
            send(self.line(index).await?).await
        };
        match timeout_at(deadline, attempt).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(failed_at(endpoint, &status)),
            Err(_) => {
                let cause = "no answer in time".into();
                Err(Error::Unavailable { attempts: 1, endpoint, cause, reached: true })
            }
        }
    }

    /// Sends a request to the endpoint in use, and on failure to the next, as `retry` allows.
    pub(crate) async fn call<T, F>(&self, retry: Retry, send: impl Fn(Line) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let Config { attempt_timeout, request_timeout, .. } = self.config;
        self.call_within(retry, attempt_timeout, request_timeout, send).await
    }

    /// [`call`](Endpoints::call) with other time-outs than those of the configuration.
    pub(crate) async fn call_within<T, F>(
        &self,
        retry: Retry,
        mut attempt_timeout: Duration,
        request_timeout: Duration,
        send: impl Fn(Line) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + request_timeout;
        let mut so_far = Attempts::default();
        let (mut pauses, mut renewals) = (backoff(), 0);
        self.greeted().await;
        loop {
            let index = self.current.load(Ordering::Relaxed);
            let elsewhere = so_far.named.pop().and_then(|url| Some((self.channel_to(&url)?, url)));
            let is_elsewhere = elsewhere.is_some();
            let (channel, endpoint) =
                elsewhere.unwrap_or_else(|| (self.channel(index), self.all[index].url.clone()));
            so_far.count += 1;
            let began = Instant::now();
            // An attempt is given up early only if the request may be sent again to another endpoint.
            let may_go_on = retry != Retry::IfNotExecuted && (self.all.len() > 1 || is_elsewhere);
            let attempt_deadline = if may_go_on { deadline.min(began + attempt_timeout) } else { deadline };
            so_far.refused_after = Duration::ZERO;
            let attempt = async { send(self.with_token(channel).await?).await };
            let cause = match timeout_at(attempt_deadline, attempt).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) if renewals < RENEWALS_MAX && self.needs_token(status.message()) => {
                    renewals += 1;
                    continue;
                }
                Ok(Err(status)) => match Failure::of(&status) {
                    Failure::Refused => {
                        return Err(refused(endpoint, &status, so_far.in_doubt && retry != Retry::Reads));
                    }
                    Failure::NotReached => describe(&status),
                    Failure::Elsewhere => {
                        so_far.refused(began);
                        so_far.sent_on += 1;
                        so_far.named = self.named_by(&status, &endpoint);
                        describe(&status)
                    }
                    Failure::NotExecuted => {
                        so_far.refused(began);
                        // A replica that is cut off refuses after a while, and one that knows a leader does not.
                        let may_move = !is_elsewhere && so_far.count as usize <= self.all.len();
                        if may_move && self.another_knows_a_leader(&status, index, deadline).await {
                            debug!(
                                endpoint,
                                attempts = so_far.count,
                                "it knows no leader, and another endpoint does"
                            );
                            continue;
                        }
                        describe(&status)
                    }
                    Failure::InDoubt => {
                        (so_far.in_doubt, so_far.reached) = (true, true);
                        let said = (!is_elsewhere).then(|| self.all[index].target.said()).flatten();
                        said.unwrap_or_else(|| describe(&status))
                    }
                },
                Err(_) => {
                    (so_far.in_doubt, so_far.reached) = (true, true);
                    // The answer may be large: without more time for each attempt it would never arrive.
                    attempt_timeout *= 2;
                    "no answer in time".to_owned()
                }
            };
            debug!(endpoint, attempts = so_far.count, cause, "attempt failed");
            // As long as some that it named are left, the endpoint in use may serve other groups. If they all fail,
            // what it knows of the group is old.
            if so_far.named.is_empty() {
                self.move_on(index);
            }
            let paused = so_far.is_paused(self.all.len());
            let pause = if paused { pauses.next().expect("it never ends") } else { Duration::ZERO };
            // If the next endpoint takes as long to refuse as this one did, the deadline comes first.
            let next = Instant::now() + pause + so_far.refused_after;
            if self.is_hopeless(retry, &so_far) || next >= deadline {
                return Err(so_far.end(retry, endpoint, cause));
            }
            sleep(pause).await;
        }
    }

    /// Whether a replica knows no leader, and another endpoint, which is in use from now on, does.
    async fn another_knows_a_leader(&self, status: &Status, index: usize, deadline: Instant) -> bool {
        status.message() == NO_LEADER
            && timeout_at(deadline, self.use_one_with_a_leader(index)).await == Ok(true)
    }

    /// Whether another attempt is forbidden, or would not reach anybody either.
    fn is_hopeless(&self, retry: Retry, so_far: &Attempts) -> bool {
        let may_repeat = retry != Retry::IfNotExecuted || !so_far.in_doubt;
        let all_tried = so_far.count as usize >= self.all.len();
        !may_repeat || (self.config.give_up_unreachable && !so_far.reached && all_tried)
    }

    /// Where a replica sends a request that it does not serve.
    fn named_by(&self, status: &Status, endpoint: &str) -> Vec<String> {
        // A client that speaks TLS tells nothing in plain text, whatever a replica names.
        let scheme = if self.config.tls.is_some() { "https://" } else { "http" };
        let named = endpoints_in(status).filter(|url| url.starts_with(scheme));
        named.filter(|url| *url != endpoint).collect()
    }
}

/// What a call knows of its attempts so far.
#[derive(Default)]
struct Attempts {
    count: u32,
    /// One of them may have been executed.
    in_doubt: bool,
    /// A replica was reached.
    reached: bool,
    /// The time until the last one was refused; zero if it was not.
    refused_after: Duration,
    /// Where the replica that was asked last sends this request.
    named: Vec<String>,
    /// How often a replica has sent it elsewhere.
    sent_on: u32,
}

impl Attempts {
    /// A replica has refused an attempt that began then.
    fn refused(&mut self, began: Instant) {
        self.reached = true;
        self.refused_after = began.elapsed();
    }

    /// Whether there is a pause before the next attempt, with this many endpoints.
    fn is_paused(&self, endpoints: usize) -> bool {
        let goes_elsewhere = !self.named.is_empty() && self.sent_on == 1;
        !goes_elsewhere && (self.sent_on > 1 || (self.count as usize).is_multiple_of(endpoints))
    }

    /// What the call returns if there is no further attempt.
    fn end(self, retry: Retry, endpoint: String, cause: String) -> Error {
        let (attempts, reached) = (self.count, self.reached);
        if self.in_doubt && retry != Retry::Reads {
            Error::Unknown { attempts, endpoint, cause }
        } else {
            Error::Unavailable { attempts, endpoint, cause, reached }
        }
    }
}

/// How this client connects to an endpoint.
struct Target {
    endpoint: Endpoint,
    /// If tonic does not connect by itself.
    dial: Option<Dial>,
}

impl Target {
    /// The text says what is wrong with the URL.
    fn to(config: &Config, url: &str) -> Result<Target, String> {
        let dial = Dial::to(url, config.tls.as_ref())?;
        let uri = dial.as_ref().map_or_else(|| url.to_owned(), Dial::uri);
        let endpoint = configured(config, uri).map_err(|error| format!("{error}; give http://host:port"))?;
        Ok(Target { endpoint, dial })
    }

    /// Why TLS failed on the last connection, if it did.
    fn said(&self) -> Option<String> {
        self.dial.as_ref().and_then(Dial::said)
    }

    /// A channel that connects when it is first used.
    fn channel(&self) -> Channel {
        match &self.dial {
            Some(dial) => self.endpoint.connect_with_connector_lazy(dial.clone()),
            None => self.endpoint.connect_lazy(),
        }
    }
}

fn configured(config: &Config, uri: String) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(uri)?
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT))
}

/// The endpoints that a replica names which takes no part in a group.
fn endpoints_in(status: &Status) -> impl Iterator<Item = String> {
    let named = status.metadata().get(ENDPOINTS).and_then(|urls| urls.to_str().ok()).unwrap_or_default();
    named
        .split(',')
        .filter(|url| url.starts_with("http://") || url.starts_with("https://"))
        .map(str::to_owned)
}

/// Pauses that double, each shortened by up to a half at random, so that clients that failed together do not come
/// back together.
pub(crate) fn backoff() -> impl Iterator<Item = Duration> {
    iter::successors(Some(BACKOFF_MIN), |pause| Some((*pause * 2).min(BACKOFF_MAX)))
        .map(|pause| pause.mul_f64(0.5 + fastrand::f64() / 2.0))
}

/// Why the one attempt at an endpoint has failed.
pub(crate) fn failed_at(endpoint: String, status: &Status) -> Error {
    match Failure::of(status) {
        Failure::Refused => refused(endpoint, status, false),
        failure => {
            let reached = failure != Failure::NotReached;
            Error::Unavailable { attempts: 1, endpoint, cause: describe(status), reached }
        }
    }
}

pub(crate) fn refused(endpoint: String, status: &Status, in_doubt: bool) -> Error {
    Error::Refused { endpoint, code: status.code(), message: status.message().to_owned(), in_doubt }
}

/// A status for people. Tonic reports a lost connection as "transport error"; the cause says more.
pub(crate) fn describe(status: &Status) -> String {
    let mut parts = vec![status.message().to_owned()];
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let more = error.to_string();
        if !parts.iter().any(|part| part.contains(&more)) {
            parts.push(more);
        }
        cause = error.source();
    }
    if parts.len() > 1 {
        parts.retain(|part| part != "transport error");
    }
    parts.join(": ")
}
