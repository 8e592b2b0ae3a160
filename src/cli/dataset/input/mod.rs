//! Rows in: from the files of `--input` to prompts with their parameters, or to why a row is none.
//! Knows no flags, no model and no output.

pub mod base64;
pub mod batch_line;
pub mod compress;
pub mod custom_ids;
pub mod fields;
pub mod files;
pub mod media;
pub mod output_records;
pub mod overrides;
pub mod own_params;
pub mod parquet;
pub mod parts;
pub mod path;
pub mod pdf;
pub mod pictures;
pub mod reader;
pub mod referred;
pub mod row;
pub mod row_error;
pub mod sample;
pub mod shard;
pub mod sources;
pub mod spellings;
pub mod tar;
