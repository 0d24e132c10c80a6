"""What is to be judged. Light: the command line builds a job, a process does it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kt_core import paths
from kt_core.errors import BadData, NotFound
from kt_core.types import ModelFiles, Plan

DEFAULT_TOKENS = 2048
DEFAULT_WINDOW = 512
LEAST_WINDOW = 16
_SETTINGS = ("threads", "pools", "tier", "kv_dtype")


@dataclass(frozen=True)
class Subject:
    """A model and how its plan computes it."""

    files: ModelFiles
    settings: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> "Subject":
        return cls(plan.model, {name: plan.value(name) for name in _SETTINGS})


@dataclass(frozen=True)
class Job:
    """`subjects` in order; with `versus` the first one is what the others are compared with."""

    subjects: tuple[Subject, ...]
    versus: bool
    text: str  # a file
    questions: str = ""  # a file of multiple choice; "": none
    tokens: int = DEFAULT_TOKENS
    window: int = DEFAULT_WINDOW

    def dumped(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Job":
        """Raises ValueError or TypeError for a text that is not of dumped()."""
        fields: dict[str, Any] = json.loads(text)
        subjects = tuple(
            Subject(ModelFiles(**s["files"] | {"files": tuple(s["files"]["files"])}), s["settings"])
            for s in fields["subjects"]
        )
        return cls(**fields | {"subjects": subjects})


@dataclass(frozen=True)
class Question:
    """`answer` is the index of the right one among the choices."""

    question: str
    choices: tuple[str, ...]
    answer: int


def read_text(path: Path) -> str:
    """Raises NotFound or BadData."""
    try:
        text = paths.text(path)
    except FileNotFoundError:
        raise NotFound("quality.no_file", path=path) from None
    except (OSError, ValueError) as error:
        raise BadData("quality.unreadable", path=path, reason=error) from None
    if not text.strip():
        raise BadData("quality.unreadable", path=path, reason="0 tokens")
    return text


def read_questions(path: Path) -> tuple[Question, ...]:
    """Of JSON lines with `question`, `choices` and `answer`: the right choice's index, its letter or its text.

    Raises NotFound, and BadData with the number of the first line that is none.
    """
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_question(json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise BadData(
                "quality.question", path=path, line=number, reason=f"{type(error).__name__}: {error}"
            ) from None
    return tuple(found)


def _question(fields: dict[str, Any]) -> Question:
    choices = tuple(str(choice) for choice in fields["choices"])
    answer = fields["answer"]
    if isinstance(answer, str):
        answer = choices.index(answer) if answer in choices else "ABCDEFGHIJ".index(answer)
    choices[answer]
    return Question(str(fields["question"]), choices, int(answer))
