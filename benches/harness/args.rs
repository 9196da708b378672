//! Arguments of a benchmark: `--name value` or the environment variable `ROLLOUT_BENCH_NAME`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::str::FromStr;

/// The arguments that were given and not yet asked for.
#[derive(Debug, Default)]
pub struct Args {
    given: BTreeMap<String, Option<String>>,
    known: Vec<&'static str>,
}

impl Args {
    /// The arguments of this process.
    ///
    /// # Panics
    /// An argument that is not of the form `--name` or `--name value`.
    pub fn from_env() -> Self {
        let mut given = BTreeMap::new();
        // Cargo itself passes --bench.
        let mut words = std::env::args()
            .skip(1)
            .filter(|word| word != "--bench")
            .peekable();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .unwrap_or_else(|| panic!("'{word}': expected --name or --name value"));
            let value = words.next_if(|next| !next.starts_with("--"));
            given.insert(name.to_string(), value);
        }
        Self {
            given,
            known: Vec::new(),
        }
    }

    /// Whether `--name` was given.
    pub fn flag(&mut self, name: &'static str) -> bool {
        self.known.push(name);
        self.given.remove(name).is_some()
    }

    /// The value of `--name`, else of its environment variable, else the default.
    ///
    /// # Panics
    /// A value that cannot be read.
    pub fn get<T>(&mut self, name: &'static str, default: T) -> T
    where
        T: FromStr,
        T::Err: Debug,
    {
        self.known.push(name);
        let variable = format!("ROLLOUT_BENCH_{}", name.replace('-', "_").to_uppercase());
        let text = match self.given.remove(name) {
            Some(value) => Some(value.unwrap_or_else(|| panic!("--{name} needs a value"))),
            None => std::env::var(variable).ok(),
        };
        match text {
            Some(text) => text
                .parse()
                .unwrap_or_else(|error| panic!("--{name} '{text}': {error:?}")),
            None => default,
        }
    }

    /// The value of `--dir`, where tables are made; none is the system's folder for temporary files.
    pub fn dir(&mut self) -> Option<PathBuf> {
        let dir = self.get("dir", String::new());
        (!dir.is_empty()).then(|| PathBuf::from(dir))
    }

    /// Refuses what nobody asked for.
    ///
    /// # Panics
    /// An argument this benchmark does not have.
    pub fn finish(self) {
        assert!(
            self.given.is_empty(),
            "unknown arguments {:?}: expected --{}",
            self.given.keys().collect::<Vec<_>>(),
            self.known.join(", --")
        );
    }
}
