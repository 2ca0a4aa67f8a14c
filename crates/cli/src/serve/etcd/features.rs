//! etcd's feature gates: `--feature-gates NAME=true,NAME=false`.

use std::str::FromStr;

use crate::serve::units;

/// The features of etcd 3.7 that switch nothing here.
const WITHOUT_MEANING: [&str; 8] = [
    "AllBeta",
    "StopGRPCServiceOnDefrag",
    "TxnModeWriteWithSharedBuffer",
    "LeaseCheckpoint",
    "LeaseCheckpointPersist",
    "SetMemberLocalAddr",
    "FastLeaseKeepAlive",
    "PriorityRequest",
];

/// The features that are switched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Replicas compare their contents as they are after a compaction.
    pub compact_hash_check: Option<bool>,
    /// A replica that starts compares its contents with the others'.
    pub initial_corrupt_check: Option<bool>,
    /// Features that are switched and have no meaning here.
    pub without_meaning: Vec<&'static str>,
}

impl FromStr for Features {
    type Err = String;

    fn from_str(text: &str) -> Result<Features, String> {
        let (mut features, mut all_alpha) = (Features::default(), None);
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| format!("missing bool value for {pair}"))?;
            let value = units::truth(value)?;
            match name.trim() {
                "AllAlpha" => all_alpha = Some(value),
                "CompactHashCheck" => features.compact_hash_check = Some(value),
                "InitialCorruptCheck" => features.initial_corrupt_check = Some(value),
                name => match WITHOUT_MEANING.iter().find(|known| **known == name) {
                    Some(known) => features.without_meaning.push(known),
                    None => {
                        return Err(format!(
                            "unrecognized feature gate: {name}; accepted: AllAlpha, CompactHashCheck, InitialCorruptCheck, {}",
                            WITHOUT_MEANING.join(", ")
                        ));
                    }
                },
            }
        }
        // Of the features that etcd calls alpha these two have a meaning here; what is switched by name stays so.
        for feature in [&mut features.compact_hash_check, &mut features.initial_corrupt_check] {
            *feature = feature.or(all_alpha);
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_switched_by_name() {
        let features: Features =
            "CompactHashCheck=true, InitialCorruptCheck=F,PriorityRequest=true".parse().unwrap();
        assert_eq!(features.compact_hash_check, Some(true));
        assert_eq!(features.initial_corrupt_check, Some(false));
        assert_eq!(features.without_meaning, ["PriorityRequest"]);
        let features: Features = "CompactHashCheck=false,AllAlpha=true,AllBeta=true".parse().unwrap();
        assert_eq!((features.compact_hash_check, features.initial_corrupt_check), (Some(false), Some(true)));
        let why = |text: &str| text.parse::<Features>().unwrap_err();
        assert!(why("Speed=true").starts_with("unrecognized feature gate: Speed; accepted: AllAlpha"));
        assert!(why("CompactHashCheck").contains("missing bool value"));
        assert!(why("CompactHashCheck=maybe").contains("maybe"));
    }
}
