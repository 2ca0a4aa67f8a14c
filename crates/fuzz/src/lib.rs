//! Fuzzers: programs that feed mutated bytes to everything that reads bytes from clients, peers and disks.
//!
//! A [`Target`] is a function of bytes that reads them as one part of Synod does, and checks what must hold for all
//! bytes. [`run`] makes inputs from a corpus and runs a target on them; it is stable Rust, and needs no
//! instrumentation. Instead of the code that an input reaches, it looks at what the target says about the input: an
//! input with a new answer joins the corpus for the rest of the run. [docs/fuzzing.md](../../../docs/fuzzing.md) lists
//! what each target covers.
//!
//! | file | contents |
//! | --- | --- |
//! | `driver.rs` | a run: inputs, checks, failures, the smallest input that fails |
//! | `mutate.rs` | one input out of others |
//! | `memory.rs` | an allocator that counts, so that a target has a limit |
//! | `corpus.rs` | the inputs in the tree |
//! | `entropy.rs` | choices out of bytes, for targets whose inputs are sequences of steps |
//! | `targets/` | the targets, a file for each place that bytes come from |

mod corpus;
mod driver;
#[cfg(feature = "targets")]
mod entropy;
mod memory;
mod mutate;
mod target;
#[cfg(feature = "targets")]
pub mod targets;

pub use corpus::{Corpus, written};
pub use driver::{Budget, Failure, Report, once, run};
pub use memory::Counting;
pub use target::{Memory, Target, Verdict};
