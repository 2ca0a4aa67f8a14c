//! What is not gRPC: pages, and calls as JSON, over HTTP/1.1 or HTTP/2.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::{Request, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};

use crate::{
    Replica, call,
    gateway::{self, Answer, Gateway},
    http::Pages,
};

/// The pages and calls of one connection.
pub(crate) struct Web<R> {
    pages: Pages<R>,
    /// Calls are answered at the addresses for clients.
    gateway: Option<Gateway<R>>,
    /// The names of hosts by which clients may ask; none, or `*`: any.
    hosts: Arc<[String]>,
}

impl<R: Replica> Web<R> {
    /// Pages alone.
    pub(crate) fn of_pages(pages: Pages<R>) -> Web<R> {
        Web { pages, gateway: None, hosts: Arc::default() }
    }

    /// Pages, and calls of clients.
    pub(crate) fn new(pages: Pages<R>, gateway: Option<Gateway<R>>, hosts: Arc<[String]>) -> Web<R> {
        Web { pages, gateway, hosts }
    }

    /// Whether a request of HTTP/2 is for this, and not a call of gRPC.
    pub(crate) fn takes<B>(&self, request: &Request<B>) -> bool {
        let content_type = request.headers().get(header::CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/grpc"));
        let path = request.uri().path();
        !is_grpc && (path.starts_with(gateway::PREFIX) || Pages::<R>::has(path))
    }

    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let page = match (Pages::<R>::unknown_host(&request, &self.hosts), &self.gateway) {
            (Some(refusal), _) => refusal,
            (None, Some(gateway)) if request.uri().path().starts_with(gateway::PREFIX) => {
                return gateway.answer(request).await;
            }
            (None, _) => self.pages.page(&request).await,
        };
        page.map(|page| page.map_err(|never| match never {}).boxed_unsync())
    }

    /// Answers a request of HTTP/2.
    pub(crate) async fn answer_http2(&self, request: Request<RecvStream>, mut reply: SendResponse<Bytes>) {
        let answer = tokio::select! {
            answer = self.answer(request.map(Received)) => answer,
            _ = std::future::poll_fn(|cx| reply.poll_reset(cx)) => return,
        };
        let (head, mut body) = answer.into_parts();
        // An error means that the client is gone, and no answer can reach it.
        let Ok(mut stream) = reply.send_response(http::Response::from_parts(head, ()), false) else { return };
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                _ = std::future::poll_fn(|cx| stream.poll_reset(cx)) => return,
            };
            let Some(Ok(frame)) = frame else { break };
            if let Ok(data) = frame.into_data()
                && call::send_patiently(&mut stream, data).await.is_err()
            {
                return;
            }
        }
        let _ = stream.send_data(Bytes::new(), true);
    }
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
