//! Sessions: at most once, whatever fails.

use std::time::Duration;

use crate::common::{Fault, Pair};
use bytes::Bytes;
use prost::Message;
use synod_client::{
    Client, Code, Error, Session, Start,
    api::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request},
    native::{
        KvAnswer, KvCommand, KvQuery, KvReply, kv_answer::Answer, kv_command::Command, kv_query::Query,
        kv_reply::Reply,
    },
};
use synod_server::{Elsewhere, RequestError, SubscribeError};

fn put(key: &str) -> Bytes {
    let put = PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() };
    KvCommand { command: Some(Command::Put(put)), ..Default::default() }.encode_to_vec().into()
}

fn revision(reply: Bytes) -> i64 {
    match KvReply::decode(reply).unwrap().reply {
        Some(Reply::Put(response)) => response.header.unwrap().revision,
        other => panic!("{other:?}"),
    }
}

/// How many times a key was written.
async fn version(session: &Session, key: &str) -> i64 {
    let range = RangeRequest { key: key.to_owned().into(), ..Default::default() };
    let query = KvQuery { query: Some(Query::Range(range)), ..KvQuery::default() }.encode_to_vec();
    match KvAnswer::decode(session.query(query.into(), false).await.unwrap()).unwrap().answer {
        Some(Answer::Range(response)) => response.kvs.first().map_or(0, |kv| kv.version),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_whose_answer_is_lost_is_executed_once() {
    let pair = Pair::start();
    for fault in
        [Fault::Hang, Fault::LoseAnswer(RequestError::Timeout), Fault::LoseAnswer(RequestError::Stopping)]
    {
        pair.replicas[0].set(Fault::None);
        let session = Session::open(pair.config(), 8).await.unwrap();
        pair.replicas[0].set(fault.clone());
        let before = pair.replicas[1].seen();
        let key = format!("{fault:?}");
        session.execute(put(&key)).await.unwrap();
        assert_eq!(pair.replicas[1].seen(), before + 1, "it was sent to both");
        assert_eq!(version(&session, &key).await, 1, "{fault:?}");
    }
}

#[tokio::test]
async fn a_command_survives_an_endpoint_that_goes_down() {
    let mut pair = Pair::start();
    let session = Session::open(pair.config(), 8).await.unwrap();
    assert_eq!(revision(session.execute(put("k")).await.unwrap()), 2);
    pair.stop(0).await;
    assert_eq!(revision(session.execute(put("k")).await.unwrap()), 3);
    assert_eq!(version(&session, "k").await, 2);
}

#[tokio::test]
async fn a_session_is_one_in_each_group() {
    let pair = Pair::of_groups(4);
    let session = Session::open(pair.config(), 8).await.unwrap();
    for i in 0..20 {
        let (key, before) = (format!("k{i}"), pair.replicas[1].seen());
        // Every other answer is lost, and the command is sent to the other endpoint.
        let lost = Fault::LoseAnswer(RequestError::Timeout);
        pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
        session.execute(put(&key)).await.unwrap();
        pair.replicas[i % 2].set(lost);
        session.execute(put(&key)).await.unwrap();
        pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
        assert_eq!(version(&session, &key).await, 2, "{key}");
        assert!(i < 2 || pair.replicas[1].seen() > before);
    }
    // A command of no group, or of several, is refused by name.
    let command =
        |command| Bytes::from(KvCommand { command: Some(command), ..Default::default() }.encode_to_vec());
    let range = DeleteRangeRequest { key: "a".into(), range_end: "z".into(), prev_kv: false };
    let error = session.execute(command(Command::DeleteRange(range))).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { message, .. } if message.contains("a range of keys")),
        "{error}"
    );
}

#[tokio::test]
async fn a_client_of_etcds_api_uses_synods_where_there_are_groups() {
    let pair = Pair::of_groups(4);
    let client = Client::new(pair.config()).unwrap();
    let keys = || (0..8).map(|i| Bytes::from(format!("k{i}")));
    for key in keys() {
        let request = PutRequest { key: key.clone(), value: key.clone(), ..Default::default() };
        client.put(request.clone()).await.unwrap();
        let found = client.get(RangeRequest { key: key.clone(), ..Default::default() }).await.unwrap();
        assert_eq!(found.kvs[0].value, key);
        let put = RequestOp { request: Some(Request::RequestPut(request)) };
        let get = RangeRequest { key: key.clone(), ..Default::default() };
        let get = RequestOp { request: Some(Request::RequestRange(get)) };
        let done = client.txn(TxnRequest { success: vec![put], ..Default::default() }).await.unwrap();
        assert!(done.succeeded);
        let read = client.txn(TxnRequest { success: vec![get], ..Default::default() }).await.unwrap();
        assert_eq!(read.responses.len(), 1);
        let deleted = client.delete(DeleteRangeRequest { key, ..Default::default() }).await.unwrap();
        assert_eq!(deleted.deleted, 1);
    }
    let put =
        |key| RequestOp { request: Some(Request::RequestPut(PutRequest { key, ..Default::default() })) };
    let all = TxnRequest { success: keys().map(put).collect(), ..Default::default() };
    let error = client.txn(all).await.unwrap_err();
    assert!(error.code() == Some(Code::InvalidArgument) && !error.may_have_executed(), "{error}");
    let refused = client.put(PutRequest::default()).await.unwrap_err();
    assert!(refused.to_string().starts_with("etcdserver: key is not provided ("), "{refused}");
}

#[tokio::test]
async fn many_outstanding_commands_are_each_executed_once() {
    let pair = Pair::start();
    let session = Session::open(pair.config(), 16).await.unwrap();
    let flapping = tokio::spawn({
        let replicas = pair.replicas.clone();
        async move {
            for round in 0.. {
                let fault =
                    if round % 2 == 0 { Fault::LoseAnswer(RequestError::Timeout) } else { Fault::None };
                replicas[0].set(fault);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let commands: Vec<_> = (0..500)
        .map(|i| {
            let session = session.clone();
            tokio::spawn(async move { session.execute(put(&format!("k{}", i % 50))).await.map(revision) })
        })
        .collect();
    let mut revisions = Vec::new();
    for command in commands {
        revisions.push(command.await.unwrap().unwrap());
    }
    flapping.abort();
    pair.replicas[0].set(Fault::None);
    revisions.sort_unstable();
    assert_eq!(
        revisions,
        (2..502).collect::<Vec<_>>(),
        "each has a revision of its own and none is left over"
    );
    for i in 0..50 {
        assert_eq!(version(&session, &format!("k{i}")).await, 10);
    }
}

#[tokio::test]
async fn outstanding_commands_are_bounded() {
    let pair = Pair::start();
    pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
    let config = pair.config_with(|config| {
        (config.attempt_timeout, config.request_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
    });
    let session = Session::open(config, 3).await.unwrap();
    pair.replicas[0].set(Fault::Hang);
    let before = pair.replicas[0].seen();
    let commands: Vec<_> = (0..10)
        .map(|i| {
            let session = session.clone();
            tokio::spawn(async move { session.execute(put(&format!("k{i}"))).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(pair.replicas[0].seen() - before, 3);
    // A command that is given up makes room.
    commands[0].abort();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(pair.replicas[0].seen() - before, 4);
}

#[tokio::test]
async fn a_session_that_is_gone_is_told_apart() {
    let pair = Pair::start();
    let session = Session::open(pair.config(), 1).await.unwrap();
    pair.replicas[0].set(Fault::Refuse(RequestError::SessionExpired));
    let error = session.execute(put("k")).await.unwrap_err();
    assert!(matches!(error, Error::SessionExpired), "{error}");
}

#[tokio::test]
async fn a_reply_that_is_gone_is_told_apart_and_its_command_was_executed() {
    let pair = Pair::start();
    let session = Session::open(pair.config(), 1).await.unwrap();
    pair.replicas[0].set(Fault::LoseAnswer(RequestError::Timeout));
    pair.replicas[1].set(Fault::Refuse(RequestError::ReplyGone));
    let error = session.execute(put("k")).await.unwrap_err();
    assert!(matches!(error, Error::ReplyGone) && error.may_have_executed(), "{error}");
    pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
    assert_eq!(version(&session, "k").await, 1);
}

#[tokio::test]
async fn without_an_answer_the_outcome_is_unknown() {
    let pair = Pair::start();
    let config = pair.config_with(|config| config.request_timeout = Duration::from_millis(500));
    let session = Session::open(config, 1).await.unwrap();
    pair.replicas.iter().for_each(|replica| replica.set(Fault::LoseAnswer(RequestError::Timeout)));
    let error = session.execute(put("k")).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }) && error.may_have_executed(), "{error}");
    pair.replicas.iter().for_each(|replica| replica.set(Fault::None));
    assert_eq!(version(&session, "k").await, 1);
    // A number that was given up does not hold up the next one.
    session.execute(put("k")).await.unwrap();
    assert_eq!(version(&session, "k").await, 2);
    assert!(matches!(Session::open(pair.config(), 0).await, Err(Error::Config { .. })));
}

/// The client knows one endpoint, whose replica takes no part in the groups.
#[tokio::test]
async fn a_client_goes_to_the_replicas_that_take_part_in_a_group() {
    let pair = Pair::of_groups(4);
    let mut config = pair.config_with(|config| {
        config.endpoints.truncate(1);
        config.request_timeout = Duration::from_secs(10);
    });
    let elsewhere = |at: usize| {
        let client_urls = vec![format!("http://{}", pair.urls[at])];
        Some(Elsewhere { names: vec!["two".into()], client_urls })
    };
    pair.replicas[0].send_on(elsewhere(1));
    let client = Client::new(config.clone()).unwrap();
    let request = PutRequest { key: b"a".to_vec().into(), value: b"1".to_vec().into(), ..Default::default() };
    client.put(request.clone()).await.unwrap();
    let session = Session::open(config.clone(), 4).await.unwrap();
    assert_eq!(revision(session.execute(put("a")).await.unwrap()), 3);
    assert_eq!((pair.replicas[0].seen(), pair.replicas[1].seen() > 2), (0, true));

    // It has come back, and the other one has left.
    pair.replicas[0].send_on(None);
    pair.replicas[1].send_on(elsewhere(0));
    client.put(request.clone()).await.unwrap();
    assert!(pair.replicas[0].seen() > 0);

    // Each takes the other one for a member.
    pair.replicas[0].send_on(elsewhere(1));
    config.request_timeout = Duration::from_secs(1);
    let error = Client::new(config).unwrap().put(request).await.unwrap_err();
    assert!(!error.may_have_executed(), "{error}");
    assert!(
        error.to_string().contains("takes no part in group") && error.to_string().contains("two do"),
        "{error}"
    );
}

/// The first endpoint has been away since the group was where nothing answers any more; the second one takes part in
/// it.
#[tokio::test]
async fn a_client_moves_on_if_those_that_a_replica_names_are_gone() {
    let pair = Pair::of_groups(4);
    let config = pair.config_with(|config| config.request_timeout = Duration::from_secs(10));
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = Elsewhere { names: vec!["three".into()], client_urls: vec![format!("http://{unused}")] };
    pair.replicas[0].send_on(Some(gone));
    let client = Client::new(config).unwrap();
    let request = PutRequest { key: b"a".to_vec().into(), value: b"1".to_vec().into(), ..Default::default() };
    client.put(request).await.unwrap();
    assert_eq!((pair.replicas[0].seen(), pair.replicas[1].seen() > 0), (0, true));
}

/// The second endpoint cannot be had at first. It may keep what the first one has trimmed, so that it has to be asked.
#[tokio::test]
async fn that_what_comes_next_is_gone_is_for_every_endpoint_to_say() {
    let trimmed = || SubscribeError::Trimmed { first: Vec::new(), round: None };
    let pair = Pair::start();
    let client =
        Client::new(pair.config_with(|config| config.request_timeout = Duration::from_secs(10))).unwrap();
    pair.replicas[0].refuse_to_be_followed(vec![trimmed(); 9]);
    pair.replicas[1].refuse_to_be_followed([SubscribeError::Stopping, SubscribeError::Stopping]);
    let error = client.subscribe(&[0], Start::Beginning).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::FailedPrecondition), "{error}");
    pair.replicas[1].refuse_to_be_followed([SubscribeError::Stopping, trimmed()]);
    let error = client.subscribe(&[0], Start::Beginning).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::OutOfRange), "{error}");
}
