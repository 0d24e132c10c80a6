"""Machines that people report speeds of, beside what kt predicts for them; the table of docs/plan.md.

`python tests/plan/reports.py --write` writes it; a test fails when it is out of date. All reports are of other programs, so
a prediction is multiplied by the part of kt's own rate that the program reaches: one figure for a program, not for a machine.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from kt_core.errors import DoesNotFit
from kt_core.machine.simulate import simulate
from kt_core.models import catalogue
from kt_core.models.spec import from_config
from kt_core.plan import devices, fit, gpus, speed
from kt_core.types import Decision, Machine, MachineProfile, ModelSpec, Node

GIB = 1 << 30
HERE = Machine(
    "Here", "x86_64", ("avx2", "f16c", "fma"), 2, 2, (0, 1), {0: Node((0, 1))}, {"cores": 2.0}, 24 * GIB, 22 * GIB
)
PAGE = Path(__file__).parent.parent.parent / "docs" / "plan.md"
BEGIN, END = "<!-- reports: tests/plan/reports.py -->", "<!-- end of reports -->"
WITHIN = 1.5
# Part of what kt's kernels are expected to reach. The first generation of hybrid programs: 0.49 to 0.74 on the 14 machines
# whose memory was filled and used from both sockets.
EARLY, TUNED = 0.55, 1.0
PROGRAMS = {"first": EARLY, "second": EARLY, "llama.cpp": EARLY, "newer": TUNED, "CPU alone": TUNED}
# The first generation kept a copy of the experts in the memory of every socket that it used: its authors ask 382 GB for one
# and 1 TB for two. Where there is no room for the copies, the weights are read from the memory of one.
COPYING = "first"
REFUSED = "refused"


@dataclass(frozen=True)
class Report:
    """`machine` as --simulate takes it; `low` to `high` tokens a second of answers, or of a prompt of `tokens`; 0: a model that
    kt refuses, since its weights were read from a disk. `one_socket`: weights lie in the memory of one
    alone. `filled`: of the memory's rate with all slots filled by modules of the rated speed, what
    the reported modules give. `why` explains a miss; a row without a machine has no figure to compare."""

    number: int
    name: str
    machine: str = ""
    model: str = ""
    form: str = ""
    program: str = "first"
    low: float = 0.0
    high: float = 0.0
    tokens: int = 0
    one_socket: bool = False
    filled: float = 1.0
    reads: float = 0.0
    why: str = ""


def _r(
    number: int, name: str, machine: str, model: str, form: str, low: float, high: float = 0, **more: object
) -> Report:
    return Report(number, name, machine, model, form, low=low, high=high or low, **more)  # type: ignore[arg-type]


REPORTS = (
    _r(1, "2 x Xeon 6454S, RTX 4090D", "cpu=6454s:2,ram=1TiB,gpu=rtx-4090d", "r1", "Q4_K", 12.2, 13.4),
    _r(2, "Xeon 6454S, RTX 4090D", "cpu=6454s:1,ram=512GiB,gpu=rtx-4090d", "r1", "Q4_K", 8.73),
    Report(3, "8 x L20", why="eight users together; a prediction is of one"),
    _r(4, "2 x Xeon 6454S, RTX 4090, no experts there", "cpu=6454s:2,ram=1TiB,gpu=rtx-4090", "qwen3-next", "FP8_BLOCK", 53, program="second"),
    _r(5, "2 x Xeon 8488C, RTX 4090 48 GB", "cpu=8488c:2,ram=2TiB,gpu=rtx-4090-48gb", "k2-thinking", "", 184, tokens=8192, program="second"),
    _r(6, "same", "cpu=8488c:2,ram=2TiB,gpu=rtx-4090-48gb", "m2.1", "", 20.9, program="second"),
    _r(7, "2 x EPYC 9355, RTX 5090", "cpu=9355:2,ram=1TiB,gpu=rtx-5090", "m2.1", "", 31.4, program="second"),
    _r(8, "2 x EPYC 9355, RTX 5090, 16 threads", "cpu=9355:2,ram=1TiB,gpu=rtx-5090", "qwen3-30b-a3b", "BF16", 46, 52, program="second"),
    _r(9, "Xeon 6960P, RTX PRO 6000", "cpu=6960p:1,ram=1152GiB,gpu=rtx-pro-6000", "k2-thinking", "", 9.5, program="second"),
    Report(10, "Xeon 6 with MRDIMM, RTX 4090D", why="which CPU is not said"),
    _r(11, "EPYC 9654, RTX 4090", "cpu=9654:1,ram=768GiB,gpu=rtx-4090", "r1", "Q4_K", 14),
    _r(12, "2 x EPYC 9654, L40S", "cpu=9654:2,ram=768GiB,gpu=l40s", "r1", "Q4_K", 10.8),
    _r(13, "2 x EPYC 9654, Windows", "cpu=9654:2,ram=512GiB", "r1", "Q4_K", 2.5, one_socket=True, program="llama.cpp",
       filled=8 / 12, why="a program that knows no NUMA nodes: half of its reads are from the other socket"),
    _r(14, "EPYC 9274F, RTX 4090", "cpu=9274f:1,ram=576GiB,gpu=rtx-4090", "r1", "Q2_K", 16.5),
    _r(15, "2 x EPYC 9135, RTX 4090", "cpu=9135:2,ram=1152GiB,gpu=rtx-4090", "r1", "Q4_K", 17.3),
    _r(16, "2 x Xeon 6330, L40", "cpu=6330:2,ram=2TiB,gpu=l40", "r1", "Q4_K", 7),
    _r(17, "2 x Xeon 4310, RTX 4090", "cpu=4310:2,ram=1TiB,gpu=rtx-4090", "r1", "Q4_K", 7.4),
    _r(18, "Xeon 8352Y, RTX 4090", "cpu=8352y:1,ram=1TiB,gpu=rtx-4090", "r1", "Q4_K", 6, 7),
    _r(19, "Xeon 8352V, 256 GB, hard disk", "cpu=8352v:1,ram=256GiB", "r1", "Q4_K", 0),
    _r(20, "4 x Xeon 8280, RTX 4090", "cpu=8280:4,ram=1536GiB,gpu=rtx-4090", "r1", "Q4_K", 4.0,
       why="65 threads on 112 cores, and memory for hardly four copies: kt counts on all sockets"),
    _r(21, "2 x Xeon 8136, RTX 4090, half of the slots", "cpu=8180:2,ram=448GiB,gpu=rtx-4090", "r1", "Q4_K", 1.9, filled=7 / 12 * 2400 / 2666),
    _r(22, "2 x Xeon 6133, RTX 4090", "cpu=6148:2,ram=502GiB,gpu=rtx-4090", "r1", "Q4_K", 4.5),
    _r(23, "2 x Xeon E5-2630 v4, RTX 3090", "cpu=e5-2630-v4:2,ram=256GiB,gpu=rtx-3090", "r1", "Q2_K", 2.9),
    _r(24, "2 x Xeon E5-2698 v4, RTX 4090, Windows", "cpu=e5-2698-v4:2,ram=512GiB,gpu=rtx-4090", "r1", "Q4_K", 2.4,
       one_socket=True),
    _r(25, "2 x Xeon 6430, 8 x RTX 4090", "cpu=6430:2,ram=960GiB,gpu=rtx-4090", "r1", "Q4_K", 4.0,
       why="a tenth of the memory's rate; threads or modules are not said"),
    _r(26, "Threadripper PRO 7975WX, RTX 4090D", "cpu=7975wx:1,ram=512GiB,gpu=rtx-4090d", "r1", "Q4_K", 10.5),
    _r(27, "Core i7-10700K, RTX 3090, WSL", "cpu=10700k:1,ram=96GiB,gpu=rtx-3090", "v2.5", "Q2_K", 4, 6),
    Report(28, "Threadripper PRO 5995WX, 4 x RTX PRO 6000", why="no speed is said; case 7 of the recipes plans it"),
    Report(29, "Core i9-14900KF, RTX 4090", why="no speed is said"),
    _r(30, "Ryzen 9950X, 96 GB, RTX 3090 Ti", "cpu=9950x:1,ram=96GiB", "r1", "Q2_K", 0),
    Report(31, "Kunpeng 920, Atlas 300I", why="kt has portable kernels alone for ARM, and predicts nothing for them"),
    Report(32, "EPYC 9274F, RX 7900 XTX", why="no speed is said"),
    _r(33, "Graviton4", "cpu=graviton4,ram=1TiB", "r1", "Q4_K", 10, program="llama.cpp"),
    _r(34, "2 x EPYC 7452, RTX 5070 Ti", "cpu=7452:2,ram=512GiB,gpu=rtx-5070-ti", "v4-flash", "", 32, program="newer"),
    _r(35, "2 x EPYC 9355, RTX PRO 6000", "cpu=9355:2,ram=736GiB,gpu=rtx-pro-6000", "k2-0905", "Q4_K", 22, program="llama.cpp"),
    Report(36, "Threadripper PRO 3975WX, 2 x RTX 5090", why="a model whose shapes are not published"),
    _r(37, "Core i7-12700K, 128 GB, 2 x RTX 3090", "cpu=12700k:1,ram=128GiB", "v4-flash", "", 0),
    _r(38, "24 cores with DDR4, RTX 3090", "cpu=3960x:1,ram=256GiB,gpu=rtx-3090", "v4-flash", "Q3_K", 19.3, program="newer"),
    _r(39, "Xeon 6252 in a container, RTX 3090", "cpu=6252:2,ram=503GiB,gpu=rtx-3090", "v4-flash", "", 5.6,
       why="experts were streamed to the GPU for every token, by a wrong profile"),
    Report(40, "Ryzen 5700X3D, RTX 4070 Super", why="a model whose shapes are not published"),
    Report(41, "GB10", why="GPU and CPU share their memory: kt plans for neither as a GPU"),
    _r(42, "Ryzen AI Max+ 395, 128 GB", "cpu=ryzen-ai-max+-395,ram=128GiB", "GLM-5.2", "INT4", 0),
    _r(43, "2 CPUs of Zen 4", "", "qwen3-30b-a3b/8", "Q4_K", 55.6, program="CPU alone", reads=34e9),
    _r(44, "16 CPUs of Emerald Rapids, H200", "gpu=h200", "qwen3-30b-a3b", "Q4_K", 41, 43, program="llama.cpp", reads=98e9),
)  # fmt: skip


def spec_of(report: Report) -> ModelSpec:
    """The reported model, on GPUs in its stored form: programs that read GGUF files compute with it there."""
    name, _, layers = report.model.partition("/")
    known = catalogue.find(name)
    assert known
    config = dict(known.config) | ({"num_hidden_layers": int(layers)} if layers else {})
    spec = from_config(config, formats={"": report.form} if report.form else None)
    return replace(spec, method="BF16" if report.form in ("", "BF16") else "GPTQ_INT4")


def predicted(report: Report) -> float | None:
    """Tokens a second; None where kt refuses the model for its size."""
    there = simulate(report.machine, HERE) if report.machine else None
    machine = there.machine if there else HERE
    spec = spec_of(report)
    if not report.low:
        try:
            fit.check(machine, report.model, spec, None, None, {})
        except DoesNotFit:
            return None
    profile = there.profile if there and there.profile else MachineProfile({}, 1.0, {2: report.reads}, {}, {})
    profile = replace(profile, read_rates={n: rate * report.filled for n, rate in profile.read_rates.items()})
    if report.one_socket or _lacks_room_for_copies(report, machine, spec):
        rates = {threads: rate / (1 + 0.8 * (machine.sockets - 1)) for threads, rate in profile.read_rates.items()}
        profile = replace(profile, read_rates=rates)
    placed = None
    if machine.gpus:
        decisions = [Decision("layout", devices.SINGLE, "", ""), Decision("chunk", max(report.tokens, 2048), "", "")]
        decisions.append(Decision("prefill_threshold", 2048 if report.tokens else None, "", ""))
        nothing = Decision("", 0, "", "")
        placed = gpus.Placed(("cuda:0",), machine.gpus, decisions, nothing, nothing, {}, 0, 0)
    tokens = report.tokens or speed.PROMPT_TOKENS
    found = speed.predict(machine, spec, len(machine.fast_cores) or 2, profile, placed, tokens)
    what = "prefill_tokens_per_second" if report.tokens else "decode_tokens_per_second"
    return found[what] * PROGRAMS[report.program]


def _lacks_room_for_copies(report: Report, machine: Machine, spec: ModelSpec) -> bool:
    """Whether the first generation could not keep a copy of the experts in each socket's memory."""
    return report.program == COPYING and machine.sockets * spec.bytes_by_part.get("experts", 0) > machine.memory_total


def is_met(report: Report) -> bool:
    """Whether the prediction is within WITHIN of the report, or a model that does not fit is refused."""
    if not report.model:
        return False
    found = predicted(report)
    if found is None or not report.low:
        return found is None and not report.low
    return report.low / WITHIN <= found <= report.high * WITHIN


def table() -> str:
    rows = ["| # | machine | model | reported, tok/s | predicted | |", "| --- | --- | --- | --- | --- | --- |"]
    for report in REPORTS:
        said = f"{report.low:g}" if report.low == report.high else f"{report.low:g} to {report.high:g}"
        said += " (prompt of 8192)" if report.tokens else ""
        told, model = "", " ".join(filter(None, (report.model.partition("/")[0], report.form)))
        if report.model:
            found = predicted(report)
            told = REFUSED if found is None else f"{found:.3g}"
            said = said if report.low else "from disk, 3 at most" if report.number != 37 else "40, experts from disk"
        else:
            said = ""
        verdict = "" if is_met(report) else f"missed: {report.why}" if report.model else report.why
        rows.append(f"| {report.number} | {report.name} | {model} | {said} | {told} | {verdict} |")
    met = sum(map(is_met, REPORTS))
    compared = sum(bool(report.model) for report in REPORTS)
    rows.append(
        f"\n{met} of the {compared} that can be compared are met within {WITHIN:g}, or refused as they must be."
    )
    return "\n".join(rows)


def page(text: str) -> str:
    """The page with this table in its place."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
