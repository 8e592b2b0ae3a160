//! Rows of datasets: what a row asks that is no batch request.

use std::borrow::Cow;

use super::asked::Asked;
use super::named::NamedRow;
use super::near_miss::NearMisses;
use super::prompt::{Built, PromptBuilder};
use super::shape::{PromptKind, RowShape};
use super::unsupported::{self, Place};
use super::{Likelihoods, Task, tools};
use crate::input::fields::JsonFields;
use crate::input::overrides::Overrides;
use crate::input::path;
use crate::input::row_error::RowError;

/// Fields that are a part of a chat, as its messages are.
const OF_PROMPTS: &[&str] = &["system", "tools", "tool_choice", "functions", "function_call"];

/// The fields beside messages that are inside of a field, as in `{"input": {"messages": [...],
/// "tools": [...]}}`: they are the row's own, like those beside messages of the row.
pub(super) fn beside_messages(shape: &RowShape, fields: &JsonFields) -> Option<JsonFields> {
    let RowShape::Field(name, PromptKind::Messages) = shape else { return None };
    let around = path::object_around(fields, name)?;
    JsonFields::parse(around.to_owned(), 0).ok()
}

/// The path of messages that are inside of a field.
pub(super) fn nested_messages(fields: &JsonFields) -> Option<String> {
    const NAME: &str = "messages";
    let has_them = |json: &str| JsonFields::member(json, NAME).is_some_and(|m| m.starts_with('['));
    let found = fields.iter().find(|field| field.value.starts_with('{') && has_them(field.value));
    found.map(|field| format!("{}.{NAME}", field.name))
}

/// A row's own fields, and those beside its messages that it has not itself.
fn all_fields<'a>(shape: &RowShape, fields: &'a JsonFields) -> Cow<'a, JsonFields> {
    let Some(beside) = beside_messages(shape, fields) else { return Cow::Borrowed(fields) };
    let has = |name: &str| fields.get(name).is_some_and(|json| json != "null");
    let own: Vec<_> =
        fields.iter().chain(beside.iter().filter(|field| !has(&field.name))).collect();
    let pairs: Vec<_> = own.iter().map(|field| (&*field.name, field.value)).collect();
    Cow::Owned(JsonFields::from_pairs(&pairs))
}

/// Reads a row that is no batch request.
pub(super) fn read(
    builder: &PromptBuilder,
    task: Task,
    names: &mut NearMisses,
    (shape, named): (&RowShape, &NamedRow),
    line: u64,
) -> Result<Asked, RowError> {
    let own_params = builder.own_params();
    let is_data = |name: &str| own_params.is_data(name) && !OF_PROMPTS.contains(&name);
    let all = all_fields(shape, &named.fields);
    let settings = all.without(is_data);
    let built = builder.build(shape, named, &settings, line)?;
    let fields = &*settings;
    let lora = builder.names().of_row(fields, line)?;
    if task != Task::Complete {
        let overrides = match task {
            Task::Classify | Task::Reward => Overrides::collect_classes(fields),
            Task::Rerank => Overrides::collect_top_n(fields),
            // A row's own fields say nothing of vectors.
            Task::Complete | Task::Embed | Task::Score => Overrides::none(),
        };
        let asked = match built {
            Built::Chat(made) => Asked::of_chat(*made, overrides),
            Built::Plain(prompt) => Asked::new(prompt, overrides),
            Built::Compared(prompt, images) => Asked { images, ..Asked::new(prompt, overrides) },
        };
        return Ok(Asked { lora, ..asked });
    }
    unsupported::check(fields, Place::Row, line)?;
    let mut overrides = Overrides::collect(fields);
    if fields.get("response_format").is_some_and(|json| !json.starts_with('{')) {
        // A field of the user's own.
        overrides = overrides.with("response_format", None);
    }
    let asked = match built {
        Built::Chat(made) => Asked::of_chat(*made, overrides),
        Built::Plain(prompt) => {
            tools::refuse_beside_text(fields, line)?;
            Asked::new(prompt, overrides)
        }
        Built::Compared(..) => unreachable!("rows that are completed compare nothing"),
    };
    let near_misses = match own_params.are_all() {
        true => names.find(fields, false),
        // Whoever chose by name wrote the names.
        false => Vec::new(),
    };
    let asked = Asked { lora, ..asked }.with_remarks(near_misses);
    Ok(match builder.likelihoods() {
        Likelihoods::None => asked,
        likelihoods => {
            if let Some(medium) = asked.images.first() {
                return Err(unsupported::media(medium, "with --loglikelihood", line));
            }
            let prompt = likelihoods.ask(asked.prompt, &named.fields, line)?;
            // Nothing is said that could have parts.
            Asked { prompt, answer_form: None, ..asked }
        }
    })
}
