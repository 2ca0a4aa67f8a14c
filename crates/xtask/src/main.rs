//! What a developer runs: `cargo xtask help` lists it.

mod tidy;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    let found = match tidy::Tree::read(&tidy::root()) {
        Ok(tree) => tidy::findings(&tree),
        Err(why) => vec![why],
    };
    found.iter().for_each(|finding| eprintln!("{finding}"));
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
