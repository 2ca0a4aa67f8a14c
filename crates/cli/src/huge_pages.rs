//! Pages of memory: this program takes small ones.
//!
//! The allocator asks for huge pages, of 2 MiB, and each of its lists of blocks begins one, however few blocks are in
//! use. So this comes before anything that allocates much; `docs/operating.md` has what it saves and costs.

/// Has the system give this process no huge pages from now on.
pub fn refuse() {
    #[cfg(target_os = "linux")]
    // If it fails, the replica takes more memory.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn the_system_gives_no_huge_pages_any_more() {
        super::refuse();
        assert!(rustix::thread::transparent_huge_pages_are_disabled().unwrap());
    }
}
