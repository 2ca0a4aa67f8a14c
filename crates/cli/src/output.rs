//! Prints answers.

use std::{
    env, fmt,
    io::{self, IsTerminal, Write},
    panic, process,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::ValueEnum;
use comfy_table::{Row, Table, presets};
use serde_json::{Map, Value};

use crate::failure::Failure;

/// The forms of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines for people and shell scripts, as etcdctl prints them.
    Simple,
    /// One JSON object with etcdctl's names; keys and values are in base64.
    Json,
    /// A table for people.
    Table,
    /// A table with more columns, where there are more.
    Wide,
}

/// Writes to standard output. A reader that has closed it is no failure.
pub fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Ends the program quietly when the reader has closed standard output, as `head` does: some commands print
/// while they run, from several threads.
pub fn end_with_reader() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to std") && said.contains("Broken pipe") {
            process::exit(0);
        }
        usual(panic);
    }));
}

/// Writes a line of JSON to standard output.
pub fn print_json(value: &Value) -> Result<(), Failure> {
    print(format!("{value}\n").as_bytes())
}

/// Prints an answer that is a line or two in all formats but JSON.
pub fn answer(format: Format, text: impl fmt::Display, fields: &Value) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(fields),
        _ => print(format!("{text}\n").as_bytes()),
    }
}

/// The emphasis of a line on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emphasis {
    None,
    /// Something lags or is missing: yellow.
    Warning,
    /// Something does not answer: red.
    Alarm,
}

/// Whether standard output shows colours: on a terminal, unless NO_COLOR says otherwise (<https://no-color.org>).
pub fn colours() -> bool {
    let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && env::var_os("TERM").is_none_or(|kind| kind != "dumb") && io::stdout().is_terminal()
}

/// Paints the rows of a [`table`], in their order.
pub fn paint(table: &str, rows: &[Emphasis]) -> String {
    // Above the rows there are a border, the head, and a border.
    let emphases = [Emphasis::None; 3].iter().chain(rows).chain(std::iter::repeat(&Emphasis::None));
    let lines = table.lines().zip(emphases).map(|(line, emphasis)| match emphasis {
        Emphasis::None => format!("{line}\n"),
        Emphasis::Warning => format!("\x1b[33m{line}\x1b[0m\n"),
        Emphasis::Alarm => format!("\x1b[31m{line}\x1b[0m\n"),
    });
    lines.collect()
}

/// A table with this head.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    grid(head, rows)
}

/// A table whose number of columns is not known before.
pub fn grid<H: Into<Row>, R: Into<Row>>(head: H, rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_FULL_CONDENSED).set_header(head);
    rows.into_iter().for_each(|row| _ = table.add_row(row));
    format!("{table}\n")
}

/// The columns of a terminal, and of the names of entries.
const COLUMNS: usize = 80;
const NAMES: usize = 12;

/// A name and what is told of it, in as many lines as that takes.
pub fn entry(name: &str, what: &str) -> String {
    let mut text = format!("{name:<NAMES$}");
    let mut column = NAMES;
    for word in what.split(' ') {
        let length = word.chars().count();
        if column > NAMES && column + 1 + length > COLUMNS {
            text.push('\n');
            text += &" ".repeat(NAMES);
            column = NAMES;
        }
        if column > NAMES {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text.push('\n');
    text
}

/// An object without the fields that are at their defaults, as etcdctl leaves them out.
pub fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let is_default = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(_) => false,
    };
    let kept = fields.into_iter().filter(|(_, value)| !is_default(value));
    Value::Object(kept.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// Bytes in base64, since JSON cannot hold them.
pub fn base64(bytes: &[u8]) -> Value {
    Value::String(STANDARD.encode(bytes))
}

/// A number of bytes for people.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let exponent = (self.0.ilog2() / 10).min(4);
        let value = self.0 as f64 / f64::from(exponent * 10).exp2();
        write!(f, "{value:.1} {}", UNITS[exponent as usize - 1])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_rows_of_a_table_are_painted_and_nothing_else() {
        let plain = table(["A"], [["one".to_owned()], ["two".to_owned()], ["three".to_owned()]]);
        let painted = paint(&plain, &[Emphasis::None, Emphasis::Alarm, Emphasis::Warning]);
        let lines: Vec<_> = painted.lines().collect();
        assert_eq!(lines[3..6], ["| one   |", "\x1b[31m| two   |\x1b[0m", "\x1b[33m| three |\x1b[0m"]);
        assert_eq!(painted.replace("\x1b[31m", "").replace("\x1b[33m", "").replace("\x1b[0m", ""), plain);
    }

    #[test]
    fn entries_are_broken_between_words() {
        assert_eq!(entry("Log", "busy"), "Log         busy\n");
        let long = entry("Log", &"word ".repeat(30));
        assert!(long.lines().count() == 3 && long.lines().all(|line| line.len() <= COLUMNS), "{long}");
        assert!(long.lines().skip(1).all(|line| line.starts_with("            word")), "{long}");
    }

    #[test]
    fn sizes_for_people() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!([text(0), text(1023), text(1024), text(3 << 19)], ["0 B", "1023 B", "1.0 KiB", "1.5 MiB"]);
        assert_eq!(text(5 << 50), "5120.0 TiB");
    }

    #[test]
    fn what_is_at_its_default_is_left_out() {
        let fields =
            [("a", json!(0)), ("b", json!(1)), ("c", json!("")), ("d", json!(false)), ("e", json!([]))];
        assert_eq!(object(fields).to_string(), r#"{"b":1}"#);
    }
}
