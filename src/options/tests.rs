//! Settings are documented once and read back as written.

use super::*;

#[test]
fn defaults_are_the_documented_ones() {
    let mut settings = RuntimeSettings::default();
    for info in SETTINGS.iter().filter(|info| info.scope == Scope::Runtime) {
        settings.set(info.name, info.default).expect(info.name);
    }
    assert_eq!(settings, RuntimeSettings::default());
    settings.validate().expect("defaults are valid");
}

#[test]
fn every_runtime_setting_can_be_read_back() {
    let settings = RuntimeSettings::default();
    for info in SETTINGS.iter().filter(|info| info.scope == Scope::Runtime) {
        assert!(settings.get(info.name).is_some(), "{}", info.name);
    }
}

#[test]
fn bad_values_name_key_and_form() {
    let mut settings = RuntimeSettings::default();
    for (name, value) in [
        ("cache_bytes", "64 parsecs"),
        ("cache_bytes", "-1"),
        ("cache_bytes", ""),
        ("flush_interval_secs", "soon"),
        ("flush_interval_secs", "-3"),
        ("max_lanes", "1.5"),
        ("local_fsync", "maybe"),
    ] {
        let error = settings.set(name, value).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
    let error = settings.set("flush_intervall", "3").expect_err("typo");
    assert!(error.to_string().contains("flush_interval_secs"), "{error}");
    let error = settings.set("freshness", "latest").expect_err("session");
    assert!(
        error.to_string().contains("SET rollout.freshness"),
        "{error}"
    );
}
