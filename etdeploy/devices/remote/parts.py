"""How a large file goes to a device in parts, and the shell commands for it; all pure.

    incoming/TOKEN.PID/SHA256.new       what is being sent, under the name that it is opened by
    incoming/TOKEN.PID/SHA256.part      the file itself, as far as it has arrived
    incoming/TOKEN.PID/SHA256.N.new     part N, which is written into the file when it has arrived
    partial/SHA256                      SHA256.part of an interrupted push, for the next one

A file of which the device has nothing is sent in one go, since adb's protocol writes whole files
only, and that is the fastest way: 10 times faster than the input of a command. It is renamed as
soon as it is there, so that adbd, which removes a file whose transfer breaks, no longer finds it.
The file moves between the two folders by one rename, so that of several pushes one gets it.

Toybox, BusyBox and coreutils run these commands; their dd, too, counts in blocks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from etdeploy.devices.remote import layout
from etdeploy.devices.remote.shell import Place

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


def parts_of(size_bytes: int, part_bytes: int) -> tuple[Part, ...]:
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


def take_command(place: Place, folder: str, sha256: str) -> str:
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


def release_command(place: Place, folder: str) -> str:
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
