//! Every kernel compiles for the architecture that was run, where it converts E4M3 for older ones
//! too, without spills and within a number of registers; with VLLM_BATCH_TEST_ALL_GPUS for every
//! one. NVRTC needs no GPU: `.ci/run` sets VLLM_BATCH_NVRTC_DIR to the folder of libnvrtc.so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use vllm_batch::engine::device::KERNEL_SOURCES;
use vllm_batch::engine::device::cuda::compiler::{Compiler, ResourceUsage};
use vllm_batch::engine::device::cuda::library::{self, SearchHints};
use vllm_batch::engine::ops::{AttentionLaunch, wgmma_prefill_sizes};

/// Architecture, and KB of shared memory that a block may opt in to. What kernels/ tells apart by
/// __CUDA_ARCH__, the conversions of E4M3, is in the first three.
const ARCHITECTURES: [(&str, usize); 5] =
    [("sm_80", 163), ("sm_89", 99), ("sm_90a", 227), ("sm_100a", 227), ("sm_120", 99)];
const NUM_WITH_OWN_CODE: usize = 3;
/// The one that kernels were run on.
const OF_RUNS: &str = "sm_90a";
/// Sources that convert E4M3 whatever they are compiled with; others with KV_FP8 alone.
const CONVERTING: [&str; 5] =
    ["activation", "linear_codes", "linear_expert_codes", "norm", "quantize_rows"];

type Defines = &'static [(&'static str, &'static str)];

const NONE: &[Defines] = &[&[]];
const DTYPES: &[Defines] = &[&[("DTYPE", "bf16")], &[("DTYPE", "f16")], &[("DTYPE", "float")]];
const NARROW_DTYPES: &[Defines] = &[&[("DTYPE", "bf16")], &[("DTYPE", "f16")]];
const ROTARY: &[Defines] = &[
    &[("DTYPE", "bf16")],
    &[("DTYPE", "f16")],
    &[("DTYPE", "float")],
    &[("DTYPE", "bf16"), ("KV_FP8", "1")],
];
const ATTENTION_F32: &[Defines] = &[
    &[("DTYPE", "float"), ("HEAD_DIM", "12")],
    &[("DTYPE", "float"), ("HEAD_DIM", "128")],
    &[("DTYPE", "float"), ("HEAD_DIM", "128"), ("ALIBI", "1")],
    &[("DTYPE", "float"), ("HEAD_DIM", "256")],
    &[("DTYPE", "float"), ("HEAD_DIM", "64"), ("SINKS", "1")],
    &[("DTYPE", "float"), ("HEAD_DIM", "32"), ("TEXTS", "1")],
    &[("DTYPE", "float"), ("HEAD_DIM", "256"), ("IMAGES", "1")],
    &[("DTYPE", "float"), ("HEAD_DIM", "64"), ("TEXTS", "1"), ("BIAS", "1")],
];
const WIDE_F32: &[Defines] = &[
    &[("DTYPE", "float"), ("HEAD_DIM", "288"), ("LATENT_DIM", "256")],
    &[("DTYPE", "float"), ("HEAD_DIM", "576"), ("LATENT_DIM", "512")],
    &[("DTYPE", "float"), ("HEAD_DIM", "512")],
];
macro_rules! codes {
    ($dtype:literal, $levels:literal, $bits:literal, $scale:literal, $group:literal) => {
        &[
            ("DTYPE", $dtype),
            ("LEVELS", $levels),
            ("CODE_BITS", $bits),
            ("SCALE", $scale),
            ("GROUP", $group),
        ]
    };
}

/// Taps of convolutions.
const TAPS: &[Defines] = &[
    &[("DTYPE", "bf16"), ("STATE_ROWS", "3")],
    &[("DTYPE", "f16"), ("STATE_ROWS", "4")],
    &[("DTYPE", "float"), ("STATE_ROWS", "4")],
    &[("DTYPE", "bf16"), ("STATE_ROWS", "16")],
];
/// Rows of the states of published models, and the most.
const STATES: &[Defines] = &[
    &[("DTYPE", "bf16"), ("STATE_ROWS", "128")],
    &[("DTYPE", "f16"), ("STATE_ROWS", "128")],
    &[("DTYPE", "float"), ("STATE_ROWS", "128")],
    &[("DTYPE", "bf16"), ("STATE_ROWS", "256")],
    &[("DTYPE", "bf16"), ("STATE_ROWS", "12")],
    &[("DTYPE", "bf16"), ("STATE_ROWS", "1024")],
];
/// The same of Mamba 1, and the most.
const SCANNED: &[Defines] = &[
    &[("DTYPE", "bf16"), ("STATE_ROWS", "16")],
    &[("DTYPE", "f16"), ("STATE_ROWS", "16")],
    &[("DTYPE", "float"), ("STATE_ROWS", "16")],
];
const MOST_SCANNED: &[Defines] = &[&[("DTYPE", "bf16"), ("STATE_ROWS", "1024")]];

/// As GPTQ, AWQ, MXFP4, Q4_K and fp8 by blocks have them: every way to a level.
const CODES: &[Defines] = &[
    codes!("f16", "INTEGERS", "4", "f16", "128"),
    codes!("bf16", "ZEROS", "4", "bf16", "64"),
    codes!("bf16", "TABLE", "4", "bf16", "32"),
    codes!("f16", "MINIMA", "4", "float", "32"),
    codes!("bf16", "FLOAT8", "8", "float", "128"),
];
/// Head sizes of published models, in bf16; f16 differs in its conversions only.
const HEADS: &[Defines] = &[
    &[("DTYPE", "bf16"), ("HEAD_DIM", "32")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "64")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "64"), ("ALIBI", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "64"), ("SINKS", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "64"), ("KV_FP8", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "80")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "96")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "96"), ("KV_FP8", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128")],
    &[("DTYPE", "f16"), ("HEAD_DIM", "128")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("KV_FP8", "1")],
    &[("DTYPE", "f16"), ("HEAD_DIM", "128"), ("KV_FP8", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("ALIBI", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("KV_FP8", "1"), ("ALIBI", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "112"), ("ALIBI", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "120")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "160")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "192")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "192"), ("KV_FP8", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "256")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "256"), ("KV_FP8", "1")],
];
/// What decode is compiled for unless a row says so: the layers of Llama 3.1 8B.
const USUAL_LAYER: [(&str, &str); 4] =
    [("NUM_KV_HEADS", "8"), ("GROUP_SIZE", "4"), ("BLOCK_SIZE", "16"), ("WINDOW", "0")];
/// Other kinds of layers: of gpt-oss, Qwen2.5 7B, Mistral 7B, Qwen2.5 3B over two GPUs with a cache
/// of E4M3, Gemma 2, Llama 4.
const LAYERS: &[Defines] = &[
    &[
        ("DTYPE", "bf16"),
        ("HEAD_DIM", "64"),
        ("SINKS", "1"),
        ("GROUP_SIZE", "8"),
        ("WINDOW", "128"),
    ],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("NUM_KV_HEADS", "4"), ("GROUP_SIZE", "7")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("BLOCK_SIZE", "48"), ("WINDOW", "4096")],
    &[
        ("DTYPE", "bf16"),
        ("HEAD_DIM", "128"),
        ("NUM_KV_HEADS", "1"),
        ("GROUP_SIZE", "8"),
        ("KV_FP8", "1"),
    ],
    &[
        ("DTYPE", "bf16"),
        ("HEAD_DIM", "256"),
        ("GROUP_SIZE", "2"),
        ("WINDOW", "4096"),
        ("SOFT_CAP", "1"),
    ],
    &[
        ("DTYPE", "bf16"),
        ("HEAD_DIM", "128"),
        ("GROUP_SIZE", "5"),
        ("WINDOW", "8192"),
        ("REACH_CHUNKS", "1"),
    ],
];
/// What kernels/paged_attention_wgmma.cu takes.
const WGMMA_HEADS: &[Defines] = &[
    &[("DTYPE", "bf16"), ("HEAD_DIM", "64")],
    &[("DTYPE", "f16"), ("HEAD_DIM", "64")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "64"), ("SINKS", "1")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128")],
    &[("DTYPE", "f16"), ("HEAD_DIM", "128")],
    &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("ALIBI", "1")],
];
/// Sources with instructions of one architecture.
const OF_ONE_ARCHITECTURE: [(&str, &str); 1] = [("paged_attention_wgmma", "sm_90a")];
const DECODE: &str = "paged_attention_decode";
const PREFILL: &str = "paged_attention_prefill";

/// Source, what it is compiled with, and the registers that each of its kernels may take.
type Module = (&'static str, &'static [Defines], &'static [(&'static str, u32)]);

/// The kernels of prompts and of rows in parts.
const IN_PARTS: &[(&str, u32)] =
    &[(PREFILL, 255), ("paged_attention_shared", 255), ("paged_attention_merge", 64)];

/// The slowest to compile first. A ceiling keeps as many blocks on a multiprocessor as the launch
/// counts on: raise one only after a look at the kernel's speed.
const MODULES: &[Module] = &[
    ("paged_attention", HEADS, IN_PARTS),
    ("paged_attention_decode", HEADS, &[(DECODE, 255)]),
    ("paged_attention_decode", LAYERS, &[(DECODE, 255)]),
    ("paged_attention_wgmma", WGMMA_HEADS, &[("paged_attention_prefill_wgmma", 255)]),
    // Texts go through prefill alone.
    (
        "paged_attention",
        &[
            &[("DTYPE", "bf16"), ("HEAD_DIM", "32"), ("TEXTS", "1"), ("BIAS", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "64"), ("TEXTS", "1")],
            &[("DTYPE", "f16"), ("HEAD_DIM", "64"), ("TEXTS", "1"), ("BIAS", "1")],
            // Towers of SigLIP and of Qwen-VL.
            &[("DTYPE", "bf16"), ("HEAD_DIM", "72"), ("TEXTS", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "80"), ("TEXTS", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("TEXTS", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "256"), ("TEXTS", "1")],
        ],
        &[(PREFILL, 255)],
    ),
    // Llama 4.
    (
        "paged_attention",
        &[&[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("REACH_CHUNKS", "1")]],
        IN_PARTS,
    ),
    // Gemma 3: its layers see all, or a window.
    (
        "paged_attention",
        &[
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("IMAGES", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "256"), ("IMAGES", "1")],
        ],
        &[(PREFILL, 255)],
    ),
    (
        "paged_attention_decode",
        &[
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("IMAGES", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "256"), ("IMAGES", "1"), ("WINDOW", "1024")],
        ],
        &[(DECODE, 255)],
    ),
    // MiniMax M3.
    (
        "paged_attention_decode",
        &[&[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("CHOSEN", "1")]],
        &[(DECODE, 255)],
    ),
    (
        "linear_codes",
        CODES,
        &[
            ("linear_codes_16x32", 72),
            ("linear_codes_16x128", 184),
            ("linear_codes_64x32", 112),
            ("linear_codes_64x128", 208),
            ("linear_codes_128x128", 255),
            ("widen_codes", 40),
        ],
    ),
    (
        "linear_expert_codes",
        CODES,
        &[
            ("linear_expert_codes_16x32", 80),
            ("linear_expert_codes_16x128", 192),
            ("linear_expert_codes_64x128", 216),
            ("linear_expert_codes_128x128", 255),
        ],
    ),
    (
        "unseen_values",
        &[
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128")],
            &[("DTYPE", "f16"), ("HEAD_DIM", "64"), ("ALIBI", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("KV_FP8", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "576"), ("LATENT_DIM", "512")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "256"), ("IMAGES", "1")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("REACH_CHUNKS", "1")],
        ],
        &[("unseen_values", 40)],
    ),
    ("paged_attention_f32", ATTENTION_F32, &[("paged_attention_f32", 72)]),
    ("paged_attention_f32", WIDE_F32, &[("paged_attention_f32", 96)]),
    ("choose_positions", NONE, &[("choose_positions", 40), ("choose_blocks", 40)]),
    // MiniMax M3.
    (
        "index_maxima",
        &[
            &[("DTYPE", "bf16"), ("HEAD_DIM", "128"), ("NUM_HEADS", "4")],
            &[("DTYPE", "f16"), ("HEAD_DIM", "128"), ("NUM_HEADS", "4")],
            &[("DTYPE", "float"), ("HEAD_DIM", "128"), ("NUM_HEADS", "4")],
        ],
        &[("index_maxima", 64)],
    ),
    (
        "paged_attention_f32",
        &[&[("DTYPE", "float"), ("HEAD_DIM", "128"), ("CHOSEN", "1")]],
        &[("paged_attention_f32", 72)],
    ),
    // DeepSeek V3.2 and GLM-5.
    (
        "index_scores",
        &[&[("DTYPE", "bf16"), ("HEAD_DIM", "128")], &[("DTYPE", "f16"), ("HEAD_DIM", "128")]],
        &[("index_scores", 120)],
    ),
    ("index_scores", &[&[("DTYPE", "float"), ("HEAD_DIM", "128")]], &[("index_scores", 32)]),
    (
        "wide_attention",
        &[&[("DTYPE", "bf16"), ("HEAD_DIM", "576"), ("LATENT_DIM", "512"), ("CHOSEN", "1")]],
        &[("wide_attention_16", 184), ("wide_attention_32", 184), ("wide_attention_64", 255)],
    ),
    // MiniCPM3, DeepSeek, Gemma 4.
    (
        "wide_attention",
        &[
            &[("DTYPE", "bf16"), ("HEAD_DIM", "288"), ("LATENT_DIM", "256")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "576"), ("LATENT_DIM", "512")],
            &[("DTYPE", "f16"), ("HEAD_DIM", "576"), ("LATENT_DIM", "512")],
            &[("DTYPE", "bf16"), ("HEAD_DIM", "512")],
        ],
        &[("wide_attention_16", 184), ("wide_attention_32", 176), ("wide_attention_64", 248)],
    ),
    (
        "linear_by_head",
        NARROW_DTYPES,
        &[
            ("linear_by_head_16x64", 80),
            ("linear_by_head_64x128", 192),
            ("linear_by_head_128x128", 255),
        ],
    ),
    ("linear_by_head_plain", DTYPES, &[("linear_by_head_plain", 40)]),
    ("sample", NONE, &[("sample", 96), ("count_tokens", 32)]),
    ("logprobs", NONE, &[("logprobs", 80)]),
    (
        "activation",
        DTYPES,
        &[("activate_and_mul", 80), ("activate_and_mul_fp8", 80), ("activate", 48)],
    ),
    ("columns", DTYPES, &[("copy_columns", 40), ("gate_columns", 44)]),
    ("causal_conv", TAPS, &[("causal_conv", 120)]),
    ("mamba_scan", STATES, &[("mamba_scan", 144)]),
    ("selective_scan", SCANNED, &[("selective_scan", 80)]),
    ("selective_scan", MOST_SCANNED, &[("selective_scan", 256)]),
    ("delta_rule", STATES, &[("delta_rule", 168), ("delta_rule_by_row", 256)]),
    ("count_mismatches", NONE, &[("count_mismatches", 32)]),
    (
        "elementwise",
        DTYPES,
        &[
            ("add", 32),
            ("add_activations", 32),
            ("convert", 32),
            ("widen", 32),
            ("scale", 32),
            ("scale_activations", 32),
            ("clamp", 32),
            ("clamp_activations", 32),
            ("scale_by_position", 56),
            ("scale_columns", 32),
            ("delta_decays", 40),
        ],
    ),
    (
        "experts",
        DTYPES,
        &[
            ("choose_experts_1", 64),
            ("choose_experts_4", 96),
            ("sort_by_expert", 48),
            ("add_experts", 64),
            ("gate_rows", 56),
            ("weigh_inputs", 40),
        ],
    ),
    (
        "linear_experts",
        NARROW_DTYPES,
        &[
            ("linear_experts_16x64", 128),
            ("linear_experts_64x128", 184),
            ("linear_experts_128x128", 255),
        ],
    ),
    (
        "lora",
        DTYPES,
        &[
            ("lora_shrink_16", 104),
            ("lora_shrink_64", 200),
            ("lora_expand", 72),
            ("lora_expand_f32", 72),
        ],
    ),
    ("linear_experts_plain", DTYPES, &[("linear_experts_plain", 48)]),
    ("embedding", DTYPES, &[("embedding", 40), ("add_rows", 40)]),
    ("patches", DTYPES, &[("patch_values", 40)]),
    ("softmax", DTYPES, &[("softmax_rows", 40)]),
    ("group_attention", DTYPES, &[("group_attention", 40)]),
    ("rows", NONE, &[("mean_rows", 40), ("add_mixed_rows", 40)]),
    ("copy_segments", NONE, &[("copy_segments", 48)]),
    ("gather_rows", NONE, &[("gather_rows", 56), ("copy_blocks", 64)]),
    (
        "norm",
        DTYPES,
        &[("add_norm", 64), ("add_norm_fp8", 64), ("norm_heads", 64), ("norm_in_place", 64)],
    ),
    ("quantize_rows", NARROW_DTYPES, &[("quantize_rows", 64), ("strips_of_rows", 40)]),
    ("random_fill", DTYPES, &[("random_fill", 40)]),
    ("norm_rotary_and_cache", ROTARY, &[("norm_rotary_and_cache", 104)]),
    ("rotary_and_cache", ROTARY, &[("rotary_and_cache", 112)]),
    ("all_reduce", DTYPES, &[("all_reduce", 40)]),
    ("soft_cap", NONE, &[("soft_cap", 32)]),
    (
        "streams",
        DTYPES,
        &[
            ("mixing_weights", 48),
            ("predict_streams", 48),
            ("correct_streams", 40),
            ("add_to_streams", 40),
            ("copy_stream", 32),
            ("set_stream", 40),
            ("mean_streams", 48),
            ("keep_largest", 40),
        ],
    ),
    ("take_sampled", NONE, &[("take_sampled", 24)]),
    ("text_maxima", NONE, &[("text_maxima", 40)]),
    ("token_mask", NONE, &[("token_mask", 32)]),
];

fn kernels_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// The sources of kernels/, without the shim.
fn files() -> BTreeSet<String> {
    let entries = std::fs::read_dir(kernels_dir()).expect("kernels/ is committed");
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")).collect()
}

/// None where no NVRTC is named. Cubins and their reports stay in target/, so that a second run
/// compiles what has changed.
#[expect(clippy::disallowed_methods, reason = "the environment names NVRTC in this test only")]
fn compiler() -> Option<Compiler> {
    let folder = std::env::var_os("VLLM_BATCH_NVRTC_DIR")?;
    let hints = SearchHints { library_path: vec![folder.into()], ..SearchHints::default() };
    library::find(&hints, 13)
        .nvrtc
        .unwrap_or_else(|reason| panic!("VLLM_BATCH_NVRTC_DIR: {reason}"));
    let cache_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins");
    Some(Compiler::new(KERNEL_SOURCES, Some(cache_dir)))
}

#[expect(clippy::disallowed_methods, reason = "the environment says how much this test compiles")]
fn all_gpus() -> bool {
    std::env::var_os("VLLM_BATCH_TEST_ALL_GPUS").is_some()
}

/// Architectures that a source is compiled for, with their shared memory.
fn architectures_of(source: &str, defines: Defines) -> Vec<(&'static str, usize)> {
    let own = OF_ONE_ARCHITECTURE.iter().find(|(name, _)| *name == source);
    let has_own_code = CONVERTING.contains(&source) || defines.contains(&("KV_FP8", "1"));
    let is_wanted = |index: usize, name: &str| {
        own.is_none_or(|(_, own)| *own == name)
            && (all_gpus() || name == OF_RUNS || (has_own_code && index < NUM_WITH_OWN_CODE))
    };
    let all = ARCHITECTURES.into_iter().enumerate();
    all.filter(|(index, (name, _))| is_wanted(*index, name)).map(|(_, of)| of).collect()
}

/// What the host compiles a kernel for because it launches it so.
fn launch_defines(
    source: &str,
    defines: &[(&str, &str)],
    max_smem_bytes: usize,
) -> Vec<(&'static str, String)> {
    let value = |of: &str| defines.iter().find(|(name, _)| *name == of).map(|(_, value)| *value);
    let head_dim = || value("HEAD_DIM").expect("heads have a width").parse().expect("a number");
    let of_head = || AttentionLaunch::new(head_dim(), max_smem_bytes, value("KV_FP8").is_some());
    let (sizes, layer) = match source {
        "paged_attention" => (of_head().prefill.defines(), &[][..]),
        "paged_attention_decode" => (of_head().decode.defines(), &USUAL_LAYER[..]),
        "paged_attention_wgmma" => {
            (wgmma_prefill_sizes(head_dim()).expect("its heads").defines(), &[][..])
        }
        _ => return Vec::new(),
    };
    let sizes = sizes.into_iter().map(|(name, value)| (name, value.to_string()));
    let missing = layer.iter().filter(|(name, _)| value(name).is_none());
    sizes.chain(missing.map(|(name, value)| (*name, (*value).to_owned()))).collect()
}

/// What is wrong with one compilation; none if nothing is.
fn problems(
    compiler: &Compiler,
    module: &Module,
    defines: Defines,
    (arch, max_smem_kb): (&str, usize),
) -> Vec<String> {
    let (source, _, ceilings) = module;
    let launch = launch_defines(source, defines, max_smem_kb << 10);
    let of_launch = launch.iter().map(|(name, value)| (*name, &value[..]));
    let defines: Vec<_> = defines.iter().copied().chain(of_launch).collect();
    let words = defines.iter().map(|(name, value)| format!(" {name}={value}"));
    let what = format!("{source}.cu{} {arch}", words.collect::<String>());
    let compiled = match compiler.compile(source, &defines, arch) {
        Ok(compiled) => compiled,
        Err(error) => return vec![format!("{what}: {error}")],
    };
    let usage = compiled.usage();
    let mut problems = Vec::new();
    // ptxas says so where it cannot keep products of warpgroups apart.
    if compiled.log.contains("warning") || compiled.log.contains("serialized") {
        problems.push(format!("{what}: {}", compiled.log));
    }
    for (kernel, used) in &usage {
        let ResourceUsage { registers, spill_bytes, stack_bytes, smem } = used;
        println!("{what} {kernel}: {registers} registers, {smem} bytes of shared memory");
        if *spill_bytes > 0 || *stack_bytes > 0 {
            problems.push(format!(
                "{what} {kernel}: {spill_bytes} bytes spilled, {stack_bytes} bytes of stack"
            ));
        }
        match ceilings.iter().find(|(name, _)| name == kernel) {
            Some((_, ceiling)) if registers <= ceiling => {}
            Some((_, ceiling)) => problems
                .push(format!("{what} {kernel}: {registers} registers, the ceiling is {ceiling}")),
            None => problems.push(format!("{what} {kernel}: no ceiling in this test")),
        }
    }
    for (name, _) in *ceilings {
        if !usage.iter().any(|(kernel, _)| kernel == name) {
            problems.push(format!("{what}: no kernel {name} in ptxas' report"));
        }
    }
    problems
}

#[test]
fn every_kernel_compiles_without_spills_within_its_registers() {
    let Some(compiler) = compiler() else {
        return println!("SKIP: kernels are not compiled: VLLM_BATCH_NVRTC_DIR is not set");
    };
    let mut jobs = Vec::new();
    for module in MODULES {
        for defines in module.1 {
            let architectures = architectures_of(module.0, defines).into_iter();
            jobs.extend(architectures.map(|architecture| (module, *defines, architecture)));
        }
    }
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let num_threads = std::thread::available_parallelism().map_or(1, |number| number.get().min(8));
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                while let Some((module, defines, architecture)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let more = problems(&compiler, module, defines, *architecture);
                    found.lock().unwrap().extend(more);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

/// For GPUs that are younger than NVRTC.
#[test]
fn kernels_compile_to_ptx_for_a_gpu_that_nvrtc_does_not_know() {
    let Some(compiler) = compiler() else {
        return println!("SKIP: kernels are not compiled: VLLM_BATCH_NVRTC_DIR is not set");
    };
    assert_eq!(compiler.arch_for((9, 0)).unwrap(), "sm_90a");
    let arch = compiler.arch_for((99, 0)).unwrap();
    assert!(arch.starts_with("compute_12"), "{arch}");
    let bf16 = ("DTYPE", "bf16");
    let attention = [bf16, ("HEAD_DIM", "64")];
    for (source, defines) in [("norm", &[bf16][..]), ("paged_attention", &attention[..])] {
        let launch = launch_defines(source, defines, 99 << 10);
        let of_launch = launch.iter().map(|(name, value)| (*name, &value[..]));
        let defines: Vec<_> = defines.iter().copied().chain(of_launch).collect();
        let compiled = compiler.compile(source, &defines, &arch).unwrap();
        let ptx = std::ffi::CStr::from_bytes_with_nul(&compiled.cubin).unwrap().to_str().unwrap();
        let target = format!(".target {}", arch.replace("compute", "sm"));
        assert!(ptx.contains(&target), "{target}");
        // Operations that name their rounding are what the driver does not contract.
        for operation in ["add.f32", "sub.f32", "mul.f32", "mad.f32"] {
            assert!(!ptx.contains(operation), "{source}: {operation}");
        }
        assert!(!compiled.log.contains("warning"), "{}", compiled.log);
    }
}

/// The names in `EXPORT(name)`.
fn exports(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("EXPORT("));
    lines.filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn every_kernel_is_embedded_and_in_the_table() {
    let embedded = KERNEL_SOURCES.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(embedded.collect::<BTreeSet<String>>(), files(), "KERNEL_SOURCES and kernels/");
    for (file, text) in KERNEL_SOURCES {
        let Some(source) = file.strip_suffix(".cu") else { continue };
        let modules = MODULES.iter().filter(|(name, ..)| *name == source);
        let ceilings = modules.flat_map(|(.., ceilings)| *ceilings);
        let listed: BTreeSet<&str> = ceilings.map(|(name, _)| *name).collect();
        assert_eq!(exports(text), listed, "kernels/{file}: EXPORT and the table differ");
    }
    for (source, ..) in MODULES {
        assert!(files().contains(&format!("{source}.cu")), "no kernels/{source}.cu");
    }
}
