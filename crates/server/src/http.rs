//! The pages for operators and their tools: health, version, metrics.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use synod_api::etcdserverpb::AlarmMember;

use crate::{
    Consistency, Replica, exposition,
    services::{API_VERSION, Store},
};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The pages of one replica:
///
/// | page | what it says |
/// | --- | --- |
/// | `/health` | whether this replica serves: no alarm, a leader, and a linearizable read that succeeds. As with etcd, `?serializable=true` asks this replica only, and `&exclude=NOSPACE` forgives an alarm |
/// | `/readyz` | the same without the alarms: whether to send clients here |
/// | `/livez` | whether this replica answers at all: whether not to restart it |
/// | `/version` | the version of etcd's API, and Synod's own |
/// | `/metrics` | what there is to measure |
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

    /// All pages.
    pub(crate) const PATHS: [&str; 5] = ["/health", "/readyz", "/livez", "/version", "/metrics"];

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
            "/readyz" => probe(self.reads(Consistency::Linearizable).await),
            "/livez" => probe(self.reads(Consistency::Serializable).await),
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
            _ => {
                let known = "not found; there are /health, /readyz, /livez, /version and /metrics\n";
                page(StatusCode::NOT_FOUND, TEXT, known)
            }
        }
    }

    async fn health(&self, parameters: Parameters<'_>) -> Result<(), String> {
        let consistency = match parameters.last("serializable") {
            Some("true") => Consistency::Serializable,
            _ => Consistency::Linearizable,
        };
        let raised = self.reads(consistency).await?;
        match raised
            .iter()
            .find(|raised| !parameters.all("exclude").any(|name| name == raised.alarm().as_str_name()))
        {
            Some(raised) => Err(format!("ALARM {}", raised.alarm().as_str_name())),
            None => Ok(()),
        }
    }

    /// The alarms that are raised, if a read succeeds.
    async fn reads(&self, consistency: Consistency) -> Result<Vec<AlarmMember>, String> {
        let leads_nobody = |group: &R| group.elsewhere().is_none() && group.status().leader.is_none();
        if consistency == Consistency::Linearizable && self.store.groups().iter().any(leads_nobody) {
            return Err("NO LEADER".into());
        }
        match self.store.status(consistency).await {
            Ok(status) => Ok(status.alarms),
            Err(status) => Err(format!("RANGE ERROR: {}", status.message())),
        }
    }
}

fn page(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Page {
    let response = Response::builder().status(status).header(CONTENT_TYPE, content_type);
    response.body(Full::new(text.into())).expect("the header is a constant")
}

fn probe<T>(outcome: Result<T, String>) -> Page {
    match outcome {
        Ok(_) => page(StatusCode::OK, TEXT, "ok\n"),
        Err(reason) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
    }
}

/// The part of a URL after its question mark. No parameter needs escapes.
#[derive(Clone, Copy)]
struct Parameters<'a>(&'a str);

impl<'a> Parameters<'a> {
    fn all(self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0.split('&').filter_map(move |pair| pair.strip_prefix(name)?.strip_prefix('='))
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
    }
}
