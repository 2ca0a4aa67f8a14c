//! What reads bytes of clients, as functions of bytes, for fuzzers. A server here has no thread and no socket, and its
//! clock is that of the test: it goes on when nothing else does.

mod watches;

use std::{
    io,
    pin::pin,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header::CONTENT_TYPE};
use jsonwebtoken::{Algorithm, EncodingKey, crypto::sign};
use prometheus_client::registry::Registry;
use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor};
use synod_api::synod::v1::{ExecuteRequest, KvCommand, KvQuery, QueryRequest, kv_command::Command};
use synod_grpc::{Admission, Ahead, Places, Remote, Terms, framed};
use synod_kv::{KvStore, Token, validate};
use synod_replica::{Context, StateMachine};
use synod_wire::{ClusterId, ReplicaId, SessionId, Slot};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    runtime::Builder,
    sync::watch,
    time::{sleep, timeout},
};
use tonic::Status;

pub use self::watches::{Seen as WatchesSeen, Step as WatchStep, watch};

use crate::{
    Auth, ChangeError, Changed, Config, Consistency, Group, InMemory, Limits, Member, MemberInfo, MoveError,
    Replica, RequestError, TokenKind, Wanted, Watches,
    auth::{Caller, Found},
    call::{self, serve_http2},
    exposition::{Exposition, Format},
    feeds::Feeds,
    fields::Shape,
    gateway::{self, Gateway},
    http::Pages,
    http1,
    methods::{METHODS, POOL},
    readers::Readers,
    replica,
    services::Store,
    web::Web,
};

/// Bytes on their way in each direction. More than any input has, so that a client need not wait for the server.
const PIPE_BYTES: usize = 1 << 20;
/// How long a client waits for more, by the server's clock, before it ends its side of the connection.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// How long a connection may last then. Longer than any time-out of the server.
const END_MAX: Duration = Duration::from_secs(600);
/// How often the hub of watches looks at what there is to do, by the server's clock.
const HUB_INTERVAL: Duration = Duration::from_millis(20);
/// Memory for requests.
const REQUESTS_BYTES_MAX: u64 = 64 << 20;
/// Messages of one text that are translated back and forth.
const COMPARED_MAX: usize = 100;
/// The cheapest that there is.
const BCRYPT_COST: u32 = 4;

/// A cluster of one replica, whose store is executed where it is asked.
#[derive(Clone)]
struct InPlace {
    machine: Arc<Mutex<(KvStore, Slot)>>,
    /// Answers what has nothing to do with the store.
    shell: InMemory,
}

impl InPlace {
    fn new(auth: &Auth, watches: &Watches) -> InPlace {
        static SHELL: LazyLock<InMemory> = LazyLock::new(|| {
            let mut info = MemberInfo::new("only", vec!["http://127.0.0.1:2380".into()]);
            info.client_urls = vec!["http://127.0.0.1:2379".into()];
            let member = Member::voter(ReplicaId(1), info);
            InMemory::start(KvStore::new(), ClusterId(1), member).expect("a thread can be started")
        });
        let store = KvStore::new().authenticating(auth.feed()).feeding(watches.feed_alone());
        InPlace { machine: Arc::new(Mutex::new((store, Slot::ZERO))), shell: SHELL.clone() }
    }

    fn apply(&self, command: &Bytes) -> Bytes {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let (store, slot) = &mut *machine;
        *slot = slot.next();
        store.apply(command, &Context::new(*slot))
    }

    fn answer(&self, query: &Bytes) -> replica::Answer {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).0.answer(query)
    }
}

impl Replica for InPlace {
    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        Ok(self.apply(&command))
    }

    async fn execute_in_session(
        &self,
        _: SessionId,
        _: u64,
        _: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        let decoded = KvCommand::decode(command.clone()).expect("what a client sends is decoded before");
        validate::command(&decoded, &self.limits()).expect("what a client sends is checked before");
        let is_of_servers = matches!(
            decoded.command,
            Some(Command::LeaseRenew(_) | Command::Auth(_) | Command::HashCheck(_))
        );
        assert!(!is_of_servers && !decoded.of_member, "a client sends no command of a server");
        Ok(self.apply(&command))
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        Ok(SessionId(1))
    }

    async fn query(&self, query: Bytes, _: Consistency) -> Result<replica::Answer, RequestError> {
        let decoded = KvQuery::decode(query.clone()).expect("what a client asks is decoded before");
        validate::query(&decoded, &self.limits()).expect("what a client asks is checked before");
        Ok(self.answer(&query))
    }

    fn term(&self) -> u64 {
        self.shell.term()
    }

    fn limits(&self) -> Limits {
        self.shell.limits()
    }

    fn status(&self) -> crate::Status {
        self.shell.status()
    }

    fn group(&self) -> Arc<Group> {
        self.shell.group()
    }

    async fn change(&self, expected: Option<u64>, wanted: &Wanted<'_>) -> Result<Changed, ChangeError> {
        self.shell.change(expected, wanted).await
    }

    async fn move_leader(&self, to: ReplicaId) -> Result<(), MoveError> {
        self.shell.move_leader(to).await
    }
}

fn in_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("it needs no system resource").block_on(work)
}

/// A store, in a runtime.
fn store() -> Arc<Store<InPlace>> {
    let auth = Auth::new(TokenKind::default(), BCRYPT_COST);
    let watches = Watches::new();
    let replica = InPlace::new(&auth, &watches);
    let mut hub = watches.still().expect("nobody has it");
    let asked = replica.clone();
    // It ends with the runtime, which has one connection only.
    tokio::spawn(async move {
        loop {
            hub.run(|| drop(asked.answer(&Bytes::new())));
            sleep(HUB_INTERVAL).await;
        }
    });
    let config = Config { auth: Some(auth), watches: Some(watches), ..Config::default() };
    let admission = Admission::new(REQUESTS_BYTES_MAX, call::TOO_MANY);
    let (readers, feeds, openings) = (Readers::new(), Feeds::default(), Arc::default());
    Arc::new(Store::new(&config, vec![replica], readers, admission, feeds, openings))
}

/// Serves one connection as a server does at an address for clients, until it ends.
async fn serve(stream: tokio::io::DuplexStream, store: Arc<Store<InPlace>>) -> Result<(), String> {
    let config = Config::default();
    let terms = Terms {
        streams_max: config.streams_per_connection_max,
        head_timeout: Duration::from_secs(10),
        keep_alive: config.keep_alive,
    };
    let (_running, stopping) = watch::channel(false);
    let place = Places::new(1).take().expect("it is free");
    let gateway = Gateway::new(store.clone(), (Remote::default(), None), terms, stopping, place.mark());
    let web = Web::new(
        Pages::new(store.clone(), Arc::new(Exposition::new(Registry::default()))),
        Some(gateway),
        Arc::default(),
    );
    let mut stream = Ahead::new(stream);
    let is_http2 = stream.begins_http2().await.map_err(|error: io::Error| error.to_string())?;
    let stop = pin!(std::future::pending());
    let served = match is_http2 {
        true => serve_http2(stream, (Remote::default(), None), &store, Some(&web), terms, stop, place).await,
        false => http1::serve(stream, &web, stop, place).await,
    };
    served.map_err(|error| error.to_string())
}

/// What a server answers to all bytes that a client sends on a connection, and the error with which the connection
/// ended, if one of the two sides broke its rules.
///
/// # Panics
/// The connection does not end after the client has ended its side.
#[must_use]
pub fn connection(bytes: &[u8]) -> (Vec<u8>, Option<String>) {
    in_a_runtime(async {
        let (mut client, server) = duplex(PIPE_BYTES);
        let served = tokio::spawn(serve(server, store()));
        let mut answer = Vec::new();
        // If the server has ended the connection already, it needs no more of these bytes.
        let _ = client.write_all(bytes).await;
        while let Ok(Ok(1..)) = timeout(QUIET_MAX, client.read_buf(&mut answer)).await {}
        let _ = client.shutdown().await;
        let rest = timeout(END_MAX, client.read_to_end(&mut answer)).await;
        assert!(rest.is_ok(), "a connection ends after its client has ended its side");
        drop(client);
        let served = timeout(END_MAX, served).await.expect("a connection ends");
        (answer, served.expect("a connection does not panic").err())
    })
}

/// The paths of all calls that are served, and of one that is not.
pub fn paths() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|method| method.path).chain(["/synod.v1.Native/None"])
}

/// Makes one call of gRPC with these headers, besides those that each call has, and this body; returns the status, and
/// the bytes of the answer. An input whose headers are no headers is not sent.
///
/// # Errors
/// The headers are no headers, or the server broke the call off.
///
/// # Panics
/// A call that should end does not.
pub fn call(path: &str, headers: &[(&[u8], &[u8])], body: &[u8]) -> Result<(Status, Vec<u8>), String> {
    let mut request =
        Request::post(format!("http://synod{path}")).body(()).map_err(|error| error.to_string())?;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name).map_err(|error| error.to_string())?;
        request
            .headers_mut()
            .append(name, HeaderValue::from_bytes(value).map_err(|error| error.to_string())?);
    }
    in_a_runtime(async {
        let (client, server) = duplex(PIPE_BYTES);
        let served = tokio::spawn(serve(server, store()));
        let called = async {
            let (send, connection) = h2::client::handshake(client).await?;
            tokio::spawn(connection);
            let mut send = send.ready().await?;
            let (response, mut stream) = send.send_request(request, false)?;
            stream.send_data(Bytes::copy_from_slice(body), true)?;
            // Some calls last as long as their clients want.
            let Ok(response) = timeout(QUIET_MAX, response).await else { return Ok(None) };
            let (head, mut answer) = response?.into_parts();
            let mut bytes = Vec::new();
            loop {
                match timeout(QUIET_MAX, answer.data()).await {
                    Ok(Some(piece)) => bytes.extend_from_slice(&piece?),
                    Ok(None) => break,
                    Err(_) => return Ok(None),
                }
            }
            let trailers = answer.trailers().await?;
            let status = Status::from_header_map(trailers.as_ref().unwrap_or(&head.headers));
            Ok::<_, h2::Error>(Some((status.unwrap_or_else(|| Status::unknown("no status")), bytes)))
        };
        let called = called.await.map_err(|error| error.to_string())?;
        let served = timeout(END_MAX, served).await.expect("a connection ends when its client is gone");
        // How it ends does not matter, unless it panicked.
        let _ = served.expect("a connection does not panic");
        called.ok_or_else(|| "the call lasts".to_owned())
    })
}

/// Sends a command of a session, or a query, by Synod's own API; returns the status, and the bytes of the answer.
///
/// # Errors
/// The server broke the call off.
///
/// # Panics
/// What reaches the store was not checked, or has a field that no client may set.
pub fn native(is_query: bool, payload: &[u8]) -> Result<(Status, Vec<u8>), String> {
    let payload = Bytes::copy_from_slice(payload);
    let (path, body) = match is_query {
        true => ("/synod.v1.Native/Query", framed(&QueryRequest { payload, ..QueryRequest::default() })),
        false => {
            let request =
                ExecuteRequest { session: 1, sequence: 1, lowest_outstanding: 1, payload, group: None };
            ("/synod.v1.Native/Execute", framed(&request))
        }
    };
    call(path, &[], &body)
}

/// The methods of all services.
fn methods() -> Vec<MethodDescriptor> {
    POOL.services().flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
}

/// Translates the JSON of a request into messages with their prefixes; if `answer` is true, the JSON of an answer, of
/// which clients send none. The method is one of all, counted around. What was translated, of many messages the first
/// ones, is translated back and forth, and must be the same again.
///
/// # Errors
/// The text is no such message.
///
/// # Panics
/// The message is not what it was.
pub fn json(method: usize, answer: bool, text: &[u8]) -> Result<(String, usize), String> {
    let methods = methods();
    let method = &methods[method % methods.len()];
    let message = if answer { method.output() } else { method.input() };
    let many = method.is_client_streaming();
    let frames = gateway::translate(text, &message, many).map_err(|status| status.message().to_owned())?;
    let mut rest = &frames[..];
    let mut count = 0;
    while let Some((prefix, after)) = rest.split_at_checked(5) {
        let len = u32::from_be_bytes(prefix[1..].try_into().expect("4 bytes")) as usize;
        let (bytes, after) = after.split_at(len);
        (rest, count) = (after, count + 1);
        if count > COMPARED_MAX {
            continue;
        }
        let object = gateway::object(Bytes::copy_from_slice(bytes), Shape::of(&message));
        let object = object.expect("a message that was made of JSON becomes JSON");
        let again = gateway::translate(&object, &message, false).expect("JSON that was written is read");
        let decode = |bytes: &[u8]| DynamicMessage::decode(message.clone(), bytes).expect("it was encoded");
        assert_eq!(
            decode(&again[5..]).encode_to_vec(),
            decode(bytes).encode_to_vec(),
            "it is the same again"
        );
    }
    assert!(rest.is_empty(), "frames are whole");
    Ok((message.full_name().to_owned(), count))
}

/// Looks at the headers of a request that are read here: how long the client waits, its content type, its token and the
/// user of that, and what formats it accepts. The result says what was found.
#[must_use]
pub fn headers(pairs: &[(&[u8], &[u8])]) -> String {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    let timeout = headers.get("grpc-timeout").map(|value| synod_grpc::timeout(value).is_some());
    let is_grpc = headers.get(CONTENT_TYPE).map(synod_grpc::is_grpc);
    let caller = Caller::of(&headers, None);
    let accept = headers.get_all("accept").iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let mut passed = HeaderMap::new();
    gateway::metadata(&headers, &mut passed);
    format!("{timeout:?} {is_grpc:?} {} {format:?} {}", caller.token.is_some(), passed.len().min(4))
}

/// Looks for the user of a token; the result says what was found. A simple token is known if it is `abc.1`. If
/// `signed`, the text is the claims of a token, which are signed with the right key first.
#[must_use]
pub fn token(text: &[u8], signed: bool) -> String {
    const KEY: &[u8] = b"key";
    let found = |found| match found {
        Found::User(_) => "user",
        Found::Later => "later",
        Found::Nobody => "nobody",
    };
    let simple = Auth::default();
    let feed = simple.feed();
    feed.state(true, 3, 1);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let issued_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    feed.issued(&Token { number: 1, secret: "abc", user: "u", issued_ms });
    let jwt = Auth::new(TokenKind::of_key(KEY), BCRYPT_COST);
    let text = match signed {
        false => String::from_utf8_lossy(text).into_owned(),
        true => {
            use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
            let claims = URL_SAFE_NO_PAD.encode(text);
            let message = format!("{}.{claims}", URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"HS256"}"#));
            let signature = sign(message.as_bytes(), &EncodingKey::from_secret(KEY), Algorithm::HS256);
            format!("{message}.{}", signature.expect("the key can sign"))
        }
    };
    format!("{} {}", found(simple.find(&text)), found(jwt.find(&text)))
}
