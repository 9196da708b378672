//! Columns, defaults and the key of a rollouts table, and the checks every batch passes before it
//! is written.
//!
//! Two forms of one schema are kept apart. The **SQL schema** is what DataFusion sees: plain
//! fields without storage metadata, so that no plan node can lose any. The **stored schema** is
//! what Lance holds: the same fields, the key carrying Lance's primary-key mark.

mod batch;
mod column_cast;
mod column_type;
mod defaults;
mod dictionary;
mod fill;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use datafusion::logical_expr::Expr;

pub(crate) use batch::{check_and_align, lacks_only_new_columns, with_new_columns, with_stamps};
pub(crate) use column_cast::{cast_column, cast_into};
pub(crate) use column_type::parse_type;
use defaults::default_sql;
pub(crate) use defaults::{Markers, default_udfs, parse_stored_defaults, render_defaults};
pub(crate) use dictionary::{DictionaryValues, small_dictionary_columns};
pub(crate) use fill::{Fill, Filler};

use crate::error::{Result, RolloutError};
use crate::options::OnConflict;
use crate::store::Location;

/// The column that orders versions of a row: when its writer stamped it.
pub(crate) const INGESTED_AT: &str = "ingested_at";
/// The key of the rollout schema.
pub(crate) const ID: &str = "id";
/// When a row was made, by default when it was inserted.
const CREATED_AT: &str = "created_at";
/// Schema metadata that says what an id does that is inserted again; without it, 'update'.
pub(crate) const ON_CONFLICT_METADATA: &str = "rollouts:on_conflict";
/// Schema metadata under which a table's DEFAULT clauses are stored, as JSON.
pub(crate) const DEFAULTS_METADATA: &str = "rollouts:defaults";

const PRIMARY_KEY_METADATA: &str = "lance-schema:unenforced-primary-key";

/// The type of `ingested_at`: microseconds since the epoch, UTC.
pub(crate) fn stamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// A table's schema: columns, key, stamp column and defaults.
#[derive(Debug, Clone)]
pub struct TableSchema {
    sql: SchemaRef,
    nullable: SchemaRef,
    plain: SchemaRef,
    stored: SchemaRef,
    key: usize,
    stamp: Option<usize>,
    defaults: HashMap<String, Expr>,
    on_conflict: OnConflict,
}

/// These columns where NULL is not refused yet: the sink does it, and names the column.
pub(crate) fn nullable<'a>(columns: impl IntoIterator<Item = &'a Field>) -> Schema {
    let columns = columns.into_iter();
    let columns = columns.map(|column| column.clone().with_nullable(true));
    Schema::new(columns.collect::<Vec<_>>())
}

/// This column without its dictionary.
fn plain(column: &FieldRef) -> FieldRef {
    match column.data_type() {
        DataType::Dictionary(_, value) => {
            let column = column.as_ref().clone();
            Arc::new(column.with_data_type(value.as_ref().clone()))
        }
        _ => column.clone(),
    }
}

impl TableSchema {
    /// The rollout schema: one row per generated message, with its tokens, log-probabilities,
    /// reward and the policy that made it.
    pub fn rollouts() -> Self {
        let list = |name: &str, item: DataType| {
            let item = Field::new("item", item, true);
            Field::new(name, DataType::List(Arc::new(item)), true)
        };
        let text = |name: &str| Field::new(name, DataType::Utf8, true);
        let long_text = |name: &str| Field::new(name, DataType::LargeUtf8, true);
        let int = |name: &str| Field::new(name, DataType::Int32, true);
        let real = |name: &str| Field::new(name, DataType::Float32, true);
        let role = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        let relationship = DataType::Struct(Fields::from(vec![
            text("target_id"),
            text("relation"),
            real("weight"),
        ]));
        let fields = vec![
            Field::new(ID, DataType::Utf8, false),
            Field::new("rollout_id", DataType::Utf8, false),
            Field::new("problem_id", DataType::Utf8, false),
            text("dataset"),
            Field::new("sequence_order", DataType::Int32, false),
            Field::new("role", role, false),
            Field::new(CREATED_AT, stamp_type(), false),
            long_text("content"),
            Field::new("content_type", DataType::Utf8, false),
            long_text("model_input_string"),
            long_text("model_output_string"),
            long_text("rationale"),
            long_text("problem_text"),
            long_text("user_metadata"),
            list("input_tokens", DataType::Int32),
            list("output_tokens", DataType::Int32),
            int("num_input_tokens"),
            int("num_output_tokens"),
            list("output_logprobs", DataType::Float32),
            list("input_logprobs", DataType::Float32),
            list("ref_logprobs", DataType::Float32),
            list("loss_mask", DataType::Int8),
            real("advantage"),
            real("reward"),
            real("raw_reward"),
            text("grader_id"),
            real("score"),
            Field::new("include_in_training", DataType::Boolean, true),
            text("exclude_reason"),
            text("policy_version"),
            list("relationships", relationship),
            Field::new("binary_payload", DataType::LargeBinary, true),
            Field::new("payload_size", DataType::Int64, true),
            text("payload_checksum"),
            text("artifact_type"),
            long_text("metadata"),
            Field::new("policy_step", DataType::Int64, true),
            Field::new(INGESTED_AT, stamp_type(), false),
        ];
        let schema = Schema::new(fields);
        let defaults = defaults::rollout_defaults();
        Self::build(&schema, 0, defaults)
    }

    /// A schema with the columns of a CREATE statement, plus `ingested_at` if they lack it.
    /// `primary_key` is the column a PRIMARY KEY clause named; without one, a column named `id`.
    ///
    /// # Errors
    /// No usable key, with the columns that were found; a key of a type that cannot be one; an
    /// `ingested_at` of another type; a name Lance reserves.
    pub fn declared(
        columns: &Schema,
        primary_key: Option<usize>,
        defaults: HashMap<String, Expr>,
    ) -> Result<Self> {
        let mut fields: Vec<Field> = columns
            .fields()
            .iter()
            .map(|field| storable_field(field))
            .collect();
        let key = match primary_key.or_else(|| fields.iter().position(|f| f.name() == ID)) {
            Some(key) => key,
            None => return Err(no_key(columns)),
        };
        check_key_type(&fields[key])?;
        fields[key] = fields[key].clone().with_nullable(false);
        for field in &fields {
            check_storable(field)?;
            check_column_name(field.name())?;
        }
        match fields.iter().find(|field| field.name() == INGESTED_AT) {
            Some(field) if field.data_type() != &stamp_type() => {
                return Err(RolloutError::invalid(format!(
                    "column '{INGESTED_AT}' is kept by the table: it must be a TIMESTAMP(6), not {}",
                    field.data_type()
                )));
            }
            Some(_) => {}
            None => fields.push(Field::new(INGESTED_AT, stamp_type(), false)),
        }
        Ok(Self::build(&Schema::new(fields), key, defaults))
    }

    /// The schema of an existing Lance table.
    ///
    /// # Errors
    /// The table has no single-column primary key (it is not a rollouts table), or its stored
    /// defaults cannot be read.
    pub(crate) fn stored_in(schema: &Schema) -> Result<Self> {
        let marked: Vec<usize> = (0..schema.fields().len())
            .filter(|i| {
                schema
                    .field(*i)
                    .metadata()
                    .contains_key(PRIMARY_KEY_METADATA)
                    || schema
                        .field(*i)
                        .metadata()
                        .contains_key("lance-schema:unenforced-primary-key:position")
            })
            .collect();
        let [key] = marked[..] else {
            return Err(RolloutError::invalid(format!(
                "not a rollouts table: it has {} primary key columns, one is needed. Columns: {}",
                marked.len(),
                column_names(schema)
            )));
        };
        check_key_type(schema.field(key))?;
        let defaults = match schema.metadata().get(DEFAULTS_METADATA) {
            Some(json) => parse_stored_defaults(json)?,
            // A table of the rollout schema, ours or the peer's, has the rollout defaults.
            None if is_rollout_schema(schema) => defaults::rollout_defaults(),
            None => HashMap::new(),
        };
        let mut table = Self::build(schema, key, defaults);
        table
            .defaults
            .retain(|column, _| schema.column_with_name(column).is_some());
        if let Some(stored) = schema.metadata().get(ON_CONFLICT_METADATA) {
            table.on_conflict = stored.parse().map_err(|_| {
                RolloutError::invalid(format!(
                    "the table was made with on_conflict '{stored}', which this program does not know"
                ))
            })?;
        }
        Ok(table)
    }

    fn build(schema: &Schema, key: usize, mut defaults: HashMap<String, Expr>) -> Self {
        let sql: Vec<Field> = schema
            .fields()
            .iter()
            .map(|field| field.as_ref().clone().with_metadata(HashMap::new()))
            .collect();
        let mut stored: Vec<Field> = schema
            .fields()
            .iter()
            .map(|field| field.as_ref().clone())
            .collect();
        stored[key] = stored[key].clone().with_metadata(HashMap::from([(
            PRIMARY_KEY_METADATA.to_string(),
            "true".to_string(),
        )]));
        let stamp = sql
            .iter()
            .position(|field| field.name() == INGESTED_AT && field.data_type() == &stamp_type());
        if stamp.is_some() {
            // Replaced by the writer; it only has to be something that is not NULL.
            defaults.insert(
                INGESTED_AT.to_string(),
                datafusion::logical_expr::lit(
                    datafusion::scalar::ScalarValue::TimestampMicrosecond(Some(0), None),
                ),
            );
        }
        let nullable = Arc::new(nullable(&sql));
        Self {
            plain: Arc::new(Schema::new(
                nullable.fields().iter().map(plain).collect::<Vec<_>>(),
            )),
            nullable,
            sql: Arc::new(Schema::new(sql)),
            stored: Arc::new(Schema::new(stored)),
            key,
            stamp,
            defaults,
            on_conflict: OnConflict::default(),
        }
    }

    /// What SQL sees.
    pub fn sql(&self) -> &SchemaRef {
        &self.sql
    }

    /// The same where NULL is not refused yet.
    pub(crate) fn nullable(&self) -> &SchemaRef {
        &self.nullable
    }

    /// The same as VALUES have it: without dictionaries, which DataFusion would make of all the rows' values,
    /// with their repeats, and which the sink makes.
    pub(crate) fn plain(&self) -> &SchemaRef {
        &self.plain
    }

    /// What Lance stores.
    pub(crate) fn stored(&self) -> &SchemaRef {
        &self.stored
    }

    /// The name of the key column.
    pub fn key_name(&self) -> &str {
        self.sql.field(self.key).name()
    }

    /// The position of the key column.
    pub fn key_index(&self) -> usize {
        self.key
    }

    /// The position of `ingested_at`, in tables that have it.
    pub fn stamp_index(&self) -> Option<usize> {
        self.stamp
    }

    /// The default of a column left out of an INSERT.
    pub fn default_of(&self, column: &str) -> Option<&Expr> {
        self.defaults.get(column)
    }

    /// What an id does that is inserted again.
    pub fn on_conflict(&self) -> OnConflict {
        self.on_conflict
    }

    /// Refuses an `on_conflict` other than the table's.
    pub(crate) fn check_on_conflict(
        &self,
        location: &Location,
        asked: Option<OnConflict>,
    ) -> Result<()> {
        let stored = self.on_conflict;
        match asked.filter(|asked| *asked != stored) {
            Some(asked) => Err(RolloutError::invalid(format!(
                "the table at {location} was made with rollout.on_conflict = '{}' and keeps it: it \
                 cannot be opened with '{}'. Leave the option out to take what is stored",
                stored.as_str(),
                asked.as_str()
            ))),
            None => Ok(()),
        }
    }

    pub(crate) fn defaults(&self) -> &HashMap<String, Expr> {
        &self.defaults
    }

    /// Why a declared column list is not this table's, or nothing when it is.
    pub(crate) fn difference_from(&self, declared: &Self) -> Option<String> {
        for field in declared.sql.fields() {
            match self.sql.field_with_name(field.name()) {
                Err(_) => {
                    return Some(format!("it has no column '{}'", field.name()));
                }
                Ok(stored) if stored.data_type() != field.data_type() => {
                    return Some(format!(
                        "column '{}' is stored as {}, not {}",
                        field.name(),
                        stored.data_type(),
                        field.data_type()
                    ));
                }
                // Of another key it is said below that it is one.
                Ok(stored)
                    if stored.is_nullable() != field.is_nullable()
                        && self.key_name() == declared.key_name() =>
                {
                    let word = |nullable| if nullable { "nullable" } else { "NOT NULL" };
                    return Some(format!(
                        "column '{}' is stored as {}, not {}",
                        field.name(),
                        word(stored.is_nullable()),
                        word(field.is_nullable())
                    ));
                }
                Ok(_) => {}
            }
        }
        for field in self.sql.fields() {
            if declared.sql.field_with_name(field.name()).is_err() {
                return Some(format!("its column '{}' is not declared", field.name()));
            }
        }
        if self.key_name() != declared.key_name() {
            return Some(format!(
                "its key is '{}', not '{}'",
                self.key_name(),
                declared.key_name()
            ));
        }
        for (column, default) in &declared.defaults {
            let stored = self.defaults.get(column).map(default_sql);
            let declared = default_sql(default);
            if stored.as_ref() != Some(&declared) {
                let stored = stored.unwrap_or_else(|| "none".to_string());
                return Some(format!(
                    "the DEFAULT of column '{column}' is stored as {stored}, not {declared}"
                ));
            }
        }
        None
    }
}

fn is_rollout_schema(schema: &Schema) -> bool {
    ["id", "rollout_id", "problem_id", "role", "content_type"]
        .iter()
        .all(|name| schema.column_with_name(name).is_some())
}

fn column_names(schema: &Schema) -> String {
    let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    names.join(", ")
}

fn no_key(schema: &Schema) -> RolloutError {
    RolloutError::invalid(format!(
        "a rollouts table needs a key: declare PRIMARY KEY (column) or name a column 'id'. \
         Columns found: {}",
        column_names(schema)
    ))
}

/// Refuses a name that Lance keeps for itself, or reads as something else where it is given one.
///
/// # Errors
/// Such a name, and why.
pub(crate) fn check_column_name(name: &str) -> Result<()> {
    let fault = if name.is_empty() {
        "a column needs a name"
    } else if name.starts_with('_') {
        "names that begin with an underscore are reserved"
    } else if name.contains('.') {
        "a dot stands between a column and its fields"
    } else if name.contains('`') {
        "a name cannot hold a backtick"
    } else if name == "*" {
        "an asterisk stands for all columns"
    } else {
        return Ok(());
    };
    Err(RolloutError::invalid(format!("column '{name}': {fault}")))
}

/// A type that Lance has no form for is refused before anything is made.
pub(crate) fn check_storable(field: &Field) -> Result<()> {
    lance_core::datatypes::Field::try_from(field)
        .map(|_| ())
        .map_err(|_| {
            RolloutError::invalid(format!(
                "column '{}': the type {} cannot be stored",
                field.name(),
                field.data_type()
            ))
        })
}

fn check_key_type(field: &Field) -> Result<()> {
    match field.data_type() {
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt32
        | DataType::UInt64 => Ok(()),
        other => Err(RolloutError::invalid(format!(
            "column '{}' of type {other} cannot be the key: use text or a 32- or 64-bit integer",
            field.name()
        ))),
    }
}

/// SQL text and binary types arrive as view types; they are stored as plain ones.
fn storable_field(field: &Field) -> Field {
    Field::new(
        field.name(),
        storable_type(field.data_type()),
        field.is_nullable(),
    )
}

fn storable_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) | DataType::ListView(item) => {
            DataType::List(Arc::new(storable_field(item)))
        }
        DataType::LargeList(item) | DataType::LargeListView(item) => {
            DataType::LargeList(Arc::new(storable_field(item)))
        }
        DataType::FixedSizeList(item, size) => {
            DataType::FixedSizeList(Arc::new(storable_field(item)), *size)
        }
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|f| Arc::new(storable_field(f))).collect())
        }
        DataType::Dictionary(key, value) => {
            DataType::Dictionary(key.clone(), Box::new(storable_type(value)))
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_required_column_has_a_default() {
        let schema = TableSchema::rollouts();
        for field in schema.sql().fields().iter().filter(|f| !f.is_nullable()) {
            assert!(
                schema.default_of(field.name()).is_some(),
                "{}",
                field.name()
            );
        }
    }

    #[test]
    fn a_default_that_differs_is_a_difference() {
        let columns = Schema::new(vec![
            Field::new("id", DataType::Utf8, false),
            Field::new("note", DataType::Utf8, true),
        ]);
        let with = |default: Option<&str>| {
            let default =
                default.map(|text| ("note".to_string(), datafusion::logical_expr::lit(text)));
            TableSchema::declared(&columns, None, default.into_iter().collect()).expect("usable")
        };
        let stored = with(Some("x"));
        assert_eq!(stored.difference_from(&with(Some("x"))), None);
        assert_eq!(stored.difference_from(&with(None)), None, "said before");
        for (stored, declared) in [(stored, Some("y")), (with(None), Some("x"))] {
            let difference = stored.difference_from(&with(declared)).expect("differs");
            assert!(
                difference.contains("DEFAULT of column 'note'"),
                "{difference}"
            );
        }
    }

    #[test]
    fn a_type_that_cannot_be_stored_names_its_column() {
        let interval = DataType::Interval(arrow_schema::IntervalUnit::MonthDayNano);
        let columns = Schema::new(vec![
            Field::new("id", DataType::Utf8, false),
            Field::new("took", interval, true),
        ]);
        let error =
            TableSchema::declared(&columns, None, HashMap::new()).expect_err("no such type");
        assert!(error.to_string().contains("column 'took'"), "{error}");
    }

    #[test]
    fn declared_columns_get_a_key_and_a_stamp() {
        let columns = Schema::new(vec![
            Field::new("id", DataType::Utf8View, true),
            Field::new("note", DataType::Utf8View, true),
        ]);
        let schema = TableSchema::declared(&columns, None, HashMap::new()).expect("usable");
        assert_eq!(schema.key_name(), "id");
        assert!(!schema.sql().field(0).is_nullable());
        assert_eq!(schema.sql().field(0).data_type(), &DataType::Utf8);
        assert_eq!(schema.stamp_index(), Some(2));
    }

    #[test]
    fn no_key_names_the_columns() {
        let columns = Schema::new(vec![Field::new("reward", DataType::Float32, true)]);
        let error = TableSchema::declared(&columns, None, HashMap::new()).expect_err("no key");
        assert!(error.to_string().contains("reward"), "{error}");
    }

    #[test]
    fn differences_are_named() {
        let ours = TableSchema::rollouts();
        assert_eq!(ours.difference_from(&TableSchema::rollouts()), None);
        let columns = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
        let other = TableSchema::declared(&columns, None, HashMap::new()).expect("usable");
        let difference = ours.difference_from(&other).expect("differs");
        assert!(difference.contains("'id'"), "{difference}");
    }
}
