//! Counts what a request contains before anything is built of it.
//!
//! An empty operation of a transaction takes two bytes in protobuf and three in JSON, and some hundred bytes once it is
//! decoded. So the bytes of a request bound neither the memory that it takes nor the time that it takes to be decoded,
//! on a thread that may be the protocol's. Both counts take no memory, and end where the bound is exceeded.
//!
//! The descriptors tell what a message may contain, so a new field of any request is counted as the others are.

use std::{collections::HashMap, sync::LazyLock};

use prost::{
    DecodeError,
    encoding::{WireType, decode_key, decode_varint},
};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind as Declared, MessageDescriptor};
use synod_grpc::Checks;
use synod_kv::{KvError, validate::Limits};
use tonic::Status;

use crate::{
    methods::{METHODS, Method, POOL},
    services::refusal,
    slow,
};

/// Fields of a request, those of all messages in it counted, unless its transactions may have more.
const FIELDS_MAX: usize = 64 << 10;
/// The longest operation and the longest comparison of a transaction have fewer fields.
const FIELDS_OF_OP: usize = 16;
/// A transaction has as many lists, each of as many elements as `--max-txn-ops` says.
const LISTS_OF_TXN: usize = 3;
/// The message whose lists that bounds.
const TXN: &str = "etcdserverpb.TxnRequest";
/// What a field takes once it is decoded, at most: an operation without fields of its own.
const FIELD_BYTES: u64 = 256;
/// As many fields cost no more than what every request is charged.
const FREE_FIELDS: u64 = 16;
/// A body of fewer bytes cannot have many.
const FREE_BYTES: usize = 256;
/// `prost` decodes messages as deep.
const DEPTH_MAX: usize = 100;

/// The bounds on a request before it is decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub message_bytes_max: usize,
    /// Elements of the lists of one transaction, and of those of a transaction and all that are nested in it.
    txn_elements_max: usize,
    txn_elements_total_max: usize,
    fields_max: usize,
}

impl Bounds {
    pub(crate) fn new(limits: &Limits, message_bytes_max: usize) -> Bounds {
        let txn_elements_max = limits.txn_ops_max.saturating_mul(LISTS_OF_TXN);
        let fields_max = txn_elements_max.saturating_mul(FIELDS_OF_OP).max(FIELDS_MAX);
        let txn_elements_total_max = limits.txn_ops_total_max();
        Bounds { message_bytes_max, txn_elements_max, txn_elements_total_max, fields_max }
    }

    /// Those on the messages of this method.
    pub(crate) fn of(self, method: &Method) -> Asked {
        Asked { bounds: self, shape: Shape::asked_by(method) }
    }

    /// Counts the fields of a message, and returns how many bytes it takes beyond what every request is charged.
    ///
    /// # Errors
    /// They are too many, or the message ends within one.
    pub(crate) fn cost(&self, message: &[u8], shape: &Shape) -> Result<u64, Status> {
        if message.len() < FREE_BYTES {
            return Ok(0);
        }
        let mut left = Left { fields: self.fields_max, txn_elements: self.txn_elements_total_max };
        self.count(message, shape, &mut left, DEPTH_MAX)?;
        let fields = (self.fields_max - left.fields) as u64;
        Ok(fields.saturating_sub(FREE_FIELDS) * FIELD_BYTES)
    }

    fn count(&self, mut message: &[u8], shape: &Shape, left: &mut Left, depth: usize) -> Result<(), Status> {
        let mut elements = 0;
        while !message.is_empty() {
            let (number, value) = next(&mut message).ok_or_else(cut_off)?;
            let field = shape.field(number);
            let is_list = field.is_some_and(|field| field.is_list);
            let count = match (field.map(|field| &field.kind), &value) {
                (Some(Kind::String | Kind::Bytes | Kind::Message(_)) | None, _) | (_, Value::Number(_)) => 1,
                // Numbers of a list are packed: each ends with a byte whose first bit is not set.
                (_, Value::Bytes(packed)) => packed.iter().filter(|byte| **byte < 0x80).count().max(1),
            };
            left.fields = left.fields.checked_sub(count).ok_or_else(|| too_many_fields(self.fields_max))?;
            if is_list && shape.is_txn {
                let too_many = || refusal(&KvError::TooManyOps);
                elements += count;
                if elements > self.txn_elements_max {
                    return Err(too_many());
                }
                left.txn_elements = left.txn_elements.checked_sub(count).ok_or_else(too_many)?;
            }
            if let (Some(Field { kind: Kind::Message(inner), .. }), Value::Bytes(bytes)) = (field, value)
                && depth > 0
            {
                self.count(bytes, &SHAPES.all[*inner], left, depth - 1)?;
            }
        }
        Ok(())
    }

    /// Counts the values of a text of JSON, in objects and lists, and returns how many bytes its message takes while it
    /// is translated. They may be some more than there are: each follows one of three characters.
    ///
    /// # Errors
    /// They are too many.
    pub(crate) fn cost_of_json(&self, text: &[u8]) -> Result<u64, Status> {
        let values = values(text, self.fields_max).ok_or_else(|| too_many_fields(self.fields_max))?;
        Ok(values as u64 * VALUE_BYTES)
    }
}

/// The bounds on the messages of one method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    bounds: Bounds,
    shape: &'static Shape,
}

pub(crate) type RequestBody<'a> = synod_grpc::RequestBody<'a, Asked>;
pub(crate) type ClientMessages<'a> = synod_grpc::ClientMessages<'a, Asked>;

impl Checks for Asked {
    fn bytes_max(&self) -> usize {
        self.bounds.message_bytes_max
    }

    fn came(&self, bytes: usize) {
        slow::note(|account| account.came(bytes));
    }

    fn cost(&self, message: &[u8]) -> Result<u64, Status> {
        self.bounds.cost(message, self.shape)
    }

    fn undecoded(&self, error: &DecodeError) -> Option<Status> {
        // In a request only transactions are nested.
        let is_too_deep = error.to_string().contains("recursion limit");
        is_too_deep.then(|| refusal(&KvError::NestedTooDeeply))
    }
}

/// What a message may have besides what was counted.
struct Left {
    fields: usize,
    txn_elements: usize,
}

/// What a value of JSON takes while it is translated: `prost-reflect` makes a node of a B-tree for each message, and a
/// message takes two values, but for an empty one.
pub(crate) const VALUE_BYTES: u64 = 640;

/// How many values a text of JSON has at most, unless these are more than `max`.
fn values(text: &[u8], max: usize) -> Option<usize> {
    let (mut values, mut bytes) = (0, text.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' | b',' => {
                values += 1;
                if values > max {
                    return None;
                }
            }
            b'"' => loop {
                match bytes.next() {
                    // The next byte is escaped.
                    Some(b'\\') => drop(bytes.next()),
                    Some(b'"') | None => break,
                    Some(_) => {}
                }
            },
            _ => {}
        }
    }
    Some(values)
}

fn too_many_fields(max: usize) -> Status {
    Status::resource_exhausted(format!(
        "synod: a request has {max} fields at most, those of all messages in it counted; send several"
    ))
}

fn cut_off() -> Status {
    Status::internal("malformed request: it ends within a field, or has a group")
}

/// The value of a field, as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes the next field from the bytes of a message: its number and its value. `None`: they are none, or a group, which
/// no message has.
pub(crate) fn next<'a>(rest: &mut &'a [u8]) -> Option<(u32, Value<'a>)> {
    let (number, wire) = decode_key(rest).ok()?;
    let value = match wire {
        WireType::Varint => Value::Number(decode_varint(rest).ok()?),
        WireType::LengthDelimited => {
            let len = usize::try_from(decode_varint(rest).ok()?).ok()?;
            let (bytes, after) = rest.split_at_checked(len)?;
            *rest = after;
            Value::Bytes(bytes)
        }
        WireType::ThirtyTwoBit => {
            let (bytes, after) = rest.split_first_chunk()?;
            *rest = after;
            Value::Number(u32::from_le_bytes(*bytes).into())
        }
        WireType::SixtyFourBit => {
            let (bytes, after) = rest.split_first_chunk()?;
            *rest = after;
            Value::Number(u64::from_le_bytes(*bytes))
        }
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    Some((number, value))
}

/// What a message may contain.
#[derive(Debug)]
pub(crate) struct Shape {
    /// In the order of their numbers.
    pub fields: Vec<Field>,
    is_txn: bool,
}

/// A field of a message.
#[derive(Debug)]
pub(crate) struct Field {
    pub number: u32,
    pub name: String,
    pub is_list: bool,
    pub is_map: bool,
    /// Whether it is there although it has its default.
    pub has_presence: bool,
    pub kind: Kind,
}

/// The values of a field. The numbers of floating point and those with other encodings are in no message.
#[derive(Debug)]
pub(crate) enum Kind {
    Bool,
    I32,
    U32,
    I64,
    U64,
    Enum(EnumDescriptor),
    String,
    Bytes,
    /// A message of this place in [`Shapes::all`].
    Message(usize),
}

impl Shape {
    pub(crate) fn field(&self, number: u32) -> Option<&Field> {
        let place = self.fields.binary_search_by_key(&number, |field| field.number);
        place.ok().map(|place| &self.fields[place])
    }

    /// The shape of a message.
    pub(crate) fn of(message: &MessageDescriptor) -> &'static Shape {
        Shape::named(message.full_name())
    }

    /// The shape of the message of this name, with that of its package.
    pub(crate) fn named(message: &str) -> &'static Shape {
        &SHAPES.all[SHAPES.messages[message]]
    }

    /// The shape of the requests of a method; one without fields if nothing describes it.
    fn asked_by(method: &Method) -> &'static Shape {
        static NONE: Shape = Shape { fields: Vec::new(), is_txn: false };
        SHAPES.requests[method.handler as usize].map_or(&NONE, |place| &SHAPES.all[place])
    }

    /// The shape of the messages of a field.
    pub(crate) fn inner(place: usize) -> &'static Shape {
        &SHAPES.all[place]
    }
}

/// The shapes of all messages.
struct Shapes {
    all: Vec<Shape>,
    /// By the full names of messages.
    messages: HashMap<String, usize>,
    /// By the rows of the methods.
    requests: Vec<Option<usize>>,
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
    let places = POOL.all_messages().enumerate();
    let messages: HashMap<_, _> =
        places.map(|(place, message)| (message.full_name().to_owned(), place)).collect();
    let shape = |message: MessageDescriptor| {
        let mut fields: Vec<_> = message.fields().map(|field| Field::new(&field, &messages)).collect();
        fields.sort_by_key(|field| field.number);
        Shape { fields, is_txn: message.full_name() == TXN }
    };
    let all = POOL.all_messages().map(shape).collect();
    let asked = |method: &Method| method.descriptor().map(|found| messages[found.input().full_name()]);
    let requests = METHODS.iter().map(asked).collect();
    Shapes { all, messages, requests }
});

impl Field {
    fn new(field: &FieldDescriptor, messages: &HashMap<String, usize>) -> Field {
        let kind = match field.kind() {
            Declared::Bool => Kind::Bool,
            Declared::Int32 => Kind::I32,
            Declared::Uint32 => Kind::U32,
            Declared::Int64 => Kind::I64,
            Declared::Uint64 => Kind::U64,
            Declared::Enum(kind) => Kind::Enum(kind),
            Declared::String => Kind::String,
            Declared::Bytes => Kind::Bytes,
            Declared::Message(message) => Kind::Message(messages[message.full_name()]),
            other => panic!("{} is of a kind that no message has: {other:?}", field.full_name()),
        };
        Field {
            number: field.number(),
            name: field.name().to_owned(),
            is_list: field.is_list(),
            is_map: field.is_map(),
            has_presence: field.supports_presence(),
            kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use synod_api::{
        etcdserverpb::{Compare, MemberAddRequest, PutRequest, RequestOp, TxnRequest, request_op::Request},
        synod::v1::{KvCommand, KvLeaseRenew, KvQuery, kv_command::Command, kv_query::Query},
    };
    use tonic::Code;

    use super::*;
    use crate::methods::Handler;

    const BOUNDS: Bounds = Bounds {
        message_bytes_max: 1 << 20,
        txn_elements_max: 3 * 128,
        txn_elements_total_max: 2048,
        fields_max: FIELDS_MAX,
    };

    fn cost(message: &impl prost::Message, name: &str) -> Result<u64, Status> {
        BOUNDS.cost(&message.encode_to_vec(), Shape::named(name))
    }

    fn ops(count: usize) -> TxnRequest {
        TxnRequest { success: vec![RequestOp::default(); count], ..TxnRequest::default() }
    }

    #[test]
    fn the_elements_of_a_transaction_are_counted_where_it_is_nested_too() {
        assert!(cost(&ops(3 * 128), TXN).is_ok());
        let refused = cost(&ops(3 * 128 + 1), TXN).unwrap_err();
        assert_eq!(refused.message(), refusal(&KvError::TooManyOps).message());
        let within = |inner| TxnRequest {
            failure: vec![RequestOp { request: Some(Request::RequestTxn(inner)) }],
            ..TxnRequest::default()
        };
        assert!(cost(&within(within(ops(3 * 128))), TXN).is_ok());
        assert_eq!(cost(&within(within(ops(1000))), TXN).unwrap_err().code(), refused.code());
        let command = |txn| KvCommand { command: Some(Command::Txn(txn)), ..KvCommand::default() };
        assert!(cost(&command(ops(300)), "synod.v1.KvCommand").is_ok());
        assert!(cost(&command(ops(1000)), "synod.v1.KvCommand").is_err());
        let mixed = TxnRequest { compare: vec![Compare::default(); 200], ..ops(200) };
        assert!(cost(&mixed, TXN).is_err());
    }

    #[test]
    fn the_elements_of_all_nested_transactions_are_counted_together() {
        let wide = |inner: TxnRequest, width| TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestTxn(inner)) }; width],
            ..TxnRequest::default()
        };
        assert_eq!(Bounds::new(&Limits::default(), 0).txn_elements_total_max, 2048);
        assert!(cost(&wide(ops(63), 32), TXN).is_ok());
        let refused = cost(&wide(ops(64), 32), TXN).unwrap_err();
        assert_eq!(refused.message(), refusal(&KvError::TooManyOps).message());
        let query = KvQuery { query: Some(Query::Txn(wide(ops(64), 32))), ..KvQuery::default() };
        assert_eq!(cost(&query, "synod.v1.KvQuery").unwrap_err().message(), refused.message());
    }

    #[test]
    fn fields_of_any_message_are_counted() {
        let urls = |count| MemberAddRequest { peer_ur_ls: vec![String::new(); count], is_learner: false };
        let add = "etcdserverpb.MemberAddRequest";
        assert_eq!(cost(&urls(1000), add).unwrap(), (1000 - FREE_FIELDS) * FIELD_BYTES);
        assert_eq!(cost(&urls(FIELDS_MAX + 1), add).unwrap_err().code(), Code::ResourceExhausted);
        // Numbers are packed.
        let renew = |count| KvCommand {
            command: Some(Command::LeaseRenew(KvLeaseRenew { ids: vec![300; count] })),
            ..KvCommand::default()
        };
        let command = "synod.v1.KvCommand";
        assert_eq!(cost(&renew(1000), command).unwrap(), (1001 - FREE_FIELDS) * FIELD_BYTES);
        assert!(cost(&renew(FIELDS_MAX), command).is_err());
        // So are fields that no message has.
        let unknown = b"\xf8\x01\x00".repeat(FIELDS_MAX + 1);
        assert!(BOUNDS.cost(&unknown, Shape::named(TXN)).is_err());
        let put = PutRequest { key: "k".into(), value: vec![7; 1 << 20].into(), ..PutRequest::default() };
        assert_eq!(cost(&put, "etcdserverpb.PutRequest").unwrap(), 0);
        let cut = &put.encode_to_vec()[..1000];
        assert_eq!(
            BOUNDS.cost(cut, Shape::named("etcdserverpb.PutRequest")).unwrap_err().code(),
            Code::Internal
        );
    }

    #[test]
    fn every_call_has_its_shape() {
        let put = Shape::asked_by(Handler::Put.method());
        assert!(std::ptr::eq(put, Shape::named("etcdserverpb.PutRequest")));
        assert!(Shape::asked_by(Handler::ReflectAlpha.method()).fields.is_empty());
        assert!(Shape::named(TXN).is_txn);
    }

    #[test]
    fn values_of_json_are_counted_outside_of_texts() {
        assert_eq!(values(br#"{"a":[1,2,{"b":3}],"c":"{[,\",,"}"#, 100), Some(6));
        assert_eq!(values(b"", 0), Some(0));
        assert_eq!(values(b"[,,,", 4), Some(4));
        assert_eq!(values(b"[,,,", 3), None);
        // Not even JSON.
        assert_eq!(values(br#""\"#, 3), Some(0));
    }
}
