//! The models of `testdata/golden`, and what transformers says of each.

use std::path::PathBuf;

use serde::Deserialize;

use super::pooled::{names, testdata};

/// A model's golden.json.
#[derive(Deserialize)]
pub struct Golden {
    pub prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
pub struct GoldenPrompt {
    pub prompt_token_ids: Vec<u32>,
    pub output_token_ids: Vec<u32>,
    /// Of each of those, the likeliest tokens with their logprobs.
    pub top: Vec<Vec<(u32, f64)>>,
}

/// Of all golden models, in the order of their names.
pub fn folders() -> Vec<PathBuf> {
    let folders = names("golden").into_iter().map(|name| testdata("golden").join(name));
    folders.filter(|folder| folder.join("config.json").exists()).collect()
}
