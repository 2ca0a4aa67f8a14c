//! The models of rounds against the document's Tables 4.2 and 4.3 and the numbers of its Figure 4.7.

use synod_model::rounds::{Length, Line, Steps, longest, uniform_rounds};

fn line(delays: f64, per_replica: f64, more: f64) -> impl Fn(u32) -> Length {
    move |n| Length::new(delays, per_replica * f64::from(n) + more)
}

/// A15: Table 4.3, with Santos E2 in the line of LastVoting of four rounds. The phase of phase synchronisation is
/// shorter than the printed one, and the initialization is the same.
#[test]
fn a15_table_4_3() {
    type Lengths = (f64, f64, f64);
    type Messages = [f64; 2];
    let rows: [(Line, Lengths, Lengths, Messages, Messages); 6] = [
        (Line::OneThirdRule, (3.0, 4.0, -1.0), (4.0, 6.0, -2.0), [1.0, 0.0], [2.0, 0.0]),
        (Line::LastVoting3, (9.0, 13.0, -4.0), (6.0, 9.0, -3.0), [4.0, 0.0], [3.0, 0.0]),
        (Line::Phase, (8.0, 12.0, -1.0), (5.0, 5.0, 2.0), [2.0, 2.0], [1.0, 2.0]),
        (Line::Piggybacking, (8.0, 12.0, -1.0), (4.0, 4.0, 1.0), [2.0, 2.0], [1.0, 2.0]),
        (Line::LastVoting4, (11.0, 16.0, -5.0), (8.0, 12.0, -4.0), [5.0, 0.0], [4.0, 0.0]),
        (Line::Coordinator, (8.0, 10.0, -5.0), (6.0, 4.0, 2.0), [2.0, 3.0], [0.0, 4.0]),
    ];
    for ((one, start, each, start_messages, each_messages), same) in rows.into_iter().zip(Line::ALL) {
        assert_eq!(one, same);
        for n in 3..=9 {
            let cost = one.cost(n, 1.0).unwrap();
            assert_eq!(cost.initialization, line(start.0, start.1, start.2)(n), "{one:?}");
            assert_eq!(cost.consensus, line(each.0, each.1, each.2)(n), "{one:?}");
            let n = f64::from(n);
            let messages = |[all, one]: [f64; 2]| all * n * n + one * n;
            assert_eq!(cost.initialization_messages, messages(start_messages), "{one:?}");
            assert_eq!(cost.consensus_messages, messages(each_messages), "{one:?}");
        }
    }
    let printed = line(5.0, 7.0, 2.0);
    assert!((3..=9).all(|n| Line::Phase.cost(n, 1.0).unwrap().consensus.steps < printed(n).steps));
}

/// A11: the document has no algorithm of piggybacking, only what it costs. It saves a delay, and needs no less before
/// the first instance.
#[test]
fn a11_piggybacking_costs_one_delay_less_than_phase_synchronisation() {
    for n in 3..=9 {
        let (phase, saved) = (Line::Phase.cost(n, 1.0).unwrap(), Line::Piggybacking.cost(n, 1.0).unwrap());
        assert_eq!(phase.initialization, saved.initialization);
        assert_eq!(phase.consensus.delays - saved.consensus.delays, 1.0);
        assert!(saved.consensus.steps < phase.consensus.steps);
        assert_eq!(phase.consensus_messages, saved.consensus_messages);
        assert!(Line::Piggybacking.cost(n, 1.1).is_none(), "nothing is known of clocks that drift");
    }
}

/// A15: Table 4.2, where Φ is nothing beside Δ.
#[test]
fn a15_table_4_2() {
    for (line, first, each) in
        [(Line::OneThirdRule, 7.0, 4.0), (Line::Piggybacking, 12.0, 4.0), (Line::Coordinator, 14.0, 6.0)]
    {
        let cost = line.cost(3, 1.0).unwrap();
        assert_eq!((cost.initialization + cost.consensus).delays, first, "{line:?}");
        assert_eq!(cost.consensus.delays, each, "{line:?}");
    }
}

/// A15: what Figure 4.7 shows, of which the text is left: OneThirdRule is the least sensitive to drift, and
/// synchronisation by a coordinator ends above full synchronisation of three rounds, from 2.78 on.
#[test]
fn a15_drift() {
    let first = |line: Line, rho: f64| {
        let cost = line.cost(3, rho).unwrap();
        (cost.initialization + cost.consensus).delays
    };
    for rho in [1.0, 1.25, 1.5, 2.0, 3.0] {
        assert_eq!(first(Line::OneThirdRule, rho), 6.0 * rho + 1.0);
        assert_eq!(first(Line::LastVoting3, rho), 14.0 * rho + 1.0);
        assert_eq!(first(Line::LastVoting4, rho), 18.0 * rho + 1.0);
        assert_eq!(first(Line::Coordinator, rho), 2.0 * rho * rho + 7.0 * rho + 5.0);
    }
    let crossing = (7.0 + f64::sqrt(17.0)) / 4.0;
    for (rho, is_above) in [(crossing - 0.01, false), (crossing + 0.01, true)] {
        assert_eq!(first(Line::Coordinator, rho) > first(Line::LastVoting3, rho), is_above);
    }
}

/// A14: Lemma 4.1, and Theorem 4.1 without a uniform round, which is the initialization.
#[test]
fn a14_the_calculators_are_the_printed_formulas() {
    assert_eq!(longest(1.5, Length::new(2.0, 4.0)), Length::new(3.0, 6.0));
    assert_eq!(uniform_rounds(5.0, 2.0, 0.0), Length::new(5.0, 2.0 * 9.0 + 2.0 * 5.0));
    assert_eq!(Length::new(3.0, 2.0).of(10.0, 0.5), 31.0);
}

/// Chapter 5 with the least time-outs of Δ = 20 and four replicas: TO = 53 without, and 76 with swift rounds.
#[test]
fn the_bounds_of_chapter_5_are_the_printed_formulas() {
    let steps = Steps { replicas: 4.0, delay_max: 20.0, delay: 3.0, round: 76.0, next: 23.0, alive: 105.0 };
    assert_eq!(Steps { round: 53.0, ..steps }.decided_after(), 159.0 + 20.0 + 16.0 + 8.0);
    assert_eq!(Steps { round: 53.0, ..steps }.instance_at_most(), 106.0 + 3.0 + 12.0 + 6.0);
    assert_eq!(steps.suspecting_at_most(), 9.0 + 24.0 + 6.0);
    assert_eq!(steps.swift_decided_after(), 105.0 + 152.0 + 23.0 + 60.0 + 24.0 + 15.0);
    assert_eq!(steps.swift_from(), 105.0 + 3.0 * 82.0 + 2.0);
    assert_eq!(steps.swift_at_most(), 9.0 + 12.0 + 5.0);
}
