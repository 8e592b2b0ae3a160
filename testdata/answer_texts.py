"""Texts of answers: calls as Python writes them, and the forms of later models, whole and cut.

`FORMS` names for each tool-call parser of vLLM how a call and a list of calls are written; `texts`
makes the same set of answers in each form: kinds of arguments, several calls, text around them,
faults, and one answer cut at every few characters.
"""

import json

# Functions with arguments, as in generate_answers.py's TOOLS.
ARGUMENTS = [
    ("get_weather", {"city": "Rome"}),
    ("get_weather", {"city": "Zürich 🙂", "days": 3}),
    ("search", {"query": "a } { \" ' b", "exact": True}),
    ("search", {"query": "true", "score": 2.5, "limit": 7}),
    ("search", {"filters": {"x": {"y": [1, {}]}}, "tags": ["a", "b, c"]}),
    ("search", {"query": "two\nlines", "limit": None, "free": 12, "either": "5"}),
    ("search", {"query": " spaces ", "odd": "a b", "other": "3"}),
    ("now", {}),
]
CUT_EVERY = 7

# Calls as Python writes them.
PYTHONIC = [
    "",
    "Hello.",
    "[now()]",
    "[get_weather(city='Rome')]",
    '[get_weather(city="Rome", days=3)]',
    '[get_weather(city="Rome"), now()]',
    '[get_weather(city="Rome"),\n now( )]',
    "[search(query='a \\'b\\' \\n \\x41 \\u00e9 \\N{DASH}')]",
    "[search(query='a \\'b\\' \\n \\x41 \\u00e9 \\101', exact=True, limit=None)]",
    "[search(filters={'x': {'y': [1, 2.5, -3]}}, tags=['a', \"b\"], score=-1.5)]",
    "[search(exact=true, limit=null, score=+2)]",
    "[search(query='a' 'b')]",
    "[search(query='''a\n'b' c''')]",
    "[search(query=r'a\\n')]",
    "[search(score=1e3, days=1_000, limit=0x1F)]",
    "[search(score=.5, limit=5.)]",
    "[search(tags=('a', 'b'), either=(1,))]",
    "[search(tags={'a', 'b'}, filters={})]",
    "[search(filters={1: 'a', None: 2, 'b': True})]",
    "[search(query=f'abc')]",
    "[search(query=name)]",
    "[search(query=1 + 2)]",
    "[search(query=g(1))]",
    "[search(query=b'a')]",
    "[a.b.c(x=1)]",
    "[now(1)]",
    "[now(x=1, x=2)]",
    "[now(), ]",
    "[now()] Done.",
    "Let me see. [now()]",
    "[now()",
    "[get_weather(city='Rom",
    "[]",
    "[1, 2]",
    "[now(), 3]",
    "[get_weather(city='Zürich 🙂')]",
    "[search(query='[now()]', tags=['(', ')'])]",
    " [now()]",
    "[now()]\n",
    "[now(x=1,)]",
    "[now(x=(1), y=(), z=((1, 2), (3,),), w=(1, 2)), now(a={1, 2}, b={'x': (1)}, c=[1, ])]",
    "[now(x=(,))]",
    "[now(x=[1 2])]",
    "[now(x=--1)]",
    "[now(x=- 1)]",
    "[now(x=007)]",
    "[now(x=1j)]",
    "[now(x={'a': 1, 2})]",
    "[now(x='a\nb')]",
]

OLMO = [
    "Hello.",
    "<function_calls>get_weather(city='Rome')</function_calls>",
    "<function_calls>\nget_weather(city='Rome')\nsearch(exact=true, limit=null)\n</function_calls>",
    "Let me see.\n<function_calls>now()</function_calls>",
    "get_weather(city=\"Zürich 🙂\")",
    "now(), search(tags=['a'])",
    "<function_calls>get_weather(city='Ro",
    "<function_calls></function_calls>",
    "<function_calls>[now()]</function_calls>",
]

LLAMA4 = [
    "Hello.",
    "[get_weather(city='Rome'), now()]",
    "<|python_start|>[get_weather(city='Rome')]<|python_end|>",
    "<|python_start|>[get_weather(city='Rome')]",
    "<|python_start|>print(1)<|python_end|>",
]


def plain(value):
    """A value as XML-like forms write it: strings bare, all else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dsml(mark, name, arguments):
    lines = "".join(
        f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{plain(value)}</{mark}parameter>\n"
        for key, value in arguments.items()
    )
    return f'<{mark}invoke name="{name}">\n{lines}</{mark}invoke>\n'


def invoke(name, arguments):
    lines = "".join(
        f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in arguments.items()
    )
    return f'<invoke name="{name}">\n{lines}</invoke>\n'


def gemma4_value(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        members = [f"{key}:{gemma4_value(member)}" for key, member in value.items()]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma4_value, value)) + "]"
    return json.dumps(value)


def gemma4(name, arguments):
    return f"<|tool_call>call:{name}{gemma4_value(arguments)}<tool_call|>"


def function_gemma(name, arguments):
    members = [f"{key}:<escape>{plain(value)}<escape>" for key, value in arguments.items()]
    return f"<start_function_call>call:{name}{{{','.join(members)}}}<end_function_call>"


def as_object(keys=("name", "arguments")):
    return lambda name, arguments: json.dumps(dict(zip(keys, (name, arguments))), ensure_ascii=False)


def python(name, arguments):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def glm(name, arguments):
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def hunyuan(name, arguments):
    return glm(name, arguments).replace(f"<tool_call>{name}", f"<tool_call>{name}<tool_sep>")


def qwen(name, arguments):
    lines = "".join(
        f"<parameter={key}>{plain(value)}</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def command(name, arguments):
    call = {"tool_call_id": "0", "tool_name": name, "parameters": arguments}
    return json.dumps(call, ensure_ascii=False)


def between(start, end, separator="\n"):
    return lambda calls: start + separator.join(calls) + end


def each(start, end, separator="\n"):
    return lambda calls: separator.join(f"{start}{call}{end}" for call in calls)


# Parser: how a call is written, and how several are.
FORMS = {
    "deepseek_v32": (
        lambda *call: dsml("｜DSML｜", *call),
        between("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", ""),
    ),
    "deepseek_v4": (
        lambda *call: dsml("｜DSML｜", *call),
        between("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", ""),
    ),
    "deepseek_v41": (
        lambda *call: dsml("｜DSML｜ ", *call),
        between("<｜DSML｜ calls>\n", "</｜DSML｜ calls>", ""),
    ),
    "minimax_m2": (invoke, between("<minimax:tool_call>\n", "</minimax:tool_call>", "")),
    "dots": (invoke, between("<dots_function_call>\n", "</dots_function_call>", "")),
    "gemma4": (gemma4, between("", "", "")),
    "functiongemma": (function_gemma, between("", "", "")),
    "ernie45": (as_object(), each("<tool_call>\n", "\n</tool_call>\n")),
    "longcat": (as_object(), each("<longcat_tool_call>\n", "\n</longcat_tool_call>")),
    "hunyuan_a13b": (as_object(), between("<tool_calls>[", "]</tool_calls>", ", ")),
    "hy_v3": (hunyuan, between("<tool_calls>\n", "\n</tool_calls>")),
    "ling3": (glm, between("", "")),
    "poolside_v1": (glm, between("", "")),
    "mimo": (qwen, between("", "")),
    "lfm2": (python, between("<|tool_call_start|>[", "]<|tool_call_end|>", ", ")),
    "apertus": (
        lambda name, arguments: json.dumps({name: arguments}, ensure_ascii=False),
        between("<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    ),
    "granite-20b-fc": (as_object(), each("<function_call> ", "")),
    "gigachat3": (as_object(), each("<|function_call|>", "", "")),
    "cohere_command3": (command, between("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    ")),
}


def texts(name):
    """Answers of a form, and whether each is whole; the others are cut, or have a fault."""
    write, wrap = FORMS[name]
    calls = [write(*call) for call in ARGUMENTS]
    one, two = wrap(calls[:1]), wrap(calls[:2])
    whole = ["", "Hello."]
    whole += [wrap([call]) for call in calls]
    whole += [
        two,
        wrap(calls),
        f"Let me see.\n{one}",
        f"Let me see.\n\n{two}",
        f" \n{one}",
        f"{one}\nDone.",
        f"{one} Done. {one}",
        f"a {one} b {wrap(calls[3:4])} c",
        wrap([calls[0].replace("Rome", "")]),
    ]
    broken = [
        wrap([]),
        wrap([write("unknown", {"x": 1})]),
        wrap([calls[3].replace("2.5", "two")]),
        wrap([calls[3].replace("2.5", "1e3").replace("7", "007")]),
        wrap([calls[2].replace("true", "True").replace("exact", "tags")]),
        wrap([calls[0], "nonsense"]),
    ]
    answer = f"See.\n{wrap([calls[1], calls[4]])}"
    broken += [answer[:at] for at in range(5, len(answer), CUT_EVERY)]
    return dict.fromkeys(broken, False) | dict.fromkeys(whole, True)


# Reasoning parser: start and end of its thinking, and what begins a call.
THINKING = {
    "deepseek_v4": ("<think>", "</think>", "<｜DSML｜tool_calls>"),
    "minimax_m2": ("<think>", "</think>", "<minimax:tool_call>"),
    "nemotron_v3": ("<think>", "</think>", "<tool_call>"),
    "granite_thinking_parser": ("<think>", "</think>", "<tool_call>"),
    "mimo": ("<think>", "</think>", "<tool_call>"),
    "ling3": ("<think>", "</think>", "<tool_call>"),
    "ernie45": ("<think>", "</think>", "<tool_call>"),
    "poolside_v1": ("<think>", "</think>", "<tool_call>"),
    "hy_v3": ("<think>", "</think>", "<tool_calls>"),
    "gemma4": ("<|channel>thought\n", "<channel|>", "<|tool_call>"),
    "hunyuan_a13b": ("<think>\n", "\n</think>\n<answer>\n", "<tool_calls>"),
    "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>"),
}

# Texts of single forms, beside those of all.
OF_THINKING = {
    "ernie45": [
        "one\n</think>\n\n<response>\ntwo\n</response>\n",
        "one\n</think>\n<response>two",
        "one</think>two</response>",
        "<response>two</response>",
    ],
    "gemma4": [
        "thought\none<channel|>two",
        "one<channel|>two",
        "<|channel>one<channel|>two",
        "<|channel>thought<channel|>two",
        "<|channel>thought\n<channel|>two",
        "<|channel>thought\none<channel|>two<|channel>thought\nthree<channel|>four",
    ],
    "hunyuan_a13b": [
        "<think>\none\n</think>\n<answer>\ntwo\n</answer>",
        "<think>\n\n</think>\n<answer>\ntwo\n</answer>",
        "<think>\none\n</think>\ntwo",
        "<think>one</think><answer>two</answer>",
        "<answer>\ntwo\n</answer>",
        "two\n</answer>",
    ],
    "cohere_command3": [
        "<|START_THINKING|>one<|END_THINKING|><|START_RESPONSE|>two<|END_RESPONSE|>",
        "<|START_RESPONSE|>two<|END_RESPONSE|>",
        "<|START_THINKING|>one<|END_THINKING|><|START_RESPONSE|>two",
    ],
}

# Special tokens of these forms.
TAGS = (
    "<｜DSML｜function_calls> </｜DSML｜function_calls> <｜DSML｜tool_calls> </｜DSML｜tool_calls> "
    "<minimax:tool_call> </minimax:tool_call> <|channel> <channel|> <|tool_call> <tool_call|> "
    "<|turn> <|tool_response> <assistant> <tool_sep> <response> </response> <|tool_call_start|> "
    "<|tool_call_end|> <answer> </answer> <|START_THINKING|> <|END_THINKING|> "
    "<|START_RESPONSE|> <|END_RESPONSE|> <|START_ACTION|> <|END_ACTION|>"
).split() + ["<｜DSML｜ calls>", "</｜DSML｜ calls>"]
