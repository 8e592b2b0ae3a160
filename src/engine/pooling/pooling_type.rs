//! `Pooling`: which states of a text its vector is made of, and what becomes of that.

/// Which of a text's states its vector is made of.
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
    pub(super) fn of_gguf(number: usize) -> Option<Self> {
        match number {
            1 => Some(PoolingType::Mean),
            2 => Some(PoolingType::Cls),
            3 => Some(PoolingType::Last),
            _ => None,
        }
    }

    /// sentence-transformers' spelling.
    pub(super) fn of_name(name: &str) -> Option<Self> {
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

/// How vectors are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Of which states.
    pub pooling_type: PoolingType,
    /// Vectors have a length of 1.
    pub normalize: bool,
    /// The sizes that vectors may be cut to; an empty list: any. None: the model was not trained
    /// for it.
    pub dimensions: Option<Vec<usize>>,
    /// Values that are left of a vector in the end, where a row asks for no other number.
    pub truncated: Option<usize>,
    /// The tokens of a prompt count. INSTRUCTOR leaves them out.
    pub include_prompt: bool,
    /// Vectors of tokens begin behind the first token.
    pub skips_first: bool,
}

impl Default for Pooling {
    /// vLLM's for an encoder that says nothing.
    fn default() -> Self {
        Self {
            pooling_type: PoolingType::Cls,
            normalize: true,
            dimensions: None,
            truncated: None,
            include_prompt: true,
            skips_first: false,
        }
    }
}
