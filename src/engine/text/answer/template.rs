//! Parsers that a model's answers need, by the text of its chat template (`auto`).

/// The tool-call parser of a template; `none` where it shows no form of calls that is known.
pub(super) fn tool_call_parser(template: &str) -> &'static str {
    let has = |text: &str| template.contains(text);
    match () {
        () if is_harmony(template) => "openai",
        () if has("<｜DSML｜ calls>") => "deepseek_v41",
        () if has("<｜DSML｜") && has("function_calls") => "deepseek_v32",
        () if has("<｜DSML｜") => "deepseek_v4",
        () if has("<minimax:tool_call>") => "minimax_m2",
        () if has("<dots_function_call>") => "dots",
        () if has("<|tool_call>") => "gemma4",
        () if has("<start_function_call>") => "functiongemma",
        () if has("<longcat_tool_call>") => "longcat",
        () if has("<|tool_call_start|>") => "lfm2",
        () if has("<|tools_prefix|>") => "apertus",
        () if has("<|START_ACTION|>") => "cohere_command3",
        () if has("<tool_sep>") => "hy_v3",
        () if has("<|function_call|>") => "gigachat3",
        // Laguna's turns.
        () if has("<arg_key>") && has("<assistant>") => "poolside_v1",
        () if has("<arg_key>") => "glm45",
        () if has("<function=") && has("<seed:tool_call>") => "seed_oss",
        () if has("<function=") && has("<parameter=") => "qwen3_coder",
        () if has("<|tool_calls_section_begin|>") => "kimi_k2",
        () if has("<｜tool▁calls▁begin｜>") && has("```json") => "deepseek_v3",
        () if has("<｜tool▁calls▁begin｜>") => "deepseek_v31",
        () if has("[TOOL_CALLS]") => "mistral",
        () if has("<|action_start|>") && has("<|plugin|>") => "internlm",
        () if has("<tool_calls>") && has("<answer>") => "hunyuan_a13b",
        () if has("<tool_calls>") => "jamba",
        () if has("functools[") => "phi4_mini_json",
        () if has("<|tool_call|>") => "granite",
        () if has("<tool_call>") && has("<|start_of_role|>") => "granite4",
        () if has("<tool_call>") && has("<response>") => "ernie45",
        () if has("<tool_call>") => "hermes",
        () if has("<function_calls>") => "olmo3",
        () if has("<|python_start|>") => "llama4_pythonic",
        // Llama 3.2, Llama 4 and ToolACE show the model the form in this text.
        () if has("[func_name1(") => "pythonic",
        // Llama 3's role of what a function returned.
        () if has("<|python_tag|>") || has("ipython") => "llama3_json",
        () => "none",
    }
}

/// The reasoning parser of a template; `none` where its model does not think, or only if asked to
/// in a way that the answer does not show.
pub(super) fn reasoning_parser(template: &str) -> &'static str {
    let has = |text: &str| template.contains(text);
    match () {
        () if is_harmony(template) => "openai_gptoss",
        () if has("[THINK]") => "mistral",
        () if has("<seed:think>") => "seed_oss",
        () if has("Here is my thought process:") => "granite",
        () if has("<|channel>") => "gemma4",
        () if has("<|START_THINKING|>") => "cohere_command3",
        () if !has("</think>") && !has("<think>") => "none",
        () if has("<｜DSML｜ calls>") => "deepseek_v41",
        () if has("<｜DSML｜tool_calls>") => "deepseek_v4",
        () if has("<minimax:tool_call>") => "minimax_m2",
        () if has("<tool_sep>") => "hy_v3",
        () if has("<answer>") => "hunyuan_a13b",
        () if has("<response>") => "ernie45",
        () if has("<arg_key>") && has("<assistant>") => "poolside_v1",
        () if has("<arg_key>") => "glm45",
        () if has("<|tool_calls_section_begin|>") => "kimi_k2",
        // A variable of Nemotron 3's template alone.
        () if has("truncate_history_thinking") => "nemotron_v3",
        () if has("enable_thinking") => "qwen3",
        // DeepSeek V3.1 thinks if the variable `thinking` says so; R1 always.
        () if has("<｜Assistant｜>") && has("thinking") => "deepseek_v3",
        () if has("<｜Assistant｜>") || opens_thinking(template) => "deepseek_r1",
        () => "none",
    }
}

fn is_harmony(template: &str) -> bool {
    template.contains("<|channel|>") && template.contains("<|message|>")
}

/// Whether the prompt for an answer ends inside the thinking (QwQ, Qwen3-Thinking).
fn opens_thinking(template: &str) -> bool {
    let prompt = template.rsplit_once("add_generation_prompt").map_or("", |(_, after)| after);
    prompt.contains("<think>") && !prompt.contains("</think>")
}

#[cfg(test)]
mod tests {
    use super::super::AnswerParser;

    /// Parsers of `auto` for a template of testdata/chat_templates.
    fn names(file: &str) -> (&'static str, &'static str) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../testdata/chat_templates");
        let bytes = std::fs::read(format!("{folder}/{file}.json")).expect("a template");
        let json: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        names_of(json["template"].as_str().expect("a template"))
    }

    fn names_of(template: &str) -> (&'static str, &'static str) {
        AnswerParser::new("auto", "auto", Some(template)).expect("both of one form").names()
    }

    #[test]
    fn templates_say_which_parsers_their_answers_need() {
        assert_eq!(names("qwen3_thinking"), ("qwen3", "hermes"));
        assert_eq!(names("qwen25_tools"), ("none", "hermes"));
        assert_eq!(names("llama31_tools"), ("none", "llama3_json"));
        assert_eq!(names("mistral_v3_tools"), ("none", "mistral"));
        assert_eq!(names("deepseek_r1"), ("deepseek_r1", "none"));
        for file in ["alpaca", "chatml", "command_r", "gemma", "llama2", "llama3", "phi3", "zephyr"]
        {
            assert_eq!(names(file), ("none", "none"), "{file}");
        }
        assert_eq!(
            AnswerParser::new("auto", "auto", None).expect("none").names(),
            ("none", "none")
        );
    }

    #[test]
    fn marks_of_other_families_are_known() {
        let families = [
            ("<|start|>assistant<|channel|>analysis<|message|>", ("openai_gptoss", "openai")),
            ("<tool_call><function=f><parameter=a>", ("none", "qwen3_coder")),
            ("<seed:think><seed:tool_call><function=f><parameter=a>", ("seed_oss", "seed_oss")),
            ("enable_thinking <think><tool_call><arg_key>", ("glm45", "glm45")),
            ("</think><|tool_calls_section_begin|>", ("kimi_k2", "kimi_k2")),
            (
                "<｜Assistant｜></think><｜tool▁calls▁begin｜>```json",
                ("deepseek_r1", "deepseek_v3"),
            ),
            (
                "thinking <｜Assistant｜></think><｜tool▁calls▁begin｜>",
                ("deepseek_v3", "deepseek_v31"),
            ),
            ("[THINK][/THINK][TOOL_CALLS]", ("mistral", "mistral")),
            ("Here is my thought process: <|tool_call|>", ("granite", "granite")),
            ("<|action_start|><|plugin|>", ("none", "internlm")),
            ("<tool_calls>", ("none", "jamba")),
            ("<think></think><answer><tool_calls>", ("hunyuan_a13b", "hunyuan_a13b")),
            ("<think></think><tool_calls><tool_sep><arg_key>", ("hy_v3", "hy_v3")),
            ("<think></think><｜DSML｜tool_calls>", ("deepseek_v4", "deepseek_v4")),
            ("<think></think><｜DSML｜ calls>", ("deepseek_v41", "deepseek_v41")),
            ("<｜DSML｜{{ 'function_calls' }}", ("none", "deepseek_v32")),
            ("<think></think><minimax:tool_call>", ("minimax_m2", "minimax_m2")),
            ("<|channel>thought<channel|><|tool_call>", ("gemma4", "gemma4")),
            ("<start_function_call>", ("none", "functiongemma")),
            ("<longcat_tool_call>", ("none", "longcat")),
            ("<|tool_call_start|>", ("none", "lfm2")),
            ("<|tools_prefix|>", ("none", "apertus")),
            ("<dots_function_call>", ("none", "dots")),
            ("<|function_call|>", ("none", "gigachat3")),
            ("<|START_THINKING|><|START_ACTION|>", ("cohere_command3", "cohere_command3")),
            ("<assistant><think></think><arg_key>", ("deepseek_v3", "poolside_v1")),
            ("<think></think><response><tool_call>", ("ernie45", "ernie45")),
            (
                "truncate_history_thinking enable_thinking <think><function=f><parameter=a>",
                ("nemotron_v3", "qwen3_coder"),
            ),
            ("<|start_of_role|><tool_call>", ("none", "granite4")),
            ("<function_calls>", ("none", "olmo3")),
            ("<|python_start|>", ("none", "llama4_pythonic")),
            ("You should return [func_name1(params_name1=", ("none", "pythonic")),
            (
                "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n",
                ("deepseek_r1", "none"),
            ),
        ];
        for (template, expected) in families {
            assert_eq!(names_of(template), expected, "{template}");
        }
    }
}
