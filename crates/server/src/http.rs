//! The pages for operators and their tools: health, version, metrics.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use synod_api::etcdserverpb::{AlarmMember, AlarmType};

use crate::{
    Consistency, Replica, Role, exposition,
    services::{API_VERSION, Store},
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The pages of one replica:
///
/// | page | what it says |
/// | --- | --- |
/// | `/health` | whether this replica serves: no alarm, a leader, and a linearizable read that succeeds. As with etcd, `?serializable=true` asks this replica only, and `&exclude=NOSPACE` forgives an alarm |
/// | `/readyz` | whether to send clients here: reads succeed, no alarm tells of damage, and this replica is no learner |
/// | `/livez` | whether this replica answers at all: whether not to restart it |
/// | `/readyz/CHECK`, `/livez/CHECK` | one check of these, by etcd's name for it |
/// | `/version` | the version of etcd's API, and Synod's own |
/// | `/metrics` | what there is to measure |
/// | `/debug/vars` | what etcd tells there of its ordering protocol, in etcd's words |
pub(crate) struct Pages<R> {
    store: Arc<Store<R>>,
    metrics: Arc<Registry>,
}

impl<R> Clone for Pages<R> {
    fn clone(&self) -> Pages<R> {
        Pages { store: self.store.clone(), metrics: self.metrics.clone() }
    }
}

impl<R> fmt::Debug for Pages<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pages")
    }
}

pub(crate) type Page = Response<Full<Bytes>>;

impl<R: Replica> Pages<R> {
    pub(crate) fn new(store: Arc<Store<R>>, metrics: Arc<Registry>) -> Pages<R> {
        Pages { store, metrics }
    }

    /// Whether a page is at this path.
    pub(crate) fn has(path: &str) -> bool {
        ["/health", "/version", "/metrics", "/debug/vars"].contains(&path)
            || checks(path, Parameters("")).is_some()
    }

    /// The refusal of a request for a host of another name than these, as etcd has it; none, or `*`: any name is right. So a
    /// page of another origin, which a browser looks up at this address, cannot ask for anything here.
    pub(crate) fn unknown_host<B>(request: &Request<B>, hosts: &[String]) -> Option<Page> {
        let is_known = |name: &str| hosts.iter().any(|host| host == "*" || host == name);
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| request.uri().host()).unwrap_or_default();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        if hosts.is_empty() || is_known(name) {
            return None;
        }
        let text = format!("this replica does not go by the name {name:?}: see --host-whitelist\n");
        Some(page(StatusCode::MISDIRECTED_REQUEST, TEXT, text))
    }

    pub(crate) async fn page<B>(&self, request: &Request<B>) -> Page {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut page = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
            page.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("it is a header value"));
            return page;
        }
        let parameters = Parameters(request.uri().query().unwrap_or_default());
        let path = request.uri().path();
        if let Some(checks) = checks(path, parameters) {
            return self.probe(&checks, parameters).await;
        }
        match path {
            "/health" => match self.health(parameters).await {
                Ok(()) => page(StatusCode::OK, JSON, json!({"health": "true", "reason": ""}).to_string()),
                Err(reason) => {
                    let text = json!({"health": "false", "reason": reason}).to_string();
                    page(StatusCode::SERVICE_UNAVAILABLE, JSON, text)
                }
            },
            "/version" => {
                let versions = json!({
                    "etcdserver": API_VERSION,
                    "etcdcluster": API_VERSION,
                    "synod": env!("CARGO_PKG_VERSION"),
                });
                page(StatusCode::OK, JSON, versions.to_string())
            }
            "/metrics" => {
                let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let format = exposition::Format::accepted(accept);
                match exposition::exposition(&self.metrics, &self.store, format).await {
                    Ok(text) => page(StatusCode::OK, format.content_type(), text),
                    Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
                }
            }
            "/debug/vars" => page(StatusCode::OK, JSON, json!({"raft.status": self.ordering()}).to_string()),
            _ => {
                let known =
                    "not found; there are /health, /readyz, /livez, /version, /metrics and /debug/vars\n";
                page(StatusCode::NOT_FOUND, TEXT, known)
            }
        }
    }

    async fn health(&self, parameters: Parameters<'_>) -> Result<(), String> {
        let consistency = match parameters.last("serializable") {
            Some("true") => Consistency::Serializable,
            _ => Consistency::Linearizable,
        };
        if consistency == Consistency::Linearizable && self.has_no_leader() {
            return Err("RAFT NO LEADER".into());
        }
        let raised = self.reads(consistency).await.map_err(|error| format!("RANGE ERROR:{error}"))?;
        match raised
            .iter()
            .find(|raised| !parameters.all("exclude").any(|name| name == raised.alarm().as_str_name()))
        {
            Some(raised) => Err(format!("ALARM {}", raised.alarm().as_str_name())),
            None => Ok(()),
        }
    }

    /// Runs checks. As with etcd, what was found is told if one fails, or if the request asks for it with `verbose`.
    async fn probe(&self, checks: &[Check], parameters: Parameters<'_>) -> Page {
        let mut found = String::new();
        let mut status = StatusCode::OK;
        for check in checks {
            let name = check.name();
            found += &match self.passes(*check).await {
                Ok(()) => format!("[+]{name} ok\n"),
                Err(reason) => {
                    status = StatusCode::SERVICE_UNAVAILABLE;
                    format!("[-]{name} failed: {reason}\n")
                }
            };
        }
        let told = match status {
            StatusCode::OK if parameters.has("verbose") => found + "ok\n",
            StatusCode::OK => "ok\n".to_owned(),
            _ => found,
        };
        page(status, TEXT, told)
    }

    async fn passes(&self, check: Check) -> Result<(), String> {
        match check {
            Check::DataCorruption => {
                let raised = self.reads(Consistency::Serializable).await?;
                match raised.iter().find(|raised| raised.alarm() == AlarmType::Corrupt) {
                    Some(raised) => Err(format!("alarm activated: {}", raised.alarm().as_str_name())),
                    None => Ok(()),
                }
            }
            Check::SerializableRead => self.reads(Consistency::Serializable).await.map(drop),
            Check::LinearizableRead if self.has_no_leader() => Err("etcdserver: no leader".into()),
            Check::LinearizableRead => self.reads(Consistency::Linearizable).await.map(drop),
            Check::NonLearner => {
                let replica = self.store.replica();
                let learns = |group: &R| group.group().is_learner(replica.status().replica);
                match self.store.groups().iter().any(learns) {
                    true => Err("not supported for learner".into()),
                    false => Ok(()),
                }
            }
        }
    }

    /// Where this replica stands, as etcd has it for Raft.
    fn ordering(&self) -> Value {
        let status = self.store.replica().status();
        let state = match status.role {
            Role::Leader => "StateLeader",
            Role::Candidate => "StateCandidate",
            Role::Follower | Role::Learner | Role::Away => "StateFollower",
        };
        json!({
            "id": format!("{:x}", status.replica.0),
            "term": status.ballot.round,
            "commit": status.decided.0,
            "lead": format!("{:x}", status.leader.map_or(0, |leader| leader.0)),
            "raftState": state,
            "applied": status.applied.0,
        })
    }

    /// Whether a group that this replica is a part of has no leader.
    fn has_no_leader(&self) -> bool {
        let leads_nobody = |group: &R| group.elsewhere().is_none() && group.status().leader.is_none();
        self.store.groups().iter().any(leads_nobody)
    }

    /// The alarms that are raised, if a read succeeds.
    async fn reads(&self, consistency: Consistency) -> Result<Vec<AlarmMember>, String> {
        let status = self.store.status(consistency).await;
        status.map(|status| status.alarms).map_err(|status| status.message().to_owned())
    }
}

/// What `/livez` and `/readyz` look at.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// No alarm says that the contents of replicas differ.
    DataCorruption,
    /// This replica answers from what it knows.
    SerializableRead,
    /// The cluster has a leader, and answers.
    LinearizableRead,
    /// This replica votes.
    NonLearner,
}

impl Check {
    const LIVEZ: &[Check] = &[Check::SerializableRead];
    const READYZ: &[Check] =
        &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];

    /// etcd's name for it.
    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }
}

/// The checks of the page at a path, if it is one of checks: all that the request does not exclude, or the one that the path
/// names.
fn checks(path: &str, parameters: Parameters<'_>) -> Option<Vec<Check>> {
    let path = path.strip_prefix('/')?;
    let (page, one) = path.split_once('/').map_or((path, None), |(page, one)| (page, Some(one)));
    let all = match page {
        "livez" => Check::LIVEZ,
        "readyz" => Check::READYZ,
        _ => return None,
    };
    let named = |wanted: &str| all.iter().find(|check| check.name() == wanted);
    let kept = |check: &Check| !parameters.all("exclude").any(|excluded| excluded == check.name());
    match one {
        None => Some(all.iter().copied().filter(kept).collect()),
        Some(one) => named(one).map(|check| vec![*check]),
    }
}

fn page(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Page {
    let response = Response::builder().status(status).header(CONTENT_TYPE, content_type);
    response.body(Full::new(text.into())).expect("the header is a constant")
}

/// The part of a URL after its question mark. No parameter needs escapes.
#[derive(Clone, Copy)]
struct Parameters<'a>(&'a str);

impl<'a> Parameters<'a> {
    fn all(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.split('&').filter_map(move |pair| pair.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether a parameter is there, with a value or without.
    fn has(self, name: &str) -> bool {
        self.0.split('&').any(|pair| pair.split('=').next() == Some(name))
    }

    fn last(self, name: &str) -> Option<&'a str> {
        self.all(name).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InMemory;

    #[test]
    fn a_host_of_another_name_is_refused() {
        let refused = |host: &str, hosts: &[&str]| {
            let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let request = Request::get("/health").header(HOST, host).body(()).unwrap();
            let refusal = Pages::<InMemory>::unknown_host(&request, &hosts);
            refusal.map(|page| page.status())
        };
        assert_eq!(refused("evil.example:2379", &["localhost"]), Some(StatusCode::MISDIRECTED_REQUEST));
        assert_eq!(refused("localhost:2379", &["localhost"]), None);
        assert_eq!(refused("[::1]:2379", &["[::1]"]), None);
        assert_eq!(refused("[::1]", &["[::1]"]), None);
        assert_eq!(refused("evil.example", &["*"]), None);
        assert_eq!(refused("evil.example", &[]), None);
    }

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        let parameters = Parameters("exclude=NOSPACE&exclude=CORRUPT&serializable=true&serializables=no");
        assert_eq!(parameters.all("exclude").collect::<Vec<_>>(), ["NOSPACE", "CORRUPT"]);
        assert_eq!(parameters.last("serializable"), Some("true"));
        assert_eq!(parameters.last("exclud"), None);
        assert!(
            parameters.has("exclude") && !parameters.has("NOSPACE") && Parameters("verbose").has("verbose")
        );
    }
}
