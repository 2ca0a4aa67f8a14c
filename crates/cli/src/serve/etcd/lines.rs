//! Messages as JSON, with the keys that etcd's have: `level`, `ts`, `caller`, `logger`, `msg`, and one for each field.

use std::fmt::{self, Debug};

use serde_json::Value;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Writes an object a line.
#[derive(Clone, Copy, Debug)]
pub struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut ts = String::new();
        SystemTime.format_time(&mut Writer::new(&mut ts))?;
        let mut object = Object(String::from("{"));
        object.add("level", metadata.level().as_str().to_ascii_lowercase());
        object.add("ts", ts);
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            object.add("caller", format!("{}:{line}", last_two(file)));
        }
        object.add("logger", metadata.target());
        event.record(&mut object);
        writeln!(writer, "{}}}", object.0)
    }
}

/// The file and the folder that it is in.
fn last_two(path: &str) -> &str {
    path.rmatch_indices('/').nth(1).map_or(path, |(slash, _)| &path[slash + 1..])
}

/// An object that is not closed yet.
struct Object(String);

impl Object {
    fn add(&mut self, key: &str, value: impl Into<Value>) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        self.0 += &format!("{comma}{}:{}", Value::from(key), value.into());
    }

    fn add_field(&mut self, field: &Field, value: impl Into<Value>) {
        self.add(if field.name() == "message" { "msg" } else { field.name() }, value);
    }
}

impl Visit for Object {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add_field(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add_field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add_field(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add_field(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add_field(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_has_the_keys_of_etcds() {
        let written = Written::default();
        let to = written.clone();
        let subscriber =
            tracing_subscriber::fmt().event_format(Lines).with_writer(move || to.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(name = "a \"name\"", slot = 7_u64, place = %"here", led = true, "two\nlines");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut line: Value = serde_json::from_str(&text).expect("it is JSON");
        let members = line.as_object_mut().unwrap();
        let ts = members.remove("ts").unwrap();
        let ts = ts.as_str().unwrap();
        assert!(ts.len() == "2006-01-02T15:04:05.999999Z".len() && ts.ends_with('Z'), "{ts}");
        let caller = members.remove("caller").unwrap();
        assert!(caller.as_str().unwrap().starts_with("etcd/lines.rs:"), "{caller}");
        let logger = module_path!();
        let expected = serde_json::json!({
            "level": "warn", "logger": logger, "msg": "two\nlines", "name": "a \"name\"", "slot": 7, "place": "here",
            "led": true,
        });
        assert_eq!(line, expected);
    }
}
