//! What every fuzz target checks, without libFuzzer: a function of bytes that panics where a
//! property does not hold. `tests/engine/fuzz_corpus.rs` runs them over the corpora with every
//! `cargo test`.

pub mod adapter;
pub mod choices;
pub mod contained;
pub mod csv_records;
pub mod gguf;
pub mod index;
pub mod journal_recovery;
pub mod openai_lines;
pub mod parquet_file;
pub mod pickle;
pub mod row_parser;
pub mod rows;
pub mod safetensors_header;
pub mod template_render;
pub mod tokenizer_edits;
pub mod tokenizer_file;
pub mod torch_file;

/// Bytes to a panic, or none.
pub type Check = fn(&[u8]);

/// Every target by the name of its program and of its corpus.
pub const TARGETS: [(&str, Check); 12] = [
    ("adapter", adapter::check),
    ("csv", csv_records::check),
    ("gguf", gguf::check),
    ("index", index::check),
    ("journal_recovery", journal_recovery::check),
    ("openai_lines", openai_lines::check),
    ("parquet_file", parquet_file::check),
    ("pickle", pickle::check),
    ("row_parser", row_parser::check),
    ("safetensors_header", safetensors_header::check),
    ("template_render", template_render::check),
    ("tokenizer_file", tokenizer_file::check),
];
