//! What every fuzz target checks, without libFuzzer: a function of bytes that panics where a
//! property does not hold. `tests/engine/fuzz_corpus.rs` runs them over the corpora with every
//! `cargo test`.

pub mod adapter;
pub mod choices;
pub mod contained;
pub mod csv_records;
pub mod gguf;
pub mod image;
pub mod index;
pub mod journal_recovery;
pub mod openai_lines;
pub mod parquet_file;
pub mod pdf_page;
pub mod pickle;
pub mod row_parser;
pub mod rows;
pub mod safetensors_header;
pub mod sound;
pub mod template_render;
pub mod tokenizer_edits;
pub mod tokenizer_file;
pub mod torch_file;

/// A property of a parser, tried on bytes of any kind.
pub struct Target {
    /// Name of the target and of its corpus.
    pub name: &'static str,
    /// Panics where the property does not hold.
    pub check: fn(&[u8]),
    /// True if it calls libraries whose panics the program contains.
    pub contains_panics: bool,
}

const fn target(name: &'static str, check: fn(&[u8])) -> Target {
    Target { name, check, contains_panics: false }
}

const fn target_of_contained(name: &'static str, check: fn(&[u8])) -> Target {
    Target { name, check, contains_panics: true }
}

/// Every target, by name.
pub const TARGETS: [Target; 15] = [
    target("adapter", adapter::check),
    target("csv", csv_records::check),
    target("gguf", gguf::check),
    target_of_contained("image", image::check),
    target("index", index::check),
    target("journal_recovery", journal_recovery::check),
    target("openai_lines", openai_lines::check),
    target_of_contained("parquet_file", parquet_file::check),
    target_of_contained("pdf_page", pdf_page::check),
    target("pickle", pickle::check),
    target("row_parser", row_parser::check),
    target("safetensors_header", safetensors_header::check),
    target_of_contained("sound", sound::check),
    target_of_contained("template_render", template_render::check),
    target_of_contained("tokenizer_file", tokenizer_file::check),
];
