//! Medians, percentiles, means and slopes.

use std::time::Duration;

/// The middle value; of an even number, the higher of the two in the middle.
pub fn median(times: &[Duration]) -> Duration {
    percentile(times, 0.5)
}

/// The value that `share` of all do not exceed.
///
/// # Panics
/// There are none.
pub fn percentile(times: &[Duration], share: f64) -> Duration {
    assert!(!times.is_empty(), "nothing was measured");
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let position = (sorted.len() as f64 * share) as usize;
    sorted[position.min(sorted.len() - 1)]
}

/// The average.
pub fn mean(times: &[Duration]) -> Duration {
    let total: Duration = times.iter().sum();
    total / times.len().max(1) as u32
}

/// By how much `y` grows with each step of `x`: the least-squares line through the points.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let covariance: f64 = points
        .iter()
        .map(|(x, y)| (x - mean_x) * (y - mean_y))
        .sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    if variance == 0.0 {
        0.0
    } else {
        covariance / variance
    }
}
