"""A loaded recipe as a value that another host can read without the recipe's files."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.revision import Revision
from etdeploy.core.values import Value
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.place import Place


class PlaceCopy(Value):
    """The place of one key."""

    keys: tuple[int | str, ...]
    file: str
    line: int | None
    column: int | None
    folder: str


class RecipeCopy(Value):
    """A loaded recipe.

    Attributes:
        name, path: As the coordinator knows it; nothing is read there.
        recipe: The values, with the coordinator's paths.
        files: What was read for it, with SHA-256.
        places: For messages.
        commit, dirty: The revision of its folder.
    """

    name: str
    path: str
    recipe: Recipe
    files: tuple[tuple[str, str], ...]
    places: tuple[PlaceCopy, ...]
    commit: str | None
    dirty: bool | None

    @classmethod
    def of(cls, loaded: LoadedRecipe, revision: Revision) -> RecipeCopy:
        """The copy of a recipe, and of the revision that its folder has now."""
        return cls(
            name=loaded.name,
            path=str(loaded.path),
            recipe=loaded.recipe,
            files=tuple((str(path), sha256) for path, sha256 in loaded.files),
            places=tuple(_copied(keys, place) for keys, place in loaded.places.items()),
            commit=revision.commit,
            dirty=revision.dirty,
        )

    @property
    def loaded(self) -> LoadedRecipe:
        """The recipe as it was loaded."""
        return LoadedRecipe(
            self.name,
            Path(self.path),
            self.recipe,
            tuple((Path(path), sha256) for path, sha256 in self.files),
            {
                each.keys: Place(each.file, each.line, each.column, Path(each.folder))
                for each in self.places
            },
        )

    @property
    def revision(self) -> Revision:
        """Of its folder, when it was copied."""
        return Revision(self.commit, self.dirty)


def _copied(keys: tuple[str | int, ...], place: Place) -> PlaceCopy:
    return PlaceCopy(
        keys=keys,
        file=place.file,
        line=place.line,
        column=place.column,
        folder=str(place.folder),
    )
