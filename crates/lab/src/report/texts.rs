//! What people say of experiments on the pages of results, as the crate's folder `pages` has it: a file for each
//! document, a section for each of its experiments.

use serde::Deserialize;

/// The documents, each with the name of its page.
const ALL: [(&str, &str); 5] = [
    ("ng-2020", include_str!("../../pages/ng-2020.toml")),
    ("santos-2012", include_str!("../../pages/santos-2012.toml")),
    ("benz-2013", include_str!("../../pages/benz-2013.toml")),
    ("driftwood-2023", include_str!("../../pages/driftwood-2023.toml")),
    ("choosing", include_str!("../../pages/choosing.toml")),
];

/// The page of a document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    pub(super) title: String,
    /// What all its experiments have in common.
    pub(super) about: String,
    #[serde(rename = "section")]
    pub(super) sections: Vec<Section>,
}

/// An experiment, or several that judge the same claims.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    /// The experiments. The first one gives the section its name, its source and its claims.
    pub(super) experiments: Vec<String>,
    /// The run whose figure is shown, if that is not the first one.
    pub(super) shown: Option<String>,
    pub(super) heading: String,
    /// What is claimed, in a few words.
    pub(super) brief: String,
    /// What is done, whatever the outcome.
    pub(super) text: String,
    /// How replicas and clients reach each other.
    pub(super) network: String,
    pub(super) durability: String,
    /// Where clients are, whom they ask, and how.
    pub(super) clients: String,
    #[serde(default)]
    pub(super) found: Vec<Found>,
}

/// What was found, and why a claim does not hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Found {
    /// The commit whose run it is about. Beside a run of another commit the page says so.
    pub(super) of: String,
    pub(super) text: String,
}

impl Page {
    pub(super) fn parse(text: &str) -> Page {
        toml::from_str(text).unwrap_or_else(|error| panic!("the texts of a page: {error}"))
    }
}

/// All pages, each with its name.
pub(super) fn all() -> Vec<(&'static str, Page)> {
    ALL.map(|(name, text)| (name, Page::parse(text))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;

    #[test]
    fn every_experiment_stands_in_one_section_beside_those_with_its_claims() {
        let mut told = Vec::new();
        for section in all().iter().flat_map(|(_, page)| &page.sections) {
            let own = experiments::find(&section.experiments).unwrap();
            let ids = |of: usize| own[of].shapes.iter().map(|shape| shape.id).collect::<Vec<_>>();
            assert!((1..own.len()).all(|other| ids(other) == ids(0)), "{}", section.heading);
            assert!(section.shown.iter().all(|shown| section.experiments.contains(shown)));
            for text in
                [&section.brief, &section.text, &section.network, &section.durability, &section.clients]
            {
                assert!(!text.trim().is_empty(), "{}", section.heading);
            }
            told.extend(own.iter().map(|experiment| experiment.name));
        }
        let mut all: Vec<_> = experiments::ALL.iter().map(|experiment| experiment.name).collect();
        (all.sort_unstable(), told.sort_unstable());
        assert_eq!(told, all);
    }
}
