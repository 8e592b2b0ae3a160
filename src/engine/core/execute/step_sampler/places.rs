//! Where the entries of a row's tokens are: one entry per token, found by an array over the
//! vocabulary, since a row may name thousands of tokens.

/// One more than the place of a token's entry among those of the row at hand; 0 between rows, and
/// where there is none. (vocab_size)
#[derive(Debug)]
pub(super) struct Places(Vec<u32>);

impl Places {
    pub(super) fn new(vocab_size: usize) -> Self {
        Self(vec![0; vocab_size])
    }

    /// Whether the model has the token: tokenizers may have more, which have no logit.
    pub(super) fn has(&self, token: u32) -> bool {
        (token as usize) < self.0.len()
    }

    /// The token's entry among those of the row, which begin at `start`; `new` at their end if it
    /// has none. None of a token that the model has not.
    pub(super) fn entry<'a, T>(
        &mut self,
        token: u32,
        (entries, start): (&'a mut Vec<T>, usize),
        new: impl FnOnce() -> T,
    ) -> Option<&'a mut T> {
        let place = self.0.get_mut(token as usize)?;
        if *place == 0 {
            entries.push(new());
            *place = (entries.len() - start) as u32;
        }
        Some(&mut entries[start + *place as usize - 1])
    }

    /// Ends a row whose entries were of these tokens.
    pub(super) fn forget(&mut self, tokens: impl Iterator<Item = u32>) {
        tokens.for_each(|token| self.0[token as usize] = 0);
    }
}
