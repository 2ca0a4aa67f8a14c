//! Clients elsewhere: an RPC of your own between clients and replicas, with a session across it:
//! `cargo run --release --example remote`.
//!
//! Each replica serves clients at an address of its own, and a client knows these addresses and nothing else. Any
//! replica takes commands, so the client need not find the leader: it asks one replica, and another one after a
//! failure. Its session sends each command until it is answered, and a command for which several replicas were asked is
//! executed once.
//!
//! Requests and answers are frames: a length (4 bytes, little-endian), a kind (1 byte), and what belongs to it. Each
//! request has a connection of its own here; where there are many, a program keeps its connections.

use std::{
    error::Error,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use synod::{
    Context, Endpoint, Handle, Json, LocalGroup, Machine, RequestError, Session, SessionCommand, SessionId,
    Typed, TypedHandle, TypedSession,
    bytes::{Buf, BufMut, Bytes, BytesMut},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// Every command adds to the sum, and is answered with it.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Counter(u64);

impl Machine for Counter {
    type Command = u64;
    type Reply = u64;
    type Query = ();
    type Answer = u64;
    type Codec = Json;

    fn apply(&mut self, amount: u64, _: &Context) -> u64 {
        self.0 += amount;
        self.0
    }

    fn query(&self, (): ()) -> u64 {
        self.0
    }
}

// What both sides know.

/// Kinds of requests.
const OPEN_SESSION: u8 = 0;
const EXECUTE: u8 = 1;

/// The kind of an answer that has what was asked for.
const DONE: u8 = 0;
/// Of an answer that says that the outcome is unknown.
const UNKNOWN: u8 = u8::MAX;
/// Failures that a client treats in a way of their own. The kind of an answer is the place here, counted from 1.
const FAILURES: [RequestError; 6] = [
    RequestError::NoLeader,
    RequestError::Overloaded,
    RequestError::TooLarge,
    RequestError::TooFarAhead,
    RequestError::ReplyGone,
    RequestError::SessionExpired,
];

/// More than a command or an answer has here.
const FRAME_BYTES_MAX: usize = 2 << 20;

async fn send(stream: &mut TcpStream, kind: u8, body: &[u8]) -> io::Result<()> {
    let mut frame = BytesMut::new();
    frame.put_u32_le(1 + body.len() as u32);
    frame.put_u8(kind);
    frame.put_slice(body);
    stream.write_all(&frame).await
}

async fn receive(stream: &mut TcpStream) -> io::Result<(u8, Bytes)> {
    let length = stream.read_u32_le().await? as usize;
    if !(1..=FRAME_BYTES_MAX).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    let mut frame = Bytes::from(frame);
    Ok((frame.get_u8(), frame))
}

// The replica's side.

/// Serves the clients of a replica. `asked` counts the commands; every fourth answer to one is lost, as on a bad
/// network.
async fn serve(listener: TcpListener, handle: Handle, asked: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (handle, asked) = (handle.clone(), Arc::clone(&asked));
        // A client whose connection breaks asks again.
        tokio::spawn(async move { answer(stream, &handle, &asked).await });
    }
}

async fn answer(mut stream: TcpStream, handle: &Handle, asked: &AtomicU64) -> io::Result<()> {
    let (kind, mut body) = receive(&mut stream).await?;
    let result = match kind {
        OPEN_SESSION => {
            handle.open_session().await.map(|session| Bytes::copy_from_slice(&session.0.to_le_bytes()))
        }
        EXECUTE if body.len() >= 24 => {
            let (session, sequence) = (SessionId(body.get_u64_le()), body.get_u64_le());
            let place = SessionCommand { session, sequence, lowest_outstanding: body.get_u64_le() };
            let result = handle.execute_in_session(place, body).await;
            if asked.fetch_add(1, Relaxed) % 4 == 3 {
                return Ok(());
            }
            result
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    match result {
        Ok(reply) => send(&mut stream, DONE, &reply).await,
        Err(error) => {
            // The client is to ask another replica, as where there is no leader.
            let error = if error == RequestError::TakesNoPart { RequestError::NoLeader } else { error };
            let place = FAILURES.iter().position(|known| *known == error);
            send(&mut stream, place.map_or(UNKNOWN, |place| place as u8 + 1), &[]).await
        }
    }
}

// The client's side.

/// How long a replica has for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// The replicas, as a client reaches them.
#[derive(Debug)]
struct Remote {
    addresses: Vec<SocketAddr>,
    /// Counts the failures; the remainder is the replica to ask.
    failures: AtomicUsize,
}

impl Remote {
    /// Sends a request to one replica, and the next request to another one if that fails.
    async fn ask(&self, kind: u8, body: &[u8]) -> Result<Bytes, RequestError> {
        let failures = self.failures.load(Relaxed);
        let address = self.addresses[failures % self.addresses.len()];
        let asked = async {
            let mut stream = TcpStream::connect(address).await?;
            send(&mut stream, kind, body).await?;
            receive(&mut stream).await
        };
        let result = match timeout(ANSWER_TIME, asked).await {
            Ok(Ok((DONE, reply))) => return Ok(reply),
            Ok(Ok((kind, _))) => FAILURES.get(usize::from(kind) - 1).copied(),
            // It was not sent.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Some(RequestError::NoLeader)
            }
            Ok(Err(_)) | Err(_) => None,
        };
        // Of several requests that fail together, one says so.
        let _ = self.failures.compare_exchange(failures, failures + 1, Relaxed, Relaxed);
        Err(result.unwrap_or(RequestError::Timeout))
    }
}

impl Endpoint for Remote {
    async fn open_session(&self) -> Result<SessionId, RequestError> {
        let id = self.ask(OPEN_SESSION, &[]).await?;
        let id = id[..].try_into().map_err(|_| RequestError::Timeout)?;
        Ok(SessionId(u64::from_le_bytes(id)))
    }

    async fn execute_in_session(&self, place: SessionCommand, command: Bytes) -> Result<Bytes, RequestError> {
        let mut request = BytesMut::new();
        request.put_u64_le(place.session.0);
        request.put_u64_le(place.sequence);
        request.put_u64_le(place.lowest_outstanding);
        request.put_slice(&command);
        self.ask(EXECUTE, &request).await
    }
}

const COMMANDS: u64 = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut replicas = LocalGroup::start(folder.path(), 3, Typed::<Counter>::default).await?;
    let asked = Arc::new(AtomicU64::new(0));
    let (mut addresses, mut servers) = (Vec::new(), Vec::new());
    for index in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.push(listener.local_addr()?);
        servers.push(tokio::spawn(serve(listener, replicas.handle(index), Arc::clone(&asked))));
    }

    let remote = Remote { addresses, failures: AtomicUsize::new(0) };
    // At most 8 commands are outstanding, and each is sent again for a minute.
    let session = Session::open(remote, 8, Duration::from_secs(60)).await?;
    let session = TypedSession::<Counter, _>::new(session);
    let mut commands = JoinSet::new();
    for _ in 0..COMMANDS {
        let session = session.clone();
        commands.spawn(async move { session.execute(&1).await });
    }
    let mut answered = 0;
    while let Some(sum) = commands.join_next().await {
        sum??;
        answered += 1;
        if answered == COMMANDS / 2 {
            servers[0].abort();
            replicas.stop(0).await?;
        }
    }

    let sum = TypedHandle::<Counter>::new(replicas.handle(1)).query(&()).await?;
    let asked = asked.load(Relaxed);
    println!("{COMMANDS} commands were sent {asked} times, and executed {sum} times");
    assert_eq!(sum, COMMANDS);
    assert!(asked > COMMANDS, "no answer was lost");
    Ok(())
}
