//! The engine as a library: text, requests, scheduling and sampling, models on the CPU; and the
//! inputs that fuzzing found.

mod adapters;
mod amx_twin;
mod answers;
mod byte_level;
mod cached_texts;
mod chat_templates;
mod classifiers;
mod combinations;
mod config_keys;
mod data_parallel;
mod decoder_vectors;
mod embeddings;
mod fuzz_corpus;
mod gguf;
mod gguf_blocks;
mod greedy;
mod guesser;
mod input_processor;
mod int8;
mod likelihoods;
mod loras;
mod models_table;
mod own_head;
mod pooled;
mod published_configs;
mod random;
mod real_model;
mod sampler;
mod sampling_params;
mod saved_configs;
mod scores;
mod sentence_modules;
mod simulation;
mod speculation;
mod tokenizers;
