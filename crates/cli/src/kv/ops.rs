//! The operations on keys, as they are typed on the command line and in a transaction.

use bytes::Bytes;
use clap::{Args, ValueEnum};
use synod_client::api::{
    DeleteRangeRequest, PutRequest, RangeRequest,
    range_request::{SortOrder, SortTarget},
};

/// Writes a key.
#[derive(Clone, Debug, Args)]
pub struct PutOp {
    /// The key; any text that is not empty.
    pub key: String,
    /// The value; `synod put` reads it from standard input if it is not given.
    #[arg(allow_hyphen_values = true)]
    pub value: Option<String>,
    /// Print what the key held before.
    #[arg(long)]
    pub prev_kv: bool,
    /// The lease, in hexadecimal, with which the key goes away; without it a key has none.
    #[arg(long, value_name = "LEASE", value_parser = lease_id, default_value = "0", hide_default_value = true)]
    pub lease: i64,
    /// Keep the lease that the key has. The key must exist.
    #[arg(long, conflicts_with = "lease")]
    pub ignore_lease: bool,
    /// Keep the value: only revision and version change. The key must exist.
    #[arg(long, conflicts_with = "value")]
    pub ignore_value: bool,
}

impl PutOp {
    /// The request. `value` is called if no value was typed.
    pub fn request(self, value: impl FnOnce() -> Result<Bytes, String>) -> Result<PutRequest, String> {
        let value = match self.value {
            Some(value) => value.into(),
            None if self.ignore_value => Bytes::new(),
            None => value()?,
        };
        Ok(PutRequest {
            key: self.key.into(),
            value,
            lease: self.lease,
            prev_kv: self.prev_kv,
            ignore_value: self.ignore_value,
            ignore_lease: self.ignore_lease,
        })
    }
}

/// Reads a lease's id as etcdctl writes it.
pub fn lease_id(text: &str) -> Result<i64, String> {
    i64::from_str_radix(text, 16).map_err(|_| format!("{text:?} is no lease: give its id in hexadecimal"))
}

/// A range of keys.
#[derive(Clone, Debug, Args)]
pub struct Range {
    /// The key, or the first of a range.
    pub key: String,
    /// The first key after the range.
    pub range_end: Option<String>,
    /// All keys that begin with KEY.
    #[arg(long, conflicts_with_all = ["range_end", "from_key"])]
    pub prefix: bool,
    /// All keys from KEY on, in byte order.
    #[arg(long, conflicts_with = "range_end")]
    pub from_key: bool,
}

impl Range {
    /// The key and the range end of a request. All keys begin with the empty text, and are at or after it.
    pub fn bounds(self) -> (Bytes, Bytes) {
        const FIRST: &[u8] = b"\0";
        let key = self.key.into_bytes();
        let end = match self.range_end {
            Some(end) => end.into(),
            None if self.from_key => Bytes::from_static(FIRST),
            None if self.prefix => after_prefix(&key),
            None => Bytes::new(),
        };
        let all = key.is_empty() && (self.prefix || self.from_key);
        (if all { Bytes::from_static(FIRST) } else { key.into() }, end)
    }
}

/// The first key after all keys that begin with `prefix`: the last byte that can be raised is raised, and the
/// bytes after it are dropped. If none can be raised, there is no such key, which `\0` stands for.
pub fn after_prefix(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|&byte| byte < u8::MAX) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end.into()
        }
        None => Bytes::from_static(b"\0"),
    }
}

/// Reads keys.
#[derive(Clone, Debug, Args)]
pub struct GetOp {
    #[command(flatten)]
    pub range: Range,
    /// Read as it was at this revision of the store.
    #[arg(long, value_name = "REVISION", default_value_t = 0, hide_default_value = true)]
    pub rev: i64,
    /// Answer from one replica's own state, which may lag, without asking the others.
    #[arg(long)]
    pub serializable: bool,
    /// The consistency as etcdctl writes it: l (linearizable) or s (serializable).
    #[arg(long, value_name = "l|s", value_parser = ["l", "s"], conflicts_with = "serializable")]
    pub consistency: Option<String>,
    /// The most keys; 0 for all.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    pub limit: i64,
    /// Print only the keys.
    #[arg(long)]
    pub keys_only: bool,
    /// Print only how many keys there are.
    #[arg(long)]
    pub count_only: bool,
    /// The sort target [default: the key].
    #[arg(long, value_name = "WHAT", value_enum, ignore_case = true)]
    pub sort_by: Option<SortBy>,
    /// The sort order [default: ascending].
    #[arg(long, value_name = "ORDER", value_enum, ignore_case = true)]
    pub order: Option<Order>,
    /// Print only the values.
    #[arg(long, conflicts_with_all = ["keys_only", "count_only"])]
    pub print_value_only: bool,
}

/// What keys are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    Key,
    Version,
    Create,
    #[value(alias = "mod")]
    Modify,
    Value,
}

/// The order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    #[value(alias = "asc")]
    Ascend,
    #[value(alias = "desc")]
    Descend,
}

impl GetOp {
    /// The request.
    pub fn request(self) -> RangeRequest {
        let (key, range_end) = self.range.bounds();
        let target = match self.sort_by {
            None | Some(SortBy::Key) => SortTarget::Key,
            Some(SortBy::Version) => SortTarget::Version,
            Some(SortBy::Create) => SortTarget::Create,
            Some(SortBy::Modify) => SortTarget::Mod,
            Some(SortBy::Value) => SortTarget::Value,
        };
        let order = match (self.order, self.sort_by) {
            (None, None) => SortOrder::None,
            (None | Some(Order::Ascend), _) => SortOrder::Ascend,
            (Some(Order::Descend), _) => SortOrder::Descend,
        };
        RangeRequest {
            key,
            range_end,
            limit: self.limit,
            revision: self.rev,
            sort_order: order.into(),
            sort_target: target.into(),
            serializable: self.serializable || self.consistency.as_deref() == Some("s"),
            keys_only: self.keys_only,
            count_only: self.count_only,
            ..RangeRequest::default()
        }
    }
}

/// Deletes keys.
#[derive(Clone, Debug, Args)]
pub struct DelOp {
    #[command(flatten)]
    pub range: Range,
    /// Print the deleted pairs.
    #[arg(long)]
    pub prev_kv: bool,
}

impl DelOp {
    /// The request.
    pub fn request(self) -> DeleteRangeRequest {
        let (key, range_end) = self.range.bounds();
        DeleteRangeRequest { key, range_end, prev_kv: self.prev_kv }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(key: &str, prefix: bool, from_key: bool) -> (Bytes, Bytes) {
        Range { key: key.into(), range_end: None, prefix, from_key }.bounds()
    }

    #[test]
    fn ranges() {
        let all = (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        assert_eq!(bounds("a", false, false), ("a".into(), "".into()));
        assert_eq!(bounds("az", true, false), ("az".into(), "a{".into()));
        assert_eq!(bounds("a", false, true), ("a".into(), "\0".into()));
        assert_eq!(bounds("", true, false), all);
        assert_eq!(bounds("", false, true), all);
        assert_eq!(after_prefix(b"a\xff\xff"), "b");
        assert_eq!(after_prefix(b"\xff"), "\0");
    }
}
