//! The headers of a call: whether they are valid, and how long the client waits.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::answer::Refusal;

const GRPC_TIMEOUT: &str = "grpc-timeout";
pub(crate) const GRPC_ENCODING: &str = "grpc-encoding";
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// How messages of clients may be compressed.
pub(crate) const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// When the client stops waiting, if its request says so.
#[derive(Debug)]
pub struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    pub(crate) const NONE: Deadline = Deadline(None);

    /// That of a request whose headers are valid.
    ///
    /// # Errors
    /// They are not, and the client is to be told so.
    pub fn of(head: &Parts) -> Result<Deadline, Refusal> {
        deadline(head)
    }

    /// Does some work, unless the client stops waiting first.
    ///
    /// # Errors
    /// The client waits no longer, or the work fails.
    pub async fn bounds<T>(mut self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let mut work = pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Pending => self.poll(cx).map(Err),
            ready => ready,
        })
        .await
    }

    fn after(timeout: Duration) -> Deadline {
        Deadline(Some(Box::pin(sleep(timeout))))
    }

    /// Becomes ready, with what the client is told, when it waits no longer.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        match &mut self.0 {
            Some(sleep) => sleep.as_mut().poll(cx).map(|()| too_late()),
            None => Poll::Pending,
        }
    }
}

/// The text is that of gRPC's Go implementation, which clients know.
fn too_late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// Checks a request's headers, and returns how long the client waits. What is wrong is refused in the order and with
/// the codes of gRPC's Go implementation, and mostly in its words, which clients know.
fn deadline(head: &Parts) -> Result<Deadline, Refusal> {
    if head.headers.get_all(header::HOST).iter().nth(1).is_some() {
        let status = Status::internal("there is more than one header Host; HTTP/2 allows one");
        return Err(Refusal::from(status).with(StatusCode::BAD_REQUEST));
    }
    let content_type = head.headers.get(header::CONTENT_TYPE);
    if !content_type.is_some_and(is_grpc) {
        let content_type = String::from_utf8_lossy(content_type.map_or(&b""[..], HeaderValue::as_bytes));
        let status = Status::invalid_argument(format!("invalid gRPC request content-type {content_type:?}"));
        return Err(Refusal::from(status).with(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let wait = match head.headers.get(GRPC_TIMEOUT).map(timeout) {
        Some(None) => {
            let status = Status::internal(
                "malformed grpc-timeout: give up to eight digits and one of H, M, S, m, u, n",
            );
            return Err(Refusal::from(status).with(StatusCode::BAD_REQUEST));
        }
        wait => wait.flatten(),
    };
    if head.method != Method::POST {
        let method = head.method.as_str();
        let text = format!("Received a HEADERS frame with :method {method:?} which should be POST");
        let mut refusal = Refusal::from(Status::internal(text));
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Err(refusal.with(StatusCode::METHOD_NOT_ALLOWED));
    }
    if wait.is_some_and(|wait| wait.is_zero()) {
        // A command that is as good as given up is not ordered.
        return Err(Refusal::from(too_late()));
    }
    let encoding = head.headers.get(GRPC_ENCODING).filter(|encoding| !encoding.is_empty());
    if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity" && *encoding != GZIP) {
        let encoding = encoding.to_str().unwrap_or_default();
        let text = format!("grpc: Decompressor is not installed for grpc-encoding \"{encoding}\"");
        let mut refusal = Refusal::from(Status::unimplemented(text));
        refusal.headers_mut().insert(GRPC_ACCEPT_ENCODING, GZIP);
        return Err(refusal);
    }
    Ok(wait.map_or(Deadline::NONE, Deadline::after))
}

/// Accepts `application/grpc`, whatever follows its `+` or `;`. Messages are protobuf in any case.
#[must_use]
pub fn is_grpc(content_type: &HeaderValue) -> bool {
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The time-out in a `grpc-timeout` header, or `None` if it is not valid.
#[must_use]
pub fn timeout(header: &HeaderValue) -> Option<Duration> {
    let (unit, count) = header.as_bytes().split_last()?;
    if !(1..=8).contains(&count.len()) || !count.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(count).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units() {
        let timeout = |text: &'static str| timeout(&HeaderValue::from_static(text));
        assert_eq!(timeout("100m"), Some(Duration::from_millis(100)));
        assert_eq!(timeout("2S"), Some(Duration::from_secs(2)));
        assert_eq!(timeout("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(timeout("3M"), Some(Duration::from_secs(180)));
        assert_eq!(timeout("7u"), Some(Duration::from_micros(7)));
        assert_eq!(timeout("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for wrong in ["", "S", "5", "5s", "-1S", "123456789S", "1 S"] {
            assert_eq!(timeout(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn content_types_of_grpc_are_known() {
        let is_grpc = |text: &'static str| is_grpc(&HeaderValue::from_static(text));
        let bare = ["application/grpc", "application/grpc+", "application/grpc;"];
        let with_more = ["application/grpc+proto", "application/grpc+json", "application/grpc;charset=utf-8"];
        for right in bare.into_iter().chain(with_more) {
            assert!(is_grpc(right), "{right}");
        }
        for wrong in ["", "application/json", "application/grpc-web", "application/grpc proto"] {
            assert!(!is_grpc(wrong), "{wrong}");
        }
    }
}
