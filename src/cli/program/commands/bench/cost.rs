//! What a model costs by its shape: multiply-adds per token, bytes per step. No figure of a device
//! enters it.

use std::collections::HashMap;

use vllm_batch_base::config::{DType, Quantization};
use vllm_batch_base::layers::Reach;
use vllm_batch_checkpoint::spec::{
    AttentionSpec, DecoderSpec, ExpertsSpec, LinearSpec, Part, RecurrentSpec, StreamsSpec,
};

/// A row of a run, by its lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLengths {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens generated.
    pub output: usize,
    /// Prompt tokens that the prefix cache had.
    pub cached: usize,
}

/// What a device gives, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Operations of linear layers.
    pub flops: f64,
    /// Operations of attention and of the output layer.
    pub attention_flops: f64,
    /// Bytes of memory.
    pub bandwidth: f64,
}

/// How a device holds weights.
#[derive(Clone, Copy, Debug)]
pub struct HeldAs<'a> {
    /// Of those that nothing else says.
    pub dtype: DType,
    /// What the layers' matrices and, in int8, the output layer's are narrowed to.
    pub quantization: Option<Quantization>,
    /// Bytes of tensors that stay codes, by name.
    pub code_bytes: &'a HashMap<String, u64>,
}

impl HeldAs<'_> {
    /// Bytes of a matrix, so many for each weight that is no code.
    fn bytes(self, linear: &LinearSpec, weight_bytes: f64) -> f64 {
        let of_part = |part: &Part| match self.code_bytes.get(&part.weight_name()) {
            // A tensor may have several matrices of one shape.
            Some(bytes) => *bytes as f64 / part.slice.map_or(1.0, |slice| slice.count as f64),
            None => part.rows as f64 * linear.k as f64 * weight_bytes,
        };
        linear.parts.iter().map(of_part).sum()
    }

    /// Bytes of a weight of the layers, of the output layer, and of others.
    fn weight_bytes(self) -> [f64; 3] {
        let bytes = self.dtype.size_bytes() as f64;
        match self.quantization {
            None => [bytes; 3],
            Some(Quantization::Fp8) => [1.0, bytes, bytes],
            Some(Quantization::Int8) => [1.0, 1.0, bytes],
        }
    }
}

/// Costs of a model. An operation is a multiplication or an addition.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCost {
    /// Operations of the linear layers and of recurrences per token, without the output layer.
    layers_flops: f64,
    /// Operations of the output layer per generated token.
    head_flops: f64,
    /// The attention of each layer.
    attentions: Vec<AttentionCost>,
    /// Bytes of the layers' matrices, which every step reads.
    layer_bytes: f64,
    /// Bytes of the output layer.
    head_bytes: f64,
    /// Experts, of which a step reads those that its rows choose.
    experts: Vec<ExpertsCost>,
    /// Bytes of a sequence's states.
    state_bytes: f64,
}

/// The attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AttentionCost {
    /// Operations per token and position that it attends to.
    position_flops: f64,
    /// Positions that a token attends to.
    reach: Reach,
    /// Bytes of the K and V that it reads, per token, be they its own or another layer's.
    kv_bytes: f64,
}

impl AttentionCost {
    /// Of a layer, where the cache has so many bytes per token.
    fn of(spec: &DecoderSpec, attention: &AttentionSpec, kv_bytes_per_token: f64) -> Self {
        let width = attention.heads.head_dim + attention.v_dim();
        let kv_values =
            |of: &AttentionSpec| of.heads.num_kv_heads * (of.heads.head_dim + of.v_dim());
        let of_all: usize = spec.cached_attentions().map(kv_values).sum();
        Self {
            // Scores and values: products as wide as all heads of q, and of what they get of V.
            position_flops: 2.0 * (attention.heads.num_heads * width) as f64,
            reach: attention.reach,
            kv_bytes: kv_bytes_per_token * kv_values(attention) as f64 / of_all as f64,
        }
    }
}

/// The experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ExpertsCost {
    /// Bytes of all of them.
    bytes: f64,
    /// The share of them that a row chooses.
    share: f64,
}

impl ExpertsCost {
    /// Bytes of those that so many rows choose, where each is chosen as often as any other: of E
    /// experts it is E (1 - (1 - k/E)^rows).
    fn bytes_of(self, num_rows: usize) -> f64 {
        self.bytes * (1.0 - (1.0 - self.share).powf(num_rows as f64))
    }
}

impl ModelCost {
    /// Costs of a model with weights that are held so, and with so many bytes of K and V per token.
    pub fn new(spec: &DecoderSpec, held: HeldAs<'_>, kv_bytes_per_token: f64) -> Self {
        let weights = |linear: Option<&LinearSpec>| linear.map_or(0.0, LinearSpec::num_weights);
        let of_all: f64 = spec.layer_linears().map(LinearSpec::num_weights).sum();
        // What every row goes through, and what rows choose.
        let in_experts: f64 = spec.experts().map(num_weights).sum();
        let in_layers = of_all - in_experts;
        let chosen: f64 = spec.experts().map(|experts| share(experts) * num_weights(experts)).sum();
        let of_states: f64 = spec.recurrents().map(RecurrentSpec::num_operations).sum();
        let state_values: usize = spec.recurrents().map(RecurrentSpec::state_width).sum();
        let (embedding, output) = (&spec.embedding, &spec.output);
        let of_inputs = embedding.of_layers.as_ref().map(|inputs| &inputs.projection);
        let streams = || embedding.streams.iter().flat_map(StreamsSpec::linears);
        let of_streams: f64 = streams().map(LinearSpec::num_weights).sum();
        let project_in = weights(embedding.projection.as_ref()) + weights(of_inputs) + of_streams;
        let project_out = weights(output.projection.as_ref());
        let vocabulary = weights(output.lm_head.as_ref().or(Some(&embedding.tokens)));
        let [of_layer, of_head, bytes] = held.weight_bytes();
        let bytes_of = |linear: Option<&LinearSpec>, weight: f64| {
            linear.map_or(0.0, |linear| held.bytes(linear, weight))
        };
        let of_experts = |experts: &ExpertsSpec| -> f64 {
            linears_of(experts).map(|linear| held.bytes(linear, of_layer)).sum()
        };
        let all_bytes: f64 = spec.layer_linears().map(|of| held.bytes(of, of_layer)).sum();
        let expert_bytes: f64 = spec.experts().map(of_experts).sum();
        let beside = [embedding.projection.as_ref(), of_inputs].map(|of| bytes_of(of, bytes));
        let stream_bytes: f64 = streams().map(|linear| held.bytes(linear, bytes)).sum();
        let vocabulary_bytes =
            bytes_of(output.lm_head.as_ref().or(Some(&embedding.tokens)), of_head);
        Self {
            layers_flops: 2.0 * (in_layers + chosen + project_in) + of_states,
            head_flops: 2.0 * (vocabulary + project_out),
            attentions: spec
                .attentions()
                .map(|attention| AttentionCost::of(spec, attention, kv_bytes_per_token))
                .collect(),
            layer_bytes: all_bytes - expert_bytes + beside.iter().sum::<f64>() + stream_bytes,
            head_bytes: bytes_of(output.projection.as_ref(), bytes) + vocabulary_bytes,
            experts: spec
                .experts()
                .map(|experts| ExpertsCost { bytes: of_experts(experts), share: share(experts) })
                .collect(),
            state_bytes: (state_values * size_of::<f32>()) as f64,
        }
    }

    /// Operations that a row takes: every token but the last one goes through the layers, the
    /// output layer runs once per generated token.
    pub fn row_flops(&self, row: RowLengths) -> f64 {
        let end = row.prompt + row.output - 1;
        let of_attention =
            |of: &AttentionCost| of.position_flops * positions(row.cached, end, of.reach);
        let attention: f64 = self.attentions.iter().map(of_attention).sum();
        (end - row.cached) as f64 * self.layers_flops
            + row.output as f64 * self.head_flops
            + attention
    }

    /// Bytes of the matrices, each of which a step of so many rows reads once; of experts those
    /// that the rows are expected to choose.
    pub fn weight_bytes(&self, num_rows: usize) -> f64 {
        self.layer_bytes_of(num_rows) + self.head_bytes
    }

    fn layer_bytes_of(&self, num_rows: usize) -> f64 {
        let chosen: f64 = self.experts.iter().map(|experts| experts.bytes_of(num_rows)).sum();
        self.layer_bytes + chosen
    }

    /// Seconds that the products of a step take at least: of the layers and of the output layer the
    /// longer of operations and weights.
    pub fn products_seconds(&self, num_tokens: usize, num_outputs: u64, rates: Rates) -> f64 {
        let layers = (num_tokens as f64 * self.layers_flops / rates.flops)
            .max(self.layer_bytes_of(num_tokens) / rates.bandwidth);
        let head = (num_outputs as f64 * self.head_flops / rates.attention_flops)
            .max(self.head_bytes / rates.bandwidth);
        if num_outputs == 0 { layers } else { layers + head }
    }

    /// Seconds that the attention of a row takes at least: the operations of its prompt, and what
    /// its output tokens read of K, V and states. What rows share is counted for each.
    pub fn attention_seconds(&self, row: RowLengths, rates: Rates) -> f64 {
        let end = row.prompt + row.output - 1;
        let of_layer = |of: &AttentionCost| {
            let flops = of.position_flops * positions(row.cached, row.prompt, of.reach);
            let bytes = of.kv_bytes * positions(row.prompt, end, of.reach);
            flops / rates.attention_flops + bytes / rates.bandwidth
        };
        let states = (row.output - 1) as f64 * self.state_bytes(1) / rates.bandwidth;
        self.attentions.iter().map(of_layer).fold(states, |sum, seconds| sum + seconds)
    }

    /// The same of a decode step.
    pub fn decode_attention_seconds(
        &self,
        num_rows: usize,
        num_positions: u64,
        rates: Rates,
    ) -> f64 {
        let bytes = self.kv_bytes(num_rows, num_positions) + self.state_bytes(num_rows);
        bytes / rates.bandwidth
    }

    /// Bytes of K and V that a decode step of `num_rows` reads, with `num_positions` in all their
    /// contexts. Exact without windows, and with rows of equal length.
    pub fn kv_bytes(&self, num_rows: usize, num_positions: u64) -> f64 {
        let mean = num_positions as f64 / num_rows.max(1) as f64;
        let read = |of: &AttentionCost| {
            of.kv_bytes * of.reach.most().map_or(mean, |most| mean.min(most as f64))
        };
        // A sum of nothing would be -0.
        let per_row = self.attentions.iter().map(read).fold(0.0, |sum, bytes| sum + bytes);
        per_row * num_rows as f64
    }

    /// Bytes of states that a decode step of `num_rows` reads, and writes.
    pub fn state_bytes(&self, num_rows: usize) -> f64 {
        2.0 * self.state_bytes * num_rows as f64
    }
}

/// Bytes of K and V per token, in a KV cache of so many bytes and tokens. States that blocks have
/// besides are of a sequence and no position's.
pub fn kv_bytes_per_token(
    spec: &DecoderSpec,
    (cache_bytes, num_tokens): (usize, usize),
    block_size: usize,
) -> f64 {
    let state_bytes = spec.state_bytes() as f64 / block_size as f64;
    cache_bytes as f64 / num_tokens.max(1) as f64 - state_bytes
}

/// The matrices of all experts that are chosen.
fn linears_of(experts: &ExpertsSpec) -> impl Iterator<Item = &LinearSpec> {
    experts.experts.iter().flat_map(|expert| [&expert.up, &expert.down])
}

/// Weights of them.
fn num_weights(experts: &ExpertsSpec) -> f64 {
    linears_of(experts).map(LinearSpec::num_weights).sum()
}

/// The share of the experts that a row chooses.
fn share(experts: &ExpertsSpec) -> f64 {
    experts.routing.num_chosen() as f64 / experts.experts.len() as f64
}

/// Sum of the positions that tokens `start..end` attend to.
fn positions(start: usize, end: usize, reach: Reach) -> f64 {
    reach.num_seen_before(end) - reach.num_seen_before(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_checkpoint::decoder_spec;
    use vllm_batch_checkpoint::hf_config::HfConfig;

    fn plain_cost(spec: &DecoderSpec, kv_bytes_per_token: f64) -> ModelCost {
        let code_bytes = &HashMap::new();
        let held = HeldAs { dtype: DType::BFloat16, quantization: None, code_bytes };
        ModelCost::new(spec, held, kv_bytes_per_token)
    }

    fn cost(more: &str) -> ModelCost {
        quantized_cost(more, None, &[])
    }

    fn quantized_cost(
        more: &str,
        quantization: Option<Quantization>,
        code_bytes: &[(&str, u64)],
    ) -> ModelCost {
        let text = format!(
            r#"{{"architectures": ["MistralForCausalLM"], "vocab_size": 50, "hidden_size": 8,
                "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2,
                "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
                "hidden_act": "silu"{more}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        // K and V of one head of 4 and of 2 bytes, in 3 layers.
        let spec = decoder_spec(&config).unwrap();
        let code_bytes =
            &code_bytes.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        ModelCost::new(
            &spec,
            HeldAs { dtype: DType::BFloat16, quantization, code_bytes },
            3.0 * 16.0,
        )
    }

    /// q and out 8 x 8, k and v 4 x 8; gate, up, down 20 x 8; three layers; output layer 50 x 8.
    const LAYERS: f64 = 3.0 * (8.0 * 8.0 * 2.0 + 4.0 * 8.0 * 2.0 + 3.0 * 20.0 * 8.0);
    const HEAD: f64 = 50.0 * 8.0;

    #[test]
    fn a_row_costs_its_products_and_its_attention() {
        let row = RowLengths { prompt: 5, output: 2, cached: 0 };
        let attention = 3.0 * 4.0 * 8.0 * f64::from(1 + 2 + 3 + 4 + 5 + 6);
        let expected = 6.0 * 2.0 * LAYERS + 2.0 * 2.0 * HEAD + attention;
        assert_eq!(cost("").row_flops(row), expected);
        let cached = RowLengths { cached: 4, ..row };
        let attention = 3.0 * 4.0 * 8.0 * f64::from(5 + 6);
        assert_eq!(cost("").row_flops(cached), 2.0 * 2.0 * LAYERS + 4.0 * HEAD + attention);
    }

    #[test]
    fn a_step_reads_all_matrices_and_the_attended_positions() {
        let cost_of_all = cost("");
        assert_eq!(cost_of_all.weight_bytes(4), 2.0 * (LAYERS + HEAD));
        assert_eq!(cost_of_all.kv_bytes(4, 40), 40.0 * 3.0 * 16.0);
        let window = cost(r#", "sliding_window": 7"#);
        assert_eq!(window.kv_bytes(4, 40), 4.0 * 7.0 * 3.0 * 16.0);
    }

    #[test]
    fn a_floor_is_of_products_and_of_attention() {
        let cost = cost("");
        let rates = Rates { flops: 100.0, attention_flops: 50.0, bandwidth: 20.0 };
        // One token: the weights take longer; many: the operations.
        let weights = 2.0 * (LAYERS + HEAD) / 20.0;
        assert_eq!(cost.products_seconds(1, 1, rates), weights);
        assert_eq!(cost.products_seconds(1, 0, rates), 2.0 * LAYERS / 20.0);
        let products = 2.0 * LAYERS * 50.0 / 100.0 + 2.0 * HEAD * 30.0 / 50.0;
        assert_eq!(cost.products_seconds(50, 30, rates), products);
        // Tokens 4 and 5 of the prompt, of which 3 are cached; outputs at positions 5 and 6.
        let row = RowLengths { prompt: 5, output: 3, cached: 3 };
        let prompt = 3.0 * 4.0 * 8.0 * f64::from(4 + 5) / 50.0;
        let outputs = 3.0 * 16.0 * f64::from(6 + 7) / 20.0;
        assert!((cost.attention_seconds(row, rates) - prompt - outputs).abs() < 1e-9);
        assert_eq!(cost.decode_attention_seconds(2, 13, rates), outputs);
    }

    #[test]
    fn states_of_blocks_are_no_k_and_v() {
        let text = r#"{"architectures": ["Lfm2ForCausalLM"], "vocab_size": 50, "hidden_size": 8,
            "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "max_position_embeddings": 64, "full_attn_idxs": [1]}"#;
        let spec = decoder_spec(&HfConfig::parse(text, "config.json").unwrap()).unwrap();
        // K and V of a head of 4 in a layer; two states of 2 tokens of 8 values in f32.
        let block_bytes = 16 * 2 * 4 * 2 + 2 * 2 * 8 * 4;
        assert_eq!(kv_bytes_per_token(&spec, (10 * block_bytes, 10 * 16), 16), 16.0);
    }

    #[test]
    fn layers_read_k_and_v_of_their_own_widths_and_of_other_layers() {
        let text = r#"{"architectures": ["Gemma4ForCausalLM"], "vocab_size": 50, "hidden_size": 8,
            "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16, "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 0}"#;
        let spec = decoder_spec(&HfConfig::parse(text, "config.json").unwrap()).unwrap();
        // K and V of a head of 8 and of one of 16, in 2 bytes; the last layer reads the second.
        let cost = plain_cost(&spec, 32.0 + 64.0);
        assert_eq!(cost.kv_bytes(3, 30), 3.0 * (4.0 * 32.0 + 10.0 * 64.0 + 10.0 * 64.0));
        let attended: f64 = cost.attentions.iter().map(|of| of.position_flops).sum();
        assert_eq!(attended, 2.0 * f64::from(2 * 16 + 2 * 32 + 2 * 32));
    }

    #[test]
    fn a_recurrence_costs_its_operations_and_its_states() {
        let text = r#"{"architectures": ["Mamba2ForCausalLM"], "vocab_size": 50, "hidden_size": 8,
            "num_hidden_layers": 3, "num_heads": 2, "head_dim": 8, "n_groups": 1,
            "state_size": 5, "conv_kernel": 4}"#;
        let spec = decoder_spec(&HfConfig::parse(text, "config.json").unwrap()).unwrap();
        let cost = plain_cost(&spec, 0.0);
        // x, B and C; z and dt besides.
        let (conv, state) = (16.0 + 2.0 * 5.0, 16.0 * 5.0);
        let linears = (16.0 + conv + 2.0) * 8.0 + 8.0 * 16.0;
        assert_eq!(cost.layers_flops, 3.0 * (2.0 * linears + 2.0 * 4.0 * conv + 5.0 * state));
        assert_eq!(cost.state_bytes(7), 2.0 * 7.0 * 3.0 * 4.0 * (3.0 * conv + state));
        assert_eq!(cost.kv_bytes(7, 100).to_bits(), 0.0f64.to_bits());
    }

    #[test]
    fn fp8_narrows_the_layers_and_int8_the_output_layer_too() {
        let bytes = |quantization| quantized_cost("", Some(quantization), &[]).weight_bytes(1);
        assert_eq!(bytes(Quantization::Fp8), LAYERS + 2.0 * HEAD);
        assert_eq!(bytes(Quantization::Int8), LAYERS + HEAD);
    }

    #[test]
    fn tensors_that_stay_codes_are_read_as_those() {
        let codes = [
            ("model.layers.1.self_attn.k_proj.weight", 19),
            ("model.layers.2.mlp.down_proj.weight", 90),
            ("lm_head.weight", 250),
            ("model.embed_tokens.weight", 1),
        ];
        let cost = quantized_cost("", None, &codes);
        let wide = LAYERS - 4.0 * 8.0 - 20.0 * 8.0;
        assert_eq!(cost.weight_bytes(1), 2.0 * wide + 19.0 + 90.0 + 250.0);
        assert_eq!(cost.head_bytes, 250.0);
    }

    #[test]
    fn a_row_costs_its_experts_and_a_step_those_of_all_rows() {
        let text = r#"{"architectures": ["MixtralForCausalLM"], "vocab_size": 50, "hidden_size": 8,
            "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2}"#;
        let spec = decoder_spec(&HfConfig::parse(text, "config.json").unwrap()).unwrap();
        let cost = plain_cost(&spec, 48.0);
        let (expert, router) = (3.0 * 20.0 * 8.0, 4.0 * 8.0);
        let others = LAYERS - 3.0 * expert + 3.0 * router;
        assert_eq!(cost.layers_flops, 2.0 * (others + 3.0 * 2.0 * expert));
        let bytes = |num_experts: f64| 2.0 * (others + HEAD + 3.0 * num_experts * expert);
        assert_eq!(cost.weight_bytes(1), bytes(2.0));
        assert_eq!(cost.weight_bytes(2), bytes(3.0));
    }
}
