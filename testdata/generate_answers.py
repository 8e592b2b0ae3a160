#!/usr/bin/env python3
"""Writes answers.json: texts of answers, and what vLLM's own parsers make of them.

    python testdata/generate_answers.py FOLDER > testdata/answers.json

FOLDER holds vLLM's unpacked wheel (version below) and the packages that its parsers import.
What is missing there is replaced by stubs: parsers work on strings.
"""

import importlib.abc
import importlib.machinery
import json
import logging
import sys
from unittest.mock import MagicMock

import answer_texts

VERSION = "0.32.0"
STUBS = {"aiohttp", "opentelemetry", "PIL", "uvloop", "vllm"}

TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    },
    {
        "name": "search",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filters": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "exact": {"type": "boolean"},
                "score": {"type": "number"},
                "limit": {"type": ["integer", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "free": {},
                "odd": {"type": "any"},
            },
        },
    },
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]

# Texts of thinking, for tags START and END; CALL is what begins a call.
THINKING = [
    "",
    "Hello.",
    "START",
    "END",
    "STARTone two",
    "STARToneENDtwo",
    "START\none\nEND\n\ntwo",
    "oneENDtwo",
    "one\nEND",
    "STARTENDtwo",
    "START\n\nEND\n\ntwo",
    "beforeSTARToneENDtwo",
    "oneENDtwoENDthree",
    "STARToneENDtwoSTARTthreeENDfour",
    "STARToneSTARTtwoENDthree",
    "oneENDthe tag START is text",
    "STARToneCALL x",
    "STARToneENDtwoCALL x",
    "oneCALLtwoENDthree",
    "STARToné 🙂 \u3000ENDtwo é",
    "STARTone <END two",
    "STARTone  \t END two",
]

GRANITE_THINKING = [
    "",
    "Hello.",
    "Here is my thought process:one Here is my response:two",
    "Here's my thought process:one\nHere's my response:\ntwo",
    "Here is my thought process:oneHere's my response:",
    "before Here is my thought process:one Here is my response:two",
    "Here is my thought process:one",
    "Here is my response:two",
    "Here is my response:two Here is my thought process:one",
    "Here is my thought process:a Here is my response:b Here is my response:c",
    "Here is my thought process: Here's Here is my response: é",
]

WEATHER = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
TWO = '{"name": "search", "arguments": {"query": "a } { \\" b", "filters": {"x": {"y": [1, {}]}}}}'
UNICODE = '{"name": "get_weather", "arguments": {"city": "Zürich 🙂 \\u00e9"}}'
NUMBERS = '{"arguments": {"score": 1e3, "limit": 1.0, "days": -7}, "name": "search"}'
EMPTY = '{"name": "now", "arguments": {}}'

HERMES = [
    "",
    "Hello.",
    f"<tool_call>\n{WEATHER}\n</tool_call>",
    f"<tool_call>{WEATHER}</tool_call>",
    f"Let me see.\n<tool_call>\n{WEATHER}\n</tool_call>",
    f"<tool_call>\n{WEATHER}\n</tool_call>\nDone.",
    f"a<tool_call>{WEATHER}</tool_call>b<tool_call>{TWO}</tool_call>c",
    f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{EMPTY}\n</tool_call>",
    f"<tool_call>\n{WEATHER}",
    f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{TWO}",
    "<tool_call>\n" + WEATHER[:-5],
    f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{{bad",
    "<tool_call></tool_call>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call>\n{'name': 'f', 'arguments': {}}\n</tool_call>",
    f"<tool_call>{UNICODE}</tool_call>",
    f"<tool_call>{NUMBERS}</tool_call>",
    f"<tool_call>{EMPTY}</tool_call>",
    '<tool_call>{"name": "now"}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": null}</tool_call>',
    '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "now", "name": "search", "arguments": {}}</tool_call>',
    f"<tool_call>[{WEATHER}]</tool_call>",
    f"<tool_call>{WEATHER}{EMPTY}</tool_call>",
    f"<tool_call><tool_call>{WEATHER}</tool_call>",
    f" \n<tool_call>{WEATHER}</tool_call>",
    '<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"x": 1e999}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"x": "a\nb"}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"tag": "</tool_call>"}}</tool_call>',
]

PARAMETERS = '{"name": "get_weather", "parameters": {"city": "Rome"}}'
LLAMA = [
    "",
    "Hello.",
    PARAMETERS,
    f"<|python_tag|>{PARAMETERS}",
    f"{PARAMETERS};{PARAMETERS}",
    f"{PARAMETERS}; {TWO}; {EMPTY}",
    f"{PARAMETERS}{EMPTY}",
    f"{PARAMETERS} {EMPTY}",
    f"I call {PARAMETERS} now.",
    f"{WEATHER}",
    f"{UNICODE}",
    f"{NUMBERS}",
    '{"name": "now", "parameters": {}}',
    '{"name": "now"}',
    '{"parameters": {}}',
    '{"name": "now", "parameters": null}',
    '{"name": "now", "arguments": {"a": 1}, "parameters": {"b": 2}}',
    PARAMETERS[:-1],
    f"{PARAMETERS}; {PARAMETERS[:-3]}",
    "{}",
    "{",
    "a set {1, 2}",
    "<|python_tag|>print(1)",
    '{"type": "function", "name": "now", "parameters": {}}',
    '{"name": "f", "parameters": {"name": "g", "parameters": {"x": 1}}}',
]

MISTRAL = [
    "",
    "Hello.",
    f"[TOOL_CALLS] [{WEATHER}]",
    f"[TOOL_CALLS][{WEATHER}, {TWO}]",
    f"Let me see. [TOOL_CALLS] [{WEATHER}]",
    f"[TOOL_CALLS] [{WEATHER}] Done.",
    f"[TOOL_CALLS][TOOL_CALLS] [{WEATHER}]",
    f"[TOOL_CALLS] [{WEATHER}][TOOL_CALLS] [{EMPTY}]",
    f"[TOOL_CALLS] {WEATHER}",
    f"[TOOL_CALLS] [{UNICODE}]",
    f"[TOOL_CALLS] [{NUMBERS}]",
    f"[TOOL_CALLS] [{EMPTY}]",
    f"[TOOL_CALLS] [{WEATHER}",
    "[TOOL_CALLS] [",
    "[TOOL_CALLS]",
    "[TOOL_CALLS] []",
    f"[TOOL_CALLS] ok [{WEATHER}]",
    '[TOOL_CALLS] [{"name": "now"}]',
    '[TOOL_CALLS] [{"name": "now", "arguments": "{\\"a\\": 1}"}]',
    '[TOOL_CALLS] [{"arguments": {}}]',
    "[TOOL_CALLS] text",
    f" \n[TOOL_CALLS] [{WEATHER}]",
]

MISTRAL_V11 = [
    "Hello.",
    '[TOOL_CALLS]get_weather{"city": "Rome"}',
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}',
    'a[TOOL_CALLS]get_weather{"city": "Rome"}[TOOL_CALLS]now{}',
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[ARGS]{}',
    '[TOOL_CALLS]search{"query": "{\\"}", "filters": {"a": {"b": 1}}}',
    '[TOOL_CALLS]get_weather{"city": "Zürich 🙂"}',
    '[TOOL_CALLS]get_weather{"city": "Ro',
    "[TOOL_CALLS]get_weather",
    "[TOOL_CALLS]",
    '[TOOL_CALLS]now{"name": "x", "score": 1e3}',
    '[TOOL_CALLS]now {"a": 1} ',
    '[TOOL_CALLS]now{"a": 1} Done.',
]


def xml(start, end):
    call = f"{start}\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n{end}"
    def one(body):
        return f"{start}\n<function=search>\n{body}</function>\n{end}"
    return [
        "",
        "Hello.",
        call,
        f"Let me see.\n{call}",
        f"{call}\nDone.",
        f"a\n{call}\nb\n{call}\nc",
        f"{start}<function=now></function>{end}",
        f"{start}<function=now>{end}",
        f"<function=now>\n</function>",
        f"<function=get_weather><parameter=city>Rome</parameter></function>",
        f"{start}<function=now></function><function=search></function>{end}",
        f"{start}<function=now></function>{start}<function=search></function>{end}",
        one("<parameter=score>\n1e3\n</parameter>\n<parameter=limit>null</parameter>\n"),
        one("<parameter=score>2.5</parameter><parameter=limit>7</parameter>"),
        one("<parameter=limit>007</parameter><parameter=score> 1_0 </parameter>"),
        one("<parameter=exact>True</parameter><parameter=query>true</parameter>"),
        one("<parameter=exact>0</parameter><parameter=either>5</parameter>"),
        one("<parameter=exact>maybe</parameter><parameter=either>five</parameter>"),
        one('<parameter=filters>{"a": [1, 2]}</parameter><parameter=tags>["x"]</parameter>'),
        one("<parameter=filters>{'a': 1}</parameter><parameter=tags>none</parameter>"),
        one("<parameter=free>12</parameter><parameter=odd>12</parameter>"),
        one("<parameter=odd>a b</parameter><parameter=other>3</parameter>"),
        one("<parameter=query>\n\n two \n\n</parameter>"),
        one("<parameter=query>a < b > c </b> é 🙂</parameter>"),
        one("<parameter=query>a\n<parameter=limit>3</parameter>"),
        one("<parameter=query>a</parameter><parameter=query>b</parameter>"),
        one("< parameter = query>a< / parameter >"),
        one("<parameter=query></parameter>"),
        one("<parameter=query>a\n"),
        f"{start}\n<function=get_weather>\n<parameter=city>\nRo",
        f"{start}\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n",
        f"{start}\n<function=get_weather>\n<parameter=city>Rome</parameter>\n{end}",
        f"{start}\n<function=get_wea",
        f"{start}\n",
        f"{start}{end}",
        f"{start}\nnonsense\n{end}",
        f"{end}",
        f"{start}<function=unknown><parameter=x>1</parameter></function>{end}",
        f"{start}<function=now>{end}{call}",
    ]


GRANITE = [
    text.replace("TAG", tag)
    for tag in ("<|tool_call|>", "<tool_call>")
    for text in [
        f"TAG[{WEATHER}]",
        f"TAG [{WEATHER}, {TWO}]",
        f"Let me see.\nTAG[{EMPTY}]\nDone.",
        f"TAG [{NUMBERS}]",
        f"TAG [{UNICODE}]",
        f"TAG [{WEATHER}",
        f"TAG {WEATHER}",
        "TAG",
        "TAG []",
        '[1, 2] TAG[{"name": "now"}]',
    ]
] + ["", "Hello.", f"<|tool_call|>[{WEATHER}]<tool_call>[{EMPTY}]"]

JAMBA = [
    "Hello.",
    f"<tool_calls>[{WEATHER}]</tool_calls>",
    f" <tool_calls>[\n    {WEATHER},\n    {TWO}\n]</tool_calls>",
    f"Let me see.<tool_calls>[{UNICODE}]</tool_calls> Done.",
    f"<tool_calls>[{WEATHER}]",
    f"<tool_calls>[{WEATHER}</tool_calls>",
    "<tool_calls>[]</tool_calls>",
    f"<tool_calls>{WEATHER}</tool_calls>",
    '<tool_calls>[{"name": "now"}]</tool_calls>',
    f"<tool_calls>[{NUMBERS}]</tool_calls><tool_calls>[{EMPTY}]</tool_calls>",
]

INTERNLM = [
    "Hello.",
    f"<|action_start|><|plugin|>{PARAMETERS}<|action_end|>",
    f"Let me see.<|action_start|><|plugin|>\n{PARAMETERS}<|action_end|>\nDone.",
    f"<|action_start|><|plugin|>{UNICODE}",
    f"<|action_start|><|plugin|>{TWO}<|action_end|>",
    '<|action_start|><|plugin|>{"name": "now"}<|action_end|>',
    '<|action_start|><|plugin|>{"name": "now", "parameters": {}}<|action_end|>',
]

PHI4 = [
    "Hello.",
    f"functools[{WEATHER}]",
    f"functools[{PARAMETERS}, {EMPTY}]",
    f"Let me see. functools[{WEATHER}] Done.",
    f"functools[{UNICODE}]",
    f"functools[{TWO}]",
    f"functools[{WEATHER}",
    "functools[]",
    "functools[bad]",
    '[1] functools[{"name": "now"}]',
]

DEEPSEEK_CALL = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Rome"}\n```<｜tool▁call▁end｜>'
)
DEEPSEEK = [
    "Hello.",
    f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}<｜tool▁calls▁end｜>",
    f"Let me see.<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}\n{DEEPSEEK_CALL}<｜tool▁calls▁end｜>",
    f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL}",
    f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL[:-20]}",
    f"<｜tool▁calls▁begin｜>{DEEPSEEK_CALL.replace('Rome', 'Zürich 🙂')}<｜tool▁calls▁end｜> Done.",
    "<｜tool▁calls▁begin｜>",
]

DEEPSEEK_V31_CALL = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜>'
DEEPSEEK_V31 = [text.replace(DEEPSEEK_CALL, DEEPSEEK_V31_CALL) for text in DEEPSEEK[:4]]

KIMI_CALL = (
    "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Rome"}<|tool_call_end|>'
)
KIMI = [
    "Hello.",
    f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>",
    f"Let me see.<|tool_calls_section_begin|>{KIMI_CALL}{KIMI_CALL.replace(':0', ':1')}"
    "<|tool_calls_section_end|>",
    f"<|tool_calls_section_begin|>\n{KIMI_CALL.replace('functions.', '')}\n"
    "<|tool_calls_section_end|> Done.",
    f"<|tool_calls_section_begin|>{KIMI_CALL}",
    f"<|tool_calls_section_begin|>{KIMI_CALL[:-22]}",
    "<|tool_calls_section_begin|>",
    f"<|tool_calls_section_begin|>{KIMI_CALL.replace('Rome', 'Zürich 🙂')}<|tool_calls_section_end|>",
]

GLM_CALL = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
GLM_NEXT = (
    "<tool_call>search<arg_key>limit</arg_key><arg_value>3</arg_value>"
    '<arg_key>filters</arg_key><arg_value>{"a": 1}</arg_value></tool_call>'
)
GLM = [
    "Hello.",
    GLM_CALL,
    f"Let me see.\n{GLM_CALL}\n{GLM_NEXT}\nDone.",
    GLM_NEXT,
    "<tool_call>now\n</tool_call>",
    "<tool_call>now</tool_call>",
    GLM_CALL[:-12],
    GLM_CALL[:-40],
    "<tool_call>unknown</tool_call>",
    GLM_CALL.replace("Rome", " Zürich 🙂\n"),
    "<tool_call>",
]

XLAM = [
    "Hello.",
    f"[{WEATHER}]",
    f"[{WEATHER}, {TWO}]",
    f"```json\n[{WEATHER}]\n```",
    f"Let me see. ```\n[{WEATHER}]\n``` Done.",
    f"thought</think>[{WEATHER}]",
    f"<tool_call>[{EMPTY}]</tool_call>",
    f"[TOOL_CALLS][{UNICODE}]",
    f"[{WEATHER}",
    WEATHER,
    "[]",
    '[{"name": "now"}]',
]


def thinking(start, end, call):
    words = {"START": start, "END": end, "CALL": call}
    for text in THINKING:
        for word, tag in words.items():
            text = text.replace(word, tag)
        yield text


def cases():
    """Reasoning parser, tool-call parser, thinking, text."""
    think = ("<think>", "</think>")
    tags = {
        "deepseek_r1": (*think, "<tool_call>"),
        "olmo3": (*think, "<tool_call>"),
        "step3p5": (*think, "<tool_call>"),
        "qwen3": (*think, "<tool_call>"),
        "glm45": (*think, "<tool_call>"),
        "kimi_k2": (*think, "<|tool_calls_section_begin|>"),
        "seed_oss": ("<seed:think>", "</seed:think>", "<seed:tool_call>"),
        "mistral": ("[THINK]", "[/THINK]", "[TOOL_CALLS]"),
    }
    for name, words in tags.items():
        for text in thinking(*words):
            yield name, None, None, text
    for text in GRANITE_THINKING:
        yield "granite", None, None, text
    for name in ("qwen3", "glm45", "kimi_k2", "seed_oss", "deepseek_v3", "holo2"):
        for switch in (None, True, False):
            start, end, _ = tags.get(name, tags["qwen3"])
            yield name, None, switch, f"{start}one{end}two"
            yield name, None, switch, "one"
    calls = {
        "hermes": HERMES,
        "llama3_json": LLAMA,
        "mistral": MISTRAL,
        "mistral_v11": MISTRAL_V11,
        "pythonic": answer_texts.PYTHONIC,
        "llama4_pythonic": answer_texts.LLAMA4,
        "olmo3": answer_texts.OLMO,
        "granite4": HERMES,
        "qwen3_coder": xml("<tool_call>", "</tool_call>"),
        "seed_oss": xml("<seed:tool_call>", "</seed:tool_call>")[2:6],
        "granite": GRANITE,
        "jamba": JAMBA,
        "internlm": INTERNLM,
        "phi4_mini_json": PHI4,
        "deepseek_v3": DEEPSEEK,
        "deepseek_v31": DEEPSEEK_V31,
        "kimi_k2": KIMI,
        "glm45": GLM,
        "xlam": XLAM,
    }
    for name, texts in calls.items():
        for text in texts:
            yield None, name, None, text
    for text in (HERMES[2], HERMES[4], HERMES[9], HERMES[11]):
        for before in ("<think>one</think>\n\n", "<think>one\n", "one</think>"):
            yield "qwen3", "hermes", None, before + text
            yield "deepseek_r1", "hermes", None, before + text
    for before in ("<think>one</think>\n\n", "<think>one\n"):
        yield "qwen3", "qwen3_coder", None, before + xml("<tool_call>", "</tool_call>")[2]
        yield "glm45", "glm45", None, before + GLM_CALL
    yield from later_cases()


def later_cases():
    """The same of answer_texts.py."""
    for name, words in answer_texts.THINKING.items():
        for text in dict.fromkeys([*thinking(*words), *answer_texts.OF_THINKING.get(name, [])]):
            yield name, None, None, text
        for switch in (True, False):
            for text in (f"{words[0]}one{words[1]}two", f"one{words[1]}two", "one"):
                yield name, None, switch, text
    for name in answer_texts.FORMS:
        for text, is_whole in answer_texts.texts(name).items():
            yield None, name, None, text, is_whole


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that parsers import and do not use."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module):
        pass


class Vocabulary(dict):
    """Olmo 3's parser asks for pieces of its tags, and uses them for streams only."""

    def __missing__(self, key):
        return 0


class Tokenizer:
    """The vocabulary that parsers look their tags up in."""

    all_special_tokens, all_special_ids = [], []
    TAGS = (
        "<think> </think> <seed:think> </seed:think> [THINK] [/THINK] <tool_call> </tool_call> "
        "<seed:tool_call> </seed:tool_call> [TOOL_CALLS] <|python_tag|> <tool_calls> </tool_calls> "
        "<|tool_call|> <|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> "
        "<|tool_call_end|> <|tool_call_argument_begin|> <｜tool▁calls▁begin｜> "
        "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜>"
    ).split()

    def __init__(self, more=()):
        tags = [*self.TAGS, *answer_texts.TAGS, *more]
        self.vocab = Vocabulary({tag: at for at, tag in enumerate(tags)})

    def get_vocab(self):
        return self.vocab

    def convert_tokens_to_ids(self, token):
        return self.vocab[token]


def parts(reasoning, calls, switch, text):
    """What vLLM answers for a text."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    more = ["[ARGS]"] if calls == "mistral_v11" else []
    name = "mistral" if more else calls
    switches = {} if switch is None else {"enable_thinking": switch, "thinking": switch}
    if reasoning == "hy_v3":
        switches = {} if switch is None else {"reasoning_effort": "high" if switch else "no_think"}
    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": "?"}],
        tools=[{"type": "function", "function": tool} for tool in TOOLS],
        tool_choice="auto",
        chat_template_kwargs=switches,
    )
    parser = ParserManager.get_parser(
        tool_parser_name=name, reasoning_parser_name=reasoning, enable_auto_tools=True
    )(Tokenizer(more), request.tools, chat_template_kwargs=switches)
    try:
        thought, content, called = parser.parse(text, request, enable_auto_tools=True)
    except Exception as error:
        return {"error": type(error).__name__}
    return {
        "reasoning": thought or None,
        "content": content or None,
        "calls": [[call.name, call.arguments] for call in called or []],
    }


def main():
    folder = sys.argv[1]
    sys.path[:0] = [folder, f"{folder}/deps"]
    sys.meta_path.append(Stubs())
    logging.disable(logging.CRITICAL)
    entries = []
    for reasoning, calls, switch, text, *is_whole in cases():
        entry = {"reasoning": reasoning, "tool_calls": calls, "thinking": switch, "text": text}
        entry["is_broken"] = True if False in is_whole else None
        entry = {key: value for key, value in entry.items() if value is not None}
        entries.append(json.dumps(entry | {"vllm": parts(reasoning, calls, switch, text)}, ensure_ascii=False))
    print(f'{{"vllm": "{VERSION}",\n"tools": {json.dumps(TOOLS)},\n"cases": [')
    print(",\n".join(entries))
    print("]}")


if __name__ == "__main__":
    main()
