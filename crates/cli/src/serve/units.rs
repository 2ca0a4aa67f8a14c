//! Formats of times and sizes in a configuration.

use std::time::Duration;

/// Reads a time: `100` (milliseconds, as in etcd's flags), `100ms`, `500us`, `2s`, `1.5m`, and, as Go does, `1h30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("'{text}' is not a time; accepted: 100 (milliseconds), 500us, 100ms, 2s, 10m, 1h30m");
    let seconds = match text.parse::<f64>() {
        Ok(millis) => millis / 1e3,
        Err(_) => seconds_of_parts(text).ok_or_else(wrong)?,
    };
    // A year is longer than any time here, and far below what sums of them can represent.
    if !(0.0..=31_536_000.0).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The sum of numbers with units, of which there is at least one.
fn seconds_of_parts(text: &str) -> Option<f64> {
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() || text.is_empty() {
        let unit_at = rest.find(|c: char| c.is_alphabetic())?;
        let (number, with_unit) = rest.split_at(unit_at);
        let unit_end = with_unit.find(|c: char| !c.is_alphabetic()).unwrap_or(with_unit.len());
        let (unit, after) = with_unit.split_at(unit_end);
        let number: f64 = number.parse().ok().filter(|number| *number >= 0.0)?;
        seconds += number
            * match unit {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = after;
    }
    Some(seconds)
}

/// Reads whether something is so, as Go does.
pub fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("'{text}' is neither; accepted: true or false")),
    }
}

/// The same for times that must not be zero.
pub fn duration_above_zero(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("'{text}' is no time at all; accepted: a time above 0, such as 100ms")),
        duration => Ok(duration),
    }
}

/// Reads a size in bytes: `65536`, `64KiB`, `1.5MiB`, `2GiB`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("'{text}' is not a size; accepted: a number of bytes, or one with KiB, MiB, GiB, as 64KiB")
    };
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * f64::from(1_u32 << shift);
    // 2^53: beyond it not every number of bytes has a double.
    if !(0.0..=9_007_199_254_740_992.0).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// The same for sizes of things that are kept in memory, at least one byte.
pub fn memory_bytes(text: &str) -> Result<usize, String> {
    match usize::try_from(bytes(text)?) {
        Ok(0) => Err(format!("'{text}' is too small; accepted: 1 or more bytes, as 64KiB")),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("'{text}' is more than this machine can address")),
    }
}

/// Reads a quota as etcd does: 0 stands for the default of 2 GiB, a negative number for none. The result's 0 stands
/// for none.
pub fn quota(text: &str) -> Result<u64, String> {
    const DEFAULT: u64 = 2 << 30;
    if text.strip_prefix('-').is_some_and(|digits| digits.parse::<u64>().is_ok_and(|number| number > 0)) {
        return Ok(0);
    }
    let quota = bytes(text).map_err(|error| format!("{error}; 0 for 2GiB; -1 for no bound"))?;
    Ok(if quota == 0 { DEFAULT } else { quota })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_unless_they_have_a_unit() {
        assert_eq!(duration("100"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m0.5s"), Ok(Duration::from_millis(5_400_500)));
        assert_eq!(duration("5000000000ns"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "-1", "1 s", "10parsecs", "1e300h", "NaN", "1h-30m", "1h30"] {
            assert!(duration(wrong).unwrap_err().contains("accepted: 100 (milliseconds)"), "{wrong}");
        }
        assert!(duration_above_zero("0").unwrap_err().contains("above 0"));
    }

    #[test]
    fn sizes_are_bytes_unless_they_have_a_unit() {
        assert_eq!(bytes("65536"), Ok(65_536));
        assert_eq!(bytes("1.5MiB"), Ok(3 << 19));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        for wrong in ["", "KiB", "-1", "1KB", "1 KiB", "1e300GiB"] {
            assert!(bytes(wrong).unwrap_err().contains("64KiB"), "{wrong}");
        }
        assert!(memory_bytes("0").is_err());
    }

    #[test]
    fn a_truth_is_written_as_for_go() {
        assert_eq!(["1", "T", "True"].map(truth), [Ok(true), Ok(true), Ok(true)]);
        assert_eq!(["0", "f", "FALSE"].map(truth), [Ok(false), Ok(false), Ok(false)]);
        assert!(truth("yes").unwrap_err().contains("accepted: true or false"));
    }

    #[test]
    fn a_quota_is_written_as_for_etcd() {
        assert_eq!(quota("0"), Ok(2 << 30));
        assert_eq!(quota("-1"), Ok(0));
        assert_eq!(quota("8589934592"), Ok(8 << 30));
        assert!(quota("-x").unwrap_err().contains("-1 for no bound"));
    }
}
