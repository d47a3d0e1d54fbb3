"""The cache of one process on the device, which a session and its branches use in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.chat_process import ChatProcess
from etdeploy.bench.snapshot import Snapshot, cached_prefix, reachable_prefix


@dataclass(frozen=True)
class BranchImage:
    """A cache in a file of the run's folder."""

    name: str
    tokens: tuple[int, ...]
    furthest: int


class BranchedCache:
    """Knows whose text is in the cache, and saves it on the device before another replaces it.

    So a branch finds its keys and values as it left them, and its text is that of a session of its
    own. Text that belongs to no branch has the number 0.
    """

    def __init__(self, process: ChatProcess) -> None:
        self.process = process
        self._owner = 0
        self._numbers = 0
        self._images: dict[int, BranchImage] = {}

    def add(self, parent: int = 0) -> int:
        """Return the number of a new branch, which begins with the text of its parent.

        The text must be in the cache. One that can be set back anywhere needs no copy: what the
        branches share is there, or in what another one saves.
        """
        self._numbers += 1
        if parent and self._owner == parent and self.process.generation.rewind is not None:
            self._save(self._numbers)
        return self._numbers

    def remove(self, branch: int) -> None:
        """Forget a branch."""
        image = self._images.pop(branch, None)
        if self._owner == branch:
            self._owner = 0
        if image and self.process.is_running:
            self.process.remove_image(image.name)

    def take_turn(self, branch: int, prompt: Sequence[int]) -> None:
        """Make the cache that of a branch, with as much of the prompt as any branch has."""
        process = self.process
        if branch and branch == self._owner and process.is_running:
            return
        replaced = len(process.cached) - cached_prefix(process.cached, prompt)
        if self._owner not in (0, branch) and process.is_running and replaced > 0:
            self._save(self._owner)
        self._owner = branch
        rewind = process.generation.rewind
        most = process.reusable(prompt)
        best: BranchImage | None = None
        for image in self._images.values():
            saved = reachable_prefix(image.tokens, image.furthest, prompt, rewind)
            if saved > most:
                best, most = image, saved
        if best is not None:
            process.load_image(best.name, best.tokens, best.furthest)

    def restore(self, branch: int, snapshot: Snapshot) -> None:
        """Make the cache that of a file on this machine."""
        self.take_turn(branch, ())
        self.process.load_snapshot(snapshot)

    def forget_images(self) -> None:
        """The run's folder is another one."""
        self._images, self._owner = {}, 0

    def _save(self, branch: int) -> None:
        process, name = self.process, f"branch-{branch}.bin"
        if process.cached:
            process.save_image(name)
            self._images[branch] = BranchImage(name, tuple(process.cached), process.furthest)
