//! Removes the keys that a run wrote.
//!
//! A key is removed if the run could have written it (it is one of the load's numbers) and if it was written
//! since the run began. So another client's key that happens to lie between two of them stays, and so do the
//! keys of an earlier run. Each key is deleted by its name, not with a range.

use std::{future::Future, time::Duration};

use synod_api::{
    etcdserverpb::{
        DeleteRangeRequest, RangeRequest, RequestOp, TxnRequest, kv_client::KvClient, request_op::Request,
        response_op::Response,
    },
    shards::NO_SINGLE_REVISION,
};
use tonic::{Status, transport::Channel};

use super::{BenchError, Load, target::Target};

/// Keys that one transaction removes: as many operations as servers accept by default.
const OPERATIONS_MAX: usize = 128;
/// Bytes of keys in a request or an answer.
const BYTES_MAX: usize = 1 << 20;
/// Keys that one request asks for.
const KEYS_MAX: usize = 10_000;

/// The state of a store before a run.
#[derive(Debug)]
pub(super) struct Before {
    targets: Vec<Target>,
    revision: i64,
}

impl Before {
    /// Asks the first of the endpoints that answers.
    ///
    /// # Errors
    /// No endpoint answers.
    pub(super) fn look(flag: &'static str, endpoints: &[String], load: &Load) -> Result<Before, BenchError> {
        let targets = load.tls.targets(flag, endpoints)?;
        let revision =
            block_on(first(&targets, async |target: &Target| revision(target, load.timeout).await))?;
        Ok(Before { targets, revision })
    }

    /// Removes the keys that were written since, and returns how many there were. Ctrl-C ends it.
    ///
    /// # Errors
    /// No endpoint lets it finish.
    pub(super) fn restore(&self, load: &Load) -> Result<u64, BenchError> {
        let mut removed = 0;
        block_on(async {
            let removing = first(&self.targets, async |target: &Target| {
                remove(target, self.revision, load, &mut removed).await
            });
            tokio::select! {
                done = removing => done,
                _ = tokio::signal::ctrl_c() => Err(BenchError::Thread("interrupted".into())),
            }
        })?;
        Ok(removed)
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| BenchError::Thread(error.to_string()))?.block_on(work)
}

/// The first answer of a target that is not an error.
async fn first<T>(
    targets: &[Target],
    mut ask: impl AsyncFnMut(&Target) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let mut failed = BenchError::Thread("there is no endpoint".into());
    for target in targets {
        match ask(target).await {
            Ok(answer) => return Ok(answer),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn revision(target: &Target, timeout: Duration) -> Result<i64, BenchError> {
    let mut kv = KvClient::new(target.connect().await?);
    let request = RangeRequest { key: "0".into(), count_only: true, ..RangeRequest::default() };
    let asked = async {
        match kv.range(request).await {
            Err(status) if status.message().starts_with(NO_SINGLE_REVISION) => Ok(None),
            answer => answer.map(|answer| Some(answer.into_inner())),
        }
    };
    let Some(answer) = answered(target, timeout, asked).await? else {
        return Err(BenchError::NotRemovable { endpoint: target.address.clone() });
    };
    Ok(answer.header.map_or(0, |header| header.revision))
}

async fn remove(target: &Target, since: i64, load: &Load, removed: &mut u64) -> Result<(), BenchError> {
    let mut kv: KvClient<Channel> = KvClient::new(target.connect().await?);
    let number = |number: u64| format!("{number:0>width$}", width = load.key_size).into_bytes();
    let mut from = number(0);
    let mut end = number(load.key_space_size - 1);
    end.push(0);
    loop {
        let request = RangeRequest {
            key: from.clone().into(),
            range_end: end.clone().into(),
            limit: (BYTES_MAX / (load.key_size + 64)).clamp(1, KEYS_MAX) as i64,
            keys_only: true,
            min_mod_revision: since + 1,
            ..RangeRequest::default()
        };
        let found = answered(target, load.timeout, kv.range(request)).await?.into_inner();
        let Some(last) = found.kvs.last() else { return Ok(()) };
        from = last.key.to_vec();
        from.push(0);
        let written = found.kvs.into_iter().map(|kv| kv.key);
        let written: Vec<_> = written.filter(|key| is_number(key, load.key_size)).collect();
        for keys in written.chunks((BYTES_MAX / (load.key_size + 64)).clamp(1, OPERATIONS_MAX)) {
            let delete = |key| DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
            let delete = |key| RequestOp { request: Some(Request::RequestDeleteRange(delete(key))) };
            let success = keys.iter().cloned().map(delete).collect();
            let transaction = kv.txn(TxnRequest { success, ..TxnRequest::default() });
            let done = answered(target, load.timeout, transaction).await?.into_inner();
            let deleted = done.responses.into_iter().map(|response| match response.response {
                Some(Response::ResponseDeleteRange(done)) => done.deleted.max(0).unsigned_abs(),
                _ => 0,
            });
            *removed += deleted.sum::<u64>();
        }
        if !found.more {
            return Ok(());
        }
    }
}

/// Whether a key has the form of the load's keys. A key of that form and length, in the load's range, is one
/// of the load's.
fn is_number(key: &[u8], key_size: usize) -> bool {
    key.len() == key_size && key.iter().all(u8::is_ascii_digit)
}

async fn answered<T>(
    target: &Target,
    timeout: Duration,
    asked: impl Future<Output = Result<T, Status>>,
) -> Result<T, BenchError> {
    let reason = match tokio::time::timeout(timeout, asked).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(status)) => format!("{:?}: {}", status.code(), status.message()),
        Err(_) => format!("nothing within {timeout:?}"),
    };
    Err(BenchError::Unreachable { endpoint: target.address.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_the_load_are_its_own() {
        assert!(is_number(b"00000017", 8));
        assert!(!is_number(b"0000001", 8) && !is_number(b"000000170", 8) && !is_number(b"0000001x", 8));
    }
}
