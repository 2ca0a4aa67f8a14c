//! File descriptors: those that the log, snapshots and peers need are not given to clients.
//!
//! A replica that cannot open the next segment of its log ends. So the limit of open files bounds the
//! connections of clients, whatever the flag says.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything but connections of clients: the connections at the peer port, with the descriptor by
/// which an event loop watches each (128), and to peers (64), segments and snapshots that are written, read and sent
/// (32), connections for pages, at their own addresses and, when clients have all places, at theirs (64), newcomers
/// that wait for a place of clients or of these pages (3 times 16), and those of threads, runtimes and standard
/// streams (32).
pub const RESERVED: u64 = 368;

/// With fewer connections than this a server would be useless.
const PLACES_MIN: u64 = 16;

/// Raises the limit as far as that needs no privileges, and returns it; `None` if there is none.
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some() && limit.current != limit.maximum {
        // If it fails, the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// How many connections of clients there may be, given how many are wanted and how many files can be open.
///
/// # Errors
/// There is no room for clients.
pub fn places(wanted: u32, limit: Option<u64>) -> Result<u32, String> {
    let Some(limit) = limit else { return Ok(wanted) };
    let left = limit.saturating_sub(RESERVED);
    if left < PLACES_MIN {
        return Err(format!(
            "this process may open {limit} files, and needs {} for the log, snapshots and peers and {PLACES_MIN} for clients; \
             raise the limit (ulimit -n, LimitNOFILE=)",
            RESERVED
        ));
    }
    Ok(wanted.min(u32::try_from(left).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_the_replica_does_not_need() {
        assert_eq!(places(10_000, None), Ok(10_000));
        assert_eq!(places(10_000, Some(1 << 20)), Ok(10_000));
        assert_eq!(places(10_000, Some(1024)), Ok(656));
        assert_eq!(places(100, Some(1024)), Ok(100));
        assert!(places(100, Some(RESERVED)).unwrap_err().contains("ulimit -n"));
    }
}
