//! Tells an operator of slow requests, and not too often.
//!
//! A request has an account, in which it is noted on its way what it asks for and where its time goes. The account goes
//! with the task that answers the request, and not with the arguments: on that way are many functions that have nothing
//! to do with it. Keys and names are noted as far as they are shown, and values never.

use std::{
    cell::RefCell,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use synod_api::{
    etcdserverpb::{RequestOp, TxnRequest, request_op::Request},
    synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
};
use synod_grpc::Remote;
use tokio::{task::futures::TaskLocalFuture, task_local, time::Instant};
use tonic::Code;
use tracing::{
    field::{DebugValue, debug},
    warn,
};

use crate::{RequestError, Timed, auth::Who};

/// Least time between two lines.
const SAY_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of a key, or of a user's name, that are shown.
const SHOWN_BYTES_MAX: usize = 128;

/// The account of a request; none is kept if no request is slow.
type Slot = Option<Box<RefCell<Account>>>;

task_local! {
    static ACCOUNT: Slot;
}

/// What is slow, and when an operator was last told.
#[derive(Debug)]
pub(crate) struct Slow {
    after: Duration,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    at: Option<Instant>,
    /// Slow requests since then that were not told.
    others: u64,
}

/// A request whose answer, or refusal, is known.
#[derive(Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) method: &'a str,
    /// Where its client is.
    pub(crate) peer: Remote,
    /// When its headers came.
    pub(crate) came: Instant,
    pub(crate) code: Code,
    /// Bytes of the answer; `None` for a refusal, and for an answer that is made as it is sent.
    pub(crate) bytes: Option<usize>,
}

impl Slow {
    /// Requests that take longer than this are slow; zero: none is.
    pub(crate) fn new(after: Duration) -> Slow {
        Slow { after: if after.is_zero() { Duration::MAX } else { after }, said: Mutex::default() }
    }

    /// Keeps an account of a request while it is being answered, unless none can be slow.
    pub(crate) fn accounting<F: Future>(&self, answer: F) -> TaskLocalFuture<Slot, F> {
        ACCOUNT.scope((self.after < Duration::MAX).then(Box::default), answer)
    }

    /// Looks at a request that is answered.
    pub(crate) fn look(&self, answered: &Answered<'_>, account: Slot) {
        let Answered { method, peer, came, code, bytes } = answered;
        let took = came.elapsed();
        if took <= self.after {
            return;
        }
        let Some(others) = self.say(Instant::now()) else { return };
        let account = account.map(|account| (*account).into_inner()).unwrap_or_default();
        warn!(
            method,
            ?code,
            ?took,
            expected = ?self.after,
            %peer,
            user = account.user.as_ref().map(display),
            key = account.key.as_ref().map(display),
            range_end = account.range_end.as_ref().map(display),
            operations = account.operations,
            request_bytes = account.request_bytes,
            response_bytes = bytes.map(|bytes| bytes as u64),
            receiving = account.began.map(|began| debug(began.saturating_duration_since(*came))),
            ordering = unless_zero(account.ordering),
            execution = unless_zero(account.execution),
            reading = unless_zero(account.reading),
            unanswered = account.handed_over.map(|at| debug(at.elapsed())),
            others,
            "request stats: it took too long"
        );
    }

    /// How many requests were not told since the last that was, or `None` if this one is not either.
    fn say(&self, now: Instant) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.at.is_some_and(|at| now.duration_since(at) < SAY_INTERVAL) {
            said.others += 1;
            return None;
        }
        let others = said.others;
        *said = Said { at: Some(now), others: 0 };
        Some(others)
    }
}

fn unless_zero(time: Duration) -> Option<DebugValue<Duration>> {
    (!time.is_zero()).then(|| debug(time))
}

/// Notes something in the account of the request that is being answered. Elsewhere, as in a task of the server's own,
/// there is none.
pub(crate) fn note(note: impl FnOnce(&mut Account)) {
    let _ = ACCOUNT.try_with(|account| {
        if let Some(account) = account {
            note(&mut account.borrow_mut());
        }
    });
}

/// The replica is about to be asked.
pub(crate) fn handed_over() {
    note(|account| {
        let now = Instant::now();
        account.handed_over = Some(now);
        account.began.get_or_insert(now);
    });
}

/// A command was executed, or has failed.
pub(crate) fn executed<T>(done: Timed<T>) -> Result<T, RequestError> {
    answered(done, |account| &mut account.execution)
}

/// A query was answered, or has failed.
pub(crate) fn read<T>(done: Timed<T>) -> Result<T, RequestError> {
    answered(done, |account| &mut account.reading)
}

/// The replica has answered. `spent` is where its time counts beyond that of the order.
fn answered<T>(done: Timed<T>, spent: fn(&mut Account) -> &mut Duration) -> Result<T, RequestError> {
    let Timed { outcome, ordering, execution } = done;
    note(|account| {
        account.handed_over = None;
        account.ordering += ordering;
        *spent(account) += execution;
    });
    outcome
}

/// What is known of a request when it is answered.
#[derive(Debug, Default)]
pub(crate) struct Account {
    user: Option<Shown>,
    key: Option<Shown>,
    /// As in etcd's requests; `None` for a single key.
    range_end: Option<Shown>,
    /// Of a transaction: its comparisons and operations. The key is that of the first.
    operations: Option<u64>,
    /// Bytes of the message as it came, with its prefix.
    request_bytes: Option<u64>,
    /// When the replica was asked first. Before that the message came, and its user was found out.
    began: Option<Instant>,
    /// When the replica was asked, if it has not answered yet.
    handed_over: Option<Instant>,
    /// How long commands and linearizable queries have waited until they were ordered.
    ordering: Duration,
    /// How long commands then took.
    execution: Duration,
    /// How long queries then took.
    reading: Duration,
}

impl Account {
    /// The message has come.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.request_bytes = Some(bytes as u64);
    }

    /// The request has the store execute a command.
    pub(crate) fn commands(&mut self, who: &Who, command: &KvCommand) {
        self.note_user(who);
        match &command.command {
            Some(Command::Put(put)) => self.note_keys(&put.key, &[]),
            Some(Command::DeleteRange(range)) => self.note_keys(&range.key, &range.range_end),
            Some(Command::Txn(txn)) => self.note_txn(txn),
            _ => {}
        }
    }

    /// The request asks the store.
    pub(crate) fn asks(&mut self, who: &Who, query: &KvQuery) {
        self.note_user(who);
        match &query.query {
            Some(Query::Range(range)) => self.note_keys(&range.key, &range.range_end),
            Some(Query::Txn(txn)) => self.note_txn(txn),
            _ => {}
        }
    }

    fn note_user(&mut self, who: &Who) {
        if let Some(identity) = who {
            self.user = Some(Shown::of(identity.user.as_bytes()));
        }
    }

    /// The first key is what a request is about: what the server does for it comes later.
    fn note_keys(&mut self, key: &[u8], range_end: &[u8]) {
        if self.key.is_none() {
            self.key = Some(Shown::of(key));
            self.range_end = (!range_end.is_empty()).then(|| Shown::of(range_end));
        }
    }

    fn note_txn(&mut self, txn: &TxnRequest) {
        let TxnRequest { compare, success, failure } = txn;
        let compared = compare.first().map(|compare| (&compare.key[..], &compare.range_end[..]));
        let first = compared.or_else(|| success.iter().chain(failure).find_map(range_of));
        if self.key.is_none()
            && let Some((key, range_end)) = first
        {
            self.operations = Some((compare.len() + success.len() + failure.len()) as u64);
            self.note_keys(key, range_end);
        }
    }
}

/// The keys of an operation that is no transaction itself.
fn range_of(operation: &RequestOp) -> Option<(&[u8], &[u8])> {
    match operation.request.as_ref()? {
        Request::RequestPut(put) => Some((&put.key[..], &[])),
        Request::RequestDeleteRange(range) => Some((&range.key[..], &range.range_end[..])),
        Request::RequestRange(range) => Some((&range.key[..], &range.range_end[..])),
        Request::RequestTxn(_) => None,
    }
}

/// A key or a name, of which the beginning is shown, without characters that would change a line.
struct Shown {
    head: [u8; SHOWN_BYTES_MAX],
    bytes: usize,
}

impl Shown {
    fn of(text: &[u8]) -> Shown {
        let mut head = [0; SHOWN_BYTES_MAX];
        let shown = text.len().min(SHOWN_BYTES_MAX);
        head[..shown].copy_from_slice(&text[..shown]);
        Shown { head, bytes: text.len() }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.head[..self.bytes.min(SHOWN_BYTES_MAX)];
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if self.bytes > SHOWN_BYTES_MAX {
            write!(f, "... ({} bytes)", self.bytes)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use synod_api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest};

    use super::*;
    use crate::auth::Identity;

    #[test]
    fn an_operator_is_told_ten_times_a_second_and_of_how_many_more() {
        let (slow, began) = (Slow::new(Duration::from_millis(300)), Instant::now());
        let at = |millis| slow.say(began + Duration::from_millis(millis));
        assert_eq!(
            [at(0), at(1), at(99), at(100), at(150), at(300)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }

    #[test]
    fn keys_are_escaped_and_bounded() {
        let shown = |text: &[u8]| Shown::of(text).to_string();
        assert_eq!(shown(b""), r#""""#);
        assert_eq!(shown(b"a\n\"\xff"), r#""a\n\"\xff""#);
        assert_eq!(shown(&[b'k'; SHOWN_BYTES_MAX]), format!("\"{}\"", "k".repeat(SHOWN_BYTES_MAX)));
        let long = shown(&[b'k'; 1000]);
        assert_eq!(long, format!("\"{}\"... (1000 bytes)", "k".repeat(SHOWN_BYTES_MAX)));
    }

    /// What is noted of a command by a user, or by none.
    fn noted(who: &Who, command: Command) -> String {
        let mut account = Account::default();
        account.commands(who, &KvCommand { command: Some(command), ..KvCommand::default() });
        let Account { user, key, range_end, operations, .. } = account;
        format!("{user:?} {key:?} {range_end:?} {operations:?}")
    }

    #[test]
    fn keys_ranges_and_users_are_noted_and_no_values() {
        let put = |key: &str| PutRequest {
            key: key.to_owned().into(),
            value: "secret".into(),
            ..PutRequest::default()
        };
        let ann = Some(Box::new(Identity { user: "ann".to_owned(), revision: 1 }));
        assert_eq!(noted(&ann, Command::Put(put("a"))), r#"Some("ann") Some("a") None None"#);
        let range =
            DeleteRangeRequest { key: "a".into(), range_end: "b".into(), ..DeleteRangeRequest::default() };
        assert_eq!(noted(&None, Command::DeleteRange(range)), r#"None Some("a") Some("b") None"#);
        let op = |request| RequestOp { request: Some(request) };
        let inner = TxnRequest { success: vec![op(Request::RequestPut(put("x")))], ..TxnRequest::default() };
        let txn = TxnRequest {
            success: vec![op(Request::RequestTxn(inner)), op(Request::RequestPut(put("b")))],
            ..TxnRequest::default()
        };
        assert_eq!(noted(&None, Command::Txn(txn.clone())), r#"None Some("b") None Some(2)"#);
        let compare = vec![Compare { key: "c".into(), ..Compare::default() }];
        assert_eq!(
            noted(&None, Command::Txn(TxnRequest { compare, ..txn })),
            r#"None Some("c") None Some(3)"#
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_goes_with_its_request_and_says_where_the_time_went() {
        let slow = Slow::new(Duration::from_millis(300));
        let query = |key: &str| {
            let range = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
            KvQuery { query: Some(Query::Range(range)), ..KvQuery::default() }
        };
        let millis = Duration::from_millis;
        let answer = async |key: &str| {
            note(|account| account.asks(&None, &query(key)));
            handed_over();
            tokio::time::sleep(millis(20)).await;
            let read_once = Timed { outcome: Ok(()), ordering: millis(15), execution: millis(5) };
            read(read_once).unwrap();
            note(|account| account.asks(&None, &query("another")));
            handed_over();
            tokio::time::sleep(millis(10)).await;
            let done = Timed { outcome: Ok(()), ordering: millis(7), execution: millis(3) };
            executed(done).unwrap();
            handed_over();
        };
        // Both are answered by one task, in turns.
        let (one, two) = (slow.accounting(answer("one")), slow.accounting(answer("two")));
        let (mut one, mut two) = (pin!(one), pin!(two));
        tokio::join!(one.as_mut(), two.as_mut());
        for (account, key) in [(one.take_value(), "\"one\""), (two.take_value(), "\"two\"")] {
            let account = (*account.flatten().unwrap()).into_inner();
            assert_eq!(account.key.unwrap().to_string(), key);
            let times = [account.ordering, account.execution, account.reading];
            assert_eq!(times, [22, 3, 5].map(millis));
            let (began, asked) = (account.began.unwrap(), account.handed_over.unwrap());
            assert!(asked - began >= millis(30), "it waits for an answer again");
        }
        // Without a time no request is slow, and outside of a request there is no account.
        let mut none = pin!(Slow::new(Duration::ZERO).accounting(answer("none")));
        none.as_mut().await;
        assert!(none.take_value().flatten().is_none());
        handed_over();
    }
}
