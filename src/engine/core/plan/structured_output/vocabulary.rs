//! A tokenizer as llguidance sees it: the bytes of each token, in a trie, and how bytes that a
//! grammar forces are cut into tokens.

use std::sync::Arc;

use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use vllm_batch_text::{TextError, Tokenizer};

/// The tokens of a model.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

/// The environment of all grammars of a model. `eos_token_ids` end an answer: any of them may come
/// where the grammar is complete.
///
/// # Errors
/// What a token adds to a text depends on its neighbours, or the model has no token that ends.
pub(super) fn environment(
    tokenizer: Arc<Tokenizer>,
    eos_token_ids: &[u32],
) -> Result<TokEnv, TextError> {
    let mut words = tokenizer.token_bytes()?;
    // No text has the marker: UTF-8 has no such byte.
    for (text, id) in tokenizer.special_token_ids() {
        words[id as usize] = [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
    }
    let in_vocabulary = |id: &u32| (*id as usize) < words.len();
    let eos: Vec<u32> = eos_token_ids.iter().copied().filter(in_vocabulary).collect();
    let [first, ..] = eos[..] else {
        return Err(TextError::Model(
            "structured output needs a token that ends an answer (eos_token), which the model's \
             tokenizer has not"
                .to_owned(),
        ));
    };
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words);
    Ok(Arc::new(Vocabulary { trie: trie.with_eos_tokens(&eos), tokenizer }))
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let as_the_model = |text: &str| match self.tokenizer.encode_inside(text) {
            Ok(ids) if self.trie.decode(&ids) == text.as_bytes() => ids,
            // A normalizer changed the text: any tokens that spell it will do.
            _ => self.trie.greedy_tokenize(text.as_bytes()),
        };
        self.trie.tokenize_with_greedy_fallback(bytes, as_the_model)
    }
}
