//! `punctual-bench`: the benchmarks without the rest of `punctual`.

use std::process::ExitCode;

use clap::Parser;
use punctual_bench::BenchArgs;

/// Benchmarks of MQTT brokers
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    match Cli::parse().bench.run(&[], &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("punctual-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
