//! An answer: its head, its messages, which leave at the client's pace, and its status.

use std::sync::LazyLock;

use bytes::Bytes;
use h2::{RecvStream, SendStream, server::SendResponse};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use tokio::{sync::watch, time};
use tonic::{Code, Status};

use crate::{
    head::Deadline,
    message::drain,
    pace::{NOT_TAKEN, Pace, TAKE_TIMEOUT},
    sending::Sender,
};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// The header and trailer frames of every successful answer. They are cloned, which costs less than making them.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| HeaderMap::from_iter([(header::CONTENT_TYPE, GRPC)]));
static TRAILERS: LazyLock<HeaderMap> = LazyLock::new(|| HeaderMap::from_iter([(GRPC_STATUS, OK)]));

/// The head of an answer that has messages.
#[must_use]
pub fn head() -> Response<()> {
    let mut head = Response::new(());
    *head.headers_mut() = HEAD.clone();
    head
}

fn trailers(outcome: Result<(), Status>) -> HeaderMap {
    match outcome {
        Ok(()) => TRAILERS.clone(),
        Err(status) => {
            let mut trailers = HeaderMap::new();
            add_status(&status, &mut trailers);
            trailers
        }
    }
}

/// Sends a message at once if the client can take all of it now; otherwise returns it, to be sent at the
/// client's pace. A message that is handed over leaves as soon as the connection takes it.
pub fn send_message(reply: &mut SendResponse<Bytes>, message: Bytes) -> Option<(SendStream<Bytes>, Bytes)> {
    // An error means that the client is gone, and no answer can reach it.
    let mut stream = reply.send_response(head(), false).ok()?;
    stream.reserve_capacity(message.len());
    if stream.capacity() < message.len() {
        return Some((stream, message));
    }
    let _ = stream.send_data(message, false).and_then(|()| stream.send_trailers(trailers(Ok(()))));
    None
}

/// Sends one message at the client's pace.
pub async fn send_large(mut sender: Sender, message: Bytes, deadline: Deadline) -> Code {
    let outcome = deadline.bounds(Pace::begin().send_as_taken(&mut sender, message)).await;
    end_once_left(sender, outcome).await
}

/// Ends a call. An error means that the client is gone, and no status can reach it.
pub fn end(sender: &mut Sender, outcome: Result<(), Status>) -> Code {
    let code = outcome.as_ref().map_or_else(Status::code, |()| Code::Ok);
    if code == Code::DeadlineExceeded {
        // A message may be cut off here. Clients take a status after that for a broken answer, but they know that a
        // call which is cancelled after their deadline has exceeded it.
        sender.cancel();
    } else {
        sender.end_with(trailers(outcome));
    }
    code
}

/// Ends a call whose answer is not little once its connection has taken it. If nothing of it leaves for a minute, or
/// the client has taken next to nothing for as long already, the rest is thrown away.
pub async fn end_once_left(mut sender: Sender, outcome: Result<(), Status>) -> Code {
    if outcome.as_ref().is_err_and(|status| status.message() == NOT_TAKEN) && sender.handed() > 0 {
        sender.cancel();
        return Code::ResourceExhausted;
    }
    let code = end(&mut sender, outcome);
    while code != Code::DeadlineExceeded && sender.handed() > 0 {
        match time::timeout(TAKE_TIMEOUT, sender.until_fewer()).await {
            Ok(Ok(())) => {}
            // The client is gone.
            Ok(Err(_)) => break,
            Err(_) => {
                sender.cancel();
                return Code::ResourceExhausted;
            }
        }
    }
    code
}

/// Waits until the client of a request that was answered has stopped sending it, unless the server stops.
pub async fn until_ended(body: RecvStream, ending: &watch::Receiver<bool>) {
    if body.is_end_stream() || *ending.borrow() {
        return;
    }
    let mut ending = ending.clone();
    // Boxed, since it is rare: most requests have come when they are answered.
    let ended = async move {
        tokio::select! {
            () = drain(body) => {}
            _ = ending.wait_for(|ending| *ending) => {}
        }
    };
    Box::pin(ended).await;
}

/// An answer that consists of a status. The status is put among the headers, so that the answer is one frame.
#[derive(Debug)]
pub struct Refusal(Box<Response<()>>);

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        let mut head = head();
        add_status(&status, head.headers_mut());
        Refusal(Box::new(head))
    }
}

impl Refusal {
    /// Sets the HTTP status, for a client that does not speak gRPC.
    #[must_use]
    pub fn with(mut self, status: StatusCode) -> Refusal {
        *self.0.status_mut() = status;
        self
    }

    pub(crate) fn headers_mut(&mut self) -> &mut HeaderMap {
        self.0.headers_mut()
    }

    /// Sends it.
    pub fn send(self, reply: &mut SendResponse<Bytes>) {
        // An error means that the client is gone, and no answer can reach it.
        let _ = reply.send_response(*self.0, true);
    }
}

fn add_status(status: &Status, headers: &mut HeaderMap) {
    // This fails only for invalid metadata or details, which are not used here; the message is escaped.
    let _ = status.add_header(headers);
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use http::Request;
    use tokio::{io::duplex, time::sleep};

    use super::*;

    /// How an answer of a megabyte ends if the client takes it at this pace, and how much of it arrived.
    async fn taken(bytes: usize, every: Duration) -> (Code, usize) {
        let (client, server) = duplex(1 << 20);
        let server = tokio::spawn(async move {
            let mut connection = h2::server::handshake(server).await.unwrap();
            let (_request, mut reply) = connection.accept().await.unwrap().unwrap();
            let stream = reply.send_response(head(), false).unwrap();
            let connection = tokio::spawn(async move { poll_fn(|cx| connection.poll_closed(cx)).await });
            let code = send_large(Sender::new(stream), vec![7; 1 << 20].into(), Deadline::NONE).await;
            let _ = connection.await;
            code
        });
        let window = u32::try_from(bytes).unwrap();
        let mut builder = h2::client::Builder::new();
        let (mut send, connection) =
            builder.initial_window_size(window).handshake::<_, Bytes>(client).await.unwrap();
        let connection = tokio::spawn(connection);
        let (response, _) = send.send_request(Request::post("http://x/").body(()).unwrap(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut came = 0;
        while let Some(Ok(part)) = body.data().await {
            sleep(every).await;
            came += part.len();
            let _ = body.flow_control().release_capacity(part.len());
        }
        drop((send, body));
        let _ = connection.await;
        (server.await.unwrap(), came)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_sent_as_slowly_as_it_is_taken_within_reason() {
        let window = (1 << 16) - 1;
        assert_eq!(taken(window, Duration::from_secs(50)).await, (Code::Ok, 1 << 20));
        assert_eq!(taken(2 << 10, Duration::from_secs(5)).await, (Code::Ok, 1 << 20));
        assert_eq!(taken(window, Duration::from_secs(70)).await, (Code::ResourceExhausted, window));
        // A client that takes a little from time to time could otherwise keep its place, and the source of
        // the answer, for days.
        let (code, came) = taken(100, Duration::from_secs(50)).await;
        assert_eq!(code, Code::ResourceExhausted);
        assert!(came < 1 << 10, "{came}");
    }

    /// Whether what it handed over has left is known of each call by itself.
    #[tokio::test]
    async fn a_large_answer_holds_up_no_call_that_lasts() {
        const LARGE: usize = 8 << 20;
        let (client, server) = duplex(4 << 10);
        let answering = tokio::spawn(async move {
            let mut connection = h2::server::handshake(server).await.unwrap();
            let mut senders = Vec::new();
            while senders.len() < 2 {
                let (_request, mut reply) = connection.accept().await.unwrap().unwrap();
                senders.push(Sender::new(reply.send_response(head(), false).unwrap()));
            }
            tokio::spawn(async move { poll_fn(|cx| connection.poll_closed(cx)).await });
            let (mut lasting, large) = (senders.pop().unwrap(), senders.pop().unwrap());
            let large = tokio::spawn(send_large(large, vec![7; LARGE].into(), Deadline::NONE));
            lasting.send(vec![8; 256 << 10].into()).await.unwrap();
            lasting.until_left().await.unwrap();
            assert!(!large.is_finished(), "it had its turns meanwhile");
            assert_eq!(large.await.unwrap(), Code::Ok);
        });
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 30).initial_connection_window_size(1 << 30);
        let (mut send, connection) = builder.handshake::<_, Bytes>(client).await.unwrap();
        tokio::spawn(connection);
        let mut ask = || send.send_request(Request::post("http://x/").body(()).unwrap(), true).unwrap().0;
        let (large, lasting) = (ask(), ask());
        let mut body = large.await.unwrap().into_body();
        let _lasting = lasting.await.unwrap();
        let mut came = 0;
        while let Some(Ok(part)) = body.data().await {
            came += part.len();
        }
        assert_eq!(came, LARGE);
        answering.await.unwrap();
    }
}
