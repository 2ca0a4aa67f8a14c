//! Which member sends what (Benz 2013, test vectors of section 16), in a ring whose links lose nothing; and single
//! replicas, stepped by hand. The numbers in these texts are places in the ring: 0 is r1, which coordinates.

mod codec;

use std::collections::{BTreeMap, VecDeque};

use synod_wire::{
    Ballot, Batch, BatchBuilder, BatchId, Incarnation, Lsn, Reader, ReplicaId, SessionId, Slot, Time, Writer,
    replica_session,
};

use super::{
    Accept, AcceptedValue, Bug, Content, DecisionRun, Message, Promise, Record, RingDecision, RingLearners,
    Tuning, Value, View, VoteRun, Votes,
};
use crate::{
    Body, Effect, Effects, ElectionKind, Input, Members, Options, Protocol, ProtocolKind, Restart, Role,
    VoterSets,
};

/// The first ballot of r1 with the election `ballot`.
const BALLOT: Ballot = Ballot { round: 256, replica: ReplicaId(1) };

/// A batch of a replica's clients.
pub(super) fn batch(origin: u64, number: u64) -> Batch {
    let mut builder = BatchBuilder::identified();
    builder.push(SessionId(1), 1, 1, &[7; 8]);
    let origin = replica_session(ReplicaId(origin), Incarnation(1), 0);
    builder.finish_as(BatchId { origin, number }, 1)
}

struct Node {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    delivered: Vec<Batch>,
    /// The slots of which it reported that two batches were proposed.
    contradicted: Vec<Slot>,
}

impl Node {
    fn start(me: u64, count: u64, records: Vec<Record>, base: Slot) -> Node {
        Node::planted(me, count, records, base, None)
    }

    fn planted(me: u64, count: u64, records: Vec<Record>, base: Slot, planted: Option<crate::Bug>) -> Node {
        Node::with(Options { planted, ..ring_options() }, (me, count), records, base)
    }

    fn of(options: Options, me: u64, count: u64) -> Node {
        Node::with(options, (me, count), Vec::new(), Slot::ZERO)
    }

    fn with(options: Options, (me, count): (u64, u64), records: Vec<Record>, base: Slot) -> Node {
        let mut effects = Effects::new(Lsn(records.len() as u64));
        let records = records.into_iter().map(crate::Record::from).collect();
        let head_start = me == 1;
        let restart = Restart { records, head_start, base, decided: base, ..Restart::first(Incarnation(1)) };
        let members = VoterSets::simple((1..=count).map(ReplicaId).collect());
        let members = Members::seen_by(ReplicaId(me), members);
        let protocol = options.start(members, restart, Time::ZERO, &mut effects);
        Node { protocol, effects, delivered: Vec::new(), contradicted: Vec::new() }
    }

    /// What it sends after this input; its disk is done at once.
    fn step(&mut self, input: Input) -> Vec<(ReplicaId, Message)> {
        self.protocol.step(Time::ZERO, input, &mut self.effects);
        self.flush()
    }

    fn flush(&mut self) -> Vec<(ReplicaId, Message)> {
        let mut sent = Vec::new();
        for _ in 0..2 {
            self.protocol.flush(Time::ZERO, &mut self.effects);
            for effect in self.effects.drain().collect::<Vec<_>>() {
                match effect {
                    Effect::Send { to, message: crate::Message::Ring(message), .. } => {
                        sent.extend(to.ids().iter().map(|&id| (id, message.clone())));
                    }
                    Effect::Deliver { batch, .. } => self.delivered.push(batch),
                    Effect::TwoProposals { slot, .. } => self.contradicted.push(slot),
                    _ => {}
                }
            }
            let durable = Input::Durable(self.effects.last_lsn());
            self.protocol.step(Time::ZERO, durable, &mut self.effects);
        }
        sent
    }

    fn receive(&mut self, from: u64, message: Message) -> Vec<(ReplicaId, Message)> {
        self.step(Input::Receive { from: ReplicaId(from), message: message.into() })
    }
}

/// A ring of which r1 is the coordinator.
struct Net {
    nodes: Vec<Node>,
    /// What went round the ring, as the test vectors write it.
    walk: Vec<String>,
    /// How often bytes went over each link.
    bytes: BTreeMap<(u64, u64), usize>,
}

impl Net {
    fn new(count: u64) -> Net {
        Net::planted(count, None)
    }

    fn planted(count: u64, planted: Option<crate::Bug>) -> Net {
        let node = |me| Node::planted(me, count, Vec::new(), Slot::ZERO, planted);
        let nodes = (1..=count).map(node).collect();
        let mut net = Net { nodes, walk: Vec::new(), bytes: BTreeMap::new() };
        net.run(|net| net.nodes[0].flush(), 1);
        // An answer to the heartbeat takes the members in whose promise came too late.
        net.now_all_are_in();
        net.walk.clear();
        net.bytes.clear();
        net
    }

    /// Lets the coordinator hear of all members, so that they are in its ring.
    fn now_all_are_in(&mut self) {
        for from in 2..=self.nodes.len() as u64 {
            let answer = Message::HeartbeatAck { ballot: BALLOT, round: 1, minor: 9, decided: Slot::ZERO };
            self.run(|net| net.nodes[0].receive(from, answer.clone()), 1);
        }
        self.run(|net| net.nodes[0].step(Input::Timer), 1);
        assert_eq!(self.nodes[0].protocol.status().role, Role::Leader);
    }

    /// Lets this replica do something, and all that follows from it.
    fn run(&mut self, first: impl FnOnce(&mut Net) -> Vec<(ReplicaId, Message)>, by: u64) {
        let mut queue: VecDeque<(u64, ReplicaId, Message)> =
            first(self).into_iter().map(|(to, message)| (by, to, message)).collect();
        while let Some((from, to, message)) = queue.pop_front() {
            self.note(from, to.0, &message);
            let sent = self.nodes[to.0 as usize - 1].receive(from, message);
            queue.extend(sent.into_iter().map(|(next, message)| (to.0, next, message)));
        }
    }

    fn note(&mut self, from: u64, to: u64, message: &Message) {
        let link = format!("{}→{}", from - 1, to - 1);
        let (name, values) = match message {
            Message::Values { values, .. } => ("V", values),
            Message::Accept(Accept { values, .. }) => ("P2", values),
            Message::Votes(VoteRun { view, votes, .. }) => {
                let places = (0..view.len()).filter(|&place| votes.has(place));
                let places: Vec<String> = places.map(|place| place.to_string()).collect();
                return self.walk.push(format!("B {link} {{{}}}", places.join(",")));
            }
            Message::Decision(DecisionRun { ttl, .. }) => return self.walk.push(format!("D {link} t{ttl}")),
            _ => return,
        };
        let [Value { hops, content }] = &values[..] else { panic!("one value a message") };
        let whole = if content.whole().is_some() { "+" } else { "" };
        *self.bytes.entry((from - 1, to - 1)).or_default() += usize::from(content.whole().is_some());
        self.walk.push(format!("{name} {link} h{hops}{whole}"));
    }

    /// The walk of a batch that the replica at a place proposes.
    fn walk_from(count: u64, place: u64) -> Net {
        let mut net = Net::new(count);
        let propose = Input::Propose { batch: batch(place + 1, 1), awaited: false };
        net.run(|net| net.nodes[place as usize].step(propose), place + 1);
        for (me, node) in net.nodes.iter().enumerate() {
            assert_eq!(node.delivered, [batch(place + 1, 1)], "at {me}");
        }
        net
    }
}

/// TV1, with the decision made where the quorum comes together. The votes follow the bytes.
#[test]
fn three_members_send_what_the_document_says() {
    let votes = ["B 0→1 {0}", "D 1→2 t2", "D 2→0 t1"];
    let walk = |place| {
        let walk = Net::walk_from(3, place).walk;
        let (votes, bytes): (Vec<_>, Vec<_>) =
            walk.into_iter().partition(|step| step.starts_with(['B', 'D']));
        (bytes, votes)
    };
    let expected = |bytes: [&str; 4]| {
        let bytes: Vec<String> =
            bytes.iter().filter(|step| !step.is_empty()).map(|&step| step.to_owned()).collect();
        (bytes, votes.map(str::to_owned).to_vec())
    };
    assert_eq!(walk(0), expected(["P2 0→1 h2+", "P2 1→2 h1+", "", ""]));
    assert_eq!(walk(1), expected(["V 1→2 h2+", "V 2→0 h1+", "P2 0→1 h0", "P2 1→2 h0"]));
    assert_eq!(walk(2), expected(["V 2→0 h2+", "P2 0→1 h1+", "P2 1→2 h0", ""]));
}

/// TV3, early decision.
#[test]
fn five_members_send_what_the_document_says() {
    let walk = Net::walk_from(5, 0).walk;
    let sent = |kind: char| -> Vec<&str> {
        walk.iter().filter(|step| step.starts_with(kind)).map(String::as_str).collect()
    };
    assert_eq!(sent('P'), ["P2 0→1 h4+", "P2 1→2 h3+", "P2 2→3 h2+", "P2 3→4 h1+"]);
    assert_eq!(sent('B'), ["B 0→1 {0}", "B 1→2 {0,1}"]);
    assert_eq!(sent('D'), ["D 2→3 t4", "D 3→4 t3", "D 4→0 t2", "D 0→1 t1"]);
    let totals = [0, 1, 2, 3, 4].map(|place| Net::walk_from(5, place).walk.len());
    assert_eq!(totals, [10, 14, 13, 12, 11]);
}

#[test]
fn bytes_cross_each_link_once_and_never_come_back_to_their_origin() {
    for (count, place) in (2..=8).flat_map(|count| (0..count).map(move |place| (count, place))) {
        let bytes = Net::walk_from(count, place).bytes;
        for from in 0..count {
            let to = (from + 1) % count;
            let expected = usize::from(to != place);
            let found = bytes.get(&(from, to)).copied().unwrap_or_default();
            assert_eq!(found, expected, "link {from} to {to} of {count}, batch of {place}");
        }
    }
}

/// R11: the same after a thousand batches, of all members in turn.
#[test]
fn bytes_cross_each_link_once_also_after_a_long_run() {
    for count in [3, 5] {
        let mut net = Net::new(count);
        let rounds = 1_000 / count;
        for number in 1..=rounds {
            for place in 0..count {
                let propose = Input::Propose { batch: batch(place + 1, number), awaited: false };
                net.run(|net| net.nodes[place as usize].step(propose), place + 1);
            }
        }
        assert!(net.nodes.iter().all(|node| node.delivered.len() as u64 == rounds * count));
        let expected = (0..count).map(|from| ((from, (from + 1) % count), (rounds * (count - 1)) as usize));
        assert_eq!(net.bytes, expected.collect());
    }
}

#[test]
fn a_ring_of_one_decides_alone() {
    let mut node = Node::start(1, 1, Vec::new(), Slot::ZERO);
    node.flush();
    let sent = node.step(Input::Propose { batch: batch(1, 1), awaited: false });
    assert!(sent.is_empty(), "{sent:?}");
    assert_eq!(node.delivered, [batch(1, 1)]);
}

/// ERR-20: a member that promised a higher ballot says so, and lets both pass unchanged. The planted bug by which it
/// keeps them costs time and nobody's safety, so only this notices it.
#[test]
fn a_member_that_refuses_does_not_stop_the_others() {
    let higher = Ballot { round: 512, replica: ReplicaId(4) };
    let refused = (ReplicaId(1), Message::Reject { promised: higher });
    let order = ring(&[1, 2, 3, 4, 5]);
    let whole = accept(order.clone(), 1, Content::Whole(batch(1, 1)));
    let voted = votes(order, 1, Votes::default().with(0));
    let answers = |planted| {
        let records = vec![Record::Amnesia(false), Record::Promised(higher)];
        let mut node = Node::planted(2, 5, records, Slot::ZERO, planted);
        node.flush();
        [whole.clone(), voted.clone()].map(|message| node.receive(1, message))
    };
    let [sent, passed] = answers(None);
    assert_eq!(sent[0], refused);
    assert!(matches!(&sent[1], (ReplicaId(3), Message::Accept(_))), "{:?}", sent[1]);
    assert_eq!(passed, [refused.clone(), (ReplicaId(3), voted.clone())]);
    let alone = [refused];
    assert_eq!(answers(Some(Bug::DropRefused.into())), [&alone, &alone]);
}

/// B2: a learner on the ring keeps what passes, adds no vote whichever bits it sees, and writes down what is decided
/// alone.
#[test]
fn a_learner_passes_votes_on_and_adds_none() {
    for &election in ProtocolKind::Ring.elections() {
        passes_votes_on_and_adds_none(election);
    }
}

fn passes_votes_on_and_adds_none(election: ElectionKind) {
    let tuning = Tuning { learners: RingLearners::Propose, ..Tuning::default() };
    let options = Options { ring: tuning, election, ..ring_options() };
    let mut node = Node::of(options.clone(), 4, 3);
    let order = ring(&[1, 2, 4, 3]);
    let before = node.effects.last_lsn();
    node.receive(2, accept(order.clone(), 1, Content::Whole(batch(1, 1))));
    assert_eq!(node.effects.last_lsn(), before, "it promises and accepts nothing");
    let message = votes(order.clone(), 1, Votes::default().with(0));
    assert_eq!(node.receive(2, message.clone()), [(ReplicaId(3), message)]);
    let prepare = Message::Prepare { ballot: Ballot { round: 512, replica: ReplicaId(2) }, from: Slot(1) };
    assert_eq!(node.receive(2, prepare), [], "no candidate counts on it");
    let decision =
        |ttl| Message::Decision(DecisionRun { view: order.clone(), first: Slot(1), last: Slot(1), ttl });
    assert_eq!(node.receive(2, decision(2)), [(ReplicaId(3), decision(1))]);
    assert_eq!(node.delivered, [batch(1, 1)]);
    assert_eq!(node.effects.last_lsn(), before.next(), "one record, of what was decided");
    // It proposes along the ring.
    let sent = node.step(Input::Propose { batch: batch(4, 1), awaited: false });
    assert!(matches!(&sent[..], [(ReplicaId(3), Message::Values { .. })]), "{sent:?}");
    // A voter counts no bit of the learner's, whichever member set it.
    let mut voter = Node::of(options, 3, 3);
    voter.receive(4, accept(order.clone(), 1, Content::Whole(batch(1, 1))));
    let order = ring(&[1, 4, 3, 2]);
    let [with, without] =
        [Votes::default().with(1), Votes::default()].map(|votes| self::votes(order.clone(), 1, votes));
    let decides = |sent: &[(ReplicaId, Message)]| matches!(sent, [.., (_, Message::Decision(_))]);
    assert!(!decides(&voter.receive(4, without)) && !decides(&voter.receive(4, with)));
    let three = self::votes(order, 1, Votes::default().with(0).with(1));
    assert!(decides(&voter.receive(4, three)), "with the coordinator's and its own");
}

/// B22: between two ranges nothing is proposed, and what the second was told of keeps its slot.
#[test]
fn a_coordinator_proposes_only_where_a_quorum_told_what_it_accepted() {
    let tuning = Tuning { reserve: Some(1), ..Tuning::default() };
    let mut node = Node::of(Options { ring: tuning, window_max: 1, ..ring_options() }, 1, 3);
    let asked = |sent: &[(ReplicaId, Message)]| {
        let range = |message: &Message| match message {
            Message::PrepareRange { from, through, .. } => Some((from.0, through.0)),
            _ => None,
        };
        sent.iter().filter(|(to, _)| to.0 == 2).find_map(|(_, message)| range(message))
    };
    assert_eq!(asked(&node.flush()), Some((1, 3)), "as many as may be under way");
    let below = Ballot { round: 1, replica: ReplicaId(3) };
    let promise = |from, accepted: &[u64], next: Option<u64>| {
        let value = |&slot: &u64| AcceptedValue { slot: Slot(slot), ballot: below, batch: batch(3, slot) };
        let accepted = accepted.iter().map(value).collect();
        let next = next.map(Slot);
        Message::Promise(Promise { ballot: BALLOT, from: Slot(from), decided: Slot::ZERO, accepted, next })
    };
    let sent = node.receive(2, promise(1, &[1, 3], Some(5)));
    assert_eq!(asked(&sent), Some((4, 6)), "there is more, so it does not lead yet");
    assert_eq!(node.protocol.status().role, Role::Candidate);
    let sent = node.receive(2, promise(4, &[5], None));
    assert_eq!(node.protocol.status().role, Role::Leader);
    let proposed = |sent: &[(ReplicaId, Message)]| -> Vec<(u64, bool)> {
        let values = |message: &Message| match message {
            Message::Accept(Accept { first, values, .. }) => {
                let noop = |value: &Value| *value.content.batch() == Batch::noop();
                (first.0..).zip(values).map(|(slot, value)| (slot, noop(value))).collect()
            }
            _ => Vec::new(),
        };
        sent.iter().filter(|(to, _)| to.0 == 2).flat_map(|(_, message)| values(message)).collect()
    };
    assert_eq!(proposed(&sent), [(1, false), (2, true), (3, false), (4, true), (5, false)]);
    // One slot is left, which is less than half of a range.
    assert_eq!(asked(&sent), Some((7, 9)));
    node.receive(2, votes(ring(&[1, 2]), 1, Votes::default().with(0)));
    let all = Message::Votes(VoteRun {
        view: ring(&[1, 2]),
        first: Slot(1),
        last: Slot(5),
        decided: Slot::ZERO,
        votes: Votes::default().with(0).with(1),
    });
    node.receive(2, all);
    let sent = node.step(Input::Propose { batch: batch(1, 1), awaited: false });
    assert_eq!(proposed(&sent), [(6, false)]);
    let sent = node.step(Input::Propose { batch: batch(1, 2), awaited: false });
    assert_eq!(proposed(&sent), [], "nobody has told what it accepted in slot 7");
    assert_eq!(node.protocol.room(), 0);
    // Another quorum's answer has a value that no quorum accepted; it keeps its slot.
    let sent = node.receive(3, promise(7, &[8], None));
    assert_eq!(proposed(&sent), [(7, true), (8, false)]);
}

/// What the candidate accepted itself beyond the range counts as well: with the vote of a member that does not answer
/// it may be chosen, and a read must not miss it.
#[test]
fn a_candidate_heeds_what_it_accepted_itself_beyond_the_range() {
    let below = Ballot { round: 1, replica: ReplicaId(3) };
    let (first, batches) = (Slot(5), [batch(3, 5)].into());
    let held = Record::Accepted { ballot: below, first, decided: Slot::ZERO, batches };
    let tuning = Tuning { reserve: Some(1), ..Tuning::default() };
    let options = Options { ring: tuning, window_max: 1, ..ring_options() };
    let records = vec![Record::Amnesia(false), Record::Promised(below), held];
    let mut node = Node::with(options, (1, 3), records, Slot::ZERO);
    node.flush();
    node.receive(3, Message::TakeOver { ballot: below });
    let promise = |from: u64| {
        let (accepted, next) = (Vec::new(), None);
        Message::Promise(Promise { ballot: BALLOT, from: Slot(from), decided: Slot::ZERO, accepted, next })
    };
    node.receive(2, promise(1));
    assert_eq!(node.protocol.status().role, Role::Candidate, "slot 5 is beyond the range");
    node.receive(2, promise(4));
    assert_eq!(node.protocol.status().role, Role::Leader);
}

/// B32: of five members the second waits for two rounds, since the third decides.
#[test]
fn proposers_that_wait_for_two_rounds_have_twice_the_window() {
    let windows = |decision, order: &[u64]| -> Vec<usize> {
        let window = |me| {
            let tuning = Tuning { decision, ..Tuning::default() };
            let mut node = Node::of(Options { ring: tuning, window_max: 12, ..ring_options() }, me, 5);
            node.receive(1, Message::View { view: ring(order) });
            node.protocol.room()
        };
        order[1..].iter().map(|&me| window(me)).collect()
    };
    // 60 slots in six parts; the coordinator has one.
    assert_eq!(windows(RingDecision::Quorum, &[1, 2, 3, 4, 5]), [20, 10, 10, 10]);
    assert_eq!(windows(RingDecision::Quorum, &[1, 4, 2, 5, 3]), [20, 10, 10, 10]);
    // In eight parts.
    assert_eq!(windows(RingDecision::Last, &[1, 2, 3, 4, 5]), [15, 15, 15, 7]);
    // Nobody has more than its own window for each round, also where the ring is short.
    assert_eq!(windows(RingDecision::Quorum, &[1, 2, 3]), [24, 12]);
}

/// A run of slots that no honest replica names costs no time, and one without an end is no message.
#[test]
fn a_run_of_slots_without_end_is_refused_or_passes_at_once() {
    let mut node = Node::start(2, 5, Vec::new(), Slot::ZERO);
    let order = ring(&[1, 2, 3, 4, 5]);
    node.receive(1, accept(order.clone(), 1, Content::Whole(batch(1, 1))));
    let run = |first, last| {
        let (view, votes) = (order.clone(), Votes::default().with(0));
        Message::Votes(VoteRun { view, first: Slot(first), last: Slot(last), decided: Slot::ZERO, votes })
    };
    let sent = node.receive(1, run(1, u64::MAX - 1));
    let runs = sent.iter().filter_map(|(_, message)| match message {
        Message::Votes(VoteRun { first, last, .. }) => Some((first.0, last.0)),
        _ => None,
    });
    let runs: Vec<_> = runs.collect();
    assert_eq!(runs, [(1, 1), (2, u64::MAX - 1)]);
    for (first, last) in [(1, u64::MAX), (3, 2)] {
        let mut writer = Writer::new();
        run(first, last).encode(&mut writer);
        let read = Message::decode(&mut Reader::new(writer.finish().to_bytes()));
        assert!(read.is_err(), "{read:?}");
    }
}

/// The planted bug by which bytes leave a hop too early costs nobody safety, so only this notices it.
#[test]
fn bytes_that_leave_too_early_are_missed() {
    let mut net = Net::planted(3, Some(Bug::StripEarly.into()));
    let propose = Input::Propose { batch: batch(1, 1), awaited: false };
    net.run(|net| net.nodes[0].step(propose), 1);
    assert_eq!(net.bytes, BTreeMap::from([((0, 1), 1), ((1, 2), 0)]));
    assert!(net.nodes[2].delivered.is_empty(), "it has never had the bytes");
}

/// TV1 and TV3 as the document has them: the votes go on to the last member, which decides.
#[test]
fn the_last_member_decides_if_that_is_chosen() {
    let mut node = Node::of(
        Options { ring: Tuning { decision: RingDecision::Last, ..Tuning::default() }, ..ring_options() },
        3,
        5,
    );
    let order = ring(&[1, 2, 3, 4, 5]);
    node.receive(2, accept(order.clone(), 1, Content::Whole(batch(1, 1))));
    let two = Votes::default().with(0).with(1);
    assert_eq!(votes_sent(&node.receive(2, votes(order.clone(), 1, two))), [two.with(2)]);
    let mut last = Node::of(
        Options { ring: Tuning { decision: RingDecision::Last, ..Tuning::default() }, ..ring_options() },
        5,
        5,
    );
    last.receive(4, accept(order.clone(), 1, Content::Whole(batch(1, 1))));
    let sent = last.receive(4, votes(order, 1, two.with(2).with(3)));
    assert_eq!(votes_sent(&sent), [Votes([u64::MAX; 2])]);
}

fn ring_options() -> Options {
    Options::of(ProtocolKind::Ring)
}

fn ring(order: &[u64]) -> View {
    View { ballot: BALLOT, minor: 1, order: order.iter().copied().map(ReplicaId).collect::<Vec<_>>().into() }
}

fn accept(view: View, slot: u64, content: Content) -> Message {
    let (first, decided, safe, values) = (Slot(slot), Slot::ZERO, false, vec![Value { hops: 0, content }]);
    Message::Accept(Accept { view, first, decided, safe, values })
}

fn votes(view: View, slot: u64, votes: Votes) -> Message {
    Message::Votes(VoteRun { view, first: Slot(slot), last: Slot(slot), decided: Slot::ZERO, votes })
}

fn votes_sent(sent: &[(ReplicaId, Message)]) -> Vec<Votes> {
    let votes = sent.iter().filter_map(|(_, message)| match message {
        Message::Votes(VoteRun { votes, .. }) => Some(*votes),
        Message::Decision(_) => Some(Votes([u64::MAX; 2])),
        _ => None,
    });
    votes.collect()
}

/// TV15.
#[test]
fn a_vote_that_comes_back_to_where_it_was_given_counts_once() {
    let mut net = Net::new(3);
    net.nodes[0].step(Input::Propose { batch: batch(1, 1), awaited: false });
    let back = votes(ring(&[1, 2, 3]), 1, Votes::default().with(0));
    assert_eq!(votes_sent(&net.nodes[0].receive(3, back)), []);
    assert!(net.nodes[0].delivered.is_empty());
    let back = votes(ring(&[1, 2, 3]), 1, Votes::default().with(0).with(2));
    net.nodes[0].receive(3, back);
    assert_eq!(net.nodes[0].delivered.len(), 1);
}

/// TV16, A7: two values in one ballot are never mixed, and an operator hears of it. No run of the simulator has two
/// values in one ballot, so only this notices the planted bug by which a member accepts both.
#[test]
fn a_member_stays_with_the_first_value_of_a_ballot() {
    let order = ring(&[1, 2, 3, 4, 5]);
    let one = Votes::default().with(0);
    let [first, another] = [1, 2].map(|number| accept(order.clone(), 1, Content::Whole(batch(1, number))));
    let name = accept(order.clone(), 1, Content::Name(batch(1, 1).reference().unwrap()));
    let node = |planted| {
        let mut node = Node::planted(2, 5, Vec::new(), Slot::ZERO, planted);
        node.receive(1, first.clone());
        let sent = node.receive(1, votes(order.clone(), 1, one));
        assert_eq!(votes_sent(&sent), [one.with(1)]);
        node
    };
    let mut sound = node(None);
    let before = sound.effects.last_lsn();
    sound.receive(1, first.clone());
    sound.receive(1, name);
    assert_eq!(sound.contradicted, [], "the same again is no other");
    for _ in 0..2 {
        sound.receive(1, another.clone());
    }
    sound.receive(1, first.clone());
    assert_eq!(sound.effects.last_lsn(), before, "nothing new is written down");
    assert_eq!(sound.contradicted, [Slot(1)], "once a ballot");
    let mut buggy = node(Some(Bug::AcceptAnother.into()));
    buggy.receive(1, another.clone());
    assert!(buggy.effects.last_lsn() > before, "the other is written down");
}

/// Bytes wait for no disk, and votes do.
#[test]
fn bytes_go_on_at_once_and_votes_once_their_record_is_durable() {
    let mut node = Node::start(2, 5, Vec::new(), Slot::ZERO);
    node.flush();
    let order = ring(&[1, 2, 3, 4, 5]);
    for message in
        [accept(order.clone(), 1, Content::Whole(batch(1, 1))), votes(order, 1, Votes::default().with(0))]
    {
        let receive = Input::Receive { from: ReplicaId(1), message: message.into() };
        node.protocol.step(Time::ZERO, receive, &mut node.effects);
    }
    node.protocol.flush(Time::ZERO, &mut node.effects);
    let record = node.effects.last_lsn();
    let mut found = Vec::new();
    for effect in node.effects.drain() {
        match effect {
            Effect::Send { message: crate::Message::Ring(Message::Accept(_)), after, .. } => {
                found.push(("bytes", after));
            }
            Effect::Send { message: crate::Message::Ring(Message::Votes(_)), after, .. } => {
                found.push(("votes", after));
            }
            _ => {}
        }
    }
    assert_eq!(found, [("bytes", Lsn::ZERO), ("votes", record)]);
}

/// B32: a decision makes room at the coordinator, and what comes before it would find none and be dropped.
#[test]
fn batches_leave_behind_the_decision_that_came_before_them() {
    let mut node = Node::start(3, 3, Vec::new(), Slot::ZERO);
    node.flush();
    let order = ring(&[1, 2, 3]);
    node.receive(2, accept(order.clone(), 1, Content::Whole(batch(2, 1))));
    let decision =
        Message::Decision(DecisionRun { view: order.clone(), first: Slot(1), last: Slot(1), ttl: 2 });
    let values = vec![Value { hops: 2, content: Content::Whole(batch(2, 2)) }];
    for message in [decision, Message::Values { view: order, safe: false, values }] {
        let receive = Input::Receive { from: ReplicaId(2), message: message.into() };
        node.protocol.step(Time::ZERO, receive, &mut node.effects);
    }
    let sent = node.step(Input::Propose { batch: batch(3, 1), awaited: false });
    let origin = |value: &Value| value.content.batch().id().and_then(|id| id.origin.of_replica()).unwrap().0;
    let kinds = sent.iter().map(|(to, message)| match message {
        Message::Decision(_) => format!("a decision to {to}"),
        Message::Values { values, .. } => format!("values of {} to {to}", origin(&values[0])),
        other => format!("{other:?}"),
    });
    let kinds: Vec<String> = kinds.collect();
    assert_eq!(kinds, ["a decision to r1", "values of r2 to r1", "values of r3 to r1"]);
}

/// TV16: a coordinator that starts again takes a ballot of its own above all that it promised.
#[test]
fn a_restarted_coordinator_never_uses_its_ballot_again() {
    let mut net = Net::new(3);
    let again = Node::start(1, 3, vec![Record::Amnesia(false), Record::Promised(BALLOT)], Slot::ZERO);
    assert_eq!(again.protocol.promised(), BALLOT);
    assert_ne!(again.protocol.status().role, Role::Leader);
    net.nodes[0] = again;
    let sent = net.nodes[0].step(Input::Propose { batch: batch(1, 1), awaited: false });
    assert_eq!(votes_sent(&sent), []);
}

/// A ring ends with its coordinator, and a batch that went straight there would come back to it.
#[test]
fn a_coordinator_that_gave_up_sends_its_batches_nowhere() {
    let mut node = Net::new(3).nodes.remove(0);
    let sent = node.step(Input::Propose { batch: batch(1, 1), awaited: false });
    assert!(matches!(&sent[0], (ReplicaId(2), Message::Accept(_))), "{sent:?}");
    for seconds in 5..12 {
        // It has slept for longer than an election time-out.
        node.protocol.step(Time::from_nanos(seconds * 1_000_000_000), Input::Timer, &mut node.effects);
        node.protocol.flush(Time::from_nanos(seconds * 1_000_000_000), &mut node.effects);
        for effect in node.effects.drain() {
            let values =
                |message: &crate::Message| matches!(message, crate::Message::Ring(Message::Values { .. }));
            let sends = matches!(&effect, Effect::Send { to, message, .. }
                if to.includes(ReplicaId(1)) || values(message));
            assert!(!sends, "{effect:?}");
        }
    }
    assert_eq!(node.protocol.status().role, Role::Follower);
    assert_eq!(node.protocol.route(), crate::Route::Nowhere);
}

/// TV25.
#[test]
fn a_new_coordinator_adopts_the_highest_ballot_of_each_slot_and_nothing_below_a_reported_prefix() {
    let proposed_with = |planted, decided: u64| {
        let mut node = Node::planted(1, 5, Vec::new(), Slot(4), planted);
        node.flush();
        let value = |slot, round, number| AcceptedValue {
            slot: Slot(slot),
            ballot: Ballot { round, replica: ReplicaId(3) },
            batch: batch(3, number),
        };
        let promise = |decided, accepted| {
            let (ballot, from, decided) = (BALLOT, Slot(5), Slot(decided));
            Message::Promise(Promise { ballot, from, decided, accepted, next: None })
        };
        node.receive(2, promise(4, vec![value(5, 2, 25), value(6, 2, 26)]));
        let mut accepted = vec![value(5, 3, 35), value(8, 3, 38)];
        accepted.retain(|value| value.slot > Slot(decided));
        let sent = node.receive(3, promise(decided, accepted));
        let mut proposed = Vec::new();
        for (_, message) in sent {
            if let Message::Accept(Accept { first, values, safe, .. }) = message {
                assert!(safe, "nobody knows who has the bytes");
                for (slot, value) in (first.0..).zip(values) {
                    proposed.push((slot, value.content.whole().unwrap().id().map_or(0, |id| id.number)));
                }
            }
        }
        proposed
    };
    let proposed = |decided| proposed_with(None, decided);
    assert_eq!(proposed(4), [(5, 35), (6, 26), (7, 0), (8, 38)]);
    assert_eq!(proposed(6), [(7, 0), (8, 38)]);
    let below = proposed_with(Some(Bug::ProposeBelowPrefix.into()), 6);
    assert_eq!(below, [(5, 25), (6, 26), (7, 0), (8, 38)], "TV21");
}

/// TV26.
#[test]
fn a_member_without_the_bytes_does_not_vote_and_delivers_once_it_has_them() {
    let mut node = Node::start(3, 5, Vec::new(), Slot::ZERO);
    let order = ring(&[1, 2, 3, 4, 5]);
    let two = Votes::default().with(0).with(1);
    let name = Content::Name(batch(2, 1).reference().unwrap());
    node.receive(2, accept(order.clone(), 1, name.clone()));
    assert_eq!(
        votes_sent(&node.receive(2, votes(order.clone(), 1, two))),
        [two],
        "they go on without its own"
    );
    let decision =
        Message::Decision(DecisionRun { view: order.clone(), first: Slot(1), last: Slot(1), ttl: 3 });
    node.receive(2, decision);
    assert!(node.delivered.is_empty());
    // The bytes, and then the same again.
    let values = vec![Value { hops: 2, content: Content::Whole(batch(2, 1)) }];
    node.receive(2, Message::Values { view: order.clone(), safe: false, values });
    node.receive(2, accept(order.clone(), 1, name));
    let sent = node.receive(2, votes(order, 1, two));
    assert_eq!(votes_sent(&sent), [Votes([u64::MAX; 2])], "a third vote of five decides");
    assert_eq!(node.delivered, [batch(2, 1)]);
}
