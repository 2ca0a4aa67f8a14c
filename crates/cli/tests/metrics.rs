//! The page `/metrics` of a real replica, read by a parser of OpenMetrics that is not part of this project.

mod commands;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread,
    time::Duration,
};

use openmetrics_parser::{
    OpenMetricsType as Kind, OpenMetricsValue as Value, openmetrics::parse_openmetrics,
    prometheus::parse_prometheus,
};

use synod_testkit::{processes::Cluster, until};

use self::commands::{SYNOD, done, synod};

const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page: the type of its content, and the content.
fn scrape(endpoint: &str, accept: &str) -> (String, String) {
    let address = endpoint.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{accept}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let header = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    (header.expect("the content has a type").to_owned(), body.to_owned())
}

/// Values that never fall, by the name of the sample with its labels: counters, and the counts and buckets of
/// histograms.
type Rising = BTreeMap<String, f64>;

/// Checks a page by the parser and by the rules that it does not know.
fn checked(page: &str) -> Rising {
    for (keyword, all) in [("# HELP ", "help"), ("# TYPE ", "type"), ("# UNIT ", "unit")] {
        let mut names: Vec<_> =
            page.lines().filter_map(|line| line.strip_prefix(keyword)?.split(' ').next()).collect();
        names.sort_unstable();
        let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "a family has one {all} and one place: {twice:?}");
    }
    assert!(page.ends_with("\n# EOF\n"));
    let parsed = parse_openmetrics(page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    let mut rising = Rising::new();
    for (name, family) in &parsed.families {
        assert!(!family.help.is_empty(), "{name} has no help");
        assert_ne!(family.family_type, Kind::Unknown, "{name} has no type");
        for unit in ["bytes", "seconds"] {
            let expected = name.ends_with(&format!("_{unit}")) && family.family_type != Kind::Histogram;
            assert_eq!(family.unit == unit, expected, "the unit of {name}");
        }
        for sample in family.iter_samples() {
            let labels = sample.get_labelset().unwrap();
            let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let place = format!("{name}{{{}}}", labels.join(","));
            match &sample.value {
                Value::Counter(counter) => {
                    assert!(counter.value.as_f64() >= 0.0, "{place}");
                    assert!(rising.insert(place, counter.value.as_f64()).is_none());
                }
                Value::Histogram(histogram) => {
                    let count = histogram.count.expect("a histogram has a count") as f64;
                    let buckets = &histogram.buckets;
                    let ordered = buckets.windows(2).all(|pair| {
                        pair[0].upper_bound < pair[1].upper_bound
                            && pair[0].count.as_f64() <= pair[1].count.as_f64()
                    });
                    assert!(ordered, "{place}: {buckets:?}");
                    let last = buckets.last().unwrap();
                    assert!(last.upper_bound.is_infinite() && last.count.as_f64() == count, "{place}");
                    assert!(histogram.sum.is_some(), "{place}");
                    for bucket in buckets {
                        rising.insert(format!("{place} le {}", bucket.upper_bound), bucket.count.as_f64());
                    }
                    rising.insert(format!("{place} sum"), histogram.sum.unwrap().as_f64());
                }
                _ => {}
            }
        }
    }
    rising
}

/// The value of a sample, by its name and labels as they are written.
fn value(page: &str, sample: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{sample} is not in\n{page}")).parse().unwrap()
}

#[test]
fn metrics_are_valid_openmetrics_and_say_what_is_wanted_to_know() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &[]);
    let endpoint = cluster.endpoints().remove(0);
    until("it serves", || synod(&["put", "a", "1", "--endpoints", &endpoint]).status.success());
    let open = "accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";
    let (kind, page) = scrape(&endpoint, open);
    assert_eq!(kind, OPEN);
    let before = checked(&page);

    done(&endpoint, &["put", "b", "2"]);
    done(&endpoint, &["get", "b"]);
    done(&endpoint, &["compact", "2"]);
    // A page is given to all who ask within a tenth of a second, so the next one has to be made.
    thread::sleep(Duration::from_millis(200));
    let (kind, page) = scrape(&endpoint, open);
    assert_eq!(kind, OPEN);
    let after = checked(&page);
    for (place, earlier) in &before {
        assert!(after.get(place).is_some_and(|later| later >= earlier), "{place} was {earlier}\n{page}");
    }

    let put = |suffix: &str| format!("synod_request_seconds_{suffix}{{method=\"/etcdserverpb.KV/Put\"}}");
    assert!(value(&page, &put("count")) >= 2.0 && value(&page, &put("sum")) > 0.0);
    let answered = "synod_requests_total{method=\"/etcdserverpb.KV/Range\",code=\"OK\"}";
    assert_eq!(value(&page, answered), 1.0);
    assert!(value(&page, "synod_commands_total") >= 3.0);
    assert!(value(&page, "synod_log_commit_seconds_count") >= 1.0);
    assert_eq!(value(&page, "synod_store_keys"), 2.0);
    assert_eq!(value(&page, "synod_store_revision"), 3.0);
    assert_eq!(value(&page, "synod_store_compacted_revision"), 2.0);
    assert!(value(&page, "synod_store_size_bytes") > 0.0);
    assert_eq!(value(&page, "synod_store_quota_bytes"), f64::from(1 << 30) * 2.0);
    assert_eq!(value(&page, "synod_alarms{alarm=\"NOSPACE\"}"), 0.0);
    assert_eq!(value(&page, "synod_members{standing=\"voter\"}"), 3.0);
    assert_eq!(value(&page, "synod_members{standing=\"learner\"}"), 0.0);
    let version = format!("synod_build_info{{version=\"{}\",etcd_api=\"3.7.3\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&page, &version), 1.0);
    assert!(value(&page, "synod_peer_sent_bytes_total{peer=\"2\"}") > 0.0);
    // What alert rules for etcd ask for.
    assert!(value(&page, "etcd_server_leader_changes_seen_total") >= 1.0);
    assert_eq!(value(&page, "etcd_server_proposals_pending"), value(&page, "synod_slots_in_flight"));
    let commits = value(&page, "synod_log_commit_seconds_count");
    assert_eq!(value(&page, "etcd_disk_wal_fsync_duration_seconds_count"), commits);
    assert!(value(&page, "etcd_network_peer_sent_bytes_total{To=\"2\"}") > 0.0);
    let put = "grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
    assert!(value(&page, &format!("grpc_server_handled_total{{{put}}}")) >= 2.0);
    assert!(value(&page, "process_resident_memory_bytes") > 1e6);
    assert!(value(&page, "process_cpu_seconds_total") > 0.0);
    assert!(value(&page, "process_start_time_seconds") > 1.7e9);
    assert!(value(&page, "process_open_fds") < value(&page, "process_max_fds"));

    // Peers are asked for the first time after some seconds.
    until("a peer answers", || {
        let (_, page) = scrape(&endpoint, open);
        checked(&page);
        page.contains("etcd_network_peer_round_trip_time_seconds_count{To=\"2\"}")
            && value(&page, "synod_peer_round_trip_seconds_count{peer=\"2\"}") >= 1.0
    });

    let (kind, page) = scrape(&endpoint, "");
    assert_eq!(kind, CLASSIC);
    parse_prometheus(&page).unwrap_or_else(|error| panic!("{error}\n{page}"));
    assert!(page.contains("# TYPE synod_requests_total counter\n") && !page.contains("# EOF"), "{page}");
}
