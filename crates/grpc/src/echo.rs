//! A server for tests and fuzzers: it answers the bytes of each message with themselves.

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::Request;
use tokio::sync::watch;
use tonic::Status;

use crate::{
    Checks, ClientMessages, Deadline, Handler, Incoming, Refusal, RequestBody, Sender, Share,
    admission::REQUEST_BYTES,
    answer::{end, head, send_large, send_message, until_ended},
    message::framed,
};

/// The path below which each message of a client is answered; elsewhere a call has one.
const STREAM: &str = "/echo.Echo/Stream";
const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Echo;

struct Bounds;

impl Checks for Bounds {
    fn bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn cost(&self, message: &[u8]) -> Result<u64, Status> {
        Ok(message.len() as u64)
    }
}

impl Handler for Echo {
    fn answer<'a>(
        &'a self,
        request: Request<RecvStream>,
        mut reply: SendResponse<Bytes>,
        share: &'a Share,
        ending: &'a watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()>> {
        let (parts, body) = request.into_parts();
        let charge = || share.charge(REQUEST_BYTES).map_err(Refusal::from);
        let (deadline, charge) = match Deadline::of(&parts).and_then(|deadline| Ok((deadline, charge()?))) {
            Ok(begun) => begun,
            Err(refusal) => {
                refusal.send(&mut reply);
                return None;
            }
        };
        let mut body = Incoming::new(&parts, body);
        let is_stream = parts.uri.path() == STREAM;
        Some(async move {
            if is_stream {
                let Ok(stream) = reply.send_response(head(), false) else { return };
                let mut sender = Sender::new(stream);
                let served = deadline.bounds(async {
                    let mut messages = ClientMessages::new(&mut body, Bounds, &charge);
                    while let Some(bytes) = messages.next::<Bytes>().await? {
                        messages.meanwhile(sender.send(framed(&bytes))).await??;
                    }
                    Ok(())
                });
                let outcome = served.await;
                end(&mut sender, outcome);
            } else {
                match deadline.bounds(RequestBody::new(&mut body, Bounds, &charge).message::<Bytes>()).await {
                    Ok(bytes) => {
                        if let Some((stream, rest)) = send_message(&mut reply, framed(&bytes)) {
                            send_large(Sender::new(stream), rest, Deadline::NONE).await;
                        }
                    }
                    Err(status) => Refusal::from(status).send(&mut reply),
                }
            }
            until_ended(body.into_rest(), ending).await;
        })
    }
}
