//! Formulas that foretell what a replicated log can do, before anybody runs it.
//!
//! Each module holds the model of one chapter, as pure functions of measured costs. Sizes are bytes, times are seconds
//! or what a module says.

pub mod batching;
pub mod rounds;
