//! Every benchmark runs, at a tiny size: its numbers mean nothing here, its figures must be there.

#![allow(
    dead_code,
    reason = "the harness has parts only the benchmarks' own main uses"
)]

#[path = "../../benches/bulk/mod.rs"]
mod bulk;
#[path = "../../benches/harness/mod.rs"]
mod harness;
#[path = "../../benches/ingest/mod.rs"]
mod ingest;
#[path = "../../benches/memory/mod.rs"]
mod memory;
#[path = "../../benches/merge/mod.rs"]
mod merge;
#[path = "../../benches/scan/mod.rs"]
mod scan;

use harness::figure::Figure;

fn check(figures: &[Figure], wanted: &[&str]) {
    for figure in figures {
        assert!(
            figure.value().is_finite(),
            "{} is {}",
            figure.name(),
            figure.value()
        );
    }
    for name in wanted {
        let found = figures
            .iter()
            .filter(|figure| figure.name() == *name)
            .count();
        assert_eq!(found, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke_scan() {
    let figures = scan::run(scan::Options::smoke()).await;
    check(
        &figures,
        &[
            "avg_reward_1pct_x_plain",
            "avg_reward_0pct_x_plain",
            "avg_reward_100pct_x_plain",
            "group_by_1pct_x_plain",
            "filter_1pct_x_plain",
            "tokens_1pct_x_plain",
            "point_lookup_x_plain",
            "count_star_ms_small",
            "count_star_ms_large",
            "bytes_without_id_x_plain",
            "avg_reward_1pct_x_lsm",
            "plan_ms_warm_100gen",
            "mask_build_5n_x_n",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke_ingest() {
    let figures = ingest::run(ingest::Options::smoke()).await;
    check(
        &figures,
        &[
            "sql_plan_us",
            "sql_n1_mean_x_put",
            "sql_n8_p99_x_put",
            "append_n8_mean_x_put",
            "prepared_n8_mean_x_put",
            "sql_n8_rows_x_put_rate",
            "sql_n8_rows_x_serial",
            "sql_n8_p99_under_maintenance_x_quiet",
            "requests_per_insert",
            "requests_per_flush",
            "requests_per_lance_flush",
            "requests_idle_minute",
            "requests_warm_query",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke_ingest_tuning() {
    let figures = ingest::run(ingest::Options {
        tune: true,
        ..ingest::Options::smoke()
    })
    .await;
    check(
        &figures,
        &[
            "tune_closed_5ms_lanes4_linger2_mean_x_put",
            "tune_open_5ms_lanes1_linger2_p99_x_put",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke_bulk() {
    let figures = bulk::run(bulk::Options::smoke()).await;
    check(
        &figures,
        &[
            "rows_x_lance_write",
            "rows_flushed_x_lance_write",
            "peak_rss_mib",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke_memory() {
    let options = memory::Options::smoke();
    let mut figures = Vec::new();
    for part in memory::Part::ALL {
        figures.extend(memory::run(options.clone(), part).await);
    }
    check(
        &figures,
        &[
            "rss_kb_per_append",
            "allocated_kb_per_append",
            "cached_kb_per_append",
            "rss_plateau_mib",
            "untuned_rss_kb_per_append",
            "rewriting_rss_kb_per_append",
            "per_store_session_rss_kb_per_append",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn smoke_merge() {
    let figures = merge::run(merge::Options::smoke()).await;
    check(
        &figures,
        &[
            "merge_80k_ms",
            "merge_5n_x_n",
            "merge_cold_5n_x_n",
            "merge_peak_rss_mib",
            "compact_ms",
            "compact_peak_rss_mib",
        ],
    );
}
