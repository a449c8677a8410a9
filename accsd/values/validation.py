"""What is wrong with a document, in sentences for the person who wrote it. Pydantic finds the problems;
this module names their place and suggests the word that was meant. Values are never shown: a document
may hold secrets.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel, ValidationError

Place = tuple[str | int, ...]

_PLAIN_WORDS = {
    "missing": "is missing",
    "model_type": "must be a table of keys and values",
    "model_attributes_type": "must be a table of keys and values",
    "dict_type": "must be a table of keys and values",
    "list_type": "must be a list",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, and what."""

    place: Place
    what: str

    @property
    def path(self) -> str:
        return ".".join(str(part) for part in self.place)

    def __str__(self) -> str:
        return f"{self.path} {self.what}" if self.place else self.what


def problems(error: ValidationError, model: type[BaseModel], *, most: int | None = None) -> list[Problem]:
    """Pydantic's findings as sentences, the first so many. `model` is the class that was being validated."""
    return [
        Problem(
            place=_place(detail["type"], detail["loc"]),
            what=_sentence(detail["type"], detail["msg"], detail["loc"], model),
        )
        for detail in error.errors(include_url=False, include_input=False)[:most]
    ]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean "x"?)`, or nothing where no known word is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{nearest[0]}"?)' if nearest else ""


def _place(kind: str, place: Place) -> Place:
    """An unknown field is a problem of the table that it stands in; the sentence names it."""
    return place[:-1] if kind == "extra_forbidden" else place


def _sentence(kind: str, message: str, place: Place, model: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        field = str(place[-1])
        return f'has an unknown field "{field}"{did_you_mean(field, _fields_at(model, place[:-1]))}'
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    return _PLAIN_WORDS.get(kind, message.replace("Input should be", "must be"))


def _fields_at(model: type[BaseModel], place: Place) -> list[str]:
    """The field names that are legal at a place: walk down through models and the containers between them."""
    here: object = model
    for part in place:
        inner = _model_within(here)
        if inner is not None and isinstance(part, str) and part in inner.model_fields:
            here = inner.model_fields[part].annotation
    target = _model_within(here)
    return list(target.model_fields) if target else []


def _model_within(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation such as `dict[str, Model]` or `Model | None` leads to."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(argument) for argument in get_args(annotation))
    return next((model for model in found if model), None)
