"""What etdeploy keeps on a remote device, and the shell commands for it; all pure.

    BASE/etdeploy/
      store/SHA256       every content once, verified
      stamps/SHA256      size, inode, mode and dates of the content when it was verified
      bundles/DIGEST/    a bundle's paths, as links into the store
      uses/DIGEST        a bundle's contents, with the date of its last push (store.py)
      runs/RUN_ID/       one run's working folder
      incoming/          a folder for each push in progress (incoming.py)
      partial/SHA256     what an interrupted push sent of a large content (parts.py)

Symbolic links, because SELinux forbids hard links to adb's user. Programs get hard links where the
device allows them: a program's $ORIGIN, beside which it looks for its libraries, is where a
symbolic link leads. Every change of a file, its mode or its links changes its ctime, so equal
stamps mean an untouched content, and nothing is read again.
Toybox, BusyBox and coreutils run these commands.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices import sysfs
from etdeploy.devices.base import Bundle, BundleFile, DeviceState
from etdeploy.devices.remote.shell import DevicePaths
from etdeploy.devices.shell import sections

CHANGED = 41
"""The exit code for a file with another digest."""
FOLDERS = ("store", "stamps", "bundles", "uses", "runs", "incoming", "partial")
"""What is below the folder that is etdeploy's own."""
# Size, inode, mode, modification and change time, with fractions of seconds where there are any.
_STAMP = "%n %s %i %a %y %z"


@dataclass(frozen=True)
class StoreState:
    """What a device has.

    Attributes:
        free_bytes: Room there; None when the device does not report it.
        can_hash: Whether it has sha256sum.
        stamps: The stamp of every content now.
        verified: The stamp that every content had when it was verified.
        links: Inode that each path of the requested bundle leads to.
        partial: The bytes that are there of contents that interrupted pushes had begun.
    """

    free_bytes: int | None
    can_hash: bool = True
    stamps: Mapping[str, str] = field(default_factory=dict)
    verified: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    partial: Mapping[str, int] = field(default_factory=dict)

    def is_sound(self, sha256: str, executable: bool) -> bool:
        """Whether a content is as it was verified, and can be executed where that is needed."""
        stamp = self.stamps.get(sha256)
        if stamp is None or stamp != self.verified.get(sha256):
            return False
        return not executable or int(stamp.split()[2], 8) & 0o111 == 0o111

    def is_laid_out(self, bundle: Bundle) -> bool:
        """Whether every path of the bundle leads to its content."""
        inodes = {sha256: stamp.split()[1] for sha256, stamp in self.stamps.items()}
        return all(
            f.sha256 in inodes and self.links.get(f.path) == inodes[f.sha256] for f in bundle.files
        )


def survey_command(place: DevicePaths, bundle: Bundle, digest: str) -> str:
    """Prints what the device has of a bundle; removes what killed runs left."""
    paths = " ".join(quote(f.path) for f in bundle.files)
    root = quote(place.root)
    return "\n".join(
        (
            # The shell's own tests first: to start a tool takes some ms on a phone.
            # More than one day by toybox's count, two by that of other finds.
            f'cd {root} && set -- runs/*; [ ! -e "$1" ] ||',
            "find runs -mindepth 1 -maxdepth 1 -mtime +1 -exec rm -rf {} +",
            f"echo '#partial'; cd {root}/partial && set -- *",
            'if [ -e "$1" ]; then find . -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf {} +',
            "stat -c '%n %s' -- * 2>/dev/null; fi",
            f"echo '#df'; df -k {root}",
            "echo '#tools'; command -v sha256sum",
            f'cd {root}/store && set -- *; if [ -e "$1" ]; then',
            f"echo '#store'; stat -c '{_STAMP}' -- * 2>/dev/null",
            f"echo '#stamps'; cd {root}/stamps && cat -- * 2>/dev/null; fi",
            f"echo '#links'; cd {root}/bundles/{digest} 2>/dev/null &&"
            f" stat -L -c '%i %n' -- {paths} 2>/dev/null",
            "true",
        )
    )


def parse_survey(output: str) -> StoreState:
    """Reads what `survey_command` printed."""
    parts = sections(output)
    return StoreState(
        free_bytes=parse_df(parts.get("df", "")),
        can_hash="sha256sum" in parts.get("tools", ""),
        stamps=_stamps(parts.get("store", "")),
        verified=_stamps(parts.get("stamps", "")),
        links={
            path: inode
            for inode, _, path in (x.partition(" ") for x in parts.get("links", "").splitlines())
        },
        partial={name: int(size) for name, size in _stamps(parts.get("partial", "")).items()},
    )


def parse_df(text: str) -> int | None:
    """Free bytes in the output of `df -k` of one folder.

    A long name of a file system puts the numbers on a line of their own.
    """
    match = re.search(r"\s(\d+)\s+(\d+)\s+(\d+)\s+\d+%\s+\S+\s*$", text)
    return int(match[3]) * 1024 if match else None


def _stamps(text: str) -> dict[str, str]:
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: stamp for name, _, stamp in lines if re.fullmatch(r"[0-9a-f]{64}", name)}


def digest_command(place: DevicePaths, sha256s: Sequence[str]) -> str:
    """Reads contents again and prints their digests in sha256sum's format."""
    return f"cd {quote(place.root)}/store && sha256sum -- {' '.join(sha256s)}; true"


def parse_digests(output: str) -> set[str]:
    """The contents that are what their names say."""
    pairs = re.findall(r"^([0-9a-f]{64}) [ *]?(\S+)$", output, re.MULTILINE)
    return {name for digest, name in pairs if digest == name}


def mode_command(path: str, executable: bool) -> str:
    """Sets the mode of a content; `path` is a word of the shell's."""
    return f"chmod {'755' if executable else '644'} {path}"


def stamp_command(place: DevicePaths, sha256: str, executable: bool) -> str:
    """Sets the mode of a content that was verified, and keeps its stamp."""
    mode = mode_command(sha256, executable)
    return f"cd {quote(place.root)}/store && {mode} && {_stamping(sha256)}"


def _stamping(sha256: str) -> str:
    # Written in place: half a stamp equals none, and then the content is verified again.
    return f"stat -c '{_STAMP}' {sha256} >../stamps/{sha256}"


def verify_command(part: str, sha256: str, executable: bool) -> str:
    """Compares a pushed file with its digest, and sets its mode; prints the digest."""
    return (
        f"s=$(sha256sum {quote(part)}) || exit 1\n"
        f'echo "$s"; [ "${{s%% *}}" = {sha256} ] || exit {CHANGED}\n'
        f"{mode_command(quote(part), executable)}"
    )


def keep_command(place: DevicePaths, part: str, sha256: str) -> str:
    """Moves a verified file with the right mode into the store."""
    root = quote(place.root)
    return f"mv -f {quote(part)} {root}/store/{sha256} && cd {root}/store && {_stamping(sha256)}"


def prepare_command(place: DevicePaths, bundle: Bundle, part: str) -> str:
    """Makes the bundle's folder of links elsewhere; programs have to be in the store."""
    part = quote(part)
    folders = sorted({posixpath.dirname(f.path) for f in bundle.files} - {""})
    # Without -p: the folder of a push that was stopped meanwhile must not come back.
    lines = [f"mkdir {part} && cd {part} || exit 1"]
    if folders:
        lines.append(f"mkdir -p -- {' '.join(map(quote, folders))} || exit 1")
    lines += [_link_command(place, f) for f in sorted(bundle.files, key=lambda f: f.path)]
    programs = sorted({f.sha256 for f in bundle.files if f.executable})
    # The links are new.
    lines += [f"( {stamp_command(place, sha256, True)} )" for sha256 in programs]
    return "\n".join(lines)


def place_command(place: DevicePaths, digest: str, part: str) -> str:
    """Moves a bundle's folder into place."""
    final = quote(place.bundle(digest))
    return (
        f"if [ -e {final} ] || [ -L {final} ]; then rm -rf {final} || exit 1; fi\n"
        f"mv {quote(part)} {final} || exit 1"
    )


def _link_command(place: DevicePaths, file: BundleFile) -> str:
    words = f"{quote(f'{place.root}/store/{file.sha256}')} {quote(file.path)}"
    hard = f"ln {words} 2>/dev/null || " if file.executable else ""
    return f"{hard}ln -s {words} || exit 1"


def clean_command(place: DevicePaths) -> str:
    """Prints the size of each folder in KiB, and removes everything."""
    root = quote(place.root)
    return f"[ -d {root} ] || exit 0\ncd {root} && du -sk -- * 2>/dev/null\ncd / && rm -rf {root}"


def parse_sizes(output: str) -> dict[str, int]:
    """Bytes by folder in the output of `clean_command`."""
    found = re.findall(r"^(\d+)\s+(\w+)$", output, re.MULTILINE)
    return {name: int(kib) * 1024 for kib, name in found}


def run_command(place: DevicePaths, run_id: str, digest: str) -> str:
    """Makes a run's folder, which names its bundle."""
    folder = quote(place.run(run_id))
    return (
        f"mkdir -p {quote(f'{place.root}/runs')} && mkdir {folder} && echo {digest} "
        f">{folder}/.bundle"
    )


def start_command(
    folder: str,
    argv: Sequence[str],
    variables: Mapping[str, str],
    limit_s: int,
    sampling: StateSampling,
    end: str = "",
    ending: str = ":",
) -> str:
    """Runs a program in a run's folder with its output in files there; prints its exit code.

    The shell leads a process group; `.pid` lets `kill_command` end all of it. A second shell waits
    for the end of the connection, which it sees at its input, and then ends the group: nothing else
    would if etdeploy was killed. `.watch` has its process id. How often the system killed a process
    for want of memory is counted before and after, where it tells.
    """
    stdout = "" if end else ">.stdout "
    return "\n".join(
        (
            *_begin_lines(folder, limit_s, ending),
            f"( trap '' HUP; read -r _ <&3; {ending}; kill -9 -$$ ) >/dev/null 2>&1 &",
            "watch=$!; echo $watch >.watch",
            *loop_lines(sampling),
            # What the shell itself says of a crash would come among the program's lines. Its own
            # stderr stays open: where that ends first, one run of some hundred hangs over adb.
            "{",
            *_program_lines(argv, variables, f"</dev/null 3<&- {stdout}2>.stderr"),
            "} 2>/dev/null",
            "code=$?; kill -9 $watch $sampler $limit; read -r x <.limit && kill -9 $x",
            *_end_lines(end),
        )
    )


def talk_command(
    folder: str,
    argv: Sequence[str],
    variables: Mapping[str, str],
    limit_s: int,
    end: str,
    marker: str,
) -> str:
    """Does what `start_command` does, for a program that reads the connection.

    The shell that hands over its input waits for the end of the connection, and ends the group
    then: also one whose program has ended.
    """
    return "\n".join(
        (
            *_begin_lines(folder, limit_s),
            # adb's user may make no named pipe. A shell's own number is not in `$$` here.
            "( trap '' HUP; read -r watch _ </proc/self/stat; echo $watch >.watch",
            "  cat <&3; kill -9 -$$ ) 2>/dev/null | (",
            "exec 3<&- 2>/dev/null",
            *_program_lines(argv, variables, "2>.stderr"),
            "code=$?",
            *_end_lines(end),
            f"echo {marker}:0 )",
        )
    )


def _begin_lines(folder: str, limit_s: int, ending: str = ":") -> tuple[str, ...]:
    """Goes into a run's folder, and limits the time; 3 is the connection."""
    return (
        f"cd {quote(folder)} || exit 1",
        "echo $$ >.pid; exec 3<&0",
        # Killed by number, with its `sleep`: mksh loses a trapped signal that comes just before it
        # waits, and what is left there keeps the terminal open.
        f": >.limit; ( trap '' HUP; sleep {limit_s} & echo $! >.limit; wait $!; {ending};"
        " kill -9 -$$ )"
        " </dev/null 3<&- >/dev/null 2>&1 &",
        "limit=$!",
        "kills() { grep '^oom_kill ' /proc/vmstat 2>/dev/null; }; before=$(kills)",
    )


def _program_lines(
    argv: Sequence[str], variables: Mapping[str, str], streams: str
) -> tuple[str, ...]:
    exports = (f"export {name}={quote(value)}" for name, value in variables.items())
    return ("(", *exports, f"exec {' '.join(map(quote, argv))} {streams}", ")")


def _end_lines(end: str) -> tuple[str, ...]:
    summary = 'echo "exit code $code"; echo "before: $before"; echo "after: $(kills)"'
    return (f"echo {end}", summary) if end else (summary,)


def parse_exit_code(output: str) -> int | None:
    """The program's exit code in the output of `start_command`."""
    match = re.search(r"^exit code (\d+)\s*$", output, re.MULTILINE)
    return int(match[1]) if match else None


def require_exit_code(output: str, device: str) -> int:
    """The same."""
    exit_code = parse_exit_code(output)
    if exit_code is None:
        raise DeviceError(
            f"the device cannot start the program: {output.strip()}",
            place=device,
            remedy="Run the same command again.",
        )
    return exit_code


def parse_out_of_memory(output: str) -> bool | None:
    """Whether the system killed a process for want of memory during `start_command`."""
    counts = re.findall(r"^(?:before|after): oom_kill (\d+)\s*$", output, re.MULTILINE)
    return counts[0] != counts[1] if len(counts) == 2 else None


def kill_command(folder: str) -> str:
    """Ends the program of a run and everything that it started."""
    return f"read pid <{quote(folder)}/.pid && kill -9 -$pid; true"


FILE = ".states"
"""In the run's folder."""
_SLOWLY = 10
# As sampling.CHOSEN_ZONES says it; 0 stands for a device with few zones.
_CHOSEN_ZONES = "0*|*[Cc][Pp][Uu]*|*[Ss][Oo][Cc]*|*[Ss]kin*|*[Bb]att*|*pkg*"


@dataclass(frozen=True)
class StateSampling:
    """What a kind of device is asked while a program runs.

    Attributes:
        parse: Reads the state in the lines of a reading.
        rarely: A command that takes longer than reading files, such as a request to a service of
            the system; it runs about every ten seconds, and never in the first ten.
    """

    parse: Callable[[str], DeviceState] = sysfs.sampled_state
    rarely: str = ""


def _periods() -> str:
    """Makes the period longer, as `sysfs.sampling_period_s` says."""
    periods = sysfs.SAMPLING_PERIODS_S
    return "; ".join(f"[ $n != {n} ] || every={s}" for n, s in periods.items() if n)


def loop_lines(chosen: StateSampling) -> tuple[str, ...]:
    """Starts the loop; `$sampler` is its process id. The working folder is the run's."""
    policy, zones, supplies = (
        f"/sys/{pattern}" for pattern in (sysfs.POLICIES, sysfs.ZONES, sysfs.SUPPLIES)
    )
    return (
        # Emptied here, since the loop may be killed before it has begun.
        f": >{FILE}",
        "(",
        # Prints a file's first line where it can be read.
        'show() { read -r x <"$1" && echo "$1:$x"; }',
        # Keeps files that can be read now.
        'keep() { read -r x <"$1" && files="$files $1"; }',
        f"files=; set -- {policy}; n=0",
        f"every=$(( ($# + {sysfs.MAX_SAMPLED - 1}) / {sysfs.MAX_SAMPLED} ))",
        "for p; do n=$((n + 1)); [ $((n % every)) = 0 ] || continue",
        f"for f in {' '.join(sysfs.CONSTANT_POLICY_FILES)}; do show $p/$f; done",
        f"for f in {' '.join(sysfs.POLICY_FILES)}; do keep $p/$f; done; done",
        f"set -- {zones}; all=$#; n=0",
        f"for z; do [ $n -lt {sysfs.MAX_SAMPLED} ] || break; read -r x <$z/type || continue",
        f"case $(({sysfs.MAX_SAMPLED} < all))$x in {_CHOSEN_ZONES})",
        "show $z/type; n=$((n + 1)); keep $z/temp;; esac; done",
        f"for s in {supplies}; do read -r x <$s/type && [ $x = Battery ] || continue",
        f"show $s/type; show $s/scope; for f in {' '.join(sysfs.BATTERY_FILES)}; do keep $s/$f",
        "done; done",
        f"keep {quote('/sys/' + sysfs.FIRMWARE)}",
        "n=0; s=0; every=1; at() { read -r t _ </proc/uptime; echo @$t; }; at",
        # Never longer, so that nothing is left for longer when the loop is ended.
        "while sleep 1; do s=$((s + 1)); [ $((s % every)) = 0 ] || continue",
        f"n=$((n + 1)); {_periods()}; at; for f in $files; do show $f; done",
        f"[ $((n % {_SLOWLY})) != 0 ] || {{ {chosen.rarely or ':'}; }}; echo '#end'",
        f"done ) </dev/null 3<&- >{FILE} 2>/dev/null &",
        "sampler=$!",
    )
