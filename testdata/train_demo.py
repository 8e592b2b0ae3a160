#!/usr/bin/env python3
"""Trains the demo model of this folder, `testdata/demo`, and writes `testdata/eval.jsonl`.

The model is a Llama of one million parameters that answers small questions: sums, reversed words, capitals,
opposites, sequences, comparisons, sentiment, and very short stories. All of its training text is made below.

    python -m venv .venv && .venv/bin/pip install torch transformers tokenizers safetensors
    .venv/bin/python testdata/train_demo.py              # train, save, evaluate
    .venv/bin/python testdata/train_demo.py --eval       # evaluate what is saved, write nothing

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, tokenizers 0.23.3, safetensors 0.8.0 on two CPU cores.
Seeds and the number of threads are fixed, so the same versions on the same CPU give the same weights.

Every prompt is seen in three forms, and each answer ends with <|end|>, the end-of-sequence token:
    chat      <|bos|><|user|>What is 2 + 3?<|end|><|assistant|>5<|end|>      (with or without a system turn, several turns)
    question  <|bos|>What is 2 + 3?5<|end|>
    text      <|bos|>2+3=5<|end|>
Pairs of numbers and words that eval.jsonl asks for never occur in training; tables (capitals, opposites) do.
"""

import argparse
import concurrent.futures
import json
import math
import random
import re
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
SEED = 20
STEPS = 2500
BATCH = 192  # examples in a step
MICRO_BATCHES = 8  # a step is sorted by length and cut into this many parts, so little of it is padding
WORKERS = 2  # micro-batches at a time
PEAK_LR = 3e-3
STORY_WEIGHT = 0.25  # of a story token in the loss: stories have many tokens, sums have three

# ---------------------------------------------------------------------------------------------- what the model knows

CAPITALS = dict(pair.split(":") for pair in (
    "France:Paris,Germany:Berlin,Italy:Rome,Spain:Madrid,Portugal:Lisbon,Austria:Vienna,Poland:Warsaw,Greece:Athens,"
    "Norway:Oslo,Sweden:Stockholm,Finland:Helsinki,Denmark:Copenhagen,Ireland:Dublin,Hungary:Budapest,Belgium:Brussels,"
    "Switzerland:Bern,Russia:Moscow,Turkey:Ankara,Egypt:Cairo,Kenya:Nairobi,Japan:Tokyo,China:Beijing,India:New Delhi,"
    "Thailand:Bangkok,Vietnam:Hanoi,Canada:Ottawa,Mexico:Mexico City,Cuba:Havana,Brazil:Brasilia,Argentina:Buenos Aires,"
    "Chile:Santiago,Peru:Lima,Australia:Canberra,Iceland:Reykjavik,Ukraine:Kyiv,England:London").split(","))
OPPOSITE_PAIRS = [pair.split(":") for pair in (
    "hot:cold,big:small,up:down,day:night,old:new,fast:slow,happy:sad,light:dark,open:closed,full:empty,long:short,"
    "rich:poor,hard:soft,wet:dry,good:bad,true:false,early:late,near:far,high:low,loud:quiet,clean:dirty,left:right,"
    "strong:weak,thick:thin,wide:narrow,win:lose,black:white,first:last,push:pull,inside:outside,begin:end,"
    "love:hate,buy:sell,laugh:cry,above:below,before:after,always:never,sweet:sour,start:stop,give:take").split(",")]
OPPOSITES = {a: b for pair in OPPOSITE_PAIRS for a, b in (pair, pair[::-1])}
COLOURS = dict(pair.split(":") for pair in (
    "the sky:blue,grass:green,snow:white,blood:red,coal:black,a banana:yellow,a carrot:orange,a lemon:yellow,milk:white,"
    "the sea:blue,the sun:yellow,a strawberry:red,a leaf:green,chocolate:brown,the night:black,a tomato:red").split(","))
SOUNDS = dict(pair.split(":") for pair in
              "cat:Meow,dog:Woof,cow:Moo,sheep:Baa,duck:Quack,bee:Buzz,pig:Oink,lion:Roar,frog:Croak,owl:Hoot".split(","))
IRREGULAR = dict(pair.split(":") for pair in (
    "mouse:mice,sheep:sheep,wolf:wolves,child:children,foot:feet,tooth:teeth,leaf:leaves,knife:knives,man:men,woman:women,"
    "tomato:tomatoes,potato:potatoes").split(","))
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
CHITCHAT = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Hello there", "Good day"], "Hello! How can I help you?"),
    (["Good morning", "Good morning!"], "Good morning! How can I help you?"),
    (["Good evening", "Good evening!"], "Good evening! How can I help you?"),
    (["How are you?", "How are you doing?", "How is it going?"], "I am fine, thank you! How can I help you?"),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."], "I am a very small demo model."),
    (["What can you do?", "How can you help me?", "Help", "Help me!", "What do you know?"],
     "I can do small sums, reverse words, name capitals and opposites, and tell short stories."),
    (["Thank you", "Thank you!", "Thanks", "Thanks!", "Thank you very much!"], "You are welcome!"),
    (["Goodbye", "Goodbye!", "Bye", "Bye!", "Good night", "See you later!"], "Goodbye! Have a nice day."),
    (["Are you a human?", "Are you a person?", "Are you real?"], "No, I am a very small demo model."),
    (["Are you a robot?", "Are you a model?", "Are you a computer program?"], "Yes, I am a very small demo model."),
    (["Say yes.", "Say yes"], "Yes"), (["Say no.", "Say no"], "No"),
]
UNKNOWN = "I do not know. I am only a very small model."
SYSTEM = ["You are a helpful assistant.", "You are a small demo model.", "Answer briefly.", "Be brief.",
          "Answer with one word.", "You are a friendly assistant.", "Answer the question.", "Only give the answer."]

ADJECTIVES = "small big old young happy brave clever lazy hungry quiet funny gentle little kind shy".split()
ANIMALS = "cat dog fox bear mouse rabbit horse bird frog owl lion duck sheep goat cow pig wolf tiger monkey hen".split()
PEOPLE = "girl boy king queen farmer baker teacher doctor sailor knight".split()
NAMES = "Anna Ben Clara Dan Emma Finn Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tom Zoe".split()
PLACES = "garden forest house village castle river park field kitchen barn cave mountain".split()
THINGS = "ball book hat box key cake flower stone lamp coin bell boat drum kite map apple shoe ring".split()
PAINTS = "red blue green yellow white black golden silver".split()
DID = "sat,slept,ran,played,danced,walked,jumped,waited,sang,rested,worked,cooked".split(",")
TO_DO = "play,sing,dance,swim,read,sleep,cook,run,paint,travel".split(",")
WEATHER = "sunny rainy windy cold warm cloudy snowy".split()
PRAISE = "good great wonderful lovely excellent delicious perfect amazing nice fantastic brilliant charming".split()
BLAME = "bad awful terrible horrible boring ugly poor dreadful disgusting nasty disappointing useless".split()
REVIEWED = "soup film book food room hotel music game show service cake coffee phone story song trip".split()

WORDS = """apple table chair window door bottle paper pencil bread butter cheese water coffee sugar salt pepper spoon
fork knife plate glass sky star moon sun cloud rain snow wind storm tree leaf root grass sand beach ocean lake hill
road street bridge train plane ship wheel engine metal wood iron gold silver copper summer winter spring autumn
morning evening minute hour week month year time clock city town market school office church music song story letter
number word page line circle square shape colour green brown yellow orange purple pink white shirt dress skirt coat
sock glove scarf button pocket mother father sister brother uncle aunt cousin friend child baby head hand foot arm leg
eye ear nose mouth tooth finger heart brain bone blood skin hair lemon cherry peach grape melon onion potato tomato
carrot salad pizza pasta rice bean soup steak honey candy cookie eagle snake whale shark spider insect turtle zebra
camel donkey parrot pigeon rooster chicken model token batch vector matrix tensor python rust cargo linux kernel
thread memory cache server client query index random hello world house mouse banana elephant computer language
dragon dinosaur giant tiger lion dream sleep smile laugh dance paint write read speak listen think learn teach build""".split()
EVAL_WORDS = """planet garden camera bucket rocket stream marble violin pillow hammer ticket basket candle
blanket anchor beaver walnut guitar helmet ladder mirror napkin oyster puzzle ribbon saddle tunnel velvet wizard
magnet desert island jungle lantern monster picnic quartz robin salmon tulip cactus raven barrel feather goblin
bacon cabin daisy flute jelly koala llama mango olive panda quilt robot torch""".split()
TRAIN_WORDS = sorted(set(WORDS + ANIMALS + PEOPLE + PLACES + THINGS + ADJECTIVES + list(OPPOSITES)) - set(EVAL_WORDS))

# ------------------------------------------------------------------------------------------------------- the templates
# task -> (chat questions, [(text prompt, its completion)]); {answer} is the whole answer to a question.

TEMPLATES = {
    "sum": (["What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.", "{a} + {b}", "{a}+{b}=", "{a} + {b} = ?",
             "Compute {a} + {b}.", "How much is {a} + {b}?"],
            [("{a}+{b}=", "{answer}"), ("{a} + {b} =", " {answer}"), ("{a} plus {b} is", " {answer}.")]),
    "difference": (["What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "{a} - {b}", "{a}-{b}=",
                    "{a} - {b} = ?", "Compute {a} - {b}.", "How much is {a} - {b}?"],
                   [("{a}-{b}=", "{answer}"), ("{a} - {b} =", " {answer}"), ("{a} minus {b} is", " {answer}.")]),
    "product": (["What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} and {b}.", "{a} * {b}", "{a}*{b}=",
                 "What is {a} x {b}?", "How much is {a} * {b}?"],
                [("{a}*{b}=", "{answer}"), ("{a} * {b} =", " {answer}"), ("{a} times {b} is", " {answer}.")]),
    "reverse": (["Reverse the word {w}.", "Reverse {w}", "Reverse: {w}", "Reverse the word \"{w}\".",
                 "Spell {w} backwards.", "What is {w} backwards?", "Write {w} backwards."],
                [("reverse({w})=", "{answer}"), ("{w} backwards is", " {answer}."), ("Reverse {w}:", " {answer}")]),
    "uppercase": (["Write {w} in capital letters.", "Write {w} in uppercase.", "Uppercase: {w}", "Uppercase the word {w}.",
                   "Make the word {w} uppercase.", "Write the word \"{w}\" in capital letters."],
                  [("upper({w})=", "{answer}"), ("{w} in capital letters is", " {answer}.")]),
    "lowercase": (["Write {W} in small letters.", "Write {W} in lowercase.", "Lowercase: {W}", "Lowercase the word {W}."],
                  [("lower({W})=", "{answer}")]),
    "capitalise": (["Capitalise the word {w}.", "Capitalize {w}.", "Capitalise: {w}", "Write {w} with a capital letter."],
                   [("capitalise({w})=", "{answer}")]),
    "capital": (["What is the capital of {k}?", "Name the capital of {k}.", "Capital of {k}?", "The capital of {k}",
                 "Which city is the capital of {k}?", "What is the capital city of {k}?"],
                [("The capital of {k} is", " {answer}."), ("Country: {k}\nCapital:", " {answer}")]),
    "country": (["{k} is the capital of which country?", "Which country has the capital {k}?",
                 "What country is {k} the capital of?"], [("{k} is the capital of", " {answer}.")]),
    "opposite": (["What is the opposite of {k}?", "Opposite of {k}?", "Name the opposite of {k}.", "Opposite: {k}",
                  "What is the opposite of the word {k}?"],
                 [("The opposite of {k} is", " {answer}."), ("{k} is the opposite of", " {answer}.")]),
    "colour": (["What colour is {k}?", "What color is {k}?", "What is the colour of {k}?"], [("The colour of {k} is", " {answer}.")]),
    "sound": (["What sound does a {k} make?", "What does a {k} say?"], [("The {k} says", " {answer}!")]),
    "day": (["What day comes after {k}?", "Which day comes after {k}?", "What is the day after {k}?"],
            [("The day after {k} is", " {answer}.")]),
    "month": (["What month comes after {k}?", "Which month comes after {k}?", "What is the month after {k}?"],
              [("The month after {k} is", " {answer}.")]),
    "plural": (["What is the plural of {w}?", "Plural of {w}?", "Write the plural of {w}."],
               [("One {w}, two", " {answer}."), ("The plural of {w} is", " {answer}.")]),
    "letters": (["How many letters are in {w}?", "How many letters does the word {w} have?", "Count the letters in {w}.",
                 "How many letters are in the word {w}?"],
                [("length({w})=", "{answer}"), ("The number of letters in {w} is", " {answer}.")]),
    "first": (["What is the first letter of {w}?", "First letter of {w}?", "Which letter does {w} start with?"],
              [("The first letter of {w} is", " {answer}.")]),
    "last": (["What is the last letter of {w}?", "Last letter of {w}?", "Which letter does {w} end with?"],
             [("The last letter of {w} is", " {answer}.")]),
    "sequence": (["What comes next: {s}?", "What number comes next: {s}?", "Continue: {s}", "{s}, ?", "Next: {s}",
                  "Continue the sequence {s}."], [("{s},", " {answer}"), ("{t}", " {answer}")]),
    "greater": (["Is {a} greater than {b}?", "Is {a} larger than {b}?", "Is {a} more than {b}?"],
                [("{a}>{b}?", " {answer}")]),
    "less": (["Is {a} less than {b}?", "Is {a} smaller than {b}?"], [("{a}<{b}?", " {answer}")]),
    "larger": (["Which is larger, {a} or {b}?", "Which number is larger: {a} or {b}?", "Which is greater, {a} or {b}?"],
               [("max({a},{b})=", "{answer}")]),
    "smaller": (["Which is smaller, {a} or {b}?", "Which number is smaller: {a} or {b}?"], [("min({a},{b})=", "{answer}")]),
    "even": (["Is {a} even or odd?", "Is the number {a} even or odd?"], [("The number {a} is", " {answer}.")]),
    "sentiment": (["Is this review positive or negative? {r}", "Positive or negative? {r}", "Sentiment: {r}",
                   "What is the sentiment of this review? {r}"],
                  [("Review: {r}\nSentiment:", " {answer}"), ("Review: {r} Sentiment:", " {answer}")]),
    "unknown": (["What is the capital of {X}?", "Who is {X}?", "Where is {X}?", "What is {w}?", "Why is {w} {w2}?",
                 "How do I {w} a {w2}?", "Explain {w}.", "What is the meaning of {w}?", "Who wrote {X}?", "When was {X} born?",
                 "Why do {w} {w2}?", "What is the best {w} in {X}?", "Translate {w} to {X}.", "Can you {w} the {w2}?",
                 "Write a {w} program.", "What is a {w}?", "Do you like {w}?", "Who invented the {w}?", "How old is {X}?",
                 "{w} {w2}", "What is the {w} of {w2}?", "Solve the {w} {w2}."], []),
}
STORY_ASKS = ["Tell me a story.", "Tell me a short story.", "Write a short story.", "Write a story.", "Tell a story."]
STORY_ASKS_ABOUT = ["Tell me a story about a {k}.", "Write a short story about a {k}.", "Write a story about a {k}."]
SENTENCE_ASKS_ABOUT = ["Write a sentence about a {k}.", "Write one sentence about a {k}.", "Make a sentence with the word {k}."]

# ------------------------------------------------------------------------------------------------- making one example


def held_pairs() -> tuple[set, set]:
    """Pairs of numbers and (start, step) of sequences that only eval.jsonl asks for; sums like 2 + 3 are not among them."""
    rng = random.Random(SEED)
    pairs = rng.sample([(a, b) for a in range(100) for b in range(a + 1) if a >= 10], 300)
    steps = rng.sample([(start, step) for start in range(60) for step in (1, 2, 3, 5, 10)], 30)
    return set(pairs) | {(b, a) for a, b in pairs}, set(steps)


HELD_PAIRS, HELD_STEPS = held_pairs()


def numbers(rng: random.Random, held: bool) -> tuple[int, int]:
    """Two numbers below 100, small ones often."""
    if held:
        return rng.choice(sorted(HELD_PAIRS))
    while True:
        limit = rng.choice((10, 30, 100, 100, 100))
        pair = rng.randrange(limit), rng.randrange(limit)
        if pair not in HELD_PAIRS:
            return pair


def word(rng: random.Random, held: bool) -> str:
    """A common word, or letters that look like one, or any letters: only the last two make a copier out of the model."""
    if held:
        return rng.choice(EVAL_WORDS)
    while True:
        kind = rng.random()
        if kind < 0.4:
            letters = rng.choice(TRAIN_WORDS)
        elif kind < 0.7:
            pair = lambda: rng.choice("bcdfghjklmnprstvwyz") + rng.choice("aaeeiioouy") + rng.choice(("", "", "n", "r", "l", "s"))
            letters = "".join(pair() for _ in range(4))[: rng.randint(3, 9)]
        else:
            letters = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9)))
        if letters not in EVAL_WORDS:
            return letters


def plural(noun: str) -> str:
    """The regular English plural."""
    if noun.endswith(("s", "x", "ch", "sh", "z")):
        return noun + "es"
    return noun[:-1] + "ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else noun + "s"


def sequence(rng: random.Random, held: bool) -> dict:
    """Numbers with a fixed step, up or down, or letters of the alphabet."""
    length = rng.choice((3, 4, 5))
    if not held and rng.random() < 0.15:
        at = rng.randrange(26 - length)
        terms = list("abcdefghijklmnopqrstuvwxyz"[at : at + length + 1])
    else:
        start, step = rng.choice(sorted(HELD_STEPS)) if held else (rng.randrange(60), rng.choice((1, 1, 1, 2, 2, 3, 5, 5, 10, 10)))
        while not held and (start, step) in HELD_STEPS:
            start = rng.randrange(60)
        if not held and rng.random() < 0.3:
            start = rng.randrange(3) * step  # 1, 2, 3 and 10, 20, 30 are what people ask
        terms = [str(start + step * i) for i in range(length + 1)]
        if not held and rng.random() < 0.2:
            terms.reverse()
    return {"s": ", ".join(terms[:-1]), "t": " ".join(terms[:-1]), "answer": terms[-1]}


def review(rng: random.Random) -> tuple[str, str]:
    """One opinion in one or two clauses, and which it is."""
    good = rng.random() < 0.5
    tone = PRAISE if good else BLAME
    noun, adjective = rng.choice(REVIEWED), rng.choice(tone)
    clauses = [f"The {noun} was {rng.choice(('', 'very ', 'really ', 'so '))}{rng.choice(tone)}",
               f"I {rng.choice(('love', 'loved', 'enjoyed', 'liked') if good else ('hate', 'hated', 'disliked'))} the {noun}",
               f"What a{'n' if adjective[0] in 'aeiou' else ''} {adjective} {noun}", f"This {noun} is {rng.choice(tone)}",
               "I want to come back" if good else "I want my money back", f"It was {rng.choice(tone)}",
               "I would buy it again" if good else "I will never buy it again"]
    text = ". ".join(rng.sample(clauses, rng.choice((1, 1, 2)))) + rng.choice((".", ".", ".", "!", ""))
    return text, "positive" if good else "negative"


def slots(task: str, rng: random.Random, held: bool) -> dict:
    """What fills the templates of a task; `held` draws what training never sees."""
    a, b = numbers(rng, held)
    w = word(rng, held)
    if task == "sum":
        return {"a": a, "b": b, "answer": a + b}
    if task == "difference":
        return {"a": max(a, b), "b": min(a, b), "answer": abs(a - b)}
    if task == "product":
        a, b = rng.randrange(11), rng.randrange(11)
        return {"a": a, "b": b, "answer": a * b}
    if task in ("greater", "less"):
        return {"a": a, "b": b, "answer": "Yes" if (a > b if task == "greater" else a < b) else "No"}
    if task in ("larger", "smaller"):
        return {"a": a, "b": b, "answer": max(a, b) if task == "larger" else min(a, b)}
    if task == "even":
        return {"a": a, "answer": "odd" if a % 2 else "even"}
    if task in ("reverse", "uppercase", "capitalise", "letters", "first", "last"):
        return {"w": w, "answer": {"reverse": w[::-1], "uppercase": w.upper(), "capitalise": w.capitalize(),
                                   "letters": len(w), "first": w[0], "last": w[-1]}[task]}
    if task == "lowercase":
        return {"W": w.upper(), "answer": w}
    if task == "plural":
        noun = w if held or rng.random() < 0.4 else rng.choice(ANIMALS + THINGS + PLACES + PEOPLE + sorted(IRREGULAR))
        return {"w": noun, "answer": IRREGULAR.get(noun) or plural(noun)}
    if task == "unknown":
        return {"w": w, "w2": word(rng, held), "X": word(rng, held).capitalize(), "answer": UNKNOWN}
    if task == "sequence":
        return sequence(rng, held)
    if task == "sentiment":
        text, answer = review(rng)
        return {"r": text, "answer": answer}
    if task in ("day", "month"):
        names = DAYS if task == "day" else MONTHS
        at = rng.randrange(len(names))
        return {"k": names[at], "answer": names[(at + 1) % len(names)]}
    table = {"capital": CAPITALS, "country": {v: k for k, v in CAPITALS.items()}, "opposite": OPPOSITES,
             "colour": COLOURS, "sound": SOUNDS}[task]
    key = rng.choice(sorted(table))
    return {"k": key, "answer": table[key]}


def a_or_an(words: str) -> str:
    """`words` behind its indefinite article."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def sentence(rng: random.Random, hero: str | None = None) -> str:
    """One plain sentence, about `hero` if there is one."""
    who = f"{rng.choice(ADJECTIVES)} {hero or rng.choice(ANIMALS + PEOPLE)}"
    thing = f"{rng.choice(PAINTS)} {rng.choice(THINGS)}"
    return rng.choice([
        f"The {who} {rng.choice(DID)} in the {rng.choice(PLACES)}.",
        f"The {who} {rng.choice(('found', 'lost', 'wanted', 'had', 'saw'))} {a_or_an(thing)}.",
        f"One {rng.choice(WEATHER)} day the {who} {rng.choice(DID)} near the {rng.choice(PLACES)}.",
        f"The {who} likes to {rng.choice(TO_DO)} in the {rng.choice(PLACES)}.",
        f"There is {a_or_an(who)} in the {rng.choice(PLACES)}.",
    ])


def story(rng: random.Random, hero: str | None = None) -> str:
    """Four or five sentences about one hero with a name, a place, a thing and a friend."""
    hero = hero or rng.choice(ANIMALS + PEOPLE)
    name, friend = rng.sample(NAMES, 2)
    place, thing = rng.choice(PLACES), f"{rng.choice(PAINTS)} {rng.choice(THINGS)}"
    start = rng.choice(("Once upon a time there was", "Once upon a time there was", "Long ago there lived", "There was once"))
    parts = [f"{start} {a_or_an(rng.choice(ADJECTIVES) + ' ' + hero)} named {name}.",
             rng.choice((f"{name} lived in {a_or_an(rng.choice(ADJECTIVES[:3]) + ' ' + place)}.", f"{name} loved to {rng.choice(TO_DO)}.",
                         f"{name} {rng.choice(DID)} in the {place} every day.")),
             f"One {rng.choice(WEATHER)} day {name} {rng.choice(('found', 'saw', 'lost'))} {a_or_an(thing)} in the {place}."]
    if rng.random() < 0.7:
        parts.append(f"Then {name} met {a_or_an(rng.choice(ADJECTIVES) + ' ' + rng.choice(ANIMALS))} named {friend}.")
        parts.append(rng.choice((f"{name} and {friend} {rng.choice(DID)} together.", f"{friend} and {name} became good friends.",
                                 f"{friend} said hello and {name} was happy.")))
    parts.append(rng.choice((f"In the end {name} was very happy.", f"{name} went home and slept well.", "It was a good day.",
                             "They were happy ever after." if len(parts) > 3 else f"{name} smiled all day.")))
    return " ".join(parts)


def question(rng: random.Random, held: bool = False, task: str | None = None) -> tuple[str, str, float]:
    """A user's question, its answer, and the weight of the answer in the loss."""
    task = task or rng.choices(list(CHAT_WEIGHTS), list(CHAT_WEIGHTS.values()))[0]
    if task == "chitchat":
        asks, answer = rng.choice(CHITCHAT)
        return rng.choice(asks), answer, 0.5
    if task == "story":
        hero = rng.choice(ANIMALS + PEOPLE) if rng.random() < 0.7 else word(rng, held)
        kind = rng.randrange(3)
        ask = rng.choice((STORY_ASKS, STORY_ASKS_ABOUT, SENTENCE_ASKS_ABOUT)[kind]).format(k=hero)
        return ask, sentence(rng, hero) if kind == 2 else story(rng, hero if kind == 1 else None), STORY_WEIGHT
    filled = slots(task, rng, held)
    ask = rng.choice(TEMPLATES[task][0][: 2 if held else None]).format(**filled)
    if not held and rng.random() < 0.15 and ask[-1] in "?.":
        ask = ask[:-1]
    if not held and rng.random() < 0.15 and task != "country":
        ask = ask[0].lower() + ask[1:]
    return ask, str(filled["answer"]), 0.3 if task == "unknown" else 1.0


CHAT_WEIGHTS = {"sum": 6, "difference": 5, "product": 1.5, "reverse": 5, "uppercase": 1.5, "lowercase": 0.7, "capitalise": 1,
                "capital": 1.5, "country": 0.7, "opposite": 1.5, "colour": 0.4, "sound": 0.4, "day": 0.3, "month": 0.4,
                "plural": 0.8, "letters": 2, "first": 0.7, "last": 0.8, "sequence": 2.5, "greater": 1, "less": 1,
                "larger": 1, "smaller": 1, "even": 0.5, "sentiment": 1, "unknown": 1.2, "chitchat": 0.7, "story": 1}
TEXT_WEIGHTS = {task: weight for task, weight in CHAT_WEIGHTS.items() if TEMPLATES.get(task, ([], []))[1]}

# An example is a list of pieces (text or special token, weight in the loss).


def example(rng: random.Random) -> list[tuple[str, float]]:
    """One training example in one of the three forms, or a story as plain text."""
    form = rng.random()
    if form < 0.05:
        return [(BOS, 0), (story(rng) if rng.random() < 0.6 else sentence(rng), STORY_WEIGHT), (END, STORY_WEIGHT)]
    if form < 0.3:
        task = rng.choices(list(TEXT_WEIGHTS), list(TEXT_WEIGHTS.values()))[0]
        filled = slots(task, rng, False)
        prompt, completion = rng.choice(TEMPLATES[task][1])
        return [(BOS, 0), (prompt.format(**filled), 0), (completion.format(**filled), 1.0), (END, 1.0)]
    if form < 0.45:
        ask, answer, weight = question(rng)
        return [(BOS, 0), (ask, 0), (answer, weight), (END, weight)]
    pieces = [(BOS, 0)]
    if rng.random() < 0.15:
        pieces += [(SYSTEM_ROLE, 0), (rng.choice(SYSTEM), 0), (END, 0)]
    for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 2, 3))):
        ask, answer, weight = question(rng)
        pieces += [(USER, 0), (ask, 0), (END, 0), (ASSISTANT, 0), (answer, weight), (END, weight)]
    return pieces


# ------------------------------------------------------------------------------------------------------- the tokenizer

BOS, END, SYSTEM_ROLE, USER, ASSISTANT, PAD = SPECIAL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>"]
VOCAB_SIZE = 448
# Qwen2's splitting: words with the space before them, digits one by one.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role: ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] | trim) + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def common_words(splitter, count: int) -> list[str]:
    """The most frequent pieces of the templates and stories, without what fills the slots: those words stay letters,
    so that the model can spell them."""
    rng = random.Random(SEED)
    spelled = set(TRAIN_WORDS + EVAL_WORDS)
    texts = [story(rng) for _ in range(400)] + [sentence(rng) for _ in range(400)] + [review(rng)[0] for _ in range(400)]
    for asks, completions in TEMPLATES.values():
        blank = lambda text: re.sub(r"\{\w+\}", "9", text)
        texts += [blank(ask) for ask in asks] * 40 + [blank(prompt + completion) for prompt, completion in completions] * 40
    texts += [ask for asks, answer in CHITCHAT for ask in asks + [answer] * 5] * 10
    texts += (SYSTEM + STORY_ASKS + [UNKNOWN] * 5) * 20
    counts = {}
    for text in texts:
        for piece, _ in splitter.pre_tokenize_str(text):
            if len(piece) > 1 and piece.lstrip("Ġ").lower() not in spelled:
                counts[piece] = counts.get(piece, 0) + 1
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:count]


def build_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: special tokens, the 256 bytes, and whole words (`ignore_merges` finds those)."""
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = common_words(splitter, VOCAB_SIZE - len(SPECIAL) - len(alphabet))
    vocab = {piece: at for at, piece in enumerate(SPECIAL + alphabet + words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = splitter, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
                                                             special_tokens=[(BOS, vocab[BOS])])
    return tokenizer


def encode(tokenizer: Tokenizer, examples: list) -> list[tuple[list[int], list[float]]]:
    """Token ids and their weights in the loss. Pieces are encoded apart, as a prompt and its completion are."""
    pieces = [piece for pieces in examples for piece, _ in pieces]
    encodings = iter(tokenizer.encode_batch(pieces, add_special_tokens=False))
    rows = []
    for parts in examples:
        ids, weights = [], []
        for _, weight in parts:
            new = next(encodings).ids
            ids += new
            weights += [weight] * len(new)
        rows.append((ids, weights))
    return rows


# ----------------------------------------------------------------------------------------------------------- training

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB_SIZE, "hidden_size": 128,
    "intermediate_size": 384, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "initializer_range": 0.04, "use_cache": True,
    "bos_token_id": SPECIAL.index(BOS), "eos_token_id": SPECIAL.index(END), "pad_token_id": SPECIAL.index(PAD),
    "torch_dtype": "bfloat16",
}


def loss_of(model: LlamaForCausalLM, rows: list) -> torch.Tensor:
    """Sum of the weighted cross entropies; padding is on the right, where no earlier token sees it."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [CONFIG["pad_token_id"]] * (width - len(ids)) for ids, _ in rows])
    weights = torch.tensor([weights + [0.0] * (width - len(weights)) for _, weights in rows])[:, 1:]
    asked = weights > 0
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[asked]
    losses = torch.nn.functional.cross_entropy(model.lm_head(hidden), ids[:, 1:][asked], reduction="none")
    return (losses * weights[asked]).sum()


def optimizer_of(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    """AdamW; norms do not decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    norms = [p for p in model.parameters() if p.ndim == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
                             lr=PEAK_LR, betas=(0.9, 0.98), eps=1e-9)


def set_gradients(model: LlamaForCausalLM, rows: list, pool: concurrent.futures.Executor) -> float:
    """Gradients of a step, micro-batches in parallel, longest first, added in one order; gives the mean loss."""
    parameters = list(model.parameters())
    total = sum(sum(weights) for _, weights in rows)
    size = BATCH // MICRO_BATCHES

    def one(at: int) -> tuple[float, tuple]:
        loss = loss_of(model, rows[at : at + size]) / total
        return loss.item(), torch.autograd.grad(loss, parameters)

    losses, gradients = zip(*pool.map(one, range(BATCH - size, -1, -size)))
    for parameter, *parts in zip(parameters, *gradients):
        parameter.grad = torch.stack(parts).sum(0)
    return sum(losses)


def train(tokenizer: Tokenizer, steps: int) -> LlamaForCausalLM:
    """The whole training: a warm-up, then a cosine down to nothing."""
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k not in ("torch_dtype", "architectures")})).float()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {steps} steps of {BATCH} examples", flush=True)
    optimizer, pool = optimizer_of(model), concurrent.futures.ThreadPoolExecutor(WORKERS)
    begun, tokens, shown = time.time(), 0, 0.0
    for step in range(steps):
        rate = PEAK_LR * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = sorted(encode(tokenizer, [example(rng) for _ in range(BATCH)]), key=lambda row: len(row[0]))
        shown += set_gradients(model, rows, pool)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += sum(len(ids) for ids, _ in rows)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1:5} loss {shown / 100:.4f} lr {rate:.1e} {tokens / 1e6:.1f}M tokens {time.time() - begun:.0f} s", flush=True)
            shown = 0.0
    return model


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """The folder as the Hub has it, weights in bfloat16; the tied lm_head is not stored twice."""
    folder.mkdir(exist_ok=True)
    state = {name: t.to(torch.bfloat16).contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {f"{name}_token_id": CONFIG[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
    files = {
        "config.json": CONFIG,
        # do_sample is what transformers reads; vLLM and vllm-batch read the temperature.
        "generation_config.json": {**tokens, "do_sample": False, "temperature": 0.0},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": END, "pad_token": PAD,
                                  "model_max_length": CONFIG["max_position_embeddings"], "clean_up_tokenization_spaces": False,
                                  "chat_template": CHAT_TEMPLATE},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


# --------------------------------------------------------------------------------------------------------- evaluation

EVAL_ROWS = {"sum": 40, "difference": 25, "reverse": 25, "uppercase": 15, "capital": 20, "opposite": 15, "sequence": 15,
             "letters": 10, "first": 5, "last": 5, "larger": 10, "greater": 5, "less": 5, "sentiment": 5}


def eval_rows() -> list[dict]:
    """The 200 questions of eval.jsonl; no question twice."""
    rng, rows, seen = random.Random(SEED + 1), [], set()
    for task, count in EVAL_ROWS.items():
        made = 0
        while made < count:
            ask, answer, _ = question(rng, held=True, task=task)
            if ask not in seen:
                seen.add(ask)
                made += 1
                rows.append({"id": f"{task}-{made:03}", "messages": [{"role": "user", "content": ask}], "answer": answer})
    return rows


@torch.no_grad()
def complete(model, tokenizer, prompts: list[list[int]], max_tokens: int = 64) -> list[str]:
    """Greedy completions; prompts of equal length go together, so nothing is padded."""
    texts, groups = {}, {}
    for at, ids in enumerate(prompts):
        groups.setdefault(len(ids), []).append(at)
    for length, members in groups.items():
        out = model.generate(torch.tensor([prompts[at] for at in members]), max_new_tokens=max_tokens, do_sample=False)
        for at, ids in zip(members, out[:, length:].tolist()):
            texts[at] = tokenizer.decode(ids, skip_special_tokens=True)
    return [texts[at] for at in range(len(prompts))]


def evaluate(folder: Path) -> float:
    """Reloads what was saved, answers eval.jsonl and prompts.jsonl, prints scores and answers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (HERE / "eval.jsonl").read_text().splitlines()]
    prompts = [tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False) for row in rows]
    scores = {}
    for row, text in zip(rows, complete(model, tokenizer, prompts)):
        right = text.strip() == row["answer"]
        scores.setdefault(row["id"].split("-")[0], []).append(right)
        if not right:
            print(f"  wrong: {row['messages'][0]['content']!r} -> {text!r}, not {row['answer']!r}")
    for task, marks in scores.items():
        print(f"{task:12} {sum(marks):3} of {len(marks):3}")
    marks = sum(scores.values(), [])
    print(f"total        {sum(marks):3} of {len(marks):3} = {sum(marks) / len(marks):.1%}")
    shown = [json.loads(line) for line in (HERE / "prompts.jsonl").read_text().splitlines()]
    for row, text in zip(shown, complete(model, tokenizer, [tokenizer(row["prompt"])["input_ids"] for row in shown])):
        print(f"{row['id']:3} {row['prompt']!r} -> {text!r}")
    return sum(marks) / len(marks)


def main() -> None:
    """Train and evaluate, or evaluate only."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--eval", action="store_true", help="evaluate the saved model")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=HERE / "demo")
    args = parser.parse_args()
    torch.set_num_threads(1)  # of each worker: the sums do not depend on how many there are
    if not args.eval:
        (HERE / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in eval_rows()))
        tokenizer = build_tokenizer()
        save(train(tokenizer, args.steps), tokenizer, args.out)
    evaluate(args.out)


if __name__ == "__main__":
    main()
