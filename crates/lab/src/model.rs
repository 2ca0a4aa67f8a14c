//! `synod lab model`: what the documents' formulas foretell, as tables.

mod rounds;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use synod_model::batching::{Bound, Costs, Deployment, Headers, Instance, Linear, Load, Network};

use crate::study::LabError;

/// The arguments of `synod lab model`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    model: Model,
}

#[derive(Clone, Debug, Subcommand)]
enum Model {
    /// Batches and windows: how busy the leader's processor and channel are, how long an instance takes, and which
    /// window leaves no pause (Santos 2012, chapter 8; without flags the table is its Table 8.2)
    Batching(BatchingArgs),
    /// Rounds: the good period that each algorithm needs and what it sends, beside what the document prints (Santos
    /// 2012, Tables 4.2 and 4.3), and how drift of clocks lengthens it (its Figure 4.7)
    Rounds(rounds::Args),
}

#[derive(Clone, Debug, ClapArgs)]
struct BatchingArgs {
    /// Whose measured costs, network and delay: those of the document's cluster or of its Emulab test bed.
    #[arg(long, value_enum, default_value_t = Bed::Cluster)]
    bed: Bed,
    /// Replicas.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    replicas: usize,
    /// Mbit a second (of 2^20 bits) of the leader's card, or of each link [default: the test bed's].
    #[arg(long, value_name = "MBIT")]
    bandwidth: Option<f64>,
    /// Milliseconds from one replica to another [default: the test bed's].
    #[arg(long, value_name = "MS")]
    delay: Option<f64>,
    /// Bytes of a request.
    #[arg(long, value_name = "BYTES", default_value_t = 128.0)]
    request: f64,
    /// Bytes of an answer.
    #[arg(long, value_name = "BYTES", default_value_t = 8.0)]
    answer: f64,
    /// Milliseconds that executing a request takes.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    execute: f64,
    /// Milliseconds of the processor for each instance, whatever is in it; the document has no such cost.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    burst: f64,
}

/// A test bed of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bed {
    /// Pentium 4 at 3 GHz, Gigabit Ethernet.
    Cluster,
    /// Pentium III at 850 MHz, links of 10 Mbit/s and 50 ms between data centres.
    Emulab,
}

const KIB: f64 = 1024.0;
/// Bytes a second in a Mbit a second, as the document's figures fit.
const MBIT: f64 = (1 << 20) as f64 / 8.0;
/// Requests of the batches in the table: 1, 2, 4, ..., 512.
const DOUBLINGS: u32 = 10;

impl Bed {
    /// The fitted costs (Santos 2012, section 8.5.1), which are milliseconds, and milliseconds for each KiB.
    fn costs(self) -> Costs {
        let linear = |per_kib: f64, fixed: f64| Linear { per_byte: per_kib / KIB / 1e3, fixed: fixed / 1e3 };
        let (client, replica) = match self {
            Bed::Cluster => (linear(0.005, 0.08), linear(0.0035, 0.22)),
            Bed::Emulab => (linear(0.28, 0.2), linear(0.002, 1.5)),
        };
        Costs { client, replica, execute: 0.0, burst: 0.0 }
    }

    /// How replicas are connected, with what Mbit a second, and milliseconds of delay.
    fn network(self) -> (Network, f64, f64) {
        match self {
            Bed::Cluster => (Network::Local, 940.0, 0.05),
            Bed::Emulab => (Network::Wide, 9.4, 50.0),
        }
    }
}

/// The table that was asked for.
///
/// # Errors
/// A figure is outside of the model's range.
pub(crate) fn run(args: &Args) -> Result<String, LabError> {
    match &args.model {
        Model::Batching(args) => batching(args),
        Model::Rounds(args) => rounds::tables(args),
    }
}

fn batching(args: &BatchingArgs) -> Result<String, LabError> {
    let (network, bandwidth, delay) = args.bed.network();
    let bandwidth = args.bandwidth.unwrap_or(bandwidth) * MBIT;
    let deployment =
        Deployment { replicas: args.replicas, network, bandwidth, delay: args.delay.unwrap_or(delay) / 1e3 };
    let load = Load { request: args.request, answer: args.answer };
    let headers = Headers { request: 16.0, batch: 4.0, vote: 8.0 };
    let costs = Costs { execute: args.execute / 1e3, burst: args.burst / 1e3, ..args.bed.costs() };
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "requests a batch",
        "proposal, bytes",
        "processor, ms",
        "channel, ms",
        "instance, ms",
        "bound by",
        "w of the processor",
        "w of the channel",
        "window",
        "requests/s",
    ]);
    for requests in (0..DOUBLINGS).map(|doublings| 1 << doublings) {
        let one = Instance::foretell(&deployment, &load, &headers, &costs, requests).ok_or_else(|| {
            LabError::Model(
                "it holds for one replica or more, a bandwidth above 0, and sizes, delays and costs of 0 or more"
                    .to_owned(),
            )
        })?;
        table.add_row(row(&one));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Ok(table.to_string())
}

fn row(one: &Instance) -> [String; 10] {
    let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
    let bound = match one.bound {
        Bound::Processor => "processor",
        Bound::Bandwidth => "bandwidth",
        Bound::Latency => "latency",
    };
    [
        format!("{:.0}", one.requests),
        format!("{:.0}", one.proposal),
        ms(one.processor),
        ms(one.channel),
        ms(one.duration),
        bound.to_owned(),
        format!("{:.2}", one.window_of_processor()),
        format!("{:.2}", one.window_of_channel()),
        one.window().to_string(),
        format!("{:.0}", one.requests_per_second().floor()),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn table(line: &str) -> Result<String, LabError> {
        let words = ["model", "batching"].into_iter().chain(line.split_whitespace());
        run(&Line::try_parse_from(words).expect("flags").args)
    }

    /// Santos 2012, Table 8.2, the row of 128 requests, and Table 8.4, 1 KB in batches of 8 KB.
    #[test]
    fn the_tables_are_the_documents() {
        let cluster = table("").unwrap();
        let row = cluster.lines().find(|line| line.contains(" 18436 ")).unwrap();
        for cell in ["10.90", "0.31", "10.98", "1.01", "35.68", "11741"] {
            assert!(row.contains(cell), "{row}");
        }
        let emulab = table("--bed emulab --request 1024").unwrap();
        let row = emulab.lines().find(|line| line.contains(" 8324 ")).unwrap();
        for cell in ["latency", "15.42", "15.80", " 16 ", "1155"] {
            assert!(row.contains(cell), "{row}");
        }
    }

    #[test]
    fn outside_its_range_the_model_names_its_bounds() {
        for line in ["--replicas 0", "--bandwidth 0", "--delay=-1", "--request=-1", "--burst=-1"] {
            let error = table(line).unwrap_err().to_string();
            assert!(error.contains("one replica or more") && error.contains("above 0"), "{line}: {error}");
        }
    }
}
