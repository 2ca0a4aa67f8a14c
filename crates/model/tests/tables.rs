//! The model against the document's Tables 8.2 to 8.4, cell by cell. The document prints no units and not all inputs.
//! Inferred are: KiB and milliseconds of the costs, Mbit of 2^20 bits, 9.4 of the 10 Mbit/s of Emulab's links, 8 bytes
//! of a vote, the header of a request within what a client's request costs, and requests of 8,100 bytes where 8 KB are
//! printed for the cluster.

use synod_model::batching::{Bound, Costs, Deployment, Headers, Instance, Linear, Load, Network, largest_batch};

const KIB: f64 = 1024.0;

/// Costs in the units of the document: milliseconds, and milliseconds for each KiB.
fn printed(client: (f64, f64), replica: (f64, f64)) -> Costs {
    let linear = |(per_kib, fixed): (f64, f64)| Linear { per_byte: per_kib / KIB / 1e3, fixed: fixed / 1e3 };
    Costs { client: linear(client), replica: linear(replica), execute: 0.0, burst: 0.0 }
}

const HEADERS: Headers = Headers { request: 16.0, batch: 4.0, vote: 8.0 };

fn cluster(request: f64, requests: u32) -> Instance {
    let deployment = Deployment {
        replicas: 3,
        network: Network::Local,
        bandwidth: 940.0 * f64::from(1 << 20) / 8.0,
        delay: 50e-6,
    };
    let costs = printed((0.005, 0.08), (0.0035, 0.22));
    Instance::foretell(&deployment, &Load { request, answer: 8.0 }, &HEADERS, &costs, requests).unwrap()
}

fn emulab_deployment() -> (Deployment, Costs) {
    let deployment = Deployment {
        replicas: 3,
        network: Network::Wide,
        bandwidth: 9.4 * f64::from(1 << 20) / 8.0,
        delay: 0.05,
    };
    (deployment, printed((0.28, 0.2), (0.002, 1.5)))
}

fn emulab(request: f64, requests: u32) -> Instance {
    let (deployment, costs) = emulab_deployment();
    Instance::foretell(&deployment, &Load { request, answer: 8.0 }, &HEADERS, &costs, requests).unwrap()
}

/// Whether `value` has the printed digits. Throughputs are printed without what stands behind the point.
fn is_printed(value: f64, cell: &str) -> bool {
    let digits = cell.split_once('.').map_or(0, |(_, digits)| digits.len());
    format!("{value:.digits$}") == cell
}

/// Cells that differ from `rows`, each with its row and column.
fn wrong<const N: usize>(rows: &[([f64; N], [&str; N])]) -> Vec<(usize, usize)> {
    let cells = rows.iter().enumerate().flat_map(|(row, (values, cells))| {
        let columns = values.iter().zip(cells).enumerate();
        columns.filter(|(_, (value, cell))| !is_printed(**value, cell)).map(move |(column, _)| (row, column))
    });
    cells.collect()
}

/// Table 8.2: processor a request and an instance, channel and duration of an instance in ms, both windows.
#[test]
fn table_8_2_is_reproduced() {
    let rows = [
        ["0.52", "0.52", "0.00", "0.52", "1.00", "211.73"],
        ["0.30", "0.60", "0.00", "0.60", "1.00", "124.18"],
        ["0.19", "0.77", "0.01", "0.77", "1.00", "79.52"],
        ["0.14", "1.09", "0.02", "1.10", "1.00", "56.97"],
        ["0.11", "1.75", "0.04", "1.76", "1.01", "45.63"],
        ["0.10", "3.06", "0.08", "3.07", "1.01", "39.95"],
        ["0.09", "5.67", "0.15", "5.71", "1.01", "37.11"],
        ["0.09", "10.90", "0.31", "10.98", "1.01", "35.68"],
        ["0.08", "21.36", "0.62", "21.51", "1.01", "34.97"],
        ["0.08", "42.28", "1.23", "42.58", "1.01", "34.62"],
    ];
    let compared: Vec<_> = rows
        .into_iter()
        .enumerate()
        .map(|(power, cells)| {
            let one = cluster(128.0, 1 << power);
            let values = [one.processor / one.requests, one.processor, one.channel, one.duration]
                .map(|seconds| seconds * 1e3);
            let [a, b, c, d] = values;
            ([a, b, c, d, one.window_of_processor(), one.window_of_channel()], cells)
        })
        .collect();
    assert_eq!(wrong(&compared), []);
}

/// The cells of Tables 8.3 and 8.4: request bytes, requests of a batch; both windows and requests a second.
type Row = (f64, u32, [&'static str; 3]);

fn compared(rows: &[Row], instance: impl Fn(f64, u32) -> Instance) -> Vec<([f64; 3], [&'static str; 3])> {
    let one = |&(request, requests, cells): &Row| {
        let one = instance(request, requests);
        let throughput = one.requests_per_second().floor();
        ([one.window_of_processor(), one.window_of_channel(), throughput], cells)
    };
    rows.iter().map(one).collect()
}

#[test]
fn table_8_3_is_reproduced() {
    let rows: [Row; 15] = [
        (128.0, 1, ["1", "211.73", "1916"]),
        (128.0, 2, ["1", "124.18", "3313"]),
        (128.0, 8, ["1", "56.97", "7313"]),
        (128.0, 256, ["1", "34.97", "11983"]),
        (128.0, 512, ["1", "34.62", "12108"]),
        (1024.0, 1, ["1.01", "31.54", "1878"]),
        (1024.0, 2, ["1.01", "18.64", "3202"]),
        (1024.0, 8, ["1.03", "8.93", "6791"]),
        (1024.0, 256, ["1.04", "5.79", "10644"]),
        (1024.0, 512, ["1.05", "5.74", "10742"]),
        (8100.0, 1, ["1.05", "4.92", "1625"]),
        (8100.0, 2, ["1.08", "3.25", "2530"]),
        (8100.0, 8, ["1.14", "2", "4344"]),
        (8100.0, 32, ["1.17", "1.68", "5293"]),
        (8100.0, 64, ["1.17", "1.63", "5493"]),
    ];
    // 1.18 where 1.17 is printed.
    assert_eq!(wrong(&compared(&rows, cluster)), [(14, 0)]);
    assert!(rows.iter().all(|&(request, requests, _)| cluster(request, requests).window() == 1));
}

#[test]
fn table_8_4_is_reproduced() {
    let rows: [Row; 15] = [
        (128.0, 1, ["30.88", "833.48", "308"]),
        (128.0, 2, ["28.77", "422.94", "574"]),
        (128.0, 8, ["20.45", "107.58", "1620"]),
        (128.0, 128, ["3.38", "7.68", "3765"]),
        (128.0, 512, ["1.47", "3.12", "4032"]),
        (1024.0, 1, ["28.89", "119.01", "286"]),
        (1024.0, 2, ["25.54", "60.12", "502"]),
        (1024.0, 8, ["15.42", "15.80", "1155"]),
        (1024.0, 128, ["3.16", "1.93", "1184"]),
        (1024.0, 256, ["2.68", "1.60", "1184"]),
        (8192.0, 1, ["19.47", "16.00", "150"]),
        (8192.0, 2, ["14.24", "8.50", "150"]),
        (8192.0, 8, ["6.72", "2.88", "150"]),
        (8192.0, 16, ["4.84", "1.94", "150"]),
        (8192.0, 32, ["3.80", "1.47", "150"]),
    ];
    // 119.02 where 119.01 is printed.
    assert_eq!(wrong(&compared(&rows, emulab)), [(5, 1)]);
}

/// Section 8.6 of the document: requests of 1 KB in batches of 8 KB want a window of 16.
#[test]
fn the_worked_example_has_a_window_of_16() {
    assert_eq!(emulab(1024.0, 8).window(), 16);
    assert_eq!(emulab(8192.0, 1).window(), 16);
}

/// The document's cases: many small requests are bound by the processor, few by the round trip.
#[test]
fn what_binds_an_instance_is_named() {
    assert_eq!(emulab(128.0, 512).bound, Bound::Processor);
    assert_eq!(emulab(8192.0, 32).bound, Bound::Latency);
    assert_eq!(cluster(128.0, 1).bound, Bound::Processor);
}

#[test]
fn a_window_below_the_right_one_loses_throughput_and_one_above_gains_none() {
    let one = emulab(1024.0, 8);
    let best = one.requests_per_second();
    assert!(one.requests_per_second_with(8) < 0.55 * best);
    assert!(one.requests_per_second_with(one.window()) > 0.99 * best);
    assert!((one.requests_per_second_with(1000) - best).abs() < 1e-9);
}

#[test]
fn a_burst_costs_the_processor_once_an_instance() {
    let (deployment, costs) = emulab_deployment();
    let load = Load { request: 128.0, answer: 8.0 };
    let with = |burst| {
        let costs = Costs { burst, ..costs };
        Instance::foretell(&deployment, &load, &HEADERS, &costs, 64).unwrap().processor
    };
    assert!((with(0.001) - with(0.0) - 0.001).abs() < 1e-12);
}

#[test]
fn the_largest_batch_meets_the_target_and_one_more_request_does_not() {
    let (deployment, costs) = emulab_deployment();
    let load = Load { request: 128.0, answer: 8.0 };
    let first_answer = |requests: u32, rate: f64| {
        let one = Instance::foretell(&deployment, &load, &HEADERS, &costs, requests).unwrap();
        f64::from(requests - 1) / rate + one.duration
    };
    for (target, rate) in [(0.11, 1000.0), (0.2, 1000.0), (0.2, 20.0), (1.0, 5000.0)] {
        let requests = largest_batch(&deployment, &load, &HEADERS, &costs, (target, rate)).unwrap();
        assert!(
            first_answer(requests, rate) <= target,
            "{requests} requests within {target} s at {rate} a second"
        );
        assert!(
            first_answer(requests + 1, rate) > target,
            "{requests} requests within {target} s at {rate} a second"
        );
    }
    assert_eq!(
        largest_batch(&deployment, &load, &HEADERS, &costs, (0.09, 1000.0)),
        None,
        "below the round trip"
    );
}

#[test]
fn outside_its_range_the_model_says_nothing() {
    let (deployment, costs) = emulab_deployment();
    let load = Load { request: 128.0, answer: 8.0 };
    let foretell = |deployment: &Deployment, load: &Load, costs: &Costs, requests| {
        Instance::foretell(deployment, load, &HEADERS, costs, requests)
    };
    assert!(foretell(&deployment, &load, &costs, 1).is_some());
    assert!(foretell(&deployment, &load, &costs, 0).is_none());
    assert!(foretell(&Deployment { replicas: 0, ..deployment }, &load, &costs, 1).is_none());
    assert!(foretell(&Deployment { bandwidth: 0.0, ..deployment }, &load, &costs, 1).is_none());
    assert!(foretell(&Deployment { delay: f64::NAN, ..deployment }, &load, &costs, 1).is_none());
    assert!(foretell(&deployment, &Load { request: -1.0, ..load }, &costs, 1).is_none());
    assert!(foretell(&deployment, &load, &Costs { burst: f64::INFINITY, ..costs }, 1).is_none());
}

/// A channel without a limit leaves the processor and the round trip.
#[test]
fn a_single_replica_waits_for_nobody() {
    let (deployment, costs) = emulab_deployment();
    let alone = Deployment { replicas: 1, bandwidth: f64::INFINITY, ..deployment };
    let one = Instance::foretell(&alone, &Load { request: 128.0, answer: 8.0 }, &HEADERS, &costs, 4).unwrap();
    assert_eq!((one.bound, one.window(), one.channel), (Bound::Processor, 1, 0.0));
    assert!((one.requests_per_second() - 4.0 / one.processor).abs() < 1e-9);
}
