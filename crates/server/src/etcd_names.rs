//! Families of the page `/metrics` that appear by etcd's names too, since dashboards and alert rules for etcd ask for
//! them. They count what comes nearest: slots that the leader has in flight, where etcd counts requests that wait at a
//! member; commits to the log, which have no fsync where the durability asks for none. The buckets of histograms are
//! ours.

/// A family by both names, without a counter's `_total`, and how the label is called there that names a member.
struct Alias {
    ours: &'static str,
    etcds: &'static str,
    label: Option<(&'static str, &'static str)>,
}

const fn alias(ours: &'static str, etcds: &'static str) -> Alias {
    Alias { ours, etcds, label: None }
}

const ALIASES: [Alias; 7] = [
    alias("synod_leader_changes", "etcd_server_leader_changes_seen"),
    alias("synod_slots_in_flight", "etcd_server_proposals_pending"),
    alias("synod_log_commit_seconds", "etcd_disk_wal_fsync_duration_seconds"),
    Alias { label: Some(("peer", "To")), ..alias("synod_peer_sent_bytes", "etcd_network_peer_sent_bytes") },
    Alias {
        label: Some(("peer", "To")),
        ..alias("synod_peer_frames_dropped", "etcd_network_peer_sent_failures")
    },
    Alias {
        label: Some(("peer", "To")),
        ..alias("synod_peer_round_trip_seconds", "etcd_network_peer_round_trip_time_seconds")
    },
    Alias {
        label: Some(("peer", "From")),
        ..alias("synod_peer_received_bytes", "etcd_network_peer_received_bytes")
    },
];

/// The lines of a page in OpenMetrics' format that tell of these families, by etcd's names.
pub(crate) fn by_etcds_names(open: &str) -> String {
    let mut renamed = String::new();
    for alias in &ALIASES {
        for line in open.lines() {
            let (mark, told) = match line.strip_prefix("# ").and_then(|told| told.split_once(' ')) {
                Some((kind, told)) => (format!("# {kind} "), told),
                None => (String::new(), line),
            };
            let Some(rest) = told.strip_prefix(alias.ours).filter(|rest| is_of_family(rest)) else {
                continue;
            };
            let labelled = alias.label.and_then(|(ours, etcds)| with_member(rest, ours, etcds));
            let rest = labelled.as_deref().unwrap_or(rest);
            renamed += &format!("{mark}{}{rest}\n", alias.etcds);
        }
    }
    renamed
}

/// What follows a family's name in a sample, with the label `etcds` in the place of `ours`: a member's id, which etcd
/// writes in hexadecimal digits. `None` if the line has no such label.
fn with_member(rest: &str, ours: &str, etcds: &str) -> Option<String> {
    let (before, value) = rest.split_once(&format!("{ours}=\""))?;
    let (id, after) = value.split_once('"')?;
    Some(format!("{before}{etcds}=\"{:x}\"{after}", id.parse::<u64>().ok()?))
}

/// Whether what follows a family's name in a line is the family's, and not more of another name.
fn is_of_family(rest: &str) -> bool {
    let end = rest.find(['{', ' ']).unwrap_or(rest.len());
    matches!(&rest[..end], "" | "_total" | "_bucket" | "_sum" | "_count")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_appears_whole_by_its_other_name_and_no_other_does() {
        let open = "# HELP synod_leader_changes How often\n# TYPE synod_leader_changes counter\n\
                    synod_leader_changes_total 3\n# TYPE synod_leader gauge\nsynod_leader 1\n\
                    # TYPE synod_log_commit_seconds histogram\n# UNIT synod_log_commit_seconds seconds\n\
                    synod_log_commit_seconds_sum 0.5\nsynod_log_commit_seconds_bucket{le=\"0.1\"} 2\n\
                    # TYPE synod_peer_sent_bytes counter\nsynod_peer_sent_bytes_total{peer=\"12\"} 70\n";
        let expected = "# HELP etcd_server_leader_changes_seen How often\n\
                        # TYPE etcd_server_leader_changes_seen counter\n\
                        etcd_server_leader_changes_seen_total 3\n\
                        # TYPE etcd_disk_wal_fsync_duration_seconds histogram\n\
                        # UNIT etcd_disk_wal_fsync_duration_seconds seconds\n\
                        etcd_disk_wal_fsync_duration_seconds_sum 0.5\n\
                        etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.1\"} 2\n\
                        # TYPE etcd_network_peer_sent_bytes counter\n\
                        etcd_network_peer_sent_bytes_total{To=\"c\"} 70\n";
        assert_eq!(by_etcds_names(open), expected);
    }
}
