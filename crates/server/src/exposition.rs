//! The page `/metrics`: the counters of the replica and the server, and the state of the store and the group.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder,
        text::{encode_eof, encode_registry},
    },
    registry::Registry,
};
use synod_api::{etcdserverpb::AlarmType, synod::v1::KvStatus};
use synod_metrics::Families;
use tokio::{sync::Mutex, time::timeout};

use crate::{
    Consistency, Group, Replica, Status, Watches,
    etcd_names::by_etcds_names,
    services::{API_VERSION, Store},
};

/// How long to wait for the store's status. If it takes longer, the page lacks the store's metrics.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The format of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0, for a scraper that asks for it.
    Open,
    /// Prometheus's text format 0.0.4, as etcd has it.
    Classic,
}

impl Format {
    /// The format to send for `Accept` headers with these values.
    pub(crate) fn accepted<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
        let kind = |range: &'a str| range.split(';').next().unwrap_or_default().trim();
        let mut kinds = accept.flat_map(|value| value.split(',')).map(kind);
        match kinds.any(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text")) {
            true => Format::Open,
            false => Format::Classic,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// How long a page is given to others who ask, as a multiple of the time that it took: it has tens of thousands of
/// bytes, and takes a millisecond of a thread that may be the protocol's. So pages take a twentieth of that at most,
/// and who looks after a write that was answered finds it counted, unless others look all the time.
const SHARED: u32 = 20;
/// However long it took.
const SHARED_MAX: Duration = Duration::from_millis(100);

/// The page, which is made once for all who ask at the same time.
#[derive(Debug)]
pub(crate) struct Exposition {
    counted: Registry,
    made: Mutex<Option<Made>>,
}

#[derive(Debug)]
struct Made {
    at: Instant,
    took: Duration,
    open: Bytes,
    classic: Bytes,
}

impl Exposition {
    /// What there is to count; the state of the store and the group is added.
    pub(crate) fn new(counted: Registry) -> Exposition {
        Exposition { counted, made: Mutex::default() }
    }

    /// All metrics as they were at most [`SHARED_MAX`] ago. Those who ask while it is made wait for it.
    pub(crate) async fn page<R: Replica>(
        &self,
        store: &Store<R>,
        format: Format,
    ) -> Result<Bytes, fmt::Error> {
        let mut made = self.made.lock().await;
        let is_old = |made: &Made| made.at.elapsed() >= SHARED_MAX.min(made.took * SHARED);
        if made.as_ref().is_none_or(is_old) {
            let began = Instant::now();
            let open = exposition(&self.counted, store).await?;
            let classic = classic(&open).into();
            let at = Instant::now();
            *made = Some(Made { at, took: at - began, open: open.into(), classic });
        }
        let Made { open, classic, .. } = made.as_ref().expect("it was made");
        Ok(match format {
            Format::Open => open.clone(),
            Format::Classic => classic.clone(),
        })
    }
}

/// Writes all metrics, as of now.
async fn exposition<R: Replica>(counted: &Registry, store: &Store<R>) -> Result<String, fmt::Error> {
    let status = timeout(STORE_TIMEOUT, store.status(Consistency::Present)).await;
    let present = Present {
        store: status.ok().and_then(Result::ok),
        quota_bytes: store.quota_bytes(),
        watches: store.watches().ok().map(Watches::counts),
        status: store.replica().status(),
        group: store.replica().group(),
        groups: match store.groups() {
            // Those that are merged into one order, if they are.
            [only] => only.status().merged,
            several => several.iter().map(Replica::status).collect(),
        },
        is_spread: store.groups().len() > 1,
    };
    let mut now = Registry::default();
    now.register_collector(Box::new(present));
    let mut text = String::new();
    encode_registry(&mut text, counted)?;
    encode_registry(&mut text, &now)?;
    // As with the state below: of several groups none speaks for all.
    if store.groups().len() == 1 {
        text += &by_etcds_names(&text);
    }
    encode_eof(&mut text)?;
    Ok(text)
}

/// Values that are read for the page, and not counted along the way.
#[derive(Debug)]
struct Present {
    /// `None` if the store did not answer in time.
    store: Option<KvStatus>,
    quota_bytes: u64,
    /// Watches that are open, and how many of them have not been told everything.
    watches: Option<(usize, usize)>,
    status: Status,
    group: Arc<Group>,
    /// By the number of the group; empty if there is one only.
    groups: Vec<Status>,
    /// The keys are spread over the groups, so that there is no single state.
    is_spread: bool,
}

impl Collector for Present {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(&mut encoder);
        let Group { protocol, election, overrides, members, epoch, version, .. } = &*self.group;
        let labels = [
            ("protocol", &protocol.to_string()),
            ("election", &election.to_string()),
            ("dissemination", &overrides.dissemination().to_string()),
            ("durability", &self.status.durability),
        ];
        families.info("synod_ordering", "What orders, and what this replica makes durable", &labels)?;
        families.gauge("synod_epoch", "Grows with every change of voters or of what orders", epoch.0)?;
        families.gauge("synod_group_version", "Grows with every change of the group", *version)?;
        let voters = self.group.voters().count();
        let kinds = [("voter", voters), ("learner", members.len() - voters)];
        let kinds = kinds.map(|(standing, count)| ([("standing", standing)], count as u64));
        families.gauges("synod_members", "Members of the group as this replica knows it", kinds)?;
        let help = "The size of the store at which writes are refused; 0 if there is no bound";
        families.gauge_bytes("synod_store_quota", help, self.quota_bytes)?;
        if let Some((open, behind)) = self.watches {
            families.gauge("synod_watches", "Watches of clients that are open", open as u64)?;
            let help = "Watches whose clients have not been told everything yet";
            families.gauge("synod_watches_behind", help, behind as u64)?;
        }
        if !self.groups.is_empty() {
            let labelled = |value: fn(&Status) -> u64| {
                let numbered = self.groups.iter().enumerate();
                numbered.map(move |(number, status)| ([("group", number.to_string())], value(status)))
            };
            let leads = labelled(|status| u64::from(status.leads()));
            families.gauges("synod_group_leads", "Whether this replica leads the group", leads)?;
            let help =
                "0 follower, 1 candidate, 2 leader, 3 recovering, 4 learner, 5 away, which takes no part";
            families.gauges("synod_group_role", help, labelled(role_number))?;
            let help = "Whether the replica lost (part of) its log, and does not vote yet in the group, which may need it";
            let forgets = labelled(|status| u64::from(status.node.without_memory));
            families.gauges("synod_group_without_memory", help, forgets)?;
            let help = "Replicas that have decided something else in the group than this one";
            let forked = labelled(|status| status.node.forked_with.len() as u64);
            families.gauges("synod_group_forked_peers", help, forked)?;
            let help = "Whether the group has the members of group 0";
            let follows = labelled(|status| u64::from(status.members_pending.is_empty()));
            families.gauges("synod_group_has_members", help, follows)?;
            let help = "The last slot of the group decided without a gap before it";
            families.gauges("synod_group_decided_slot", help, labelled(|status| status.node.decided.0))?;
            let help = "The last slot of the group that was executed";
            families.gauges("synod_group_applied_slot", help, labelled(|status| status.node.executed.0))?;
        }
        if !self.is_spread {
            self.encode_as_etcd(&mut families)?;
        }
        let Some(store) = &self.store else { return Ok(()) };
        let help = "Keys and values with their versions, as they count against the quota";
        families.gauge_bytes("synod_store_size", help, store.size_bytes)?;
        families.gauge("synod_store_keys", "Keys that are there", store.keys)?;
        families.gauge("synod_store_versions", "Versions of keys that are kept", store.versions)?;
        // Groups over which keys are spread have no common revision.
        if !self.is_spread {
            let revision = |revision: i64| revision.max(0).unsigned_abs();
            families.gauge("synod_store_revision", "The store's revision", revision(store.revision))?;
            let help = "The revision through which versions were compacted; 0 if none were";
            families.gauge("synod_store_compacted_revision", help, revision(store.compact_revision))?;
        }
        let alarms = [AlarmType::Nospace, AlarmType::Corrupt].map(|kind| {
            let raised = store.alarms.iter().filter(|raised| raised.alarm() == kind).count();
            ([("alarm", kind.as_str_name())], raised as u64)
        });
        families.gauges("synod_alarms", "Members for which an alarm is raised", alarms)
    }
}

/// As `synod_role` has it of the first group, and one more for a group in which the replica takes no part.
fn role_number(status: &Status) -> u64 {
    if status.is_away() { AWAY } else { synod_node::role_number(status.node.role).into() }
}

/// See [`role_number`].
const AWAY: u64 = 5;

impl Present {
    /// What dashboards and alert rules for etcd look at most, by etcd's names.
    fn encode_as_etcd(&self, families: &mut Families<'_, '_>) -> fmt::Result {
        let status = &self.status;
        let leads = status.leads();
        let learns = self.group.learns(status.replica);
        let has_leader = u64::from(status.node.leader.is_some());
        families.gauge("etcd_server_has_leader", "Whether this replica knows a leader", has_leader)?;
        families.gauge("etcd_server_is_leader", "Whether this replica leads", u64::from(leads))?;
        families.gauge("etcd_server_is_learner", "Whether this replica is a learner", u64::from(learns))?;
        let one = |label, value: String| [([(label, value)], 1)];
        let id = one("server_id", format!("{:x}", status.replica.0));
        families.gauges("etcd_server_id", "The id of this replica", id)?;
        let version = one("server_version", API_VERSION.to_owned());
        families.gauges("etcd_server_version", "The version of etcd's API that is served", version)?;
        let (short, _patch) = API_VERSION.rsplit_once('.').expect("it has three parts");
        let version = one("cluster_version", short.to_owned());
        families.gauges(
            "etcd_cluster_version",
            "The version of etcd's API that all members serve",
            version,
        )?;
        let help = "The last slot that this replica knows to be decided";
        families.counter("etcd_server_proposals_committed", help, status.node.decided.0)?;
        let help = "The last slot that this replica has executed";
        families.counter("etcd_server_proposals_applied", help, status.node.executed.0)?;
        if self.quota_bytes > 0 {
            let help = "The size of the store at which writes are refused";
            families.gauge_bytes("etcd_server_quota_backend", help, self.quota_bytes)?;
        }
        let Some(store) = &self.store else { return Ok(()) };
        let help = "Keys and values with their versions, as they count against the quota";
        families.gauge_bytes("etcd_mvcc_db_total_size_in", help, store.size_bytes)?;
        families.gauge_bytes("etcd_mvcc_db_total_size_in_use_in", help, store.size_bytes)?;
        let help = "Keys that exist";
        families.gauge("etcd_debugging_mvcc_keys_total", help, store.keys)?;
        let help = "Puts that this replica has executed, those of transactions included";
        families.counter("etcd_mvcc_put", help, store.puts)?;
        let help =
            "Deletions of a key or a range that this replica has executed, and keys whose leases ended";
        families.counter("etcd_mvcc_delete", help, store.deletions)
    }
}

/// Translates OpenMetrics to the classic format. There a family is named as its samples are, an info family
/// is a gauge, and units and the end marker do not exist. Every family begins with its type, or with its help
/// and then its type.
fn classic(open: &str) -> String {
    let mut classic = String::with_capacity(open.len());
    let mut help = "";
    for line in open.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ').map_or("", |(_, text)| text);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|told| told.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            classic += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
            help = "";
        } else if !line.starts_with('#') {
            classic += line;
            classic += "\n";
        }
    }
    classic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::tests::store;

    #[tokio::test]
    async fn a_page_is_made_once_for_all_who_ask_soon() {
        let (exposition, store) = (Exposition::new(Registry::default()), store());
        let page = || exposition.page(&store, Format::Classic);
        let (first, second) = tokio::join!(page(), page());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(std::ptr::eq(&first[..], &second[..]));
        let open = exposition.page(&store, Format::Open).await.unwrap();
        assert!(open.ends_with(b"# EOF\n") && !first.ends_with(b"# EOF\n"));
        tokio::time::sleep(SHARED_MAX).await;
        let later = exposition.page(&store, Format::Classic).await.unwrap();
        assert!(!std::ptr::eq(&first[..], &later[..]));
    }

    #[test]
    fn openmetrics_is_for_those_that_name_it() {
        let accepted = |values: &[&'static str]| Format::accepted(values.iter().copied());
        assert_eq!(accepted(&[]), Format::Classic);
        assert_eq!(accepted(&["*/*"]), Format::Classic);
        assert_eq!(accepted(&["text/plain;version=0.0.4;q=1,*/*;q=0.1"]), Format::Classic);
        let newer = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(accepted(&[newer]), Format::Open);
        assert_eq!(accepted(&["text/plain", "application/openmetrics-text"]), Format::Open);
    }

    #[test]
    fn the_classic_format_names_families_as_their_samples() {
        let open = "# HELP a How often\n# TYPE a counter\na_total 1\n# HELP b What\n# TYPE b info\nb_info{v=\"1\"} 1\n\
                    # HELP c_bytes How large\n# TYPE c_bytes gauge\n# UNIT c_bytes bytes\nc_bytes 3\n# EOF\n";
        let expected = "# HELP a_total How often\n# TYPE a_total counter\na_total 1\n\
                        # HELP b_info What\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n\
                        # HELP c_bytes How large\n# TYPE c_bytes gauge\nc_bytes 3\n";
        assert_eq!(classic(open), expected);
    }
}
