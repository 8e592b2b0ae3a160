//! Answers' parts against vLLM's own parsers: testdata/answers.json (see
//! testdata/generate_answers.py), and what is meant to be otherwise.

use std::time::Duration;

use serde_json::Value;
use vllm_batch::engine::text::{AnswerForm, AnswerParser, ParsedAnswer, Tool, ToolChoice};

/// A text, and by which parser.
type Case<'a> = (&'a str, &'a str);

/// Texts with a call that is cut, is not JSON or is no call at all. They stay content as they are.
/// vLLM drops them in part, or calls the function with the arguments that are there.
const STAY_TEXT: &[Case<'_>] = &[
    ("hermes", r#"<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>"#),
    ("hermes", r#"<tool_call>{"name": "now", "arguments": {"x": 1e999}}</tool_call>"#),
    ("granite4", r#"<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>"#),
    ("granite4", r#"<tool_call>{"name": "now", "arguments": {"x": 1e999}}</tool_call>"#),
    ("mistral", r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}"#),
    ("mistral", "[TOOL_CALLS] ["),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral", r#"[TOOL_CALLS] [{"arguments": {}}]"#),
    ("mistral", "[TOOL_CALLS] text"),
    ("mistral", r#"[TOOL_CALLS]get_weather{"city": "Ro"#),
    ("mistral", "[TOOL_CALLS]get_weather"),
    ("mistral", r#"[TOOL_CALLS]now{"a": 1} Done."#),
    ("pythonic", "[now(x=--1)]"),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRo"),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"),
    ("qwen3_coder", "<tool_call>\n<function=get_wea"),
    ("qwen3_coder", "<tool_call>\n"),
    ("qwen3_coder", "<tool_call></tool_call>"),
    ("qwen3_coder", "<tool_call>\nnonsense\n</tool_call>"),
    ("granite", r#"<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Rome"}}"#),
    ("granite", r#"<|tool_call|> {"name": "get_weather", "arguments": {"city": "Rome"}}"#),
    ("granite", "<|tool_call|>"),
    ("granite", "<|tool_call|> []"),
    ("granite", r#"<tool_call> [{"name": "get_weather", "arguments": {"city": "Rome"}}"#),
    ("granite", r#"<tool_call> {"name": "get_weather", "arguments": {"city": "Rome"}}"#),
    ("granite", "<tool_call>"),
    ("granite", "<tool_call> []"),
    ("jamba", "<tool_calls>[]</tool_calls>"),
    ("phi4_mini_json", "functools[]"),
    ("phi4_mini_json", "functools[bad]"),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n\
         ```json\n{\"city\": \"Rome\"}\n",
    ),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>"),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
         <|tool_call_argument_begin|>{\"city\": \"R",
    ),
    ("kimi_k2", "<|tool_calls_section_begin|>"),
    ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"),
    ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n"),
    ("glm45", "<tool_call>unknown</tool_call>"),
    ("glm45", "<tool_call>"),
];

/// Texts whose calls are read otherwise: what for, and the calls.
const READ_OTHERWISE: &[(Case<'_>, &str, &[Case<'_>])] = &[
    (
        (
            "llama3_json",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}\
             {\"name\": \"now\", \"arguments\": {}}",
        ),
        "vLLM overlooks an object right after another",
        &[("get_weather", r#"{"city": "Rome"}"#), ("now", "{}")],
    ),
    (
        (
            "hermes",
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"tag\": \"</tool_call>\"}}\
             </tool_call>",
        ),
        "vLLM ends the call at the tag in its string",
        &[("now", r#"{"tag": "</tool_call>"}"#)],
    ),
    (
        (
            "granite4",
            "<tool_call>{\"name\": \"now\", \"arguments\": {\"tag\": \"</tool_call>\"}}\
             </tool_call>",
        ),
        "the same",
        &[("now", r#"{"tag": "</tool_call>"}"#)],
    ),
    (
        (
            "mistral",
            "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}]\
             [TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}]",
        ),
        "vLLM drops all lists but the first",
        &[("get_weather", r#"{"city": "Rome"}"#), ("now", "{}")],
    ),
    (("pythonic", "[a.b.c(x=1)]"), "a name may have dots", &[("a.b.c", r#"{"x": 1}"#)]),
    (("pythonic", "[now(), ]"), "Python allows a last comma", &[("now", "{}")]),
    (
        ("olmo3", "Let me see.\n<function_calls>now()</function_calls>"),
        "vLLM drops the text before the tag",
        &[("now", "{}")],
    ),
    (("pythonic", " [now()]"), "white space is no text", &[("now", "{}")]),
    (
        (
            "qwen3_coder",
            "<tool_call>\n<function=search>\n<parameter=query>a\n</function>\n</tool_call>",
        ),
        "vLLM drops a parameter without its end tag",
        &[("search", r#"{"query": "a"}"#)],
    ),
    (
        (
            "qwen3_coder",
            "<tool_call><function=now></tool_call><tool_call>\n<function=get_weather>\n\
             <parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        ),
        "vLLM gives a function without its end tag the parameters of the next",
        &[("now", "{}"), ("get_weather", r#"{"city": "Rome"}"#)],
    ),
    (
        (
            "granite",
            "<|tool_call|> [{\"arguments\": {\"score\": 1e3, \"limit\": 1.0, \"days\": -7}, \
             \"name\": \"search\"}]",
        ),
        "JSON stays as the model wrote it, whatever the schema says",
        &[("search", r#"{"score": 1e3, "limit": 1.0, "days": -7}"#)],
    ),
    (
        (
            "granite",
            "<tool_call> [{\"arguments\": {\"score\": 1e3, \"limit\": 1.0, \"days\": -7}, \
             \"name\": \"search\"}]",
        ),
        "the same",
        &[("search", r#"{"score": 1e3, "limit": 1.0, "days": -7}"#)],
    ),
    (
        (
            "phi4_mini_json",
            "functools[{\"name\": \"search\", \"arguments\": {\"query\": \"a } { \\\" b\", \
             \"filters\": {\"x\": {\"y\": [1, {}]}}}}]",
        ),
        "vLLM ends the list at the first bracket, also inside arguments",
        &[("search", r#"{"query": "a } { \" b", "filters": {"x": {"y": [1, {}]}}}"#)],
    ),
];

/// Reasoning parsers, and texts with an end tag within a call: vLLM drops the tag.
const ENDS_IN_CALLS: &[Case<'_>] = &[
    ("qwen3", "one<tool_call>two</think>three"),
    ("step3p5", "one<tool_call>two</think>three"),
    ("glm45", "one<tool_call>two</think>three"),
    ("kimi_k2", "one<|tool_calls_section_begin|>two</think>three"),
    ("seed_oss", "one<seed:tool_call>two</seed:think>three"),
    ("mistral", "one[TOOL_CALLS]two[/THINK]three"),
];

/// A start tag after the thinking is text: vLLM drops all that is before it.
const LATE_START: &str = "one</think>the tag <think> is text";

fn goldens() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/answers.json");
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_slice(&bytes).expect("JSON")
}

fn tools(goldens: &Value) -> Vec<Tool> {
    let tool = |tool: &Value| Tool {
        name: tool["name"].as_str().expect("a name").to_owned(),
        parameters: tool["parameters"].clone(),
    };
    goldens["tools"].as_array().expect("tools").iter().map(tool).collect()
}

/// Names of the parsers of a case. vLLM chooses between Mistral's forms by the vocabulary.
fn names(case: &Value) -> (&str, &str) {
    let tool_calls = case["tool_calls"].as_str().unwrap_or("none");
    let tool_calls = tool_calls.strip_suffix("_v11").unwrap_or(tool_calls);
    (case["reasoning"].as_str().unwrap_or("none"), tool_calls)
}

fn parser(reasoning: &str, tool_calls: &str) -> AnswerParser {
    AnswerParser::new(reasoning, tool_calls, None).expect("known names")
}

/// Function and arguments, of which white space does not count.
fn calls(answer: &ParsedAnswer) -> Vec<(String, Value)> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    answer.tool_calls.iter().map(|call| (call.name.clone(), value(&call.arguments))).collect()
}

fn expected_calls(list: &[Case<'_>]) -> Vec<(String, Value)> {
    let value = |text: &str| serde_json::from_str(text).expect("JSON");
    list.iter().map(|(name, arguments)| ((*name).to_owned(), value(arguments))).collect()
}

/// Whether an answer is vLLM's. Arguments that are no JSON are never ours.
fn is_vllms(answer: &ParsedAnswer, vllm: &Value) -> bool {
    let theirs = vllm["calls"].as_array().into_iter().flatten().map(|call| {
        let arguments = serde_json::from_str(call[1].as_str().expect("arguments"));
        Some((call[0].as_str().expect("a name").to_owned(), arguments.ok()?))
    });
    answer.reasoning.as_deref() == vllm["reasoning"].as_str()
        && answer.content.as_deref() == vllm["content"].as_str()
        && theirs.collect::<Option<Vec<_>>>().is_some_and(|theirs| theirs == calls(answer))
}

#[test]
fn parsers_give_what_vllms_give_or_differ_as_listed() {
    let goldens = goldens();
    let tools = tools(&goldens);
    let (mut num_cases, mut num_listed, mut wrong) = (0, 0, Vec::new());
    for case in goldens["cases"].as_array().expect("cases") {
        let (reasoning, tool_calls) = names(case);
        let text = case["text"].as_str().expect("a text");
        let thinking = case["thinking"].as_bool();
        let form = AnswerForm {
            tools: tools.clone(),
            tool_choice: ToolChoice::Auto,
            thinking,
            ..AnswerForm::default()
        };
        let answer = parser(reasoning, tool_calls).parse(text, &form);
        let listed = READ_OTHERWISE.iter().find(|(known, ..)| *known == (tool_calls, text));
        let expected = match listed {
            Some((.., expected)) => {
                let content = answer.content.as_deref();
                content.is_none_or(|content| text.starts_with(content))
                    && calls(&answer) == expected_calls(expected)
            }
            None if STAY_TEXT.contains(&(tool_calls, text)) => {
                answer.content.as_deref() == Some(text) && answer.tool_calls.is_empty()
            }
            None if (reasoning, text) == ("deepseek_r1", LATE_START) => {
                let parts = (answer.reasoning.as_deref(), answer.content.as_deref());
                parts == (Some("one"), Some("the tag <think> is text"))
            }
            None if ENDS_IN_CALLS.contains(&(reasoning, text)) => {
                let content = answer.content.as_deref().unwrap_or_default();
                let thinking = answer.reasoning.as_deref().unwrap_or_default();
                text == format!("{thinking}{content}")
            }
            None => {
                num_cases += 1;
                is_vllms(&answer, &case["vllm"])
            }
        };
        let differs = !is_vllms(&answer, &case["vllm"]);
        num_listed += usize::from(expected && differs);
        if !expected {
            wrong.push(format!("{reasoning} {tool_calls} {text:?}\n{answer:?}\n{}", case["vllm"]));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(num_cases >= 400, "only {num_cases} cases");
    // `[TOOL_CALLS]` alone is there for both of Mistral's forms. A difference that vLLM no longer
    // has is to be taken off the lists.
    assert_eq!(num_listed, STAY_TEXT.len() + READ_OTHERWISE.len() + ENDS_IN_CALLS.len() + 2);
}

#[test]
fn every_beginning_of_an_answer_is_parsed() {
    let goldens = goldens();
    let form = AnswerForm {
        tools: tools(&goldens),
        tool_choice: ToolChoice::Auto,
        ..AnswerForm::default()
    };
    let mut num_parsed = 0;
    for case in goldens["cases"].as_array().expect("cases") {
        let (reasoning, tool_calls) = names(case);
        let parser = parser(reasoning, tool_calls);
        let text = case["text"].as_str().expect("a text");
        for (at, _) in text.char_indices() {
            let answer = parser.parse(&text[..at], &form);
            // Whatever is a call has arguments that can be read.
            calls(&answer);
            num_parsed += 1;
        }
    }
    assert!(num_parsed > 20_000, "only {num_parsed} texts");
}

/// Parsers, what a text begins with, and what it repeats: each would take a search of the rest of
/// the text for every repetition.
const HOSTILE: &[(&str, &str, &str, &str)] = &[
    ("none", "hermes", "", "<tool_call>"),
    ("none", "hermes", "", "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>"),
    ("none", "hermes", "<tool_call>", "{\"name\":"),
    ("none", "llama3_json", "", "{"),
    ("none", "llama3_json", "", "{\"name\":\"a\",\"parameters\":{}}"),
    ("none", "mistral", "", "[TOOL_CALLS]"),
    ("none", "mistral", "[TOOL_CALLS]", "[{"),
    ("none", "pythonic", "[a(b=", "("),
    ("none", "pythonic", "[", "a(b='"),
    ("none", "pythonic", "[", "x(),"),
    ("none", "qwen3_coder", "", "<function=a></tool_call>"),
    ("none", "qwen3_coder", "<function=a>", "<parameter="),
    ("none", "qwen3_coder", "<function=a>", "< "),
    ("none", "qwen3_coder", "", "<tool_call><function=a>"),
    ("none", "granite", "", "<tool_call>[]"),
    ("none", "jamba", "", "<tool_calls>"),
    ("none", "phi4_mini_json", "", "functools["),
    ("none", "xlam", "", "```"),
    ("none", "xlam", "", "[TOOL_CALLS]"),
    ("none", "deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    ("none", "kimi_k2", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    ("none", "glm45", "<tool_call>a", "<arg_key>"),
    ("none", "glm45", "<tool_call>a", "<arg_key>b</arg_key><arg_value>c</arg_value>d"),
    ("none", "qwen3_coder", "<function=a>", "<parameter=b>c</parameter>d"),
    ("none", "qwen3_coder", "", "<function=a><parameter=b></function>c"),
    ("none", "mistral", "", "[TOOL_CALLS]a[CALL_ID]b"),
    ("none", "mistral", "", "[TOOL_CALLS]a{}"),
    ("none", "jamba", "<tool_calls>", "[\""),
    ("none", "openai", "", "to=functions.f<|message|>{\"a\":\"<|call|>"),
    (
        "none",
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0",
        "<|tool_call_argument_begin|>",
    ),
    ("none", "openai", "", "<|channel|>"),
    ("none", "openai", "", "<|message|>"),
    ("deepseek_r1", "none", "", "<think>"),
    ("qwen3", "none", "</think>", "<think>"),
    ("mistral", "none", "", "[THINK]"),
    ("granite", "none", "", "Here is my thought process:"),
    ("none", "granite4", "", "<tool_call>"),
    ("none", "olmo3", "", "x(),"),
];

#[test]
fn time_grows_with_the_length_of_an_answer_and_not_with_its_square() {
    let form = AnswerForm { tool_choice: ToolChoice::Auto, ..AnswerForm::default() };
    let time = |parser: &AnswerParser, text: &str| -> Duration {
        let begin = time_on_cpu();
        parser.parse(text, &form);
        time_on_cpu() - begin
    };
    for (reasoning, tool_calls, head, unit) in HOSTILE {
        let parser = parser(reasoning, tool_calls);
        let text = |num_bytes: usize| format!("{head}{}", unit.repeat(num_bytes / unit.len()));
        let (short, long) = (text(32 << 10), text(256 << 10));
        // Eight times the length, and 64 times the time if it were quadratic: seconds. The system
        // counts in some milliseconds.
        let (of_long, of_short) = (time(&parser, &long), time(&parser, &short));
        let is_linear = of_long < 24 * of_short + Duration::from_millis(200);
        assert!(
            is_linear,
            "{reasoning} {tool_calls} {head:?} {unit:?}: {of_short:?} and {of_long:?}"
        );
    }
}

/// What this thread has had of processors: other processes do not count.
fn time_on_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    let nanoseconds = stat.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.expect("nanoseconds come first"))
}

/// A string that has every tag of every form in it, as JSON and as plain text.
const TAGS: &str = "a </seed:tool_call> </tool_call> <tool_call> [TOOL_CALLS] [ARGS] [CALL_ID] \
                    </tool_calls> <|action_end|> <|tool_call_end|> <|tool_call_begin|> \
                    <|tool_calls_section_end|> <｜tool▁call▁end｜> <｜tool▁call▁begin｜> \
                    <｜tool▁sep｜> ```json ``` </function_calls> <|python_end|> </arg_value> \
                    </function> </parameter> <|call|> <|end|> <|start|> </think> <think> [THINK] \
                    [/THINK] functools[ }] ]} [{ b";

/// Parsers, a text with calls of `f` whose argument `s` is `TAGS`, and how many it has: two where
/// a form has several.
fn calls_with_tags() -> Vec<(&'static str, &'static str, String, usize)> {
    let object = serde_json::json!({"s": TAGS}).to_string();
    let (call, with_parameters) = (
        format!("{{\"name\": \"f\", \"arguments\": {object}}}"),
        format!("{{\"name\": \"f\", \"parameters\": {object}}}"),
    );
    let twice = |text: String| format!("{text}\n{text}");
    let python = format!("f(s={object})").replace("{\"s\":", "").replace("\"})", "\")");
    let qwen = format!("<function=f>\n<parameter=s>\n{TAGS}\n</parameter>\n</function>");
    let deepseek = |call: String| format!("<｜tool▁calls▁begin｜>{call}{call}<｜tool▁calls▁end｜>");
    let kimi = format!(
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{object}<|tool_call_end|>"
    );
    let glm =
        format!("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>{TAGS}</arg_value>\n</tool_call>");
    vec![
        ("none", "hermes", twice(format!("<tool_call>\n{call}\n</tool_call>")), 2),
        ("qwen3", "hermes", twice(format!("x</think><tool_call>\n{call}\n</tool_call>")), 2),
        ("none", "granite4", twice(format!("<tool_call>{call}</tool_call>")), 2),
        ("none", "llama3_json", twice(with_parameters.clone()), 2),
        ("none", "mistral", format!("[TOOL_CALLS] [{call}, {call}]"), 2),
        ("none", "mistral", twice(format!("[TOOL_CALLS]f[ARGS]{object}")), 2),
        ("mistral", "mistral", twice(format!("[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{object}")), 2),
        ("none", "pythonic", format!("[{python}, {python}]"), 2),
        ("none", "llama4_pythonic", format!("<|python_start|>[{python}]<|python_end|>"), 1),
        ("none", "olmo3", format!("<function_calls>{python}\n{python}</function_calls>"), 2),
        ("none", "qwen3_coder", twice(format!("<tool_call>\n{qwen}\n</tool_call>")), 2),
        ("step3p5", "step3p5", format!("x</think><tool_call>\n{qwen}\n</tool_call>"), 1),
        ("seed_oss", "seed_oss", format!("<seed:tool_call>\n{qwen}\n</seed:tool_call>"), 1),
        ("none", "granite", format!("<|tool_call|>[{call}, {call}]"), 2),
        ("none", "jamba", format!("<tool_calls>[{call}, {call}]</tool_calls>"), 2),
        (
            "none",
            "internlm",
            format!("<|action_start|><|plugin|>{with_parameters}<|action_end|>"),
            1,
        ),
        ("none", "phi4_mini_json", format!("functools[{call}, {call}]"), 2),
        ("none", "xlam", format!("[{call}, {call}]"), 2),
        ("none", "xlam", format!("```json\n[{call}]\n```"), 1),
        ("none", "xlam", format!("<tool_call>[{call}]</tool_call>"), 1),
        (
            "none",
            "deepseek_v3",
            deepseek(format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{object}\n```<｜tool▁call▁end｜>"
            )),
            2,
        ),
        (
            "none",
            "deepseek_v31",
            deepseek(format!("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{object}<｜tool▁call▁end｜>")),
            2,
        ),
        (
            "kimi_k2",
            "kimi_k2",
            format!("<|tool_calls_section_begin|>{kimi}{kimi}<|tool_calls_section_end|>"),
            2,
        ),
        ("glm45", "glm45", twice(glm), 2),
    ]
}

#[test]
fn tags_within_an_argument_end_no_call_in_any_form() {
    let tool = Tool {
        name: "f".to_owned(),
        parameters: serde_json::json!({"type": "object", "properties": {"s": {"type": "string"}}}),
    };
    let form =
        AnswerForm { tools: vec![tool], tool_choice: ToolChoice::Auto, ..AnswerForm::default() };
    for (reasoning, tool_calls, text, num_calls) in calls_with_tags() {
        let answer = parser(reasoning, tool_calls).parse(&text, &form);
        let expected = vec![("f".to_owned(), serde_json::json!({"s": TAGS})); num_calls];
        assert_eq!(calls(&answer), expected, "{reasoning} {tool_calls}: {text}");
    }
    let object = serde_json::json!({"s": TAGS});
    let harmony = format!(
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{object}<|call|>"
    );
    let text = format!("{harmony}<|start|>assistant{harmony}");
    let answer = parser("none", "openai").parse(&text, &form);
    assert_eq!(calls(&answer), vec![("f".to_owned(), serde_json::json!({"s": TAGS})); 2]);
}

#[test]
fn mistrals_calls_with_ids_have_their_names() {
    let form = AnswerForm { tool_choice: ToolChoice::Auto, ..AnswerForm::default() };
    let one = "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\":1}";
    let cases: [(String, Option<&str>, &[Case<'_>]); 6] = [
        (one.to_owned(), None, &[("f", "{\"a\":1}")]),
        (format!("Let me see.{one}"), Some("Let me see."), &[("f", "{\"a\":1}")]),
        (
            format!("{one}[TOOL_CALLS]g[CALL_ID]bcdefghij[ARGS]{{}}"),
            None,
            &[("f", "{\"a\":1}"), ("g", "{}")],
        ),
        ("[TOOL_CALLS]f[CALL_ID]abcdefghi{\"a\":1}".to_owned(), None, &[("f", "{\"a\":1}")]),
        ("[TOOL_CALLS] f [CALL_ID] x [ARGS] {}".to_owned(), None, &[("f", "{}")]),
        (
            "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}][TOOL_CALLS][{\"name\":\"g\",\
             \"arguments\":{}}]"
                .to_owned(),
            None,
            &[("f", "{}"), ("g", "{}")],
        ),
    ];
    for (text, content, expected) in cases {
        let answer = parser("none", "mistral").parse(&text, &form);
        assert_eq!(calls(&answer), expected_calls(expected), "{text}");
        assert_eq!(answer.content.as_deref(), content, "{text}");
    }
    for cut in ["[TOOL_CALLS]f[CALL_ID]abc", "[TOOL_CALLS]f[CALL_ID]abc[TOOL_CALLS]g[ARGS]{}"] {
        let answer = parser("none", "mistral").parse(cut, &form);
        assert_eq!((answer.content.as_deref(), &answer.tool_calls[..]), (Some(cut), &[][..]));
    }
}
