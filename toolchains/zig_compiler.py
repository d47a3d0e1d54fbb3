"""The compiler driver of the target linux-aarch64-musl: zig, in the options that builds expect.

A build calls it a thousand times, by the programs that etdeploy/runner/tools/toolchains.py writes:

    python -I -S zig_compiler.py <zig> c++ -O3 ...

So it is a program of its own that imports next to nothing, and replaces itself by zig.
"""

import os
import sys

# Zig reads -march as the name of a processor. It wants -mcpu=<processor>+<feature>, with LLVM's
# names of features, which differ from those of the architecture's manual in these.
_FEATURES = {
    "bf16": "bf16",
    "crypto": "crypto",
    "fp": "fp_armv8",
    "fp16": "fullfp16",
    "fp16fml": "fp16fml",
    "memtag": "mte",
    "rng": "rand",
    "simd": "neon",
}
_ARCH = "-march=armv"
# Zig's linker has no stack of states. CMake asks another linker, the machine's own, which has one,
# and writes --push-state --whole-archive <library> --pop-state, each after -Xlinker. What is pushed
# there is always the state in which libraries are not linked whole.
_STATES = dict.fromkeys(("--push-state", "--pop-state"), "--no-whole-archive")


def zig_arguments(arguments: list[str]) -> list[str]:
    """The options of GCC and Clang, in those that zig understands.

    >>> zig_arguments(["-march=armv8.2-a+fp16", "-c", "a.c"])
    ['-mcpu=generic+v8_2a+fullfp16', '-c', 'a.c']
    """
    return [_linker(_processor(argument)) for argument in arguments]


def _processor(argument: str) -> str:
    """`-march=armv8.2-a+dotprod+nosve` as `-mcpu=generic+v8_2a+dotprod-sve`."""
    if not argument.startswith(_ARCH):
        return argument
    version, *features = argument[len(_ARCH) :].split("+")
    architecture = version.replace("-", "").replace(".", "_")
    return f"-mcpu=generic+v{architecture}" + "".join(map(_feature, features))


def _feature(name: str) -> str:
    sign, name = ("-", name[2:]) if name.startswith("no") else ("+", name)
    return sign + _FEATURES.get(name, name.replace("-", "_"))


def _linker(argument: str) -> str:
    if argument.startswith("-Wl,"):
        return ",".join(_STATES.get(option, option) for option in argument.split(","))
    return _STATES.get(argument, argument)


def main(argv: list[str]) -> None:
    """Becomes zig.

    Args:
        argv: The path of zig, its subcommand (`cc` or `c++`) and the compiler's arguments.
    """
    zig, command, *arguments = argv
    target = ["-target", "aarch64-linux-musl"]
    os.execv(zig, [zig, command, *target, *zig_arguments(arguments)])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
