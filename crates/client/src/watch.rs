//! Watching keys.

use futures_util::{StreamExt as _, stream};
use synod_api::etcdserverpb::{
    WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::time::sleep;
use tonic::{Request, Streaming, metadata::MetadataValue};

use crate::{
    Client, Error,
    auth::RENEWALS_MAX,
    endpoints::{Endpoints, Retry, backoff, refused},
    error::Failure,
};

/// etcd's header for streams that are to end where there is no leader.
const NEEDS_LEADER: &str = "hasleader";

/// A watch: tells the changes of a key or a range of keys, in the order of their revisions, each once.
///
/// When its server fails, or the connection to it, or the server has no leader for some seconds, the watch goes on at
/// the next endpoint, with the revision after the last one that it has told.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    request: WatchCreateRequest,
    responses: Option<Streaming<WatchResponse>>,
    /// Streams in a row that ended before they brought a response.
    fruitless: usize,
}

impl Client {
    /// Watches as the request says. Nothing is sent before [`Watch::next`] is first called. The request's watch id is
    /// of no use here, since each watch has a stream of its own, and responses are never split.
    pub fn watch(&self, request: WatchCreateRequest) -> Watch {
        let request = WatchCreateRequest { fragment: false, watch_id: 0, ..request };
        Watch { client: self.clone(), request, responses: None, fruitless: 0 }
    }
}

impl Watch {
    /// Waits for the next response. The first one says that the watch is created; others have events, or tell how far
    /// the watch is. `None`: the server has ended the watch, as the last response said.
    ///
    /// # Errors
    /// No endpoint takes the watch, for as long as the client tries, or a server refuses to go on with it.
    pub async fn next(&mut self) -> Result<Option<WatchResponse>, Error> {
        if self.request.start_revision < 0 {
            return Ok(None);
        }
        loop {
            let responses = match &mut self.responses {
                Some(responses) => responses,
                none => none.insert(open(self.client.endpoints_used(), &self.request).await?),
            };
            let ended = responses.message().await;
            if let Ok(Some(response)) = ended {
                let reason = &response.cancel_reason;
                if response.canceled
                    && self.fruitless < RENEWALS_MAX as usize
                    && self.client.endpoints_used().needs_token(reason)
                {
                    // It is refused for its token, and asked for again with another.
                    self.fruitless += 1;
                    self.responses = None;
                    continue;
                }
                self.fruitless = 0;
                self.note(&response);
                return Ok(Some(response));
            }
            self.responses = None;
            let endpoints = self.client.endpoints_used();
            if let Err(status) = ended
                && Failure::of(&status) == Failure::Refused
            {
                return Err(refused(endpoints.current_url(), &status, false));
            }
            // Another server goes on from where this one ended.
            endpoints.leave_current();
            let pause = backoff().nth(self.fruitless.min(16)).expect("it never ends");
            self.fruitless += 1;
            sleep(pause).await;
        }
    }

    /// Keeps where to go on.
    fn note(&mut self, response: &WatchResponse) {
        let header = response.header.as_ref().map_or(0, |header| header.revision);
        if response.canceled {
            self.request.start_revision = -1;
        } else if let Some(kv) = response.events.last().and_then(|event| event.kv.as_ref()) {
            self.request.start_revision = kv.mod_revision + 1;
        } else if response.created && self.request.start_revision == 0 || is_progress(response) {
            self.request.start_revision = self.request.start_revision.max(header + 1);
        }
    }
}

/// Whether a response only tells how far the watch is.
fn is_progress(response: &WatchResponse) -> bool {
    response.events.is_empty() && !response.created && !response.canceled
}

async fn open(
    endpoints: &Endpoints,
    request: &WatchCreateRequest,
) -> Result<Streaming<WatchResponse>, Error> {
    endpoints
        .call(Retry::Reads, |channel| {
            let request_union = Some(RequestUnion::CreateRequest(request.clone()));
            // The request stays open: with its end some servers end the watch.
            let requests = stream::iter([WatchRequest { request_union }]).chain(stream::pending());
            let mut requests = Request::new(requests);
            requests.metadata_mut().insert(NEEDS_LEADER, MetadataValue::from_static("true"));
            async move { WatchClient::new(channel).max_decoding_message_size(usize::MAX).watch(requests).await }
        })
        .await
}
