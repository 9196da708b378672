//! Figures: one JSON object each on stdout, all together as a table on stderr.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::stats::median;

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most}"),
            Self::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// One measured value.
#[derive(Debug, Clone)]
pub struct Figure {
    bench: &'static str,
    name: String,
    value: f64,
    unit: &'static str,
    goal: Option<Goal>,
    params: Map<String, Value>,
}

impl Figure {
    /// A figure of a benchmark.
    pub fn new(
        bench: &'static str,
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
    ) -> Self {
        Self {
            bench,
            name: name.into(),
            value,
            unit,
            goal: None,
            params: Map::new(),
        }
    }

    /// How many times the other the first takes, by their medians, which are kept as parameters.
    pub fn ratio(
        bench: &'static str,
        name: impl Into<String>,
        (first, times): (&str, &[Duration]),
        (second, others): (&str, &[Duration]),
    ) -> Self {
        let (ours, other) = (median(times), median(others));
        Self::new(bench, name, ours.as_secs_f64() / other.as_secs_f64(), "x")
            .with(format!("{first}_ms"), millis(ours))
            .with(format!("{second}_ms"), millis(other))
            .with("runs", times.len())
    }

    /// With what it should be.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// With a parameter it was measured under.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// With all of these parameters.
    pub fn with_all(mut self, params: &Value) -> Self {
        if let Value::Object(params) = params {
            self.params.extend(params.clone());
        }
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its value.
    pub fn value(&self) -> f64 {
        self.value
    }
}

/// Milliseconds, to the microsecond.
pub fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// Prints every figure.
pub fn print_all(figures: &[Figure]) {
    for figure in figures {
        let line = json!({
            "bench": figure.bench,
            "name": figure.name,
            "value": rounded(figure.value),
            "unit": figure.unit,
            "params": figure.params,
        });
        println!("{line}");
    }
    let width = figures.iter().map(|f| f.name.len()).max().unwrap_or(0);
    for figure in figures {
        let goal = match figure.goal {
            Some(goal) if goal.is_met(figure.value) => format!("goal {goal}"),
            Some(goal) => format!("goal {goal}  MISSED"),
            None => String::new(),
        };
        eprintln!(
            "{:width$}  {:>12} {:6}  {goal}",
            figure.name,
            rounded(figure.value),
            figure.unit
        );
    }
}

/// Four significant digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
