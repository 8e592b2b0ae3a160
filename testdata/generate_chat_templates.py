#!/usr/bin/env python3
"""Render chat templates with Hugging Face transformers and save what comes out, for tests of our own renderer.

    python testdata/generate_chat_templates.py           # writes testdata/chat_templates/<name>.json

Run with: Python 3.11, transformers 5.23.0, Jinja2 3.1.6. The templates are written for this file: they have the shapes of the
well-known families' templates (their control flow, filters and whitespace tricks), not their text.

Every file: {name, features, template, bos_token, eos_token, now?, cases: [{messages, tools?, documents?, add_generation_prompt,
continue_final_message?, kwargs?, expected, error?, error_by?}]}. `expected` is null where rendering fails. `error` is then the message and `error_by` says whose it is: "template" for raise_exception,
whose text users must see, or "jinja", whose wording is Jinja's own and need not be matched. A token that is null is not defined in
the template. `now` is the frozen clock of strftime_now.
"""

import argparse
import datetime
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import jinja2
import transformers
from tokenizers import Tokenizer, models
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 1, 15, 9, 30, 0)


class FrozenClock:
    @staticmethod
    def now():
        return NOW


# -------------------------------------------------------------------------------------------------- conversations

def say(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather \"now\" in a <city> & its surroundings – été",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "days": {"type": "integer", "default": 1}, "scale": {"type": "number", "enum": [0.5, 1.0, 2e-7]}},
        "required": ["city"], "additionalProperties": False, "example": None}}}
OTHER_TOOL = {"type": "function", "function": {"name": "stop", "description": "Ends it", "parameters": {"type": "object", "properties": {}}}}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "exact": True, "unit": None}}}

PLAIN = [say("user", "What is 2 + 2?")]
SYSTEM = [say("system", "You are brief."), say("user", "Hello!")]
TURNS = [say("user", "Hi"), say("assistant", "Hello, how can I help?"), say("user", "Tell me a joke."),
         say("assistant", "No."), say("user", "Please?")]
SYSTEM_TURNS = [say("system", "Be kind.")] + TURNS
UNICODE = [say("user", "Déjà vu 😀 日本語 & <b>\"bold\"</b> 'quotes' \\ back\\slash {{ not_a_variable }} {% nor_a_block %}"),
           say("assistant", "<ok> & fine\u2028é"), say("user", "ß→ẞ İ 👩‍👩‍👧")]
SPACES = [say("system", "\n  Spaces around.  \n"), say("user", "  two lines\n\n\tand a tab \n"), say("assistant", "\n\nanswer\n"),
          say("user", "\n")]
EMPTY = [say("user", "")]
TWO_USERS = [say("user", "one"), say("user", "two")]
ENDS_WITH_ASSISTANT = [say("user", "Count."), say("assistant", "1, 2,")]
ODD_ROLE = [say("user", "Hi"), say("critic", "Bad.")]
THINKING = [say("user", "6 * 7?"), say("assistant", "<think>\nsix times seven\n</think>\n\n42"), say("user", "Sure?"),
            say("assistant", "<think>a</think>b</think>yes")]
REASONING = [say("user", "6 * 7?"), say("assistant", "42", reasoning_content="\nsix times seven\n"), say("user", "Sure?")]
TOOL_TURNS = [say("system", "Use tools."), say("user", "Weather in Zürich?"), say("assistant", "", tool_calls=[CALL]),
              say("tool", "{\"temp\": 21.5, \"sky\": \"<clear>\"}", name="get_weather"), say("tool", "second"),
              say("assistant", "21.5 degrees."), say("user", "Thanks")]
PARTS = [say("user", [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "what is it?"}]),
         say("assistant", [{"type": "text", "text": "A cat."}]), say("user", "ok")]

COMMON = [PLAIN, SYSTEM, TURNS, SYSTEM_TURNS, UNICODE, SPACES, EMPTY]


def case(messages, generate=True, tools=None, documents=None, go_on=False, **kwargs) -> dict:
    out = {"messages": messages}
    if tools is not None:
        out["tools"] = tools
    if documents is not None:
        out["documents"] = documents
    out["add_generation_prompt"] = generate and not go_on
    if go_on:
        out["continue_final_message"] = True
    if kwargs:
        out["kwargs"] = kwargs
    return out


# What agents send: calls and their results, thinking before calls, answers that go on, switches.
SMALL_TOOL = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {
    "type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number", "default": 1.0}}, "required": ["b"]}}}
ADD = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": 1e3}}}
NO_ARGUMENTS = {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": {}}}
RESULT = say("tool", "1002.0", tool_call_id="abcdefghi", name="add")
ASKED = [say("user", "1000 + 2?"), say("assistant", "", tool_calls=[ADD]), RESULT]
ASKED_TWICE = [say("user", "Both."), say("assistant", "I add <é>.", tool_calls=[ADD, NO_ARGUMENTS]), RESULT,
               say("tool", "{}", tool_call_id="123456789", name="add")]
THOUGHT_FIRST = [say("user", "1000 + 2?"), say("assistant", "", reasoning_content="I add.", tool_calls=[ADD]), RESULT]
DOCUMENTS = [{"title": "A", "text": "First <doc> & é"}, {"title": "B", "text": "second"}]
AGENTS = [
    case(PLAIN, tools=[SMALL_TOOL]), case(ASKED, tools=[SMALL_TOOL]), case(ASKED), case(ASKED_TWICE, tools=[SMALL_TOOL]),
    case([say("system", "Add.")] + ASKED + [say("assistant", "1002"), say("user", "So?")], tools=[SMALL_TOOL]),
    case(THOUGHT_FIRST, tools=[SMALL_TOOL]), case(ASKED + [say("assistant", "It is ")], tools=[SMALL_TOOL], go_on=True),
    case([say("user", "Hi"), say("assistant", " So")], tools=[SMALL_TOOL], go_on=True), case(PLAIN, documents=DOCUMENTS),
    case(PLAIN, tools=[SMALL_TOOL], enable_thinking=False), case(SYSTEM, thinking=True), case(SYSTEM, thinking=False),
]


@dataclass
class Shape:
    features: str
    template: str
    cases: list[dict] = field(default_factory=list)      # after the common ones
    bos: str | None = "<s>"
    eos: str | None = "</s>"
    common: bool = True
    clock: bool = False


# ------------------------------------------------------------------------------------------------------ templates

SHAPES: dict[str, Shape] = {}

SHAPES["llama2"] = Shape(
    "set in if, slices, loop.index0, alternation check, strip(), nested string concatenation",
    """{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set sys = messages[0]['content'] %}{% else %}\
{% set turns = messages %}{% set sys = false %}{% endif %}{% for m in turns %}\
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must go user/assistant/user/assistant/...') }}{% endif %}\
{% if loop.index0 == 0 and sys != false %}{% set content = '<<SYS>>\\n' + sys + '\\n<</SYS>>\\n\\n' + m['content'] %}\
{% else %}{% set content = m['content'] %}{% endif %}\
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    [case(TWO_USERS), case(ENDS_WITH_ASSISTANT, False)])

SHAPES["llama3"] = Shape(
    "loop.index0, trim filter, set then print, if at the end",
    """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    [case(TURNS, False), case(ENDS_WITH_ASSISTANT, False)], bos="<|begin_of_text|>", eos="<|eot_id|>")

SHAPES["llama31_tools"] = Shape(
    "strftime_now with a fallback, is defined, is not none, tojson(indent=4), in, tool_calls, ipython role, mapping test",
    """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes out of the list, so that it can be put in front. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "These functions exist:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    [case(PLAIN, date_string="1 Jan 2025"), case(TOOL_TURNS, tools=[TOOL, OTHER_TOOL]), case(SYSTEM, False, tools=[]),
     case([say("user", "x"), say("assistant", "", tool_calls=[CALL, CALL])]),
     case(PLAIN, builtin_tools=["brave_search", "code_interpreter", "wolfram_alpha"])] + AGENTS,
    bos="<|begin_of_text|>", eos="<|eot_id|>", clock=True)

SHAPES["chatml"] = Shape(
    "the shortest: concatenation in one print, no system default",
    """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    [case(TURNS, False), case(ODD_ROLE)], bos=None, eos="<|im_end|>")

SHAPES["qwen25_tools"] = Shape(
    "default system, tools block, tojson, loop.first, loop.last, neighbours by index, tool role grouping",
    """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwenlike, a helpful assistant.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nSignatures are within <tools></tools> tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nCall one with {\\"name\\": <name>, \\"arguments\\": <object>}<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwenlike, a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    [case(TOOL_TURNS, tools=[TOOL, OTHER_TOOL]), case(PLAIN, tools=[TOOL]), case(TOOL_TURNS[:4]), case(TURNS, False, tools=[])] + AGENTS,
    bos=None, eos="<|im_end|>")

SHAPES["qwen3_thinking"] = Shape(
    "namespace, messages[::-1], reasoning_content, split and index, lstrip/rstrip with argument, is string, is false, kwargs",
    """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    [case(THINKING, False), case(THINKING + PLAIN), case(REASONING), case(REASONING[:2], False), case(PARTS),
     case(TOOL_TURNS, tools=[TOOL]), case(TOOL_TURNS[:5], tools=[TOOL]), case(PLAIN, enable_thinking=False), case(PLAIN, enable_thinking=True),
     case([say("user", "x"), say("assistant", "y", tool_calls=[{"name": "f", "arguments": "{\"a\": 1}"}, CALL])], False)] + AGENTS,
    bos=None, eos="<|im_end|>")

SHAPES["switched_thinking"] = Shape(
    "DeepSeek V3.1's shape: a switch that the prompt ends with, calls after a marker, arguments printed as text or as JSON, namespace over messages",
    """{% if not thinking is defined %}{% set thinking = false %}{% endif %}{% set ns = namespace(system='', is_tool=false, in_user=false) %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system = ns.system + message['content'] %}{%- endif %}{%- endfor %}\
{{ bos_token }}{{ ns.system }}{%- if tools is defined and tools is not none %}{{ '\\n\\n## Tools\\n' }}{% for tool in tools %}\
{{ '### ' + tool.function.name + '\\n' + tool.function.description + '\\n' + (tool.function.parameters | tojson) + '\\n' }}{% endfor %}{% endif %}\
{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{%- set ns.in_user = true -%}{{ '<|User|>' + message['content'] }}{%- endif %}\
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}\
{%- if ns.in_user %}{{ '<|Assistant|></think>' }}{%- endif %}{%- set ns.in_user = false -%}{{ message['content'] or '' }}<|calls|>{%- for tool in message['tool_calls'] %}\
{{ '<|call|>' + tool['function']['name'] + '<|sep|>' }}{{ tool['function']['arguments'] if tool['function']['arguments'] is string else tool['function']['arguments'] | tojson }}<|end|>\
{%- endfor %}{{ '<|calls_end|>' + eos_token }}{%- elif message['role'] == 'assistant' %}\
{%- if ns.in_user %}{{ '<|Assistant|>' }}{% if message['prefix'] is defined and message['prefix'] and thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}{% endif %}\
{%- set ns.in_user = false -%}{%- set content = message['content'] -%}{% if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif %}{{ content + eos_token }}\
{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.in_user = false -%}{%- set ns.is_tool = true -%}{{ '<|output|>' + message['content'] + '<|output_end|>' }}{%- endif %}{%- endfor -%}\
{% if add_generation_prompt and ns.in_user and not ns.is_tool %}{{ '<|Assistant|>' }}{% if not thinking %}{{ '</think>' }}{% else %}{{ '<think>' }}{% endif %}{% endif %}""",
    AGENTS)

SHAPES["documents_first"] = Shape(
    "Granite's shape: a system text by what there is, lists as tojson(indent=4), documents one by one, a thinking switch, a role for each",
    """{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}\
{%- else %}{%- set system_message = 'Today is ' + strftime_now('%B %d, %Y') + '.' %}\
{%- if tools and documents %}{%- set system_message = system_message + ' Tools and documents.' %}{%- elif tools %}{%- set system_message = system_message + ' Tools.' %}\
{%- elif documents %}{%- set system_message = system_message + ' Documents.' %}{%- elif thinking %}{%- set system_message = system_message + ' Think.' %}{%- endif %}\
{%- set loop_messages = messages %}{%- endif %}{{- '<|role|>system<|/role|>' + system_message + '<|end|>\\n' }}\
{%- if tools %}{{- '<|role|>tools<|/role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end|>\\n' }}{%- endif %}\
{%- if documents %}{{- '<|role|>documents<|/role|>' }}{%- for document in documents %}{{- 'Document ' + loop.index0 | string + '\\n' }}{{- document['title'] + ': ' + document['text'] }}\
{%- if not loop.last %}{{- '\\n\\n' }}{%- endif %}{%- endfor %}{{- '<|end|>\\n' }}{%- endif %}\
{%- for message in loop_messages %}{{- '<|role|>' + message['role'] + '<|/role|>' }}{%- if message.tool_calls %}{{- '<|tool_call|>' + (message.tool_calls | map(attribute='function') | list | tojson) }}{%- endif %}\
{{- message['content'] + '<|end|>\\n' }}{%- if loop.last and add_generation_prompt %}{{- '<|role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson }}{%- endif %}{{- '<|/role|>' }}{%- endif %}{%- endfor %}""",
    AGENTS + [case(PLAIN, tools=[SMALL_TOOL], documents=DOCUMENTS), case(SYSTEM, documents=DOCUMENTS), case(PLAIN, controls={"length": "short"})], clock=True)

SHAPES["mistral_v1"] = Shape(
    "raise_exception on alternation, system folded into the first user turn, no generation prompt",
    """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    [case(TWO_USERS), case(ODD_ROLE), case(ENDS_WITH_ASSISTANT, False)])

SHAPES["mistral_v3_tools"] = Shape(
    "selectattr/list/last, namespace counter, tool items with a key filter, nested loops, break-free commas, message == last",
    """{%- set loop_messages = messages[1:] if messages[0]["role"] == "system" else messages %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate, but message " ~ loop.index ~ " is by " ~ message.role) }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and messages[0]["role"] == "system" %}
            {{- "[INST] " + messages[0]["content"] + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if tool_call.id is defined and tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id|default("000000000") + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    [case(TOOL_TURNS, tools=[TOOL, OTHER_TOOL]), case(TWO_USERS), case(ODD_ROLE), case(PLAIN, tools=[OTHER_TOOL]),
     case([say("user", "x"), say("assistant", "", tool_calls=[dict(CALL, id="abcdefghi")]), say("tool", 12.5), say("assistant", "y")], False),
     case([say("user", "x"), say("assistant", "", tool_calls=[dict(CALL, id="short")])])] + AGENTS)

SHAPES["gemma"] = Shape(
    "role mapping, raise_exception on system, trim, inline if with else",
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    [case(TWO_USERS), case(TURNS, False)], bos="<bos>", eos="<eos>")

SHAPES["gemma3_parts"] = Shape(
    "content as string or list of parts, is string / is iterable, system becomes a prefix, concatenation with inline if",
    """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""",
    [case(PARTS), case([say("system", [{"type": "text", "text": "Sys."}])] + PARTS, False), case([say("user", 5)]), case(TWO_USERS)],
    bos="<bos>", eos="<eos>")

SHAPES["phi3"] = Shape(
    "literal text between tags (trim_blocks matters), and-chains, empty else",
    """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}""",
    [case(TURNS, False), case([say("system", "")] + PLAIN), case(ODD_ROLE)], eos="<|endoftext|>")

SHAPES["zephyr"] = Shape(
    "bare newlines between blocks, loop.last and add_generation_prompt inside the loop",
    """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    [case(TURNS, False), case(ODD_ROLE)])

SHAPES["vicuna"] = Shape(
    "plain text with literal spaces, default system, no special tokens but eos, macros absent",
    """{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}{% set rest = messages[1:] %}{% else %}\
A curious user talks to a polite assistant. {% set rest = messages %}{% endif %}
{% for message in rest -%}
  {%- if message['role'] == 'user' %}USER: {{ message['content'].strip() }} {% elif message['role'] == 'assistant' %}\
ASSISTANT: {{ message['content'].strip() }}{{ eos_token }}
  {%- endif %}
{%- endfor %}
{% if add_generation_prompt %}ASSISTANT:{% endif %}""",
    [case(TURNS, False), case(ODD_ROLE)])

SHAPES["deepseek_r1"] = Shape(
    "namespace with many fields, set ns.x, split('</think>')[-1], is none, string flags, first pass collects the system prompt",
    """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is none %}{{ raise_exception('unreachable') }}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{%- if ns.is_tool %}{{'<|tool_outputs_end|>' + message['content'] + '<|end_of_sentence|>'}}{%- set ns.is_tool = false -%}\
{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<|Assistant|>' + content + '<|end_of_sentence|>'}}{%- endif %}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}\
{%- if ns.is_output_first %}{{'<|tool_outputs_begin|><|tool_output_begin|>' + message['content'] + '<|tool_output_end|>'}}\
{%- set ns.is_output_first = false %}{%- else %}{{'\\n<|tool_output_begin|>' + message['content'] + '<|tool_output_end|>'}}{%- endif %}{%- endif %}\
{%- endfor -%}{% if ns.is_tool %}{{'<|tool_outputs_end|>'}}{% endif %}\
{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}""",
    [case(THINKING, False), case(THINKING + PLAIN), case(TOOL_TURNS), case(TOOL_TURNS[:5])],
    bos="<|begin_of_sentence|>", eos="<|end_of_sentence|>")

SHAPES["command_r"] = Shape(
    "documents, conditional expressions with nested default, elif ladders, {% set x = '...' %} across lines, unless-false flags",
    """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}\
{% elif use_default_prompt == true %}{% set loop_messages = messages %}{% set system_message = 'You are a large model called Commandlike.' %}\
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}\
{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}\
{% if documents %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>' }}{% for document in documents %}{{ '
Document: ' }}{{ loop.index0 }}
{% for key, value in document.items() %}{{ key }}: {{value}}
{% endfor %}{% endfor %}{{ '</results><|END_OF_TURN_TOKEN|>' }}{% endif %}\
{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% set content = message['content'] %}\
{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
    [case(PLAIN, use_default_prompt=True), case(TWO_USERS), case(TURNS, False),
     case(PLAIN, documents=[{"title": "A & B", "text": "first <x>"}, {"title": "C", "text": "second\nline"}])],
    bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>")

SHAPES["alpaca"] = Shape(
    "headings and blank lines as template text, loop.first, capitalize and title, default filter with true",
    """{% for message in messages %}
{% if message.role == 'system' %}
{{ message.content | default('Below is an instruction.', true) }}

{% elif message.role == 'user' %}
### Instruction:
{{ message.content }}

{% elif message.role == 'assistant' %}
### Response:
{{ message.content }}{{ eos_token }}

{% else %}
### {{ message.role | capitalize }} / {{ message.role | title }}:
{{ message['content'] }}

{% endif %}
{% endfor %}
{% if add_generation_prompt %}
### Response:
{% endif %}
""",
    [case(TURNS, False), case(ODD_ROLE), case([say("system", "")] + PLAIN)])

SHAPES["base_concat"] = Shape(
    "what people put on base models such as OPT: contents joined, eos after assistant turns, undefined tokens print nothing",
    """{% for message in messages %}{{ message.content }}{{ eos_token if message.role == 'assistant' }}{% if not loop.last %}{{ "\\n" }}{% endif %}{% endfor %}[{{ bos_token }}|{{ pad_token }}|{{ no_such_variable }}]""",
    [case(TURNS, False), case(ENDS_WITH_ASSISTANT, False)], bos=None, eos="</s>")

SHAPES["generation_block"] = Shape(
    "{% generation %} ... {% endgeneration %} around assistant turns, with every whitespace control",
    """{% for message in messages %}
{% if message.role == 'assistant' %}
<|assistant|>
{% generation %}
{{ message.content }}{{ eos_token }}
{% endgeneration %}

{% elif message.role == 'user' %}
<|user|>
{%- generation -%}
   {{ message.content }}
{%- endgeneration %}

{% else %}
<|{{ message.role }}|>{% generation %} {{ message.content }} {% endgeneration -%}
   tail
{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}""",
    [case(TURNS, False), case(ENDS_WITH_ASSISTANT, False)])

SHAPES["loop_controls"] = Shape(
    "break and continue, loop filter with if, for-else, loop.length, loop.revindex, loop.previtem, loop.nextitem, loop.cycle, loop.changed",
    """{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.content == 'STOP' %}{% break %}{% endif %}
    {{- loop.index ~ '/' ~ loop.length ~ '(' ~ loop.revindex ~ ',' ~ loop.revindex0 ~ ') ' ~ loop.cycle('odd', 'even') ~ ' ' }}
    {{- loop.previtem.role if loop.previtem is defined else '-' }}{{ '>' ~ (loop.nextitem.role if not loop.last else '-') ~ ': ' }}
    {{- message.content ~ ('*' if loop.changed(message.role)) ~ '\\n' }}
{%- endfor %}
{%- for message in messages if message.role == 'critic' %}{{ 'critic ' ~ loop.index ~ ': ' ~ message.content ~ '\\n' }}
{%- else %}{{ 'no critic\\n' }}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}{{ loop.first ~ ' ' ~ loop.last ~ ' ' ~ loop.depth ~ ';' }}{%- endfor %}""",
    [case(ODD_ROLE), case([say("user", "a"), say("system", "skip"), say("user", "b"), say("user", "STOP"), say("user", "c")])])

SHAPES["tojson"] = Shape(
    "tojson: html left alone, unicode left alone, indent, separators, sort_keys, ensure_ascii, nested, floats, none and booleans",
    """{{ messages | tojson }}
{{ messages | tojson(indent=2) }}
{{ (tools or []) | tojson(indent=4, sort_keys=true) }}
{{ {'b': 1, 'a': [true, false, none, 1.0, 0.1, 1e100, 1e-7, -3, "<é&'>"], 'c': {}, 'd': []} | tojson }}
{{ {'b': 1, 'a': [], 'c': {}} | tojson(sort_keys=true, indent=1) }}
{{ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':')) }}
{{ "é😀<&>\\u2028\\t\\x7f" | tojson(ensure_ascii=true) }}
{{ "é😀<&>\\t\\"\\\\/" | tojson }} {{ 5 | tojson }} {{ none | tojson }} {{ [] | tojson(indent=2) }} {{ [[1], {}] | tojson(indent=2) }}""",
    [case(PLAIN, tools=[TOOL, OTHER_TOOL]), case(TOOL_TURNS)])

SHAPES["dict_methods"] = Shape(
    "items(), keys(), values(), get() with default, items and dictsort filters, in on dicts, nested loops over a JSON schema",
    """{%- for tool in tools or [] %}
{{- tool.function.name }}({{ tool.function.parameters.properties.keys() | join(', ') }}): {{ tool.function.description }}
{% for name, spec in tool['function']['parameters']['properties'].items() %}
  - {{ name }}: {{ spec.type }}{{ ' = ' ~ spec.default if 'default' in spec }}{{ ' (required)' if name in tool.function.parameters.required }}{{ ' one of ' ~ spec.enum | join('|') if spec.get('enum') }}
{% endfor %}
{% for name, spec in tool.function.parameters.properties | dictsort %}{{ name }}{{ '' if loop.last else ',' }}{% endfor %}
{% for key, value in tool.function.parameters | items %} {{ key }}={{ value | string | length if value is string else '…' }}{% endfor %}

{%- endfor %}
{% for m in messages %}
{{ m.get('role') }}|{{ m.get('name', 'anonymous') }}|{{ m.get('missing') is none }}|{{ m['missing'] is defined }}|{{ 'tool_calls' in m }}|{{ m.values() | list | length }}
{% endfor %}
{% set d = dict(a=1, b='two') %}{{ d.a }}{{ d['b'] }}{{ d | length }}{% for k in d %}{{ k }}{% endfor %}""",
    [case(PLAIN, tools=[TOOL, OTHER_TOOL]), case(TOOL_TURNS, tools=[TOOL])])

SHAPES["string_methods"] = Shape(
    "strip lstrip rstrip split rsplit splitlines replace upper lower title capitalize startswith endswith find count join format isdigit, slices",
    """{%- for message in messages %}
{%- set c = message.content %}
{{- '[' ~ c.strip() ~ '][' ~ c.lstrip() ~ '][' ~ c.rstrip() ~ '][' ~ c.strip(' \\n\\td') ~ ']\\n' }}
{{- c.split() | join('/') ~ ' ' ~ c.split(' ') | length ~ ' ' ~ c.split('o', 1) | join('#') ~ ' ' ~ c.split(' ')[-1] ~ '\\n' }}
{{- c.splitlines() | length ~ ' ' ~ c.upper() ~ ' ' ~ c.lower() ~ ' ' ~ c.title() ~ ' ' ~ c.capitalize() ~ '\\n' }}
{{- c.startswith('H') ~ ' ' ~ c.endswith('!') ~ ' ' ~ c.find('l') ~ ' ' ~ c.count('l') ~ ' ' ~ c.replace('l', 'L') ~ ' ' ~ c.replace('l', '1', 1) ~ '\\n' }}
{{- c[:5] ~ '|' ~ c[-3:] ~ '|' ~ c[1:-1] ~ '|' ~ c[::-1] ~ '|' ~ c[::2] ~ '|' ~ c | length ~ '|' ~ c[0:0] ~ '\\n' }}
{{- '-'.join(['a', 'b']) ~ ' ' ~ '{} and {}'.format(1, 'x') ~ ' ' ~ '{0}{1}{0}'.format('p', 'q') ~ ' ' ~ '%s=%d' % ('n', 3) ~ ' ' ~ '12'.isdigit() ~ ' ' ~ 'ab' * 2 ~ '\\n' }}
{{- ('ell' in c) ~ ' ' ~ ('zz' not in c) ~ ' ' ~ c.removeprefix('H') ~ ' ' ~ c.removesuffix('!') ~ '\\n' }}
{%- endfor %}""",
    [case([say("user", "a,b;  c")]), case([say("user", "ǅ ß ﬁ İi")])])

SHAPES["filters_and_tests"] = Shape(
    "selectattr rejectattr map list first last join unique reverse sort sum min max int float round abs default batch string, and the tests",
    """{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- set others = messages | rejectattr('role', 'eq', 'user') | list %}
{{- users | length ~ ' ' ~ others | length ~ ' ' ~ messages | map(attribute='role') | join(', ') ~ '\\n' }}
{{- messages | map(attribute='content') | map('trim') | map('upper') | join('~') ~ '\\n' }}
{{- (messages | first).role ~ ' ' ~ (messages | last).role ~ ' ' ~ messages | map(attribute='role') | unique | join('+') ~ '\\n' }}
{{- [3, 1, 2] | sort | join ~ ' ' ~ [3, 1, 2] | sort(reverse=true) | join ~ ' ' ~ [3, 1, 2] | reverse | list | join ~ ' ' ~ [3, 1, 2] | sum ~ ' ' ~ [3, 1, 2] | min ~ ' ' ~ [3, 1, 2] | max ~ '\\n' }}
{{- '12' | int + 1 }} {{ '1.5' | float * 2 }} {{ 2.567 | round(1) }} {{ -3 | abs }} {{ 'x' | int(7) }} {{ missing | default('d') }} {{ '' | default('e', true) }} {{ none | default('n') }}
{{ 'a b' | replace(' ', '_') }} {{ 'long text here' | truncate(9) }} {{ 'one two' | wordcount }} {{ 'x' | indent(2, true) }} {{ 'a\\nb' | indent }} {{ '<a>' | escape }} {{ '<a>' | safe }} {{ 'ab' | list | join('.') }} {{ 'mid' | center(7) }}.
{{ [1, 2, 3, 4, 5] | batch(2) | map('join', '-') | join(' ') }} {{ [['b', 2], ['a', 1]] | sort(attribute=0) | map('first') | join }} {{ range(2, 9, 3) | list | join(',') }}
{{ 1 is odd }} {{ 2 is even }} {{ 9 is divisibleby(3) }} {{ 'a' is string }} {{ 1 is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is boolean }} {{ none is none }} {{ [] is iterable }} {{ {} is mapping }} {{ [] is sequence }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ x is undefined }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 'a' is in 'abc' }} {{ true is true }} {{ 1 is sameas 1 }} {{ messages is callable }}
""",
    [case(TOOL_TURNS)])

SHAPES["expressions"] = Shape(
    "arithmetic, comparison chains, precedence of ~ | + and inline if, list concatenation, truthiness, tuples, unpacking, not in, numbers as text",
    """{{ 7 // 2 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 0.1 + 0.2 }} {{ 1.0 }} {{ 1e20 }} {{ 1e16 }} {{ 123456789.0 }} {{ 1e-5 }} {{ 10 ** 18 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ not true or true }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ none == false }} {{ 'x' and 'y' }} {{ '' or 'z' }} {{ 0 or none or [] or 'last' }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'a' + 'b' | upper }} {{ ('a' + 'b') | upper }} {{ 'yes' if messages | length > 1 else 'no' }} {{ 'gone' if false }}|
{{ ([1] + [2, 3]) | join(',') }} {{ (1, 2) | length }} {{ [1, 2, 3][-1] }} {{ [1, 2, 3][:2] | join }} {{ 'abc'[1] }} {{ 2 in [1, 2] }} {{ 3 not in (1, 2) }} {{ [[1, 2], [3, 4]][1][0] }}
{% for a, b in [(1, 'x'), (2, 'y')] %}{{ a }}{{ b }}{% endfor %} {% set p, q = 1, 2 %}{{ p + q }} {% if messages %}t{% endif %}{% if [] %}f{% endif %}{% if {} %}f{% endif %}{% if 0 %}f{% endif %}{% if ' ' %}t{% endif %}
{{ "esc \\n \\t \\" \\\\ \\u00e9 \\x41 \\'" }} {{ 'single "double"' }} {{ "a" "b" }} {{ {'k': 'v'}.k }} {{ {'k': 'v'}['k'] }} {{ {'items': 5}['items'] }}
""",
    [])

SHAPES["python_text"] = Shape(
    "values printed without a filter look like Python: True, None, lists and dicts with single quotes, nested strings quoted as repr does",
    """{{ true }} {{ false }} {{ none }} {{ [1, 'a', none, true, 1.0] }} {{ {'k': [1, {'n': "it's"}], 'q': '"'} }} {{ (1, 'x') }} {{ [] }} {{ {} }} {{ messages[0] }} {{ ['é', '\\n', '\\\\', '😀'] }} {{ 'a' ~ [1] }} {{ ['x'] | string }}
{% for m in messages %}{{ m.content | string }} {% endfor %}""",
    [case(PARTS), case(TOOL_TURNS)])

SHAPES["whitespace"] = Shape(
    "trim_blocks and lstrip_blocks together with -, + and comments; the last newline goes; CR and tabs stay",
    """start
  {% if true %}
 one
    {%- if true %}
 two
  {%+ if true %}
 three
  {% endif %}
    {% endif -%}
   four
  {# a comment #}
five {# inline #} six
	{% set x = 1 %}	tab
  {{ x }}
  {{- x }}
  {{ x -}}
  seven
{% endif +%}
{% if true +%}
eight
{% endif %}
{% raw %}{{ raw }} {% if %}{% endraw %}

{%- set block %}
 set
   block {{ x }}
{% endset -%}
<{{ block }}>
{% filter upper %}
filtered {{ messages[0].content }}
{% endfilter %}
end

""",
    [])

SHAPES["raw_blocks"] = Shape(
    "Qwen2-VL's newlines: the one after a raw tag stays, the one after its end goes, and - takes both",
    """{% for m in messages %}<|im_start|>{{ m.role }}{% raw %}
{% endraw %}
{{ m.content }}<|im_end|>{% raw %}

{% endraw %}[{% raw -%}
  {{ x }}
{%- endraw %}]
{% endfor %}""", common=False, cases=[case(SYSTEM)])

SHAPES["macros"] = Shape(
    "macros with defaults and keywords, a macro calling a macro, call blocks, set in loops does not leak, namespace does, recursion, with",
    """{%- macro turn(role, content, end='<|end|>', pad=0) -%}
    <|{{ role }}|>{{ ' ' * pad }}{{ content }}{{ end }}
{%- endmacro %}
{%- macro render(message) -%}
    {{ turn(message.role, message.content | trim, pad=loop_pad | default(1)) }}
{%- endmacro %}
{%- macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}
{%- macro schema(value, depth=0) -%}
    {%- if value is mapping -%}
        {%- for k, v in value.items() -%}{{ '\\n' + '  ' * depth + k + ':' }}{{ schema(v, depth + 1) }}{%- endfor -%}
    {%- elif value is string -%} {{ value }}
    {%- elif value is iterable -%} [{% for v in value %}{{ v }}{{ ', ' if not loop.last }}{% endfor %}]
    {%- else -%} {{ value }}
    {%- endif -%}
{%- endmacro %}
{%- set seen = 'outer' %}
{%- set ns = namespace(count=0, text='') %}
{%- for message in messages %}
    {%- set seen = 'inner' %}
    {%- set ns.count = ns.count + 1 %}
    {%- set ns.text = ns.text ~ message.role[0] %}
    {{- render(message) }}
{% endfor %}
{{- seen }} {{ ns.count }} {{ ns.text }} {{ turn('x', 'y', end='') }} {{ turn(content='b', role='a') }}
{% call wrap('b') %}inside {{ ns.count }}{% endcall %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}
{{ schema(tools[0].function.parameters.properties) if tools }}""",
    [case(PLAIN, tools=[TOOL])])

SHAPES["errors"] = Shape(
    "what fails and what does not: undefined values print nothing but break when added or looked into",
    """{% set what = what | default('none') %}
{% if what == 'add' %}{{ 'a' + messages[0].missing }}{% elif what == 'attribute' %}{{ messages[0].missing.deeper }}\
{% elif what == 'raise' %}{{ raise_exception('Only ' ~ messages | length ~ ' <messages> & "quotes"') }}\
{% elif what == 'index' %}[{{ messages[99] }}]{% elif what == 'index_deep' %}{{ messages[99].role }}\
{% elif what == 'loop' %}{% for m in missing %}x{% endfor %}empty\
{% elif what == 'type' %}{{ 'a' + 1 }}{% elif what == 'call' %}{{ missing() }}{% elif what == 'zero' %}{{ 1 // 0 }}\
{% elif what == 'filter_undefined' %}[{{ missing | trim }}][{{ missing | length }}][{{ missing | join(',') }}]\
{% elif what == 'truth' %}{{ 'yes' if missing else 'no' }}{{ missing == none }}{{ missing is none }}{{ not missing }}\
{% elif what == 'underscore' %}{{ messages[0].__class__ }}{% else %}{{ messages[0].content }}{{ messages[0].missing }}{% endif %}""",
    [case(PLAIN, what=w) for w in ("add", "attribute", "raise", "index", "index_deep", "loop", "type", "call", "zero", "filter_undefined",
                                   "truth", "underscore")])

SHAPES["syntax_error"] = Shape("a template that does not parse: every case fails", "{% for message in messages %}{{ message.content }}", common=False,
                               cases=[case(PLAIN)])

SHAPES["null_content"] = Shape(
    "transformers drops keys whose value is null before rendering, at the top level of a message only",
    """{% for m in messages %}{{ m.role }}:{{ m.content is defined }}:{{ m.content }}{% if m.tool_calls is defined %}:{{ m.tool_calls | length }}{% endif %};{% endfor %}""",
    [case([say("user", "x"), say("assistant", None, tool_calls=[CALL])]), case([say("user", "x", tool_calls=None), say("assistant", "y")])])

SHAPES["formats_and_defaults"] = Shape(
    "large numbers in formats, % with a literal, default by names, slices of tuples, partition, istitle",
    """{{ '{:,}'.format(1234567) }} {{ '%d' % (1234567,) }} {{ '%s!' % 'a' }}
{{ none | default('d') }} {{ false | d('x', boolean=true) }} {{ missing | default(default_value='m') }} {{ '' | default('e', true) }}
{{ (1, 2, 3)[1:] }} {{ 'abc'.partition('b') }} {{ 'a.b.c'.rpartition('.') }} {{ 'Ab Cd'.istitle() }} {{ 'Ab cd'.istitle() }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' == 'a' == 'b' }} {{ 1 in [1] in [[1]] }} {{ [1, 2] is eq [1, 2] }} {{ (1, 2) in [(1, 2)] }}\
{% for m in messages %}{{ loop.changed(m.role) }}{{ loop.cycle('x', 'y') }}{% endfor %}""", [case(TURNS)], common=False)

SHAPES["dates"] = Shape(
    "strftime_now formats, date from kwargs first",
    """{{ date | default(strftime_now('%Y-%m-%d')) }} {{ strftime_now("%d %B %Y") }} {{ strftime_now('%A %a %b %H:%M:%S %j %y %m %% %p %I') }}\
{% for m in messages %} {{ m.content }}{% endfor %}""",
    [case(PLAIN, date="2020-02-02")], clock=True)


# --------------------------------------------------------------------------------------------------------- render

def tokenizer_for(shape: Shape):
    tokens = {k: v for k, v in [("bos_token", shape.bos), ("eos_token", shape.eos)] if v is not None}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **tokens)


def rendered(tokenizer, template: str, one: dict) -> dict:
    """The case with what transformers makes of it."""
    try:
        text = tokenizer.apply_chat_template(
            one["messages"], tools=one.get("tools"), chat_template=template, tokenize=False,
            documents=one.get("documents"), add_generation_prompt=one["add_generation_prompt"],
            continue_final_message=one.get("continue_final_message", False), **one.get("kwargs", {}))
        return {**one, "expected": text}
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, ZeroDivisionError) as error:
        raised = type(error) is jinja2.exceptions.TemplateError      # by raise_exception; Jinja's own errors are subclasses
        return {**one, "expected": None, "error": str(error), "error_by": "template" if raised else "jinja"}


def file_of(name: str, shape: Shape) -> dict:
    tokenizer = tokenizer_for(shape)
    cases = ([case(m) for m in COMMON] if shape.common else []) + shape.cases
    head = {"name": name, "features": shape.features, "template": shape.template, "bos_token": shape.bos, "eos_token": shape.eos}
    if shape.clock:
        head["now"] = NOW.isoformat()
    return {**head, "cases": [rendered(tokenizer, shape.template, c) for c in cases]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "chat_templates", help="folder to write to")
    args = parser.parse_args()
    chat_template_utils.datetime = FrozenClock
    transformers.logging.set_verbosity_error()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, shape in SHAPES.items():
        data = file_of(name, shape)
        (args.out / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        failed = sum(c["expected"] is None for c in data["cases"])
        print(f"{name}: {len(data['cases'])} cases, {failed} of them errors")


if __name__ == "__main__":
    main()
