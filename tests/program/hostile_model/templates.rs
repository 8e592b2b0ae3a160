//! Chat templates that do not end, fill memory or the stack, or look for other files: they cost a
//! row, or are refused.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use vllm_batch::engine::text::{ChatOptions, ChatTemplate, TextError};

use super::{Folder, Run, chat};

/// Each makes error rows and nothing else.
const FAILING: &[&str] = &[
    // Steps.
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}",
    "{% for a in [1] * 99999999 %}{% endfor %}",
    "{{ range(999999999) | list }}",
    // Nesting.
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('ab') }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for x in [[1]] recursive %}{{ loop([[x]]) }}{% endfor %}",
    // Constants, which are known when the template is compiled.
    "{{ ['a'] * 99999999 + 'x' * 99999999 }}",
    "{{ (('a' * 9999) * 9999)|length }}{{ (('b' * 9999) * 9999)|length }}",
    // Output.
    "{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}",
    "{% for a in range(99999) %}{{ messages }}{{ 'a long enough text' * 50 }}{% endfor %}",
    // Texts.
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ 'x' * 99999999999 }}",
    "{{ 'x' * 9223372036854775807 }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = '%s%s'|format(ns.x, ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='\\\\') %}{% for i in range(60) %}{% set ns.x = ns.x|tojson %}{% endfor %}",
    "{% set ns = namespace(x='<') %}{% for i in range(99999) %}{% set ns.x = ns.x ~ ns.x|e %}{% endfor %}",
    "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['x' * 9999999] %}{% endfor %}",
    "{% filter upper %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endfilter %}",
    "{{ ('a' * 9999999)|replace('a', 'b' * 9999999) }}",
    "{{ ('a' * 9999999)|replace('', 'b' * 9999999) }}",
    "{{ ('a' * 9999999).replace('a', 'b' * 9999999) }}",
    "{{ ('b' * 9999999).join(['a'] * 99999) }}",
    "{{ (['a' * 9999999] * 99999)|join }}",
    "{{ (['a' * 9999999] * 99999)|string }}",
    "{{ (['a' * 9999999] * 99999)|upper }}",
    "{{ (['a' * 9999999] * 99999)|tojson }}",
    "{{ (['a' * 9999999] * 99999)|pprint }}",
    "{{ (['a' * 9999999] * 99999) ~ '' }}",
    "{{ (['a' * 9999999] * 99999)|map('upper')|list }}",
    // Widths.
    "{{ ''.ljust(99999999999) }}",
    "{{ 'x'|indent(99999999999) }}",
    "{{ 'x'|indent(width=99999999999) }}",
    "{{ 'x'|center(99999999999) }}",
    "{{ '%099999999999d'|format(1) }}",
    "{{ '%.99999999999f'|format(1.5) }}",
    "{{ '{:099999999999}'.format(1) }}",
    "{{ strftime_now('%c' * 9999) }}",
    // Lists.
    "{{ [1] * 99999999999 }}",
    "{{ (['a'] * 99999999)|list|length }}",
    "{{ (['a'] * 99999999)|sort }}",
    "{{ (1,) * 99999999 }}",
    "{{ [1]|batch(99999999999, 0)|list }}",
    "{{ [1]|slice(99999999999)|list }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}",
    // Other files, and Python's insides.
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% from 'x' import y %}",
    "{% extends 'base' %}",
    "{{ messages.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    // What is not there, or not possible.
    "{{ nothing() }}",
    "{{ messages|nothing }}",
    "{{ messages is nothing }}",
    "{{ missing.attribute }}",
    "{{ raise_exception('no') }}",
    "{{ 'x'[::0] }}",
    "{{ 1 // 0 }}",
    "{{ 99999999999999999999 ** 99999999 }}",
    "{{ 1.5|round(99999999999) }}",
    // What counts is not to be replaced.
    "{% set __read__ = 1 %}{% set __factors__ = dict %}{{ 'a' * 99999999 }}",
];

fn render(source: &str) -> Result<String, TextError> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    ChatTemplate::new(source, Some("<s>"), None)?.render(&messages, &ChatOptions::default())
}

#[test]
fn every_hostile_template_makes_an_error_row() {
    for source in FAILING {
        match render(source) {
            Err(TextError::Row { code: "chat_template", message }) => {
                assert!(message.len() < 1000, "{source}: {} bytes", message.len());
            }
            other => panic!("{source}: {:.200}", format!("{other:?}")),
        }
    }
}

/// Sources that are nested as deep as the parser's stack, or deeper.
#[test]
fn templates_that_are_nested_too_deep_are_refused_or_rendered() {
    let repeated = |before: &str, what: &str, after: &str| {
        format!("{}{what}{}", before.repeat(20_000), after.repeat(20_000))
    };
    for (source, wanted) in [
        (format!("{{{{ {} }}}}", repeated("(", "1", ")")), None),
        (format!("{{{{ {} }}}}", repeated("[", "1", "]")), None),
        (format!("{{{{ {} }}}}", repeated("-", "1", "")), Some("1")),
        (format!("{{{{ {} }}}}", repeated("not ", "1", "")), Some("True")),
        (format!("{{{{ {} }}}}", repeated("1+", "1", "")), None),
        (format!("{{{{ 'a'{} }}}}", repeated("|upper", "", "")), Some("A")),
        (format!("{{{{ x is defined and x{} }}}}", repeated(".a", "", "")), Some("False")),
        (format!("{{{{ 0{} }}}}", repeated("-0", "", "")), None),
        (format!("{{{{ messages{} }}}}", repeated(" and 1", "", "")), None),
        (format!("{{{{ 1 {} }}}}", repeated("if 1 else ", "1", "")), None),
        (format!("{{{{ 1{} }}}}", "+1".repeat(1000)), Some("1001")),
        (repeated("{% if 1 %}", "x", "{% endif %}"), None),
        (repeated("{% for a in [1] %}", "x", "{% endfor %}"), None),
        ("{{ 1 }}".repeat(100_000), None),
        ("x".repeat(300 << 10), None),
    ] {
        match (render(&source), wanted) {
            (Ok(text), Some(wanted)) => assert_eq!(text, wanted, "{source:.40}"),
            (Ok(text), None) => panic!("{source:.40}: {text:.40}"),
            (Err(error), _) => assert!(error.to_string().len() < 1000, "{source:.40}"),
        }
    }
}

/// Dropping or printing a value takes stack for each of its levels.
#[test]
fn values_may_be_nested_up_to_a_limit() {
    let nested = |times: usize, what: &str| {
        format!(
            "{{% set ns = namespace(l=[]) %}}{{% for i in range({times}) %}}{{% set ns.l = {what} %}}\
             {{% endfor %}}"
        )
    };
    let lists = nested(300, "[ns.l]");
    assert!(render(&(lists.clone() + "{{ ns.l }}")).is_ok_and(|text| text.len() == 602));
    assert!(render(&(lists.clone() + "{{ ns.l ~ '' }}")).is_ok_and(|text| text.len() == 602));
    assert_eq!(render(&(lists.clone() + "{{ ns.l == [ns.l] }}")).unwrap(), "False");
    let error = render(&(lists + "{{ ns.l|tojson }}")).unwrap_err().to_string();
    assert!(error.contains("nested too deeply"), "{error}");
    for what in [
        "[ns.l]",
        "{'a': ns.l}",
        "(ns.l,)",
        "dict(a=ns.l)",
        "[ns.l]|batch(1)|list",
        "[ns.l]|groupby('x')",
        "{'a': ns.l}.copy()",
    ] {
        let error = render(&(nested(500, what) + "done")).unwrap_err().to_string();
        assert!(error.contains("nests its values too deeply"), "{what}: {error}");
    }
    let error = render(&nested(2, "namespace(a=ns)")).unwrap_err().to_string();
    assert!(error.contains("a namespace into a namespace"), "{error}");
}

/// The stack of the thread that renders fits where address space is scarce.
#[cfg(target_os = "linux")]
#[test]
fn chat_rows_are_answered_under_a_limit_of_address_space() {
    let folder = Folder::new();
    folder.write("chat_template.jinja", "{{ messages[0].content }}");
    fs::write(folder.path().join("in.jsonl"), format!("{}\n", chat("a b"))).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 900000; exec \"$@\"", "sh"]);
    command.arg(assert_cmd::cargo::cargo_bin!("vllm-batch")).current_dir(folder.path());
    command.args(["run", "--model", "./model", "-i", "in.jsonl", "--device", "cpu", "-qq"]);
    command.args(["--threads", "1", "--kv-cache-memory-bytes", "8MiB", "--max-tokens", "4"]);
    let run = Run::of(&mut command);
    assert_eq!((run.code, run.codes()), (Some(0), vec![String::new()]), "{}", run.stderr);
}

#[test]
fn templates_that_are_only_large_are_rendered() {
    for (source, wanted) in [
        ("{% for i in range(100) %}{{ i }}{% endfor %}", "0123456789"),
        (
            "{% set ns = namespace(x='') %}{% for i in range(9999) %}{% set ns.x = ns.x ~ 'x' %}{% endfor %}{{ ns.x }}",
            "xxx",
        ),
        (
            "{{ 'ab' * 3 }}{{ 3 * 'ab' }}{{ [1] * 2 + [2] }}{{ 2 * 3 + 4 }}",
            "abababababab[1, 1, 2]10",
        ),
        (
            "{{ 'a' in 'cat' }}{{ 'x' not in ['y'] }}{{ 1 < 2 < 3 }}{{ 2 == 2.0 }}",
            "TrueTrueTrueTrue",
        ),
        ("{% if 'a' ~ 'b' == 'ab' and not 1 > 2 %}y{% else %}n{% endif %}", "y"),
        ("{{ ['b', 'a']|sort|join(', ') }}{{ '-'.join(['x', 'y']) }}", "a, bx-y"),
        (
            "{% macro f(a, b='c') %}[{{ a ~ b }}]{% endmacro %}{{ f(1) }}{% macro g() %}{{ caller() }}{% endmacro %}{% call g() %}[2c]{% endcall %}",
            "[1c][2c]",
        ),
    ] {
        let text = render(source).unwrap();
        assert!(text.starts_with(wanted), "{source}: {text:.40}");
    }
}

#[test]
fn templates_that_do_not_compile_are_refused() {
    let folder = Folder::new();
    for source in ["{% for", "{{", "{% endif %}", "{{ x | }}", "{% macro %}", "{% nothing %}"] {
        fs::write(folder.path().join("t.jinja"), source).unwrap();
        let run = folder.run(&[chat("hi")], &["--chat-template", "t.jinja"]);
        run.assert_refused(source, "chat template");
        folder.write("chat_template.jinja", source);
        folder.run(&[chat("hi")], &[]).assert_refused(source, "chat_template.jinja");
    }
}

/// Each fifth of the table through the program, with rows that need none of it among them.
#[test]
fn hostile_templates_cost_the_rows_that_meet_them() {
    let folder = Folder::new();
    let mut source = String::new();
    let mut rows: Vec<Value> = Vec::new();
    for (index, hostile) in FAILING.iter().enumerate().skip(1).step_by(5) {
        // These are resolved when the template is compiled, or for every row.
        if ["{% extends", "nothing", "__read__"].iter().any(|word| hostile.contains(word)) {
            continue;
        }
        let branch = if source.is_empty() { "if" } else { "elif" };
        source += &format!("{{% {branch} messages[0].content == 'row {index}' %}}{hostile}");
        rows.push(chat(&format!("row {index}")));
    }
    source += "{% else %}{{ messages[0].content }}{% endif %}";
    rows.insert(3, chat("a b"));
    rows.push(chat("a b"));
    folder.write("chat_template.jinja", source);
    let run = folder.run(&rows, &[]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    let answered: Vec<usize> = run
        .codes()
        .iter()
        .enumerate()
        .filter_map(|(index, code)| (code != "chat_template").then_some(index))
        .collect();
    assert_eq!(answered, [3, rows.len() - 1]);
    assert_eq!(run.rows[3]["response"], run.rows[rows.len() - 1]["response"]);
}
