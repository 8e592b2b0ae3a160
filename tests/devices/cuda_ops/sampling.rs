//! sample and logprobs against the host's sampler, count_mismatches against a loop. They are
//! launched as what they are, kernels, since their ops are private to the engine.

use vllm_batch::engine::api::request::{NumLogprobs, PositionLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::core::request::StopIds;
use vllm_batch::engine::core::sampler::{RowResult, RowTask, SampleTask, SamplerScratch, run_row};
use vllm_batch::engine::device::cuda::{Args, DeviceBuffer};
use vllm_batch::engine::device::{Device, Gpu, Precision, Tensor, bytes_of};
use vllm_batch::engine::ops::MAX_GPU_VOCAB_SIZE;
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::logprobs::{LogprobEntry, LogprobRow};
use vllm_batch::engine::ops::sample::{Edit, SampleResult, SampleRow};
use vllm_batch::engine::ops::token_counts::{CountTask, CountedToken};

use crate::cuda_ops::pair::{Pair, Rows};

const ENGINE_SEED: u64 = 9;
const NUM_ROWS: usize = 24;

fn gpu(pair: &Pair) -> &Gpu {
    let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
    gpu
}

fn filled(gpu: &Gpu, bytes: &[u8]) -> DeviceBuffer {
    let buffer = gpu.alloc(bytes.len()).expect("memory");
    gpu.upload(&buffer, bytes);
    buffer
}

/// Logits of the shape that models give: a few tokens far above the others, some of them equal.
fn logits(pair: &Pair, vocab_size: usize) -> Rows {
    let mut logits = pair.values(NUM_ROWS, vocab_size, 80, 1.0);
    for (index, value) in logits.values.iter_mut().enumerate() {
        *value = 12.0 * value.powi(7) + (index * 7919 % 13) as f32 * 0.1;
    }
    // More equal logits than shared memory holds; all equal.
    logits.values[..vocab_size].fill(1.0);
    logits
}

fn params_of(row: usize, vocab_size: usize) -> SamplingParams {
    let base = SamplingParams::default();
    match row % 8 {
        0 => SamplingParams { temperature: 1.0, ..base },
        1 => SamplingParams { temperature: 0.0, ..base },
        2 => SamplingParams { temperature: 0.8, top_p: 0.9, ..base },
        3 => SamplingParams { temperature: 1.3, top_k: 5, ..base },
        4 => SamplingParams { temperature: 0.7, min_p: 0.05, ..base },
        5 => SamplingParams { top_k: 50, top_p: 0.7, min_p: 0.01, ..base },
        6 => SamplingParams { logit_bias: vec![(vocab_size as u32 / 2, 9.0)], ..base },
        _ => SamplingParams { temperature: 2.0, top_p: 0.3, ..base },
    }
}

fn task<'a>(params: &'a SamplingParams, stop_ids: &'a StopIds, row: usize) -> SampleTask<'a> {
    SampleTask {
        params,
        prompt_token_ids: &[],
        output_token_ids: &[],
        stop_ids,
        bad_words_token_ids: &[],
        row_key: RowKey(row as u64 * 77),
        num_drafts: 0,
        sampled_row: None,
        request_id: 0,
        engine_seed: ENGINE_SEED,
        sample_index: 0,
        token_mask: None,
    }
}

/// What the host samples.
fn sampled_on_host(logits: &Rows) -> Vec<u32> {
    let mut scratch = SamplerScratch::default();
    let mut token = |(row, values): (usize, &[f32])| {
        let (params, stop_ids) = (params_of(row, logits.width), StopIds::default());
        let task = RowTask::Sample(task(&params, &stop_ids, row));
        match run_row(&mut values.to_vec(), &task, &mut scratch) {
            RowResult::Sampled { token_id, .. } => token_id,
            other => panic!("row {row}: {other:?}"),
        }
    };
    logits.values.chunks(logits.width).enumerate().map(&mut token).collect()
}

/// What the kernel samples from these rows, in this order.
fn sampled_on_gpu(pair: &Pair, all: &Rows, rows: &[usize]) -> Vec<SampleResult> {
    let gpu = gpu(pair);
    let logits = all.on(&pair.gpu, rows, Precision::Full);
    let (mut tasks, mut edits) = (Vec::new(), Vec::new());
    for (place, row) in rows.iter().enumerate() {
        let params = params_of(*row, all.width);
        let edit_start = edits.len() as u32;
        let edit = |&(token, bias): &(u32, f32)| Edit { token, bias, ..Edit::default() };
        edits.extend(params.logit_bias.iter().map(edit));
        tasks.push(SampleRow {
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            top_k: params.top_k,
            counter: [0, 0, *row as u32 * 77, 0],
            key: [ENGINE_SEED as u32, 0],
            edit_start,
            edit_end: edits.len() as u32,
            repetition_penalty: 1.0,
            logits_row: place as u32,
            ..SampleRow::default()
        });
    }
    launch_sample(gpu, &logits, (&tasks, &edits))
}

fn launch_sample(
    gpu: &Gpu,
    logits: &Tensor,
    (rows, edits): (&[SampleRow], &[Edit]),
) -> Vec<SampleResult> {
    let num_rows = rows.len();
    // A buffer is not empty.
    let edits = [edits, &[Edit::default()]].concat();
    let (rows, edits) = (filled(gpu, bytes_of(rows)), filled(gpu, bytes_of(&edits)));
    let (lists, drafts) = (filled(gpu, &[0; 8]), filled(gpu, &[0; 4]));
    let results = gpu.alloc(num_rows * size_of::<SampleResult>()).expect("memory");
    let mut args = Args::new();
    args.tensor(logits).dims([logits.width()]).ptr(rows.ptr()).ptr(edits.ptr());
    args.ptr(lists.ptr()).ptr(drafts.ptr()).ptr(results.ptr());
    // The block is a choice of speed: no result may show it.
    let block = if num_rows > 4 { 384 } else { 640 };
    gpu.launch(("sample", "sample"), [num_rows as u32, 1], (block, 0), &mut args);
    let mut sampled = vec![SampleResult::default(); num_rows];
    gpu.download(results.ptr(), &mut sampled);
    gpu.synchronize().expect("the kernel ran");
    sampled
}

#[test]
fn sample_takes_the_hosts_tokens_and_a_row_alone_takes_the_same() {
    let Some(pair) = Pair::open(DType::BFloat16, 800, None) else { return };
    let (mut num_equal, mut num_rows) = (0, 0);
    for vocab_size in [31, 1000, 4099, 20_000] {
        let logits = logits(&pair, vocab_size);
        let all: Vec<usize> = (0..NUM_ROWS).collect();
        let expected = sampled_on_host(&logits);
        let got = sampled_on_gpu(&pair, &logits, &all);
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.status, 0, "row {row}");
            let is_greedy = params_of(row, vocab_size).is_greedy();
            assert!(!is_greedy || got.token == *expected, "row {row}: greedy is exact");
            num_equal += usize::from(got.token == *expected);
            num_rows += 1;
        }
        for rows in [vec![NUM_ROWS - 1], vec![3, 0, 2], all.into_iter().rev().collect()] {
            let again = sampled_on_gpu(&pair, &logits, &rows);
            let expected: Vec<_> = rows.iter().map(|row| got[*row]).collect();
            assert_eq!(again, expected, "{vocab_size} tokens, rows {rows:?}");
        }
    }
    // Random numbers within a rounding of a token's edge may take its neighbour.
    assert!(num_equal * 100 >= num_rows * 97, "{num_equal} of {num_rows} tokens are the host's");
}

/// At the largest vocabulary that is admitted: sums of equal weights come close to 2^64, and the
/// last segment has its place. A few rows, since each is half a million logits.
#[test]
fn sample_takes_every_token_of_the_largest_vocabulary() {
    let Some(pair) = Pair::open(DType::BFloat16, 810, None) else { return };
    let width = MAX_GPU_VOCAB_SIZE;
    let mut logits = Rows { values: vec![1.0; 3 * width], width };
    logits.values[2 * width - 1] = 2.0;
    let off = SampleRow { top_p: 1.0, repetition_penalty: 1.0, ..SampleRow::default() };
    let drawn = SampleRow { temperature: 1.0, key: [ENGINE_SEED as u32, 0], ..off };
    let rows = [
        drawn,
        SampleRow { logits_row: 1, ..off },
        SampleRow { top_p: 0.5, logits_row: 2, ..drawn },
    ];
    let tensor = logits.on(&pair.gpu, &[0, 1, 2], Precision::Full);
    let sampled = launch_sample(gpu(&pair), &tensor, (&rows, &[]));
    assert!(sampled.iter().all(|row| row.status == 0), "{sampled:?}");
    assert_eq!(sampled[1].token as usize, width - 1);
    // The host adds weights in floats, so it may take a neighbour.
    for (row, top_p) in [(0, 1.0), (2, 0.5)] {
        let params = SamplingParams { temperature: 1.0, top_p, ..SamplingParams::default() };
        let stop_ids = StopIds::default();
        let task = RowTask::Sample(task(&params, &stop_ids, 0));
        let mut values = logits.values[row * width..(row + 1) * width].to_vec();
        let RowResult::Sampled { token_id, .. } =
            run_row(&mut values, &task, &mut SamplerScratch::default())
        else {
            panic!("row {row} has a token")
        };
        assert!(token_id.abs_diff(sampled[row].token) <= 1, "row {row}: {sampled:?}, {token_id}");
    }
}

#[test]
fn sample_says_which_rows_have_no_token() {
    let Some(pair) = Pair::open(DType::BFloat16, 805, None) else { return };
    let gpu = gpu(&pair);
    let vocab_size = 1000;
    let (neg_inf, inf) = (f32::NEG_INFINITY, f32::INFINITY);
    // What is at a place of a row of zeros, the row's flags, and what becomes of it.
    let rows = [
        (vec![(999, f32::NAN)], 0, SampleResult::NON_FINITE),
        (vec![(0, inf)], 0, SampleResult::NON_FINITE),
        ((0..vocab_size).map(|i| (i, neg_inf)).collect(), 0, SampleResult::NON_FINITE),
        (vec![(7, 3.0)], SampleRow::ONLY_ALLOWED, SampleResult::NO_TOKEN),
        ((1..vocab_size).map(|i| (i, neg_inf)).collect(), 0, 0),
    ];
    for temperature in [0.0, 1.0] {
        let mut values = vec![0.0f32; rows.len() * vocab_size];
        let mut tasks = Vec::new();
        for (row, (changes, flags, _)) in rows.iter().enumerate() {
            changes.iter().for_each(|(at, value)| values[row * vocab_size + at] = *value);
            let (top_p, repetition_penalty, logits_row) = (1.0, 1.0, row as u32);
            let off = SampleRow { top_p, repetition_penalty, ..SampleRow::default() };
            tasks.push(SampleRow { temperature, flags: *flags, logits_row, ..off });
        }
        let logits = pair.gpu.upload_as(&values, vocab_size, Precision::Full).expect("memory");
        let sampled = launch_sample(gpu, &logits, (&tasks, &[]));
        for (row, (sampled, (.., status))) in sampled.iter().zip(&rows).enumerate() {
            assert_eq!(sampled.status, *status, "row {row}, temperature {temperature}");
            assert!(*status != 0 || sampled.token == 0, "row {row} has one token");
        }
    }
}

/// Lists with tokens that are there and not, once and twice, from the host and from a row that was
/// sampled; nothing beyond the end of a list changes. Penalties are tested in `penalties`.
#[test]
fn count_tokens_counts_each_token_in_its_list() {
    let Some(pair) = Pair::open(DType::BFloat16, 806, None) else { return };
    let gpu = gpu(&pair);
    // Room of 700 entries each, of which so many are tokens.
    let (room, lens) = (700, [0usize, 1, 300, 600]);
    let counted = |token: u32, num_output: u32| CountedToken { token, num_output };
    let mut lists = vec![counted(9, 9); room * lens.len()];
    let (mut tasks, mut tokens) = (Vec::new(), Vec::new());
    for (index, len) in lens.into_iter().enumerate() {
        let list = &mut lists[index * room..];
        list[0] = counted(len as u32, 0);
        (0..len).for_each(|i| list[1 + i] = counted(3 * i as u32, i as u32 % 2));
        let token_start = tokens.len() as u32;
        tokens.extend([0, 897, 4, 898, 4, 0]);
        let (list, token_end) = ((index * room) as u32, tokens.len() as u32);
        let sampled_row = [2, CountTask::NO_ROW, 0, 1][index];
        tasks.push(CountTask { list, token_start, token_end, sampled_row });
    }
    let sampled = |token, status| SampleResult { token, status };
    let results = [sampled(4, 0), sampled(6, SampleResult::NON_FINITE), sampled(6, 0)];
    let mut expected = lists.clone();
    for (index, task) in tasks.iter().enumerate() {
        let list = &mut expected[index * room..(index + 1) * room];
        let known = &tokens[task.token_start as usize..task.token_end as usize];
        let last = [Some(6), None, Some(4), None][index];
        for token in known.iter().copied().chain(last) {
            let len = list[0].token as usize;
            match list[1..=len].iter_mut().find(|entry| entry.token == token) {
                Some(entry) => entry.num_output += 1,
                None => {
                    list[1 + len] = counted(token, 1);
                    list[0].token += 1;
                }
            }
        }
    }
    let (on_gpu, tasks_on_gpu) = (filled(gpu, bytes_of(&lists)), filled(gpu, bytes_of(&tasks)));
    let (tokens, results) = (filled(gpu, bytes_of(&tokens)), filled(gpu, bytes_of(&results)));
    let mut args = Args::new();
    args.ptr(on_gpu.ptr()).ptr(tasks_on_gpu.ptr()).ptr(tokens.ptr()).ptr(results.ptr());
    gpu.launch(("sample", "count_tokens"), [tasks.len() as u32, 1], (256, 0), &mut args);
    gpu.download(on_gpu.ptr(), &mut lists);
    gpu.synchronize().expect("the kernel ran");
    assert_eq!(lists, expected);
}

/// The logprobs that the kernel gives of rows: of token `row`, and the `num_top` most likely.
fn logprobs_on_gpu(
    pair: &Pair,
    logits: &Tensor,
    rows: &[usize],
    num_top: usize,
) -> Vec<Vec<(u32, f32, u32)>> {
    let gpu = gpu(pair);
    let width = 1 + num_top;
    let task = |(place, row): (usize, &usize)| LogprobRow {
        logits_row: *row as u32,
        token: *row as u32,
        num_top: num_top as u32,
        result_row: place as u32,
        first_entry: (place * width) as u32,
        is_kept: 0,
    };
    let tasks: Vec<_> = rows.iter().enumerate().map(task).collect();
    let tasks = filled(gpu, bytes_of(&tasks));
    let len = rows.len() * width;
    let entries = gpu.alloc(len * size_of::<LogprobEntry>()).expect("memory");
    let results = gpu.alloc(rows.len() * size_of::<SampleResult>()).expect("memory");
    let mut args = Args::new();
    args.tensor(logits).tensor(logits).dims([logits.width()]).ptr(tasks.ptr());
    args.ptr(results.ptr()).ptr(entries.ptr());
    gpu.launch(("logprobs", "logprobs"), [rows.len() as u32, 1], (768, 0), &mut args);
    let mut host_entries = vec![LogprobEntry::default(); len];
    let mut host_results = vec![SampleResult { token: 0, status: 9 }; rows.len()];
    gpu.download(entries.ptr(), &mut host_entries);
    gpu.download(results.ptr(), &mut host_results);
    gpu.synchronize().expect("the kernel ran");
    assert!(rows.iter().zip(host_results).all(|(row, r)| (r.token, r.status) == (*row as u32, 0)));
    let entry = |e: &LogprobEntry| (e.token, e.logprob, e.rank);
    host_entries.chunks(width).map(|row| row.iter().map(entry).collect()).collect()
}

fn logprobs_on_host(logits: &mut [f32], target: u32, num_top: usize) -> PositionLogprobs {
    let num_logprobs = NumLogprobs::Top(num_top as u32);
    let task = RowTask::PromptLogprobs { target, num_logprobs };
    match run_row(logits, &task, &mut SamplerScratch::default()) {
        RowResult::PromptLogprobs(logprobs) => logprobs,
        other => panic!("{other:?}"),
    }
}

#[test]
fn logprobs_and_ranks_are_the_hosts_and_do_not_depend_on_other_rows() {
    let Some(pair) = Pair::open(DType::BFloat16, 810, None) else { return };
    for (vocab_size, num_top) in [(31, 31), (1000, 0), (4099, 5), (20_000, 20)] {
        let logits = logits(&pair, vocab_size);
        let all: Vec<usize> = (0..NUM_ROWS).collect();
        let on_gpu = logits.on(&pair.gpu, &all, Precision::Full);
        let got = logprobs_on_gpu(&pair, &on_gpu, &all, num_top);
        for (row, (got, values)) in got.iter().zip(logits.values.chunks(vocab_size)).enumerate() {
            let host = logprobs_on_host(&mut values.to_vec(), row as u32, num_top);
            let expected: Vec<_> = std::iter::once(&host.token).chain(&host.top).collect();
            assert_eq!(got.len(), expected.len());
            for ((id, logprob, rank), expected) in got.iter().zip(expected) {
                let what = format!("{vocab_size} tokens, row {row}, token {id}");
                assert_eq!((*id, *rank), (expected.token_id, expected.rank), "{what}");
                assert!(
                    (logprob - expected.logprob).abs() < 2e-6 * (1.0 + logprob.abs()),
                    "{what}"
                );
            }
        }
        let reversed: Vec<usize> = all.into_iter().rev().collect();
        for rows in [vec![5], reversed] {
            let again = logprobs_on_gpu(&pair, &on_gpu, &rows, num_top);
            assert!(rows.iter().zip(again).all(|(row, again)| again == got[*row]), "{rows:?}");
        }
    }
}

#[test]
fn count_mismatches_counts_every_element_that_differs() {
    let Some(pair) = Pair::open(DType::BFloat16, 820, None) else { return };
    let gpu = gpu(&pair);
    for (num_rows, width, period) in [(1, 1, 1), (33, 100, 5), (8, 4097, 8)] {
        let reference: Vec<u16> = (0..period * width).map(|i| (i * 31) as u16).collect();
        let mut x: Vec<u16> = (0..num_rows * width)
            .map(|i| reference[i / width % period * width + i % width])
            .collect();
        let changed: Vec<usize> = (0..x.len()).step_by(97).collect();
        changed.iter().for_each(|i| x[*i] ^= 1);
        let (x, reference) = (filled(gpu, bytes_of(&x)), filled(gpu, bytes_of(&reference)));
        let count = gpu.alloc(4).expect("memory");
        let mut args = Args::new();
        args.ptr(x.ptr()).ptr(reference.ptr()).dims([width, period]).ptr(count.ptr());
        let kernel = ("count_mismatches", "count_mismatches");
        gpu.launch(kernel, [num_rows as u32, 1], (256, 0), &mut args);
        let mut counted = [0u32];
        gpu.download(count.ptr(), &mut counted);
        gpu.synchronize().expect("the kernel ran");
        assert_eq!(counted[0] as usize, changed.len(), "{num_rows} rows of {width}");
    }
}

#[test]
fn take_sampled_takes_unknown_tokens_alone_and_0_where_there_is_none() {
    let Some(pair) = Pair::open(DType::BFloat16, 830, None) else { return };
    let gpu = gpu(&pair);
    for num_rows in [1, 2, 255, 256, 257] {
        let result = |row: u32| SampleResult { token: row * 7 + 1, status: row % 3 };
        let results: Vec<_> = (0..num_rows as u32).map(result).collect();
        let row = |i: usize| if i % 5 == 4 { Batch::KNOWN } else { (i * 101 % num_rows) as u32 };
        let rows: Vec<u32> = (0..num_rows).map(row).collect();
        let token = |(i, row): (usize, &u32)| match results.get(*row as usize) {
            None => 9_000 + i as u32,
            Some(result) if result.status == 0 => result.token,
            Some(_) => 0,
        };
        let expected: Vec<u32> = rows.iter().enumerate().map(token).collect();
        let (results, rows) = (filled(gpu, bytes_of(&results)), filled(gpu, bytes_of(&rows)));
        let known: Vec<u32> = (9_000..).take(num_rows).collect();
        let input_ids = filled(gpu, bytes_of(&known));
        let mut args = Args::new();
        args.ptr(results.ptr()).ptr(rows.ptr()).ptr(input_ids.ptr()).dims([num_rows]);
        let grid = [num_rows.div_ceil(256) as u32, 1];
        gpu.launch(("take_sampled", "take_sampled"), grid, (256, 0), &mut args);
        let mut got = vec![0u32; num_rows];
        gpu.download(input_ids.ptr(), &mut got);
        gpu.synchronize().expect("the kernel ran");
        assert_eq!(got, expected, "{num_rows} rows");
    }
}
