//! Fields that are almost named like a parameter: a slip that would otherwise pass in silence.

use super::unsupported;
use crate::cli::fields::JsonFields;
use crate::cli::overrides;

/// Shorter names are near to too many others: of these only the way of writing may differ.
const MIN_LENGTH: usize = 8;

/// Nothing shorter is near to anything.
const MIN_LENGTH_OF_ANY: usize = 4;

/// Letters that the way of writing may add or take away.
const MAX_DIFFERENCE: usize = 3;

/// From this length on, two letters may be wrong.
const MIN_LENGTH_OF_TWO: usize = 11;

/// What other programs call a parameter, in rows that are no batch requests.
const SYNONYMS: &[(&str, &str)] = &[
    ("max_new_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
    ("num_return_sequences", "n"),
    ("stop_sequences", "stop"),
    ("stop_strings", "stop"),
    ("top_logprobs", "logprobs"),
];

/// Fields of requests that are near to a parameter and have a meaning of their own.
const OWN_MEANING: &[&str] = &["stop_sequences", "top_logprobs"];

/// Parameters of chats, beside those of sampling.
const OF_CHATS: &[&str] = &[
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "reasoning_effort",
];

/// A field, and the parameter that was probably meant.
pub(super) type NearMiss = (String, &'static str);

/// The fields of a row, or of a request's body, that are no parameter but almost named like one.
pub(super) fn find(fields: &JsonFields, is_request: bool) -> Vec<NearMiss> {
    let meant = |name: &str| match is_request {
        true if OWN_MEANING.contains(&name) => None,
        true => nearest(name),
        false => {
            let synonym = SYNONYMS.iter().find(|(known, _)| *known == name);
            synonym.map(|(_, meant)| *meant).or_else(|| nearest(name))
        }
    };
    fields.iter().filter_map(|field| Some((field.name.to_string(), meant(&field.name)?))).collect()
}

/// The parameter that a name is almost, but not quite.
fn nearest(name: &str) -> Option<&'static str> {
    if name.len() < MIN_LENGTH_OF_ANY {
        return None;
    }
    let known = || overrides::parameter_names().chain(OF_CHATS.iter().copied());
    if known().any(|parameter| parameter == name) || unsupported::is_known(name) {
        return None;
    }
    let plain = plain(name);
    known().find(|parameter| {
        if name.len().abs_diff(parameter.len()) > MAX_DIFFERENCE {
            return false;
        }
        let plain_parameter = self::plain(parameter);
        if plain == plain_parameter {
            return true;
        }
        let most = match parameter.len() {
            0..MIN_LENGTH => return false,
            MIN_LENGTH..MIN_LENGTH_OF_TWO => 1,
            _ => 2,
        };
        name.len().abs_diff(parameter.len()) <= most
            && strsim::osa_distance(name, parameter) <= most
    })
}

/// A name without capitals and what separates words.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| !matches!(c, '_' | '-' | ' ' | '.'));
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(name: &str) -> Option<&'static str> {
        let fields = JsonFields::from_pairs(&[("prompt", "\"p\""), (name, "1")]);
        let mut found = find(&fields, false);
        assert!(found.len() < 2, "{found:?}");
        found.pop().map(|(_, meant)| meant)
    }

    #[test]
    fn slips_are_recognised() {
        for (name, parameter) in [
            ("temprature", "temperature"),
            ("Temperature", "temperature"),
            ("tempertaure", "temperature"),
            ("max_token", "max_tokens"),
            ("maxTokens", "max_tokens"),
            ("top-p", "top_p"),
            ("topK", "top_k"),
            ("repitition_penality", "repetition_penalty"),
            ("chat_template_kwarg", "chat_template_kwargs"),
            ("max_new_tokens", "max_tokens"),
        ] {
            assert_eq!(meant(name), Some(parameter), "{name}");
        }
    }

    #[test]
    fn fields_of_users_are_not() {
        for name in [
            "temperature",
            "max_tokens",
            "id",
            "answer",
            "top_n",
            "steps",
            "seeds",
            "N",
            "score",
            "tokens",
            "num_tokens",
            "n_tokens",
            "template",
            "label",
            "stops",
            "prompt_id",
            "guided_json",
            "metadata",
            "temp",
            "model",
            "messages",
            "text",
            "max_length",
        ] {
            assert_eq!(meant(name), None, "{name}");
        }
    }

    #[test]
    fn requests_have_names_of_their_own() {
        let fields = JsonFields::from_pairs(&[("top_logprobs", "5"), ("max_tokns", "5")]);
        assert_eq!(find(&fields, true), [("max_tokns".to_owned(), "max_tokens")]);
    }
}
