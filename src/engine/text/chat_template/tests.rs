//! Tests of chat templates against cases rendered by transformers' rules.

use serde_json::json;

use super::*;

fn render(source: &str) -> Result<String, TextError> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    ChatTemplate::new(source, Some("<s>"), None)?.render(&messages, &ChatOptions::default())
}

#[test]
fn hostile_templates_end_with_an_error() {
    let hostile = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ range(999999999) | list }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'x' import y %}",
        "{% extends 'base' %}",
        "{{ ''.ljust(99999999999) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x'[::0] }}",
        "{{ 1 // 0 }}",
        "{{ missing.attribute }}",
        "{{ raise_exception('no') }}",
    ];
    for source in hostile {
        let start = std::time::Instant::now();
        let result = render(source);
        assert!(result.is_err(), "{source}: {:.80}", result.unwrap_or_default());
        // That it ends is the point, not how fast: the machine may be busy.
        assert!(start.elapsed().as_secs() < 60, "{source} took {:?}", start.elapsed());
    }
}

/// Deep nesting that compiles must not overflow a thread's 2 MiB stack.
#[test]
fn recursion_is_refused_before_the_stack_ends() {
    let source = "{% macro f(n) %}{% if n %}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(1) }}";
    let run = move || render(source).expect_err("an error").to_string();
    let error =
        std::thread::Builder::new().stack_size(2 << 20).spawn(run).expect("a thread").join();
    assert!(error.expect("no overflow").contains("recursion"));
}

#[test]
fn errors_say_what_the_template_says() {
    let error = render("x\n{{ raise_exception('Only users may ' ~ messages[0].role) }}");
    let error = error.expect_err("an error").to_string();
    assert_eq!(error, "Only users may user (line 2 of the template)");
    assert!(matches!(render("{% for"), Err(TextError::Model(_))));
    assert!(matches!(render("{{ a.b }}"), Err(TextError::Row { code: "chat_template", .. })));
}

#[test]
fn messages_must_be_a_list_of_objects() {
    let template = ChatTemplate::new("x", None, None).expect("a template");
    for messages in [json!([]), json!("hi"), json!(["hi"]), json!({"role": "user"})] {
        assert!(template.render(&messages, &ChatOptions::default()).is_err(), "{messages}");
    }
}

#[test]
fn the_date_is_the_runs() {
    let template =
        ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", None, None).expect("compiles");
    let now = RunDate::parse("2026-11-20").expect("a date");
    let options = ChatOptions { now, ..ChatOptions::default() };
    let text = template.render(&json!([{"role": "user"}]), &options).expect("renders");
    assert_eq!(text, "20 Nov 2026");
}

#[test]
fn files_of_a_folder_are_tried_in_transformers_order() {
    let tokenizer = super::super::tokenizer::tests::byte_fallback();
    let dir = tempfile::tempdir().expect("a folder");
    let write =
        |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    let rendered = |tools: Option<Value>| {
        let template = ChatTemplate::from_dir(dir.path(), &tokenizer).expect("readable");
        let options = ChatOptions { tools, ..ChatOptions::default() };
        template.map(|t| t.render(&json!([{"role": "user"}]), &options).expect("renders"))
    };
    assert_eq!(rendered(None), None);
    write("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    assert_eq!(rendered(None).as_deref(), Some("config"));
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ bos_token }}"}]}"#,
    );
    assert_eq!(rendered(None).as_deref(), Some("<s>"));
    assert_eq!(rendered(Some(json!([]))).as_deref(), Some("tools"));
    let named = r#"{"chat_template": {"default": "named", "tool_use": "tools"}}"#;
    write("tokenizer_config.json", named);
    assert_eq!(rendered(None).as_deref(), Some("named"));
    write("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(rendered(None).as_deref(), Some("named"));
    write("tokenizer_config.json", r#"{"chat_template": null}"#);
    assert_eq!(rendered(None).as_deref(), Some("json"));
    write("chat_template.jinja", "jinja\n");
    assert_eq!(rendered(None).as_deref(), Some("jinja"));
}
