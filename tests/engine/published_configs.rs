//! config.json files as their models are published: each builds its spec, with as many parameters
//! and as long a context as the model has. `testdata/published_configs/README.md` says where each
//! file is from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use vllm_batch::engine::checkpoint::hf_config::HfConfig;
use vllm_batch::engine::checkpoint::spec::{DecoderSpec, HeadSpec, TowerSpec};
use vllm_batch::engine::checkpoint::{decoder_spec, encoder_spec, tower_spec};

/// What is known of a model: its file, its parameters, its longest context.
type Published = (&'static str, usize, usize);

/// Parameters as transformers counts them, a tied output layer once, those of images left out where
/// the model is run for text alone; the context as vLLM derives it.
#[rustfmt::skip]
const PUBLISHED: &[Published] = &[
    ("a.x-k1", 518_983_052_288, 32_768),
    ("afm-4.5b", 4_619_184_640, 81_920),
    ("apertus-8b-instruct", 8_053_338_176, 65_536),
    ("aquilachat2-7b", 7_295_537_152, 2_048),
    ("aya-expanse-8b", 8_028_033_024, 8_192),
    // Without the norm behind SigLIP, which nothing reads.
    ("aya-vision-8b", 8_631_839_728, 16_384),
    ("bamba-9b-v2", 9_780_235_392, 262_144),
    ("biogpt", 346_763_264, 1_024),
    ("bloom-560m", 559_214_592, 2_048),
    ("bloom-7b1", 7_069_016_064, 2_048),
    ("cerebras-gpt-111m", 111_050_496, 2_048),
    ("codegen-350m-mono", 356_712_448, 2_048),
    ("codellama-7b", 6_738_546_688, 16_384),
    ("command-r-08-2024", 32_296_476_672, 131_072),
    ("command-r-plus", 103_810_674_688, 131_072),
    ("command-r-v01", 34_980_831_232, 131_072),
    ("command-r7b-12-2024", 8_028_033_024, 8_192),
    ("cwm", 32_581_097_472, 131_072),
    ("dbrx-instruct", 131_596_523_520, 32_768),
    ("deepseek-coder-6.7b", 6_740_512_768, 65_536),
    ("deepseek-llm-7b", 6_910_365_696, 4_096),
    ("deepseek-moe-16b-chat", 16_375_728_128, 4_096),
    ("deepseek-r1-0528-qwen3-8b", 8_190_735_360, 131_072),
    ("deepseek-r1-distill-llama-8b", 8_030_261_248, 131_072),
    ("deepseek-r1-distill-qwen-1.5b", 1_777_088_000, 131_072),
    ("deepseek-vl-1.3b-chat", 1_962_640_384, 16_384),
    // Without the head of SigLIP, which nothing reads.
    ("deepseek-vl2", 27_464_895_896, 4_096),
    ("deepseek-vl2-tiny", 3_355_263_088, 4_096),
    // Without its indexer.
    ("deepseek-v3.2", 671_877_944_064, 163_840),
    ("dialogpt-medium", 354_823_168, 1_024),
    ("distilgpt2", 81_912_576, 1_024),
    ("dolly-v2-3b", 2_775_086_080, 2_048),
    ("dots.llm1.inst", 142_774_381_696, 32_768),
    ("dots.ocr", 3_039_179_264, 131_072),
    ("ernie-4.5-0.3b", 360_748_032, 131_072),
    ("ernie-4.5-21b-a3b-pt", 21_825_437_888, 131_072),
    ("ettin-decoder-150m", 149_655_232, 7_999),
    ("exaone-3.5-2.4b-instruct", 2_405_327_360, 32_768),
    ("exaone-4.0-1.2b", 1_279_391_488, 65_536),
    ("exaone-4.0-32b", 32_003_216_384, 131_072),
    ("falcon-11b", 11_102_822_400, 8_192),
    ("falcon-40b", 41_303_293_952, 2_048),
    ("falcon-7b-instruct", 6_921_720_704, 2_048),
    ("falcon-7b", 6_921_720_704, 2_048),
    ("falcon-mamba-7b-instruct", 7_272_665_088, 262_144),
    ("falcon-rw-1b", 1_311_625_216, 2_048),
    ("falcon3-7b-instruct", 7_455_550_464, 32_768),
    ("galactica-1.3b", 1_315_201_024, 2_048),
    ("gemma-2-27b-it", 27_227_128_320, 8_192),
    ("gemma-2-2b-it", 2_614_341_888, 8_192),
    ("gemma-2-9b-it", 9_241_705_984, 8_192),
    ("gemma-2b", 2_506_172_416, 8_192),
    ("gemma-3-12b-it-unsloth", 12_187_325_040, 131_072),
    ("gemma-3-1b-it", 999_885_952, 32_768),
    ("gemma-3-270m", 268_098_176, 32_768),
    ("gemma-3-27b-it", 27_432_406_640, 131_072),
    ("gemma-3-4b-it", 4_300_079_472, 131_072),
    ("gemma-3n-e4b-it", 6_835_235_568, 32_768),
    ("gemma-4-26b-a4b-it", 25_805_936_206, 262_144),
    ("gemma-4-31b-it", 31_273_088_876, 262_144),
    ("gemma-4-e2b-it", 4_797_114_083, 131_072),
    ("gemma-7b-it", 8_537_680_896, 8_192),
    ("glm-4-32b-0414", 33_141_749_760, 32_768),
    ("glm-4-9b-0414", 9_400_279_040, 32_768),
    ("glm-4-9b-chat", 9_399_951_360, 131_072),
    ("glm-4.1v-9b-thinking", 10_292_777_472, 65_536),
    ("glm-4.5-air", 106_852_251_264, 131_072),
    ("glm-4.5v", 107_710_933_120, 65_536),
    ("glm-ocr", 1_107_405_824, 131_072),
    // Without its indexer.
    ("glm-5", 743_911_218_432, 202_752),
    ("got-ocr-2.0-hf", 560_528_640, 32_768),
    ("gpt-j-6b", 6_050_882_784, 2_048),
    ("gpt-neox-20b", 20_554_567_680, 2_048),
    ("gpt-oss-120b", 116_829_156_672, 131_072),
    ("gpt-oss-20b", 20_914_757_184, 131_072),
    ("gpt2-xl", 1_557_611_200, 1_024),
    ("gpt2", 124_439_808, 1_024),
    ("granite-3.1-2b-instruct", 2_533_531_648, 131_072),
    ("granite-3.1-3b-a800m-instruct", 3_298_793_472, 131_072),
    ("granite-3.3-8b-instruct", 8_170_864_640, 131_072),
    ("granite-8b-code", 8_054_910_976, 4_096),
    ("granite-docling-258m", 257_517_120, 8_192),
    // Without the head of SigLIP, which nothing reads.
    ("granite-vision-3.3-2b", 2_960_156_272, 131_072),
    ("helium-1-preview-2b", 2_172_643_840, 4_096),
    ("hermes-2-pro-mistral-7b", 7_241_994_240, 32_768),
    ("hermes-3-llama-3.1-8b", 8_030_261_248, 131_072),
    ("hunyuan-0.5b-instruct", 539_010_048, 262_144),
    ("hunyuan-a13b-instruct", 80_393_183_232, 32_768),
    ("hunyuan-mt2-7b", 7_504_568_320, 262_144),
    ("hyperclovax-seed-think-14b", 14_748_112_896, 131_072),
    ("internlm2-chat-7b", 7_737_708_544, 98_304),
    ("internlm2.5-7b-chat", 7_737_708_544, 65_536),
    ("internlm3-8b-instruct", 8_804_241_408, 196_608),
    ("internvl2.5-2b", 2_205_754_368, 65_536),
    ("internvl3-1b-hf", 938_193_024, 65_536),
    ("jamba-1.5-mini", 51_570_323_328, 262_144),
    ("jamba-v0.1", 51_570_323_328, 262_144),
    ("kimi-k2.5", 1_026_879_376_368, 262_144),
    ("kimi-linear-48b-a3b-instruct", 49_122_681_728, 1_048_576),
    ("kimi-vl-a3b-instruct", 16_407_656_048, 131_072),
    ("laguna-xs.2", 33_442_617_088, 131_072),
    ("lfm2-vl-1.6b", 1_584_804_000, 128_000),
    ("lightonocr-1b-1025", 1_005_647_872, 8_192),
    ("ling-3.0-flash", 124_414_211_552, 262_144),
    ("ling-lite-1.5", 16_801_974_272, 32_768),
    ("ling-mini-2.0", 16_255_643_392, 32_768),
    ("llama-2-7b-chat", 6_738_415_616, 4_096),
    ("llama-2-7b", 6_738_415_616, 4_096),
    ("llama-3-8b-instruct", 8_030_261_248, 8_192),
    ("llama-3.1-8b-instruct", 8_030_261_248, 131_072),
    ("llama-3.1-nemotron-nano-8b", 8_030_261_248, 131_072),
    ("llama-3.2-1b-instruct", 1_235_814_400, 131_072),
    ("llama-3.2-3b-instruct-unsloth", 3_212_749_824, 131_072),
    ("llama-3.3-70b-instruct", 70_553_706_496, 131_072),
    ("llama-4-scout-17b-16e-instruct", 107_769_861_120, 10_485_760),
    ("llama-7b", 6_738_415_616, 2_048),
    // Without the last layer of its tower and the norm behind that, which it has and nothing reads.
    ("llava-1.5-7b-hf", 7_050_828_800, 4_096),
    ("llava-v1.6-mistral-7b-hf", 7_554_149_376, 32_768),
    // Without the norm behind SigLIP, which nothing reads.
    ("llava-onevision-qwen2-0.5b-ov-hf", 893_673_248, 32_768),
    ("mamba-130m-hf", 129_135_360, 262_144),
    ("mamba-2.8b-hf", 2_768_345_600, 262_144),
    ("mimo-7b-rl", 7_622_619_136, 32_768),
    ("mimo-v2-flash", 308_778_780_864, 262_144),
    ("minicpm-2b-sft", 2_724_880_896, 4_096),
    ("minicpm4-0.5b", 433_873_920, 32_768),
    ("minimax-m2", 228_689_764_864, 196_608),
    ("minimax-m3", 426_174_572_928, 1_048_576),
    ("ministral-3-3b", 3_849_090_048, 262_144),
    ("ministral-8b-2410", 8_019_808_256, 32_768),
    ("minitron-4b", 4_190_509_056, 4_096),
    ("mistral-7b-instruct-v0.3", 7_248_023_552, 32_768),
    ("mistral-7b-v0.1", 7_241_732_096, 32_768),
    ("mistral-nemo-instruct-2407", 12_247_782_400, 131_072),
    ("mistral-small-24b-2501", 23_572_403_200, 32_768),
    ("mistral-small-3.1-24b", 24_011_361_280, 131_072),
    ("mistral-small-4-119b", 119_401_298_944, 1_048_576),
    ("mixtral-8x7b-v0.1", 46_702_792_704, 32_768),
    ("molmo2-8b", 8_661_703_120, 36_864),
    ("mpt-7b-instruct", 6_649_286_656, 2_048),
    ("mpt-7b-storywriter", 6_649_286_656, 65_536),
    ("mpt-7b", 6_649_286_656, 2_048),
    ("muse-glimmer-30b", 29_776_626_688, 131_072),
    ("nanochat-d32", 1_879_048_192, 2_048),
    ("nanonets-ocr2-3b", 3_754_622_976, 128_000),
    ("nemotron-3-nano-30b-a3b", 31_577_940_288, 262_144),
    ("nemotron-mini-4b-instruct", 4_190_509_056, 4_096),
    ("nemotron-super-49b", 49_867_145_216, 131_072),
    ("olmo-1b", 1_176_764_416, 2_048),
    ("olmo-2-0325-32b-instruct", 32_234_279_936, 4_096),
    ("olmo-2-0425-1b", 1_484_916_736, 4_096),
    ("olmo-2-1124-7b-instruct", 7_298_617_344, 4_096),
    ("olmo-3-7b-instruct", 7_298_011_136, 65_536),
    ("olmo-7b-0424", 6_888_095_744, 4_096),
    ("olmo-hybrid-7b", 7_430_870_688, 65_536),
    ("olmocr-7b-0825", 8_292_166_656, 128_000),
    ("olmoe-1b-7b-0924", 6_919_161_856, 4_096),
    ("openai-gpt", 116_534_784, 512),
    ("opt-1.3b", 1_315_758_080, 2_048),
    ("opt-125m", 125_239_296, 2_048),
    ("opt-350m", 331_196_416, 2_048),
    ("orion-14b-chat", 14_498_703_360, 4_096),
    // With its own output layer, which the class of transformers ties.
    ("ovis2-1b-hf", 1_131_283_318, 32_768),
    ("paddleocr-vl", 905_601_648, 131_072),
    ("paligemma-3b-pt-224", 2_923_466_480, 8_192),
    ("paligemma2-3b-pt-224", 3_032_242_416, 8_192),
    ("persimmon-8b-base", 9_397_175_296, 16_384),
    ("phi-1.5", 1_418_270_720, 2_048),
    ("phi-2", 2_779_683_840, 2_048),
    ("phi-3-medium-4k-instruct", 13_960_238_080, 4_096),
    ("phi-3-mini-4k-instruct", 3_821_079_552, 4_096),
    ("phi-3.5-mini-instruct", 3_821_079_552, 131_072),
    ("phi-4-mini-instruct", 3_836_021_760, 131_072),
    // Without sounds, the last layer of SigLIP and what stands behind it.
    ("phi-4-multimodal-instruct", 4_247_091_616, 131_072),
    ("phi-4-reasoning", 14_659_507_200, 32_768),
    ("phi-4", 14_659_507_200, 16_384),
    ("pixtral-12b", 12_682_739_712, 1_024_000),
    ("pythia-1.4b", 1_414_647_808, 2_048),
    ("pythia-160m-tuned", 162_322_944, 2_048),
    ("pythia-70m", 70_426_624, 2_048),
    ("qwen1.5-0.5b-chat", 463_987_712, 32_768),
    ("qwen1.5-moe-a2.7b-chat", 14_315_784_192, 8_192),
    ("qwen2-0.5b", 494_032_768, 131_072),
    ("qwen2-7b-instruct", 7_615_616_512, 32_768),
    ("qwen2-vl-7b-instruct", 8_291_375_616, 32_768),
    ("qwen2.5-0.5b-instruct", 494_032_768, 32_768),
    ("qwen2.5-7b-instruct", 7_615_616_512, 32_768),
    ("qwen2.5-7b-tuned", 7_615_616_512, 32_768),
    ("qwen2.5-vl-3b-instruct", 3_754_622_976, 128_000),
    ("qwen3-0.6b", 596_049_920, 40_960),
    ("qwen3-30b-a3b", 30_532_122_624, 40_960),
    ("qwen3-32b", 32_762_123_264, 40_960),
    ("qwen3-4b-instruct-2507", 4_022_468_096, 262_144),
    ("qwen3-4b", 4_022_468_096, 40_960),
    ("qwen3-next-80b-a3b-instruct", 79_674_391_296, 262_144),
    ("qwen3-vl-30b-a3b-instruct", 31_070_754_032, 262_144),
    ("qwen3-vl-4b-instruct", 4_437_815_808, 262_144),
    ("qwen3.5-27b", 27_356_728_560, 262_144),
    ("qwen3.5-35b-a3b", 35_107_181_936, 262_144),
    ("qwq-32b", 32_763_876_352, 40_960),
    ("redpajama-incite-3b", 2_775_864_320, 2_048),
    ("sarvam-105b", 106_031_767_424, 163_840),
    ("sarvam-30b", 32_152_650_368, 131_072),
    ("seed-oss-36b-instruct", 36_151_104_512, 524_288),
    ("smollm2-1.7b-instruct", 1_711_376_384, 8_192),
    ("smollm2-135m-instruct", 134_515_008, 8_192),
    ("smollm3-3b", 3_075_098_624, 65_536),
    ("smolvlm-256m-instruct", 256_484_928, 8_192),
    ("smolvlm-instruct", 2_246_272_880, 16_384),
    ("smolvlm2-500m-video-instruct", 507_482_304, 8_192),
    ("solar-10.7b", 10_731_524_096, 4_096),
    ("solar-pro-preview", 22_140_032_000, 4_096),
    ("stablelm-2-1.6b", 1_644_515_328, 4_096),
    ("stablelm-2-12b", 12_143_185_920, 4_096),
    ("stablelm-3b-4e1t", 2_795_443_200, 4_096),
    ("stablelm-base-alpha-7b", 7_868_755_968, 4_096),
    ("starcoder", 15_517_456_384, 8_192),
    ("starcoder2-3b", 3_030_371_328, 16_384),
    ("starcoder2-7b", 7_173_923_840, 16_384),
    ("starcoderbase-1b", 1_137_207_296, 8_192),
    ("tiny-aya-global", 3_349_227_520, 500_000),
    ("tinyllama-1.1b-chat", 1_100_048_384, 2_048),
    ("trinity-mini", 26_123_974_400, 131_072),
    ("vaultgemma-1b", 1_038_741_120, 1_024),
    ("vicuna-7b-v1.5-16k", 6_738_415_616, 16_384),
    ("vicuna-7b-v1.5", 6_738_415_616, 4_096),
    // Without the last layer of CLIP, and the norm behind it, which nothing reads.
    ("vip-llava-7b-hf", 7_067_616_256, 4_096),
    ("yarn-llama-2-7b-128k", 6_738_415_616, 131_072),
    ("xglm-564m", 564_463_616, 2_048),
    ("yi-34b-chat", 34_388_917_248, 4_096),
    ("yi-6b", 6_061_035_520, 4_096),
    ("zamba2-1.2b-instruct", 1_215_064_704, 4_096),
    ("zephyr-7b-beta", 7_241_732_096, 32_768),
];

/// The same of models that make vectors.
const ENCODERS: &[Published] = &[
    ("clip-vit-large-patch14", 427_616_512, 77),
    ("colpali-v1.3-hf", 2_924_613_488, 8_192),
    ("colqwen2-v1.0-hf", 2_209_182_336, 32_768),
    ("colqwen2.5-base", 3_754_885_248, 128_000),
    ("colsmolvlm-256m-base", 228_173_504, 8_192),
    ("siglip-so400m-patch14-384", 877_960_496, 64),
    ("siglip2-base-patch16-224", 375_187_968, 64),
    ("siglip2-base-patch16-naflex", 375_234_048, 64),
    ("vit-base-patch16-224", 86_567_656, 1),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/published_configs")
}

fn read(name: &str) -> HfConfig {
    let file = format!("{name}.json");
    let text = std::fs::read_to_string(folder().join(&file)).expect("a file of the table");
    HfConfig::parse(&text, &file).expect("an object")
}

fn spec(name: &str) -> Result<(DecoderSpec, Option<TowerSpec>), String> {
    let config = read(name);
    let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
    Ok((decoder, tower_spec(&config).map_err(|error| error.to_string())?))
}

fn num_parameters((decoder, tower): &(DecoderSpec, Option<TowerSpec>)) -> usize {
    let of_tower = tower.iter().flat_map(TowerSpec::tensors);
    let tensors = decoder.tensors().into_iter().chain(of_tower);
    tensors.map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

/// What is wrong with a model.
fn wrong((name, parameters, context): &Published) -> Option<String> {
    match spec(name) {
        Err(error) => Some(error),
        Ok(spec) if num_parameters(&spec) != *parameters => {
            Some(format!("{name}: {} parameters, not {parameters}", num_parameters(&spec)))
        }
        Ok((spec, _)) if spec.max_model_len != *context => {
            Some(format!("{name}: a context of {}, not {context}", spec.max_model_len))
        }
        Ok(_) => None,
    }
}

#[test]
fn published_models_have_their_parameters_and_their_context() {
    let wrong: Vec<_> = PUBLISHED.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What only the loss of training has is none of them.
#[test]
fn published_encoders_have_their_parameters_and_their_context() {
    for (name, parameters, context) in ENCODERS {
        let config = read(name);
        let spec = encoder_spec(&config).unwrap_or_else(|error| panic!("{error}"));
        let tower = tower_spec(&config).unwrap_or_else(|error| panic!("{error}"));
        let projection = spec.projection.iter().flat_map(HeadSpec::tensors);
        let tensors = spec.tensors().into_iter().chain(projection);
        let tensors = tensors.chain(tower.iter().flat_map(TowerSpec::tensors));
        let found: usize = tensors.map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!((found, spec.max_model_len), (*parameters, *context), "{name}");
    }
}

/// An order has a number per row: one for each layer would fill memory before sizes are refused.
#[test]
fn layers_share_the_order_of_their_rows() {
    let mut num_shared = 0;
    for (name, ..) in PUBLISHED {
        let spec = decoder_spec(&read(name)).expect("a published config");
        let of_attention = spec.attentions().map(|attention| &attention.qkv);
        let of_states = spec.recurrents().map(|block| block.linears()[0]);
        for linears in [of_attention.collect::<Vec<_>>(), of_states.collect()] {
            let orders = linears.iter().filter_map(|linear| linear.order.rows());
            let orders: Vec<_> = orders.map(|order| order.as_ptr()).collect();
            let places: BTreeSet<_> = orders.iter().collect();
            assert!(places.len() <= 1, "{name}: {} orders", places.len());
            num_shared += usize::from(orders.len() > 1);
        }
    }
    assert!(num_shared > 10, "{num_shared} models with an order");
}

#[test]
fn every_published_config_is_in_the_table_and_in_the_readme() {
    let readme = std::fs::read_to_string(folder().join("README.md")).expect("a readme");
    let files = std::fs::read_dir(folder()).expect("committed").map(|file| file.expect("a file"));
    let names = files.filter_map(|file| {
        let name = file.file_name().into_string().expect("UTF-8");
        name.strip_suffix(".json").map(str::to_owned)
    });
    let mut times: BTreeMap<String, usize> = names.map(|name| (name, 0)).collect();
    for (name, ..) in PUBLISHED.iter().chain(ENCODERS) {
        *times.get_mut(*name).unwrap_or_else(|| panic!("no file of {name}")) += 1;
    }
    for (name, times) in times {
        assert_eq!(times, 1, "{name} in the table");
        assert!(readme.contains(&format!("| {name} |")), "{name} is not in the README");
    }
}
