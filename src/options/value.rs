//! Parsing of setting values: pure functions, one accepted form each.

use std::time::Duration;

use crate::error::{Result, RolloutError};

/// Bytes: a whole number with an optional unit (B, KB, MB, GB, TB or KiB, MiB, GiB, TiB).
pub(super) fn parse_bytes(name: &str, value: &str) -> Result<u64> {
    let text = value.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => 0,
    };
    number
        .parse::<u64>()
        .ok()
        .filter(|_| factor > 0)
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| bad_value(name, value, "a number of bytes such as 67108864 or 64MiB"))
}

/// A whole number of things.
pub(super) fn parse_count(name: &str, value: &str) -> Result<u64> {
    value
        .trim()
        .parse()
        .map_err(|_| bad_value(name, value, "a whole number, 0 or more"))
}

/// A hundred years: what is longer is no moment the clock can tell.
const LONGEST_SECONDS: f64 = 100.0 * 366.0 * 86_400.0;

/// A duration in seconds; fractions are allowed, a trailing `s` too.
pub(super) fn parse_seconds(name: &str, value: &str) -> Result<Duration> {
    let text = value.trim();
    text.strip_suffix('s')
        .unwrap_or(text)
        .parse::<f64>()
        .ok()
        .filter(|secs| *secs <= LONGEST_SECONDS)
        .and_then(|secs| Duration::try_from_secs_f64(secs).ok())
        .ok_or_else(|| {
            bad_value(
                name,
                value,
                "a number of seconds, 0 or more and at most a hundred years, such as 30 or 0.5",
            )
        })
}

/// `true` or `false`.
pub(super) fn parse_bool(name: &str, value: &str) -> Result<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "on" => Ok(true),
        "false" | "0" | "off" => Ok(false),
        _ => Err(bad_value(name, value, "true or false")),
    }
}

/// The error for a value of the wrong form.
pub(super) fn bad_value(name: &str, value: &str, form: &str) -> RolloutError {
    RolloutError::invalid(format!("rollout.{name}: '{value}' is not {form}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        for (text, want) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("64MiB", Some(64 << 20)),
            ("64 mib", Some(64 << 20)),
            ("1GB", Some(1_000_000_000)),
            ("2g", Some(2 << 30)),
            ("", None),
            ("-1", None),
            ("1.5GB", None),
            ("99999999999999TiB", None),
            ("12 apples", None),
        ] {
            assert_eq!(parse_bytes("x", text).ok(), want, "{text}");
        }
    }

    #[test]
    fn seconds() {
        for (text, want) in [
            ("0", Some(0)),
            ("30", Some(30_000)),
            ("0.25", Some(250)),
            ("5s", Some(5_000)),
            ("-1", None),
            ("NaN", None),
            ("inf", None),
            ("1e19", None),
            ("1m", None),
        ] {
            let got = parse_seconds("x", text).ok().map(|d| d.as_millis());
            assert_eq!(got, want, "{text}");
        }
    }
}
