//! `synod watch`: prints what happens to keys, as etcdctl does.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use synod_api::mvccpb::{Event, event::EventType};
use synod_client::api::{WatchCreateRequest, WatchResponse, watch_create_request::FilterType};

use crate::{
    client::{ClientArgs, block_on},
    failure::Failure,
    kv::{GetStyle, Range, header_json, kv_json, kv_lines},
    output::{self, Format, object},
};

/// Arguments of `synod watch`.
#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    #[command(flatten)]
    range: Range,
    /// Begin with this revision of the store; without it with what comes.
    #[arg(long, value_name = "REVISION", default_value_t = 0, hide_default_value = true)]
    rev: i64,
    /// Print what each key held before.
    #[arg(long)]
    prev_kv: bool,
    /// Say from time to time how far the watch is (`serve --watch-progress-notify-interval`), if nothing happens.
    #[arg(long)]
    progress_notify: bool,
    /// Leave out all puts, or all deletions.
    #[arg(long, value_name = "WHAT", value_enum)]
    without: Option<Kind>,
    #[command(flatten)]
    client: ClientArgs,
}

/// A kind of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Puts,
    Deletions,
}

pub fn run(args: WatchArgs) -> Result<(), Failure> {
    let (key, range_end) = args.range.bounds();
    let filters = args.without.map(|kind| match kind {
        Kind::Puts => FilterType::Noput.into(),
        Kind::Deletions => FilterType::Nodelete.into(),
    });
    let request = WatchCreateRequest {
        key,
        range_end,
        start_revision: args.rev,
        progress_notify: args.progress_notify,
        prev_kv: args.prev_kv,
        filters: filters.into_iter().collect(),
        ..WatchCreateRequest::default()
    };
    let client = args.client.client()?;
    block_on(async {
        let mut watch = client.watch(request);
        while let Some(response) = watch.next().await? {
            print(args.client.write_out, &response)?;
            if response.canceled {
                return Err(ended(&response));
            }
        }
        Ok(())
    })
}

/// Why the server ended the watch.
fn ended(response: &WatchResponse) -> Failure {
    if response.compact_revision > 0 {
        return Failure::failed(format!(
            "the watch asks for revisions that are compacted: the first one left is {}",
            response.compact_revision
        ));
    }
    Failure::failed(format!("the watch was ended: {}", response.cancel_reason))
}

fn print(format: Format, response: &WatchResponse) -> Result<(), Failure> {
    if response.created {
        return Ok(());
    }
    if format == Format::Json {
        return output::print_json(&response_json(response));
    }
    let mut out = Vec::new();
    if response.events.is_empty() && !response.canceled {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        out.extend_from_slice(format!("progress notify: {revision}\n").as_bytes());
    }
    for event in &response.events {
        out.extend_from_slice(event.r#type().as_str_name().as_bytes());
        out.push(b'\n');
        for kv in event.prev_kv.iter().chain(&event.kv) {
            kv_lines(&mut out, GetStyle::default(), kv);
        }
    }
    output::print(&out)
}

fn response_json(response: &WatchResponse) -> Value {
    json!({
        "Header": header_json(response.header.as_ref()),
        "Events": response.events.iter().map(event_json).collect::<Vec<_>>(),
        "CompactRevision": response.compact_revision,
        "Canceled": response.canceled,
        "Created": response.created,
    })
}

fn event_json(event: &Event) -> Value {
    let kind = if event.r#type() == EventType::Delete { json!(1) } else { Value::Null };
    object([
        ("type", kind),
        ("kv", event.kv.as_ref().map_or(Value::Null, kv_json)),
        ("prev_kv", event.prev_kv.as_ref().map_or(Value::Null, kv_json)),
    ])
}

#[cfg(test)]
mod tests {
    use synod_api::mvccpb::KeyValue;

    use super::*;

    #[test]
    fn json_has_the_names_of_etcdctl() {
        let kv = |value: &'static str| {
            Some(KeyValue { key: "k".into(), value: value.into(), ..KeyValue::default() })
        };
        let event = Event { r#type: EventType::Delete.into(), kv: kv(""), prev_kv: kv("v") };
        let response = WatchResponse { events: vec![event], ..WatchResponse::default() };
        assert_eq!(
            response_json(&response).to_string(),
            "{\"Canceled\":false,\"CompactRevision\":0,\"Created\":false,\"Events\":[{\"kv\":{\"key\":\"aw==\"},\
             \"prev_kv\":{\"key\":\"aw==\",\"value\":\"dg==\"},\"type\":1}],\"Header\":null}"
        );
    }
}
