//! The memory of this process, as Linux counts it; zero elsewhere.

/// Resident memory now, in bytes.
pub fn rss_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// The most resident memory since the start, or since [`reset_peak_rss`].
pub fn peak_rss_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// Starts counting the peak anew. Where that is not allowed the peak stays that of the whole run.
pub fn reset_peak_rss() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}
