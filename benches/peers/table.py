"""From the lines of results.jsonl to README.md."""

import math
from statistics import median

NOTES = """\
Seconds are of the run without loading: ours as `vllm-batch bench` measures (tokenization of ids
and text of answers included), the peers around their `generate`, after a warm-up of a few short
rows that ours does not get. Greedy, past the end of text: each row gives exactly its
`max_tokens`, which is checked. Floor: multiply-adds of the linear layers and of attention over
the peak, the faster of f32 FMA and bf16 dot products for bf16 weights, VNNI for int8; of a
cell's two peaks, measured just before and after it, the higher. Memory is VmHWM: of ours and
OpenVINO from exec to exit, of vLLM during the turn, summed over its processes. Contenders take
turns within a cell; `vLLM` is stopped (SIGSTOP) while others run. The KV cache may have the
same size everywhere. OpenVINO is `openvino:WEIGHTS:INFERENCE PRECISION`, keeps K and V as it
chooses, and gets the first row of `shared` alone, which is faster for it. A figure with * is of
disturbed turns: other processes used more than 5 % of a core, and no turn of that cell was
quiet. A ratio with * has one of these."""


class Cell:
    """All turns of a contender on one model and workload."""

    def __init__(self, turns):
        quiet = [turn for turn in turns if not turn["disturbed"]]
        self.turns, self.disturbed = quiet or turns, not quiet
        self.seconds = [turn["seconds"] for turn in self.turns]
        self.median = median(self.seconds)

    def text(self):
        low, high = min(self.seconds), max(self.seconds)
        mark = "*" if self.disturbed else ""
        return f"{self.median:.2f}{mark} ({low:.2f} to {high:.2f}; {len(self.seconds)})"


class Results:
    """The lines of a session by what they are."""

    def __init__(self, lines):
        kinds = {}
        for line in lines:
            kinds.setdefault(line["kind"], []).append(line)
        turns = kinds.get("turn", [])
        self.session = kinds["session"][-1]
        self.limits = kinds.get("limits", [])
        self.failures = kinds.get("failed", [])
        self.cells = grouped(turns, "model", "workload", "contender")
        self.starts = grouped(kinds.get("start-up", []), "contender")
        self.versions = {line["contender"]: line["version"] for line in turns}
        self.precisions = {line["contender"]: line["precision"] for line in turns}

    def floor(self, model, workload, turn):
        """Seconds at the higher of the peaks before and after the cell."""
        here = [
            line["peaks"]
            for line in self.limits
            if (line["model"], line["workload"]) == (model, workload)
        ]
        peak = max(peak_of(turn["precision"], peaks) for peaks in here)
        return 2e-9 * turn["multiply_adds"] / peak

    def places(self):
        return list(dict.fromkeys((model, workload) for model, workload, _ in self.cells))

    def names(self, precision, ours):
        wanted = [name for name, of_name in self.precisions.items() if of_name == precision]
        return [name for name in wanted if name.startswith("ours:") == ours]


def peak_of(precision, peaks):
    """bf16 weights may be computed in f32 or by bf16 dot products, whichever is faster."""
    return peaks["int8"] if precision == "int8" else max(peaks["f32"], peaks["bf16"])


def grouped(lines, *keys):
    groups = {}
    for line in lines:
        groups.setdefault(tuple(line[key] for key in keys), []).append(line)
    return {key: Cell(turns) for key, turns in groups.items()}


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def readme(lines):
    results = Results(lines)
    parts = [circumstances(results), "## Ratios", ratios(results)]
    parts += ["## Every cell", every_cell(results)]
    if results.starts:
        parts += ["## From exec to the first token and exit, warm page cache", starts(results)]
    parts += ["## How it was measured", NOTES]
    if results.limits:
        parts += ["## The machine's limits", limits(results)]
    if results.failures:
        parts += ["## What failed", failures(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def failures(results):
    lines = [f"- `{it['contender']}`, {it['where']}: {it['why']}" for it in results.failures]
    return "\n".join(dict.fromkeys(lines))


def circumstances(results):
    session = results.session
    load = ", ".join(f"{value:.2f}" for value in session["load_average"])
    text = [f"# Ours and the peers in one session, {session['date']}", ""]
    text += [f"- Machine: {session['cpu']}, {session['num_cpus']} CPUs"]
    text[-1] += f" ({', '.join(session['cpu_flags'])}), {session['memory_gib']} GiB"
    text[-1] += f", Linux {session['kernel']}"
    text += [f"- Command: `{session['command']}`, commit {session['commit']}"]
    text += [f"- {session['threads']} threads, KV cache of at most {session['kv_gib']} GiB"]
    text[-1] += f"; load average at the start {load}"
    text += [f"- `{name}`: {version}" for name, version in results.versions.items()]
    return "\n".join(text)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def ratio_row(label, values):
    """(ratio, mark) by cell; None where one of the two is not measured."""
    known = [value for value in values if value]
    cells = [f"{value[0]:.2f}{value[1]}" if value else "" for value in values]
    if not known:
        return [label, *cells, ""]
    mark = max(mark for _, mark in known)
    return [label, *cells, f"**{geometric_mean([ratio for ratio, _ in known]):.2f}**{mark}"]


def ratios(results):
    places = results.places()
    header = ["peer's seconds over ours", *(" ".join(place) for place in places), "geometric mean"]
    parts = []
    for precision in ("bf16", "int8"):
        for ours in results.names(precision, True):
            peers = results.names(precision, False)
            rows = [ratio_row(peer, over(results, places, peer, ours)) for peer in peers]
            if len(peers) > 1:
                rows.append(ratio_row("the best of each cell", best(results, places, peers, ours)))
            if precision == "int8":
                others = results.names("bf16", True)
                rows += [ratio_row(other, over(results, places, other, ours)) for other in others]
            if rows:
                title = f"`{ours}` against {precision} weights or better:"
                parts.append(title + "\n\n" + table(header, rows))
    return "\n\n".join(parts)


def over(results, places, peer, ours):
    def ratio(place):
        theirs, own = (results.cells.get((*place, name)) for name in (peer, ours))
        if not theirs or not own:
            return None
        return theirs.median / own.median, "*" if theirs.disturbed or own.disturbed else ""

    return [ratio(place) for place in places]


def best(results, places, peers, ours):
    by_peer = zip(*(over(results, places, peer, ours) for peer in peers))
    return [min(filter(None, cell), default=None) for cell in by_peer]


def every_cell(results):
    header = ["model", "workload", "contender", "seconds: median (range; turns)", "tokens/s"]
    header += ["floor, s", "share of the floor", "peak MB", "tokens"]
    rows = []
    for (model, workload, contender), cell in results.cells.items():
        first = cell.turns[0]
        floor = results.floor(model, workload, first)
        rows.append([model, workload, f"`{contender}`", cell.text()])
        rows[-1] += [f"{first['num_tokens'] / cell.median:.0f}", f"{floor:.2f}"]
        rows[-1] += [f"{100 * floor / cell.median:.0f} %"]
        rows[-1] += [max(turn["peak_rss_mb"] for turn in cell.turns)]
        rows[-1] += ["ok" if all(turn["tokens_ok"] for turn in cell.turns) else "WRONG"]
    return table(header, rows)


def starts(results):
    rows = []
    for (contender,), cell in results.starts.items():
        peak = max(turn["peak_rss_mb"] for turn in cell.turns)
        rows.append([cell.turns[0]["model"], f"`{contender}`", cell.text(), peak])
    text = table(["model", "contender", "seconds: median (range; turns)", "peak MB"], rows)
    return text + "\n\nvLLM is not started here: it loads and compiles for tens of seconds."


def limits(results):
    names = {"f32": "f32 FMA GFLOP/s", "bf16": "bf16 `vdpbf16ps` GFLOP/s"}
    names |= {"int8": "int8 `vpdpbusd` GOP/s", "read_gb_s": "read GB/s"}
    rows = []
    for key, name in names.items():
        values = [line["peaks"][key] for line in results.limits]
        rows.append([name, f"{median(values):.0f}", f"{min(values):.0f} to {max(values):.0f}"])
    header = ["limit", f"median of {len(results.limits)}, each the best of five", "range"]
    return table(header, rows)
