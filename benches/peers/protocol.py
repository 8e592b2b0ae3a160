"""What scripts/bench-peers and a peer's process say to each other.

A request is one line of JSON on standard input, its answer one line on the file descriptor that
--reply-fd names: standard output belongs to what the peer prints itself. No line left: the end.
"""

import argparse
import json
import os
import sys


def arguments(description):
    """The parser of the flags that every peer has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-gib", type=int, required=True)
    parser.add_argument("--reply-fd", type=int, required=True)
    return parser


def reply(args, answer):
    os.write(args.reply_fd, (json.dumps(answer) + "\n").encode())


def requests():
    for line in sys.stdin:
        yield json.loads(line)


def rows(dataset):
    with open(dataset) as lines:
        return [json.loads(line) for line in lines]
