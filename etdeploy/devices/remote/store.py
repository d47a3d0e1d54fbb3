"""What makes room in the store on a remote device; pure except for the limit's variable.

    uses/DIGEST             the contents of a bundle; its date is that of the bundle's last push
    incoming/*/uses         the contents of what is being pushed now
    runs/RUN_ID/.bundle     the bundle of a run

What was used longest ago is removed first. The device's dates are compared only with each other and
with its own clock, so a wrong clock costs a push at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from etdeploy.core.layout import size_limit
from etdeploy.devices.base import Bundle, BundleFile
from etdeploy.devices.bundles import by_content
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.layout import StoreState
from etdeploy.devices.remote.shell import DevicePaths
from etdeploy.devices.shell import sections

LIMIT_VARIABLE = "ETDEPLOY_DEVICE_STORE_MAX"
_LIMIT_BYTES = 8_000_000_000
# Between its push and its run, only its date shows that a bundle is needed.
_YOUNG_S = 600


def limit_bytes() -> int | None:
    """The bytes that the store may hold: `ETDEPLOY_DEVICE_STORE_MAX`, 8 GB where it is not set.

    8 GB hold a few large language models, or some hundred programs for vision, and leave most of
    a phone of 64 GB to its user.
    """
    return size_limit(LIMIT_VARIABLE, _LIMIT_BYTES)


@dataclass(frozen=True)
class StoreUses:
    """Who uses which contents.

    Attributes:
        now_s: The device's clock; None when the device does not report it.
        last_s: When each bundle was pushed last, by the same clock.
        contents: Of each bundle, by SHA-256.
        live: Bundles of active runs, and contents of active pushes.
    """

    now_s: int | None = None
    last_s: Mapping[str, int] = field(default_factory=dict)
    contents: Mapping[str, frozenset[str]] = field(default_factory=dict)
    live: frozenset[str] = frozenset()

    def is_live(self, digest: str) -> bool:
        """Whether a run uses a bundle, or is about to."""
        age_s = None if self.now_s is None else self.now_s - self.last_s.get(digest, 0)
        return digest in self.live or (age_s is not None and 0 <= age_s < _YOUNG_S)


@dataclass(frozen=True)
class StoreRemoval:
    """What is removed: bundles by digest, contents by SHA-256, and the bytes that this frees.

    `partial` are contents that interrupted pushes had begun.
    """

    bundles: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    size_bytes: int = 0
    partial: tuple[str, ...] = ()


def note_command(bundle: Bundle, folder: str) -> str:
    """Records the contents of a bundle in the folder of its push."""
    words = " ".join(file.sha256 for file in by_content(bundle))
    return f"printf '%s\\n' {words} >{quote(folder)}/uses"


def used_command(place: DevicePaths, folder: str, digest: str) -> str:
    """Records at the end of a push that a bundle was used."""
    part, uses = quote(f"{folder}/uses"), quote(f"{place.root}/uses")
    # The empty line gives it the date of now, without a tool.
    return f"echo >>{part} && mv -f {part} {uses}/{digest}"


def uses_command(place: DevicePaths) -> str:
    """Prints who uses which contents."""
    root = quote(place.root)
    return "\n".join(
        (
            "echo '#now'; date +%s",
            f"echo '#uses'; cd {root}/uses && stat -c '%n %Y' -- * 2>/dev/null",
            "echo '#contents'; grep -Hs . *",
            f"echo '#live'; cat {root}/runs/*/.bundle {root}/incoming/*/uses 2>/dev/null",
            "true",
        )
    )


def parse_uses(output: str) -> StoreUses:
    """Reads what `uses_command` printed."""
    parts = sections(output)
    now = parts.get("now", "").strip()
    contents: dict[str, set[str]] = {}
    for digest, sha256 in re.findall(
        r"^([0-9a-f]{64}):([0-9a-f]{64})$", parts.get("contents", ""), re.MULTILINE
    ):
        contents.setdefault(digest, set()).add(sha256)
    dates = re.findall(r"^([0-9a-f]{64}) (\d+)$", parts.get("uses", ""), re.MULTILINE)
    return StoreUses(
        now_s=int(now) if now.isdigit() else None,
        last_s={digest: int(date) for digest, date in dates},
        contents={digest: frozenset(found) for digest, found in contents.items()},
        live=frozenset(parts.get("live", "").split()),
    )


def excess_bytes(survey: StoreState, bundle: Bundle, limit: int | None) -> int:
    """How much has to go before a bundle is pushed; 0 or less when nothing has to."""
    sizes = _sizes(survey)
    needed = needed_bytes((f for f in by_content(bundle) if f.sha256 not in sizes), survey)
    used = sum(sizes.values()) + sum(survey.partial.values())
    excess = 0 if limit is None else used + needed - limit
    if survey.free_bytes is not None:
        excess = max(excess, needed - survey.free_bytes)
    return excess


def _sizes(survey: StoreState) -> dict[str, int]:
    return {sha256: int(stamp.split()[0]) for sha256, stamp in survey.stamps.items()}


def removal(
    survey: StoreState, uses: StoreUses, bundle: Bundle, digest: str, limit: int | None
) -> StoreRemoval:
    """What to remove before a bundle is pushed, so that it fits and the store keeps to its limit.

    Nothing of the bundle itself or of another that is in use is removed, even if the store then
    exceeds its limit.
    """
    sizes, excess = _sizes(survey), excess_bytes(survey, bundle, limit)
    kept = {f.sha256 for f in bundle.files} | uses.live
    bundles: list[str] = []
    contents: list[str] = []
    # What is of use only if its push is repeated goes first.
    useless = [x for x in survey.partial if x not in kept or x in sizes]
    partial = useless if excess > 0 else []
    freed = sum(survey.partial[sha256] for sha256 in partial)
    for name, unused in _removal_order(sizes, uses, digest, kept):
        if freed >= excess:
            break
        bundles += [name] if name else []
        contents += unused
        freed += sum(sizes[sha256] for sha256 in unused)
    return StoreRemoval(tuple(bundles), tuple(contents), freed, tuple(partial))


def needed_bytes(missing: Iterable[BundleFile], survey: StoreState) -> int:
    """The room that these contents take, without what interrupted pushes sent of them."""
    return sum(max(0, f.size_bytes - survey.partial.get(f.sha256, 0)) for f in missing)


def _removal_order(
    sizes: Mapping[str, int], uses: StoreUses, own: str, kept: set[str]
) -> Iterator[tuple[str | None, Sequence[str]]]:
    """Bundles with the contents that nothing needs once each is gone; first what none needs now."""
    left = dict(uses.contents)
    removed: set[str] = set()

    def unneeded() -> list[str]:
        needed = kept.union(*left.values())
        found = [sha256 for sha256 in sizes if sha256 not in needed and sha256 not in removed]
        removed.update(found)
        return found

    yield None, unneeded()
    for digest in sorted(uses.contents, key=lambda name: uses.last_s.get(name, 0)):
        if digest != own and not uses.is_live(digest):
            del left[digest]
            yield digest, unneeded()


def removal_command(place: DevicePaths, gone: StoreRemoval) -> str:
    """Removes all of it except what a push that has begun meanwhile uses."""
    lines = [f"cd {quote(place.root)} || exit 1"]
    if gone.bundles:
        names = " ".join(f"bundles/{digest} uses/{digest}" for digest in gone.bundles)
        lines.append(f"rm -rf {names}")
    if gone.partial:
        lines.append(f"rm -f {' '.join(f'partial/{sha256}' for sha256 in gone.partial)}")
    lines += [
        f"for s in {' '.join(gone.contents)}; do",
        "  grep -qs $s incoming/*/uses || rm -f store/$s stamps/$s",
        "done",
    ] if gone.contents else []  # fmt: skip
    return "\n".join(lines)


BLOCK_BYTES = 1 << 20
"""What dd reads at once; the size of a part is a multiple of it."""
PART_BYTES = 64 * BLOCK_BYTES
"""At least so much of a file is worth resuming, and at most so much is sent twice."""
BEGUN, END = "begun", "end"
# As long as other answers may take.
_TRY_S = 0.02
_TRIES = 1500


@dataclass(frozen=True)
class Part:
    """A part of a file; sizes in bytes."""

    number: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


def split_parts(size_bytes: int, part_bytes: int) -> tuple[Part, ...]:
    """The parts of a file; only the last may be smaller than `part_bytes`."""
    starts = range(0, size_bytes, part_bytes)
    return tuple(Part(i, x, min(part_bytes, size_bytes - x)) for i, x in enumerate(starts))


def arrived(parts: Sequence[Part], there_bytes: int) -> tuple[Part, ...]:
    """The parts that a file of this size may hold whole; none when it holds more than the file."""
    if there_bytes > parts[-1].end:
        return ()
    return tuple(part for part in parts if part.end <= there_bytes)


def new_name(folder: str, sha256: str, part: Part | None = None) -> str:
    """Where a file, or a part of it, is sent to."""
    number = "" if part is None else f".{part.number}"
    return f"{folder}/{sha256}{number}.new"


def part_name(folder: str, sha256: str) -> str:
    """The file as far as it has arrived."""
    return f"{folder}/{sha256}.part"


def follow_command(folder: str, sha256: str, executable: bool) -> str:
    """Hashes a file while it arrives, and sets its mode; prints the digest in sha256sum's format.

    Before that, it prints `BEGUN` when the file has got the name under which it is kept. Each line
    at descriptor 3 says that more of it has arrived, `END` that all of it has. Each dd reads on
    where the one before stopped, since they share the open file. Ends with `layout.CHANGED` when
    the digest is another.
    """
    new, part = quote(new_name(folder, sha256)), quote(part_name(folder, sha256))
    return "\n".join(
        (
            # Before that, there is no file.
            "read -r word <&3 || exit 1",
            # What was sent may still be on its way; a file that cannot be made never comes.
            f"tries=0; until mv -f {new} {part} 2>/dev/null",
            f"do tries=$((tries + 1)); [ $tries -lt {_TRIES} ] && [ -d {quote(folder)} ] || exit 1",
            f"sleep {_TRY_S}; done; echo {BEGUN}",
            f"{layout.mode_command(part, executable)} || exit 1",
            f"copy=cat; command -v dd >/dev/null && copy='dd bs={BLOCK_BYTES}'",
            f"s=$( ( while $copy 2>/dev/null; [ $word != {END} ]",
            f"do read -r word <&3 || break; done ) <{part} | sha256sum) || exit 1",
            f'echo "$s"; [ "${{s%% *}}" = {sha256} ] || exit {layout.CHANGED}',
        )
    )


def take_command(place: DevicePaths, folder: str, sha256: str) -> str:
    """Takes what an interrupted push sent of a file, and prints its size in bytes."""
    there, part = quote(f"{place.partial}/{sha256}"), quote(part_name(folder, sha256))
    return (
        # Without them it could not be verified.
        f"command -v sha256sum >/dev/null && command -v dd >/dev/null || exit 1\n"
        f"mv {there} {part} 2>/dev/null && stat -c %s {part}"
    )


def continue_command(folder: str, sha256: str, executable: bool) -> str:
    """Puts parts into a file and verifies parts of it, as lines of `join` and `verify` say.

    They come at descriptor 3, up to `END`. Prints for each the part's number and digest, or the
    number, `failed` and why.
    """
    new, part = quote(f"{folder}/{sha256}"), quote(part_name(folder, sha256))
    dd = f"dd bs={BLOCK_BYTES}"
    return "\n".join(
        (
            f"{layout.mode_command(part, executable)} || exit 1",
            f"while read -r what number start count <&3 && [ $what != {END} ]; do",
            "  if [ $what = join ]; then",
            f"    said=$({dd} if={new}.$number.new of={part} seek=$start conv=notrunc 2>&1) ||",
            "    { echo $number failed $said; continue; }",
            f"    rm -f {new}.$number.new",
            "  fi",
            f"  sum=$({dd} if={part} skip=$start count=$count 2>/dev/null | sha256sum)",
            '  echo "$number ${sum%% *}"',
            "done",
        )
    )


def verify_line(part: Part) -> str:
    """Has a part of the file verified."""
    count = -(-part.size // BLOCK_BYTES)
    return f"verify {part.number} {part.start // BLOCK_BYTES} {count}"


def join_line(part: Part) -> str:
    """Has a part that has arrived put into the file, and verified there."""
    return verify_line(part).replace("verify", "join", 1)


def release_command(place: DevicePaths, folder: str) -> str:
    """Removes the folder of a push, except what arrived of large files: that is kept.

    May run twice at once. `folder` is a word of the shell's, quoted where that is needed.
    """
    partial = quote(place.partial)
    return (
        # An adbd that was killed has left even what was not renamed yet.
        f"for f in {folder}/*.part {folder}/*.new; do n=${{f##*/}}; n=${{n%.*}}\n"
        f'  case $n in *.*);; *) [ ! -s "$f" ] || mv -f "$f" {partial}/$n 2>/dev/null;; esac\n'
        f"done; rm -rf -- {folder}"
    )


def parse_size(output: str) -> int:
    """The size in the output of `take_command`; 0 when there was nothing to take."""
    text = output.strip()
    return int(text) if text.isdigit() else 0
