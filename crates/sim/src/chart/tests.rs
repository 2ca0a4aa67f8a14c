use std::collections::BTreeSet;

use synod_consensus::{Bug, ProtocolKind};

use super::{
    layout::{Across, Arrow, Fate, Layout},
    record::{Key, What},
    *,
};
use crate::{
    check::Violation,
    clock::Moment,
    network::Loss,
    odds::Odds,
    plan::{Family, FaultWeights, Plan},
    scenario::{self, CASTS},
    trace::Trace,
    world::World,
};

const EVERYTHING: Window = Window::EVERYTHING;

fn is_message(arrow: &&Arrow) -> bool {
    matches!(arrow.sent.what, What::Message(..))
}

/// A seed's chart, the lines of its trace, and the messages in flight at its end.
fn recorded(plan: &Plan) -> (Layout, Vec<String>, BTreeSet<u64>) {
    let mut world = World::new(plan.clone(), Trace::Script(Vec::new()));
    world.record(Recorder::new(EVERYTHING));
    world.run().expect("every invariant holds");
    let recorder = world.take_recorder().expect("it was recorded");
    (Layout::new(&recorder, &[]), world.take_trace(), world.into_under_way())
}

#[test]
fn a_run_that_is_recorded_is_the_same_run() {
    for seed in 0..12 {
        for protocol in [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft] {
            let plan = Plan::draw(seed, protocol);
            let alone = crate::run(&plan).expect("every invariant holds");
            let (outcome, recorder) = crate::record(&plan, EVERYTHING);
            let outcome = outcome.expect("every invariant holds");
            assert_eq!(
                (alone.fingerprint, alone.events),
                (outcome.fingerprint, outcome.events),
                "seed {seed}"
            );
            assert!(!recorder.entries.is_empty());
        }
    }
}

/// Seeds draw both kinds of links: streams and datagrams.
#[test]
fn each_message_of_a_run_arrives_is_lost_or_is_under_way_as_in_the_trace() {
    let (mut lost, mut again) = (0, 0);
    for seed in 0..16 {
        let plan = Plan::draw(seed, ProtocolKind::MultiPaxos);
        let (layout, trace, under_way) = recorded(&plan);
        let messages = || layout.arrows.iter().filter(is_message);
        let received = |line: &&String| line.contains(" ← r") || line.starts_with("← r");
        let received =
            trace.iter().filter(received).filter(|line| !line.contains("a damaged message")).count();
        let arrived = messages().filter(|arrow| matches!(arrow.fate, Fate::Arrived(..) | Fate::Again(..)));
        assert_eq!(arrived.count(), received, "seed {seed}");
        let open = messages().filter(|arrow| arrow.fate == Fate::UnderWay).count();
        // A datagram that is to arrive twice may have arrived once.
        assert!(open <= under_way.len(), "seed {seed}: {open} of {} messages are under way", under_way.len());
        lost += messages().filter(|arrow| matches!(arrow.fate, Fate::Lost(..))).count();
        again += messages().filter(|arrow| matches!(arrow.fate, Fate::Again(..))).count();
    }
    assert!(lost > 100 && again > 10, "{lost} lost, {again} arrived twice");
}

const STORY: &str = "for: all\n\nA story.\n\n> cluster 3\n> elect 1\n> put 1 k1=7 k2=8\n> drop 1->2\n> tick 100ms\n> drop 1->3 1\n\
                     > stabilize\n> crash 3\n> put 1 k3=9\n> stabilize\n> status\n";

#[test]
fn a_story_has_an_arrow_for_each_message_and_a_cross_for_each_that_is_dropped() {
    for cast in scenario::led() {
        let (story, recorded) = scenario::record(STORY, cast, Window::ALL);
        let story = story.expect("it makes sense");
        assert_eq!(story, scenario::play(STORY, cast).expect("it makes sense"), "the same story");
        let layout = Layout::new(&recorded[0], &[]);
        let sent = |line: &&str| line.contains("  → r") && !line.contains("  lost: ");
        let sent = story.lines().filter(sent).count();
        // The story omits messages to a replica that is down, and those of the start of the cluster.
        let down = |arrow: &Arrow| matches!(arrow.fate, Fate::Lost(_, _, Loss::NoSession));
        let shown = |arrow: &&Arrow| arrow.leaves.is_some() && !down(arrow);
        let messages: Vec<&Arrow> = layout.arrows.iter().filter(is_message).filter(shown).collect();
        assert!(sent > 15, "{story}");
        assert_eq!(messages.len(), sent, "{}\n{story}", cast.name);
        let dropped = story.lines().filter(|line| line.contains("  lost: ")).count();
        let by_script = |arrow: &&&Arrow| matches!(arrow.fate, Fate::Lost(_, _, Loss::Script));
        assert!(dropped >= 2, "{story}");
        // The script answers rehearsals.
        let rehearsals = story.lines().filter(|line| line.contains("  Rehearse ")).count();
        assert_eq!(messages.iter().filter(by_script).count(), dropped + rehearsals, "{}", cast.name);
        let picture = Chart::default().svg(&recorded[0]);
        assert!(picture.contains("ReplicaId(1),"), "all fields, each on a line");
        let drawn = |class: &str| picture.matches(class).count();
        let quiet = Layout::new(&recorded[0], Chart::default().hidden());
        assert_eq!(drawn("class=\"message "), quiet.arrows.len());
        assert!(quiet.arrows.len() <= layout.arrows.len());
        let lost = quiet.arrows.iter().filter(|arrow| matches!(arrow.fate, Fate::Lost(..))).count();
        let crosses = drawn("url(#lost-") - drawn("url(#lost-client)\"/><text x=\"38\" y=\"4\">lost");
        assert_eq!(crosses, lost);
    }
}

#[test]
fn quiet_commands_are_named_and_not_shown() {
    let story = "for: all\n\n> cluster 3\n> quietly elect 1\n> put 1 k1=7\n";
    let (result, recorded) = scenario::record(story, &CASTS[0], Window::ALL);
    result.expect("it makes sense");
    let layout = Layout::new(&recorded[0], &[]);
    let commands = layout.across.iter().filter_map(|(_, _, across)| match across {
        Across::Command(text) => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(commands.collect::<Vec<_>>(), ["cluster 3", "quietly elect 1", "put 1 k1=7"]);
    let kinds: BTreeSet<&str> = layout.arrows.iter().map(|arrow| arrow.sent.what.kind()).collect();
    assert_eq!(kinds, BTreeSet::from(["client", "proposal"]));
    // The chart shows the leader all the same.
    assert!(layout.spans.iter().any(|span| span.lane == Lane::Replica(0) && span.condition.leads));
}

/// A seed whose run breaks an invariant in its last event.
fn violated() -> (Plan, Violation) {
    (0..50)
        .find_map(|seed| {
            let mut plan = Plan::draw(seed, ProtocolKind::MultiPaxos);
            plan.replicas = plan.replicas.max(3);
            plan.settings.consensus.planted = Some(Bug::VoteBeforeDurable);
            let failure = crate::run(&plan).err()?;
            failure.violation.invariant.is_seen_at_once().then_some((plan, failure.violation))
        })
        .expect("it is found")
}

#[test]
fn what_does_not_hold_is_marked_where_it_was_seen() {
    let (plan, violation) = violated();
    let (result, recorder) = crate::record(&plan, WindowArgs::default().of_run());
    assert_eq!(result.expect_err("as without a chart").to_string(), violation.to_string());
    let layout = Layout::new(&recorder, &[]);
    let (row, _, last) = layout.across.last().expect("something stands across");
    let Across::Violation(lane, text) = last else { panic!("{last:?}") };
    assert_eq!(*row, layout.rows.len() - 1, "nothing happens after it");
    assert_eq!(*text, violation.to_string());
    assert!(matches!(lane, Some(Lane::Replica(_))));
    let (page, picture) =
        (Chart::default().html(std::slice::from_ref(&recorder)), Chart::default().svg(&recorder));
    for text in [page, picture] {
        assert_eq!(text.matches("class=\"across violation\"").count(), 1);
        assert!(text.contains(&format!("✗ {}", violation.invariant)));
    }
}

#[test]
fn a_chart_is_bounded_and_says_what_it_leaves_out() {
    let mut plan = Plan::draw(3, ProtocolKind::Raft).of_family(Family::General);
    plan.faults.weights = FaultWeights::default();
    plan.faults.any_step = Odds::NEVER;
    let all = crate::record(&plan, EVERYTHING).1;
    let total = all.entries.len();
    let (_, last) = crate::record(&plan, WindowArgs::default().of_run());
    assert_eq!((last.entries.len(), last.left_out), (400, (total as u64 - 400, 0)));
    let page = Chart::default().html(&[last]);
    assert!(page.contains(&format!("{} events before this are left out", total - 400)));
    let bounds = WindowArgs { html_from: Some(Bound::Event(501)), html_to: Some(Bound::Event(520)) };
    let (_, some) = crate::record(&plan, bounds.of_run());
    let numbers: Vec<u64> = some.entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (501..=520).collect::<Vec<u64>>());
    assert_eq!(some.left_out, (500, total as u64 - 520));
    // The recorder knows from before the window which replicas were up, and which one led.
    assert_eq!(some.before.values().filter(|condition| condition.up).count(), plan.replicas);
    let by_time = WindowArgs { html_from: Some(Bound::At(all.entries[500].at)), html_to: None };
    let (_, later) = crate::record(&plan, by_time.of_run());
    assert!(later.entries.iter().all(|entry| entry.at >= all.entries[500].at));
}

#[test]
fn all_text_is_escaped() {
    let evil = "<script>alert('x')</script> & \"quoted\" \u{1}";
    let mut recorder = Recorder::new(Window::ALL);
    recorder.now = Moment::START;
    recorder.asks(1, 0, evil.to_owned());
    recorder.arrives(Key::Question(1), Lane::Replica(0));
    recorder.marks(0, Mark::Note, evil.to_owned());
    recorder.marks_all(evil.to_owned());
    recorder.begins(evil);
    recorder.fails(evil);
    let chart = Chart {
        title: evil.to_owned(),
        about: vec![evil.to_owned()],
        command: Some(evil.to_owned()),
        violation: Some(evil.to_owned()),
        of_run: false,
    };
    for text in [chart.svg(&recorder), chart.html(&[recorder.clone()])] {
        assert!(!text.contains("<script>alert") && !text.contains('\u{1}'), "{text}");
        assert!(!text.contains("\"quoted\"") && !text.contains("alert('x')"));
        assert!(text.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;quoted&quot;"));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_refused_and_one_that_can_stays_as_it_is() {
    let folder = std::env::temp_dir().join(format!("synod-chart-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    assert!(check_writable(&folder).is_err(), "a folder is no file");
    assert!(check_writable(&folder.join("no/such/folder.html")).is_err());
    let file = folder.join("chart.html");
    check_writable(&file).expect("writable");
    assert!(!file.exists(), "nothing is left behind");
    std::fs::write(&file, "kept").expect("written");
    check_writable(&file).expect("writable");
    assert_eq!(std::fs::read_to_string(&file).expect("readable"), "kept");
    let recorder = Recorder::new(Window::ALL);
    let two = Chart::default().write(&folder.join("two.svg"), &[recorder.clone(), recorder.clone()]);
    assert!(two.unwrap_err().to_string().contains("one cluster"));
    Chart::default().write(&file, &[recorder]).expect("written");
    assert!(std::fs::read_to_string(&file).expect("readable").starts_with("<!DOCTYPE html>"));
    std::fs::remove_dir_all(&folder).expect("removed");
}
