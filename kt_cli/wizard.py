"""`kt run` without arguments on a terminal: questions whose answers are a command line.

First the model, then one menu that shows what was planned and why: the first row starts it, others change something.
"""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from kt_cli import adapters, choose, launch, names, output, planned, profiles
from kt_cli.flags import Launching
from kt_core import config, paths
from kt_core.errors import KTError, NotFound
from kt_core.flags import whole
from kt_core.messages import t
from kt_core.types import ModelFiles, Plan

KNOWN, OTHER, CANCEL, BACK = "\0known", "\0other", "\0cancel", "\0back"  # no model can have such a name
# decision that may be changed -> the option that does it
CHANGED = {"context": "context", "threads": "threads"}
# rows of the menu: what starts the server, with the option that does it, and what stands below the changes
STARTS = {"chat": "wizard.start_chat", "detach": "wizard.start_detach", "": "wizard.start_stay"}
MORE = {"plan": "wizard.plan", "save": "wizard.save", BACK: "wizard.back", CANCEL: "wizard.cancel"}
ANYWHERE = "0.0.0.0"
POINTER_CELLS = 6  # beside a row of a menu: what points at it, and dots at its end


@dataclass
class Answers:
    """What was chosen so far: the model, and options of `kt run` by their names without dashes."""

    model: str
    options: dict[str, Any] = field(default_factory=dict)

    def words(self) -> list[str]:
        return profiles.line(self.model, self.options)


class RunCommand(Launching):
    """`kt run`: a command line with a profile's words in place of @NAME; and without words it asks, where it can."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and choose.can_ask():
            args = asked()
            if not args:
                raise typer.Exit
            output.muted(t("wizard.same_as", command=shlex.join(["kt", "run", *args])))
        flags = {name for param in self.params if getattr(param, "is_flag", False) for name in param.opts}
        return super().parse_args(ctx, profiles.expanded(adapters.expanded(args), flags))


def asked() -> list[str]:
    """The words of a command line of `kt run`; none when it was cancelled."""
    while True:
        chosen = _model()
        if chosen == CANCEL:
            return []
        if chosen.startswith(profiles.MARK):
            return [chosen]
        try:
            words = _start(Answers(chosen))
        except KTError as failure:
            output.error(failure)
            continue
        if words is not None:
            return words


def _model() -> str:
    """A model's name or path, a profile with its mark, or CANCEL."""
    from kt_cli import found_models
    from kt_core.models import catalogue

    rows = [(t("wizard.profile", name=f"{profiles.MARK}{name}"), f"{profiles.MARK}{name}") for name in profiles.names()]
    for entry in found_models.entries():
        size = output.size(entry["bytes"] if entry["pulled"] else entry["download_bytes"])
        row = t("wizard.installed" if entry["pulled"] else "wizard.to_get", name=entry["name"], size=size)
        rows += [(row, entry["name"])] if not entry["missing"] else []
    more = [(t("wizard.known"), KNOWN), (t("wizard.other"), OTHER), (t("wizard.cancel"), CANCEL)]
    chosen = choose.select(t("wizard.which"), rows + more)
    if chosen == KNOWN:
        return choose.one_word(t("wizard.name"), catalogue.names()) or _model()
    if chosen == OTHER:
        path = choose.path(t("wizard.path"))
        return str(paths.expanded(path)) if path else _model()
    return chosen


def _start(answers: Answers) -> list[str] | None:
    """The words of the command line, none when it was cancelled, None to go back to the models.

    Raises KTError for a model that is not right or does not fit.
    """
    files = _files(answers.model)
    if files is None:
        return None
    plan = launch.make_plan(files, {})
    shown = False
    while True:
        if not shown:
            output.status(_summary(plan))
            shown = True
        action = choose.select(t("wizard.what"), _menu(plan, answers))
        if action in (BACK, CANCEL):
            return None if action == BACK else []
        if action in STARTS:
            return [*answers.words(), *([f"--{action}"] if action else [])]
        if action == "plan":
            output.status(planned.decisions(plan))
        elif action == "host":
            _host(answers)
        elif action == "save":
            _save(answers)
        else:
            plan, shown = _changed(action, files, plan, answers), False


def _files(model: str) -> ModelFiles | None:
    """The model's files, which are downloaded if the user agrees; None when not. Raises DoesNotFit for weights that are
    more than this machine's memory."""
    from kt_core.machine import probe
    from kt_core.models import registry, repository, store
    from kt_core.plan import check_download

    try:
        return launch.files_of(model, may_pull=False)
    except NotFound as absent:
        entry = registry.find(model)
        try:
            found = None if entry else repository.find(repository.of(model))
        except NotFound:
            raise absent from None
    name, count = (found.repo, found.bytes) if found else (model, entry.download if entry else 0)
    check_download(probe(), name, count)
    if not choose.agree(t("wizard.download", name=name, size=output.size(count), folder=store.models_dir())):
        return None
    if not found:
        return launch.files_of(model)
    with output.progress() as report:
        return repository.pull(found, report)


def _summary(plan: Plan) -> str:
    return "\n".join([t("run.plan_title", name=plan.model.name, path=Path(plan.model.path)), planned.figures(plan)])


def _menu(plan: Plan, answers: Answers) -> list[tuple[str, str]]:
    decisions = {decision.name: decision for decision in plan.decisions}
    rows = [(t(key), action) for action, key in STARTS.items()]
    for name in CHANGED:
        if found := decisions.get(name):
            value = planned.value(found.value)
            rows.append((_row(names.of("decision", name), value, found.reason), name))
    wide = answers.options.get("host", config.get("server.host")) == ANYWHERE
    rows.append((t("wizard.listens_wide" if wide else "wizard.listens_here"), "host"))
    return rows + [(t(key), action) for action, key in MORE.items()]


def _row(name: str, value: str, reason: str) -> str:
    """A decision in one line of the terminal; a reason that is too long for it ends in dots."""
    room = (
        output.width(sys.stdout) - output.cells(t("wizard.change", name=name, value=value, reason="")) - POINTER_CELLS
    )
    first, *more = output.wrap(reason, max(room, output.LEAST_WIDTH))
    return t("wizard.change", name=name, value=value, reason=first + (" …" if more else ""))


def _changed(name: str, files: ModelFiles, plan: Plan, answers: Answers) -> Plan:
    """Ask for another value of a decision; the plan with it, or as it was when the value does not do."""
    before = next(decision for decision in plan.decisions if decision.name == name)
    output.status(t("wizard.because", value=planned.value(before.value), reason=before.reason))
    text = choose.text(
        t("wizard.new_value", name=names.of("decision", name)), str(answers.options.get(CHANGED[name], ""))
    )
    options = {key: value for key, value in answers.options.items() if key != CHANGED[name]}
    if text:
        count = whole(text)
        if not count:
            output.warn(t("wizard.no_number", text=text))
            return plan
        options[CHANGED[name]] = count
    try:
        found = launch.make_plan(files, {key: options.get(option) for key, option in CHANGED.items()})
    except KTError as failure:
        output.error(failure)
        return plan
    answers.options = options
    return found


def _host(answers: Answers) -> None:
    """Who may use the server."""
    key = t("wizard.with_key" if config.get("server.api_key") else "wizard.without_key")
    rows = [(t("wizard.only_here"), "127.0.0.1"), (t("wizard.anywhere", who=key), ANYWHERE)]
    answers.options["host"] = choose.select(t("wizard.who"), rows)


def _save(answers: Answers) -> None:
    name = choose.text(t("wizard.profile_name"), Path(answers.model).stem).removeprefix(profiles.MARK)
    if not name or (name in profiles.names() and not choose.agree(t("wizard.replace", name=name), default=False)):
        return
    try:
        file = profiles.save(name, answers.model, answers.options)
    except KTError as failure:
        output.error(failure)
        return
    output.status(t("wizard.saved", name=f"{profiles.MARK}{name}", file=file))
