//! The program as users and scripts meet it: every test here starts `vllm-batch`.

mod beams;
mod bench;
mod chats;
mod check;
mod classify;
mod cli;
mod completions;
mod data_files;
mod decoded;
mod demo;
mod diff;
mod documents;
mod embed;
mod ended;
mod eval;
mod file_names;
mod flags;
mod grown;
mod hf_overrides;
mod hostile_input;
mod hostile_model;
mod invariance;
mod judges;
mod likelihoods;
mod lora;
mod machine;
mod memory;
mod merge;
mod model_sources;
mod nested_fields;
mod one_prompt;
mod openai_batch;
mod parquet;
mod piped;
mod plan;
mod progress;
mod protocol;
mod refused_files;
mod requests;
mod resume;
mod retrieval;
mod retry_failed;
mod row_params;
mod run_texts;
mod samples;
mod scores;
mod several_inputs;
mod shards;
mod show;
mod signal;
mod structured_output;

#[path = "../files/crash/random.rs"]
mod random;
#[path = "../../fuzz/src/torch_file.rs"]
mod torch_file;
