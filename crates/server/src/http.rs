//! The pages for operators and their tools: health, version, metrics.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};
use serde_json::{Value, json};
use synod_api::etcdserverpb::{AlarmMember, AlarmType};
use synod_consensus::Role;
use tonic::Status;

use crate::{
    Consistency, Replica,
    exposition::{Exposition, Format},
    services::{API_VERSION, CLUSTER_VERSION, STORAGE_VERSION, Store},
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The pages of one replica:
///
/// | page | what it says |
/// | --- | --- |
/// | `/health` | whether this replica serves: no alarm, a leader, and a linearizable read that succeeds. As with etcd, `?serializable=true` asks this replica only, and `&exclude=NOSPACE` forgives an alarm |
/// | `/readyz` | whether to send clients here: its four checks ([`Check`]) |
/// | `/livez` | whether this replica answers at all, and so whether not to restart it: one check |
/// | `/readyz/CHECK`, `/livez/CHECK` | one check alone |
/// | `/version` | the version of etcd's API, and Synod's own |
/// | `/metrics` | what there is to measure |
/// | `/debug/vars` | what etcd tells there of its ordering protocol, in etcd's words |
///
/// As with etcd, `?verbose` tells of each check, also if all succeed, and `?exclude=CHECK` leaves one out.
pub(crate) struct Pages<R> {
    store: Arc<Store<R>>,
    metrics: Arc<Exposition>,
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
    pub(crate) fn new(store: Arc<Store<R>>, metrics: Arc<Exposition>) -> Pages<R> {
        Pages { store, metrics }
    }

    /// Whether there is such a page.
    pub(crate) fn has(path: &str) -> bool {
        matches!(path, "/health" | "/version" | "/metrics" | "/debug/vars") || checks(path).is_some()
    }

    /// The refusal of a request for a host of another name than these, as etcd has it; none, or `*`: any name is right.
    /// So a page of another origin, which a browser looks up at this address, cannot ask for anything here.
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

    /// The refusal of a call on a connection that has none of the places for clients.
    pub(crate) fn no_place() -> Page {
        let text = "there are as many connections as this replica takes: see --connections-max; only pages are answered\n";
        page(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
    }

    pub(crate) async fn page<B>(&self, request: &Request<B>) -> Page {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut page = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
            page.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("it is a header value"));
            return page;
        }
        let parameters = Parameters(request.uri().query().unwrap_or_default());
        match request.uri().path() {
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
                    "etcdcluster": CLUSTER_VERSION,
                    // That of the snapshots that it gives.
                    "storage": STORAGE_VERSION,
                    "synod": env!("CARGO_PKG_VERSION"),
                });
                page(StatusCode::OK, JSON, versions.to_string())
            }
            "/metrics" => {
                let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let format = Format::accepted(accept);
                match self.metrics.page(&self.store, format).await {
                    Ok(text) => page(StatusCode::OK, format.content_type(), text),
                    Err(error) => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
                }
            }
            "/debug/vars" => page(StatusCode::OK, JSON, json!({"raft.status": self.ordering()}).to_string()),
            path => match checks(path) {
                Some((checks, is_whole)) => {
                    let excluded = |check: &&Check| {
                        is_whole && parameters.all("exclude").any(|name| name == check.name())
                    };
                    let checks = checks.iter().filter(|check| !excluded(check));
                    self.probe(checks, parameters.has("verbose")).await
                }
                None => {
                    let known =
                        "not found; there are /health, /readyz, /livez, /version, /metrics and /debug/vars\n";
                    page(StatusCode::NOT_FOUND, TEXT, known)
                }
            },
        }
    }

    async fn health(&self, parameters: Parameters<'_>) -> Result<(), String> {
        let consistency = match parameters.last("serializable") {
            Some("true") => Consistency::Present,
            _ => Consistency::Linearizable,
        };
        let failed = |status: Status| format!("RANGE ERROR:{}", status.message());
        let raised = self.store.status(Consistency::Present).await.map_err(failed)?.alarms;
        let is_excluded =
            |raised: &AlarmMember| parameters.all("exclude").any(|name| name == raised.alarm().as_str_name());
        if let Some(raised) = raised.iter().find(|raised| !is_excluded(raised)) {
            return Err(format!("ALARM {}", raised.alarm().as_str_name()));
        }
        if consistency == Consistency::Linearizable {
            if self.leads_nobody() {
                return Err("RAFT NO LEADER".into());
            }
            self.store.status(consistency).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Makes checks, and tells of each one if one fails or if that is asked for.
    async fn probe(&self, checks: impl Iterator<Item = &Check>, verbose: bool) -> Page {
        let (mut text, mut code) = (String::new(), StatusCode::OK);
        for check in checks {
            match self.check(*check).await {
                Ok(()) => text += &format!("[+]{} ok\n", check.name()),
                Err(why) => {
                    code = StatusCode::SERVICE_UNAVAILABLE;
                    text += &format!("[-]{} failed: {why}\n", check.name());
                }
            }
        }
        if code == StatusCode::OK {
            text = if verbose { text + "ok\n" } else { "ok\n".to_owned() };
        } else {
            // etcd's text ends with an empty line.
            text.push('\n');
        }
        let mut page = page(code, TEXT, text);
        page.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        page
    }

    async fn check(&self, check: Check) -> Result<(), String> {
        match check {
            Check::DataCorruption => {
                let raised = self.read(Consistency::Present).await?;
                match raised.iter().any(|raised| raised.alarm() == AlarmType::Corrupt) {
                    true => Err("alarm activated: CORRUPT".into()),
                    false => Ok(()),
                }
            }
            Check::SerializableRead => self.read(Consistency::Present).await.map(drop),
            // The read would wait for a leader until the client has given the request up.
            Check::LinearizableRead if self.leads_nobody() => Err("etcdserver: no leader".into()),
            Check::LinearizableRead => self.read(Consistency::Linearizable).await.map(drop),
            Check::NonLearner if self.store.is_learner() => Err("not supported for learner".into()),
            Check::NonLearner => Ok(()),
        }
    }

    /// Where this replica stands, as etcd has it for Raft.
    fn ordering(&self) -> Value {
        let status = self.store.replica().status();
        let state = match status.node.role {
            Role::Leader => "StateLeader",
            Role::Candidate => "StateCandidate",
            _ => "StateFollower",
        };
        json!({
            "id": format!("{:x}", status.replica.0),
            "term": status.node.ballot.round,
            "commit": status.node.decided.0,
            "lead": format!("{:x}", status.node.leader.map_or(0, |leader| leader.0)),
            "raftState": state,
            "applied": status.node.executed.0,
        })
    }

    /// The alarms that are raised, if a read succeeds.
    async fn read(&self, consistency: Consistency) -> Result<Vec<AlarmMember>, String> {
        let status = self.store.status(consistency).await;
        Ok(status.map_err(|status| status.message().to_owned())?.alarms)
    }

    /// Whether there is a group with members here that knows of no leader.
    fn leads_nobody(&self) -> bool {
        let leads_nobody = |group: &R| group.elsewhere().is_none() && group.status().node.leader.is_none();
        self.store.groups().iter().any(leads_nobody)
    }
}

/// What `/readyz` and `/livez` find out, with etcd's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// No alarm CORRUPT is raised.
    DataCorruption,
    /// This replica answers a read from its own state.
    SerializableRead,
    /// A linearizable read succeeds, so there is a quorum.
    LinearizableRead,
    /// This replica votes.
    NonLearner,
}

impl Check {
    const READY: [Check; 4] =
        [Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];
    const LIVE: [Check; 1] = [Check::SerializableRead];

    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }
}

/// The checks of a page, and whether they are all of their kind.
fn checks(path: &str) -> Option<(&'static [Check], bool)> {
    let of = |all: &'static [Check], rest: &str| match rest.strip_prefix('/') {
        None => rest.is_empty().then_some((all, true)),
        Some(name) => {
            let at = all.iter().position(|check| check.name() == name)?;
            Some((&all[at..=at], false))
        }
    };
    match path.strip_prefix("/readyz") {
        Some(rest) => of(&Check::READY, rest),
        None => of(&Check::LIVE, path.strip_prefix("/livez")?),
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

    /// Whether it is given, with a value or without one.
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
    fn checks_have_pages_of_their_own() {
        assert_eq!(checks("/readyz"), Some((&Check::READY[..], true)));
        assert_eq!(checks("/readyz/non_learner"), Some((&[Check::NonLearner][..], false)));
        assert_eq!(checks("/livez/serializable_read"), Some((&Check::LIVE[..], false)));
        for none in ["/readyz/", "/readyzz", "/livez/non_learner", "/readyz/serializable_read/x", "/"] {
            assert_eq!(checks(none), None, "{none}");
        }
    }

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        let parameters = Parameters("exclude=NOSPACE&exclude=CORRUPT&serializable=true&serializables=no");
        assert_eq!(parameters.all("exclude").collect::<Vec<_>>(), ["NOSPACE", "CORRUPT"]);
        assert_eq!(parameters.last("serializable"), Some("true"));
        assert_eq!(parameters.last("exclud"), None);
        assert!(Parameters("a&verbose").has("verbose") && Parameters("verbose=").has("verbose"));
        assert!(!Parameters("verbos&verboses=1").has("verbose"));
    }
}
