//! Keys of config.json that change nothing of what the engine computes, each with its reason.

use serde_json::Value;

/// (why they are harmless, keys). A key that a family reads is not here: its value counts.
const HARMLESS: &[(&str, &[&str])] = &[
    (
        "says what the file is, or where it came from",
        &[
            "_commit_hash",
            "_model_name_or_path",
            "_name_or_path",
            "auto_map",
            "custom_pipelines",
            "is_llama_config",
            "license",
            "model_name",
            "model_type",
            "name_or_path",
            "tokenizer_name",
            "transformers.js_config",
            "transformers_js_config",
            "transformers_version",
            "transformers_weights",
            "unsloth_fixed",
            "unsloth_version",
        ],
    ),
    (
        "lengths that tokenizers and trainers go by; the longest context is computed from others",
        &["max_sequence_length", "model_max_length"],
    ),
    (
        "what the class of transformers does not read; `sliding_window` counts",
        &["sliding_window_size"],
    ),
    (
        "read by the loader, wherever it stands",
        &["architectures", "dtype", "eos_token_id", "quantization_config", "torch_dtype"],
    ),
    (
        "token ids: the tokenizer's files and generation_config.json have those that are used",
        &[
            "bos_token_id",
            "boi_token_index",
            "cls_token_id",
            "decoder_start_token_id",
            "eoi_token_index",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "mask_token_id",
            "pad_token_id",
            "sep_token_id",
            "suppress_tokens",
            "unk_token_id",
        ],
    ),
    (
        "training alone: initial values, dropout, losses",
        &[
            "activation_dropout",
            "attention_dropout",
            "attention_dropout_prob",
            "attention_probs_dropout_prob",
            "attn_dropout",
            "attn_pdrop",
            "classifier_dropout",
            "dropout",
            "emb_pdrop",
            "embd_pdrop",
            "embed_dropout",
            "embedding_dropout",
            "ffn_dropout",
            "gradient_checkpointing",
            "gradient_checkpointing_step",
            "hidden_dropout",
            "hidden_dropout_prob",
            "init_cutoff_factor",
            "init_std",
            "initializer_cutoff_factor",
            "initializer_range",
            "layerdrop",
            "residual_dropout",
            "resid_dropout",
            "resid_pdrop",
            "router_aux_loss_coef",
            "seed",
        ],
    ),
    (
        "how transformers computes the same, or keeps what it computed",
        &[
            "_attn_implementation",
            "_experts_implementation",
            "_flash_attn_2_enabled",
            "_attn_implementation_autoset",
            "attention_softmax_in_fp32",
            "attn_implementation",
            "cache_implementation",
            "chunk_size_feed_forward",
            "ignore_keys_at_rope_validation",
            "pretraining_tp",
            "scale_attention_softmax_in_fp32",
            "tp_plan",
            "base_model_tp_plan",
            "base_model_pp_plan",
            "torchscript",
            "use_bfloat16",
            "use_cache",
            "use_flash_attn",
        ],
    ),
    (
        "what transformers returns beside logits",
        &[
            "output_attentions",
            "output_hidden_states",
            "output_past",
            "output_router_logits",
            "return_dict",
            "return_dict_in_generate",
            "output_scores",
        ],
    ),
    (
        "defaults of generation that transformers once kept here; generation_config.json has them",
        &[
            "bad_words_ids",
            "begin_suppress_tokens",
            "diversity_penalty",
            "do_sample",
            "early_stopping",
            "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty",
            "length_penalty",
            "max_length",
            "min_length",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_return_sequences",
            "prefix",
            "remove_invalid_values",
            "repetition_penalty",
            "temperature",
            "tokenizer_class",
            "top_k",
            "top_p",
            "typical_p",
        ],
    ),
    (
        "heads for classification and summaries, which a model for text has not",
        &[
            "_num_labels",
            "finetuning_task",
            "id2label",
            "label2id",
            "num_labels",
            "problem_type",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "task_specific_params",
        ],
    ),
    (
        "layers that predict further tokens: no family without them has their tensors",
        &["mtp_num_hidden_layers", "num_mtp_layers", "num_nextn_predict_layers"],
    ),
    (
        "parts that a decoder has not",
        &[
            "add_cross_attention",
            "cross_attention_hidden_size",
            "is_decoder",
            "is_encoder_decoder",
            "tie_encoder_decoder",
            "tf_legacy_loss",
            "pruned_heads",
        ],
    ),
];

/// Switches that no family reads and that change nothing where they stand as here: they turn off
/// what the engine has not, or on what it always does.
const SWITCHES: &[(&str, bool)] = &[
    ("is_causal", true),
    ("learned_embeddings", true),
    ("rope_interleaved", false),
    ("scale_embeddings", false),
    ("use_mrope", false),
];

/// Whether a key that nobody read changes nothing, with the value that it has.
pub(super) fn is_harmless(key: &str, value: Option<&Value>) -> bool {
    HARMLESS.iter().any(|(_, keys)| keys.contains(&key))
        || SWITCHES.iter().any(|(name, on)| *name == key && value == Some(&Value::Bool(*on)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_listed_once() {
        let switches = SWITCHES.iter().map(|(key, _)| key);
        let keys = HARMLESS.iter().flat_map(|(_, keys)| *keys);
        let mut keys: Vec<_> = keys.chain(switches).collect();
        let num_keys = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), num_keys);
    }

    #[test]
    fn a_switch_is_harmless_with_its_value_alone() {
        assert!(is_harmless("rope_interleaved", Some(&Value::Bool(false))));
        assert!(!is_harmless("rope_interleaved", Some(&Value::Bool(true))));
        assert!(!is_harmless("rope_interleaved", None));
    }
}
