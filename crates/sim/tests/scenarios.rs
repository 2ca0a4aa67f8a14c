//! Plays all scenario scripts.

use std::{env, path::Path};

use synod_sim::scenario;

#[test]
fn every_scenario_goes_as_it_is_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let bless = env::var_os("SYNOD_BLESS").is_some_and(|value| value == "1");
    let (count, wrong) = scenario::play_folder(&folder, bless).expect("the scripts can be read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(count >= 12, "only {count} scripts in {}", folder.display());
}
