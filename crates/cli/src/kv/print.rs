//! Prints answers of the key-value store as etcdctl does.

use serde_json::{Value, json};
use synod_api::mvccpb::KeyValue;
use synod_client::api::{
    CompactionResponse, DeleteRangeResponse, PutResponse, RangeResponse, ResponseHeader, TxnResponse,
    response_op::Response,
};

use crate::{
    failure::Failure,
    output::{self, Format, base64, object},
};

/// The parts of a `get` that are printed in lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct GetStyle {
    pub count_only: bool,
    pub value_only: bool,
}

pub fn put(format: Format, response: &PutResponse) -> Result<(), Failure> {
    match format {
        Format::Simple => {
            let mut out = b"OK\n".to_vec();
            put_lines(&mut out, response);
            output::print(&out)
        }
        Format::Json => output::print_json(&put_json(response)),
        Format::Table | Format::Wide => {
            let revision = response.header.as_ref().map_or(0, |header| header.revision);
            output::print(output::table(["REVISION"], [[revision.to_string()]]).as_bytes())?;
            previous_table(response.prev_kv.as_slice())
        }
    }
}

pub fn get(format: Format, style: GetStyle, response: &RangeResponse) -> Result<(), Failure> {
    match format {
        Format::Simple => {
            let mut out = Vec::new();
            get_lines(&mut out, style, response);
            output::print(&out)
        }
        Format::Json => output::print_json(&get_json(response)),
        Format::Table | Format::Wide if style.count_only => {
            output::print(output::table(["COUNT"], [[response.count.to_string()]]).as_bytes())
        }
        Format::Table | Format::Wide => output::print(kv_table(&response.kvs).as_bytes()),
    }
}

pub fn del(format: Format, response: &DeleteRangeResponse) -> Result<(), Failure> {
    match format {
        Format::Simple => {
            let mut out = Vec::new();
            del_lines(&mut out, response);
            output::print(&out)
        }
        Format::Json => output::print_json(&del_json(response)),
        Format::Table | Format::Wide => {
            output::print(output::table(["DELETED"], [[response.deleted.to_string()]]).as_bytes())?;
            previous_table(&response.prev_kvs)
        }
    }
}

pub fn txn(format: Format, response: &TxnResponse) -> Result<(), Failure> {
    if format == Format::Json {
        return output::print_json(&txn_json(response));
    }
    let mut out = if response.succeeded { b"SUCCESS\n".to_vec() } else { b"FAILURE\n".to_vec() };
    for response in response.responses.iter().filter_map(|op| op.response.as_ref()) {
        out.push(b'\n');
        match response {
            Response::ResponsePut(put) => {
                out.extend_from_slice(b"OK\n");
                put_lines(&mut out, put);
            }
            Response::ResponseRange(range) if matches!(format, Format::Table | Format::Wide) => {
                out.extend_from_slice(kv_table(&range.kvs).as_bytes());
            }
            Response::ResponseRange(range) => get_lines(&mut out, GetStyle::default(), range),
            Response::ResponseDeleteRange(delete) => del_lines(&mut out, delete),
            // `synod txn` cannot send one.
            Response::ResponseTxn(_) => {}
        }
    }
    output::print(&out)
}

pub fn compact(format: Format, revision: i64, response: &CompactionResponse) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(&object([("header", header_json(response.header.as_ref()))])),
        _ => output::print(format!("compacted revision {revision}\n").as_bytes()),
    }
}

pub fn disarm(format: Format, group: Option<u16>, cleared: usize) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(&object([("cleared", cleared.into())])),
        _ => {
            let alarms = if cleared == 1 { "alarm" } else { "alarms" };
            let of_group = group.map_or_else(String::new, |group| format!(" of group {group}"));
            output::print(format!("cleared {cleared} {alarms}{of_group}\n").as_bytes())
        }
    }
}

pub fn kv_lines(out: &mut Vec<u8>, style: GetStyle, kv: &KeyValue) {
    if !style.value_only {
        out.extend_from_slice(&kv.key);
        out.push(b'\n');
    }
    // As with etcdctl, a key without its value is followed by an empty line.
    out.extend_from_slice(&kv.value);
    out.push(b'\n');
}

fn put_lines(out: &mut Vec<u8>, response: &PutResponse) {
    response.prev_kv.iter().for_each(|kv| kv_lines(out, GetStyle::default(), kv));
}

fn get_lines(out: &mut Vec<u8>, style: GetStyle, response: &RangeResponse) {
    if style.count_only {
        out.extend_from_slice(format!("{}\n", response.count).as_bytes());
    }
    response.kvs.iter().for_each(|kv| kv_lines(out, style, kv));
}

fn del_lines(out: &mut Vec<u8>, response: &DeleteRangeResponse) {
    out.extend_from_slice(format!("{}\n", response.deleted).as_bytes());
    response.prev_kvs.iter().for_each(|kv| kv_lines(out, GetStyle::default(), kv));
}

fn kv_table(kvs: &[KeyValue]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let rows = kvs.iter().map(|kv| {
        let numbers = [kv.create_revision, kv.mod_revision, kv.version].map(|number| number.to_string());
        let [create, modify, version] = numbers;
        [text(&kv.key), text(&kv.value), create, modify, version]
    });
    output::table(["KEY", "VALUE", "CREATE REVISION", "MOD REVISION", "VERSION"], rows)
}

fn previous_table(kvs: &[KeyValue]) -> Result<(), Failure> {
    if kvs.is_empty() { Ok(()) } else { output::print(kv_table(kvs).as_bytes()) }
}

/// The header of an answer.
pub fn header_json(header: Option<&ResponseHeader>) -> Value {
    header.map_or(Value::Null, |header| {
        object([
            ("cluster_id", json!(header.cluster_id)),
            ("member_id", json!(header.member_id)),
            ("revision", json!(header.revision)),
            ("raft_term", json!(header.raft_term)),
        ])
    })
}

pub fn kv_json(kv: &KeyValue) -> Value {
    object([
        ("key", base64(&kv.key)),
        ("create_revision", json!(kv.create_revision)),
        ("mod_revision", json!(kv.mod_revision)),
        ("version", json!(kv.version)),
        ("value", base64(&kv.value)),
        ("lease", json!(kv.lease)),
    ])
}

fn put_json(response: &PutResponse) -> Value {
    object([
        ("header", header_json(response.header.as_ref())),
        ("prev_kv", response.prev_kv.as_ref().map_or(Value::Null, kv_json)),
    ])
}

fn get_json(response: &RangeResponse) -> Value {
    object([
        ("header", header_json(response.header.as_ref())),
        ("kvs", response.kvs.iter().map(kv_json).collect()),
        ("more", json!(response.more)),
        ("count", json!(response.count)),
    ])
}

fn del_json(response: &DeleteRangeResponse) -> Value {
    object([
        ("header", header_json(response.header.as_ref())),
        ("deleted", json!(response.deleted)),
        ("prev_kvs", response.prev_kvs.iter().map(kv_json).collect()),
    ])
}

fn txn_json(response: &TxnResponse) -> Value {
    let responses = response.responses.iter().filter_map(|op| op.response.as_ref()).map(|response| {
        let inner = match response {
            Response::ResponsePut(put) => json!({"response_put": put_json(put)}),
            Response::ResponseRange(range) => json!({"response_range": get_json(range)}),
            Response::ResponseDeleteRange(delete) => json!({"response_delete_range": del_json(delete)}),
            Response::ResponseTxn(txn) => json!({"response_txn": txn_json(txn)}),
        };
        json!({"Response": inner})
    });
    object([
        ("header", header_json(response.header.as_ref())),
        ("succeeded", json!(response.succeeded)),
        ("responses", responses.collect()),
    ])
}
