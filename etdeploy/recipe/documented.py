"""The documentation of recipe keys: the texts below them in the models' source.

Pydantic can read them too, but would at every start; only the schema and the reference need them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel

from etdeploy.recipe.model import section_of


def key_texts(model: type[BaseModel]) -> dict[str, str]:
    """The text of each documented key of a section."""
    [section] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(section, ast.ClassDef)  # noqa: S101 - for the type checker
    texts = {}
    for key, text in pairwise(section.body):
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name):
            match text:
                case ast.Expr(ast.Constant(str(found))):
                    texts[key.target.id] = inspect.cleandoc(found)
    return texts


def sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """A model and all models below it, by class name."""
    found = {model.__name__: model}
    for field in model.model_fields.values():
        if section := section_of(field.annotation):
            found |= sections(section)
    return found
