//! Putting a key, which is what most commands do.

use bytes::Bytes;
use synod_api::etcdserverpb::{AlarmType, PutRequest, PutResponse};

use crate::{
    KvError, KvStore,
    auth::Caller,
    budget::Budget,
    feed::Event,
    history::{History, Seen, Version},
    key::{Key, find, find_mut},
    store::{Writes, charge, header},
};

/// A put whose bytes belong to a message or to an encoded command. The fields are those of [`PutRequest`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Put<'a> {
    key: &'a [u8],
    value: &'a [u8],
    lease: i64,
    prev_kv: bool,
    ignore_value: bool,
    ignore_lease: bool,
}

impl<'a> From<&'a PutRequest> for Put<'a> {
    fn from(request: &'a PutRequest) -> Put<'a> {
        let PutRequest { ref key, ref value, lease, prev_kv, ignore_value, ignore_lease } = *request;
        Put { key, value, lease, prev_kv, ignore_value, ignore_lease }
    }
}

impl KvStore {
    /// Does what [`KvStore::execute`] does with the command that was read.
    pub(crate) fn execute_plain_put(&mut self, command: &PlainPut<'_>) -> Result<PutResponse, KvError> {
        self.show_view();
        self.clear_some();
        if self.has_alarm(AlarmType::Corrupt) {
            return Err(KvError::Corrupt);
        }
        let PlainPut { key, value, user, auth_revision, quota_bytes, member_id } = *command;
        let caller = Caller { user, revision: auth_revision, of_member: false };
        self.check_plain_put(&caller, key)?;
        self.claim_space(charge(key, value), quota_bytes, member_id)?;
        self.put(&Put { key, value, ..Put::default() }, &mut Budget::unbounded())
    }

    pub(crate) fn put(&mut self, put: &Put<'_>, budget: &mut Budget) -> Result<PutResponse, KvError> {
        self.check_put(put)?;
        let mut writes = self.begin();
        let response = self.write_put(&mut writes, put, budget)?;
        self.commit(writes);
        Ok(response)
    }

    /// Whether a put can be executed in the present state.
    pub(crate) fn check_put(&self, put: &Put<'_>) -> Result<(), KvError> {
        if put.lease != 0 && !self.leases.contains(put.lease) {
            return Err(KvError::LeaseNotFound);
        }
        let keeps = put.ignore_value || put.ignore_lease;
        if keeps && find(&self.keys, put.key).and_then(|(_, history)| history.live()).is_none() {
            return Err(KvError::KeyNotFound);
        }
        Ok(())
    }

    /// Executes a put that passed [`KvStore::check_put`].
    ///
    /// # Errors
    /// [`KvError::AnswerTooLarge`] if the answer has no room for the pair that the put replaces. Nothing is
    /// changed then; the caller undoes the other changes of its transaction.
    pub(crate) fn write_put(
        &mut self,
        writes: &mut Writes,
        put: &Put<'_>,
        budget: &mut Budget,
    ) -> Result<PutResponse, KvError> {
        // The store copies the value out of the command: a slice would keep the whole batch alive.
        let copied = || Bytes::copy_from_slice(put.value);
        let (modified, sub) = (writes.revision, writes.count);
        let mut prev_kv = None;
        let (key, size) = match find_mut(&mut self.keys, put.key) {
            Some((key, history)) => {
                let live = history.live();
                if let Some(live) = live.filter(|_| put.prev_kv) {
                    budget.answer(key, &live.value)?;
                    prev_kv = Some(live.to_key_value(key));
                }
                // A transaction may delete a key and then put it with `ignore_value`. The key keeps the value
                // it had before the transaction, since that is what was checked.
                let kept = || live.or_else(|| history.at(modified - 1));
                let value = if put.ignore_value {
                    kept().map(|version| version.value.to_bytes()).unwrap_or_default()
                } else {
                    copied()
                };
                let lease =
                    if put.ignore_lease { kept().map_or(0, |version| version.lease) } else { put.lease };
                let (created, version) = match live {
                    Some(live) => (live.created, live.version + 1),
                    None => (modified, 1),
                };
                self.leases.attach(key, live.map_or(0, |version| version.lease), lease);
                self.live_keys += u64::from(live.is_none());
                let size = charge(key, &value);
                let version = Version { modified, sub, created, version, lease, value };
                writes.event(|| Event::new(key, Seen::from(&version), Some(history)));
                history.push(version);
                (key.clone(), size)
            }
            None => {
                let key = Key::from(put.key);
                let value = copied();
                let size = charge(&key, &value);
                let first = Version { modified, sub, created: modified, version: 1, lease: put.lease, value };
                writes.event(|| Event::new(&key, Seen::from(&first), None));
                self.leases.attach(&key, 0, put.lease);
                self.keys.insert(key.clone(), History::new(first));
                self.live_keys += 1;
                (key, size)
            }
        };
        self.versions += 1;
        self.size_bytes += size;
        self.counted.puts += 1;
        self.record(writes, key);
        Ok(PutResponse { header: header(writes.revision), prev_kv })
    }
}

/// A command that puts a value and asks for nothing else, read in place. Nearly all commands are of this
/// kind, and decoding one into a message would count several references to its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainPut<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Empty if the server knew of no user.
    user: &'a str,
    auth_revision: u64,
    quota_bytes: u64,
    member_id: u64,
}

impl<'a> PlainPut<'a> {
    /// Reads an encoded `KvCommand`: `1 { 1 key 2 value } 11 user 12 auth_revision 14 quota_bytes 15 member_id`, each
    /// field in its place or absent. Returns `None` for any other encoding, which may still be a valid command.
    pub(crate) fn read(command: &'a [u8]) -> Option<PlainPut<'a>> {
        let mut command = Fields(command);
        let mut put = Fields(command.bytes(1)?.filter(|put| !put.is_empty())?);
        let user = std::str::from_utf8(command.bytes(11)?.unwrap_or_default()).ok()?;
        let auth_revision = command.varint(12)?;
        let quota_bytes = command.varint(14)?;
        let member_id = command.varint(15)?;
        let key = put.bytes(1)?.filter(|key| !key.is_empty())?;
        let value = put.bytes(2)?.unwrap_or_default();
        let nothing_else = command.0.is_empty() && put.0.is_empty();
        nothing_else.then_some(PlainPut { key, value, user, auth_revision, quota_bytes, member_id })
    }
}

/// The unread rest of an encoded message.
struct Fields<'a>(&'a [u8]);

/// Wire types.
const VARINT: u8 = 0;
const LENGTH_DELIMITED: u8 = 2;

impl<'a> Fields<'a> {
    /// Takes the tag of a field below 16 if it comes next.
    fn tag(&mut self, field: u8, wire_type: u8) -> bool {
        let rest = self.0.strip_prefix(&[field << 3 | wire_type]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// Takes the number in a field, 0 if another field comes next. `None` means that it cannot be read.
    fn varint(&mut self, field: u8) -> Option<u64> {
        if self.tag(field, VARINT) { self.number() } else { Some(0) }
    }

    /// Takes the bytes of a field, if it comes next. The outer `None` means that they cannot be read.
    fn bytes(&mut self, field: u8) -> Option<Option<&'a [u8]>> {
        if !self.tag(field, LENGTH_DELIMITED) {
            return Some(None);
        }
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Some(bytes))
    }

    /// Takes a varint: seven bits a byte, lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            if at == 9 && *byte > 1 {
                return None; // More than 64 bits.
            }
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use synod_api::synod::v1::{KvCommand, KvFailure, KvReply, kv_command::Command, kv_reply::Reply};
    use synod_replica::{Context, StateMachine};
    use synod_wire::Slot;

    use super::*;
    use crate::testing;

    fn random_put(random: &mut fastrand::Rng) -> KvCommand {
        let bytes = |random: &mut fastrand::Rng, max| -> Bytes {
            (0..random.usize(0..max)).map(|_| random.u8(..)).collect::<Vec<_>>().into()
        };
        let rarely = |random: &mut fastrand::Rng| random.u8(0..10) == 0;
        let put = PutRequest {
            key: bytes(random, 3),
            value: bytes(random, 300),
            lease: i64::from(rarely(random)),
            prev_kv: rarely(random),
            ignore_value: rarely(random),
            ignore_lease: rarely(random),
        };
        let number = |random: &mut fastrand::Rng| random.u64(..) >> random.u32(0..64);
        let quota_bytes = if random.bool() { 0 } else { number(random) };
        KvCommand {
            command: Some(Command::Put(put)),
            answer_bytes_max: if random.u8(0..8) == 0 { number(random) } else { 0 },
            user: if rarely(random) { "user".to_owned() } else { String::new() },
            auth_revision: if rarely(random) { number(random) } else { 0 },
            of_member: random.u8(0..20) == 0,
            quota_bytes,
            member_id: number(random),
        }
    }

    /// Executes a command by decoding it into a message.
    fn execute(store: &mut KvStore, command: &[u8]) -> Bytes {
        let reply = KvCommand::decode(command)
            .map_err(|_| KvError::Malformed("command"))
            .and_then(|command| store.execute(&command))
            .unwrap_or_else(|error| Reply::Error(KvFailure::from(&error)));
        KvReply { reply: Some(reply) }.encode_to_vec().into()
    }

    #[test]
    fn reading_in_place_gives_what_decoding_gives() {
        let mut random = fastrand::Rng::with_seed(11);
        let (mut one, mut other) = (KvStore::new(), KvStore::new());
        let mut plain = 0;
        for n in 0..20_000 {
            let mut command = random_put(&mut random).encode_to_vec();
            match random.u8(0..4) {
                0 if !command.is_empty() => {
                    let at = random.usize(..command.len());
                    command[at] = random.u8(..);
                }
                1 => command.truncate(random.usize(..=command.len())),
                _ => {}
            }
            plain += u32::from(PlainPut::read(&command).is_some());
            let reply = one.apply(&Bytes::copy_from_slice(&command), &Context::new(Slot(1)));
            assert_eq!(reply, execute(&mut other, &command), "{command:?}");
            if n % 100 == 0 {
                assert_eq!(one.digest(), other.digest());
                // An exceeded quota raises an alarm, which would refuse all later commands.
                one.alarms.clear();
                other.alarms.clear();
            }
        }
        assert_eq!((one.digest(), one.size_bytes()), (other.digest(), other.size_bytes()));
        assert!((2_000..18_000).contains(&plain), "{plain} of 20000 were read in place");
    }

    #[test]
    fn what_a_client_sends_is_read_in_place() {
        let command = Command::Put(testing::put("key", "value"));
        let plain = KvCommand {
            command: Some(command),
            quota_bytes: 2 << 30,
            member_id: u64::MAX,
            ..KvCommand::default()
        };
        let expected = PlainPut {
            key: b"key",
            value: b"value",
            user: "",
            auth_revision: 0,
            quota_bytes: plain.quota_bytes,
            member_id: plain.member_id,
        };
        assert_eq!(PlainPut::read(&plain.encode_to_vec()), Some(expected));
    }
}
