//! A connection of HTTP/1: pages, and calls as JSON, one after the other.
//!
//! The client must take its answers. What it does not take waits in the connection, and so do the requests that it has
//! sent ahead. So the connection gives way to others while the client takes nothing, as one that is idle does, and ends
//! when the client has taken next to nothing for a minute, as a call of gRPC does. A connection on which a body does
//! not end has done no work (see [`synod_grpc::Mark`]).

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::{
    body::{Body, Frame, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use synod_grpc::{NOT_TAKEN, Presence, TAKE_BYTES_MIN, TAKE_TIMEOUT};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    time::{Sleep, sleep},
};

use crate::{Replica, serve::HEAD_TIMEOUT, web::Web};

/// Bytes of requests that are read ahead, and of answers that are written ahead. The head of a request has no more.
const BUFFER_BYTES: usize = 64 << 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves a connection until the client ends it, or it must give way. Once `stop` is ready, it ends after the answer.
///
/// # Errors
/// The client breaks HTTP's rules, or does not take an answer.
pub(crate) async fn serve<R: Replica>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    web: &Web<R>,
    mut stop: Pin<&mut impl Future<Output = ()>>,
    place: Presence,
) -> Result<(), Failure> {
    let occupancy = Occupancy::new(place);
    let answer = service_fn(async |request| {
        let answering = Answering::new(&occupancy);
        let answer = web.answer(request).await;
        Ok::<_, Infallible>(answer.map(|body| Answered { body, _answering: answering }))
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(BUFFER_BYTES);
    // One that only has the place of others is not kept for a further request.
    server.keep_alive(!web.is_spare());
    let stream = Paced { stream, occupancy: occupancy.clone(), pace: None };
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), answer));
    let mut stopping = false;
    poll_fn(|cx| {
        if !stopping && stop.as_mut().poll(cx).is_ready() {
            stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(ended.map_err(Failure::from));
        }
        // It is looked at last: the connection may have begun to rest.
        occupancy.poll_gives_way(cx).map(Ok)
    })
    .await
}

/// Whether the connection rests, so that it may have to give its place to another. Clones are of the same connection.
#[derive(Clone)]
struct Occupancy(Arc<Mutex<State>>);

struct State {
    place: Presence,
    /// It becomes ready when the connection must give way.
    gives_way: oneshot::Receiver<()>,
    /// A request is being answered.
    answers: bool,
    /// The client takes nothing of an answer.
    stalls: bool,
}

impl State {
    fn rests(&self) -> bool {
        !self.answers || self.stalls
    }
}

impl Occupancy {
    fn new(mut place: Presence) -> Occupancy {
        let gives_way = place.idle(Instant::now());
        Occupancy(Arc::new(Mutex::new(State { place, gives_way, answers: false, stalls: false })))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = state.rests();
        change(&mut state);
        if state.rests() != rested {
            state.gives_way = if rested { state.place.busy() } else { state.place.idle(Instant::now()) };
        }
    }

    fn poll_gives_way(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.gives_way.poll_unpin(cx).map(drop)
    }
}

/// A request is being answered until this is dropped.
struct Answering(Occupancy);

impl Answering {
    fn new(occupancy: &Occupancy) -> Answering {
        occupancy.change(|state| state.answers = true);
        Answering(occupancy.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.change(|state| state.answers = false);
    }
}

/// The body of an answer.
struct Answered<B> {
    body: B,
    _answering: Answering,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that fails when the client does not take what is written.
struct Paced<S> {
    stream: S,
    occupancy: Occupancy,
    /// While something waits to be taken: until when the client must have taken [`TAKE_BYTES_MIN`] bytes, and how many
    /// it has taken.
    pace: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S: AsyncWrite + Unpin> Paced<S> {
    fn written(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let Poll::Ready(result) = written else { return self.wait(cx).map(Err) };
        self.occupancy.change(|state| state.stalls = false);
        if let (Some((_, taken)), Ok(bytes)) = (&mut self.pace, &result) {
            *taken += bytes;
            if *taken >= TAKE_BYTES_MIN {
                self.pace = None;
            }
        }
        Poll::Ready(result)
    }

    fn flushed(&mut self, cx: &mut Context<'_>, flushed: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        let Poll::Ready(result) = flushed else { return self.wait(cx).map(Err) };
        self.occupancy.change(|state| state.stalls = false);
        self.pace = None;
        Poll::Ready(result)
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.occupancy.change(|state| state.stalls = true);
        let (timer, _) = self.pace.get_or_insert_with(|| (Box::pin(sleep(TAKE_TIMEOUT)), 0));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, NOT_TAKEN))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.flushed(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.flushed(cx, ended)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{future::pending, time::Duration};

    use prometheus_client::registry::Registry;
    use synod_grpc::{Admission, Places};
    use synod_kv::KvStore;
    use synod_wire::{ClusterId, ReplicaId};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, duplex, split},
        task::JoinHandle,
        time,
    };

    use super::*;
    use crate::{
        Config, InMemory, Member, MemberInfo, exposition::Exposition, feeds::Feeds, http::Pages,
        readers::Readers, services::Store,
    };

    /// A store of one replica.
    pub(crate) fn store() -> Store<InMemory> {
        let member = Member::voter(ReplicaId(1), MemberInfo::new("only", Vec::new()));
        let replica = InMemory::start(KvStore::new(), ClusterId(1), member).unwrap();
        let admission = Admission::new(4 << 20, "too many");
        Store::new(
            &Config::default(),
            vec![replica],
            Readers::new(),
            admission,
            Feeds::default(),
            Arc::default(),
        )
    }

    /// The client's end of a connection for pages, and how it ended.
    fn connection(places: &Places) -> (DuplexStream, JoinHandle<Result<(), String>>) {
        let metrics = Arc::new(Exposition::new(Registry::default()));
        let web = Web::of_pages(Pages::new(Arc::new(store()), metrics));
        let (client, stream) = duplex(1 << 10);
        let place = places.take().expect("it is free");
        let served = tokio::spawn(async move {
            serve(stream, &web, pin!(pending()), place).await.map_err(|error| error.to_string())
        });
        (client, served)
    }

    const GET: &[u8] = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n";

    /// Asks more than the connection has room to answer, and gives back the end that reads.
    fn ask_on(client: DuplexStream) -> ReadHalf<DuplexStream> {
        let (reading, mut writing) = split(client);
        tokio::spawn(async move {
            // It fails when the connection has ended.
            let _ = writing.write_all(&GET.repeat(2_000)).await;
            pending::<()>().await;
        });
        reading
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_broken_off() {
        let (client, served) = connection(&Places::new(1));
        let began = time::Instant::now();
        let _unread = ask_on(client);
        let error = served.await.unwrap().unwrap_err();
        assert!(began.elapsed() >= TAKE_TIMEOUT && began.elapsed() < TAKE_TIMEOUT * 2, "{error}");
        // A client that takes them slowly gets them all.
        let (client, served) = connection(&Places::new(1));
        let mut reading = ask_on(client);
        let (mut taken, mut came) = (vec![0; 1 << 10], 0);
        while came < 40_000 {
            time::sleep(Duration::from_secs(5)).await;
            came += reading.read(&mut taken).await.unwrap();
        }
        assert!(!served.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_gives_way_while_its_client_takes_nothing() {
        let places = Places::giving_way(2);
        let (client, served) = connection(&places);
        let _silent = ask_on(client);
        time::sleep(Duration::from_secs(1)).await;
        let (mut used, _served) = connection(&places);
        used.write_all(GET).await.unwrap();
        let mut answer = vec![0; 12];
        used.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 200");
        let began = time::Instant::now();
        let _newcomer = places.claim(None).await.expect("one gives way");
        served.await.unwrap().unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "the oldest has, at once");
    }
}
