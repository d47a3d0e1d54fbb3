"""Files with the cache of a text: `generate` and `chat` save them, and begin with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path

from pydantic import Field, ValidationError

from etdeploy import __version__
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular, write_atomic
from etdeploy.core.hashing import sha256_bytes, sha256_read
from etdeploy.core.values import Value
from etdeploy.devices.base import Bundle

Message = dict[str, str]
# What a file with a cache begins with, whatever its format.
_MARK = b'{"etdeploy_cache":'
_FORMAT = 1
# Longer than the ids of any context, with the conversation that they are of.
_LONGEST_HEADER = 1 << 28
_CHUNK = 1 << 20
_SAVE_AGAIN = "Leave --load-cache out, and save the cache again: --save-cache FILE"


class SnapshotHeader(Value):
    """The first line of a file with a cache, JSON; what the runner wrote follows it.

    Attributes:
        etdeploy_cache: The version of the format.
        release: Of etdeploy.
        program: Digest of the program and its weights.
        lora: The adapter that generated.
        tokens: Those whose keys and values are in the cache.
        pending: The rest of the text: its last token has usually not been fed back.
        furthest: The furthest end of a call since the cache was empty.
        system, messages: The conversation; none of a text that continues a prompt.
        image_bytes: Of what the runner wrote.
        sha256: Of the header without this, and of what the runner wrote.
    """

    etdeploy_cache: int = _FORMAT
    release: str = __version__
    program: str
    lora: str | None
    tokens: tuple[int, ...]
    pending: tuple[int, ...] = ()
    furthest: int = Field(ge=0)
    system: str | None = None
    messages: tuple[Message, ...] = ()
    image_bytes: int = Field(default=0, ge=0)
    sha256: str = ""

    @property
    def unsigned(self) -> bytes:
        """What the digest begins with."""
        return self.model_copy(update={"sha256": ""}).model_dump_json().encode()


@dataclass(frozen=True)
class Snapshot:
    """A file with a cache; `start` is where the runner's part of it begins."""

    path: Path
    header: SnapshotHeader
    start: int

    @classmethod
    def open(cls, path: Path) -> Snapshot:
        """Reads a file, and checks all of it.

        Raises:
            UsageError: The file has no cache, is from another release, or is damaged.
        """
        try:
            with open_regular(path) as stream:
                line = stream.readline(_LONGEST_HEADER)
                size = stream.seek(0, 2)
        except OSError as error:
            raise UsageError(
                f"the cache cannot be read: {error.strerror}", place=str(path)
            ) from error
        if not line.startswith(_MARK):
            raise UsageError(
                "the file has no cache of etdeploy's",
                place=str(path),
                remedy="Name a file that --save-cache wrote",
            )
        known: object = None
        with suppress(ValueError):
            known = json.loads(line)
        by = known.get("release") if isinstance(known, dict) else None
        if isinstance(known, dict) and (known["etdeploy_cache"], by) != (_FORMAT, __version__):
            raise UsageError(
                f"the cache is of etdeploy {by}, and this is {__version__}",
                place=str(path),
                remedy=_SAVE_AGAIN,
            )
        try:
            header = SnapshotHeader.model_validate_json(line)
        except ValidationError as error:
            raise _damaged(path, "its first line is incomplete") from error
        if size != len(line) + header.image_bytes:
            wanted = f"{len(line) + header.image_bytes:,}"
            raise _damaged(path, f"it has {size:,} bytes, and was saved with {wanted}")
        found = cls(path, header, len(line))
        for _ in found.parts():
            pass
        return found

    def require(self, program: str, lora: str | None) -> None:
        """Raises UsageError unless the cache is of this program, with this adapter."""
        if self.header.program != program:
            raise UsageError(
                "the cache is of another program: another model, another export of it, or another "
                "quantization",
                place=str(self.path),
                remedy=_SAVE_AGAIN,
            )
        if self.header.lora != lora:
            of, this = (f"the adapter {n}" if n else "no adapter" for n in (self.header.lora, lora))
            raise UsageError(
                f"the cache was saved with {of}, and this text has {this}",
                place=str(self.path),
                remedy=f"--lora {self.header.lora}" if self.header.lora else "Leave --lora out",
            )

    def parts(self) -> Iterator[bytes]:
        """What the runner wrote; raises UsageError at the end where it is damaged."""
        digest = hashlib.sha256(self.header.unsigned)
        with open_regular(self.path) as stream:
            stream.seek(self.start)
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != self.header.sha256:
            raise _damaged(self.path, "its bytes are not those that were saved")

    def reused(self, prompt: Sequence[int], rewind: int | None) -> int:
        """How many tokens of a prompt are in the cache, and can be gone back to.

        0 for the one that all texts begin with: it takes less time than to send the file.
        """
        found = reachable_prefix(self.header.tokens, self.header.furthest, prompt, rewind)
        return found if found > 1 else 0


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"the cache is damaged: {why}", place=str(path), remedy=_SAVE_AGAIN)


def cached_prefix(cache: Sequence[int], prompt: Sequence[int]) -> int:
    """Return how many tokens of a prompt are cached; its last one must be computed for logits."""
    pairs = zip(cache, prompt[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def reachable_prefix(
    cache: Sequence[int], furthest: int, prompt: Sequence[int], rewind: int | None
) -> int:
    """The same, or 0 where a ring buffer cannot be set back so far from `furthest`."""
    cached = cached_prefix(cache, prompt)
    return 0 if rewind is not None and furthest - cached > rewind else cached


def require_replaceable(path: Path) -> None:
    """Raises UsageError where a cache cannot be saved, or would replace another file."""
    why = None
    if not path.parent.is_dir():
        why = "its folder does not exist"
    elif path.is_dir():
        why = "it is a folder"
    elif path.exists():
        with suppress(OSError), open_regular(path) as stream:
            if stream.read(len(_MARK)) == _MARK:
                return
        why = "the file that is there has no cache of etdeploy's, and is not replaced"
    if why:
        raise UsageError(
            f"no cache can be saved there: {why}",
            place=str(path),
            remedy="Name another file: --save-cache FILE",
        )


def program_digest(bundle: Bundle) -> str:
    """Digest of the program, and of its weights if they are in other files."""
    # A draft is in its own folder; a cache does not depend on it.
    files = (f for f in bundle.files if Path(f.path).parent == Path())
    found = [f.sha256 for f in files if Path(f.path).suffix in (".pte", ".ptd")]
    return found[0] if len(found) == 1 else sha256_bytes(" ".join(sorted(found)).encode())


def save_snapshot(path: Path, header: SnapshotHeader, image: Path) -> SnapshotHeader:
    """Writes a file with what the runner wrote, in one step; it replaces only another of its kind.

    Returns the header with digest and size.

    Raises:
        UsageError: Another file is there.
    """
    header = header.model_copy(update={"image_bytes": image.stat().st_size})
    digest = hashlib.sha256(header.unsigned)
    sha256_read(image, digest.update)
    header = header.model_copy(update={"sha256": digest.hexdigest()})
    require_replaceable(path)  # it may be there by now
    with image.open("rb") as stream:
        line = header.model_dump_json().encode() + b"\n"
        chunks = iter(lambda: stream.read(_CHUNK), b"")
        write_atomic(path, chain([line], chunks))
    return header
