//! Rows that are chats: speakers, system prompts, last answers, variables of the template.

use serde_json::json;

use super::*;

#[test]
fn share_gpt_speakers_become_roles_and_the_last_answer_is_not_sent() {
    let input = r#"{"system":"S","conversations":[{"from":"human","value":"1"},
        {"from":"gpt","value":"2"},{"from":"observation","value":"3"},
        {"from":"bard","value":"4"}]}"#
        .replace('\n', "");
    let expected = json!([
        {"role": "system", "content": "S"}, user("1"),
        {"role": "assistant", "content": "2"}, {"role": "tool", "content": "3"},
    ]);
    assert_eq!(prompt(&input, &options()), Prompt::Messages(expected.into()));
    let input = r#"{"conversations":[{"from":"gpt","value":"1"}]}"#;
    assert_eq!(error(input, &options()).message, "conversations: there is no message to answer");
    let input = r#"{"conversations":[{"from":"martian","value":"1"}]}"#;
    let message = "conversations: turn 0 is from 'martian', which is not known";
    assert_eq!(error(input, &options()).message, message);
    let input = r#"{"conversations":[{"role":"user","content":"1"}]}"#;
    let message = "conversations: turn 0 has no `from` that is a string";
    assert_eq!(error(input, &options()).message, message);
}

#[test]
fn chat_makes_user_turns_and_takes_the_system_text() {
    let system = json!({"role": "system", "content": "S"});
    let cases = [
        (r#"{"prompt":"p"}"#, json!([user("p")])),
        (r#"{"prompt":"p","system":"S"}"#, json!([system, user("p")])),
        (r#"{"prompt":"p","system":""}"#, json!([user("p")])),
        (r#"{"prompt":"p","system":null}"#, json!([user("p")])),
        (r#"{"instruction":"Do","input":"This"}"#, json!([user("Do\nThis")])),
        (r#"{"instruction":"Do"}"#, json!([user("Do")])),
        (r#""bare""#, json!([user("bare")])),
        ("line", json!([user("line")])),
        (
            r#"{"system":"S","messages":[{"role":"user","content":"x"}]}"#,
            json!([system, user("x")]),
        ),
    ];
    for (input, messages) in cases {
        assert_eq!(prompt(input, &chat()), Prompt::Messages(messages.into()), "{input}");
    }
    assert_eq!(
        error(r#"{"prompt":"p","system":5}"#, &chat()).message,
        "system: expected text, found a number"
    );
    assert_eq!(prompt(r#"{"prompt":"p","system":5}"#, &options()), text("p"));
}

fn with_chats(chats: ChatDefaults) -> RowOptions {
    RowOptions { chats, ..options() }
}

fn last_assistant(last_assistant: LastAssistant) -> RowOptions {
    with_chats(ChatDefaults { last_assistant, ..ChatDefaults::default() })
}

/// The chat of one row.
fn made(row: &str, options: &RowOptions) -> Chat {
    match prompt(row, options) {
        Prompt::Messages(chat) => *chat,
        other => panic!("{row}: {other:?}"),
    }
}

#[test]
fn a_last_answer_is_dropped_continued_or_an_error() {
    let messages = r#""messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"},
        {"role":"assistant","content":"z"}]"#
        .replace('\n', "");
    let row = |fields: &str| format!("{{{messages}{fields}}}");
    let share_gpt =
        r#"{"conversations":[{"from":"human","value":"x"},{"from":"gpt","value":"y"}]}"#;
    let dropped = made(&row(""), &options());
    assert_eq!(dropped, json!([user("x")]).into());
    assert_eq!(made(share_gpt, &options()), json!([user("x")]).into());
    let keep = last_assistant(LastAssistant::Continue);
    for (input, num_messages) in [(row(""), 3), (share_gpt.to_owned(), 2)] {
        let kept = made(&input, &keep);
        assert_eq!(kept.messages.as_array().unwrap().len(), num_messages);
        assert_eq!(kept.ending, ChatEnding::OpenMessage);
    }
    let found = error(&row(""), &last_assistant(LastAssistant::Error));
    let message = "messages: the last message is the assistant's: nothing to answer";
    assert_eq!((found.code, found.message.as_str()), ("last_assistant", message));
    // A row's own fields win.
    let ending = |fields: &str| made(&row(fields), &options()).ending;
    assert_eq!(ending(r#","continue_final_message":true"#), ChatEnding::OpenMessage);
    assert_eq!(ending(r#","add_generation_prompt":false"#), ChatEnding::LastMessage);
    assert_eq!(ending(r#","add_generation_prompt":true"#), ChatEnding::NewTurn);
    let both = row(r#","add_generation_prompt":true,"continue_final_message":true"#);
    assert_eq!(error(&both, &options()).code, "invalid_parameter");
}

#[test]
fn a_system_prompt_is_for_chats_that_have_none() {
    let options = with_chats(ChatDefaults {
        system_prompt: Some("Be brief.".to_owned()),
        ..ChatDefaults::default()
    });
    let system = json!({"role": "system", "content": "Be brief."});
    let row = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(made(row, &options), json!([system, user("x")]).into());
    for own in ["system", "developer"] {
        let row = format!(
            r#"{{"messages":[{{"role":"{own}","content":"S"}},{{"role":"user","content":"x"}}]}}"#
        );
        assert_eq!(made(&row, &options).messages.as_array().unwrap().len(), 2, "{own}");
    }
    let field = r#"{"system":"S","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(made(field, &options).messages[0]["content"], "S");
    let chat = RowOptions { chat: ChatMode::Always, ..options.clone() };
    assert_eq!(made(r#"{"prompt":"x"}"#, &chat), json!([system, user("x")]).into());
    assert_eq!(prompt(r#"{"prompt":"x"}"#, &options), text("x"));
}

/// Python's `json.loads` keeps all digits, and so does `tojson`.
#[test]
fn large_integers_reach_the_template_with_all_digits() {
    let large = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    let row = format!(
        r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":"",
            "tool_calls":[{{"type":"function","function":{{"name":"f","arguments":"{{\"a\":-{large}}}"}}}}]}},
            {{"role":"tool","content":"y"}}],
        "tools":[{{"type":"function","function":{{"name":"f","parameters":
            {{"type":"object","properties":{{"wei":{{"type":"integer","maximum":{large}}}}}}}}}}}],
        "chat_template_kwargs":{{"n":{large},"documents":[{{"id":{large}}}]}}}}"#
    )
    .replace('\n', " ");
    let chat = made(&row, &RowOptions::default());
    // As `engine/text/integers.rs` marks them for the template.
    let marked = |digits: &str| format!("\u{F0002}{digits}");
    let maximum = "/0/function/parameters/properties/wei/maximum";
    let arguments = "/tool_calls/0/function/arguments/a";
    for (value, digits) in [
        (chat.tools.as_ref().and_then(|tools| tools.pointer(maximum)), large.to_owned()),
        (chat.messages[1].pointer(arguments), format!("-{large}")),
        (chat.documents.as_ref().and_then(|documents| documents.pointer("/0/id")), large.into()),
        (chat.kwargs.get("n"), large.into()),
    ] {
        assert_eq!(value, Some(&json!(marked(&digits))));
    }
    // Where only a number makes sense, one of any size is what it was.
    let role = format!(r#"{{"messages":[{{"role":"user","content":{large}}}]}}"#);
    assert_eq!(error(&role, &RowOptions::default()).code, "invalid_prompt");
}

#[test]
fn variables_of_the_template_are_the_rows_over_the_flags() {
    let flag = json!({"enable_thinking": true, "a": 1});
    let options = with_chats(ChatDefaults {
        template_kwargs: flag.as_object().unwrap().clone(),
        ..ChatDefaults::default()
    });
    let row =
        |fields: &str| format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
    let kwargs =
        |fields: &str, options: &RowOptions| Value::Object(made(&row(fields), options).kwargs);
    assert_eq!(
        kwargs(r#""chat_template_kwargs":{"a":2,"b":3}"#, &options),
        json!({"enable_thinking": true, "a": 2, "b": 3})
    );
    assert_eq!(
        kwargs(r#""reasoning_effort":"none""#, &RowOptions::default()),
        json!({"enable_thinking": false, "reasoning_effort": "none"})
    );
    assert_eq!(
        kwargs(r#""reasoning_effort":"none""#, &options),
        json!({"enable_thinking": true, "a": 1, "reasoning_effort": "none"})
    );
    let ends = row(r#""chat_template_kwargs":{"add_generation_prompt":false}"#);
    assert_eq!(made(&ends, &options).ending, ChatEnding::LastMessage);
    for (field, code) in [
        (r#""chat_template_kwargs":{"tokenize":false}"#, "invalid_parameter"),
        (r#""chat_template_kwargs":[]"#, "invalid_parameter"),
        (r#""chat_template_kwargs":{"tools":[{}]}"#, "invalid_parameter"),
        (r#""reasoning_effort":5"#, "invalid_parameter"),
    ] {
        assert_eq!(error(&row(field), &options).code, code, "{field}");
    }
}

#[test]
fn fields_beside_nested_messages_are_the_rows_own() {
    let column = |name: &str| RowOptions { prompt_column: Some(name.to_owned()), ..options() };
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    let tool = r#"{"type":"function","function":{"name":"f"}}"#;
    let rows = |fields: &str| {
        let flat = format!("{{{messages}{fields}}}");
        let nested = format!(r#"{{"input":{{{messages}{fields}}},"preferred_output":[]}}"#);
        let listed = format!(r#"{{"turns":[{{{messages}{fields}}}]}}"#);
        [(flat, "messages"), (nested, "input.messages"), (listed, "turns[0].messages")]
    };
    let one = |(row, name): &(String, &str)| {
        let mut rows = parse(row, &column(name)).unwrap();
        let row = rows.pop().unwrap().map_err(Box::new);
        row.map(|row| (row.prompt, row.overrides, row.answer_form))
    };
    for fields in [
        format!(r#","tools":[{tool}],"parallel_tool_calls":true"#),
        format!(r#","tools":[{tool}],"tool_choice":"required","parallel_tool_calls":false"#),
        r#","functions":[{"name":"f"}],"function_call":{"name":"f"}"#.to_owned(),
        r#","system":"S","chat_template_kwargs":{"a":1},"reasoning_effort":"low""#.to_owned(),
        r#","temperature":0,"stop":["a"],"continue_final_message":true"#.to_owned(),
    ] {
        let [flat, nested, listed] = rows(&fields).map(|row| one(&row).unwrap());
        assert!(flat == nested && flat == listed, "{fields}");
        assert_ne!(flat, one(&rows("")[0]).unwrap(), "{fields}");
    }
    // Refused by name, as beside messages of the row itself.
    for (fields, code) in [
        (format!(r#","tools":[{tool},{{"type":"web"}}]"#), "unsupported_field"),
        (r#","tool_choice":"required""#.to_owned(), "invalid_parameter"),
        (r#","guided_json":{}"#.to_owned(), "unsupported_field"),
    ] {
        for row in rows(&fields) {
            assert_eq!(one(&row).unwrap_err().error.code, code, "{row:?}");
        }
    }
    // Whoever does not name them is told how.
    let (_, help) = refusal(InputFormat::Jsonl, &rows("")[1].0, &options());
    assert_eq!(help, "name the field with the chat: --prompt-column input.messages");
    // What the row has itself counts more.
    let row = format!(r#"{{"input":{{{messages},"temperature":1}},"temperature":0}}"#);
    let flat = format!(r#"{{{messages},"temperature":0}}"#);
    let own = one(&(row, "input.messages")).unwrap();
    assert_eq!(own.1, one(&(flat, "messages")).unwrap().1);
    // Texts are no requests, and data are no parameters.
    let text = r#"{"a":{"text":"x","temperature":0,"tools":7}}"#;
    assert_eq!(one(&(text.to_owned(), "a.text")).unwrap().1, Overrides::none());
}
