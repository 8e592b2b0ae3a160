//! Classifiers that are language models: their classes are tokens that may come next
//! (Qwen3-Reranker, bge-reranker-v2-gemma, mxbai-rerank-v2). vLLM's `classifier_from_token`.

use super::classifiers::{Classifier, ClassifierHead, HeadStates, activation};
use crate::hf_config::HfConfig;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::pooling::{ClassToken, TokenClasses, TokenMethod};

/// Token classes of config.json, by vLLM's keys. Read before the spec of the body, since unread
/// keys refuse the model.
///
/// # Errors
/// A key is something else than it should be, or one is missing beside the others.
pub(super) fn token_classes(config: &HfConfig) -> Result<Option<TokenClasses>, EngineError> {
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
            let text = format!("`classifier_from_token` of {number} with a `method` of {method}");
            return Err(config.error(format!("{text} is not supported")));
        }
    };
    let tokens: Vec<_> = tokens.into_iter().map(str::to_owned).collect();
    let classes = TokenClasses::new(&tokens, method == TokenMethod::Difference);
    let classes =
        classes.map_err(|text| config.error(format!("`classifier_from_token`: {text}")))?;
    Ok(Some(TokenClasses { method, ..classes }))
}

/// The classifier that they are. Its classes are called as the tokens.
///
/// # Errors
/// The config asks for an activation that is not supported.
pub(super) fn of_tokens(
    classes: TokenClasses,
    config: &HfConfig,
) -> Result<Classifier, EngineError> {
    let label = |token: &ClassToken| match token {
        ClassToken::Named(name) => name.clone(),
        ClassToken::Numbered(id) => format!("token {id}"),
    };
    let labelled = match classes.method {
        TokenMethod::Difference => &classes.tokens[1..],
        TokenMethod::Each => &classes.tokens[..],
    };
    let labels: Vec<_> = labelled.iter().map(label).collect();
    let activation = activation(config, labels.len())?;
    let head = ClassifierHead::Tokens(classes);
    let states = HeadStates::Last;
    Ok(Classifier { states, head, labels, activation, end_token_id: None })
}

#[cfg(test)]
mod tests {
    use super::super::classifiers::ClassActivation;
    use super::*;

    fn of(keys: &str) -> Result<Option<Classifier>, String> {
        let text = format!(r#"{{"architectures": ["Qwen3ForCausalLM"]{keys}}}"#);
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let classes = token_classes(&config);
        let classifier =
            classes.and_then(|found| found.map(|it| of_tokens(it, &config)).transpose());
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
}
