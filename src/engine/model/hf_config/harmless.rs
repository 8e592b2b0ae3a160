//! Keys of config.json that change nothing of what the engine computes, each with its reason.

/// (why they are harmless, keys). A key that a family reads is not here: its value counts.
const HARMLESS: &[(&str, &[&str])] = &[
    (
        "says what the file is, or where it came from",
        &[
            "_commit_hash",
            "_name_or_path",
            "auto_map",
            "license",
            "model_type",
            "name_or_path",
            "transformers.js_config",
            "transformers_version",
            "transformers_weights",
        ],
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
            "resid_pdrop",
            "seed",
        ],
    ),
    (
        "how transformers computes the same, or keeps what it computed",
        &[
            "_attn_implementation",
            "_attn_implementation_autoset",
            "attention_softmax_in_fp32",
            "attn_implementation",
            "cache_implementation",
            "chunk_size_feed_forward",
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

/// Whether a key that nobody read changes nothing.
pub(super) fn is_harmless(key: &str) -> bool {
    HARMLESS.iter().any(|(_, keys)| keys.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_listed_once() {
        let mut keys: Vec<_> = HARMLESS.iter().flat_map(|(_, keys)| *keys).collect();
        let num_keys = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), num_keys);
    }
}
