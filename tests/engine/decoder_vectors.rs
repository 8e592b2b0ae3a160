//! The layers of decoders as `embed` runs them, without a cache: what every golden model of
//! `testdata/golden` makes of its last state is what transformers says of the next token. A
//! classifier of two tokens says the same of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use vllm_batch::engine::api::pooling::PoolingParams;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{DType, EngineConfig, ModelConfig};
use vllm_batch::engine::base::pooling::TokenClasses;
use vllm_batch::engine::checkpoint::spec::{LinearSpec, OutputSpec};
use vllm_batch::engine::checkpoint::weights::{Checkpoint, linears_of_encoder};
use vllm_batch::engine::core::serve::pooling::{PoolingEngine, PoolingSummary};

use super::golden::{Golden, GoldenPrompt, folders};
use super::pooled::{self, answers, requests, testdata};

/// Of a logprob.
const TOLERANCE: f64 = 1e-4;

/// All tokens but the last one, which the states say something of.
fn text(prompt: &GoldenPrompt) -> Vec<u32> {
    let mut ids = [&prompt.prompt_token_ids[..], &prompt.output_token_ids].concat();
    ids.pop();
    ids
}

/// What token ids become: their last states as they are, or outputs of a classifier.
fn outputs(config: &EngineConfig, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let params = PoolingParams { use_activation: Some(false), ..PoolingParams::default() };
    let texts = texts.iter().map(|ids| Prompt::TokenIds(ids.clone())).collect();
    let requests = requests(&engine, [Prompt::Several(texts)], &params);
    let mut outputs = answers(&mut engine, requests);
    let output = outputs.pop().unwrap();
    output.texts.iter().map(|text| text.values().collect()).collect()
}

/// A text, and the logprobs of some tokens after it.
type Wanted = (Vec<u32>, Vec<(u32, f64)>);

#[derive(Deserialize)]
struct GgufGolden {
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
    logprobs: Vec<f64>,
}

impl GgufGolden {
    fn wanted(&self) -> Wanted {
        let mut text = [&self.prompt_token_ids[..], &self.token_ids].concat();
        let token = text.pop().unwrap();
        (text, vec![(token, *self.logprobs.last().unwrap())])
    }
}

/// The output layer of a model, in f64.
struct Head {
    spec: OutputSpec,
    width: usize,
    weights: Vec<f64>,
    biases: Vec<f64>,
}

impl Head {
    fn open(summary: &PoolingSummary) -> Self {
        let spec = summary.spec.output.clone().expect("a decoder has one");
        let linear = spec.lm_head.as_ref().unwrap_or(&summary.spec.tokens);
        let checkpoint = summary.files.checkpoint(None).unwrap();
        let linears = linears_of_encoder(&summary.spec);
        let mut checkpoint = checkpoint.quantized(summary.quantization.as_ref(), linears).unwrap();
        let wide = |values: Vec<f32>| values.into_iter().map(f64::from);
        let mut weights = Vec::new();
        for tensor in linear.weights() {
            weights.extend(wide(checkpoint.matrix(&tensor).unwrap().to_vec()));
        }
        if let Some(least) = linear.least_length {
            divide_columns(&mut weights, linear.k, f64::from(least));
        }
        let biases = biases(linear, &mut checkpoint).into_iter().flat_map(wide).collect();
        Self { width: linear.k, spec, weights, biases }
    }

    /// Logarithms of the probabilities of all tokens.
    fn logprobs(&self, state: &[f32]) -> Vec<f64> {
        let logit = |(token, row): (usize, &[f64])| {
            let products = row.iter().zip(state).map(|(weight, state)| weight * f64::from(*state));
            let sum = products.sum::<f64>() + self.biases.get(token).unwrap_or(&0.0);
            let scaled = sum * f64::from(self.spec.scale.unwrap_or(1.0));
            let cap = self.spec.soft_cap.map(f64::from);
            cap.map_or(scaled, |cap| cap * (scaled / cap).tanh())
        };
        let logits: Vec<f64> =
            self.weights.chunks_exact(self.width).enumerate().map(logit).collect();
        let total = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        logits.iter().map(|logit| logit - total).collect()
    }
}

/// Divides columns by their lengths, or by `least` where that is more.
fn divide_columns(weights: &mut [f64], width: usize, least: f64) {
    for column in 0..width {
        let of_column = || weights[column..].iter().step_by(width);
        let length = of_column().map(|weight| weight * weight).sum::<f64>().sqrt().max(least);
        weights[column..].iter_mut().step_by(width).for_each(|weight| *weight /= length);
    }
}

fn biases(linear: &LinearSpec, checkpoint: &mut Checkpoint) -> Vec<Vec<f32>> {
    linear.biases().map(|tensor| checkpoint.vector(&tensor, 0.0).unwrap()).collect()
}

/// What a model's last states say of some next tokens.
fn check(model: ModelConfig, wanted: &[Wanted]) {
    let name = model.model_dir.display().to_string();
    let config = EngineConfig { model, ..EngineConfig::default() };
    let texts: Vec<_> = wanted.iter().map(|(text, _)| text.clone()).collect();
    let head = Head::open(&PoolingSummary::read(&config.model).unwrap());
    let (yes, no) = (wanted[0].1[0].0, 0);
    let classes = Some(TokenClasses::of_ids(yes, Some(no)));
    let model = ModelConfig { token_classes: classes, ..config.model.clone() };
    let scores = outputs(&EngineConfig { model, ..config.clone() }, &texts);
    for (((text, tokens), state), score) in wanted.iter().zip(outputs(&config, &texts)).zip(scores)
    {
        let logprobs = head.logprobs(&state);
        for (token, expected) in tokens {
            let got = logprobs[*token as usize];
            let what = format!("{name}, {text:?}, token {token}");
            assert!((got - expected).abs() < TOLERANCE, "{what}: {got}, not {expected}");
        }
        let expected = logprobs[yes as usize] - logprobs[no as usize];
        let off = (f64::from(score[0]) - expected).abs();
        assert!(off < TOLERANCE, "{name}, {text:?}: {score:?}, not {expected}");
    }
}

fn in_float32(model_dir: PathBuf) -> ModelConfig {
    ModelConfig { model_dir, dtype: Some(DType::Float32), ..ModelConfig::default() }
}

/// Folders of models that make no vectors, and the part of them that is refused.
const REFUSED: &[(&str, &str)] = &[
    ("ettin", "a layer between the last norm and the output layer"),
    ("ettin_biases", "a layer between the last norm and the output layer"),
    ("opt350", "a table of tokens of another width"),
];

#[test]
fn last_states_say_of_the_next_token_what_transformers_says() {
    let mut num_models = 0;
    for folder in folders() {
        if let Some((_, part)) = REFUSED.iter().find(|(name, _)| folder.ends_with(name)) {
            let error = PoolingSummary::read(&in_float32(folder)).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            continue;
        }
        let golden: Golden = pooled::golden(&folder);
        let wanted = |prompt: &GoldenPrompt| (text(prompt), prompt.top.last().unwrap().clone());
        let wanted: Vec<_> = golden.prompts.iter().map(wanted).collect();
        let model = in_float32(folder);
        // The whole context, of which the tokenizers' files name a part: some rotary embeddings
        // depend on it.
        let max_model_len = Some(PoolingSummary::read(&model).unwrap().spec.max_model_len);
        check(ModelConfig { max_model_len, ..model }, &wanted);
        num_models += 1;
    }
    assert!(num_models > 92, "{num_models} models");
}

#[test]
fn so_do_those_of_gguf_files() {
    let folder = testdata("gguf");
    let goldens = std::fs::read_to_string(folder.join("models.json")).unwrap();
    let goldens: BTreeMap<String, Vec<GgufGolden>> = serde_json::from_str(&goldens).unwrap();
    for (name, goldens) in goldens {
        let wanted: Vec<_> = goldens.iter().map(GgufGolden::wanted).collect();
        // Phi-3's first context: longer runs have its other divisors.
        let model = in_float32(folder.join(format!("{name}.gguf")));
        check(ModelConfig { max_model_len: Some(64), ..model }, &wanted);
    }
}
