//! The C acceptor against one that is written down otherwise: a map with an entry an instance, and no ring.

use std::collections::BTreeMap;

use synod_kernel_core::{Acceptor, Message, Type, Value, Verdict};

/// What an instance has: the promised ballot, and the ballot and value that were accepted.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    promised: u64,
    accepted: Option<(u64, Value)>,
}

#[derive(Debug, Default)]
struct Twin {
    slots: u64,
    entries: BTreeMap<u64, Entry>,
    promised_all: u64,
    trimmed: u64,
    touched: u64,
}

/// A reply as the twin has it: type, instance, ballot, ballot of the value, extra, value.
type Reply = (Type, u64, u64, u64, u64, Option<Value>);

impl Twin {
    fn promised(&self, instance: u64) -> u64 {
        self.promised_all.max(self.entries.get(&instance).map_or(0, |entry| entry.promised))
    }

    fn has_room(&self, instance: u64) -> bool {
        instance > self.trimmed && instance <= self.trimmed + self.slots
    }

    /// An instance has its slot to itself. An untrimmed one that shares it does not exist, by `has_room`; one that is
    /// trimmed gives way, and the later one stays.
    fn occupies(&mut self, instance: u64) -> bool {
        let slots = self.slots;
        let shares = move |other: u64| other % slots == instance % slots;
        if !self.has_room(instance) || self.entries.keys().any(|&other| shares(other) && other > instance) {
            return false;
        }
        self.entries.retain(|&other, _| !shares(other) || other == instance);
        self.entries.entry(instance).or_default();
        true
    }

    fn outside(&self, instance: u64) -> Reply {
        (Type::Outside, instance, 0, self.trimmed, self.trimmed + self.slots, None)
    }

    fn state(&self, kind: Type) -> Reply {
        (kind, self.trimmed, self.promised_all, 0, self.touched, None)
    }

    fn handle(&mut self, message: &Message, value: Option<Value>) -> Result<Reply, Verdict> {
        let Message { instance, ballot, extra, .. } = *message;
        match message.kind().unwrap() {
            Type::Prepare | Type::Accept if ballot == 0 || instance == 0 => Err(Verdict::Unsound),
            Type::Prepare | Type::Accept if !self.occupies(instance) => Ok(self.outside(instance)),
            Type::Prepare => {
                self.touched = self.touched.max(instance);
                let promised = self.promised(instance).max(ballot);
                let entry = self.entries.get_mut(&instance).unwrap();
                if promised == ballot {
                    entry.promised = ballot;
                }
                let (in_ballot, value) = entry.accepted.unzip();
                Ok((Type::Promise, instance, promised, in_ballot.unwrap_or(0), 0, value))
            }
            Type::Accept => self.accept(instance, ballot, extra, value.unwrap()),
            Type::Repeat if instance == 0 => Err(Verdict::Unsound),
            Type::Repeat => self.repeat(instance),
            Type::Trim => {
                self.trimmed = self.trimmed.max(instance);
                Ok(self.state(Type::State))
            }
            Type::PrepareAll if ballot == 0 => Err(Verdict::Unsound),
            Type::PrepareAll => {
                self.promised_all = self.promised_all.max(ballot);
                Ok(self.state(Type::PromiseAll))
            }
            Type::LearnerHi => Ok(self.state(Type::AcceptorOk)),
            _ => Err(Verdict::NotMine),
        }
    }

    fn accept(&mut self, instance: u64, ballot: u64, extra: u64, value: Value) -> Result<Reply, Verdict> {
        self.touched = self.touched.max(instance);
        let promised = self.promised(instance);
        if ballot < promised {
            return Ok((Type::Preempted, instance, promised, 0, 0, None));
        }
        let entry = self.entries.get_mut(&instance).unwrap();
        *entry = Entry { promised: ballot, accepted: Some((ballot, value)) };
        let mut echo = 0;
        if extra != 0 && self.occupies(extra) {
            self.touched = self.touched.max(extra);
            if ballot >= self.promised(extra) {
                let further = self.entries.get_mut(&extra).unwrap();
                further.promised = ballot;
                echo = if further.accepted.is_none() { extra } else { 0 };
            }
        }
        Ok((Type::Accepted, instance, ballot, ballot, echo, Some(value)))
    }

    fn repeat(&self, instance: u64) -> Result<Reply, Verdict> {
        let shares = |other: u64| other % self.slots == instance % self.slots;
        let replaced = self.entries.keys().any(|&other| shares(other) && other > instance);
        if instance <= self.trimmed || replaced {
            return Ok(self.outside(instance));
        }
        let accepted = self.entries.get(&instance).and_then(|entry| entry.accepted);
        let (in_ballot, value) = accepted.ok_or(Verdict::NotMine)?;
        Ok((Type::Accepted, instance, self.promised(instance), in_ballot, 0, Some(value)))
    }
}

/// The only value of an instance and ballot, as proposers that use no ballot twice have it.
fn value_of(instance: u64, ballot: u64) -> Value {
    let bytes = (instance * 97 + ballot * 1_301).to_le_bytes();
    let length = usize::try_from((instance + ballot) % 9).unwrap();
    if (instance + ballot).is_multiple_of(5) { Value::NoOp } else { Value::name(&bytes[..length]) }
}

fn draw(random: &mut fastrand::Rng) -> (Message, Option<Value>) {
    use Type::{Accept, LearnerHi, Prepare, PrepareAll, Promise, Repeat, Trim};
    let types = [
        Prepare, Prepare, Accept, Accept, Accept, Accept, Repeat, Repeat, PrepareAll, Trim, LearnerHi,
        Promise,
    ];
    let kind = types[random.usize(..types.len())];
    let mut message = Message::new(kind);
    message.instance = random.u64(..if kind == Trim { 14 } else { 40 });
    message.ballot = random.u64(..9);
    if kind == PrepareAll && random.u8(..4) > 0 {
        message.ballot %= 3;
    }
    if kind == Accept && random.u8(..3) == 0 {
        message.extra = random.u64(..40);
    }
    let value = (kind == Accept).then(|| value_of(message.instance, message.ballot));
    (message, value)
}

/// The replies are the same, and a copy goes its own way.
#[test]
fn drawn_histories_have_the_replies_of_the_twin() {
    let mut replies: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let slots = 5 + seed % 20;
        let mut acceptor = Acceptor::new(slots);
        let mut twin = Twin { slots, ..Twin::default() };
        for step in 0..300 {
            let (message, proposed) = draw(&mut random);
            let mut copy = acceptor.clone();
            let reply = acceptor.handle(message, proposed);
            assert_eq!(copy.handle(message, proposed), reply, "a copy answers the same");
            assert!(copy == acceptor);
            let expected = twin.handle(&message, proposed);
            let found = reply.map(|(reply, value)| {
                let Message { instance, ballot, value_ballot, extra, .. } = reply;
                (reply.kind().unwrap(), instance, ballot, value_ballot, extra, value)
            });
            assert_eq!(found, expected, "seed {seed}, step {step}: {message:?}");
            let kind = found.map_or_else(|verdict| format!("{verdict:?}"), |reply| format!("{:?}", reply.0));
            *replies.entry(kind).or_default() += 1;
        }
    }
    for kind in [
        "Accepted",
        "AcceptorOk",
        "NotMine",
        "Outside",
        "Preempted",
        "Promise",
        "PromiseAll",
        "State",
        "Unsound",
    ] {
        assert!(replies.get(kind).is_some_and(|&count| count > 500), "{kind}: {replies:?}");
    }
}

#[test]
fn another_value_in_the_same_ballot_is_no_vote() {
    let mut acceptor = Acceptor::new(4);
    let accept = Message { instance: 3, ballot: 5, ..Message::new(Type::Accept) };
    assert!(acceptor.handle(accept, Some(Value::name(b"a"))).is_ok());
    assert_eq!(acceptor.handle(accept, Some(Value::name(b"other"))), Err(Verdict::Unsound));
    assert_eq!(acceptor.handle(accept, Some(Value::NoOp)), Err(Verdict::Unsound));
    let (reply, value) = acceptor.handle(accept, Some(Value::name(b"a"))).unwrap();
    assert_eq!((reply.kind(), value), (Some(Type::Accepted), Some(Value::name(b"a"))));
}

#[test]
fn what_is_for_another_cluster_group_or_epoch_is_refused() {
    let mut acceptor = Acceptor::new(4);
    let prepare = Message { instance: 3, ballot: 5, ..Message::new(Type::Prepare) };
    for (message, verdict) in [
        (Message { cluster: 1, ..prepare }, Verdict::OtherCluster),
        (Message { group: 1, ..prepare }, Verdict::OtherGroup),
        (Message { epoch: 1, ..prepare }, Verdict::OtherEpoch),
    ] {
        assert_eq!(acceptor.handle(message, None), Err(verdict));
    }
    assert!(acceptor.handle(prepare, None).is_ok());
}
