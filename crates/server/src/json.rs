//! Answers as JSON, written piece by piece from the bytes of their messages.
//!
//! A message that is decoded to be translated takes a hundred times what its bytes take. So it is not decoded: its
//! fields are found where they lie, and what is in memory is the message, a piece of JSON, and the way to the place in
//! the message where the next piece begins. Names are those of the protocol files, and a field that has its default is
//! left out, as with etcd.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use prost::encoding::decode_varint;

use crate::fields::{Field, Kind, Shape, Value, next};

/// Bytes of a piece. One that ends with a long value has more.
const PIECE_BYTES: usize = 64 << 10;

/// The pieces of a message as JSON. The message must be [whole](is_whole).
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Messages of which a part is written, each within the one before.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    message: Bytes,
    shape: &'static Shape,
    /// The place of the field that is written now, and where in the message more of its values may be.
    field: usize,
    at: usize,
    /// How many of its values are written.
    values: usize,
    /// Whether a field is written.
    begun: bool,
}

/// Whether these bytes are such a message.
pub(crate) fn is_whole(mut message: &[u8], shape: &Shape) -> bool {
    while !message.is_empty() {
        let Some((number, value)) = next(&mut message) else { return false };
        let is_right = match (shape.field(number).map(|field| &field.kind), value) {
            (Some(Kind::Message(inner)), Value::Bytes(bytes)) => is_whole(bytes, Shape::inner(*inner)),
            (Some(Kind::String), Value::Bytes(bytes)) => str::from_utf8(bytes).is_ok(),
            (Some(Kind::Message(_) | Kind::String | Kind::Bytes), Value::Number(_)) => false,
            _ => true,
        };
        if !is_right {
            return false;
        }
    }
    true
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut text = String::new();
        while text.len() < PIECE_BYTES && !self.open.is_empty() {
            self.step(&mut text);
        }
        (!text.is_empty()).then(|| text.into())
    }
}

impl Pieces {
    pub(crate) fn new(message: Bytes, shape: &'static Shape) -> Pieces {
        Pieces { open: vec![Open::new(message, shape)] }
    }

    /// Writes the next value, or ends a field or a message.
    fn step(&mut self, text: &mut String) {
        let Some(open) = self.open.last_mut() else { return };
        let Some(field) = open.shape.fields.get(open.field) else {
            text.push_str(if open.begun { "}" } else { "{}" });
            self.open.pop();
            return;
        };
        let message = open.message.clone();
        let Some(value) = value(&message, &mut open.at, field) else {
            match field {
                _ if open.values == 0 => {}
                Field { is_list: true, .. } => text.push(']'),
                Field { is_map: true, .. } => text.push('}'),
                _ => {}
            }
            (open.field, open.at, open.values) = (open.field + 1, 0, 0);
            return;
        };
        if open.values > 0 {
            text.push(',');
        } else {
            text.push(if open.begun { ',' } else { '{' });
            open.begun = true;
            *text += &format!("\"{}\":", field.name);
            match field {
                Field { is_list: true, .. } => text.push('['),
                Field { is_map: true, .. } => text.push('{'),
                _ => {}
            }
        }
        open.values += 1;
        if !field.is_map {
            return self.write(field, value, &message, text);
        }
        // A pair of a map is a message of two fields.
        let (Kind::Message(pair), Value::Bytes(bytes)) = (&field.kind, value) else { return };
        let [key, of_key] = &Shape::inner(*pair).fields[..] else { return };
        let key = self::value(bytes, &mut 0, key);
        let key = match key {
            Some(Value::Bytes(key)) => String::from_utf8_lossy(key).into_owned(),
            Some(Value::Number(key)) => key.to_string(),
            None => String::new(),
        };
        *text += &quoted(&key);
        text.push(':');
        let none = Value::Bytes(&[]);
        self.write(of_key, self::value(bytes, &mut 0, of_key).unwrap_or(none), &message, text);
    }

    /// Writes a value, or opens it if it is a message.
    fn write(&mut self, field: &Field, value: Value<'_>, message: &Bytes, text: &mut String) {
        match (&field.kind, value) {
            (Kind::Message(inner), Value::Bytes(bytes)) => {
                self.open.push(Open::new(message.slice_ref(bytes), Shape::inner(*inner)));
            }
            (Kind::String, Value::Bytes(bytes)) => *text += &quoted(&String::from_utf8_lossy(bytes)),
            (Kind::Bytes, Value::Bytes(bytes)) => {
                text.push('"');
                STANDARD.encode_string(bytes, text);
                text.push('"');
            }
            (kind, Value::Number(value)) => number(kind, value, text),
            // Numbers of a list that are packed.
            (kind, Value::Bytes(packed)) => {
                let mut rest = packed;
                while let Ok(value) = decode_varint(&mut rest) {
                    number(kind, value, text);
                    if !rest.is_empty() {
                        text.push(',');
                    }
                }
            }
        }
    }
}

impl Open {
    fn new(message: Bytes, shape: &'static Shape) -> Open {
        Open { message, shape, field: 0, at: 0, values: 0, begun: false }
    }
}

/// Looks for the next value of a field from a place in a message on: in a list the next one there is, and otherwise the
/// last one, which counts.
fn value<'a>(message: &'a [u8], at: &mut usize, field: &Field) -> Option<Value<'a>> {
    let mut found = None;
    while *at < message.len() {
        let mut rest = &message[*at..];
        let (number, value) = next(&mut rest)?;
        *at = message.len() - rest.len();
        if number == field.number {
            if field.is_list || field.is_map {
                return Some(value);
            }
            found = Some(value);
        }
    }
    found.filter(|value| field.has_presence || !matches!(value, Value::Number(0) | Value::Bytes([])))
}

/// Numbers of 64 bits are texts, since those of JavaScript have fewer.
fn number(kind: &Kind, value: u64, text: &mut String) {
    *text += &match kind {
        Kind::Bool => (value != 0).to_string(),
        // The numbers of the wire that are longer are cut off, as protobuf has it.
        Kind::I32 => (value as i32).to_string(),
        Kind::U32 => (value as u32).to_string(),
        Kind::I64 => format!("\"{}\"", value as i64),
        Kind::U64 => format!("\"{value}\""),
        Kind::Enum(names) => match names.get_value(value as i32) {
            Some(name) => format!("\"{}\"", name.name()),
            None => (value as i32).to_string(),
        },
        Kind::String | Kind::Bytes | Kind::Message(_) => return,
    };
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;
    use prost::Message as _;
    use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
    use synod_api::{
        etcdserverpb::{RangeResponse, TxnResponse},
        mvccpb::KeyValue,
    };

    use super::*;
    use crate::methods::POOL;

    fn written(message: &[u8], name: &str) -> String {
        let (message, shape) = (Bytes::copy_from_slice(message), Shape::named(name));
        assert!(is_whole(&message, shape));
        let pieces = Pieces::new(message, shape).map(|piece| String::from_utf8(piece.into()).unwrap());
        pieces.collect()
    }

    /// The same by way of a message that is decoded.
    fn reflected(message: &[u8], descriptor: &MessageDescriptor) -> String {
        let message = DynamicMessage::decode(descriptor.clone(), message).unwrap();
        let mut text = serde_json::Serializer::new(Vec::new());
        let options = SerializeOptions::new().use_proto_field_name(true);
        message.serialize_with_options(&mut text, &options).unwrap();
        String::from_utf8(text.into_inner()).unwrap()
    }

    /// A message at random, each field at most once unless it is a list.
    fn random(rng: &mut Rng, descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
        use prost_reflect::{Kind, MapKey, Value};
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            if rng.bool() {
                continue;
            }
            let one = |rng: &mut Rng| match field.kind() {
                Kind::Bool => Value::Bool(rng.bool()),
                Kind::Int32 => Value::I32(rng.i32(-2..3)),
                Kind::Uint32 => Value::U32(rng.u32(..3)),
                Kind::Int64 => Value::I64(rng.choice([0, -1, 300, i64::MIN, i64::MAX]).unwrap()),
                Kind::Uint64 => Value::U64(rng.choice([0, 1, u64::MAX]).unwrap()),
                Kind::Enum(_) => Value::EnumNumber(rng.i32(-1..4)),
                Kind::String => Value::String(["", "a", "\"\\\n\u{1}ü"][rng.usize(..3)].to_owned()),
                Kind::Bytes => Value::Bytes(vec![rng.u8(..); rng.usize(..5)].into()),
                Kind::Message(inner) if depth > 0 => Value::Message(random(rng, &inner, depth - 1)),
                Kind::Message(inner) => Value::Message(DynamicMessage::new(inner)),
                other => panic!("{other:?}"),
            };
            if field.is_list() {
                let values = (0..rng.usize(..4)).map(|_| one(rng)).collect();
                message.set_field(&field, Value::List(values));
            } else if field.is_map() {
                let Kind::Message(pair) = field.kind() else { unreachable!() };
                let Kind::Message(inner) = pair.map_entry_value_field().kind() else { continue };
                let value = Value::Message(random(rng, &inner, 1));
                let map = [(MapKey::String("k\"".to_owned()), value)].into_iter().collect();
                message.set_field(&field, Value::Map(map));
            } else {
                let value = one(rng);
                message.set_field(&field, value);
            }
        }
        message
    }

    #[test]
    fn any_message_is_written_as_one_that_is_decoded() {
        let mut rng = Rng::with_seed(7);
        for descriptor in POOL.all_messages().filter(|message| !message.is_map_entry()) {
            for _ in 0..50 {
                let message = random(&mut rng, &descriptor, 3).encode_to_vec();
                let name = descriptor.full_name();
                assert_eq!(written(&message, name), reflected(&message, &descriptor), "{name}");
            }
        }
    }

    #[test]
    fn a_large_message_comes_in_pieces() {
        let kv = |number: i64| KeyValue { key: "k".into(), mod_revision: number, ..KeyValue::default() };
        let response = RangeResponse { kvs: (1..10_000).map(kv).collect(), ..RangeResponse::default() };
        let shape = Shape::named("etcdserverpb.RangeResponse");
        let pieces: Vec<_> = Pieces::new(response.encode_to_vec().into(), shape).collect();
        assert!(pieces.len() > 5 && pieces.iter().all(|piece| piece.len() < 2 * PIECE_BYTES));
        let all: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
        assert_eq!(all["kvs"][9_998]["mod_revision"], "9999");
        assert_eq!(written(&TxnResponse::default().encode_to_vec(), "etcdserverpb.TxnResponse"), "{}");
    }

    #[test]
    fn what_is_no_message_is_found_out() {
        let shape = Shape::named("mvccpb.KeyValue");
        assert!(is_whole(b"\x0a\x01k", shape));
        for wrong in [&b"\x0a\x02k"[..], b"\x0a", b"\x08\x01", b"\x0b"] {
            assert!(!is_whole(wrong, shape), "{wrong:?}");
        }
        assert!(is_whole(b"\x0a\x01\xff", shape), "a key may have any bytes");
        assert!(!is_whole(b"\x12\x01\xff", Shape::named("etcdserverpb.Member")), "a name may not");
    }
}
