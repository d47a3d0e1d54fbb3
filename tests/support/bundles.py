"""Small bundles for tests of devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import Bundle, BundleFile, ProcessLaunch

# One program with every way to end; static, so that it runs where there is no C library.
PROGRAM = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* `occupy LOG MS NAME`: has LOG's device to itself for a while, and says so there, by a clock that
   nobody sets. Where another has it, that is said, and the exit code is 99. */
static void note(int log, const char *word, const char *name) {
  struct timespec up;
  clock_gettime(CLOCK_BOOTTIME, &up);
  dprintf(log, "%s %s %d %.2f\n", word, name, (int)getpid(), up.tv_sec + up.tv_nsec / 1e9);
}

static int occupy(const char *path, int ms, const char *name) {
  int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (log < 0) return 3;
  int is_free = !flock(log, LOCK_EX | LOCK_NB);
  note(log, is_free ? "begin" : "overlap", name);
  if (!is_free) return 99;
  usleep(1000 * ms);
  note(log, "end", name);
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  printf("out %s\n", what);
  fprintf(stderr, "err %s\n", getenv("GREETING") ? getenv("GREETING") : "");
  fflush(stdout);
  if (!strcmp(what, "exit")) return atoi(argv[2]);
  if (!strcmp(what, "sleep")) usleep(1000 * atoi(argv[2]));
  if (!strcmp(what, "occupy")) return occupy(argv[2], atoi(argv[3]), argv[4]);
  if (!strcmp(what, "crash")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
  if (!strcmp(what, "hang")) { if (fork() == 0) for (;;) pause(); for (;;) pause(); }
  if (!strcmp(what, "await")) {
    char text[64];
    FILE *file;
    while (!(file = fopen(argv[2], "r")) || !fgets(text, sizeof text, file)) {
      if (file) fclose(file);
      usleep(10000);
    }
    do fputs(text, stdout); while (fgets(text, sizeof text, file));
    fclose(file);
    printf("no end of line");
  }
  if (!strcmp(what, "talk")) {
    static char line[1 << 18];
    while (fgets(line, sizeof line, stdin)) {
      if (!strncmp(line, "exit ", 5)) return atoi(line + 5);
      if (!strcmp(line, "crash\n")) raise(SIGSEGV);
      if (!strcmp(line, "hang\n")) for (;;) pause();
      printf("%d %.20s", (int)strlen(line), line);
      if (strlen(line) > 20) printf("\n");
      fflush(stdout);
    }
    return 7;
  }
  if (!strcmp(what, "write")) {
    FILE *file = fopen(argv[2], "w");
    if (!file) return 3;
    fputs(argv[3], file);
    fclose(file);
  }
  return 0;
}
"""


def compile_program(folder: Path, compiler: str = "gcc", *options: str) -> Path:
    """The program above as a static executable named `fate`."""
    source = folder / "fate.c"
    source.write_text(PROGRAM)
    program = folder / "fate"
    subprocess.run([compiler, "-O1", *options, str(source), "-o", str(program)], check=True)
    return program


def of_size(folder: Path, size_bytes: int, name: str = "big") -> Path:
    """A file of random bytes."""
    path = folder / name
    path.write_bytes(os.urandom(size_bytes))
    return path


def make_bundle(
    files: Mapping[str, Path],
    command: Sequence[str] = ("fate",),
    executable: Sequence[str] = ("fate",),
    environment: Mapping[str, str] | None = None,
) -> Bundle:
    """A bundle of the files by their paths in it."""
    return Bundle(
        files=tuple(
            BundleFile(
                source=str(source),
                path=path,
                sha256=sha256_file(source),
                size_bytes=source.stat().st_size,
                executable=path in executable,
            )
            for path, source in files.items()
        ),
        launch=ProcessLaunch(argv=tuple(command), environment=dict(environment or {})),
    )
