"""Reads the verdicts of Autobahn.

    report.py check FOLDER COMBINATION COUNT     fails if a case of the combination has another verdict than OK (or, where no result is
                                                 required, INFORMATIONAL), or if it has not COUNT cases: the suite exits with 0 also
                                                 when it stopped early
    report.py page FOLDER PAGE COMBINATION…      prints the page anew: these combinations of FOLDER, and the others as PAGE has them

FOLDER has one folder a combination, each with the index.json of wstest and the file `run`: the date and the commit.
"""

import collections
import json
import pathlib
import sys

# The cases without a required result.
INFORMATIONAL = ("7.1.6", "7.13.1", "7.13.2")
SHORT = {"OK": "ok", "INFORMATIONAL": "info"}
GROUPS = {
    "1": "framing",
    "2": "pings and pongs",
    "3": "reserved bits",
    "4": "opcodes",
    "5": "fragmentation",
    "6": "UTF-8",
    "7": "closing handshake",
    "9": "limits and performance",
    "10": "automatic fragmentation",
    "12": "permessage-deflate: messages of many sizes",
    "13": "permessage-deflate: parameters",
}


def number(case):
    return [int(part) for part in case.split(".")]


def read(folder, names):
    """Verdicts by combination and case: of the behaviour, and of the end of the connection; and the runs by combination."""
    combinations, runs = {}, {}
    for name in names:
        index, run = (pathlib.Path(folder, name, file) for file in ("index.json", "run"))
        if not index.exists():
            sys.exit(f"FAILED: {name}: no verdicts")
        runs[name] = run.read_text().strip()
        ((_, cases),) = json.loads(index.read_text()).items()
        combinations[name] = {case: (of["behavior"], of["behaviorClose"]) for case, of in cases.items()}
    return combinations, runs


def add_others(combinations, runs, path):
    """Adds what the page says of the combinations that did not run."""
    long = {short: verdict for verdict, short in SHORT.items()}
    ran, names = set(runs), []
    for line in pathlib.Path(path).read_text().splitlines():
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if first == "case":
            names = cells
        elif not names and len(cells) == 5 and first not in ran and cells[1].isdigit():
            runs[first] = cells[0]
        elif names and first[:1].isdigit():
            for name, verdict in zip(names, cells):
                if name not in ran and verdict != "–":
                    verdict = long.get(verdict, verdict)
                    combinations.setdefault(name, {})[first] = (verdict, verdict)


def failures(cases):
    allowed = {case: {"OK", "INFORMATIONAL"} if case in INFORMATIONAL else {"OK"} for case in cases}
    return {case: verdict for case, verdict in cases.items() if not set(verdict) <= allowed[case]}


def totals(cases):
    return collections.Counter(behaviour for behaviour, _ in cases.values())


def check(name, cases, expected):
    bad, count = failures(cases), totals(cases)
    is_ok = not bad and len(cases) == expected
    print(f"{'ok' if is_ok else 'FAILED'}: {name}: {len(cases)} cases, " + ", ".join(f"{count[verdict]} {verdict}" for verdict in sorted(count)))
    if len(cases) != expected:
        print(f"    {expected} cases were to run")
    for case in sorted(bad, key=number):
        print(f"    {case}: {bad[case][0]}, close: {bad[case][1]}")
    sys.exit(0 if is_ok else 1)


def page(combinations, runs):
    print("# Autobahn\n")
    print("Verdicts of the [Autobahn testsuite](https://github.com/crossbario/autobahn-testsuite) 0.8.2, written by")
    print("`conformance/autobahn/run --page`. The run fails on any verdict other than OK, both of the behaviour and of the closing")
    print(f"handshake; {', '.join(INFORMATIONAL[:-1])} and {INFORMATIONAL[-1]} have no required result and are INFORMATIONAL. All 517 cases run with `--all`;")
    print("without it, few of the cases of permessage-deflate (12 and 13) do.\n")
    print("| combination | run | cases | OK | informational | others |\n| --- | --- | --- | --- | --- | --- |")
    combinations = dict(sorted(combinations.items()))
    for name, cases in combinations.items():
        count = totals(cases)
        print(f"| {name} | {runs[name]} | {len(cases)} | {count['OK']} | {count['INFORMATIONAL']} | {len(failures(cases))} |")
    everything = sorted({case for cases in combinations.values() for case in cases}, key=number)
    print("\nCases by number; `ok` is OK, `info` INFORMATIONAL, `–` not run.\n")
    group = None
    for case in everything:
        if number(case)[0] != group:
            group = number(case)[0]
            print(f"\n## {group}: {GROUPS.get(str(group), '')}\n")
            print("| case | " + " | ".join(combinations) + " |\n" + "| --- " * (len(combinations) + 1) + "|")
        verdicts = (cases.get(case, ("–",))[0] for cases in combinations.values())
        print(f"| {case} | " + " | ".join(SHORT.get(verdict, verdict) for verdict in verdicts) + " |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check", folder, name, count]:
            check(name, read(folder, [name])[0][name], int(count))
        case ["page", folder, path, *names] if names:
            combinations, runs = read(folder, names)
            add_others(combinations, runs, path)
            page(combinations, runs)
        case _:
            sys.exit(__doc__)
