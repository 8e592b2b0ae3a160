#!/usr/bin/env python3
"""200 questions with four choices each: writes `choices.jsonl`. `expected` is the right choice.

    python testdata/generate_choices.py
"""

import json
import random
from pathlib import Path

CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna "
        "Greece:Athens Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen "
        "Poland:Warsaw Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Ireland:Dublin "
        "Belgium:Brussels Switzerland:Bern Russia:Moscow Ukraine:Kyiv Turkey:Ankara "
        "Egypt:Cairo Kenya:Nairobi Ethiopia:Addis-Ababa Nigeria:Abuja Ghana:Accra "
        "Morocco:Rabat Algeria:Algiers Tunisia:Tunis Senegal:Dakar Japan:Tokyo China:Beijing "
        "India:New-Delhi Pakistan:Islamabad Bangladesh:Dhaka Thailand:Bangkok Vietnam:Hanoi "
        "Indonesia:Jakarta Malaysia:Kuala-Lumpur Philippines:Manila Iran:Tehran Iraq:Baghdad "
        "Israel:Jerusalem Jordan:Amman Lebanon:Beirut Canada:Ottawa Mexico:Mexico-City "
        "Cuba:Havana Brazil:Bras\u00edlia Argentina:Buenos-Aires Chile:Santiago Peru:Lima "
        "Colombia:Bogot\u00e1 Venezuela:Caracas Uruguay:Montevideo Australia:Canberra "
        "Iceland:Reykjav\u00edk Nepal:Kathmandu Mongolia:Ulaanbaatar Croatia:Zagreb"
    ).split()
)
WORDS = (
    "necessary separate definitely receive believe accommodate occurrence embarrass rhythm "
    "government environment calendar committee conscience experience foreign grammar guarantee "
    "harass immediately independent knowledge library maintenance millennium neighbour noticeable "
    "occasion parliament perseverance possession privilege publicly recommend reference "
    "restaurant schedule successful surprise threshold tomorrow tongue twelfth tyranny until "
    "vacuum vegetable weird whether wholly yacht address argument beginning business cemetery "
    "disappear discipline exercise existence"
).split()


def misspelled(word, rng):
    """A letter doubled, dropped, or two of them exchanged."""
    place = rng.randrange(1, len(word) - 1)
    return rng.choice((
        word[:place] + word[place] + word[place:],
        word[:place] + word[place + 1 :],
        word[:place] + word[place + 1] + word[place] + word[place + 2 :],
    ))


def others(right, make):
    """Three different ones that are not right."""
    found = []
    while len(found) < 3:
        other = make()
        if other != right and other not in found:
            found.append(other)
    return found


def arithmetic(rng):
    for _ in range(80):
        sign = rng.choice("+-*")
        a, b = (rng.randint(2, 12), rng.randint(2, 12)) if sign == "*" else (
            rng.randint(10, 99), rng.randint(2, 60))
        right = {"+": a + b, "-": a - b, "*": a * b}[sign]
        wrong = others(str(right), lambda: str(right + rng.choice((-10, -2, -1, 1, 2, 10, 11))))
        yield f"{a} {sign} {b} =", str(right), wrong


def facts(rng):
    names = [name.replace("-", " ") for name in CAPITALS.values()]
    for country, capital in CAPITALS.items():
        right = capital.replace("-", " ")
        yield (
            f"Question: What is the capital of {country}?\nAnswer:",
            right,
            others(right, lambda: rng.choice(names)),
        )


def spelling(rng):
    for word in WORDS[:60]:
        # The space at the end goes over to the choices.
        yield "The correct spelling of the word is ", word, others(
            word, lambda: misspelled(word, rng)
        )


def main():
    rng = random.Random(1234)
    rows = []
    for group, questions in (("arithmetic", arithmetic), ("facts", facts), ("spelling", spelling)):
        for number, (question, right, wrong) in enumerate(questions(rng)):
            choices = [right, *wrong]
            rng.shuffle(choices)
            rows.append({
                "id": f"{group}-{number:02}",
                "group": group,
                "question": question,
                "choices": choices,
                "expected": choices.index(right),
            })
    assert len(rows) == 200
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (Path(__file__).parent / "choices.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
