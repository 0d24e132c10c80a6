"""From a plan to an engine that takes requests."""

from pathlib import Path

from kt_core.engine import loader, templates
from kt_core.engine.disk import kept_of
from kt_core.engine.engine import Engine
from kt_core.types import Plan, Progress


def start(plan: Plan, progress: Progress) -> Engine:
    """Load the planned model and start its engine. Raises what loader.load raises."""
    templates.start()  # while the model loads
    runner, tokenizer, pages, vision = loader.load(plan, progress)
    kept = kept_of(plan, runner)
    engine = Engine(runner, tokenizer, plan.server.max_queue, pages, int(plan.value("max_running")), kept, vision)
    for done, (name, folder) in enumerate(plan.server.lora):
        progress("adapters", done, len(plan.server.lora), "")
        engine.adapters.load(name, Path(folder))
    return engine
