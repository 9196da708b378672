//! Builds what a command-line session runs on: DataFusion's context with datafusion-cli's functions and file
//! tables, and the rollouts table type.

use std::env;
use std::num::NonZeroUsize;
use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::logical_expr::ExplainFormat;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_cli::catalog::DynamicObjectStoreCatalog;
use datafusion_cli::functions::{
    ListFilesCacheFunc, MetadataCacheFunc, ParquetMetadataFunc, StatisticsCacheFunc,
};
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::pool_type::PoolType;
use datafusion_cli::print_options::PrintOptions;
use datafusion_rollouts::options::PREFIX;
use datafusion_rollouts::{RolloutRuntime, RolloutSessionExt};

use crate::Failure;
use crate::args::Args;

/// The context, how it prints, and the rollouts runtime that has to be shut down at the end.
pub(crate) async fn start(
    args: &Args,
) -> Result<(SessionContext, PrintOptions, RolloutRuntime), Failure> {
    let registry = Arc::new(
        InstrumentedObjectStoreRegistry::new().with_profile_mode(args.object_store_profiling),
    );
    let env = runtime_env(args, &registry)?;
    let ctx = SessionContext::new_with_config_rt(session_config(args)?, env).enable_url_table();
    ctx.refresh_catalogs().await?;
    // Makes SELECT … FROM 's3://…' find its object store.
    ctx.register_catalog_list(Arc::new(DynamicObjectStoreCatalog::new(
        Arc::clone(ctx.state().catalog_list()),
        ctx.state_weak_ref(),
    )));
    register_cli_functions(&ctx);

    let runtime = RolloutRuntime::builder()
        .with_settings(args.runtime_settings()?)
        .build()?;
    ctx.register_rollouts(&runtime)?;
    for (name, value) in args.session_settings() {
        let state = ctx.state_ref();
        let mut state = state.write();
        let options = state.config_mut().options_mut();
        options.set(&format!("{PREFIX}.{name}"), &value)?;
    }

    let print = PrintOptions {
        format: args.format,
        quiet: args.quiet,
        maxrows: args.maxrows,
        color: args.color,
        instrumented_registry: registry,
    };
    Ok((ctx, print, runtime))
}

fn session_config(args: &Args) -> Result<SessionConfig, Failure> {
    let mut options = ConfigOptions::from_env()?;
    if let Some(rows) = args.batch_size {
        options.execution.batch_size = rows;
    }
    // Two defaults for people instead of programs, unless the environment says otherwise.
    if env::var_os("DATAFUSION_EXPLAIN_FORMAT").is_none() {
        options.explain.format = ExplainFormat::Tree;
    }
    if env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
        options.format.null = "NULL".to_owned();
    }
    Ok(SessionConfig::from(options).with_information_schema(true))
}

fn runtime_env(
    args: &Args,
    registry: &Arc<InstrumentedObjectStoreRegistry>,
) -> Result<Arc<RuntimeEnv>, Failure> {
    let mut builder =
        RuntimeEnvBuilder::new().with_object_store_registry(Arc::clone(registry) as _);
    if let Some(bytes) = args.memory_limit {
        builder = builder.with_memory_pool(memory_pool(args, bytes));
    }
    if let Some(bytes) = args.disk_limit {
        builder = builder.with_disk_manager_builder(
            DiskManagerBuilder::default()
                .with_mode(DiskManagerMode::OsTmpDirectory)
                .with_max_temp_directory_size(bytes as u64),
        );
    }
    Ok(builder.build_arc()?)
}

fn memory_pool(args: &Args, bytes: usize) -> Arc<dyn MemoryPool> {
    let tracked = NonZeroUsize::new(args.top_memory_consumers);
    match (&args.mem_pool_type, tracked) {
        (PoolType::Fair, None) => Arc::new(FairSpillPool::new(bytes)),
        (PoolType::Fair, Some(top)) => {
            Arc::new(TrackConsumersPool::new(FairSpillPool::new(bytes), top))
        }
        (PoolType::Greedy, None) => Arc::new(GreedyMemoryPool::new(bytes)),
        (PoolType::Greedy, Some(top)) => {
            Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(bytes), top))
        }
    }
}

/// The table functions that datafusion-cli has.
fn register_cli_functions(ctx: &SessionContext) {
    let caches = Arc::clone(&ctx.runtime_env().cache_manager);
    ctx.register_udtf("parquet_metadata", Arc::new(ParquetMetadataFunc {}));
    ctx.register_udtf(
        "metadata_cache",
        Arc::new(MetadataCacheFunc::new(Arc::clone(&caches))),
    );
    ctx.register_udtf(
        "statistics_cache",
        Arc::new(StatisticsCacheFunc::new(Arc::clone(&caches))),
    );
    ctx.register_udtf(
        "list_files_cache",
        Arc::new(ListFilesCacheFunc::new(caches)),
    );
}
