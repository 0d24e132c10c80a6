"""What is to be judged. Light: the command line builds a job, a process does it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kt_core.errors import BadData
from kt_core.formats.texts import read_text
from kt_core.messages import t
from kt_core.types import ModelFiles, Plan

DEFAULT_TOKENS = 2048
DEFAULT_WINDOW = 512
LEAST_WINDOW = 16
LEAST_CHOICES = 2  # one alone is always right
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
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
    """`subjects` in order; with `versus` the first one is what the others are compared with. A text, questions, or both."""

    subjects: tuple[Subject, ...]
    versus: bool
    text: str = ""  # a file; "": none
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


def read_questions(path: Path) -> tuple[Question, ...]:
    """Of JSON lines with `question`, `choices` and `answer`: the right choice's index, its letter or its text.

    Raises NotFound, and BadData with the number of the first line that is none and what is expected there.
    """
    found = []
    for number, line in enumerate(read_text(path).split("\n"), 1):  # JSON may hold the other characters that end lines
        if line.strip():
            try:
                found.append(_question(_parsed(line)))
            except _Odd as odd:
                raise BadData("quality.question", path=path, line=number, reason=t(odd.key, **odd.numbers)) from None
    return tuple(found)


class _Odd(Exception):
    """What is wrong with a line: a message's key and its numbers."""

    def __init__(self, key: str, **numbers: int | str) -> None:
        super().__init__(key)
        self.key, self.numbers = key, numbers


def _parsed(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise _Odd("quality.no_json", column=error.colno) from None
    except (ValueError, RecursionError):  # a number of more digits than Python reads, or too deep
        raise _Odd("quality.no_json", column=1) from None
    if not isinstance(fields, dict):
        raise _Odd("quality.no_object")
    return fields


def _question(fields: dict[str, Any]) -> Question:
    question, choices = fields.get("question"), fields.get("choices")
    if not isinstance(question, str) or not question.strip():
        raise _Odd("quality.no_question")
    if not isinstance(choices, list) or len(choices) < LEAST_CHOICES:
        raise _Odd("quality.no_choices", least=LEAST_CHOICES)
    if not all(type(choice) in (str, int, float) and str(choice).strip() for choice in choices):
        raise _Odd("quality.odd_choice")
    words = tuple(map(str, choices))
    try:
        "".join((question, *words)).encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can write
        raise _Odd("quality.no_characters") from None
    if len({word.strip() for word in words}) < len(words):
        raise _Odd("quality.same_choices")
    return Question(question, words, _answer(fields.get("answer"), words))


def _answer(answer: object, choices: tuple[str, ...]) -> int:
    """The index of the right choice. A text is looked for among the choices before it is taken for a letter."""
    last = len(choices) - 1
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, str) and len(answer) == 1 and answer in LETTERS[: len(choices)]:
        return LETTERS.index(answer)
    if type(answer) is int and 0 <= answer <= last:
        return answer
    key = "quality.no_answer" if answer is None else "quality.odd_answer"
    raise _Odd(key, last=last, letter=LETTERS[min(last, len(LETTERS) - 1)])
