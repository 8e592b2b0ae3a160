"""Makes eval_vectors.json: what the scorers of other tools say of fixed answers.

sacrebleu 2.6 (bleu, chrf of a sentence), rouge_score 0.1.2 (rougeL, no stemmer), inspect_ai 0.3.285 (f1, the letter of
`answer("letter")`), lm-eval 0.4.13 (acc, acc_norm and acc_bytes of `multiple_choice`; perplexities), lmms-eval 0.7.3 (VQA accuracy), jsonschema 4.26 (draft 2020-12), and SQuAD's own
normalization. Run by a Python that has them: lm-eval, lmms-eval and inspect_ai without their dependencies are enough, as single
functions of theirs are taken.
"""

import __future__

import ast
import importlib.util
import json
import math
import pathlib
import re
import statistics
import string
import sys
from collections import Counter

import jsonschema
import numpy
import sacrebleu
from rouge_score import rouge_scorer

TEXTS = [
    ("The cat sat on the mat.", ["The cat sat on the mat."]),
    ("A cat is sitting on a mat", ["The cat sat on the mat.", "There is a cat on the mat"]),
    ("the the the the", ["the cat"]),
    ("", ["something"]),
    ("   ", ["something"]),
    ("something", [""]),
    ("Ünïcode naïve café", ["Unicode naïve café"]),
    ("日本語のテキスト", ["日本語のテクスト"]),
    ("It costs $3.50, or 1,000.5 yen -- isn't it?", ["It cost 3.50 dollars (or 1,000.5 yen), isn't it?"]),
    ("Mr. O'Neill's \"quoted\" text &amp; more <tags>", ["Mr O'Neill quoted text & more tags"]),
    ("a b c d e f g h", ["h g f e d c b a"]),
    ("one two three four five", ["one two three", "three four five six"]),
    ("😀 smile 😀", ["😀 smile"]),
    ("line one\nline two\ttab", ["line one line two tab"]),
]

ANLS = [
    ("Coca-Cola Company", ["coca cola company", "The Coca-Cola  Company"]),
    ("  The   answer\n", ["the answer"]),
    ("$1,250.00", ["1250", "$1,250"]),
    ("yes", ["no"]),
    ("abcd", ["abxy"]),
    ("abcde", ["abxyz"]),
    ("", [""]),
    ("", ["x"]),
    ("Straße 5", ["STRASSE 5", "straße  5"]),
    ("ΟΔΟΣ", ["οδος", "οδός"]),
]

TEN = ["2", "2", "two", "2", "Two.", "3", "2 dogs", "two", "a two", "2"]
VQA = [
    ("two", TEN), ("The 2.", TEN), ("3", TEN), ("2 dogs", TEN), ("4", TEN), ("Two, dogs!", TEN), ("", TEN),
    ("dont know", ["don't know"] * 4 + ["no"] * 6), ("Don't know", ["dont know", "no", "don't know", "yes"]),
    ("the dog's", ["dog 's", "dogs", "dog's", "a dog's"]), ("none", ["0", "zero", "None", "no"]),
    ("red/blue", ["red blue", "red / blue", "redblue", "red, blue", "red-blue"]),
    ("3.5 p.m.", ["3.5 pm", "3.5 p.m.", "3.5pm", "35 pm"]), ("1,000", ["1000", "1,000", "1 000", "1000"]),
    ("U.S.A. (north)", ["usa north", "USA north", "u.s.a. north", "us"]), ("\\_x_", ["x", " x", "_x", "x y"]),
    ("." * 40 + "a.b", ["b", ".", "........ab", "ab"]), ("line\none\ttab", ["line 1 tab"] * 5),
    ("somebody'd", ["somebodyd"] * 4), ("Straße ÀÉ", ["straße àé"] * 3 + ["strasse"]),
]

LETTERS = [
    "ANSWER: B",
    "Reasoning.\nANSWER: c\nbecause",
    "ANSWER: A\nNo, wait.\nANSWER: D",
    "answer : E.",
]

CHOICES = [
    (["yes", "no"], [-1.0, -2.0], 0),
    (["no", "a much longer choice"], [-4.0, -6.0], 1),
    (["ab", "cd"], [-3.0, -3.0], 1),
    (["日本", "abc", "é"], [-6.0, -6.0, -2.5], 1),
    (["one two", "onetwo"], [-7.0, -6.0], 0),
]

SCHEMAS = [
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
     [{"a": 1}, {"a": 1.0}, {"a": 1.5}, {"a": "1"}, {}, [], {"a": 2, "b": None}]),
    ({"type": ["string", "null"], "minLength": 2, "maxLength": 3, "pattern": "^[a-zé]+$"},
     [None, "ab", "a", "abcd", "éé", "A1", 5]),
    ({"type": "array", "prefixItems": [{"const": "x"}], "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
     [["x"], ["x", 1, 2.5], ["y"], [], ["x", "y"], ["x", 1, 2, 3]]),
    ({"enum": [1, "a", [1, {"b": 2}], None]}, [1, 1.0, True, "a", [1, {"b": 2.0}], [1], None, 0]),
    ({"minimum": 1, "exclusiveMaximum": 2, "multipleOf": 0.1}, [1, 1.5, 1.55, 2, 0.9, "5"]),
    ({"allOf": [{"minimum": 1}], "anyOf": [{"multipleOf": 2}, {"multipleOf": 3}], "not": {"const": 6}},
     [2, 3, 4, 5, 6, 0]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, 3, 1.5, "a"]),
    ({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["v"]},
      "else": {"maxProperties": 1}}, [{"k": 1, "v": 2}, {"k": 1}, {"k": 2}, {"k": 2, "v": 1}, 7]),
    ({"properties": {"a": True}, "patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False},
     [{"a": 1}, {"x1": "s"}, {"x1": 1}, {"b": 1}, {}]),
    ({"additionalProperties": {"type": "boolean"}, "propertyNames": {"maxLength": 2}, "minProperties": 1},
     [{"ab": True}, {"abc": True}, {"a": 1}, {}]),
    ({"$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                         "required": ["kids"]}}, "$ref": "#/$defs/tree"},
     [{"kids": []}, {"kids": [{"kids": []}]}, {"kids": [{}]}, {}, 1]),
    ({"uniqueItems": True, "contains": {"type": "integer"}, "minContains": 2, "maxContains": 3},
     [[1, 2], [1, 1.0], [1, "a"], [1, 2, 3, 4], ["a", 1, 2], 5]),
    ({"title": "t", "description": "d", "format": "email", "default": 5, "examples": [1]}, ["no mail", 5]),
    (True, [1, None]),
    (False, [1, {}]),
]

LIKELIHOODS = [("The quick brown fox", -17.25), ("über naïve\n\nlines  here", -31.5), ("word", -2.125)]


def squad_words(text):
    """normalize_answer of SQuAD's evaluate-v1.1.py, split."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def squad_f1(answer, target):
    """f1_score of SQuAD's evaluate-v2.0.py."""
    answer, target = squad_words(answer), squad_words(target)
    if not answer or not target:
        return float(answer == target)
    same = sum((Counter(answer) & Counter(target)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(answer), same / len(target)
    return 2 * precision * recall / (precision + recall)


def levenshtein(a, b):
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def anls(answer, targets, threshold=0.5):
    """An equal of the published scorers of DocVQA's ANLS, as evaluation harnesses have them: texts in lower case with
    single spaces, and the length of the longer text in capitals as it was written."""
    values = []
    for target in targets:
        distance = levenshtein(" ".join(target.strip().lower().split()), " ".join(answer.strip().lower().split()))
        length = max(len(target.upper()), len(answer.upper()))
        values.append(0.0 if length == 0 else distance / length)
    score = 1 - min(values)
    return 0.0 if score < threshold else score


def vqa(answer, people):
    """textvqa_process_results of lmms-eval 0.7.3, whose processor is EvalAI's."""
    names = {}
    exec(source_of("lmms_eval", "tasks/_task_utils/vqa_eval_metric.py"), names)
    normal = names["EvalAIAnswerProcessor"]()
    answer, people = normal(answer), [normal(other) for other in people]
    shares = []
    for i in range(len(people)):
        others = [people[j] for j in range(len(people)) if i != j]
        shares.append(min(1, others.count(answer) / 3))
    return statistics.mean(shares)


def source_of(package, path):
    """The text of a file of a package that is not imported: it would import everything."""
    root = pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])
    return (root / path).read_text()


def inspect_letter():
    """inspect_ai's pattern."""
    names = {}
    exec(source_of("inspect_ai", "_util/pattern.py"), names)
    return re.compile(names["ANSWER_PATTERN_LETTER"])


def lm_eval_functions(path, wanted):
    """Functions of a file of lm-eval, without its imports and decorators."""
    tree = ast.parse(source_of("lm_eval", path))
    chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    for node in chosen:
        node.decorator_list = []
    names = {"math": math, "np": numpy}
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module(chosen, []), path, "exec", flags), names)
    return names


def choice(choices, logprobs, gold):
    """process_results of ConfigurableTask, output_type multiple_choice, of lm-eval 0.4.13."""
    lls = logprobs
    completion_len = numpy.array([float(len(i)) for i in choices])
    byte_length = numpy.array([float(len(i.encode("utf-8"))) for i in choices])
    picks = [numpy.argmax(lls), numpy.argmax(lls / completion_len), numpy.argmax(lls / byte_length)]
    return [float(pick == gold) for pick in picks]


def main():
    rouge = rouge_scorer.RougeScorer(["rougeL"])
    texts = []
    for answer, targets in TEXTS:
        texts.append({
            "answer": answer,
            "expected": targets,
            "bleu": sacrebleu.sentence_bleu(answer, targets).score / 100,
            "chrf": sacrebleu.sentence_chrf(answer, targets).score / 100,
            "rouge-l": max(rouge.score(target, answer)["rougeL"].fmeasure for target in targets),
            "f1": max(squad_f1(answer, target) for target in targets),
        })
    of_anls = [{"answer": text, "expected": targets, "anls": anls(text, targets)} for text, targets in ANLS]
    of_vqa = [{"answer": text, "expected": people, "vqa": vqa(text, people)} for text, people in VQA]
    pattern = inspect_letter()
    letters = [{"answer": text, "letter": pattern.search(text).group(1).upper()} for text in LETTERS]
    choices = [
        {"choices": texts_, "logprobs": logprobs, "expected": gold, "acc": choice(texts_, numpy.array(logprobs), gold)}
        for texts_, logprobs, gold in CHOICES
    ]
    wanted = {"weighted_perplexity", "weighted_mean", "bits_per_byte", "mean", "sample_stddev", "mean_stderr"}
    metrics = lm_eval_functions("api/metrics.py", wanted)
    words = [(ll, len(re.split(r"\s+", text))) for text, ll in LIKELIHOODS]
    of_bytes = [(ll, len(text.encode("utf-8"))) for text, ll in LIKELIHOODS]
    rows = [
        {"logprob": ll, "num_words": words[i][1], "num_bytes": of_bytes[i][1]} for i, (_, ll) in enumerate(LIKELIHOODS)
    ]
    perplexity = {
        "rows": rows,
        "word_perplexity": metrics["weighted_perplexity"](words),
        "byte_perplexity": metrics["weighted_perplexity"](of_bytes),
        "bits_per_byte": metrics["bits_per_byte"](of_bytes),
    }
    shares = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    mean = {"values": shares, "mean": metrics["mean"](shares), "stderr": metrics["mean_stderr"](shares)}
    valid = jsonschema.Draft202012Validator
    schemas = [{"schema": schema, "values": [[value, valid(schema).is_valid(value)] for value in values]}
               for schema, values in SCHEMAS]
    vectors = {"texts": texts, "anls": of_anls, "vqa": of_vqa, "letters": letters, "choices": choices, "perplexity": perplexity,
               "mean": mean, "schemas": schemas}
    path = pathlib.Path(__file__).parent / "eval_vectors.json"
    path.write_text(json.dumps(vectors, ensure_ascii=False, indent=1) + "\n")
    print(f"{path.name}: sacrebleu {sacrebleu.__version__}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
