//! The tokenizer (placeholder until branch `text` is merged: concatenates the vocabulary's pieces).

/// Text could not be tokenized or detokenized.
#[derive(Debug)]
pub struct TextError(pub String);

impl std::fmt::Display for TextError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A `tokenizer.json`.
#[derive(Debug)]
pub struct Tokenizer(Vec<String>, Vec<u32>);

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// It is not one.
    pub fn from_bytes(json: &[u8], _config: Option<&serde_json::Value>) -> Result<Self, TextError> {
        let json: serde_json::Value =
            serde_json::from_slice(json).map_err(|e| TextError(e.to_string()))?;
        let vocab = json["model"]["vocab"].as_object().ok_or(TextError("no vocab".into()))?;
        let mut pieces = vec![String::new(); vocab.len()];
        for (piece, id) in vocab {
            pieces[id.as_u64().unwrap_or(0) as usize] = piece.clone();
        }
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let special = added.filter_map(|t| t["id"].as_u64()).map(|id| id as u32).collect();
        Ok(Self(pieces, special))
    }

    /// Ids to text.
    ///
    /// # Errors
    /// The decoder failed.
    pub fn decode(&self, token_ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        let shown = |id: &&u32| !(skip_special && self.1.contains(id));
        Ok(token_ids.iter().filter(shown).map(|&id| self.0[id as usize].as_str()).collect())
    }
}
