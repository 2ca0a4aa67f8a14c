//! Whole runs against a small server in this process.

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use support::{Behaviour, Server};
use synod_lab::bench::{
    self, CompareOptions, Consistency, Ended, Load, Operation, Options, Report, report_csv, report_text, run,
};

fn options(servers: &[&Server]) -> Options {
    Options {
        endpoints: servers.iter().map(|server| server.address.to_string()).collect(),
        ..Options::default()
    }
}

fn total(options: Options, total: u64) -> Options {
    Options { load: Load { total: Some(total), ..options.load.clone() }, ..options }
}

fn lasting(options: Options, duration: Duration) -> Options {
    Options { load: Load { duration: Some(duration), ..options.load.clone() }, ..options }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn what_is_put_is_found_and_the_report_says_what_ran() {
    let server = Server::start(Behaviour::default());
    let mut options = total(options(&[&server]), 500);
    options.clients = 5;
    options.load.conns = Some(2);
    options.load.sequential_keys = true;
    options.load.key_space_size = 100;
    options.load.val_size = 33;
    let report = run(Operation::Put, &options).unwrap();
    assert_eq!((report.answered, report.failed, report.ended), (500, 0, Ended::Complete));
    assert!(report.succeeded() && report.throughput > 0.0 && report.latency.p50_us > 0);
    assert_eq!(report.series.iter().map(|row| row.answered).sum::<u64>(), 500);
    {
        let seen = server.seen();
        assert_eq!((seen.puts, seen.contents.len()), (500, 100));
        assert!(seen.contents.iter().all(|(key, value)| key.len() == 8 && value.len() == 33));
    }

    let get = Operation::Get(Consistency::Serializable);
    let report = run(get, &total(options, 300)).unwrap();
    assert_eq!((report.answered, report.found), (300, Some(300)));
    assert_eq!(server.seen().serializable_gets, 300);

    let json = serde_json::to_string(&report).unwrap();
    let read: Report = serde_json::from_str(&json).unwrap();
    // Floating-point figures may differ in the last bit.
    assert_eq!(
        (&read.setup, read.answered, read.latency.p999_us),
        (&report.setup, 300, report.latency.p999_us)
    );
    assert!(
        (read.throughput / report.throughput - 1.0).abs() < 1e-9 && read.series.len() == report.series.len()
    );
    let text = report_text(&report, false);
    for part in
        [&server.address.to_string(), "9.8.7", "leader", "5 clients over 2 connections", "p99.9", "loopback"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let csv = report_csv(&report);
    assert_eq!(csv.lines().count(), 1 + report.series.len());
    assert!(csv.lines().all(|line| line.split(',').count() == 8), "{csv}");
}

#[test]
fn values_that_come_in_many_pieces_are_put_together() {
    let server = Server::start(Behaviour::default());
    let mut options = total(options(&[&server]), 5);
    options.load.key_space_size = 1;
    options.load.val_size = 1_000_000;
    assert!(run(Operation::Put, &options).unwrap().succeeded());
    let report = run(Operation::Get(Consistency::Linearizable), &options).unwrap();
    assert_eq!((report.answered, report.found), (5, Some(5)), "{:?}", report.errors);
}

#[test]
fn threads_send_together_exactly_what_is_asked_for() {
    let servers = [Server::start(Behaviour::default()), Server::start(Behaviour::default())];
    let mut options = total(options(&[&servers[0], &servers[1]]), 1_001);
    options.clients = 10;
    options.load.conns = Some(4);
    options.load.threads = Some(3);
    let report =
        run(Operation::Mixed { read_ratio: 0.5, consistency: Consistency::Linearizable }, &options).unwrap();
    assert_eq!((report.answered, report.setup.threads), (1_001, 3));
    let seen = servers.each_ref().map(|server| server.seen().requests());
    assert_eq!(seen[0] + seen[1], 1_001);
    assert!(seen.iter().all(|&seen| seen > 0), "{seen:?}");
    let counts: Vec<u64> = report.by_operation.iter().map(|(_, latency)| latency.count).collect();
    assert_eq!(counts.iter().sum::<u64>(), 1_001);
    assert!(counts.iter().all(|&count| (350..=650).contains(&count)), "{counts:?}");
}

#[test]
fn a_stalled_server_shows_in_the_latency_of_an_open_loop() {
    let stall = Some(500 * MS..1_300 * MS);
    let length = Duration::from_secs(2);
    let server = Server::start(Behaviour { stall: stall.clone(), ..Behaviour::default() });
    let mut open = lasting(options(&[&server]), length);
    open.load.rate = Some(200.0);
    let report = run(Operation::Put, &open).unwrap();
    // 160 of 400 requests are due during the stall; they wait for 400 ms on average.
    assert_eq!((report.answered, report.failed), (400, 0));
    assert!(report.latency.p75_us > 200_000, "{:?}", report.latency);
    let lateness = report.lateness.expect("an open loop has lateness");
    assert!(lateness.count == 400 && lateness.max_us > 500_000, "{lateness:?}");

    // In a closed loop one request is slow and the others are not sent, which hides the stall.
    let server = Server::start(Behaviour { stall, ..Behaviour::default() });
    let report = run(Operation::Put, &lasting(options(&[&server]), length)).unwrap();
    assert!(report.latency.p99_us < 200_000, "{:?}", report.latency);
    assert!(report.latency.max_us > 600_000, "{:?}", report.latency);
    assert!(report.lateness.is_none());
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let server = Server::start(Behaviour::default());
    for poisson in [false, true] {
        let mut options = lasting(options(&[&server]), Duration::from_secs(1));
        options.clients = 8;
        options.load.rate = Some(500.0);
        options.load.poisson = poisson;
        let report = run(Operation::Put, &options).unwrap();
        let expected = if poisson { 400..=600 } else { 500..=500 };
        assert!(expected.contains(&report.answered), "{} answered", report.answered);
    }
}

/// One client, and requests that are due 400 times as often as the server answers. The assertions hold on a
/// machine of any speed: a slower one answers less.
#[test]
fn a_server_that_is_too_slow_for_the_rate_costs_requests_not_memory() {
    let delay = 20 * MS;
    let server = Server::start(Behaviour { delay, ..Behaviour::default() });
    let mut options = lasting(options(&[&server]), 250 * MS);
    options.load.rate = Some(20_000.0);
    options.load.timeout = 100 * MS;
    options.load.give_up_after = Duration::from_secs(300);
    let began = Instant::now();
    let report = run(Operation::Put, &options).unwrap();
    let took = began.elapsed();
    // Every request has its turn, which would take 100 s for all of them; the time-out bounds the backlog.
    assert_eq!(report.answered + report.failed, 5000);
    assert!(took < 5000 * delay / 2, "{took:?}");
    assert!(
        u128::from(report.answered) <= took.as_nanos() / delay.as_nanos(),
        "{} answered",
        report.answered
    );
    // A timer that ends one request is late for thousands that are due 50 microseconds apart.
    assert!(
        report.errors.iter().any(|error| error.message.contains("no client was free")),
        "{:?}",
        report.errors
    );
}

#[test]
fn errors_are_counted_and_the_run_goes_on() {
    let server = Server::start(Behaviour { fail_every: Some(10), ..Behaviour::default() });
    let report = run(Operation::Put, &total(options(&[&server]), 200)).unwrap();
    assert_eq!((report.answered, report.failed, report.ended), (180, 20, Ended::Complete));
    assert!(!report.succeeded());
    let error = &report.errors[0];
    assert_eq!(
        (error.code.as_str(), error.message.as_str(), error.count),
        ("Unavailable", "etcdserver: no leader", 20)
    );
    assert_eq!(report.first_errors.len(), 5);
    assert_eq!(report.first_errors[0].endpoint, server.address.to_string());
    assert!(report_text(&report, false).contains("etcdserver: no leader"));
}

#[test]
fn a_run_that_only_fails_is_given_up() {
    let server = Server::start(Behaviour { silent: true, ..Behaviour::default() });
    let mut options = lasting(options(&[&server]), Duration::from_secs(60));
    options.load.timeout = 100 * MS;
    options.load.give_up_after = 500 * MS;
    options.load.interval = 50 * MS;
    let began = Instant::now();
    let report = run(Operation::Put, &options).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!((report.ended, report.answered), (Ended::GaveUp, 0));
    assert!(report.failed > 0 && !report.succeeded());
    assert!(report.errors[0].message.contains("no answer within 100ms"), "{:?}", report.errors);
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let server = Server::start(Behaviour::default());
    let address = server.address;
    let mut options = lasting(options(&[&server]), 4_000 * MS);
    options.clients = 4;
    options.load.interval = 100 * MS;
    let restarting = thread::spawn(move || {
        while server.seen().puts < 10 {
            thread::sleep(10 * MS);
        }
        drop(server);
        thread::sleep(500 * MS);
        Server::start_at(address, Behaviour::default())
    });
    let report = run(Operation::Put, &options).unwrap();
    let server = restarting.join().unwrap();
    assert!(
        report.failed > 0 && report.errors.iter().all(|error| error.code == "Unavailable"),
        "{:?}",
        report.errors
    );
    assert!(server.seen().puts > 0, "the server that came back got requests");
    // The last whole interval: a run may end some microseconds into the next one.
    let last = report.series.iter().rfind(|row| row.to_seconds <= 4.0).unwrap();
    assert!(last.to_seconds > 3.5 && last.answered > 0 && last.failed == 0, "{last:?}");
}

#[test]
fn the_warm_up_is_discarded() {
    let server = Server::start(Behaviour { delay: 5 * MS, ..Behaviour::default() });
    let mut options = total(options(&[&server]), 20);
    options.load.warmup = 300 * MS;
    let report = run(Operation::Put, &options).unwrap();
    assert_eq!(report.answered, 20);
    assert!(server.seen().puts > 20, "{} puts: none of them was to warm up", server.seen().puts);
    assert!(report.series[0].from_seconds == 0.0 && report.seconds < 5.0);
}

#[test]
fn only_the_leader_is_sent_to_if_so_asked() {
    let follower = Server::start(Behaviour { follows: true, ..Behaviour::default() });
    let leader = Server::start(Behaviour::default());
    let mut options = total(options(&[&follower, &leader]), 50);
    options.target_leader = true;
    options.clients = 2;
    let report = run(Operation::Put, &options).unwrap();
    assert_eq!((follower.seen().puts, leader.seen().puts), (0, 50));
    assert_eq!(
        report.setup.endpoints.iter().map(|endpoint| endpoint.connections).collect::<Vec<_>>(),
        [0, 1]
    );

    options.endpoints.pop();
    let error = run(Operation::Put, &options).unwrap_err().to_string();
    assert!(error.contains("--target-leader") && error.contains("member def"), "{error}");
}

#[test]
fn two_sides_are_compared_pair_by_pair() {
    let slow = Server::start(Behaviour { delay: 20 * MS, ..Behaviour::default() });
    let fast = Server::start(Behaviour::default());
    let options = CompareOptions {
        a_endpoints: vec![slow.address.to_string()],
        b_endpoints: vec![fast.address.to_string()],
        a_name: "slow".into(),
        b_name: "fast".into(),
        pairs: 2,
        target_leader: false,
    };
    let load = Load { duration: Some(300 * MS), ..Options::default().load };
    let mut order = Vec::new();
    let comparison =
        bench::compare(Operation::Put, &options, &[1, 4], &load, &mut |name, clients, pair, _| {
            let run = (clients, pair, name.to_string());
            if order.last() != Some(&run) {
                order.push(run);
            }
        })
        .unwrap();
    let expected = [(1, 1), (1, 2), (4, 1), (4, 2)]
        .map(|(clients, pair)| ["slow", "fast"].map(|name| (clients, pair, name.to_string())));
    assert_eq!(order, expected.concat());
    for level in &comparison.levels {
        let (throughput, p50) = (level.throughput.b_over_a.unwrap(), level.p50_us.b_over_a.unwrap());
        assert!(
            throughput.min > 1.0
                && throughput.min <= throughput.median
                && throughput.median <= throughput.max
        );
        assert!(p50.max < 1.0, "{p50:?}");
    }
    assert!(comparison.succeeded());
    assert_eq!(bench::comparison_csv(&comparison).lines().count(), 1 + 8);
    let text = bench::comparison_text(&comparison);
    assert!(text.contains("fast / slow") && text.contains("throughput"), "{text}");
}
