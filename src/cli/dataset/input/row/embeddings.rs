//! Rows of OpenAI's batch API that ask for vectors: `input` of /v1/embeddings is text or token ids,
//! or a list of these; or it has `messages`, a chat of which one vector is made.

use serde_json::{Value, json};

use super::asked::Asked;
use super::chat::{ChatDefaults, Origin};
use super::unsupported::{self, Place};
use super::{openai, prompt};
use crate::input::fields::JsonFields;
use crate::input::overrides::Overrides;
use crate::input::row_error::{RowError, code};
use vllm_batch_api::prompt::Prompt;

/// Reads the body of a request.
pub(super) fn read(body: &JsonFields, chats: &ChatDefaults, line: u64) -> Result<Asked, RowError> {
    unsupported::check(body, Place::Embeddings, line)?;
    let given = |name| body.get(name).filter(|json| *json != "null");
    let overrides = Overrides::collect_pooling(body);
    match (given("input"), given("messages")) {
        (None, None) => Err(wrong("missing".to_owned(), line)),
        (Some(_), Some(_)) => Err(unsupported::error("messages", line)),
        (Some(json), None) => Ok(Asked::new(Prompt::Several(inputs(json, line)?), overrides)),
        (None, Some(_)) => {
            const NAME: &str = "body.messages";
            let messages = openai::messages_of(body, NAME, None, line)?;
            let made = chats.chat(messages, body, Origin::Vectors, (NAME, line))?;
            Ok(Asked::of_chat(made, overrides))
        }
    }
}

/// One text or list of ids, or several.
fn inputs(json: &str, line: u64) -> Result<Vec<Prompt>, RowError> {
    if json.starts_with('"') {
        return Ok(vec![Prompt::Text(prompt::string("body.input", json, line)?)]);
    }
    let unreadable = |error: &serde_json::Error| wrong(prompt::reason(error), line);
    let value: Value = serde_json::from_str(json).map_err(|error| unreadable(&error))?;
    let Value::Array(items) = value else {
        let found = super::shape::kind_name(json);
        return Err(wrong(
            format!("expected text, token ids or a list of them, found {found}"),
            line,
        ));
    };
    let ids = |items: &Value| serde_json::from_value::<Vec<u32>>(items.clone());
    if items.first().is_some_and(Value::is_number) {
        let ids = ids(&json!(items)).map_err(|error| unreadable(&error))?;
        return Ok(vec![Prompt::TokenIds(ids)]);
    }
    let input = |item: &Value| match item {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(_) => ids(item).map(Prompt::TokenIds).map_err(|error| unreadable(&error)),
        _ => Err(wrong("neither text nor token ids".to_owned(), line)),
    };
    items.iter().map(input).collect()
}

fn wrong(what: String, line: u64) -> RowError {
    RowError::new(code::INVALID_PROMPT, line, format!("body.input: {what}")).of_param("input")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Result<Vec<Prompt>, (&'static str, String)> {
        let body = JsonFields::parse(body.to_owned(), 1).map_err(|bad| bad.1).unwrap();
        match read(&body, &ChatDefaults::default(), 1) {
            Ok(Asked { prompt: Prompt::Several(prompts), .. }) => Ok(prompts),
            Ok(other) => panic!("{:?}", other.prompt),
            Err(error) => Err((error.code, error.message)),
        }
    }

    #[test]
    fn an_input_is_one_text_or_list_of_ids_or_several() {
        let of = |input: &str| asked(&format!(r#"{{"input":{input}}}"#));
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(of(r#""a""#), Ok(vec![text("a")]));
        assert_eq!(of(r#"["a","b"]"#), Ok(vec![text("a"), text("b")]));
        assert_eq!(of("[1,2]"), Ok(vec![Prompt::TokenIds(vec![1, 2])]));
        assert_eq!(of(r#"[[1],"b"]"#), Ok(vec![Prompt::TokenIds(vec![1]), text("b")]));
        for (body, code) in [
            (r#"{"input":7}"#, "invalid_prompt"),
            (r#"{"input":[{"a":1}]}"#, "invalid_prompt"),
            (r#"{"input":[-1]}"#, "invalid_prompt"),
            ("{}", "invalid_prompt"),
            (r#"{"input":"a","embed_dtype":"fp8"}"#, "unsupported_field"),
        ] {
            assert_eq!(asked(body).unwrap_err().0, code, "{body}");
        }
    }
}
