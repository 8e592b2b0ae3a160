//! Structural tags: free text until a trigger, then what its tag says. vLLM's older form
//! (`triggers`, `structures`), and xgrammar's `format` where it is a `triggered_tags` or a `tag` of
//! a JSON schema, a text or a regular expression.

use serde_json::Value;

/// Text that begins with a trigger, and what must follow.
struct Tag {
    trigger: String,
    begin: String,
    /// In Lark.
    content: String,
    end: String,
}

/// A schema with the options of the constraint.
type WithOptions<'a> = &'a dyn Fn(&Value) -> Value;

/// The grammar in Lark. `is_special` says of a text whether it is one special token, `schema` gives
/// schemas the constraint's options.
///
/// # Errors
/// What is missing, or not supported.
pub(super) fn to_lark(
    tag: &Value,
    is_special: impl Fn(&str) -> bool,
    schema: WithOptions,
) -> Result<String, String> {
    let (tags, whole) = match (&tag["structures"], &tag["format"]) {
        (Value::Array(structures), Value::Null) => {
            (of_structures(structures, &tag["triggers"], schema)?, None)
        }
        (Value::Null, format @ Value::Object(_)) => match format["type"].as_str() {
            Some("triggered_tags") => (of_triggered(format, schema)?, None),
            Some("tag") => (Vec::new(), Some(of_tag(format, None, schema)?)),
            other => {
                let found = other.unwrap_or("missing");
                return Err(format!(
                    "format.type is {found}: only triggered_tags and tag are supported"
                ));
            }
        },
        _ => return Err("expected `structures` with `triggers`, or `format`".to_owned()),
    };
    if let Some(tag) = whole {
        let (begin, end) = (quoted(&tag.begin), quoted(&tag.end));
        return Ok(format!("start: {begin} {} {end}\n", tag.content));
    }
    if tags.is_empty() {
        return Err("there is no tag".to_owned());
    }
    let names: Vec<String> = (0..tags.len()).map(|index| format!("tag_{index}")).collect();
    let mut lark = format!("start: ({})* tail\n", names.join(" | "));
    lark.push_str("tail: TEXT\nTEXT: /(.|\\n)*/\n");
    for (index, Tag { trigger, begin, content, end }) in tags.iter().enumerate() {
        let rest = quoted(&begin[trigger.len()..]);
        let body = format!("{rest} {content} {}", quoted(end));
        match is_special(trigger) {
            true => lark.push_str(&format!("tag_{index}: TEXT {trigger} {body}\n")),
            false => {
                let trigger = quoted(trigger);
                lark.push_str(&format!("head_{index}[lazy]: TEXT {trigger}\n"));
                lark.push_str(&format!("tag_{index}: head_{index} {body}\n"));
            }
        }
    }
    Ok(lark)
}

fn of_structures(
    structures: &[Value],
    triggers: &Value,
    schema: WithOptions,
) -> Result<Vec<Tag>, String> {
    let triggers = texts(triggers)?;
    let tag = |structure: &Value| {
        let begin = text(structure, "begin")?;
        let content = json_of(&structure["schema"], schema)
            .map_err(|_| "structures: expected `schema`, an object")?;
        let trigger = trigger_of(&begin, &triggers)?;
        Ok(Tag { trigger, begin, content, end: text(structure, "end")? })
    };
    structures.iter().map(tag).collect()
}

/// JSON of a schema: an object, or its text.
fn json_of(value: &Value, schema: WithOptions) -> Result<String, String> {
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    match parsed.as_ref().unwrap_or(value) {
        value @ Value::Object(_) => Ok(format!("%json {}", schema(value))),
        _ => Err("json_schema: expected a schema, an object".to_owned()),
    }
}

fn of_triggered(format: &Value, schema: WithOptions) -> Result<Vec<Tag>, String> {
    let triggers = texts(&format["triggers"])?;
    for name in ["at_least_one", "stop_after_first"] {
        if format[name] == true {
            return Err(format!("format.{name} is not supported"));
        }
    }
    let tags = format["tags"].as_array().ok_or("format.tags: expected a list")?;
    tags.iter().map(|tag| of_tag(tag, Some(&triggers), schema)).collect()
}

fn of_tag(tag: &Value, triggers: Option<&[String]>, schema: WithOptions) -> Result<Tag, String> {
    let begin = text(tag, "begin")?;
    let end = match &tag["end"] {
        Value::Array(ends) if ends.len() == 1 => ends[0].as_str().unwrap_or_default().to_owned(),
        Value::Array(_) => return Err("a tag with several ends is not supported".to_owned()),
        _ => text(tag, "end")?,
    };
    let content = &tag["content"];
    let content = match content["type"].as_str() {
        Some("json_schema") => json_of(&content["json_schema"], schema)?,
        Some("const_string") => quoted(&text(content, "value")?),
        Some("regex") => {
            let regex = text(content, "pattern")?.replace('/', "\\/");
            format!("/{regex}/")
        }
        other => {
            let found = other.unwrap_or("missing");
            return Err(format!(
                "content.type is {found}: only json_schema, const_string and regex are supported"
            ));
        }
    };
    let trigger = match triggers {
        Some(triggers) => trigger_of(&begin, triggers)?,
        None => begin.clone(),
    };
    Ok(Tag { trigger, begin, content, end })
}

fn trigger_of(begin: &str, triggers: &[String]) -> Result<String, String> {
    let trigger = triggers.iter().find(|trigger| begin.starts_with(trigger.as_str()));
    trigger.cloned().ok_or_else(|| format!("begin {begin:?} begins with none of the triggers"))
}

fn text(object: &Value, name: &str) -> Result<String, String> {
    object[name].as_str().map(str::to_owned).ok_or_else(|| format!("{name}: expected a string"))
}

fn texts(value: &Value) -> Result<Vec<String>, String> {
    let items = value.as_array().into_iter().flatten();
    let texts: Option<Vec<String>> = items.map(|item| item.as_str().map(str::to_owned)).collect();
    let is_text = |texts: &Vec<String>| !texts.is_empty() && texts.iter().all(|t| !t.is_empty());
    texts.filter(is_text).ok_or_else(|| "triggers: expected a list of strings".to_owned())
}

/// In Lark; nothing for an empty text.
fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_are_one_grammar() {
        let schema = json!({"type": "null"});
        let closed = |schema: &Value| json!({"closed": schema});
        let old = json!({"triggers": ["<f="],
            "structures": [{"begin": "<f=a>", "schema": schema, "end": "</f>"}]});
        let new = json!({"type": "structural_tag", "format": {"type": "triggered_tags",
            "triggers": ["<f="], "tags": [{"begin": "<f=a>", "end": "</f>",
            "content": {"type": "json_schema", "json_schema": schema}}]}});
        let lark = to_lark(&old, |_| false, &closed).unwrap();
        assert!(lark.contains("head_0[lazy]: TEXT \"<f=\"\n"), "{lark}");
        let json = "%json {\"closed\":{\"type\":\"null\"}}";
        assert!(lark.contains(&format!("tag_0: head_0 \"a>\" {json} \"</f>\"\n")), "{lark}");
        assert_eq!(to_lark(&new, |_| false, &closed).unwrap(), lark);
        let special = json!({"triggers": ["<t>"],
            "structures": [{"begin": "<t>", "schema": schema, "end": ""}]});
        let lark = to_lark(&special, |text| text == "<t>", &closed).unwrap();
        assert!(lark.contains("tag_0: TEXT <t>  %json"), "{lark}");
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let cases = [
            (json!({}), "expected `structures`"),
            (json!({"structures": [], "triggers": ["a"]}), "there is no tag"),
            (
                json!({"structures": [{"begin": "b", "schema": {}, "end": ""}], "triggers": ["a"]}),
                "begin \"b\" begins with none",
            ),
            (json!({"structures": [{"begin": "b"}], "triggers": []}), "triggers: expected"),
            (json!({"format": {"type": "any_text"}}), "format.type is any_text"),
            (
                json!({"format": {"type": "tag", "begin": "a", "end": "b",
                "content": {"type": "any_text"}}}),
                "content.type is any_text",
            ),
        ];
        for (case, message) in cases {
            let found = to_lark(&case, |_| false, &Value::clone).unwrap_err();
            assert!(found.starts_with(message), "{case}: {found}");
        }
    }
}
