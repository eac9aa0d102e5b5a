"""Writes the page of a soak and its plot.

usage: page.py DIRECTORY COMMIT OUTPUT
"""

import datetime
import json
import os
import statistics
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "soak", "font.size": 9})
import matplotlib.pyplot as plt

MIB = 1 << 20


def main():
    kept, commit, output = sys.argv[1:]
    with open(os.path.join(kept, "rounds.json")) as file:
        soak = json.load(file)
    rounds = soak["rounds"]
    names = list(rounds[0]["loads"])
    minutes = [(at + 1) * soak["time"] / len(rounds) / 60 for at in range(len(rounds))]

    figure, (memory, files, latency) = plt.subplots(3, 1, sharex=True, figsize=(8, 7), layout="constrained")
    for state, label in (("peak", "at most"), ("rest", "at rest")):
        memory.plot(minutes, [round_[state]["resident"] / MIB for round_ in rounds], label=label)
        files.plot(minutes, [round_[state]["files"] for round_ in rounds], label=label)
    for name in names:
        latency.plot(minutes, [(round_["loads"][name]["p50"] or 0) * 1e3 for round_ in rounds], label=name, linewidth=1)
    memory.set_ylabel("resident memory, MiB")
    files.set_ylabel("open files")
    latency.set_ylabel("median latency, ms")
    latency.set_xlabel("minutes")
    for plot in (memory, files, latency):
        plot.set_ylim(bottom=0)
        plot.grid(alpha=0.3)
        plot.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(os.path.join(output, "soak.svg"), metadata={"Date": None, "Creator": None})

    def row(name, values, unit):
        part = max(1, len(values) // 4)
        first, last = statistics.median(values[:part]), statistics.median(values[-part:])
        return f"| {name} | {first:,.{unit}f} | {last:,.{unit}f} | {max(values):,.{unit}f} |"

    date = datetime.datetime.fromtimestamp(soak["began"], datetime.timezone.utc).date()
    lines = [
        "# Soak",
        "",
        f"Written by `conformance/soak/run --page DURATION`. The last run: {date}, commit {commit}, {soak['time'] / 60:.0f} minutes, {len(rounds)} rounds.",
        "",
        "Each round puts honest load of every kind and hostile clients on one server with `--max-memory 256M` for 50 s; then all leave, and the",
        "server rests for 10 s. In each third round a write to the disk takes 40 ms longer, in each fourth there is a new certificate, in each fifth",
        "the configuration is read again. The run fails when memory or open files at rest grow, when an honest client meets an error or waits",
        "longer than at first, or when the history of the published channel, read after a restart, does not end where the last acknowledgement was.",
        "",
        "![Memory, open files and latency over the run](soak.svg)",
        "",
        "| | first quarter, median | last quarter, median | maximum |",
        "| --- | --- | --- | --- |",
        row("resident memory at rest, MiB", [round_["rest"]["resident"] / MIB for round_ in rounds], 0),
        row("resident memory under load, MiB", [round_["peak"]["resident"] / MIB for round_ in rounds], 0),
        row("open files at rest", [round_["rest"]["files"] for round_ in rounds], 0),
        row("publication to the disk, ms", [round_["publish"]["p50"] * 1e3 for round_ in rounds], 1),
    ]
    lines += [row(f"{name}, ms", [(round_["loads"][name]["p50"] or 0) * 1e3 for round_ in rounds], 2) for name in names]
    lines += ["", "| | answers | errors |", "| --- | --- | --- |"]
    for name in names:
        loads = [round_["loads"][name] for round_ in rounds]
        lines.append(f"| {name} | {sum(load['answered'] for load in loads):,} | {sum(load['errors'] for load in loads)} |")
    lines.append(f"| publications | {soak['published']:,} | |")
    lines += ["", "Failed: " + ("nothing." if not soak["failed"] else "; ".join(soak["failed"]) + ".")]
    with open(os.path.join(output, "soak.md"), "w") as file:
        file.write("\n".join(lines) + "\n")


main()
