//! Files of a replica on the disk in memory that fails, one case a test. `tests/soak/` draws cases from seeds.

mod directory;
mod log;
