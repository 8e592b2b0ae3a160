//! The program as users and scripts meet it: every test here starts `vllm-batch`.

mod beams;
mod bench;
mod chats;
mod check;
mod classify;
mod cli;
mod completions;
mod demo;
mod diff;
mod embed;
mod ended;
mod eval;
mod flags;
mod grown;
mod hostile_input;
mod hostile_model;
mod invariance;
mod likelihoods;
mod lora;
mod machine;
mod memory;
mod merge;
mod openai_batch;
mod parquet;
mod piped;
mod plan;
mod progress;
mod protocol;
mod refused_files;
mod resume;
mod retrieval;
mod retry_failed;
mod run_texts;
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
