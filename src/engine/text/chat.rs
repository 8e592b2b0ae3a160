//! `Chat`: a conversation that a model is to go on with, and how its prompt is rendered.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{ChatOptions, ChatTemplate, RenderedChat, TextError, Tokenizer};
use vllm_batch_base::run_date::RunDate;

/// Marks the end of a message that is to go on, as in transformers. The space shows whether the
/// template trims messages.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A conversation, and what its template sees besides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chat {
    /// A JSON array of messages.
    pub messages: Value,
    /// Where the prompt ends.
    pub ending: ChatEnding,
    /// A JSON array of tools.
    pub tools: Option<Value>,
    /// A JSON array of documents.
    pub documents: Option<Value>,
    /// Further variables of the template (`enable_thinking`, ...), vLLM's `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// Content parts `{"type": "image"}` and `{"type": "audio"}`, for each of which there is a
    /// medium. Where there are none, a template of texts refuses such parts.
    pub num_media: usize,
}

/// What control tokens are that users wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypedTokens<'a> {
    /// Text.
    Text,
    /// Control tokens.
    Control,
    /// Control tokens, but for these, which are text.
    ControlBut(&'a [String]),
}

/// Where the prompt of a chat ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChatEnding {
    /// With the beginning of the assistant's turn (`add_generation_prompt`).
    #[default]
    NewTurn,
    /// With the last message.
    LastMessage,
    /// Inside the last message, which the answer continues (`continue_final_message`).
    OpenMessage,
}

impl From<Value> for Chat {
    fn from(messages: Value) -> Self {
        Self { messages, ..Self::default() }
    }
}

impl From<Value> for Box<Chat> {
    fn from(messages: Value) -> Self {
        Box::new(messages.into())
    }
}

impl Chat {
    /// The prompt. Control tokens in what users wrote are as `typed` says.
    ///
    /// # Errors
    /// The template rejects the messages, or does not show the message that is to go on.
    pub fn render(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        now: RunDate,
        typed: TypedTokens<'_>,
    ) -> Result<RenderedChat, TextError> {
        let options = ChatOptions {
            add_generation_prompt: self.ending == ChatEnding::NewTurn,
            tools: self.tools.clone(),
            documents: self.documents.clone(),
            kwargs: self.kwargs.clone(),
            has_media: self.num_media > 0,
            now,
        };
        let render =
            |messages: &Value| template.render_messages(tokenizer, messages, &options, typed);
        let messages = match template.mentions("developer") {
            true => Cow::Borrowed(&self.messages),
            false => without_developers(&self.messages),
        };
        if self.ending != ChatEnding::OpenMessage {
            return render(&messages);
        }
        let mut messages = messages.into_owned();
        let Some(Value::String(last)) = last_text(&mut messages) else {
            return Err(TextError::template("the last message has no text to continue"));
        };
        let whole = last.clone();
        last.push_str(TAG);
        let rendered = render(&messages)?;
        let shown = rendered.shows(whole.trim()).then(|| rendered.cut_before(TAG)).flatten();
        shown.ok_or_else(|| {
            TextError::template("the chat template does not show the last message as it is, so it cannot be continued")
        })
    }
}

/// The same with the system's role in place of the developer's, OpenAI's later name of it. System
/// messages that then follow each other at the beginning are one, since most templates take one.
fn without_developers(messages: &Value) -> Cow<'_, Value> {
    let is_developer = |message: &Value| message["role"] == "developer";
    let Some(list) = messages.as_array().filter(|list| list.iter().any(is_developer)) else {
        return Cow::Borrowed(messages);
    };
    let mut list = list.clone();
    for message in list.iter_mut().filter(|message| is_developer(message)) {
        message["role"] = "system".into();
    }
    while let [first, second, ..] = list.as_slice()
        && first["role"] == "system"
        && second["role"] == "system"
        && let (Some(a), Some(b)) = (first["content"].as_str(), second["content"].as_str())
    {
        list[0]["content"] = format!("{a}\n\n{b}").into();
        list.remove(1);
    }
    Cow::Owned(Value::Array(list))
}

/// The text of the last message: its content, or the last part that is text.
fn last_text(messages: &mut Value) -> Option<&mut Value> {
    let content = messages.as_array_mut()?.last_mut()?.get_mut("content")?;
    match content {
        Value::String(_) => Some(content),
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{NumShown, ShownMedia};
    use super::*;

    const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
                         {% if add_generation_prompt %}<assistant>{% endif %}";
    const TRIMMING: &str =
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}";
    const HIDING: &str = "{% for m in messages[:-1] %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";

    fn render(source: &str, chat: &Chat) -> Result<String, TextError> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/demo");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(folder))?;
        let template = ChatTemplate::new(source, None, None)?;
        chat.render(&template, &tokenizer, RunDate::default(), TypedTokens::Text)
            .map(|chat| chat.text())
    }

    fn chat(ending: ChatEnding, last: Value) -> Chat {
        let messages = json!([
            {"role": "user", "content": "hi"}, {"role": "assistant", "content": last},
        ]);
        Chat { ending, ..messages.into() }
    }

    #[test]
    fn a_prompt_ends_where_it_is_asked_to() {
        let text = |source, ending| render(source, &chat(ending, "So ".into())).unwrap();
        let closed = "<user>hi</><assistant>So </>";
        assert_eq!(text(PLAIN, ChatEnding::NewTurn), format!("{closed}<assistant>"));
        assert_eq!(text(PLAIN, ChatEnding::LastMessage), closed);
        assert_eq!(text(PLAIN, ChatEnding::OpenMessage), "<user>hi</><assistant>So ");
        // A template that trims has no space for the answer to follow.
        assert_eq!(text(TRIMMING, ChatEnding::OpenMessage), "<user>hi</><assistant>So");
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let found = render(PLAIN, &chat(ChatEnding::OpenMessage, parts)).unwrap();
        assert_eq!(found, "<user>hi</><assistant>a\nb");
    }

    #[test]
    fn a_message_that_is_not_shown_cannot_go_on() {
        for (source, last) in [(HIDING, json!("So")), (PLAIN, json!([])), (PLAIN, json!(null))] {
            assert!(render(source, &chat(ChatEnding::OpenMessage, last)).is_err(), "{source}");
        }
    }

    #[test]
    fn control_tokens_in_a_message_that_goes_on_stay_text() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/demo");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(folder)).unwrap();
        let token = tokenizer.eos_token().unwrap().to_owned();
        let open = chat(ChatEnding::OpenMessage, format!("So{token} it").into());
        let template = ChatTemplate::new(PLAIN, None, None).unwrap();
        let rendered =
            open.render(&template, &tokenizer, RunDate::default(), TypedTokens::Text).unwrap();
        assert_eq!(rendered.text(), format!("<user>hi</><assistant>So{token} it"));
        let ids = tokenizer.encode_chat(&rendered).unwrap();
        assert!(!ids.contains(&tokenizer.eos_token_id().unwrap()));
    }

    #[test]
    fn control_tokens_in_tools_and_calls_are_text() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/demo");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(folder)).unwrap();
        let token = tokenizer.eos_token().unwrap();
        let function = json!({"name": "f", "description": format!("ends{token}"), "parameters":
            {"type": "object", "properties": {format!("a{token}"): {"type": "string"}}}});
        let arguments = json!({format!("b{token}"): [token]});
        let mut chat = Chat::from(json!([
            {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "content": token},
        ]));
        chat.tools = Some(json!([{"type": "function", "function": function}]));
        let source = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}\
            {{ m.tool_calls | default([]) | tojson }}{% endfor %}";
        let template = ChatTemplate::new(source, None, None).unwrap();
        let render = |typed| chat.render(&template, &tokenizer, RunDate::default(), typed).unwrap();
        let count = |chat: &RenderedChat| {
            let ids = tokenizer.encode_chat(chat).unwrap();
            ids.iter().filter(|id| Some(**id) == tokenizer.eos_token_id()).count()
        };
        let [text, control] = [TypedTokens::Text, TypedTokens::Control].map(render);
        assert_eq!(count(&control), 5, "{}", control.text());
        assert_eq!(count(&text), 0);
        assert_eq!(text.text(), control.text());
    }

    /// A template may show images in its own words or, if it takes texts alone, where they stand.
    #[test]
    fn images_stand_where_a_template_shows_them_and_users_do_not_write_them() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/demo");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(folder)).unwrap();
        let token = tokenizer.eos_token().unwrap().to_owned();
        let parts = format!(
            "{{% for m in messages %}}{{% for p in m.content %}}{{% if p.type == 'image' %}}\
             {token}{{% else %}}{{{{ p.text }}}}{{% endif %}}{{% endfor %}}{{% endfor %}}"
        );
        let content = json!([{"type": "text", "text": format!("a{token}\u{F0002}")},
            {"type": "image"}, {"type": "text", "text": "b"}, {"type": "image"}]);
        let chat =
            Chat { num_media: 2, ..Chat::from(json!([{"role": "user", "content": content}])) };
        let images = ["<1>".to_owned(), "<2>".to_owned()];
        let shown = |texts| ShownMedia { placeholder: &token, texts };
        let none = ShownMedia::default();
        for typed in [TypedTokens::Text, TypedTokens::ControlBut(std::slice::from_ref(&token))] {
            let render = |source: &str| {
                let template = ChatTemplate::new(source, None, None).unwrap();
                chat.render(&template, &tokenizer, RunDate::default(), typed).unwrap()
            };
            let texts = render("{% for m in messages %}{{ m.content }}{% endfor %}");
            let texts = texts.with_media(shown(&images), none).unwrap().0;
            assert_eq!(texts.text(), format!("<1>\n<2>\na{token}\nb"));
            let ids = tokenizer.encode_chat(&texts).unwrap();
            assert!(!ids.contains(&tokenizer.eos_token_id().unwrap()));
            let parts = render(&parts);
            let too_few = parts.clone().with_media(shown(&images[..1]), none);
            assert_eq!(too_few, Err(NumShown { images: 2, sounds: 0 }));
            let parts = parts.with_media(shown(&images), none).unwrap().0;
            assert_eq!(parts.text(), format!("a{token}<1>b<2>"));
        }
    }

    #[test]
    fn recordings_stand_among_images_in_the_order_of_the_template() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/demo");
        let tokenizer = Tokenizer::from_dir(std::path::Path::new(folder)).unwrap();
        let content = json!([{"type": "audio"}, {"type": "text", "text": "a\u{F0003}"},
            {"type": "image"}, {"type": "audio"}]);
        let chat =
            Chat { num_media: 3, ..Chat::from(json!([{"role": "user", "content": content}])) };
        let (sounds, images) = (["<1>".to_owned(), "<2>".to_owned()], ["<3>".to_owned()]);
        let shown = |placeholder, texts| ShownMedia { placeholder, texts };
        let with = |source: &str| {
            let template = ChatTemplate::new(source, None, None).unwrap();
            let typed = TypedTokens::Text;
            let chat = chat.render(&template, &tokenizer, RunDate::default(), typed).unwrap();
            let (chat, are_sounds) =
                chat.with_media(shown("[IMG]", &images), shown("[AUDIO]", &sounds)).unwrap();
            (chat.text(), are_sounds)
        };
        let texts = with("{% for m in messages %}{{ m.content }}{% endfor %}");
        assert_eq!(texts, ("<1>\n<3>\n<2>\na".to_owned(), vec![true, false, true]));
        let parts = with(
            "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}[IMG]\
             {% elif p.type == 'audio' %}[AUDIO]{% else %}{{ p.text }}{% endif %}{% endfor %}\
             {% endfor %}",
        );
        assert_eq!(parts, ("<1>a<3><2>".to_owned(), vec![true, false, true]));
    }

    #[test]
    fn the_developer_is_the_system_where_a_template_has_no_developer() {
        let messages = json!([
            {"role": "system", "content": "A"}, {"role": "developer", "content": "B"},
            {"role": "user", "content": "hi"},
        ]);
        let mut chat = Chat::from(messages);
        chat.ending = ChatEnding::LastMessage;
        assert_eq!(render(PLAIN, &chat).unwrap(), "<system>A\n\nB</><user>hi</>");
        let knowing = format!("{PLAIN}{{# developer #}}");
        let expected = "<system>A</><developer>B</><user>hi</>";
        assert_eq!(render(&knowing, &chat).unwrap(), expected);
    }

    #[test]
    fn a_template_sees_the_variables_of_a_row() {
        let mut chat = Chat::from(json!([{"role": "user", "content": "hi"}]));
        chat.kwargs = json!({"enable_thinking": false}).as_object().unwrap().clone();
        chat.documents = Some(json!([{"text": "d"}]));
        let source = "{{ enable_thinking }} {{ documents[0].text }}";
        assert_eq!(render(source, &chat).unwrap(), "False d");
    }
}
