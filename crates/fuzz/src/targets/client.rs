//! What comes from clients.

use synod_api::etcdserverpb::WatchCreateRequest;
use synod_server::fuzzing::{self, WatchStep};

use super::{Memory, Target, Verdict};
use crate::entropy::Entropy;

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "client-connection",
        about: "the bytes of a connection: HTTP/1.1 or HTTP/2, pages, calls as JSON and of gRPC; it ends when its client ends it",
        run: connection,
        seeds: connection_seeds,
        memory: Memory { base: 64 << 20, times: 16 << 10 },
        words: &[
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            b"POST /v3/kv/put HTTP/1.1\r\n",
            b"GET /health HTTP/1.1\r\n\r\n",
            b"content-length: 2\r\n",
            b"transfer-encoding: chunked\r\n",
            b"\r\n\r\n",
            b"{}",
            b"Grpc-Metadata-",
        ],
    },
    Target {
        name: "client-http2",
        about: "the bytes of a connection of HTTP/2 at the engine alone, with a server that answers messages with themselves",
        run: engine,
        seeds: engine_seeds,
        memory: Memory { base: 16 << 20, times: 16 << 10 },
        words: &[
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            b"grpc-timeout",
            b"/echo.Echo/Stream",
        ],
    },
    Target {
        name: "client-call",
        about: "a call of each method of each service, with any headers and any body, as bytes of protobuf with their prefix",
        run: call,
        seeds: call_seeds,
        memory: Memory { base: 64 << 20, times: 16 << 10 },
        words: &[b"grpc-timeout", b"hasleader", b"token", b"authorization", b"Bearer ", b"root", b"abc.1"],
    },
    Target {
        name: "client-native",
        about: "a command, or a query, of Synod's own API as bytes: what reaches the store is checked and bounded, and has no field \
                that only servers set but what the server set itself",
        run: native,
        seeds: native_seeds,
        memory: Memory { base: 64 << 20, times: 16 << 10 },
        words: &[
            b"root",
            b"\x1a\x02\x12\x00",
            b"\x12\x00",
            b"\x22\x00",
            b"\x50\x01",
            b"\x70\x01",
            b"\x78\x4d",
        ],
    },
    Target {
        name: "client-watch",
        about: "a stream of watches with puts, deletions and compactions between; each watch is answered and told exactly what it asks for",
        run: watch,
        seeds: watch_seeds,
        memory: Memory { base: 64 << 20, times: 16 << 10 },
        words: &[],
    },
    Target {
        name: "client-json",
        about: "JSON of the requests and answers of all methods; what is translated is the same when it is translated back and forth",
        run: json,
        seeds: json_seeds,
        memory: Memory { base: 1 << 20, times: 2 << 10 },
        words: &[
            b"\"key\":",
            b"\"value\":",
            b"\"lease\":",
            b"\"success\":[",
            b"\"requestPut\":",
            b"\"request_range\":",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"null",
            b"true",
            b"\"\"",
            b"1e400",
            b"\\u0000",
            b"\\ud800",
            b"\"NONE\"",
        ],
    },
    Target {
        name: "client-headers",
        about: "headers that are read here: grpc-timeout, content-type, token, authorization, accept, and those that a gateway passes on",
        run: headers,
        seeds: || {
            let seeds = HEADERS.iter().map(|(name, value)| (name.to_lowercase(), pairs(&[(name, value)])));
            seeds.chain([("all".to_owned(), pairs(&HEADERS))]).collect()
        },
        memory: Memory { base: 256 << 10, times: 64 },
        words: &[
            b"application/grpc",
            b"grpc-timeout",
            b"99999999H",
            b"application/openmetrics-text",
            b"grpc-metadata-",
        ],
    },
    Target {
        name: "client-token",
        about: "simple tokens and JSON Web Tokens, also with claims that are signed with the right key; only the right ones are users",
        run: token,
        seeds: || {
            let seed = |name: &str, signed: u8, text: &[u8]| (name.to_owned(), [&[signed], text].concat());
            vec![
                seed("simple", 0, b"abc.1"),
                seed("later", 0, b"abc.9"),
                seed("claims", 1, br#"{"username":"u","revision":3}"#),
                seed("claims-with-an-end", 1, br#"{"username":"u","revision":3,"exp":99999999999,"nbf":1}"#),
                seed("unsigned", 0, b"eyJhbGciOiJub25lIn0.eyJ1c2VybmFtZSI6InUiLCJyZXZpc2lvbiI6M30."),
            ]
        },
        memory: Memory { base: 256 << 10, times: 256 },
        words: &[b"\"username\":", b"\"revision\":", b"\"exp\":", b"\"nbf\":", b"abc.1", b"abc."],
    },
];

fn connection(input: &[u8]) -> Verdict {
    judged(input, fuzzing::connection(input))
}

fn engine(input: &[u8]) -> Verdict {
    judged(input, synod_grpc::fuzzing::connection(input))
}

/// What a connection on which a client sent `input` was answered, and the error with which it ended.
fn judged(input: &[u8], (answer, error): (Vec<u8>, Option<String>)) -> Verdict {
    let is_http2 = input.starts_with(b"PR");
    // Of HTTP/2, the settings of the server are no answer.
    let first = match is_http2 {
        true => frames(&answer),
        false => String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned(),
    };
    let answered = if is_http2 { first.contains(" 1") } else { first.contains("HTTP/1.1 200") };
    let error = error.unwrap_or_default();
    match answered {
        true => Verdict::Accepted(format!("{first} {error}")),
        false => Verdict::Refused(format!("{first} {error}")),
    }
}

/// The kinds of the first frames of HTTP/2 after the settings.
fn frames(mut bytes: &[u8]) -> String {
    let mut kinds = String::new();
    for _ in 0..8 {
        let Some((head, rest)) = bytes.split_at_checked(9) else { break };
        kinds.push_str(&format!(" {}", head[3]));
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        bytes = rest.get(len..).unwrap_or_default();
    }
    kinds
}

/// Frames of HTTP/2: kind, flags, number of the stream, payload.
fn http2(frames: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for (kind, flags, stream, payload) in frames {
        bytes.extend_from_slice(&u32::try_from(payload.len()).expect("it is small").to_be_bytes()[1..]);
        bytes.extend_from_slice(&[*kind, *flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
    }
    bytes
}

/// Headers of HTTP/2, none of them compressed: each is a literal with a new name.
fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("it is short"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The headers of a request.
fn headers_of(method: &str, path: &str, content_type: &str) -> Vec<u8> {
    header_block(&[
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "synod"),
        ("content-type", content_type),
        ("grpc-timeout", "5S"),
    ])
}

fn engine_seeds() -> Vec<(String, Vec<u8>)> {
    let message = b"\0\0\0\0\x03\x0a\x01k";
    let [call, stream] =
        ["Call", "Stream"].map(|name| headers_of("POST", &format!("/echo.Echo/{name}"), "application/grpc"));
    let seeds = [
        ("call", http2(&[(4, 1, 0, &[]), (1, 4, 1, &call), (0, 1, 1, message)])),
        ("stream", http2(&[(1, 4, 1, &stream), (0, 0, 1, message), (0, 1, 1, message)])),
        (
            "pieces",
            http2(&[
                (1, 4, 1, &call),
                (0, 0, 1, &message[..5]),
                (6, 0, 0, &[7; 8]),
                (0, 1, 1, &message[5..]),
            ]),
        ),
        ("packed", http2(&[(1, 4, 1, &call), (0, 1, 1, b"\x01\0\0\0\x02\x1f\x8b")])),
        (
            "reset",
            http2(&[(1, 4, 1, &stream), (1, 4, 3, &call), (3, 0, 1, &[0, 0, 0, 8]), (0, 1, 3, message)]),
        ),
        ("settings", http2(&[(4, 0, 0, &[0, 3, 0, 0, 0, 100]), (4, 1, 0, &[]), (8, 0, 0, &[0, 1, 0, 0])])),
    ];
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn connection_seeds() -> Vec<(String, Vec<u8>)> {
    let seeds = http1_seeds().into_iter().chain(http2_seeds());
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

fn http1_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let http1 = |text: &str| text.as_bytes().to_vec();
    vec![
        ("http1-health", http1("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")),
        (
            "http1-metrics",
            http1("GET /metrics HTTP/1.1\r\nhost: x\r\naccept: text/plain\r\nconnection: close\r\n\r\n"),
        ),
        (
            "http1-put",
            http1(
                "POST /v3/kv/put HTTP/1.1\r\nhost: x\r\ncontent-length: 29\r\n\r\n{\"key\":\"aw==\",\"value\":\"dg==\"}",
            ),
        ),
        (
            "http1-chunked",
            http1(
                "POST /v3/kv/range HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            ),
        ),
        (
            "http1-metadata",
            http1(
                "POST /v3/kv/range HTTP/1.1\r\nhost: x\r\nGrpc-Metadata-token: abc.1\r\nGrpc-Timeout: 1S\r\n\
                 content-length: 14\r\n\r\n{\"key\":\"aw==\"}",
            ),
        ),
        (
            "http1-pipelined",
            http1("GET /version HTTP/1.1\r\nhost: x\r\n\r\nGET /readyz HTTP/1.1\r\nhost: x\r\n\r\n"),
        ),
    ]
}

fn http2_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let (range, put) = (b"\0\0\0\0\x03\x0a\x01k", b"\0\0\0\0\x06\x0a\x01k\x12\x01v");
    let grpc = |path| headers_of("POST", path, "application/grpc");
    let page = headers_of("GET", "/health", "text/plain");
    let json = headers_of("POST", "/v3/kv/range", "application/json");
    vec![
        (
            "http2-settings",
            http2(&[(4, 0, 0, &[0, 3, 0, 0, 0, 100]), (4, 1, 0, &[]), (8, 0, 0, &[0, 1, 0, 0])]),
        ),
        (
            "http2-range",
            http2(&[(4, 1, 0, &[]), (1, 4, 1, &grpc("/etcdserverpb.KV/Range")), (0, 1, 1, range)]),
        ),
        (
            "http2-two-calls",
            http2(&[
                (1, 4, 1, &grpc("/etcdserverpb.KV/Put")),
                (1, 4, 3, &grpc("/etcdserverpb.KV/Range")),
                (0, 1, 3, range),
                (0, 0, 1, &put[..5]),
                (0, 1, 1, &put[5..]),
                (6, 0, 0, &[7; 8]),
            ]),
        ),
        ("http2-page", http2(&[(1, 5, 1, &page)])),
        ("http2-json", http2(&[(1, 4, 1, &json), (0, 1, 1, b"{\"key\":\"aw==\"}")])),
        ("http2-reset", http2(&[(1, 4, 1, &grpc("/v3lockpb.Lock/Lock")), (3, 0, 1, &[0, 0, 0, 8])])),
        (
            "http2-keep-alive",
            http2(&[
                (1, 4, 1, &grpc("/etcdserverpb.Lease/LeaseKeepAlive")),
                (0, 0, 1, b"\0\0\0\0\x02\x08\x07"),
            ]),
        ),
    ]
}

/// Headers, each as the length of its name, the name, the length of its value, the value; there are as many as the
/// first byte says.
fn read_pairs<'a>(input: &mut Entropy<'a>) -> Vec<(&'a [u8], &'a [u8])> {
    (0..input.below(8)).map(|_| (input.slice(255), input.slice(255))).collect()
}

fn pairs(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(headers.len()).expect("a few")];
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        bytes.push(u8::try_from(text.len()).expect("it is short"));
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

const HEADERS: [(&str, &str); 6] = [
    ("grpc-timeout", "100m"),
    ("content-type", "application/grpc+proto"),
    ("token", "abc.1"),
    ("authorization", "Bearer abc.1"),
    ("accept", "application/openmetrics-text; version=1.0.0, text/plain"),
    ("grpc-metadata-hasleader", "true"),
];

fn headers(input: &[u8]) -> Verdict {
    Verdict::Accepted(fuzzing::headers(&read_pairs(&mut Entropy::new(input))))
}

fn call(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let paths: Vec<_> = fuzzing::paths().collect();
    let path = paths[input.below(paths.len())];
    let headers = read_pairs(&mut input);
    // One body in eight is sent with its own prefix.
    let as_it_is = input.below(8) == 7;
    let mut body = input.rest().to_vec();
    if !as_it_is {
        let prefix = u32::try_from(body.len()).expect("it is small").to_be_bytes();
        body.splice(0..0, [&[0], &prefix[..]].concat());
    }
    match fuzzing::call(path, &headers, &body) {
        Ok((status, answer)) if status.code() as i32 == 0 => {
            Verdict::Accepted(format!("{path} {}", answer.len().min(64) / 16))
        }
        Ok((status, _)) => Verdict::Refused(format!("{path} {:?} {}", status.code(), status.message())),
        Err(error) => Verdict::Refused(error),
    }
}

fn native(input: &[u8]) -> Verdict {
    let (kind, payload) = input.split_at_checked(1).unwrap_or_default();
    let is_query = kind.first().is_some_and(|kind| kind % 2 == 1);
    match fuzzing::native(is_query, payload) {
        Ok((status, answer)) if status.code() as i32 == 0 => {
            Verdict::Accepted(format!("{is_query} {}", answer.len().min(64) / 16))
        }
        Ok((status, _)) => Verdict::Refused(format!("{is_query} {:?} {}", status.code(), status.message())),
        Err(error) => Verdict::Refused(error),
    }
}

fn native_seeds() -> Vec<(String, Vec<u8>)> {
    let kinds = [(0, super::kv::command_seeds()), (1, super::kv::query_seeds())];
    let seeds = kinds.into_iter().flat_map(|(kind, seeds)| {
        seeds.into_iter().map(move |(name, bytes)| (format!("{kind}-{name}"), [&[kind][..], &bytes].concat()))
    });
    seeds.collect()
}

/// Keys of the watches and commands of one input: few, so that they meet.
const KEYS: [&[u8]; 5] = [b"a", b"aa", b"b", b"c", b"d"];
/// Ends of ranges: one key, all keys from the first on, or up to a key.
const ENDS: [&[u8]; 6] = [b"", b"\0", b"b", b"c", b"e", b"a"];
/// Most steps of an input.
const STEPS_MAX: usize = 200;

/// The steps of an input, each a kind and its choices.
fn watch_steps(input: &[u8]) -> Vec<WatchStep> {
    let mut input = Entropy::new(input);
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < STEPS_MAX {
        steps.push(match input.below(16) {
            0..5 => WatchStep::Put(input.of(&KEYS).into(), input.slice(40).into()),
            5..10 => {
                let (key, range_end) = (input.of(&KEYS).into(), input.of(&ENDS).into());
                let (start_revision, flags) = (input.number(), input.byte());
                let filters = (0..2).filter(|filter| flags & 1 << filter != 0).collect();
                WatchStep::Create(WatchCreateRequest {
                    key,
                    range_end,
                    start_revision,
                    filters,
                    progress_notify: flags & 4 != 0,
                    prev_kv: flags & 8 != 0,
                    fragment: flags & 16 != 0,
                    watch_id: i64::from(flags >> 5),
                })
            }
            10 | 11 => WatchStep::Delete(input.of(&KEYS).into(), input.of(&ENDS).into()),
            12 => WatchStep::Cancel(input.number()),
            13 => WatchStep::Progress,
            14 => WatchStep::Compact(input.number()),
            // Afterwards nothing is known of what the client is to be told, so few inputs should have it.
            _ if input.byte() == 255 => WatchStep::Bytes(input.slice(255).into()),
            _ => WatchStep::Progress,
        });
    }
    steps
}

fn watch(input: &[u8]) -> Verdict {
    let seen = fuzzing::watch(&watch_steps(input));
    let told = [seen.created, seen.refused, seen.canceled, seen.compacted, seen.progress, seen.events];
    let text = format!("{:?} {}", told.map(|count| count.min(3)), seen.ended);
    if seen.created + seen.refused > 0 { Verdict::Accepted(text) } else { Verdict::Refused(text) }
}

fn watch_seeds() -> Vec<(String, Vec<u8>)> {
    // A create is 5, key, end, first revision, flags; a put is 0, key, length, value.
    let (put, put_b) = ([0, 0, 1, b'v'], [0, 2, 1, b'w']);
    let all_from = |revision: u8, flags: u8| [5, 0, 1, revision, flags];
    let seeds: [(&str, &[&[u8]]); 8] = [
        ("live", &[&all_from(0, 0), &put, &put_b, &[10, 0, 1]]),
        ("past", &[&put, &put_b, &put, &all_from(2, 8), &put]),
        ("future", &[&all_from(4, 0), &put, &put, &put, &put]),
        ("filters", &[&all_from(0, 1), &all_from(0, 2), &all_from(0, 3), &put, &[10, 0, 0]]),
        ("cancel", &[&all_from(0, 0), &all_from(0, 0), &put, &[12, 0], &put, &[12, 0], &[12, 7]]),
        ("compacted", &[&put, &put, &put, &[14, 3], &all_from(1, 0), &all_from(3, 0), &put, &[12, 0]]),
        ("refused", &[&all_from(205, 0), &[5, 3, 5, 0, 0], &all_from(0, 0x20), &all_from(0, 0x20)]),
        ("progress", &[&[13], &all_from(0, 4), &put, &[13], &all_from(9, 0), &[13], &[12, 1], &[13]]),
    ];
    let bytes: &[&[u8]] = &[&all_from(0, 0), &[15, 255, 4, 0x0a, 0xff, 0xff, 0xff], &put];
    seeds
        .into_iter()
        .chain([("bytes", bytes)])
        .map(|(name, steps)| (name.to_owned(), steps.concat()))
        .collect()
}

/// Each method with an empty message; and some with a message that means something.
fn call_seeds() -> Vec<(String, Vec<u8>)> {
    let paths: Vec<_> = fuzzing::paths().collect();
    let seed = |path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let number = paths.iter().position(|known| *known == path).expect("it is served");
        [&[u8::try_from(number).expect("few methods")][..], &pairs(headers), &[0], body].concat()
    };
    let name = |path: &str| path.trim_start_matches('/').replace('/', "-").to_lowercase();
    let empty = paths.iter().map(|path| (name(path), seed(path, &[], b"")));
    let range = b"\x0a\x01\0\x12\x01\0";
    let put = b"\x0a\x01k\x12\x01v";
    let full = [
        ("put", seed("/etcdserverpb.KV/Put", &[("token", "abc.1")], put)),
        ("range", seed("/etcdserverpb.KV/Range", &[("grpc-timeout", "1S"), ("hasleader", "true")], range)),
        ("range-stream", seed("/etcdserverpb.KV/RangeStream", &[], range)),
        (
            "txn",
            seed("/etcdserverpb.KV/Txn", &[], b"\x12\x08\x12\x06\x0a\x01k\x12\x01v\x1a\x05\x0a\x03\x0a\x01k"),
        ),
        ("watch", seed("/etcdserverpb.Watch/Watch", &[], b"\x0a\x05\x0a\x01k\x18\x01")),
        ("observe", seed("/v3electionpb.Election/Observe", &[], b"\x0a\x01n")),
        ("lease-keep-alive", seed("/etcdserverpb.Lease/LeaseKeepAlive", &[], b"\x08\x07")),
        ("lock", seed("/v3lockpb.Lock/Lock", &[], b"\x0a\x01n")),
        ("campaign", seed("/v3electionpb.Election/Campaign", &[], b"\x0a\x01n\x1a\x01v")),
        ("authenticate", seed("/etcdserverpb.Auth/Authenticate", &[], b"\x0a\x04root\x12\x01p")),
        ("user-add", seed("/etcdserverpb.Auth/UserAdd", &[], b"\x0a\x04root\x12\x01p")),
        ("member-add", seed("/etcdserverpb.Cluster/MemberAdd", &[], b"\x0a\x14http://10.0.0.4:2380")),
        ("native-execute", seed("/synod.v1.Native/Execute", &[], b"\x12\x08\x0a\x06\x0a\x01k\x12\x01v")),
        ("lease-grant", seed("/etcdserverpb.Lease/LeaseGrant", &[], b"\x08\x3c\x10\x07")),
    ];
    empty.chain(full.map(|(name, bytes)| (format!("full-{name}"), bytes))).collect()
}

/// The first two bytes choose the message, the rest is JSON.
fn json(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let (method, answer) = (usize::from(input.byte()), input.flag());
    match fuzzing::json(method, answer, input.rest()) {
        Ok((name, count)) => Verdict::Accepted(format!("{name} {}", count.min(3))),
        Err(error) => Verdict::Refused(error),
    }
}

fn json_seeds() -> Vec<(String, Vec<u8>)> {
    const TEXTS: [(&str, &str); 8] = [
        ("empty", ""),
        ("object", "{}"),
        (
            "range",
            r#"{"key":"aw==","range_end":"bA==","limit":"7","sort_order":"DESCEND","sort_target":"MOD","keysOnly":true}"#,
        ),
        ("put", r#" {"key":"aw", "value":"dg==", "lease":7, "prev_kv":true, "unknown":[1]} "#),
        (
            "txn",
            r#"{"compare":[{"result":"EQUAL","target":"VERSION","key":"aw==","version":"1"}],"success":[{"requestPut":{"key":"aw=="}},
               {"request_range":{"key":"aw=="}}],"failure":[{"request_txn":{"success":[]}}]}"#,
        ),
        (
            "watch",
            r#"{"create_request":{"key":"aw==","filters":["NOPUT"]}} {"cancelRequest":{"watch_id":"1"}}"#,
        ),
        (
            "answer",
            r#"{"header":{"cluster_id":"1","revision":"2"},"kvs":[{"key":"aw==","mod_revision":"2"}],"count":"1"}"#,
        ),
        ("numbers", r#"{"ID":-1,"TTL":"9223372036854775807","ttl":1e3,"revision":0.0,"id":null}"#),
    ];
    // With each of these methods, to which some of the texts belong.
    let seeds = TEXTS.iter().zip(0..).flat_map(|((name, text), at)| {
        let of = move |method: u8, flag: u8| {
            (format!("{name}-{method}-{flag}"), [&[method, flag], text.as_bytes()].concat())
        };
        [of(at, 0), of(at + 8, 0), of(at + 16, 1)]
    });
    seeds.collect()
}

fn token(input: &[u8]) -> Verdict {
    let Some((kind, text)) = input.split_first() else { return Verdict::Refused("empty".into()) };
    let signed = kind % 2 == 1;
    let found = fuzzing::token(text, signed);
    if !signed {
        // Nobody but the server can sign, and there is one simple token only. A number may be written with a sign or
        // zeros.
        assert!(!found.ends_with("user"), "a token is made without the key: {text:?}");
        assert!(!found.starts_with("user") || text.starts_with(b"abc."), "{text:?}");
    }
    if found.contains("user") { Verdict::Accepted(found) } else { Verdict::Refused(found) }
}
