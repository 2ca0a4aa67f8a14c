//! Transactions as etcdctl's `txn` reads them: three lists, each ended by an empty line.
//!
//! ```text
//! mod("city") > "0"          what must hold:    mod, create, version, value  (key)  =, !=, <, >  "text or number"
//! value("state") = "open"
//!
//! put city "Lausanne"        if all of it does: put, get and del with the flags of those commands
//! get state
//!
//! del city                   otherwise
//! ```

use std::io::{self, BufRead, Write};

use bytes::Bytes;
use clap::{Parser, Subcommand};
use synod_client::api::{
    Compare, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
};

use super::ops::{DelOp, GetOp, PutOp};

/// Reads a transaction; `prompt` tells a person what to type next.
pub fn read<'a>(
    input: &'a mut impl BufRead,
    prompt: Option<&'a mut dyn Write>,
) -> Result<TxnRequest, String> {
    let mut lines = Lines { input, prompt, number: 0 };
    Ok(TxnRequest {
        compare: lines.list("compares:", compare)?,
        success: lines.list("success requests (get, put, del):", operation)?,
        failure: lines.list("failure requests (get, put, del):", operation)?,
    })
}

struct Lines<'a, R> {
    input: &'a mut R,
    prompt: Option<&'a mut dyn Write>,
    number: usize,
}

impl<R: BufRead> Lines<'_, R> {
    fn list<T>(&mut self, title: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        let unreadable = |error: io::Error| format!("the transaction cannot be read: {error}");
        if let Some(prompt) = &mut self.prompt {
            writeln!(prompt, "{title}").and_then(|()| prompt.flush()).map_err(unreadable)?;
        }
        let mut list = Vec::new();
        loop {
            let mut line = String::new();
            let read = self.input.read_line(&mut line).map_err(unreadable)?;
            self.number += 1;
            if read == 0 || line.trim().is_empty() {
                return Ok(list);
            }
            list.push(parse(line.trim()).map_err(|why| format!("line {}: {why}", self.number))?);
        }
    }
}

/// Reads `mod("key") > "0"`.
fn compare(line: &str) -> Result<Compare, String> {
    let wrong = || {
        format!(
            "'{line}' is not a comparison; accepted: mod(\"key\"), create(..), version(..) or value(..), then \
             =, !=, < or >, then a \"number\" or \"text\""
        )
    };
    let (target, rest) = line.split_once('(').ok_or_else(wrong)?;
    let (key, rest) = word_before(rest, ')').ok_or_else(wrong)?;
    let rest = rest.trim_start();
    let (result, rest) = [
        ("!=", CompareResult::NotEqual),
        ("=", CompareResult::Equal),
        ("<", CompareResult::Less),
        (">", CompareResult::Greater),
    ]
    .into_iter()
    .find_map(|(sign, result)| Some((result, rest.strip_prefix(sign)?)))
    .ok_or_else(wrong)?;
    let [value] = <[Bytes; 1]>::try_from(words(rest).map_err(|why| format!("{why} in '{line}'"))?)
        .map_err(|_| wrong())?;
    let number = || {
        let text = std::str::from_utf8(&value).ok();
        text.and_then(|text| text.parse::<i64>().ok()).ok_or_else(|| {
            format!("'{}' in '{line}' is not a number, which this comparison needs", value.escape_ascii())
        })
    };
    let (target, value) = match target.trim() {
        "ver" | "version" => (CompareTarget::Version, TargetUnion::Version(number()?)),
        "c" | "create" => (CompareTarget::Create, TargetUnion::CreateRevision(number()?)),
        "m" | "mod" => (CompareTarget::Mod, TargetUnion::ModRevision(number()?)),
        "val" | "value" => (CompareTarget::Value, TargetUnion::Value(value)),
        _ => return Err(wrong()),
    };
    Ok(Compare {
        result: result.into(),
        target: target.into(),
        key,
        target_union: Some(value),
        ..Compare::default()
    })
}

/// An operation of a transaction.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Debug, Subcommand)]
enum Operation {
    Put(PutOp),
    Get(GetOp),
    Del(DelOp),
}

/// Reads `put key "value"`, `get key --prefix`, `del key`.
fn operation(line: &str) -> Result<RequestOp, String> {
    let words = words(line).map_err(|why| format!("{why} in '{line}'"))?;
    // clap wants text; keys and values that are not text cannot be typed in a shell either.
    let words = words.iter().map(|word| String::from_utf8(word.to_vec()));
    let words = words.collect::<Result<Vec<_>, _>>().map_err(|_| format!("'{line}' is not UTF-8"))?;
    let parsed = Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        format!("'{line}': {first}; accepted: put KEY VALUE, get KEY, del KEY, and their flags")
    })?;
    let request = match parsed.operation {
        Operation::Put(put) => {
            let missing = || Err(format!("'{line}' has no value; accepted: put KEY VALUE"));
            Request::RequestPut(put.request(missing)?)
        }
        Operation::Get(get) => Request::RequestRange(get.request()),
        Operation::Del(del) => Request::RequestDeleteRange(del.request()),
    };
    Ok(RequestOp { request: Some(request) })
}

/// The word before `end`, which may be in quotes, and the text after `end`.
fn word_before(text: &str, end: char) -> Option<(Bytes, &str)> {
    let text = text.trim_start();
    match text.strip_prefix('"') {
        Some(quoted) => {
            let (word, rest) = unquote(quoted).ok()?;
            Some((word.into(), rest.trim_start().strip_prefix(end)?))
        }
        None => text.split_once(end).map(|(word, rest)| (word.trim().to_owned().into(), rest)),
    }
}

/// Splits a line as a shell does: at spaces, but for those in 'single' or "double" quotes.
fn words(line: &str) -> Result<Vec<Bytes>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let mut word = Vec::new();
        match first {
            '"' => (word, rest) = unquote(&rest[1..])?,
            '\'' => {
                let (text, after) = rest[1..].split_once('\'').ok_or("a ' has no end")?;
                word.extend_from_slice(text.as_bytes());
                rest = after;
            }
            _ => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                word.extend_from_slice(&rest.as_bytes()[..end]);
                rest = &rest[end..];
            }
        }
        if !rest.is_empty() && !rest.starts_with(char::is_whitespace) {
            return Err(format!("something follows a quote without a space: {rest}"));
        }
        words.push(word.into());
        rest = rest.trim_start();
    }
    Ok(words)
}

/// Reads up to the closing double quote. The text before it has escapes as in Go, C and Rust.
fn unquote(text: &str) -> Result<(Vec<u8>, &str), String> {
    let mut word = Vec::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((word, &text[at + 1..])),
            '\\' => {
                let (_, escape) = chars.next().ok_or("a \\ ends the line")?;
                let mut hex = |digits: usize| {
                    let code: String = chars.by_ref().take(digits).map(|(_, digit)| digit).collect();
                    let valid = code.len() == digits;
                    u32::from_str_radix(&code, 16)
                        .ok()
                        .filter(|_| valid)
                        .ok_or(format!("\\{escape}{code} is no escape"))
                };
                match escape {
                    'n' => word.push(b'\n'),
                    't' => word.push(b'\t'),
                    'r' => word.push(b'\r'),
                    '0' => word.push(0),
                    '\\' | '"' | '\'' => word.push(escape as u8),
                    'x' => word.push(u8::try_from(hex(2)?).expect("two digits are a byte")),
                    'u' => {
                        let code = hex(4)?;
                        let char = char::from_u32(code).ok_or(format!("\\u{code:04x} is no character"))?;
                        word.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    _ => return Err(format!("\\{escape} is no escape")),
                }
            }
            _ => word.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err("a \" has no end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TxnRequest, String> {
        read(&mut text.as_bytes(), None)
    }

    #[test]
    fn three_lists() {
        let text = "mod(\"key1\") > \"0\"\nvalue(k2) != \"a b\"\n\nput key1 \"over\\twrote\"\nget k --prefix\n\n\
                    put key1 'it is'\ndel key --prev-kv\n\n";
        let txn = parse(text).unwrap();
        assert_eq!(txn.compare.len(), 2);
        assert_eq!(txn.compare[0].key, "key1");
        assert_eq!(txn.compare[0].result(), CompareResult::Greater);
        assert_eq!(txn.compare[0].target_union, Some(TargetUnion::ModRevision(0)));
        assert_eq!(txn.compare[1].key, "k2");
        assert_eq!(txn.compare[1].target_union, Some(TargetUnion::Value("a b".into())));
        let Some(Request::RequestPut(put)) = &txn.success[0].request else { panic!("{txn:?}") };
        assert_eq!((&put.key[..], &put.value[..]), (&b"key1"[..], &b"over\twrote"[..]));
        let Some(Request::RequestRange(get)) = &txn.success[1].request else { panic!("{txn:?}") };
        assert_eq!(get.range_end, "l");
        let Some(Request::RequestPut(put)) = &txn.failure[0].request else { panic!("{txn:?}") };
        assert_eq!(put.value, "it is");
        let Some(Request::RequestDeleteRange(del)) = &txn.failure[1].request else { panic!("{txn:?}") };
        assert!(del.prev_kv);
    }

    #[test]
    fn lists_may_be_empty_and_the_end_of_input_ends_all() {
        let txn = parse("\nput a b").unwrap();
        assert_eq!((txn.compare.len(), txn.success.len(), txn.failure.len()), (0, 1, 0));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let cases = [
            ("modd(\"k\") = \"1\"", "line 1: 'modd(\"k\") = \"1\"' is not a comparison"),
            ("mod(\"k\") = \"x\"", "'x' in"),
            ("mod(\"k\") ~ \"1\"", "accepted: mod"),
            ("mod(\"k\")", "accepted: mod"),
            ("\nput a", "line 2: 'put a' has no value"),
            ("\nputt a b", "accepted: put KEY VALUE"),
            ("\nput a \"b", "has no end"),
            ("\nput a \"b\"c", "without a space"),
            ("\nput a \"\\q\"", "\\q is no escape"),
            ("\nget a b --prefix", "cannot be used with"),
        ];
        for (text, part) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error} should contain {part}");
        }
    }

    #[test]
    fn a_person_is_told_what_comes_next() {
        let mut said = Vec::new();
        read(&mut "\n\n\n".as_bytes(), Some(&mut said)).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(
            said.lines().collect::<Vec<_>>(),
            ["compares:", "success requests (get, put, del):", "failure requests (get, put, del):"]
        );
    }
}
