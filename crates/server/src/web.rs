//! What is not gRPC: pages, and calls as JSON, over HTTP/1.1 or HTTP/2.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body, Frame};
use synod_grpc::{Pace, Sender};

use crate::{
    Replica,
    gateway::{self, Answer, Gateway},
    http::Pages,
};

/// Which requests of web pages are answered, at the addresses for clients.
#[derive(Debug, Default)]
pub(crate) struct Browsers {
    /// See [`Config::hosts`](crate::Config::hosts).
    pub(crate) hosts: Vec<String>,
    /// See [`Config::origins`](crate::Config::origins).
    pub(crate) origins: Vec<String>,
}

impl Browsers {
    /// Tells a browser, as etcd does, whether a page of this origin may read the answer.
    fn allow(&self, origin: Option<&HeaderValue>, answer: &mut HeaderMap) {
        let is_any = self.origins.is_empty() || self.origins.iter().any(|allowed| allowed == "*");
        let allowed = match origin {
            _ if is_any => HeaderValue::from_static("*"),
            Some(origin) if self.origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()) => {
                origin.clone()
            }
            _ => return,
        };
        let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
        let headers = HeaderValue::from_static("accept, content-type, authorization");
        answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, headers);
    }
}

/// The pages and calls of one connection.
pub(crate) struct Web<R> {
    pages: Pages<R>,
    /// Calls are answered at the addresses for clients.
    gateway: Option<Gateway<R>>,
    /// `None` at the addresses for pages alone, which browsers have no business with.
    browsers: Option<Arc<Browsers>>,
    is_spare: bool,
}

impl<R: Replica> Web<R> {
    /// Pages alone.
    pub(crate) fn of_pages(pages: Pages<R>) -> Web<R> {
        Web { pages, gateway: None, browsers: None, is_spare: false }
    }

    /// Pages, and calls of clients.
    pub(crate) fn new(pages: Pages<R>, gateway: Option<Gateway<R>>, browsers: Arc<Browsers>) -> Web<R> {
        Web { pages, gateway, browsers: Some(browsers), is_spare: false }
    }

    /// One page, where all places of clients are taken.
    pub(crate) fn spare(pages: Pages<R>, browsers: Arc<Browsers>) -> Web<R> {
        Web { is_spare: true, ..Web::new(pages, None, browsers) }
    }

    /// Whether the connection has none of the places of clients.
    pub(crate) fn is_spare(&self) -> bool {
        self.is_spare
    }

    /// Whether a request of HTTP/2 is for this, and not a call of gRPC.
    pub(crate) fn takes<B>(&self, request: &Request<B>) -> bool {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc"));
        let path = request.uri().path();
        !is_grpc && (gateway::route(path).is_some() || Pages::<R>::has(path))
    }

    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let Some(browsers) = &self.browsers else { return boxed(self.pages.page(&request).await) };
        if let Some(refusal) = Pages::<R>::unknown_host(&request, &browsers.hosts) {
            return boxed(refusal);
        }
        let origin = request.headers().get(header::ORIGIN).cloned();
        let mut answer = match &self.gateway {
            _ if request.method() == Method::OPTIONS => boxed(Response::new(Empty::new())),
            Some(gateway) if gateway::route(request.uri().path()).is_some() => gateway.answer(request).await,
            None if self.is_spare && !Pages::<R>::has(request.uri().path()) => boxed(Pages::<R>::no_place()),
            _ => boxed(self.pages.page(&request).await),
        };
        browsers.allow(origin.as_ref(), answer.headers_mut());
        answer
    }

    /// Answers a request of HTTP/2.
    pub(crate) async fn answer_http2(&self, request: Request<RecvStream>, mut reply: SendResponse<Bytes>) {
        let answer = tokio::select! {
            answer = self.answer(request.map(Received)) => answer,
            _ = std::future::poll_fn(|cx| reply.poll_reset(cx)) => return,
        };
        let (head, mut body) = answer.into_parts();
        // An error means that the client is gone, and no answer can reach it.
        let Ok(stream) = reply.send_response(http::Response::from_parts(head, ()), false) else { return };
        let (mut sender, mut pace) = (Sender::new(stream), Pace::begin());
        loop {
            let Ok(frame) = pace.paused(sender.unless_gone(body.frame())).await else { return };
            let Some(Ok(frame)) = frame else { break };
            // The body may give back what the frame costs when it is asked for the next one.
            if let Ok(data) = frame.into_data()
                && pace.send(&mut sender, data).await.is_err()
            {
                // Either the client is gone, or it takes nothing.
                return sender.cancel();
            }
        }
        sender.end();
    }
}

fn boxed<B>(page: Response<B>) -> Answer
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    page.map(|page| page.map_err(|never| match never {}).boxed_unsync())
}

/// The body of a request of HTTP/2.
struct Received(RecvStream);

impl Body for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let piece = ready!(self.0.poll_data(cx)).transpose()?;
        if let Some(piece) = &piece {
            // This fails only if more is released than was received.
            let _ = self.0.flow_control().release_capacity(piece.len());
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_an_allowed_origin_may_read_answers() {
        let allowed = |origins: &[&str], origin: Option<&'static str>| {
            let origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
            let (browsers, mut headers) = (Browsers { hosts: Vec::new(), origins }, HeaderMap::new());
            browsers.allow(origin.map(HeaderValue::from_static).as_ref(), &mut headers);
            assert_eq!(headers.len() % 3, 0);
            let allowed = headers.remove(header::ACCESS_CONTROL_ALLOW_ORIGIN);
            allowed.map(|allowed| allowed.to_str().unwrap().to_owned())
        };
        assert_eq!(allowed(&["*"], None).as_deref(), Some("*"));
        assert_eq!(allowed(&[], Some("http://a")).as_deref(), Some("*"));
        assert_eq!(allowed(&["http://a", "*"], Some("http://b")).as_deref(), Some("*"));
        assert_eq!(allowed(&["http://a", "http://b"], Some("http://b")).as_deref(), Some("http://b"));
        assert_eq!(allowed(&["http://a"], Some("http://b")), None);
        assert_eq!(allowed(&["http://a"], None), None);
    }
}
