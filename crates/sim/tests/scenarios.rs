//! Plays all scenario scripts.

use std::{env, path::Path};

use synod_sim::scenario;

#[test]
fn every_scenario_goes_as_it_is_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let bless = env::var_os("SYNOD_BLESS").is_some_and(|value| value == "1");
    let played = scenario::play_folder(&folder, bless).expect("the scripts can be read");
    assert!(played.wrong.is_empty(), "{}", played.wrong.join("\n\n"));
    assert!(played.scripts >= 20, "only {} scripts in {}", played.scripts, folder.display());
}
