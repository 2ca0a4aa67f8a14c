//! Metrics of this process and of what it uses of the machine, under the names that all exporters give them.

use std::{
    fmt, fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};
use synod_metrics::Families;

/// Collects the metrics when they are read. A value that the operating system does not tell is left out.
#[derive(Debug)]
pub struct ProcessMetrics {
    /// Since 1970.
    began: Duration,
}

impl ProcessMetrics {
    /// For a process that begins now.
    pub fn now() -> ProcessMetrics {
        ProcessMetrics { began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(&mut encoder);
        let versions = [("version", env!("CARGO_PKG_VERSION")), ("etcd_api", synod_server::API_VERSION)];
        families.info(
            "synod_build",
            "The program's version, and that of etcd whose API it speaks",
            &versions,
        )?;
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let used = Duration::try_from(used).unwrap_or_default();
        families.counter_seconds("process_cpu", "Time that processors spent on this process", used)?;
        let help = "When this process began, since 1970";
        families.gauge_seconds("process_start_time", help, self.began.as_secs_f64())?;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Some(bytes) = kibibytes(&status, "VmRSS") {
            families.gauge_bytes("process_resident_memory", "Memory that is in use", bytes << 10)?;
        }
        if let Some(bytes) = kibibytes(&status, "VmSize") {
            families.gauge_bytes("process_virtual_memory", "Addresses that are in use", bytes << 10)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // The descriptor by which they are listed does not count.
            let open = open.count().saturating_sub(1) as u64;
            families.gauge("process_open_fds", "Files and connections that are open", open)?;
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            families.gauge("process_max_fds", "Files and connections that may be open", limit)?;
        }
        Ok(())
    }
}

/// A line of /proc/self/status.
fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_whole_name() {
        let status = "VmRSSx:\t 1 kB\nVmRSS:\t   5124 kB\nThreads:\t7\n";
        assert_eq!(kibibytes(status, "VmRSS"), Some(5124));
        assert_eq!(kibibytes(status, "Threads"), None);
    }
}
