//! Rounds: the tables of Santos 2012, chapter 4, from the formulas, beside what the document prints.

use clap::Args as ClapArgs;
use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use synod_model::rounds::{Length, Line};

use crate::study::LabError;

/// The arguments of `synod lab model rounds`.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct Args {
    /// Replicas, for the lengths in steps and the messages in numbers.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    replicas: u32,
    /// The longest delay of a message, in milliseconds (Δ).
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    delay: f64,
    /// The longest time that a replica needs for a step, in milliseconds (Φ).
    #[arg(long, value_name = "MS", default_value_t = 0.05)]
    step: f64,
}

/// What the document prints of a line: initialization, each instance, messages of both; in Table 4.2 the first decision
/// and each instance, in Δ.
struct Printed {
    line: Line,
    name: &'static str,
    initialization: &'static str,
    consensus: &'static str,
    messages: [&'static str; 2],
    short: Option<[f64; 2]>,
}

const PRINTED: [Printed; 6] = [
    Printed {
        line: Line::OneThirdRule,
        name: "OneThirdRule",
        initialization: "3Δ + (4n-1)Φ",
        consensus: "4Δ + (6n-2)Φ",
        messages: ["n²", "2n²"],
        short: Some([7.0, 4.0]),
    },
    Printed {
        line: Line::LastVoting3,
        name: "LastVoting-3, full",
        initialization: "9Δ + (13n-4)Φ",
        consensus: "6Δ + (9n-3)Φ",
        messages: ["4n²", "3n²"],
        short: None,
    },
    Printed {
        line: Line::Phase,
        name: "LastVoting-3, phase",
        initialization: "8Δ + (12n-1)Φ",
        consensus: "5Δ + (7n+2)Φ",
        messages: ["2n²+2n", "n²+2n"],
        short: None,
    },
    Printed {
        line: Line::Piggybacking,
        name: "LastVoting-3, piggybacking",
        initialization: "8Δ + (12n-1)Φ",
        consensus: "4Δ + (4n+1)Φ",
        messages: ["2n²+2n", "n²+2n"],
        short: Some([12.0, 4.0]),
    },
    Printed {
        line: Line::LastVoting4,
        name: "LastVoting-4, full",
        initialization: "11Δ + (12n-5)Φ",
        consensus: "8Δ + (9n-4)Φ",
        messages: ["5n²", "4n²"],
        short: None,
    },
    Printed {
        line: Line::Coordinator,
        name: "LastVoting-4, coordinator",
        initialization: "8Δ + (10n-5)Φ",
        consensus: "6Δ + (4n+2)Φ",
        messages: ["2n²+3n", "4n"],
        short: Some([14.0, 6.0]),
    },
];

/// β/α of the columns of the drift table.
const DRIFTS: [f64; 6] = [1.0, 1.1, 1.25, 1.5, 2.0, 3.0];

/// A length as the document writes it, from what it is for three and for four replicas.
fn formula(of: impl Fn(u32) -> Length) -> String {
    let (three, four) = (of(3), of(4));
    let each = four.steps - three.steps;
    let rest = three.steps - 3.0 * each;
    format!("{}Δ + ({each}n{rest:+})Φ", three.delays)
}

/// The three tables.
///
/// # Errors
/// A figure is outside of the model's range.
pub(super) fn tables(args: &Args) -> Result<String, LabError> {
    if args.replicas < 3 || args.delay <= 0.0 || args.step < 0.0 || !(args.delay + args.step).is_finite() {
        let range = "it holds for three replicas or more, a delay above 0, and a step of 0 or more";
        return Err(LabError::Model(range.to_owned()));
    }
    Ok([
        format!(
            "Good periods with right clocks (Table 4.3), for {} replicas, Δ = {} ms, Φ = {} ms; * differs from what is printed.",
            args.replicas, args.delay, args.step
        ),
        lengths(args),
        "The first decision and each after it, in Δ and in Δ a round, where Φ is nothing beside Δ (Table 4.2).".to_owned(),
        rounds(),
        "The first decision in Δ, by β/α, the ratio of the fastest and the slowest clock (Figure 4.7, without Φ).".to_owned(),
        drift(),
    ]
    .join("\n\n"))
}

fn lengths(args: &Args) -> String {
    let header =
        ["algorithm", "initialization", "printed", "ms", "each", "printed", "ms", "messages", "first, each"];
    table(
        header,
        PRINTED.map(|printed| {
            let cost = |n| printed.line.cost(n, 1.0).expect("right clocks");
            let length = |each: bool| {
                let of = |n| if each { cost(n).consensus } else { cost(n).initialization };
                let ms = of(args.replicas).of(args.delay, args.step);
                (formula(of), format!("{ms:.1}"))
            };
            let ((start, start_ms), (each, each_ms)) = (length(false), length(true));
            let mark = |derived: &str, printed: &str| {
                if derived == printed { printed.to_owned() } else { format!("{printed} *") }
            };
            let (start_printed, each_printed) =
                (mark(&start, printed.initialization), mark(&each, printed.consensus));
            let cost = cost(args.replicas);
            [
                printed.name.to_owned(),
                start,
                start_printed,
                start_ms,
                each,
                each_printed,
                each_ms,
                printed.messages.join(", "),
                format!("{}, {}", cost.initialization_messages, cost.consensus_messages),
            ]
        }),
    )
}

fn rounds() -> String {
    let header =
        ["algorithm", "rounds", "first decision", "printed", "a round", "each", "printed", "a round"];
    let printed = PRINTED.iter().filter_map(|it| it.short.map(|short| (it, short)));
    table(
        header,
        printed.map(|(it, [first_printed, each_printed])| {
            let cost = it.line.cost(3, 1.0).expect("right clocks");
            let rounds = f64::from(it.line.rounds());
            let (first, each) = ((cost.initialization + cost.consensus).delays, cost.consensus.delays);
            [
                it.name.to_owned(),
                format!("{rounds}"),
                format!("{first}"),
                format!("{first_printed}"),
                format!("{:.1}", first / rounds),
                format!("{each}"),
                format!("{each_printed}"),
                format!("{:.1}", each / rounds),
            ]
        }),
    )
}

fn drift() -> String {
    let header = std::iter::once("algorithm".to_owned()).chain(DRIFTS.map(|rho| format!("{rho}")));
    table(
        header,
        PRINTED.map(|printed| {
            let first = |rho| {
                let cost = printed.line.cost(3, rho)?;
                Some(format!("{:.2}", (cost.initialization + cost.consensus).delays))
            };
            let cells = DRIFTS.map(|rho| first(rho).unwrap_or_else(|| "-".to_owned()));
            std::iter::once(printed.name.to_owned()).chain(cells).collect::<Vec<_>>()
        }),
    )
}

fn table<R: IntoIterator<Item = String>>(
    header: impl IntoIterator<Item = impl Into<comfy_table::Cell>>,
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header.into_iter().map(Into::into).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row.into_iter().collect::<Vec<_>>());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        Args { replicas: 5, delay: 10.0, step: 0.5 }
    }

    /// All that is printed is found again, but for erratum E2 and the phase whose time-outs are ours.
    #[test]
    fn the_tables_are_the_documents_but_for_what_is_marked() {
        let text = tables(&args()).unwrap();
        let marked: Vec<_> =
            text.lines().filter(|line| line.starts_with('|') && line.contains('*')).collect();
        assert_eq!(marked.len(), 2, "{text}");
        assert!(marked[0].contains("phase") && marked[0].contains("5Δ + (5n+2)Φ"), "{text}");
        assert!(marked[1].contains("11Δ + (16n-5)Φ") && marked[1].contains("8Δ + (12n-4)Φ"), "{text}");
        let line = |name: &str| text.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
        // 3Δ + 19Φ and 4Δ + 28Φ of five replicas; 25 and 50 messages; 13Δ with clocks of which one is twice as fast.
        let [lengths, rounds, drift] = line("OneThirdRule")[..] else { panic!("{text}") };
        assert!(["39.5", "54.0", "25, 50"].iter().all(|cell| lengths.contains(cell)), "{lengths}");
        assert!(rounds.contains("3.5") && drift.contains("13.00"), "{text}");
        assert!(line("coordinator")[2].contains("27.00"), "{text}");
        assert!(line("piggybacking")[2].matches(" - ").count() == 5, "nothing is known of drift: {text}");
    }

    #[test]
    fn outside_its_range_the_model_names_its_bounds() {
        for wrong in
            [Args { replicas: 2, ..args() }, Args { delay: 0.0, ..args() }, Args { step: -1.0, ..args() }]
        {
            let error = tables(&wrong).unwrap_err().to_string();
            assert!(error.contains("three replicas"), "{error}");
        }
    }
}
