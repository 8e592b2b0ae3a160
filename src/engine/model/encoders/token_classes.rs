//! Classifiers that are language models: their classes are tokens that may come next
//! (Qwen3-Reranker, bge-reranker-v2-gemma, mxbai-rerank-v2). vLLM's `classifier_from_token`.

use super::classifiers::{Classifier, ClassifierHead, HeadStates, activation};
use crate::engine::EngineError;
use crate::engine::files::quoted;
use crate::engine::model::hf_config::HfConfig;

/// Tokens that are classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClasses {
    /// Which.
    pub tokens: Vec<ClassToken>,
    /// What becomes of their logits.
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

/// What becomes of the logits of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenMethod {
    /// Of two tokens one number: that of the second, less that of the first. Its sigmoid is the
    /// second one's probability among both. vLLM's `from_2_way_softmax`.
    Difference,
    /// Each is a class. vLLM's `no_post_processing`.
    Each,
}

impl TokenClasses {
    /// Most tokens.
    pub const MAX: usize = 1000;

    /// What a flag asks for.
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

    /// What `LogitScore` of sentence-transformers asks for: one token, or one less another.
    pub fn of_ids(yes: u32, no: Option<u32>) -> Self {
        let method = match no {
            Some(_) => TokenMethod::Difference,
            None => TokenMethod::Each,
        };
        Self { tokens: no.into_iter().chain([yes]).map(ClassToken::Numbered).collect(), method }
    }

    /// What config.json asks for, with vLLM's keys. Read before the spec of the body, since keys
    /// that nobody reads refuse the model.
    ///
    /// # Errors
    /// A key is something else than it should be, or one is missing beside the others.
    pub fn of_config(config: &HfConfig) -> Result<Option<Self>, EngineError> {
        let root = config.root();
        let is_qwen3 = root.flag("is_original_qwen3_reranker")?.unwrap_or(false);
        let tokens = root.texts("classifier_from_token")?;
        let Some(tokens) = tokens else {
            return match is_qwen3 {
                true => Err(config.error("`is_original_qwen3_reranker` needs two tokens")),
                false => Ok(None),
            };
        };
        let method = match (root.text("method")?, tokens.len()) {
            (Some("from_2_way_softmax"), 2) => TokenMethod::Difference,
            (None, 2) if is_qwen3 => TokenMethod::Difference,
            (Some("no_post_processing"), _) if !is_qwen3 => TokenMethod::Each,
            (method, number) => {
                let method = quoted(method.unwrap_or_default());
                let text =
                    format!("`classifier_from_token` of {number} with a `method` of {method}");
                return Err(config.error(format!("{text} is not supported")));
            }
        };
        let tokens: Vec<_> = tokens.into_iter().map(str::to_owned).collect();
        let classes = Self::new(&tokens, method == TokenMethod::Difference);
        let classes =
            classes.map_err(|text| config.error(format!("`classifier_from_token`: {text}")))?;
        Ok(Some(Self { method, ..classes }))
    }

    /// The classifier that they are. Its classes are called as the tokens.
    ///
    /// # Errors
    /// The config asks for an activation that is not supported.
    pub(super) fn classifier(self, config: &HfConfig) -> Result<Classifier, EngineError> {
        let label = |token: &ClassToken| match token {
            ClassToken::Named(name) => name.clone(),
            ClassToken::Numbered(id) => format!("token {id}"),
        };
        let labelled = match self.method {
            TokenMethod::Difference => &self.tokens[1..],
            TokenMethod::Each => &self.tokens[..],
        };
        let labels: Vec<_> = labelled.iter().map(label).collect();
        let activation = activation(config, labels.len())?;
        let head = ClassifierHead::Tokens(self);
        let states = HeadStates::Last;
        Ok(Classifier { states, head, labels, activation, end_token_id: None })
    }
}

#[cfg(test)]
mod tests {
    use super::super::classifiers::ClassActivation;
    use super::*;

    fn of(keys: &str) -> Result<Option<Classifier>, String> {
        let text = format!(r#"{{"architectures": ["Qwen3ForCausalLM"]{keys}}}"#);
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let classes = TokenClasses::of_config(&config);
        let classifier =
            classes.and_then(|found| found.map(|it| it.classifier(&config)).transpose());
        classifier.map_err(|error| error.to_string())
    }

    #[test]
    fn keys_are_those_of_vllm() {
        let found = |keys: &str| {
            let classifier = of(keys).unwrap().unwrap();
            let ClassifierHead::Tokens(classes) = classifier.head else { panic!() };
            (classes.method, classifier.labels.join(","), classifier.activation)
        };
        let two = r#", "classifier_from_token": ["no", "yes"]"#;
        let sigmoid = ClassActivation::Sigmoid;
        for keys in
            [r#", "is_original_qwen3_reranker": true"#, r#", "method": "from_2_way_softmax""#]
        {
            let expected = (TokenMethod::Difference, "yes".to_owned(), sigmoid);
            assert_eq!(found(&format!("{two}{keys}")), expected);
        }
        let plain = r#", "method": "no_post_processing""#;
        let softmax = ClassActivation::Softmax;
        assert_eq!(
            found(&format!("{two}{plain}")),
            (TokenMethod::Each, "no,yes".to_owned(), softmax)
        );
        let one = format!(r#", "classifier_from_token": ["Yes"]{plain}"#);
        assert_eq!(found(&one), (TokenMethod::Each, "Yes".to_owned(), sigmoid));
        assert_eq!(of(""), Ok(None));
        for (keys, what) in [
            (two.to_owned(), "`method`"),
            (format!(r#"{two}, "method": "other""#), "`other`"),
            (r#", "is_original_qwen3_reranker": true"#.to_owned(), "two tokens"),
            (format!(r#", "classifier_from_token": ["a", "a"]{plain}"#), "named twice"),
            (format!(r#", "classifier_from_token": []{plain}"#), "no token"),
        ] {
            let error = of(&keys).unwrap_err();
            assert!(error.contains(what), "{keys}: {error}");
        }
    }

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
