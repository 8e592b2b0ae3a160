#!/usr/bin/env python3
"""Render small templates with jinja2 as transformers sets it up, and save what comes out, for tests of our own renderer.

    python testdata/generate_jinja_expressions.py        # writes testdata/jinja_expressions.json

Run with: Python 3.11, transformers 5.24.0, Jinja2 3.1.6. The lists are those of jinja2's documentation (filters, tests, globals,
loop variables) and of Python's (methods of str, list, tuple, dict; `%`; str.format; strftime; literals).

The file: {now, messages, variables, cases: {group: [[template, expected, error?]]}}. `expected` is null where jinja2 raises: ours is an
error row. Templates in REFUSED work in jinja2 and are error rows of ours that name the feature.
"""

import copy
import datetime
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 5, 28, 20, 26, 40)


class FrozenClock:
    @staticmethod
    def now():
        return NOW


MESSAGES = [{"role": "system", "content": "Be <b>."}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Yes & no"},
            {"role": "user", "content": "a-b C"}]
VARIABLES = {
    "s": "Hello, World", "t": "  x y  ", "e": "", "u": "Straße ἀ ǆ", "h": "<a href='x'>\"&\"</a>", "n": 7, "f": 2.5, "z": 0, "neg": -3,
    "nums": [3, 1, 2, 10], "strs": ["b", "A", "c", "a"], "d": {"b": 1, "a": "x", "C": None}, "nested": {"a": {"b": [1, {"c": "deep"}]}},
    "objs": [{"n": "x", "v": 2}, {"n": "Y", "v": 1}, {"n": "x", "v": 3}], "empty": [], "yes": True, "no": False, "nil": None,
    "big": 2**256 - 1, "wide": 2**64, "lines": "one\ntwo\n\n  three\r\nfour", "long": "The quick brown fox jumps over the lazy dog",
    "floats": [0.1, 1e16, 1e-5, -0.0, 1.5],
}
G: dict[str, list[str]] = {}


def each(template: str, *values: str) -> list[str]:
    return [template.replace("@", value) for value in values]


LOOP = ["index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem", "cycle('x', 'y')",
        "changed(c)"]
G["loops"] = [f"{{% for c in {over} %}}{{{{ loop.{name} }}}},{{% endfor %}}" for name in LOOP
              for over in ("s", "nums", "d", "nums|map('string')", "d.items()", "range(3)", "nums|reverse")] + [
    "{% for c in s %}{{ c }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for c in e %}x{% else %}none{% endfor %}",
    "{% for c in s if c != 'l' %}{{ loop.index }}{{ c }}/{{ loop.length }} {% endfor %}", "{% for a, b in d.items() %}{{ a }}={{ b }};{% endfor %}",
    "{% for x in nums recursive %}{{ x }}{% if x == 3 %}{{ loop([7, 8]) }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for c in 'aé😀' %}{{ loop.revindex }}{{ c }}{% endfor %}", "{% for x in none %}x{% endfor %}", "{% for x in 5 %}x{% endfor %}",
    "{% for x in missing %}x{% else %}e{% endfor %}", "{{ loop is defined }}", "{% for a in 'ab' %}{% for b in 'cd' %}{{ loop.index }}{{ a }}{{ b }} {% endfor %}{% endfor %}",
    "{% for x in nums %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ x }}{% if loop.last %}!{% endif %}{% endfor %}",
    "{% for x in nums %}{{ loop }}{% endfor %}", "{% for x in nums %}{% if x == 1 %}{% break %}{% endif %}{{ loop.nextitem }}{% endfor %}"]
FILTERS = ["length", "count", "first", "last", "list", "join", "join('-')", "join(d='+')", "reverse|list", "reverse", "sort", "sort(reverse=true)",
           "unique|list", "max", "min", "sum", "string", "upper", "lower", "title", "capitalize", "trim", "int", "float", "abs", "round",
           "tojson", "e", "forceescape", "safe", "escape", "wordcount", "striptags", "urlencode", "default('q')", "default('q', true)", "d('q')",
           "batch(2)|list", "slice(2)|list", "batch(3, '-')|list", "slice(3, '-')|list", "map('upper')|list", "map('string')|join(',')",
           "select|list", "reject|list", "select('string')|list", "indent", "center(9)", "replace('l', 'L')", "truncate(6)", "format", "pprint",
           "filesizeformat", "dictsort", "items|list", "map('length')|list", "attr('x')", "random|length > 0 and false", "groupby(0)|list", "xmlattr"]
SUBJECTS = ["s", "t", "e", "h", "n", "f", "neg", "nums", "strs", "d", "empty", "yes", "nil", "missing", "lines", "(1, 'b')", "'12'", "'1.9'", "wide"]
G["filters"] = ["{{ " + f"{x}|{f}" + " }}" for f in FILTERS for x in SUBJECTS if "random" not in f]
G["filters of texts"] = [f"{{{{ {x} }}}}" for x in [
    "s|title", "'foo-bar (baz) <qux> o\\'neil'|title", "u|upper", "u|lower", "u|capitalize", "lines|indent(2)", "lines|indent(2, true)", "lines|indent(2, true, true)",
    "lines|indent(width='> ', first=true)", "lines|indent(blank=true)", "long|truncate(20)", "long|truncate(20, true)", "long|truncate(20, false, '!', 0)",
    "long|truncate(length=20, end='', leeway=0)", "long|truncate(2)", "long|truncate(43)", "long|truncate(38, leeway=4)", "'abc'|center(8)", "'abc'|center(9)", "'abc'|center|length",
    "s|replace('l', 'L', 1)", "s|replace('l', 'L', count=2)", "s|replace(old='l', new='L')", "s|replace('', '.')", "s|replace('l')", "5|replace(5, 6)", "' x '|trim|length",
    "'xxaxx'|trim('x')", "'xxaxx'|trim(chars='x')", "'a b_c d-e é\u0301'|wordcount", "'<p>a &amp; b</p><!-- x --> c'|striptags", "'a  b\\n c'|striptags",
    "'a b/c?d=é&'|urlencode", "{'a b': 'c/d', 'e': 1}|urlencode", "[('x', 1), ('y', '&')]|urlencode", "'%s-%s'|format('a', 1)", "'%(a)s'|format(a=2)", "'%s'|format('a', b=1)", "'%s'|format",
    "'%05.1f|%+d'|format(3.14159, 5)", "{'class': 'a b', 'id': none, 'x': 1, 'q': h}|xmlattr", "{'a': 1}|xmlattr(false)", "{'a': 1}|xmlattr(autospace=false)", "{'a b': 1}|xmlattr", "{}|xmlattr",
    "s|upper|lower|title", "5|upper", "nil|upper", "yes|lower", "nums|upper", "1000|filesizeformat", "1|filesizeformat", "0|filesizeformat", "999|filesizeformat", "1234567|filesizeformat",
    "1234567|filesizeformat(true)", "1024|filesizeformat(binary=true)", "1e30|filesizeformat", "'13'|filesizeformat", "d|pprint", "nested|pprint", "'a'|pprint", "1.0|pprint",
    "s|nosuchfilter", "s|split", "s|lines", "nums|zip(nums)", "s|bool", "s|chain", "s|length(1)", "s|upper(1)", "s|join(x=1)", "s|trim(charz='x')"]]
G["filters of numbers"] = [f"{{{{ {x} }}}}" for x in [
    *[f"{v}|int" for v in ("'42'", "' 42 '", "'-7'", "'+7'", "'1_000'", "'_1'", "'1__0'", "'42.9'", "'-0.9'", "'1e3'", "'inf'", "'nan'", "'abc'", "''", "none", "true", "[]", "{}", "missing", "3.99", "-3.99",
                           "'0x1A'", "'٣'", "big", "'99999999999999999999999999999999999999999999'", "1e20", "1e400", "'½'", "'１２'")],
    "'0x1A'|int(base=16)", "'0x1A'|int(0, 16)", "'1A'|int(0, 16)", "'0b11'|int(0, 2)", "'0o17'|int(0, 8)", "'0b11'|int(0, 0)", "'017'|int(0, 0)", "'zz'|int(0, 36)", "'zz'|int('no')", "'zz'|int(default=-1)", "nil|int(5)",
    "'12'|int(0, 1)", "'x'|int(none)", *[f"{v}|float" for v in ("'1.5'", "' 1e3 '", "'1_0.5'", "'inf'", "'-Infinity'", "'nan'", "'abc'", "none", "true", "7", "[]", "missing", "'.5'", "'5.'", "'1e400'", "big", "'0x1'", "'٣.٥'")],
    "'x'|float(1.5)", "'x'|float(default='d')", "none|float('n')", *[f"{v}|round" for v in ("2.5", "3.5", "-2.5", "2.4", "7", "true", "'2'", "none", "1e300", "0.5", "1.5")],
    "2.675|round(2)", "2.567|round(1)", "1234.5|round(-2)", "1250|round(-2)", "1350|round(-2)", "-1250|round(-2)", "2.5|round(0, 'floor')", "2.1|round(method='ceil')", "42.55|round(1, 'ceil')", "42.55|round(1, 'floor')", "7|round(0, 'ceil')", "2.5|round(1, 'x')",
    "2.5|round(precision=0)|int", "1250.5|round(-2)", "big|round(-3)", "-5|abs", "-5.5|abs", "'a'|abs", "true|abs", "big|abs", "(0 - big)|abs", "nums|sum", "nums|sum(start=10)", "objs|sum(attribute='v')", "objs|sum('v', 5)", "strs|sum", "strs|sum(start='')", "[[1], [2]]|sum(start=[])",
    "[1, true, 2.5]|sum", "[big, big]|sum", "[]|sum", "missing|sum", "nums|max", "strs|max", "strs|min", "strs|min(case_sensitive=true)", "objs|max(attribute='v')", "objs|min(attribute='v')|tojson", "[]|max", "[1, 'a']|max", "missing|min", "[1.5, 2, true]|max", "[big, 1]|max"]]
G["filters of lists"] = [f"{{{{ {x} }}}}" for x in [
    "nums|sort", "nums|sort(true)", "strs|sort", "strs|sort(case_sensitive=true)", "strs|sort(false, true)", "objs|sort(attribute='v')|map(attribute='v')|list", "objs|sort(attribute='n,v')|map(attribute='v')|list", "objs|sort(attribute='n', reverse=true)|map(attribute='v')|list",
    "[[2, 'b'], [1, 'a']]|sort(attribute=0)", "[[2, 'b'], [1, 'a']]|sort(attribute='1')", "[1, 'a']|sort", "[none, 1]|sort", "[true, 0, 2.5]|sort", "[[2], [1, 5]]|sort", "d|sort", "s|sort", "[big, 1, wide]|sort", "d|dictsort", "d|dictsort(true)",
    "{'x': 2, 'y': 1}|dictsort(by='value')", "{'x': 2, 'y': 1}|dictsort(false, 'value', true)", "d|dictsort(by='x')", "d|dictsort(by='value')", "{'a': {}}|dictsort", "strs|unique|list", "['a', 'A', 'b']|unique|list", "['a', 'A', 'b']|unique(true)|list", "[1, 1.0, true, '1']|unique|list", "[[1], [1]]|unique|list", "[(1,), (1,)]|unique|list", "objs|unique(attribute='n')|map(attribute='v')|list",
    "objs|groupby('n')|list|length", "objs|groupby('n')|map(attribute='grouper')|list", "objs|groupby('n')|map(attribute='list')|map('length')|list", "objs|groupby('n')|first", "objs|groupby('q', default='z')|first|first", "objs|groupby('n', case_sensitive=true)|map('first')|list", "[(1, 2), (1, 3)]|groupby(0)",
    "nums|map('string')", "nums|select", "nums|batch(2)", "nums|slice(2)", "nums|unique", "d|items", "nums|map('string')|length", "nums|select|length", "nums|map('string')|last", "nums|map('string')|first", "nums|map('string')|list|length", "nums|reverse|length", "nums|reverse|first", "nums|select|tojson", "(nums|select)[0]", "nums|select is iterable", "nums|select is sequence", "nums|select ~ 'x'", "nums|select|string",
    "nums|batch(0)|list", "nums|batch(3)|map('join', '-')|list", "nums|batch(linecount=3, fill_with=0)|list", "nums|slice(0)|list", "nums|slice(3)|list", "nums|slice(7)|list", "nums|slice(3, 0)|list", "s|batch(5)|list", "s|slice(3)|list", "objs|map(attribute='q')|list", "objs|map(attribute='q', default=0)|list", "objs|map(attribute='n')|list", "[nested]|map(attribute='a.b.1.c')|list", "[[1, 2]]|map(attribute=1)|list", "[[1, 2]]|map(attribute='1')|list",
    "strs|map('replace', 'a', 'z')|list", "strs|map('default', 'x')|list", "strs|map|list", "strs|map('nosuch')|list", "none|map('upper')|list", "missing|map('upper')|list", "5|map('upper')|list", "strs|map(attribute='n', x=1)|list", "nums|select('odd')|list", "nums|select('gt', 2)|list", "nums|select('>', 2)|list", "nums|reject('odd')|list", "nums|select('in', [1, 2])|list", "nums|select('divisibleby', 2)|list", "objs|selectattr('v', '>', 1)|map(attribute='v')|list", "objs|selectattr('v', 'equalto', 1)|list|length",
    "objs|rejectattr('n', 'eq', 'x')|list|length", "objs|selectattr('q')|list", "objs|selectattr('q', 'defined')|list", "objs|selectattr|list", "nums|select('nosuch')|list", "s|select('in', 'aeiou')|join", "nums|join(', ')", "objs|join(',', attribute='n')", "objs|join(',', 'v')", "s|join('.')", "d|join(',')", "[1, none, true, 1.5]|join(' ')", "missing|join", "5|join", "nil|join", "[]|join", "nums|join(5)", "[['a', 'b'], ['c']]|map('join')|join('/')",
    "s|first", "s|last", "e|first", "e|last", "d|first", "d|last", "d.items()|first", "d.values()|list", "range(5)|last", "5|first", "nil|first", "missing|last", "[]|first", "s|reverse", "d|reverse|list", "5|reverse", "nums|list|length", "5|list", "nil|length", "5|length", "d|length", "s|length", "u|length", "range(4)|length", "d.keys()|length", "s|list", "d|list", "nested|attr('a')", "s|attr('nope')"]]
G["tests"] = [f"{{{{ {x} is {t} }}}}" for t in ("boolean", "callable", "defined", "escaped", "even", "false", "float", "integer", "iterable", "lower", "mapping", "none", "number", "odd", "sequence", "string", "true", "undefined", "upper")
              for x in ("n", "f", "s", "yes", "no", "nil", "nums", "d", "missing", "wide", "big", "(1,)", "range(2)", "'ABC1'", "'abc1'", "''", "range", "d.keys()")] + [f"{{{{ {x} }}}}" for x in [
    "4 is divisibleby 2", "4 is divisibleby(3)", "4.5 is divisibleby 1.5", "big is divisibleby 5", "n is eq 7", "n is equalto 7.0", "n is ne 8", "n is gt 6", "n is ge 7", "n is lt 7", "n is le 7", "n is greaterthan 6", "n is lessthan 8", "'a' is in 'abc'", "n is in nums", "3 is in nums", "'b' is in d", "s is sameas s", "1 is sameas 1", "true is sameas true", "1 is sameas true", "none is sameas none",
    "'upper' is filter", "'nosuch' is filter", "'odd' is test", "'nosuch' is test", "s is nosuch", "n is not odd", "1 == true", "1 is eq true", "s is startingwith 'H'", "n is int", "'a' is gt 1", "true is integer", "true is number", "1.0 is integer", "s|e is escaped", "s|safe is escaped", "nil is not none", "(1 if false) is undefined", "s is divisibleby 2", "missing is even"]]
G["operators"] = [f"{{{{ {x} }}}}" for x in [
    "big", "big + 1", "big - big", "big * big", "big // 3", "big % 1000", "big / 2", "-big", "2 ** 200", "2 ** -1", "2 ** 0.5", "0 ** 0", "(-8) ** 2", "(-1) ** 101", "10 ** 40", "10 ** 40 + 1", "12345678901234567890123456789012345678901234567890", "12345678901234567890123456789012345678901234567890 + 1", "-12345678901234567890123456789012345678901234567890", "0xffffffffffffffffffff", "0b101", "0o17", "1_000_000", "1_0.5", "9223372036854775807 + 1", "-9223372036854775808 - 1", "9223372036854775808", "18446744073709551616", "wide * wide", "wide // 2", "wide == 2 ** 64", "big > wide", "big == big", "big != wide", "big < 1e300", "big == 1.157920892373162e77",
    "[big, wide]", "{'x': big}", "big ~ ''", "big|string|length", "big|tojson", "[big]|tojson", "{'x': wide, 'y': [big]}|tojson(indent=1)", "big in [1, big]", "big|float", "wide|float", "big is defined", "'yes' if big else 'no'", "big.bit_length()",
    "7 // 2", "-7 // 2", "7 // -2", "-7 % 3", "7 % -3", "7.5 // 2", "-7.5 // 2", "7.5 % 2", "-7.5 % 2", "1 / 3", "6 / 3", "1 // 0", "1 % 0", "1 / 0", "1.0 / 0", "0.0 // 1", "-0.0", "1e16", "1e15", "1.0", "1e22", "1e-4", "1e-5", "0.1 + 0.2", "1e308 * 10", "true + 1", "true + true", "true * 3", "-true", "3 * 'ab'", "'ab' * 3", "'ab' * 0", "'ab' * -1", "[1] * 2", "2 * [1]", "(1,) * 2", "'ab' * true", "'a' + 'b'", "'a' + 1", "1 + 'a'", "[1] + [2]", "[1] + (2,)", "(1,) + (2,)", "none + 1", "missing + 'a'", "missing + 1", "missing ~ 'a'", "-missing", "{} + {}", "'a' - 'b'", "'a' * 'b'", "[1] * [2]", "'a' / 2", "-'a'", "1 + 1.5", "2 * 1.5", "2 ** 3 ** 2", "-2 ** 2", "0 ** -1",
    "1 == 1.0", "1 == true", "0 == false", "'1' == 1", "none == none", "none == false", "missing == none", "missing == missing2", "[1, 2] == [1, 2]", "[1] == (1,)", "(1, 2) == (1, 2)", "{'a': 1} == {'a': 1.0}", "{'a': 1} == {'a': 1, 'b': 2}", "[1, [2]] == [1, [2.0]]", "[true] == [1]", "1 != 2", "'a' < 'b'", "'B' < 'a'", "'a' < 1", "none < 1", "[1, 2] < [1, 3]", "[1] < [1, 0]", "(1, 'a') < (1, 'b')", "[1, 'a'] < [1, 2]", "{} < {}", "missing < 1", "true < 2", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 > 1 > 0", "1 == 1.0 == true", "1 in [1] in [[1]]", "1 < 2 in [2]",
    "'a' in 'abc'", "'' in 'abc'", "1 in 'abc'", "1 in [1.0]", "true in [1]", "'a' in d", "'zz' in d", "'a' not in d", "1 in d", "[] in d", "1 in 5", "1 in none", "1 in missing", "missing in [1]", "missing in 'a'", "'x' in ('x', 'y')", "3 in range(5)", "'a' in d.keys()", "('a', 'x') in d.items()", "2 in nums|select", "not 1 in [1]", "not (1 not in [1])",
    "s ~ 1 ~ none ~ true ~ 1.5 ~ [1]", "1 ~ 2", "s and nums", "e or 'x'", "nil or e or 0", "not e", "not nums", "'a' if e else 'b'", "'a' if e", "(nums|select) and 'true'", "(empty|select) and 'true'", "'t' if empty|select else 'f'", "'t' if range(0) else 'f'", "'t' if d.keys() else 'f'", "'t' if {}.keys() else 'f'", "'t' if 0.0 else 'f'", "'t' if '0' else 'f'", "+5", "+'a'", "- -5", "1 if 2 > 1 else 3"]]
G["values"] = [f"{{{{ {x} }}}}" for x in [
    "floats", "d", "nested", "objs", "(1,)", "()", "(1, 'a', none)", "[]", "{}", "[[], {}]", "true", "none", "missing", "[missing]", "['a\\'b', 'c\"d', '\\'\"']", "['\\n\\t\\\\']", "['\\x00\\x7f\\u00ad\\u200b']", "d.keys()", "d.values()", "d.items()", "range(3)", "range(1, 7, 2)", "range(3)|list", "range(5, 0, -2)|list", "range(0)|list", "range(1, 2, 0)", "range(200000)", "range('a')", "range(3)[1]", "range(3)[-1]", "range(3) == [0, 1, 2]", "d['a']", "d.a", "d['zz']", "d.zz", "d.zz.y", "nums[0]", "nums[-1]", "nums[99]", "nums['a']", "s[0]", "s[-1]", "s[99]", "s['a']", "nums[1:3]", "nums[::-1]", "s[2:5]", "s[::-2]", "s[-3:]", "(1, 2, 3)[1:]", "nums[:none]", "5[0]", "nil.x", "n.x", "nums.x", "nested.a.b[1].c", "nested['a']['b'][0]", "namespace(a=1)", "namespace(a=1).a", "namespace().x", "dict(a=1, b=2)", "dict({'a': 1}, b=2)", "dict([('a', 1)])", "['<'|e]", "messages[0]", "messages[0]|tojson", "[1.0, 1e100, 0.1, -0.0]", "[true, none]|string", "s|e|string", "1_0", "d is mapping and d.a"]] + [
    "{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = 'xy' %}{{ a }}{{ b }}", "{% set a, b = [1] %}{{ a }}", "{% set x = nums|select('odd') %}{{ x|list }}{{ x|list }}", "{% set x = nums|map('string') %}{{ x|first }}{{ x|join }}", "{% set x %}a{{ n }}{% endset %}{{ x }}{{ x|length }}", "{% set x = 1 %}{% for i in nums %}{% set x = i %}{% endfor %}{{ x }}", "{% with a = 1 %}{{ a }}{% endwith %}{{ a }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}", "{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b", "{% set j = joiner() %}{% for x in nums %}{{ j() }}{{ x }}{% endfor %}", "{{ cycler() }}", "{% call(x) m2() %}{{ x }}{% endcall %}", "{% macro m() %}<{{ caller('q') }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}", "{{ raise_exception('no') }}", "{% do nums.append(1) %}", "{{ nums.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ nums.sort() }}", "{{ s.__class__ }}", "{{ ''.__class__.__mro__ }}"]
METHODS = {
    "capitalize": ["()"], "casefold": ["()"], "center": ["(20)", "(21, '*')", "(3)", "()"], "count": ["('l')", "('l', 4)", "('l', 0, 3)", "('')", "('l', -4)"], "endswith": ["('d')", "('World')", "(('x', 'd'))", "('o', 0, 5)", "('')", "(1)"], "expandtabs": ["()", "(4)"], "find": ["('l')", "('l', 4)", "('z')", "('', 3)", "('o', 5, 9)", "('o', -5)", "('', 99)"],
    "index": ["('l')", "('z')", "('o', 5)"], "isalnum": ["()"], "isalpha": ["()"], "isascii": ["()"], "isdecimal": ["()"], "isdigit": ["()"], "isidentifier": ["()"], "islower": ["()"], "isnumeric": ["()"], "isprintable": ["()"], "isspace": ["()"], "istitle": ["()"], "isupper": ["()"], "join": ["(['a', 'b'])", "('xyz')", "([1])", "(('a',))", "(d)", "()"],
    "ljust": ["(20)|length", "(15, '.')"], "lower": ["()"], "lstrip": ["()", "('He')"], "partition": ["(', ')", "('z')", "('')"], "removeprefix": ["('He')", "('x')"], "removesuffix": ["('ld')"], "replace": ["('l', 'L')", "('l', 'L', 2)", "('', '-')", "('l', 'L', -1)", "('l')"], "rfind": ["('l')", "('o', 0, 6)", "('z')"], "rindex": ["('o')", "('z')"], "rjust": ["(15, '.')", "(15, 'ab')"], "rpartition": ["('o')", "('z')"],
    "rsplit": ["()", "('o')", "('o', 1)", "(maxsplit=1)", "(none, 1)"], "rstrip": ["()", "('dl')"], "split": ["()", "(', ')", "('o', 1)", "('l', maxsplit=1)", "(sep='o')", "('')", "(none)", "(1)"], "splitlines": ["()", "(true)", "(keepends=true)"], "startswith": ["('He')", "(('x', 'He'))", "('llo', 2)", "(['He'])"], "strip": ["()", "('Hd')"], "swapcase": ["()"], "title": ["()"], "upper": ["()", "(1)"], "zfill": ["(15)", "()"]}
G["methods of texts"] = [f"{{{{ {x}.{m}{a} }}}}" for m, args in METHODS.items() for a in args for x in ("s", "t", "u", "lines")] + [f"{{{{ {x}.{m}() }}}}" for m in ("isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "isascii", "casefold", "swapcase", "title", "capitalize")
    for x in ("''", "'abc'", "'ABC'", "'123'", "'²'", "'½'", "'٣'", "'三'", "'हिन्दी'", "'Ⅷ'", "'ß'", "'ŉ'", "'ſtﬁ'", "'İ'", "'ΑΣ'", "'ꭰᏸ'", "'a\\tb'", "'\\u200b'", "'\\xa0'", "'Ab Cd'", "'aB'", "'ǅ'", "'1a'", "'_'")] + [f"{{{{ {x} }}}}" for x in [
    "'+5'.zfill(4)", "'-'.zfill(3)", "'a\\tb\\n\\tc'.expandtabs(4)", "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('a', 'b')", "'{a}'.format(a=1)", "'{a[b]} {a.b}'.format(a={'b': 2})", "'{0[1]}'.format(nums)", "'{!r} {!s} {!a}'.format('é', 'é', 'é')", "'{{}}'.format()", "'{}'.format()", "'{} {0}'.format(1)", "'{'.format()", "'}'.format()", "'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')", "'{:5}|{:5}'.format('a', 1)", "'{:.2f} {:e} {:g} {:%}'.format(3.14159, 1234.5, 0.00001, 0.25)", "'{:,} {:_} {:,.2f}'.format(1234567, 1234567, 1234.567)", "'{:010,} {:+} {: } {:-}'.format(1234, 5, 5, 5)", "'{:x} {:X} {:#x} {:b} {:#o} {:c} {:_b}'.format(255, 255, 255, 5, 8, 65, 255)", "'{:05d} {:<05d} {:=+6d}'.format(42, 42, 42)", "'{:.3}'.format('abcdef')", "'{:.3}'.format(1234.5)", "'{}'.format(1.0)", "'{:d}'.format('a')", "'{:d}'.format(1.5)", "'{:s}'.format(1)", "'{:{}}|'.format('a', 4)", "'{:{w}.{p}f}'.format(3.14159, w=8, p=2)", "'{}'.format(none)", "'{:5}'.format(none)", "'{}'.format([1, 'a'])", "'{}'.format(true)", "'{:d}'.format(true)", "'{:5}'.format(true)", "'{x}'.format()", "'{}'.format(big)", "'{:,}'.format(big)", "'{:x}'.format(big)", "'{:.3e}'.format(big)", "'{:z}'.format(1)", "'{:.0f} {:.0f} {:.1f}'.format(0.5, 1.5, 0.25)", "'{:g} {:g} {:g} {:G}'.format(1e20, 100000, 1234567, 1e-10)", "'{:#.3g} {:#g}'.format(1.0, 1)", "'{:n}'.format(5)", "'{} {}'.format(*[1, 2])", "'{a}'.format(**{'a': 3})", "'{a}'.format_map({'a': 1})", "'{0.upper}'.format('a') is string", "'{:08.3f}|{:+.1e}'.format(-3.14159, 12345)", "'{!x}'.format(1)", "'{:<}'.format('a')", "'{:>>3}'.format('a')", "'{:10.3s}|'.format('abcdef')", "'{:^+8.2f}'.format(2.5)",
    "nums.index(1)", "nums.index(99)", "nums.count(1)", "nums.copy()", "[1, 1.0, true].count(1)", "(1, 2).index(2)", "(1, 2, 1).count(1)", "nums.index(1, 2)", "(1, 2).copy()", "nums.nosuch()", "s.nosuch()", "d.get('a')", "d.get('zz')", "d.get('zz', 5)", "d.get('zz', default=5)", "d.get([])", "d.copy()", "d.keys()|list", "d.items()|list", "d.values()|sum", "{'a': 1}.items()|list", "d.keys()[0]", "d.setdefault('a')", "d.clear()", "n.bit_length()", "f.is_integer()", "2.0.is_integer()", "messages[1].content.upper()", "s.upper()[0]", "s.split(',')[1].strip()", "nil.x()", "missing.x()", "n.upper()"]]
G["percent"] = [f"{{{{ {x} }}}}" for x in [
    "'%s' % s", "'%s: ' % messages[1]['role']", "'%s' % messages[1].content|upper", "'%s' % (s,)", "'%s %s' % (s, n)", "'%s' % nums", "'%s' % (nums,)", "'%s' % d", "'%(a)s' % d", "'%(a)s %(b)d' % {'a': 1, 'b': 2}", "'%(zz)s' % d", "'%(a)s' % 5", "'%(a(b))s' % {'a(b)': 1}", "'%d' % 5", "'%d' % 5.9", "'%d' % -5.9", "'%d' % '5'", "'%d' % true", "'%d' % none", "'%d' % big", "'%i %u' % (1, 2)", "'%5d|%-5d|%05d|%+d|% d' % (1, 2, 3, 4, 5)", "'%.3d' % 5", "'%8.3d|' % 5", "'%+.3d' % 5", "'%x %X %#x %o %#o' % (255, 255, 255, 8, 8)", "'%x' % 1.5", "'%x' % -255", "'%#06x' % 255", "'%x' % big", "'%f %.2f %8.2f %-8.2f| %08.2f %+.1f' % (1.5, 1.005, 1.5, 1.5, 1.5, 1.5)", "'%e %E %.1e' % (1234.5, 1234.5, 1234.5)", "'%g %G %.3g %#g' % (1e-5, 1e20, 1234.5, 1.0)", "'%f' % 5", "'%f' % 'a'", "'%f' % big", "'%c%c' % (65, 'b')", "'%c' % 'ab'", "'%c' % 128512", "'%r %a' % ('é', 'é')", "'%s' % 'a\\'b'", "'%r' % 'a'", "'%5s|%-5s|%05s|%.2s|%5.1s|' % ('a', 'b', 'c', 'defg', 'hij')", "'%%'  % ()", "'100%%' % ()", "'%d%%' % 50", "'%*d|%-*d|%.*f' % (5, 1, 5, 2, 2, 3.14159)", "'%s'", "'%' % 1", "'%s' % ()", "'%s %s' % s", "'abc' % 5", "'abc' % s", "'abc' % []", "'abc' % {}", "'abc' % ()", "'abc' % nums", "'%s' % missing", "'%d' % missing", "'%y' % 1", "'%ld' % 5", "'%s' % none", "'%s' % true", "'%s' % 1.0", "'%s' % 1e16", "'%s' % (none,)", "('%s' ~ 'x') % 1", "s % 1", "('<b>%s</b>'|safe) % '<i>'", "'%s' % ('<'|e)", "('%d'|safe) % 5", "7 % 4 * 2", "'%s' % 1 + 2", "'%s' % (1 + 2)", "'%s' % n ~ 'x'", "'%s' % -n", "'%s' % not n", "'%s %%s' % 1 % 2", "'%(a)5s|%(a)-5s|' % {'a': 'x'}", "'%(a)s' % {'a': nums}", "'% 5d|%+5d' % (3, 4)", "'%.0f %.0f' % (0.5, 1.5)", "'%.10g' % 0.1", "'%5%|' % ()"]]
G["literals"] = ["{{ " + x + " }}" for x in [
    r"'\U0001F600'", r"'\u00e9\xe9\351'", r"'\101\60\0' ~ 'x'", r"'\a\b\f\v' | tojson", r"'\n|\t|\r' | tojson", r"'\\ \' \"'", r'"\" \'"', r"'\q\8\/\-\.'", r"'\N{BULLET}' | length > 99", r"'\x4'", r"'\u12'", r"'\U00110000'", r"'\1234'", r"'\777'", r"'\400' | length", "'\\\nx'", "'a\nb'", r"'\é' ~ 'x'", r"'a' 'b' 'c'", r"'\\n'", r"'\\\n' | length", r"'{{ }} {% %} {# #}'", r"'%}' ~ '}}'", "'\t'", r"'\x41\x7a'", r"'\u2028' | tojson", "1.5e3", "1e3", "1E-3", "007", "0", "00", "True", "False", "None", "true", "TRUE", "1.0e+2", "0x1F", "0XFF", "0B1", "'é😀'|length", "'\\ud83d\\ude00'|length > 9"] if "N{" not in x and "ud83d" not in x]
G["strftime"] = [f"{{{{ strftime_now('%{c}') }}}}" for c in "aAbBcCdDeFgGhHIjklmMnNpPqrRsStTuUvVwWxXyYzZ%EfLQ"] + [f"{{{{ strftime_now('%{c}') }}}}" for c in ("-d", "-m", "-H", "-I", "-j", "_d", "_m", "^a", "^B", "#p", "#Z", "0e", "5d", "010Y", "-y", "_H", "Ey", "Od", "-S", "-M", "_j", "^b", "#a", "-e", "_I", "3S")] + [
    "{{ strftime_now('%d %B %Y, 100% done %') }}", "{{ strftime_now('') }}", "{{ strftime_now() }}", "{{ strftime_now(5) }}", "{{ strftime_now(format='%Y') }}", "{{ strftime_now('été %Y') }}", "{{ strftime_now('%-d %b %Y')|upper }}"]
G["escaping"] = ["{{ " + x + " }}" for x in [
    "h|e", "h|escape", "h|forceescape", "h|e|e", "h|e|forceescape", "h|safe|e", "h|safe", "(h|e) + '<'", "'<' + (h|e)", "(h|e) ~ '<'", "h|e|upper", "h|e|length", "h|e|replace('&', '<')", "[h|e, '<']|join('<')", "nil|e", "5|e", "nums|e", "missing|e", "(h|e)[0:4] + '<'", "('<'|e) * 2 + '<'", "('a<'|safe).join(['<', '>'])", "('<b>'|safe).upper() + '<'", "('%s'|safe).replace('s', '<')", "('{}'|safe).format('<')", "('<a> <b>'|safe).split() | first + '<'", "('a'|e|trim) + '<'", "('<'|e|string) + '<'", "('x'|e|title) + '<'", "('x'|e|center(3)) + '<'", "('a\\nb'|e|indent) + '<'", "('x'|safe|capitalize) + '<'", "('x'|safe|lower) + '<'", "('x'|safe|reverse) + '<'", "('<x>'|safe|striptags) + '<'", "('x'|safe|list|first) + '<'", "(h|e)|tojson", "'/' | e", "'a&amp;b'|e", "('x'|safe|truncate(5)) + '<'", "('abcdefghijkl'|safe|truncate(5, true, '<', 0))", "('x'|safe|default('y')) + '<'", "('x'|safe|format) + '<'", "('%s'|safe|format('<')) + '<'"]] + [
    "{% autoescape true %}{{ h }}{{ h|safe }}{{ h|e }}{{ 5 }}{{ nums }}{{ ['<'] }}{% endautoescape %}{{ h }}", "{% autoescape false %}{{ h }}{% endautoescape %}", "{% autoescape true %}{{ h ~ '<' }}{{ (h|e) ~ '<' }}{{ '<' + h }}{% endautoescape %}", "{% autoescape true %}{{ ['<', '>']|join('&') }}{{ ['<'|safe, '>']|join('&') }}{{ h|replace('a', '<') }}{{ h|replace('a', '<'|safe) }}{% endautoescape %}", "{% autoescape true %}{% set x %}<b>{{ h }}</b>{% endset %}{{ x }}{% endautoescape %}", "{% autoescape true %}{% macro m(a) %}<i>{{ a }}</i>{% endmacro %}{{ m('<') }}{% endautoescape %}", "{% autoescape true %}{{ {'a': '<'}|xmlattr }}{{ h|upper }}{{ h|tojson }}{{ missing }}{{ none }}{% endautoescape %}", "{% autoescape true %}<p>{{ '<'|forceescape|safe }}{% endautoescape %}"]
# What works in jinja2, and what ours refuses by name: [template, what the error names].
REFUSED = [["{{ nums|random }}", "random"], ["{{ lipsum() }}", "lipsum"], ["{{ s|urlize }}", "urlize"], ["{{ long|wordwrap(10) }}", "wordwrap"], [r"{{ '\N{BULLET}' }}", r"\N{..}"],
           ["{{ s.encode() }}", "encode"], ["{{ s.translate({}) }}", "translate"], ["{{ 'a'.maketrans('a', 'b') }}", "maketrans"], ["{{ (objs + objs + objs)|pprint }}", "pprint"], ["{{ (-8) ** 0.5 }}", "complex"],
           ["{{ nums|map('string') }}", "iterator"], ["{{ nums|reverse }}", "iterator"], ["{{ nums|select ~ 'x' }}", "iterator"], ["{{ 'é'.isidentifier() }}", "isidentifier"], ["{{ '&eacute;'|striptags }}", "&eacute"], ["{{ u.isidentifier() }}", "isidentifier"],
           ["{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "too many arguments"]]
NOT_COMPARED = {t for t, _ in REFUSED}


def rendered(template: str) -> list:
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        text = compiled.render(messages=MESSAGES, tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **copy.deepcopy(VARIABLES))
        text.encode()
        if " at 0x" in text:
            return [template, None, "an object is printed"]
        return [template, text]
    except Exception as error:      # ours is an error row, whatever the kind
        return [template, None, f"{type(error).__name__}: {error}"[:100]]


def main() -> None:
    chat_template_utils.datetime = FrozenClock
    cases = {name: [rendered(t) for t in dict.fromkeys(templates) if t not in NOT_COMPARED] for name, templates in G.items()}
    head = {"now": NOW.isoformat(), "messages": MESSAGES, "variables": VARIABLES, "refused": REFUSED}
    lines = [json.dumps(head, ensure_ascii=False)[:-1] + ', "cases": {']
    for i, (name, group) in enumerate(cases.items()):
        lines.append(f"{json.dumps(name)}: [")
        lines.append(",\n".join(json.dumps(c, ensure_ascii=False) for c in group))
        lines.append("]," if i + 1 < len(cases) else "]")
    (Path(__file__).parent / "jinja_expressions.json").write_text("\n".join(lines) + "}}\n", encoding="utf-8")
    print(f"{sum(map(len, cases.values()))} cases, {sum(c[1] is None for g in cases.values() for c in g)} of them errors")


if __name__ == "__main__":
    main()
