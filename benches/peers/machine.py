"""The machine of scripts/bench-peers: what it is, what it can compute, who else is using it."""

import os
import re
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
# Of one core. More than that of other processes, and a figure is called disturbed.
QUIET_CORES = 0.05
LIMITS = {"read": "read_gb_s", "f32": "f32", "bf16": "bf16", "vnni": "int8"}


def busy_seconds():
    """CPU seconds that were used since the start of the machine, with what the host took."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS


def wait_until_quiet(patience_s):
    """Whether the others used less than QUIET_CORES in the last second."""
    deadline = time.monotonic() + patience_s
    while True:
        before, start = busy_seconds(), time.monotonic()
        time.sleep(1.0)
        if busy_seconds() - before < QUIET_CORES * (time.monotonic() - start):
            return True
        if time.monotonic() > deadline:
            return False


def process_tree(root):
    """A process and all below it."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(entry.name)):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        found.append(queue.pop())
        queue += children.get(found[-1], [])
    return found


def stat_fields(pid):
    """Fields of /proc/PID/stat from the state on; none of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def cpu_seconds(pids):
    return sum(sum(int(field) for field in stat_fields(pid)[11:13]) for pid in pids) / TICKS


def peak_rss_mb(pids):
    """VmHWM, added up: pages that processes share count once for each."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(kib) for kib in re.findall(r"VmHWM:\s+(\d+)", text))
    return round(total / 1024)


def reset_peak_rss(pids):
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except FileNotFoundError:
            pass


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def pause(pids):
    """A process that waits may spin; one that is stopped does not."""
    send(pids, signal.SIGSTOP)


def resume(pids):
    send(pids, signal.SIGCONT)
    time.sleep(0.3)


def build_limits(source, folder):
    program = Path(folder) / "limits"
    argv = ["gcc", "-O3", "-march=native", "-w", "-pthread", str(source), "-o", str(program)]
    subprocess.run(argv, check=True)
    return program


def measure_limits(program, threads):
    """Peaks by name, the best of five: what a disturbance takes away is no limit of the machine."""
    text = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    pattern = re.compile(r"^(\S+) .*threads=(\d+) median ([\d.]+) min [\d.]+ max ([\d.]+)", re.M)
    found = [match for match in pattern.findall(text) if int(match[1]) == threads]
    return {LIMITS[name]: float(best) for name, _, _, best in found}


def text_of(argv, folder):
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def describe(root, binary):
    """What a reader needs to judge the figures; no path of this machine."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.M)[1].split()
    wanted = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16")
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]
    changed = text_of(["git", "status", "--porcelain", "--untracked-files=no"], root)
    commit = text_of(["git", "rev-parse", "--short", "HEAD"], root)
    return {
        "date": datetime.now().strftime("%Y-%m-%d %H:%M"),
        "cpu": re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.M)[1],
        "num_cpus": os.cpu_count(),
        "cpu_flags": [flag for flag in wanted if flag in flags],
        "memory_gib": round(int(memory) / 2**20, 1),
        "kernel": os.uname().release,
        "load_average": os.getloadavg(),
        "commit": commit + (" with changes" if changed else ""),
        "ours": text_of([str(binary), "--version"], root),
    }
