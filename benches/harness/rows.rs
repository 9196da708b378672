//! Made-up rollouts: the same numbers always make the same rows.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Float32Array, Int32Array, Int64Array, LargeStringArray, RecordBatch,
    StringArray, TimestampMicrosecondArray, new_null_array,
};
use arrow_schema::{Schema, SchemaRef};
use datafusion_rollouts::TableSchema;

/// Rows of one batch.
pub const BATCH_ROWS: usize = 8192;

/// Different problems the rows are about.
const PROBLEMS: u64 = 2000;

/// A row: which id, and which version of it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Stands for the id.
    pub number: u64,
    /// 0 for a row never written before.
    pub version: u64,
}

impl Row {
    /// The first version of a row.
    pub fn new(number: u64) -> Self {
        Self { number, version: 0 }
    }

    /// Its id: as good as random, so neighbours in time are nowhere near each other in order.
    pub fn id(self) -> String {
        format!("{:016x}{:016x}", mix(self.number), mix(!self.number))
    }

    /// In steps of 1/8, so that sums are exact in any order.
    fn reward(self) -> f32 {
        (mix(self.number ^ (self.version << 56)) % 9) as f32 / 8.0
    }
}

/// What the rows look like.
#[derive(Debug, Clone)]
pub struct RowMaker {
    schema: SchemaRef,
    /// Tokens in `output_tokens`; 0 leaves the column empty.
    pub tokens: usize,
    /// Characters in `content`; 0 leaves the column empty.
    pub content: usize,
    /// Row numbers that make one step of the policy: steps follow each other in time.
    pub rows_per_step: u64,
    /// What stands in `ingested_at`; a writer of the table replaces it.
    pub stamp: i64,
}

impl RowMaker {
    /// Rows of the rollout schema with few columns filled.
    pub fn new(rows_per_step: u64) -> Self {
        Self {
            schema: TableSchema::rollouts().sql().clone(),
            tokens: 0,
            content: 0,
            rows_per_step: rows_per_step.max(1),
            stamp: 1_700_000_000_000_000,
        }
    }

    /// The columns, with the key marked as Lance marks it.
    pub fn keyed_schema(&self) -> SchemaRef {
        let mark = ("lance-schema:unenforced-primary-key", "true");
        let fields: Vec<_> = self
            .schema
            .fields()
            .iter()
            .map(|field| match field.name().as_str() {
                "id" => field.as_ref().clone().with_metadata(HashMap::from(
                    [mark].map(|(key, value)| (key.to_string(), value.to_string())),
                )),
                _ => field.as_ref().clone(),
            })
            .collect();
        Arc::new(Schema::new(fields))
    }

    /// The columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// A batch of these rows.
    pub fn batch(&self, rows: &[Row]) -> RecordBatch {
        let columns = self
            .schema
            .fields()
            .iter()
            .map(|field| {
                self.column(field.name(), rows)
                    .unwrap_or_else(|| new_null_array(field.data_type(), rows.len()))
            })
            .collect();
        RecordBatch::try_new(self.schema.clone(), columns).expect("columns of the schema")
    }

    /// All rows in batches, made as they are asked for.
    pub fn batches(
        &self,
        rows: impl Iterator<Item = Row> + Send + 'static,
    ) -> impl Iterator<Item = RecordBatch> + Send + 'static {
        let maker = self.clone();
        let mut rows = rows;
        std::iter::from_fn(move || {
            let next: Vec<Row> = rows.by_ref().take(BATCH_ROWS).collect();
            (!next.is_empty()).then(|| maker.batch(&next))
        })
    }

    fn column(&self, name: &str, rows: &[Row]) -> Option<ArrayRef> {
        let count = rows.len();
        let text = |value: &dyn Fn(&Row) -> String| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(rows.iter().map(value)))
        };
        Some(match name {
            "id" | "rollout_id" => text(&|row| row.id()),
            "problem_id" => text(&|row| format!("problem-{}", mix(row.number) % PROBLEMS)),
            "content_type" => text(&|_| "text/plain".to_string()),
            "sequence_order" => Arc::new(Int32Array::from_value(0, count)),
            "role" => Arc::new(DictionaryArray::<Int8Type>::from_iter(std::iter::repeat_n(
                "assistant",
                count,
            ))),
            "created_at" | "ingested_at" => {
                Arc::new(TimestampMicrosecondArray::from_value(self.stamp, count))
            }
            "reward" => Arc::new(Float32Array::from_iter_values(
                rows.iter().map(|r| r.reward()),
            )),
            "policy_step" => Arc::new(Int64Array::from_iter_values(
                rows.iter()
                    .map(|row| (row.number / self.rows_per_step) as i64),
            )),
            "content" if self.content > 0 => {
                let tail = "x".repeat(self.content);
                Arc::new(LargeStringArray::from_iter_values(
                    rows.iter()
                        .map(|row| format!("{:016x}{tail}", mix(row.number))),
                ))
            }
            "output_tokens" if self.tokens > 0 => self.tokens_of(rows),
            _ => return None,
        })
    }

    fn tokens_of(&self, rows: &[Row]) -> ArrayRef {
        let mut lists = ListBuilder::new(Int32Builder::new());
        for row in rows {
            for i in 0..self.tokens as u64 {
                let token = mix(row.number.wrapping_mul(31).wrapping_add(i)) % 50_000;
                lists.values().append_value(token as i32);
            }
            lists.append(true);
        }
        Arc::new(lists.finish())
    }
}

/// Spreads numbers: neighbours come out far apart, and no two the same.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
