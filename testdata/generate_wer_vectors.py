#!/usr/bin/env python3
"""Makes wer_vectors.json: errors of transcripts as jiwer counts them, and texts as Whisper's basic
normalizer leaves them. Needs jiwer 4.0 and transformers 5.24.
"""

import json
import random
from pathlib import Path

import jiwer
from transformers.models.whisper.english_normalizer import BasicTextNormalizer

PAIRS = [
    ("the cat sat on the mat", "the cat sat on the mat"),
    ("the cat  sat on a mat", "the cat sat on the mat"),
    ("", "nothing was said"),
    ("something else entirely was said here", "no"),
    ("It's  Mr. O'Neill's.", "its mr oneills"),
    ("naïve café", "naive cafe\u0301"),
    ("日本語 の テキスト", "日本語 テクスト"),
    (" leading and trailing ", "leading and trailing"),
]

TEXTS = [
    "  Hello, World!  It's 5:30 p.m. ",
    "[noise] so (laughs) we <unk> went on",
    "Ünïcode naïve café cafe\u0301 ﬁne ① ２０",
    "日本語、テキスト。",
    "a [b (c] d) e (f",
    "£5 + 3% = $8; №7 x² ½",
    "don’t “quote” – dash — em…",
    "हिन्दी में लिखा",
    "ΟΔΟΣ İstanbul STRASSE ß",
    "",
]


def random_pairs():
    rng = random.Random(7)
    words = ["a", "the", "of", "sea", "ship", "was", "old", "man"]
    for length in [1, 5, 63, 64, 65, 130, 200]:
        expected = [rng.choice(words) for _ in range(length)]
        answer = []
        for word in expected:
            what = rng.random()
            if what < 0.1:
                continue
            answer.append(rng.choice(words) if what < 0.2 else word)
            if what > 0.95:
                answer.append(rng.choice(words))
        yield " ".join(answer), " ".join(expected)


def counted(output):
    return {
        "errors": output.substitutions + output.deletions + output.insertions,
        "expected": output.substitutions + output.deletions + output.hits,
    }


pairs = []
for answer, expected in [*PAIRS, *random_pairs()]:
    pairs.append({
        "answer": answer,
        "expected": expected,
        "words": counted(jiwer.process_words(expected, answer)),
        "chars": counted(jiwer.process_characters(expected, answer)),
    })
answers, expected = [pair["answer"] for pair in pairs], [pair["expected"] for pair in pairs]
basic = BasicTextNormalizer()
vectors = {
    "pairs": pairs,
    "wer": jiwer.wer(expected, answers),
    "cer": jiwer.cer(expected, answers),
    "basic": [{"text": text, "plain": basic(text).strip()} for text in TEXTS],
}
out = Path(__file__).with_name("wer_vectors.json")
out.write_text(json.dumps(vectors, ensure_ascii=False, indent=1) + "\n")
