"""From a plan to an engine that takes requests."""

from kt_core.engine import loader, templates
from kt_core.engine.disk import folder_of
from kt_core.engine.engine import Engine
from kt_core.types import Plan, Progress


def start(plan: Plan, progress: Progress) -> Engine:
    """Load the planned model and start its engine. Raises what loader.load raises."""
    templates.start()  # while the model loads
    runner, tokenizer, pages, vision = loader.load(plan, progress)
    disk = folder_of(plan, runner)
    return Engine(runner, tokenizer, plan.server.max_queue, pages, int(plan.value("max_running")), disk, vision)
