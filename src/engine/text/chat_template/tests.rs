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

/// A machine without threads says nothing about a row or a model.
#[test]
fn a_refused_thread_is_no_fault_of_the_row_and_asked_for_again() {
    let sources = vec![(DEFAULT, "{{ messages[0].content }}".to_string())];
    let mut template =
        ChatTemplate::compile(sources, BTreeMap::new(), usize::MAX >> 16).expect("tolerated");
    let render = |template: &ChatTemplate| {
        template.render(&json!([{"role": "user", "content": "hi"}]), &ChatOptions::default())
    };
    let error = render(&template).expect_err("no thread");
    assert!(matches!(&error, TextError::Machine(text) if text.contains("ulimit")), "{error:?}");
    template.stack_bytes = STACK_BYTES;
    assert_eq!(render(&template).as_deref(), Ok("hi"));
}

/// minijinja 3.0.5 divides by the number of arguments.
#[test]
fn a_panic_costs_one_row() {
    let source = "{% if messages[0].content == 'x' %}{% for i in [1] %}{{ loop.cycle() }}\
                  {% endfor %}{% endif %}y";
    let template = ChatTemplate::new(source, None, None).expect("compiles");
    let render = |text: &str| {
        template.render(&json!([{"role": "user", "content": text}]), &ChatOptions::default())
    };
    for _ in 0..3 {
        let error = render("x").expect_err("it panics");
        assert!(matches!(&error, TextError::Row { message, .. } if message.contains("failed on")));
        assert_eq!(render("a").as_deref(), Ok("y"));
    }
}

/// Templates that ask for work without an end, and those that an attack on the program was made of.
/// What ends them is counted: a template whose work is not counted hangs here.
#[test]
fn hostile_templates_end_within_the_budget() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/hostile_templates.json");
    let corpus = std::fs::read_to_string(corpus).expect("a readable file");
    let mut corpus: Map<String, Value> = serde_json::from_str(&corpus).expect("whole");
    for (name, part, times) in [
        ("text", "a", 2_000_000),
        ("if", "{% if 1 %}", 200_000),
        ("brackets", "{{ (", 100_000),
        ("not", "not ", 60_000),
        ("plus", "1+", 100_000),
        ("filters", "|upper", 40_000),
        ("dots", ".b", 100_000),
    ] {
        let source = match part {
            part if part.starts_with(['{', 'a']) => part.repeat(times),
            part => format!("{{{{ a{} 1 }}}}", part.repeat(times)),
        };
        corpus.insert(format!("source of {name}"), Value::String(source));
    }
    assert!(corpus.len() > 100);
    for (name, source) in &corpus {
        let source = source.as_str().expect("a template");
        if let Err(error) = render(source) {
            assert!(error.to_string().len() < 2100, "{name}: {error}");
        }
    }
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
