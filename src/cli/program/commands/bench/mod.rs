//! `bench`: times the engine on random rows or a dataset. It is a run whose rows come from a
//! workload and whose answers go nowhere: flags mean what they mean for `run`.

mod cost;
mod measure;
mod op_table;
mod partial;
mod report;
mod workload;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::args::{
    BenchArgs, FlagFiles, ImageArgs, InputArgs, ModeArg, OutputArgs, ResultArgs, RunArgs,
    SamplingArgs, SplitArgs, StructuredOutputsArgs, WorkloadArgs,
};
use crate::config::RunConfig;
use crate::ledger::error::LedgerError;
use crate::ledger::{LockedOutput, Named};
use crate::model::{self, Loaded};
use crate::run::progress::{Counters, Progress};
use crate::run::signals::Signals;
use crate::run::{self, interrupted};
use cost::{HeldAs, ModelCost};
use measure::Measured;
use partial::Partial;
use report::Report;
use vllm_batch_checkpoint::spec::DecoderSpec;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::display::DisplayArgs;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::Engine;
use vllm_batch_engine::load::step_sizes::StepSizes;
use vllm_batch_engine::stats::{GivenLimits, OpTimes};
use workload::{BenchRow, RandomRows};

/// vLLM's defaults of `bench throughput`.
const NUM_PROMPTS: usize = 1000;
const INPUT_LEN: usize = 1024;
const OUTPUT_LEN: u32 = 128;
/// Enough prompts for steady steps; a batch that most machines hold.
const NUM_PREFILL_PROMPTS: usize = 32;
const NUM_DECODE_PROMPTS: usize = 64;

/// Measures a model, prints the result on standard output.
///
/// # Errors
/// Whatever ends the benchmark before its last row.
pub fn run(args: BenchArgs, files: FlagFiles, console: &Console) -> Result<Exit, CliError> {
    refuse_idle(&args)?;
    let mut dataset = args.workload.dataset.clone();
    model::fetch_inputs(&mut dataset, &SplitArgs::default(), console)?;
    let mut bench = Bench::new(args, dataset)?;
    let mut locked = bench.locked_output(files)?;
    let rows = bench.dataset()?;
    bench.make_room(rows.as_ref().map_or(bench.random.num_prompts, Vec::len))?;
    let (loaded, spec) = bench.load(&locked, console)?;
    loaded.announce(loaded.engine.info(), &bench.config, console);
    if cfg!(debug_assertions) {
        console.warn("this is a debug build: its figures say little");
    }
    let Loaded { mut engine, load_time, .. } = loaded;
    let signals = Signals::install().map_err(|error| CliError::from_signals(&error))?;
    signals.begin();
    let rows = match rows {
        Some(rows) => rows,
        None => bench.random.rows(spec.vocab_size()),
    };
    let lengths = bench.check_rows(&engine, &rows)?;
    let RandomRows { seed, num_loras, .. } = bench.random;
    let warmups =
        workload::warmups(&lengths, bench.num_warmups, (seed, num_loras), spec.vocab_size());
    if !warmups.is_empty() {
        console.note(&format!("Warming up with {} rows", warmups.len()));
        let warm = measure::run(&mut engine, warmups, &Counters::default(), &signals)?;
        if let Some(exit) = warm.stopped {
            return Err(interrupted(exit).help("it was warming up, and nothing was measured"));
        }
    }
    let given = bench.given_limits();
    if bench.result.time_ops || !engine.queues_ops() {
        engine.start_op_times(given);
    }
    let num_rows = rows.len();
    let measured = measured(&mut engine, rows, (console, &signals))?;
    if let Some(exit) = measured.stopped {
        let partial = Partial::new(&bench, &measured, num_rows);
        console.result(partial.json(exit.code()));
        for document in locked.take_documents("--output-json") {
            document.write(&partial.json(exit.code()))?;
        }
        say(&partial.text())?;
        let help = "the figures are those until then; --num-prompts N makes a shorter benchmark";
        return Err(interrupted(exit).help(help));
    }
    let op_times = engine.finish_op_times(given)?;
    let report = bench.report(&engine, &spec, load_time, (measured, op_times))?;
    console.result(report.json());
    for document in locked.take_documents("--output-json") {
        document.write(&report.json())?;
    }
    say(&report.text())?;
    Ok(Exit::Success)
}

/// Prints a result.
fn say(text: &str) -> Result<(), CliError> {
    let written = writeln!(io::stdout(), "{text}");
    written.map_err(|error| CliError::from_stdout(&error))
}

fn measured(
    engine: &mut Engine,
    rows: Vec<BenchRow>,
    (console, signals): (&Console, &Signals),
) -> Result<Measured, CliError> {
    let counters = Arc::new(Counters::default());
    counters.set_total(rows.len() as u64);
    let tokens: u64 = rows.iter().map(|row| u64::from(row.num_tokens)).sum();
    counters.set_max_tokens(tokens / (rows.len() as u64).max(1));
    let progress = Progress::start(console.clone(), counters.clone(), signals.progress());
    let measured = measure::run(engine, rows, &counters, signals);
    progress.stop();
    measured
}

/// A benchmark, resolved.
struct Bench {
    /// As `run` would have it.
    config: RunConfig,
    mode: ModeArg,
    /// What random rows would be; the seed is used in any case.
    random: RandomRows,
    /// As typed.
    num_prompts: Option<usize>,
    /// Files of `--dataset`.
    dataset: Vec<PathBuf>,
    num_warmups: usize,
    result: ResultArgs,
}

impl Bench {
    fn load(
        &self,
        locked: &LockedOutput,
        console: &Console,
    ) -> Result<(Loaded, DecoderSpec), CliError> {
        let folders = model::find(&self.config, console)?;
        let read = run::files_of(&folders).and_then(|files| locked.refuse_read(&files));
        read.map_err(LedgerError::at_start)?;
        let summary = model::summary(&self.config, &folders)?;
        let loaded = model::load_from(&self.config, &folders, &summary)?;
        Ok((loaded, summary.spec))
    }

    fn new(args: BenchArgs, dataset: Vec<PathBuf>) -> Result<Self, CliError> {
        let BenchArgs { model, workload, images, result, engine, .. } = args;
        let mode = workload.mode.unwrap_or_default();
        let mut random = random_rows(&workload, mode)?;
        if mode == ModeArg::Prefill && engine.cache.prefix_caching() == Some(true) {
            let message = "--mode prefill computes every prompt token: it has no prefix cache";
            return Err(
                CliError::refused("mode", message).help("leave out --enable-prefix-caching")
            );
        }
        let mut config = RunConfig::new(RunArgs {
            model,
            engine,
            // Without a dataset no input is opened.
            input: InputArgs {
                input: if dataset.is_empty() { vec!["-".into()] } else { dataset.clone() },
                template: workload.template,
                prompt_column: workload.prompt_column,
                images,
                ..InputArgs::default()
            },
            output: OutputArgs::default(),
            sampling: SamplingArgs { seed: Some(random.seed), ..SamplingArgs::default() },
            structured_outputs: StructuredOutputsArgs::default(),
            loglikelihood: None,
            display: DisplayArgs::default(),
            help: None,
        })?;
        random.num_loras = config.engine.lora.modules.len() as u32;
        if mode == ModeArg::Prefill {
            config.engine.cache.enable_prefix_caching = false;
        }
        Ok(Self {
            config,
            mode,
            random,
            num_prompts: workload.num_prompts,
            dataset,
            num_warmups: workload.num_warmups.unwrap_or(0),
            result,
        })
    }

    /// What `--output-json` names, before anything is measured.
    fn locked_output(&self, flags: FlagFiles) -> Result<LockedOutput, CliError> {
        let dataset = self.dataset.iter().map(|path| Named::new("the dataset", path));
        LockedOutput::of_documents(flags, dataset.collect()).map_err(LedgerError::at_start)
    }

    /// The dataset's rows, where there is one.
    fn dataset(&self) -> Result<Option<Vec<BenchRow>>, CliError> {
        if self.dataset.is_empty() {
            return Ok(None);
        }
        let output_len = self.random.output_len;
        let mut rows = workload::dataset(&self.config.input, self.num_prompts, output_len)?;
        if self.mode == ModeArg::Prefill {
            rows.iter_mut().for_each(|row| row.num_tokens = 1);
        }
        Ok(Some(rows))
    }

    /// Lets all rows run at once where the mode is about that.
    fn make_room(&mut self, num_rows: usize) -> Result<(), CliError> {
        let max_num_seqs = &mut self.config.engine.scheduler.max_num_seqs;
        match *max_num_seqs {
            _ if self.mode != ModeArg::Decode => {}
            Some(given) if given < num_rows => {
                let message = format!("--mode decode runs all {num_rows} rows at once");
                let help = format!("give --max-num-seqs {num_rows}, or fewer --num-prompts");
                return Err(CliError::refused("mode", message).help(help));
            }
            None if num_rows > StepSizes::USUAL_SEQS => *max_num_seqs = Some(num_rows),
            _ => {}
        }
        Ok(())
    }

    /// (prompt, output) lengths of the rows, all of which the engine can run.
    fn check_rows(
        &self,
        engine: &Engine,
        rows: &[BenchRow],
    ) -> Result<Vec<(usize, u32)>, CliError> {
        let processor = engine.input_processor();
        let max_model_len = processor.max_model_len();
        let block_size = engine.info().block_size;
        let mut lengths = Vec::with_capacity(rows.len());
        let mut num_cache_tokens = 0;
        for (index, row) in rows.iter().enumerate() {
            let request = measure::request(&processor, index, row.clone());
            let request = request.map_err(|error| measure::refuse(index as u64, error))?;
            let num_prompt_tokens = request.prompt_token_ids.len();
            let num_tokens = num_prompt_tokens + row.num_tokens as usize;
            if num_tokens > max_model_len {
                let message = format!(
                    "row {}: {num_prompt_tokens} prompt and {} output tokens exceed the context of \
                     {max_model_len}",
                    index + 1,
                    row.num_tokens
                );
                let help = "shorten --input-len or --output-len, or raise --max-model-len";
                return Err(CliError::refused("context_length", message).help(help));
            }
            num_cache_tokens += num_tokens.next_multiple_of(block_size);
            lengths.push((num_prompt_tokens, row.num_tokens));
        }
        let capacity = engine.info().num_cache_tokens;
        if self.mode == ModeArg::Decode && num_cache_tokens > capacity {
            let message = format!(
                "--mode decode needs a KV cache of {num_cache_tokens} tokens, it has {capacity}"
            );
            let help = "raise --kv-cache-memory-bytes or --gpu-memory-utilization, or give fewer \
                        --num-prompts";
            return Err(CliError::refused("kv_cache_too_small", message).help(help));
        }
        Ok(lengths)
    }

    /// What was typed of the machine's limits.
    fn given_limits(&self) -> GivenLimits {
        GivenLimits {
            flops: self.result.peak_tflops.map(|peak| 1e12 * peak),
            bandwidth: self.result.memory_bandwidth.map(|bandwidth| 1e9 * bandwidth),
        }
    }

    fn report(
        &self,
        engine: &Engine,
        spec: &DecoderSpec,
        load_time: Duration,
        (measured, op_times): (Measured, Option<OpTimes>),
    ) -> Result<Report, CliError> {
        let info = engine.info().clone();
        let cache = (info.kv_cache_bytes, info.num_cache_tokens);
        let kv_bytes_per_token = cost::kv_bytes_per_token(spec, cache, info.block_size);
        let report = Report {
            mode: self.mode,
            model: self.config.model.name.clone(),
            dataset: (!self.dataset.is_empty()).then(|| self.config.input.name.clone()),
            random: self.random,
            num_warmups: self.num_warmups,
            enable_prefix_caching: self.config.engine.cache.enable_prefix_caching,
            cost: ModelCost::new(
                spec,
                HeldAs {
                    dtype: info.dtype,
                    quantization: self.config.engine.device.quantization,
                    code_bytes: &info.code_bytes,
                },
                kv_bytes_per_token,
            ),
            info,
            load_time,
            measured,
            op_times,
            memory_bandwidth: self.result.memory_bandwidth,
            peak_tflops: self.result.peak_tflops,
            attention_tflops: self.result.attention_tflops,
        };
        if self.mode == ModeArg::Decode && report.has_no_full_step() {
            let message = "no step computed one token of every row";
            return Err(CliError::refused("mode", message).help(self.why_no_full_step()));
        }
        Ok(report)
    }

    /// What keeps rows from running together.
    fn why_no_full_step(&self) -> String {
        let (num_loras, max_loras) =
            (self.config.engine.lora.modules.len(), self.config.engine.scheduler.max_loras);
        match num_loras > max_loras {
            true => format!(
                "rows of {max_loras} adapters run at once, and there are {num_loras}: raise \
                 --max-loras, or give fewer --lora-modules"
            ),
            false => "raise --output-len or --max-num-batched-tokens, so that the first row is \
                      still running when the last prompt is done"
                .to_owned(),
        }
    }
}

/// Refuses flags of images where there are none: random rows are token ids.
fn refuse_idle(args: &BenchArgs) -> Result<(), CliError> {
    let ImageArgs {
        image_column,
        audio_column,
        allowed_local_media_path,
        allow_media_urls,
        max_audio_clip_s,
        ..
    } = &args.images;
    let typed = [
        ("--image-column", image_column.is_some()),
        ("--audio-column", audio_column.is_some()),
        ("--allowed-local-media-path", allowed_local_media_path.is_some()),
        ("--allow-media-urls", *allow_media_urls),
        ("--max-audio-clip-s", max_audio_clip_s.is_some()),
    ];
    match typed.iter().find(|(_, is_typed)| *is_typed && args.workload.dataset.is_empty()) {
        None => Ok(()),
        Some((flag, _)) => {
            let message = format!("{flag}: random rows have no images");
            Err(CliError::refused("flag", message).help("name rows with images: --dataset FILE"))
        }
    }
}

fn random_rows(workload: &WorkloadArgs, mode: ModeArg) -> Result<RandomRows, CliError> {
    let output_len = match (mode, workload.output_len) {
        (ModeArg::Prefill, None | Some(1)) => 1,
        (ModeArg::Prefill, Some(len)) => {
            let message =
                format!("--output-len {len}: --mode prefill has one output token per row");
            return Err(
                CliError::refused("mode", message).help("leave it out, or choose another --mode")
            );
        }
        (_, len) => len.unwrap_or(OUTPUT_LEN),
    };
    let num_prompts = workload.num_prompts.unwrap_or(match mode {
        ModeArg::Throughput => NUM_PROMPTS,
        ModeArg::Prefill => NUM_PREFILL_PROMPTS,
        ModeArg::Decode => NUM_DECODE_PROMPTS,
    });
    Ok(RandomRows {
        num_prompts,
        prefix_len: workload.prefix_len.unwrap_or(0),
        input_len: workload.input_len.unwrap_or(INPUT_LEN),
        long: workload.num_long_prompts.zip(workload.long_input_len).unwrap_or((0, 0)),
        output_len,
        end_of_text: workload.end_of_text,
        range_ratio: workload.random_range_ratio.unwrap_or(0.0),
        seed: workload.seed.unwrap_or(0),
        num_loras: 0,
    })
}
