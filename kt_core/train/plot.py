"""The picture of a run's loss."""

from pathlib import Path

from matplotlib.figure import Figure

SMOOTH = 0.9  # weight of the past in the smoothed curve


def draw(points: list[tuple[int, float]], file: Path) -> None:
    """Loss (nats a token) by step, as it was and smoothed, as a PNG."""
    figure = Figure(figsize=(8, 5), dpi=120)
    axes = figure.add_subplot()
    steps = [step for step, _ in points]
    losses = [loss for _, loss in points]
    smooth = losses[:1]
    for loss in losses[1:]:
        smooth.append(SMOOTH * smooth[-1] + (1 - SMOOTH) * loss)
    axes.plot(steps, losses, alpha=0.4, label="loss")
    axes.plot(steps, smooth, label="smoothed")
    axes.set_title("Training loss")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss (nats a token)")
    axes.legend()
    figure.savefig(file)
