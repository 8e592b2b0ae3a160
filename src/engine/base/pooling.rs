//! Tasks of pooling models, in vLLM's and sentence-transformers' names.

use super::files::quoted;

/// Result of a model for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingTask {
    /// A vector.
    Embed,
    /// A number for each class.
    Classify,
    /// A vector for each token.
    TokenEmbed,
    /// A number for each class, of each token.
    TokenClassify,
}

impl PoolingTask {
    /// vLLM's spelling.
    pub fn name(self) -> &'static str {
        match self {
            PoolingTask::Embed => "embed",
            PoolingTask::Classify => "classify",
            PoolingTask::TokenEmbed => "token_embed",
            PoolingTask::TokenClassify => "token_classify",
        }
    }
}

/// Hidden states of a text that its vector is computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolingType {
    /// That of the first token.
    #[default]
    Cls,
    /// The mean of all.
    Mean,
    /// That of the last token.
    Last,
    /// The largest value of each column.
    Max,
    /// The sum of all, divided by the square root of their number.
    MeanSqrtLen,
    /// The mean of all, each as often as its place from 1.
    WeightedMean,
    /// Each, made one with no other: a text becomes as much as it has tokens.
    All,
}

impl PoolingType {
    /// vLLM's spelling, which `--pooling-type` takes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cls => "CLS",
            Self::Mean => "MEAN",
            Self::Last => "LAST",
            Self::Max => "MAX",
            Self::MeanSqrtLen => "MEAN_SQRT_LEN",
            Self::WeightedMean => "WEIGHTEDMEAN",
            Self::All => "ALL",
        }
    }

    /// llama.cpp's number in a GGUF file.
    pub fn of_gguf(number: usize) -> Option<Self> {
        match number {
            1 => Some(PoolingType::Mean),
            2 => Some(PoolingType::Cls),
            3 => Some(PoolingType::Last),
            _ => None,
        }
    }

    /// sentence-transformers' spelling.
    pub fn of_name(name: &str) -> Option<Self> {
        match name {
            "cls" => Some(PoolingType::Cls),
            "mean" => Some(PoolingType::Mean),
            "lasttoken" => Some(PoolingType::Last),
            "max" => Some(PoolingType::Max),
            "mean_sqrt_len_tokens" => Some(PoolingType::MeanSqrtLen),
            "weightedmean" => Some(PoolingType::WeightedMean),
            _ => None,
        }
    }
}

/// Token that ends a step in reward models of the Qwen2.5-Math family.
pub const STEP_TOKEN: &str = "<extra_0>";

/// Tokens that are classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClasses {
    /// Tokens of the classes.
    pub tokens: Vec<ClassToken>,
    /// Function of their logits.
    pub method: TokenMethod,
}

/// A token that is a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassToken {
    /// As the vocabulary has it, or a text that becomes it alone.
    Named(String),
    /// By its id.
    Numbered(u32),
}

/// Function of the logits of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMethod {
    /// One score from two tokens: the second logit minus the first. Its sigmoid is the second
    /// token's probability among both. vLLM's `from_2_way_softmax`.
    Difference,
    /// Each is a class. vLLM's `no_post_processing`.
    Each,
}

impl TokenClasses {
    /// Most tokens.
    pub const MAX: usize = 1000;

    /// Tokens of a flag.
    ///
    /// `for_score`: two tokens make one number.
    ///
    /// # Errors
    /// There are none, one is empty or named twice, or there are too many.
    pub fn new(tokens: &[String], for_score: bool) -> Result<Self, String> {
        let method = match tokens.len() {
            2 if for_score => TokenMethod::Difference,
            _ => TokenMethod::Each,
        };
        let is_again = |index: usize| tokens[..index].contains(&tokens[index]);
        let named = || tokens.iter().cloned().map(ClassToken::Named).collect();
        match tokens.len() {
            _ if tokens.iter().any(String::is_empty) => Err("an empty token".to_owned()),
            0 => Err("no token is named".to_owned()),
            number if number > Self::MAX => {
                Err(format!("{number} tokens: expected {} at most", Self::MAX))
            }
            number => match (0..number).find(|&index| is_again(index)) {
                Some(index) => Err(format!("{} is named twice", quoted(&tokens[index]))),
                None => Ok(Self { tokens: named(), method }),
            },
        }
    }

    /// Tokens of `LogitScore` of sentence-transformers: one token, or one less another.
    pub fn of_ids(yes: u32, no: Option<u32>) -> Self {
        let method = match no {
            Some(_) => TokenMethod::Difference,
            None => TokenMethod::Each,
        };
        Self { tokens: no.into_iter().chain([yes]).map(ClassToken::Numbered).collect(), method }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tokens_make_one_number_where_a_score_is_asked_for() {
        let of = |names: &[&str], for_score| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            TokenClasses::new(&names, for_score).map(|classes| classes.method)
        };
        assert_eq!(of(&["0", "1"], true), Ok(TokenMethod::Difference));
        assert_eq!(of(&["0", "1"], false), Ok(TokenMethod::Each));
        assert_eq!(of(&["Yes"], true), Ok(TokenMethod::Each));
        assert!(of(&["a", ""], true).unwrap_err().contains("empty"));
        let many: Vec<_> = (0..1001).map(|number| number.to_string()).collect();
        assert!(TokenClasses::new(&many, false).unwrap_err().contains("1000 at most"));
    }
}
