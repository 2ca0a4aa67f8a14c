//! An HTTP/2 connection: one task for all of its requests.
//!
//! A task for each request, a stack of services and boxed bodies would cost several times what the request's frames
//! cost. Here the outstanding requests are futures inside of the connection's task. Replies that arrive together
//! wake the task once; it appends all answers that are ready to one buffer, and they leave with one write.

use std::{
    error::Error,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use h2::{Ping, PingPong, RecvStream, server, server::SendResponse};
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{oneshot, watch},
    task::unconstrained,
    time::{Instant, Sleep, sleep, timeout},
};

use crate::{admission::Share, outbox::gathering, pings::Pings, places::Presence, sending::GATHERED_BYTES};

/// Bytes that a client may send on a stream, and on a connection, before the server has read them. A connection
/// begins with HTTP/2's default, and gets this much with its first request if there is plenty of memory.
const WINDOW_BYTES: u32 = 1 << 20;
const WINDOW_BYTES_MIN: u32 = (1 << 16) - 1;
/// Refusals for lack of memory that a client may leave unread before its connection is closed.
const REFUSED_MAX: u32 = 1024;
/// Requests that a connection takes before others have their turn on its thread, which may be the protocol's.
const TURN_REQUESTS_MAX: usize = 256;
/// Bytes that a connection takes besides its requests: its first window, the outbox, the buffers of `h2`, its task.
pub const CONNECTION_BYTES: u64 = 192 << 10;
/// What `h2` counts at most for a small frame of data that is not read yet.
const SMALL_FRAME_BYTES: usize = 256;
/// Longer than any connection lasts.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Most bytes of a request's headers.
const HEADER_LIST_BYTES: u32 = 16 << 10;

type Failure = Box<dyn Error + Send + Sync>;

/// What holds for every connection.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Most requests at a time.
    pub streams_max: u32,
    /// How long a client may take to begin.
    pub head_timeout: Duration,
    /// How the server and the client find out that the other is gone.
    pub keep_alive: KeepAlive,
}

/// How the server and a client find out that the other is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// A client that has begun no request for this long, and at most twice as long, is asked whether it is still there;
    /// zero: never.
    pub interval: Duration,
    /// How long the client has to answer; zero: it is not asked.
    pub timeout: Duration,
    /// A client that asks the server more often than this is cut off, as grpc does it; zero: it may ask at any time.
    pub min_time: Duration,
}

impl Default for KeepAlive {
    /// The server asks after 30 seconds, a client has 20 seconds to answer, and may ask every 5 seconds.
    fn default() -> KeepAlive {
        KeepAlive {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(20),
            min_time: Duration::from_secs(5),
        }
    }
}

/// What answers the requests of a connection.
pub trait Handler {
    /// Begins to answer a request, whose memory is charged to the connection's `share`. The answer is made within the
    /// connection's task, and is dropped with it; one that lasts ends once `ending` is true. `None`: there is no memory
    /// for it, and the client was told so.
    fn answer<'a>(
        &'a self,
        request: Request<RecvStream>,
        reply: SendResponse<Bytes>,
        share: &'a Share,
        ending: &'a watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()>>;
}

/// Serves a connection until the client ends it. Once `stop` is ready, it takes no more requests and ends the
/// connection after the last answer.
///
/// # Errors
/// The client breaks HTTP/2's rules, does not begin in time, does not answer a ping, pings too often, or asks on after
/// refusals that it does not take; or the socket fails.
pub async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handler: &impl Handler,
    share: Share,
    terms: Terms,
    mut stop: Pin<&mut impl Future<Output = ()>>,
    place: Presence,
) -> Result<(), Failure> {
    let Terms { streams_max, head_timeout, keep_alive } = terms;
    let (stream, outbox) = gathering(stream, Pings::new(keep_alive.min_time));
    let mut occupancy = Occupancy::new(place);
    let mut connection = tokio::select! {
        begun = timeout(head_timeout, builder(streams_max).handshake(stream)) => begun??,
        () = occupancy.gives_way() => return Ok(()),
    };
    let mut probe = Probe::new(connection.ping_pong().expect("nobody else has taken it"), keep_alive);
    // Refusals since the client last took all that was sent, and the size of the connection's window.
    let (mut refused, mut window) = (0, WINDOW_BYTES_MIN);
    // Streams that would not end by themselves end when it becomes true.
    let (ends, ending) = watch::channel(false);
    let mut calls = pin!(FuturesUnordered::new());
    let mut stopping = false;
    poll_fn(|cx| {
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            connection.graceful_shutdown();
            ends.send_replace(true);
        }
        if occupancy.must_end(cx) {
            // The client learns of the end if it takes a frame at once.
            connection.abrupt_shutdown(h2::Reason::NO_ERROR);
            let _ = (connection.poll_closed(cx), outbox.poll_send(cx));
            return Poll::Ready(Ok(()));
        }
        if let Poll::Ready(broken) = probe.poll(cx) {
            return Poll::Ready(Err(broken));
        }
        // Answers come first, so that polling the connection sends all of them at once.
        go_on(&mut calls, cx);
        let answered = share.answered();
        let began = accept(&mut connection, &mut calls, streams_max, cx, |request, reply| {
            match handler.answer(request, reply, &share, &ending) {
                Some(answer) => Ok(Some(answer)),
                None if refused == REFUSED_MAX => Err("the client asks on and takes no answer".into()),
                None => {
                    refused += 1;
                    Ok(None)
                }
            }
        })?;
        let Some(began) = began else { return Poll::Ready(Ok(())) };
        if began > 0 {
            probe.heard = true;
            if window < WINDOW_BYTES && share.take_of_plenty(u64::from(WINDOW_BYTES - window)) {
                window = WINDOW_BYTES;
                connection.set_target_window_size(window);
                cx.waker().wake_by_ref();
            }
            occupancy.begins();
            // If a call sends something, the connection wakes this task.
            go_on(&mut calls, cx);
        }
        if outbox.are_pings_too_many(!calls.is_empty()) {
            outbox.say_too_many_pings(cx);
            return Poll::Ready(Err("the client pings too often".into()));
        }
        if calls.is_empty() && occupancy.rests(cx) {
            outbox.rest();
        }
        // All answers are in the outbox. If the client does not take them, this task is woken when it does.
        if let Poll::Ready(Err(error)) = outbox.poll_send(cx) {
            return Poll::Ready(Err(error.into()));
        }
        if outbox.is_all_sent() {
            share.sent(answered);
            refused = 0;
        }
        Poll::Pending
    })
    .await
}

fn builder(streams_max: u32) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .initial_window_size(WINDOW_BYTES)
        .max_concurrent_streams(streams_max)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_send_buffer_size(GATHERED_BYTES)
        // Many clients send a small request in a frame that is not the stream's last. The default would cut off one
        // that begins with a hundred of them.
        .data_frame_budget(streams_max as usize * SMALL_FRAME_BYTES);
    builder
}

/// Lets all calls do what they can.
///
/// They do not share the budget that tokio gives a task. A call that is stopped for lack of it is woken only when the
/// thread is about to wait, and until then the connection would have further turns, in which it reads frames that the
/// call does not take. A call is bounded by what has come for it, and by what it may hand over.
fn go_on<F: Future<Output = ()>>(calls: &mut FuturesUnordered<F>, cx: &mut Context<'_>) {
    let all = poll_fn(|cx| {
        while let Poll::Ready(Some(())) = calls.poll_next_unpin(cx) {}
        Poll::Ready(())
    });
    let _ = pin!(unconstrained(all)).poll(cx);
}

/// Takes requests that have come, and begins what `answer` returns for each. Returns how many it took, or nothing if
/// the client has ended the connection.
fn accept<T: AsyncRead + AsyncWrite + Unpin, F: Future<Output = ()>>(
    connection: &mut server::Connection<T, Bytes>,
    calls: &mut FuturesUnordered<F>,
    streams_max: u32,
    cx: &mut Context<'_>,
    mut answer: impl FnMut(Request<RecvStream>, SendResponse<Bytes>) -> Result<Option<F>, Failure>,
) -> Result<Option<usize>, Failure> {
    for began in 0..TURN_REQUESTS_MAX {
        if calls.len() >= streams_max as usize {
            // Requests that were reset may still be among the calls, and new ones have taken their streams. The new
            // ones wait.
            let ended = connection.poll_closed(cx)?.is_ready();
            return Ok((!ended).then_some(began));
        }
        match connection.poll_accept(cx)? {
            Poll::Ready(Some((request, reply))) => calls.extend(answer(request, reply)?),
            Poll::Ready(None) => return Ok(None),
            Poll::Pending => return Ok(Some(began)),
        }
    }
    cx.waker().wake_by_ref();
    Ok(Some(TURN_REQUESTS_MAX))
}

/// Whether requests are outstanding, and whether the connection must give its place to another.
struct Occupancy {
    place: Presence,
    give_way: oneshot::Receiver<()>,
    busy: bool,
    told: bool,
}

impl Occupancy {
    fn new(mut place: Presence) -> Occupancy {
        let give_way = place.idle(std::time::Instant::now());
        Occupancy { place, give_way, busy: false, told: false }
    }

    /// Waits until the connection must give way before its first request.
    async fn gives_way(&mut self) {
        let _ = (&mut self.give_way).await;
    }

    fn must_end(&mut self, cx: &mut Context<'_>) -> bool {
        self.told = self.told || self.give_way.poll_unpin(cx).is_ready();
        self.told
    }

    fn begins(&mut self) {
        if !mem::replace(&mut self.busy, true) {
            self.give_way = self.place.busy();
            self.told = false;
        }
    }

    /// No request is outstanding. Returns whether one was until now.
    fn rests(&mut self, cx: &mut Context<'_>) -> bool {
        let rests = mem::replace(&mut self.busy, false);
        if rests {
            self.give_way = self.place.idle(std::time::Instant::now());
            self.told = self.give_way.poll_unpin(cx).is_ready();
            if self.told {
                cx.waker().wake_by_ref();
            }
        }
        rests
    }
}

/// Finds out whether the client is still there.
struct Probe {
    ping: PingPong,
    /// After how long to ask, and how long to wait for the answer.
    interval: Duration,
    timeout: Duration,
    /// When to ask next, or how long to wait for the answer.
    timer: Pin<Box<Sleep>>,
    asked: bool,
    /// Whether a request has come since the timer was set.
    heard: bool,
}

impl Probe {
    fn new(ping: PingPong, KeepAlive { interval, timeout, .. }: KeepAlive) -> Probe {
        let interval = if interval.is_zero() || timeout.is_zero() { NEVER } else { interval };
        Probe { ping, interval, timeout, timer: Box::pin(sleep(interval)), asked: false, heard: false }
    }

    /// Becomes ready, with an error, when the client is gone.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        loop {
            if self.asked
                && let Poll::Ready(answer) = self.ping.poll_pong(cx)
            {
                if let Err(error) = answer {
                    return Poll::Ready(error.into());
                }
                self.asked = false;
                self.timer.as_mut().reset(Instant::now() + self.interval);
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.asked {
                return Poll::Ready("the client does not answer a ping".into());
            }
            let mut wait = self.interval;
            if !mem::take(&mut self.heard) {
                if let Err(error) = self.ping.send_ping(Ping::opaque()) {
                    return Poll::Ready(error.into());
                }
                self.asked = true;
                wait = self.timeout;
            }
            self.timer.as_mut().reset(Instant::now() + wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        task::JoinHandle,
    };

    use super::*;
    use crate::{admission::Admission, echo::Echo, places::Places};

    const STREAMS_MAX: u32 = 4096;
    const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
    const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
    const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

    /// The client's end of a connection, and how it ended.
    fn connection(room: usize) -> (DuplexStream, JoinHandle<Result<(), String>>) {
        connection_kept(room, KeepAlive::default())
    }

    fn connection_kept(room: usize, keep_alive: KeepAlive) -> (DuplexStream, JoinHandle<Result<(), String>>) {
        connection_until(room, keep_alive, pending())
    }

    fn connection_until(
        room: usize,
        keep_alive: KeepAlive,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> (DuplexStream, JoinHandle<Result<(), String>>) {
        let (client, stream) = duplex(room);
        let served = tokio::spawn(async move {
            let place = Places::new(1).take().expect("it is free");
            let terms = Terms { streams_max: STREAMS_MAX, head_timeout: HEAD_TIMEOUT, keep_alive };
            let share = Admission::new(4 << 20, "too many requests").share();
            let served = serve(stream, &Echo, share, terms, pin!(stop), place).await;
            served.map_err(|error| error.to_string())
        });
        (client, served)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_begin_is_cut_off() {
        let (mut client, served) = connection(1 << 12);
        client.write_all(b"PRI").await.unwrap();
        let began = Instant::now();
        served.await.unwrap().unwrap_err();
        assert_eq!(began.elapsed().as_secs(), HEAD_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_gone_is_found_out() {
        let (mut client, served) = connection(1 << 12);
        // The preface and empty settings, and nothing after them.
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let began = Instant::now();
        let error = served.await.unwrap().unwrap_err();
        assert_eq!(error, "the client does not answer a ping");
        assert_eq!(began.elapsed().as_secs(), (KEEP_ALIVE_INTERVAL + KEEP_ALIVE_TIMEOUT).as_secs());
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        let ping_head = b"\0\0\x08\x06\0\0\0\0\0";
        assert_eq!(heard.windows(9).filter(|bytes| bytes == ping_head).count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_not_asked_if_the_interval_is_zero() {
        let never = KeepAlive { interval: Duration::ZERO, ..KeepAlive::default() };
        let (mut client, served) = connection_kept(1 << 12, never);
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        sleep(Duration::from_secs(24 * 3600)).await;
        assert!(!served.is_finished());
        drop(client);
        let _ = served.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_pings_too_often_is_told_so_and_cut_off() {
        let (client, served) = connection(1 << 12);
        let (send, mut client) = h2::client::handshake(client).await.unwrap();
        let mut pings = client.ping_pong().unwrap();
        let client = tokio::spawn(client);
        let mut answered = 0;
        while pings.ping(Ping::opaque()).await.is_ok() {
            answered += 1;
        }
        assert_eq!(answered, 3);
        let error = client.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
        assert!(format!("{error:?}").contains("too_many_pings"), "{error:?}");
        assert_eq!(served.await.unwrap().unwrap_err(), "the client pings too often");
        drop(send);
    }

    /// A request that is under way when the server stops must be among those that the last frame says it takes.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_says_what_it_takes_once_the_client_knows_that_it_stops() {
        let (stop, stopped) = oneshot::channel();
        let stopped = async { _ = stopped.await };
        let (mut client, served) = connection_until(1 << 12, KeepAlive::default(), stopped);
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        stop.send(()).unwrap();
        let mut heard = Vec::new();
        while let Ok(Ok(1..)) = timeout(Duration::from_secs(1), client.read_buf(&mut heard)).await {}
        let takes_up_to = |heard: &[u8], stream: u32| {
            let go_away = [&b"\0\0\x08\x07\0\0\0\0\0"[..], &stream.to_be_bytes(), &[0; 4]].concat();
            heard.windows(go_away.len()).any(|bytes| bytes == go_away)
        };
        assert!(takes_up_to(&heard, u32::MAX >> 1) && !takes_up_to(&heard, 0), "{heard:?}");
        let ping = heard.windows(17).find(|bytes| bytes.starts_with(b"\0\0\x08\x06\0\0\0\0\0"));
        let pong = [&b"\0\0\x08\x06\x01\0\0\0\0"[..], &ping.expect("a ping")[9..]].concat();
        client.write_all(&pong).await.unwrap();
        client.read_to_end(&mut heard).await.unwrap();
        assert!(takes_up_to(&heard, 0), "{heard:?}");
        served.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_there_stays() {
        let (client, served) = connection(1 << 12);
        let (send, client) = h2::client::handshake(client).await.unwrap();
        let client = tokio::spawn(client);
        sleep(KEEP_ALIVE_INTERVAL * 20).await;
        assert!(!served.is_finished());
        drop(send);
        client.await.unwrap().unwrap();
        served.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_asks_on_and_takes_no_answer_is_broken_off() {
        let (client, served) = connection(1 << 12);
        let (send, client) = h2::client::Builder::new()
            .initial_max_send_streams(STREAMS_MAX as usize)
            .initial_window_size(1 << 30)
            .initial_connection_window_size(1 << 30)
            .handshake::<_, bytes::Bytes>(Deaf(client))
            .await
            .unwrap();
        tokio::spawn(client);
        let mut unread = Vec::new();
        for _ in 0..STREAMS_MAX {
            let mut send = send.clone().ready().await.unwrap();
            let request = http::Request::post("http://x/echo.Echo/Echo");
            let request = request.header("content-type", "application/grpc").body(()).unwrap();
            let (response, mut body) = send.send_request(request, false).unwrap();
            // The bytes "k".
            body.send_data((&b"\0\0\0\0\x03\x0a\x01k"[..]).into(), true).unwrap();
            unread.push((response, body));
        }
        assert_eq!(served.await.unwrap().unwrap_err(), "the client asks on and takes no answer");
    }

    /// Many clients send a request in one frame and end the stream with another.
    #[tokio::test]
    async fn a_client_may_begin_with_as_many_small_requests_as_streams() {
        let (client, served) = connection(4 << 20);
        let (send, client) = h2::client::Builder::new()
            .initial_max_send_streams(STREAMS_MAX as usize)
            .handshake::<_, bytes::Bytes>(client)
            .await
            .unwrap();
        let mut responses = Vec::new();
        for _ in 0..1000 {
            let mut send = send.clone().ready().await.unwrap();
            let request = http::Request::post("http://x/echo.Echo/Echo");
            let request = request.header("content-type", "application/grpc").body(()).unwrap();
            let (response, mut body) = send.send_request(request, false).unwrap();
            body.send_data((&b"\0\0\0\0\x03\x0a\x01k"[..]).into(), false).unwrap();
            body.send_data(bytes::Bytes::new(), true).unwrap();
            responses.push(response);
        }
        // Only now does anything leave, all at once.
        let client = tokio::spawn(client);
        for response in responses {
            assert_eq!(response.await.unwrap().status(), 200);
        }
        drop(send);
        client.await.unwrap().unwrap();
        served.await.unwrap().unwrap();
    }

    /// A client that reads nothing.
    struct Deaf(DuplexStream);

    impl AsyncRead for Deaf {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Deaf {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }
}
