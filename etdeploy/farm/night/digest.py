"""What a night is a night of: the farm.yaml and its recipes."""

from __future__ import annotations

import hashlib

from etdeploy.core.hashing import sha256_file
from etdeploy.farm.spec.model import LoadedFarm


def digest_of(loaded: LoadedFarm) -> str:
    """SHA-256 of the farm's values and of every file of its recipes and their apps.

    A night is only gone on with while both are the same: else two of its repeats would measure
    different things. A comment in farm.yaml changes nothing.
    """
    found = hashlib.sha256(loaded.farm.model_dump_json().encode())
    for label, recipe in sorted(loaded.recipes.items()):
        found.update(f"\n{label}\n{recipe.recipe.model_dump_json()}".encode())
        for _, sha256 in recipe.files:
            found.update(f"\n{sha256}".encode())
        if label in loaded.farm.apps:
            found.update(f"\n{sha256_file(loaded.farm.apps[label])}".encode())
    return found.hexdigest()
