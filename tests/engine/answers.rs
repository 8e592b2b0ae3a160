//! Answers' parts against vLLM's own parsers: testdata/answers.json (see
//! testdata/generate_answers.py), and what is meant to be otherwise.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value};
use vllm_batch::engine::text::{
    AnswerForm, AnswerParser, ParsedAnswer, SaidOfThinking, Tool, ToolChoice,
};

mod texts;

use texts::{
    COMMANDS, ENDS_IN_CALLS, HOSTILE, LATE_START, READ_OTHERWISE, STAY_TEXT, TYPED_OTHERWISE,
};

/// A text, and by which parser.
type Case<'a> = (&'a str, &'a str);

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

/// Function and arguments, of which white space does not count, nor how a number is written.
fn calls(answer: &ParsedAnswer) -> Vec<(String, Value)> {
    let value = |text: &str| {
        in_floats(serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}")))
    };
    answer.tool_calls.iter().map(|call| (call.name.clone(), value(&call.arguments))).collect()
}

/// Calls with every value as its text.
fn untyped(calls: Vec<(String, Value)>) -> Vec<(String, Value)> {
    fn texts(value: Value) -> Value {
        match value {
            Value::Array(list) => list.into_iter().map(texts).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(key, value)| (key, texts(value))).collect()
            }
            Value::String(text) => match serde_json::from_str::<f64>(&text) {
                Ok(number) => number.to_string().into(),
                Err(_) => text.trim_start_matches('0').to_lowercase().into(),
            },
            other => other.to_string().trim_end_matches(".0").into(),
        }
    }
    calls.into_iter().map(|(name, arguments)| (name, texts(arguments))).collect()
}

/// vLLM's calls; none of them where the arguments of one are not JSON.
fn vllms_calls(vllm: &Value) -> Option<Vec<(String, Value)>> {
    let calls = vllm["calls"].as_array().into_iter().flatten().map(|call| {
        let arguments = match call[1].as_str().expect("arguments") {
            "" => Ok(Value::Null),
            arguments => serde_json::from_str(arguments),
        };
        Some((call[0].as_str().expect("a name").to_owned(), in_floats(arguments.ok()?)))
    });
    calls.collect()
}

/// A value whose integers are floats: vLLM writes some of them as `1000.0`.
fn in_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(list) => list.into_iter().map(in_floats).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (key, in_floats(value))).collect()
        }
        other => other,
    }
}

fn expected_calls(list: &[Case<'_>]) -> Vec<(String, Value)> {
    let value = |text: &str| in_floats(serde_json::from_str(text).expect("JSON"));
    list.iter().map(|(name, arguments)| ((*name).to_owned(), value(arguments))).collect()
}

/// Whether an answer is vLLM's. Arguments that are no JSON are never ours.
fn is_vllms(answer: &ParsedAnswer, vllm: &Value) -> bool {
    answer.reasoning.as_deref() == vllm["reasoning"].as_str()
        && answer.content.as_deref() == vllm["content"].as_str()
        && vllms_calls(vllm).is_some_and(|theirs| theirs == calls(answer))
}

/// Whether an answer is vLLM's but for the types of values; no arguments are an empty object.
fn is_typed_otherwise(answer: &ParsedAnswer, vllm: &Value) -> bool {
    let empty = |(name, arguments)| match arguments {
        Value::String(text) if text == "null" => (name, Value::Object(Map::new())),
        arguments => (name, arguments),
    };
    let theirs = vllms_calls(vllm).map(untyped).unwrap_or_default();
    let theirs: Vec<_> = theirs.into_iter().map(empty).collect();
    answer.content.as_deref() == vllm["content"].as_str() && untyped(calls(answer)) == theirs
}

#[test]
fn parsers_give_what_vllms_give_or_differ_as_listed() {
    let goldens = goldens();
    let tools = tools(&goldens);
    let (mut num_cases, mut num_listed, mut wrong) = (0, 0, Vec::new());
    let mut typed = HashSet::new();
    for case in goldens["cases"].as_array().expect("cases") {
        let (reasoning, tool_calls) = names(case);
        let text = case["text"].as_str().expect("a text");
        let thinking = case["thinking"].as_bool();
        let form = AnswerForm {
            tools: tools.clone(),
            tool_choice: ToolChoice::Auto,
            thinking: SaidOfThinking { switch: thinking, effort: thinking },
            ..AnswerForm::default()
        };
        let answer = parser(reasoning, tool_calls).parse(text, &form);
        let stays = answer.content.as_deref() == Some(text) && answer.tool_calls.is_empty();
        let command =
            COMMANDS.iter().find(|(known, ..)| reasoning == "cohere_command3" && *known == text);
        let typed_otherwise = TYPED_OTHERWISE
            .iter()
            .position(|(parser, part, _)| *parser == tool_calls && text.contains(part))
            .filter(|_| !is_vllms(&answer, &case["vllm"]) && !stays);
        typed.extend(typed_otherwise);
        let listed = READ_OTHERWISE.iter().find(|(known, ..)| *known == (tool_calls, text));
        let expected = match listed {
            Some((.., expected)) => {
                let content = answer.content.as_deref();
                content.is_none_or(|content| content.lines().all(|line| text.contains(line)))
                    && calls(&answer) == expected_calls(expected)
            }
            None if STAY_TEXT.contains(&(tool_calls, text)) => stays,
            None if ["deepseek_r1", "ernie45"].contains(&reasoning) && text == LATE_START => {
                let parts = (answer.reasoning.as_deref(), answer.content.as_deref());
                parts == (Some("one"), Some("the tag <think> is text"))
            }
            None if typed_otherwise.is_some() => is_typed_otherwise(&answer, &case["vllm"]),
            None if command.is_some() => {
                let parts = (answer.reasoning.as_deref(), answer.content.as_deref());
                command.is_some_and(|(_, thinking, content)| parts == (*thinking, *content))
            }
            None if ENDS_IN_CALLS.contains(&(reasoning, text)) => {
                let content = answer.content.as_deref().unwrap_or_default();
                let thinking = answer.reasoning.as_deref().unwrap_or_default();
                text == format!("{thinking}{content}")
            }
            None => {
                num_cases += 1;
                is_vllms(&answer, &case["vllm"]) || (case["is_broken"] == true && stays)
            }
        };
        let is_listed = case["is_broken"].is_null() && typed_otherwise.is_none();
        let differs = !is_vllms(&answer, &case["vllm"]) && is_listed;
        num_listed += usize::from(expected && differs);
        if !expected {
            wrong.push(format!("{reasoning} {tool_calls} {text:?}\n{answer:?}\n{}", case["vllm"]));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(num_cases >= 1_900, "only {num_cases} cases");
    assert_eq!(typed.len(), TYPED_OTHERWISE.len(), "each has a text: {typed:?}");
    // `[TOOL_CALLS]` alone is there for both of Mistral's forms. A difference that vLLM no longer
    // has is to be taken off the lists.
    let num_of_thinking = ENDS_IN_CALLS.len() + COMMANDS.len();
    assert_eq!(num_listed, STAY_TEXT.len() + READ_OTHERWISE.len() + num_of_thinking + 3);
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
                    [/THINK] functools[ }] ]} [{ <tool_sep> <response> </response> <invoke> \
                    <｜DSML｜ calls> <｜DSML｜tool_calls> <minimax:tool_call> <|tool_call> \
                    <|tool_call_start|> <|tools_prefix|> <|START_ACTION|> <function_call> b";

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

/// The same of the forms of later models.
fn later_calls_with_tags() -> Vec<(&'static str, &'static str, String, usize)> {
    let object = serde_json::json!({"s": TAGS}).to_string();
    let call = format!("{{\"name\": \"f\", \"arguments\": {object}}}");
    let twice = |text: String| format!("{text}\n{text}");
    let python = format!("f(s={object})").replace("{\"s\":", "").replace("\"})", "\")");
    let glm =
        format!("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>{TAGS}</arg_value>\n</tool_call>");
    vec![
        ("none", "poolside_v1", twice(glm.clone()), 2),
        (
            "none",
            "hy_v3",
            format!("<tool_calls>{}</tool_calls>", twice(glm.replacen("f\n", "f<tool_sep>\n", 1))),
            2,
        ),
        ("none", "ernie45", twice(format!("<tool_call>\n{call}\n</tool_call>")), 2),
        ("none", "longcat", twice(format!("<longcat_tool_call>{call}</longcat_tool_call>")), 2),
        ("none", "hunyuan_a13b", format!("<tool_calls>[{call}, {call}]</tool_calls>"), 2),
        ("none", "granite-20b-fc", twice(format!("<function_call> {call}")), 2),
        ("none", "gigachat3", format!("<|function_call|>{call}"), 1),
        ("none", "lfm2", format!("<|tool_call_start|>[{python}, {python}]<|tool_call_end|>"), 2),
        (
            "none",
            "apertus",
            twice(format!("<|tools_prefix|>[{{\"f\": {object}}}]<|tools_suffix|>")),
            2,
        ),
        (
            "none",
            "cohere_command3",
            twice(format!(
                "<|START_ACTION|>[{{\"tool_name\": \"f\", \"parameters\": {object}}}]<|END_ACTION|>"
            )),
            2,
        ),
        (
            "gemma4",
            "gemma4",
            twice(format!("<|tool_call>call:f{{s:<|\"|>{TAGS}<|\"|>}}<tool_call|>")),
            2,
        ),
        (
            "minimax_m2",
            "minimax_m2",
            format!(
                "x</think><minimax:tool_call>{}</minimax:tool_call>",
                twice(format!(
                    "<invoke name=\"f\"><parameter name=\"s\">{TAGS}</parameter></invoke>"
                ))
            ),
            2,
        ),
        (
            "deepseek_v4",
            "deepseek_v4",
            format!(
                "x</think><｜DSML｜tool_calls>{}</｜DSML｜tool_calls>",
                twice(format!(
                    "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" \
                     string=\"true\">{TAGS}</｜DSML｜parameter></｜DSML｜invoke>"
                ))
            ),
            2,
        ),
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
    for (reasoning, tool_calls, text, num_calls) in
        [calls_with_tags(), later_calls_with_tags()].concat()
    {
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
