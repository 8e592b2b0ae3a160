//! Texts whose parts are meant to be otherwise than vLLM's, and texts that would take long.

use super::Case;

/// Texts with a call that is cut, is not JSON or is no call at all. They stay content as they are.
/// vLLM drops them in part, or calls the function with the arguments that are there.
pub(super) const STAY_TEXT: &[Case<'_>] = &[
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
pub(super) const READ_OTHERWISE: &[(Case<'_>, &str, &[Case<'_>])] = &[
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
            "apertus",
            "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Rome\"}}]<|tools_suffix|> Done. \
             <|tools_prefix|>[{\"get_weather\": {\"city\": \"Rome\"}}]<|tools_suffix|>",
        ),
        "vLLM reads the first list",
        &[("get_weather", r#"{"city": "Rome"}"#), ("get_weather", r#"{"city": "Rome"}"#)],
    ),
    (
        (
            "apertus",
            "a <|tools_prefix|>[{\"get_weather\": {\"city\": \"Rome\"}}]<|tools_suffix|> b \
             <|tools_prefix|>[{\"search\": {\"query\": \"true\", \"score\": 2.5, \"limit\": 7}}]\
             <|tools_suffix|> c",
        ),
        "the same",
        &[
            ("get_weather", r#"{"city": "Rome"}"#),
            ("search", r#"{"query": "true", "score": 2.5, "limit": 7}"#),
        ],
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
pub(super) const ENDS_IN_CALLS: &[Case<'_>] = &[
    ("qwen3", "one<tool_call>two</think>three"),
    ("step3p5", "one<tool_call>two</think>three"),
    ("glm45", "one<tool_call>two</think>three"),
    ("kimi_k2", "one<|tool_calls_section_begin|>two</think>three"),
    ("seed_oss", "one<seed:tool_call>two</seed:think>three"),
    ("mistral", "one[TOOL_CALLS]two[/THINK]three"),
    ("deepseek_v4", "one<｜DSML｜tool_calls>two</think>three"),
    ("minimax_m2", "one<minimax:tool_call>two</think>three"),
    ("nemotron_v3", "one<tool_call>two</think>three"),
    ("granite_thinking_parser", "one<tool_call>two</think>three"),
    ("mimo", "one<tool_call>two</think>three"),
    ("ling3", "one<tool_call>two</think>three"),
    ("gemma4", "one<|tool_call>two<channel|>three"),
];

/// A start tag after the thinking is text: vLLM drops all that is before it.
pub(super) const LATE_START: &str = "one</think>the tag <think> is text";

/// Texts by Command A's parser, with their thinking and their content: what is no call stays, and
/// so does white space. vLLM drops both.
pub(super) const COMMANDS: &[(&str, Option<&str>, Option<&str>)] = &[
    ("<|START_THINKING|>\none\n<|END_THINKING|>\n\ntwo", Some("\none"), Some("\n\ntwo")),
    ("one\n<|END_THINKING|>", None, Some("one\n")),
    ("<|START_THINKING|>\n\n<|END_THINKING|>\n\ntwo", None, Some("\n\ntwo")),
    (
        "one<|END_THINKING|>the tag <|START_THINKING|> is text",
        Some(" is text"),
        Some("onethe tag "),
    ),
    ("<|START_THINKING|>one<|START_ACTION|> x", Some("one"), Some("<|START_ACTION|> x")),
    (
        "<|START_THINKING|>one<|END_THINKING|>two<|START_ACTION|> x",
        Some("one"),
        Some("two<|START_ACTION|> x"),
    ),
    (
        "one<|START_ACTION|>two<|END_THINKING|>three",
        None,
        Some("one<|START_ACTION|>two<|END_THINKING|>three"),
    ),
];

/// Parsers and parts of texts whose values have other types than vLLM's, and why.
pub(super) const TYPED_OTHERWISE: &[(&str, &str, &str)] = &[
    ("gemma4", "filters:{x", "a number within an object stays one"),
    ("functiongemma", "query:<escape>true<escape>", "the schema says string"),
    ("functiongemma", "free:<escape>12<escape>", "the schema says nothing"),
    ("functiongemma", "other:<escape>3<escape>", "there is no schema"),
    ("functiongemma", "x:<escape>1<escape>", "there is no schema"),
    ("hy_v3", "<arg_value>True<", "literals of Python are strings"),
    ("cohere_command3", "\"parameters\": {}", "arguments are JSON, also where there are none"),
];

/// Parsers, what a text begins with, and what it repeats: each would take a search of the rest of
/// the text for every repetition.
pub(super) const HOSTILE: &[(&str, &str, &str, &str)] = &[
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
    ("none", "deepseek_v4", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"a\">"),
    ("none", "deepseek_v4", "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"a\"></｜DSML｜invoke>"),
    (
        "none",
        "minimax_m2",
        "<minimax:tool_call><invoke name=a>",
        "<parameter name=b>c</parameter>d",
    ),
    ("none", "minimax_m2", "<minimax:tool_call><invoke name=a>", "<parameter name="),
    ("none", "gemma4", "", "<|tool_call>call:a{"),
    ("none", "gemma4", "<|tool_call>call:a{b:", "["),
    ("none", "gemma4", "<|tool_call>call:a{", "b:{"),
    ("none", "gemma4", "<|tool_call>call:a{", "b:1,c:<|\"|>"),
    ("none", "lfm2", "<|tool_call_start|>[", "x(),"),
    ("none", "apertus", "", "<|tools_prefix|>[{\"a\":{}}]<|tools_suffix|>"),
    ("none", "cohere_command3", "", "<|START_ACTION|>[]<|END_ACTION|>"),
    ("none", "granite-20b-fc", "", "<function_call>{\"name\":\"a\",\"arguments\":{}}"),
    ("none", "gigachat3", "", "<|function_call|>{"),
    ("none", "hy_v3", "<tool_calls>", "<tool_call>a<tool_sep>"),
    ("gemma4", "none", "", "<|channel>thought"),
    ("hunyuan_a13b", "none", "", "<think>\n"),
    ("hunyuan_a13b", "none", "<think>\n", "\n</think>\n<answer>\n"),
    ("ernie45", "none", "</think>", "<response>"),
    ("cohere_command3", "none", "", "<|START_RESPONSE|><|END_THINKING|>"),
    ("granite_thinking_parser", "none", "</think>", "\n</think>"),
];
