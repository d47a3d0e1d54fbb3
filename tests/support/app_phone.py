"""A test device on which apps are installed and started: Android's tools, played by scripts.

The services of Android are not there, so `pm`, `am`, `run-as`, `logcat`, `input` and `wm` are
scripts that do, and say, what Android's do. An app is a shell script; it is called by its id and
gets its options as variables: `$run_id`, `$iterations`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import eventually
from tests.support.reached import Reached

APP_ID = "org.example.convnet"
_TOOLS = {
    "pm": r"""
echo "$*" >>/mnt/log/pm
case "$1" in
path) [ -r /mnt/app/$4/base.apk ] || exit 1
  for f in /mnt/app/$4/*.apk; do echo "package:$f"; done;;
install) if [ -r /mnt/says/pm ]; then cat /mnt/says/pm; exit 1; fi
  size=; for word; do last=$word; [ "$before" != -S ] || size=$word; before=$word; done
  if [ -z "$size" ] && [ -r /mnt/says/pm-path ]; then cat /mnt/says/pm-path; exit 1; fi
  id=$(cat /mnt/app-id); mkdir -p /mnt/app/$id /mnt/private/$id; cd /mnt/app/$id; rm -f *
  if [ -n "$size" ]; then cat >base.apk; else cat "$last" >base.apk; fi; echo Success;;
esac
""",
    "am": r"""
echo "$*" >>/mnt/log/am
case "$1" in
get-current-user) echo 0;;
force-stop) [ ! -r /mnt/pids/$2 ] || while read -r pid; do kill -9 -$pid; done </mnt/pids/$2 2>&-
  rm -f /mnt/pids/$2;;
start) if [ -r /mnt/says/am ]; then cat /mnt/says/am; exit; fi
  while [ $# -gt 0 ]; do case "$1" in
  --es|--ei|--ez) export "$2=$3"; shift 3;;
  -n) component=$2; shift 2;;
  -S) stop=1; shift;;
  *) shift;; esac; done
  id=${component%%/*}; echo "Starting: Intent { cmp=$component (has extras) }"
  [ -z "$stop" ] || am force-stop $id
  export id private=/mnt/private/$id/files external=/sdcard/Android/data/$id/files
  mkdir -p $private $external /mnt/pids
  setsid sh -c 'echo $$ >/mnt/pids/$id; exec -a $id sh /mnt/app-script' </dev/null >&- 2>&- &
  while [ ! -s /mnt/pids/$id ]; do sleep 0.01; done; sleep 0.1
  echo "Status: ok"; echo "LaunchState: COLD"; echo "Activity: $component"; echo "Complete";;
esac
""",
    "run-as": r"""
if [ -e /mnt/says/run-as ]; then cat /mnt/says/run-as >&2; exit 1; fi
id=$1; shift; cd /mnt/private/$id && exec "$@"
""",
    "logcat": r"""
case "$*" in *"-b crash"*) cat /mnt/says/logcat-crash 2>&-;; *) cat /mnt/says/logcat 2>&-;; esac
""",
    "input": 'echo "$*" >>/mnt/log/input; [ ! -e /mnt/after-input ] || . /mnt/after-input',
    "wm": 'echo "$*" >>/mnt/log/wm; [ ! -e /mnt/after-wm ] || . /mnt/after-wm',
}
_POWER = "  mWakefulness=Awake\nDisplay Power: state=ON\n"
_UNLOCKED = (
    'Trust manager state:\n User "Owner" (id=0, flags=0x4c13) (current): trusted=0, '
    "trustManaged=0, deviceLocked=0, isActiveUnlockRunning=0, strongAuthRequired=0x0\n"
)
_POLICY = "    KeyguardServiceDelegate\n      showing=false\n      secure=true\n"
_RESULTS = {
    "schema_version": 1,
    "executorch_version": "1.5.1",
    "started_unix_s": 1,
    "threads": 4,
    "load_program_ms": 1.5,
    "rss_after_load_bytes": 1,
    "peak_rss_bytes": 2,
    "method": "forward",
    "warmup": 3,
    "load_method_ms": 0.5,
    "first_inference_ms": 2.0,
    "outputs": [{"kind": "Tensor", "dtype": "float32", "shape": [2], "path": "output-0.bin"}],
    "samples_ms": [1.0, 1.25],
}
WRITE = r"""
write() { sed "s/RUN_ID/$1/" /mnt/results.json >$2/results.json.part
  mv $2/results.json.part $2/results.json; }
"""
MEASURE = f"""{WRITE}
for to in $private $external; do
  mkdir -p $to/outputs; printf 'a\\0b\\r\\nc\\377d\\n' >$to/outputs/output-0.bin
done
sleep 0.2; write $run_id $external; write $run_id $private; sleep 1000
"""
"""An app that measures, and stays."""


@dataclass(frozen=True)
class AppPhone:
    """A device with Android's tools for apps."""

    reached: Reached

    def put(self, name: str, content: str | bytes) -> None:
        """Writes a file below /mnt."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def path(self, name: str) -> Path:
        return self.reached.root.path(f"mnt/{name}")

    def says(self, tool: str, text: str) -> None:
        """What a tool says from now on, instead of doing what it is for."""
        self.put(f"says/{tool}", text)

    def plays(self, script: str) -> None:
        """What the app does."""
        self.put("app-script", script)

    def results(self, **changes: Any) -> None:
        """What the app writes, with `RUN_ID` for the start's."""
        whole = {
            "schema_version": 1,
            "run_id": "RUN_ID",
            "status": "done",
            "error": None,
            "app": {"id": APP_ID, "version": "1.0", "system": "Android 14", "debuggable": True},
            "thermal": None,
            "results": _RESULTS,
        }
        self.put("results.json", json.dumps(whole | changes))

    def log(self, tool: str) -> list[str]:
        """How a tool was called."""
        path = self.path(f"log/{tool}")
        return path.read_text().splitlines() if path.exists() else []

    def pid(self) -> int | None:
        """The app's process on the device."""
        path = self.path(f"pids/{APP_ID}")
        return int(path.read_text()) if path.exists() else None

    def is_running(self) -> bool:
        """Whether a process is called as the app."""
        return any(words.startswith(APP_ID) for words in self.reached.root.processes())

    def waits_until_running(self, is_running: bool) -> bool:
        """Waits; False when that takes too long."""
        return eventually(lambda: self.is_running() == is_running)


def make_app_phone(reached: Reached) -> AppPhone:
    """A phone whose screen is on and unlocked, with an app that measures."""
    phone = AppPhone(reached)
    for name, script in _TOOLS.items():
        phone.put(f"tools/{name}", script)
    for folder in ("log", "says", "app", "private", "sdcard"):
        phone.path(folder).mkdir(exist_ok=True)
    phone.put("app-id", APP_ID)
    phone.put("dumpsys-power", _POWER)
    phone.put("dumpsys-trust", _UNLOCKED)
    phone.put("dumpsys-window", _POLICY)
    phone.put("dumpsys-activity-activities", in_front(f"{APP_ID}/.MainActivity"))
    phone.results()
    phone.plays(MEASURE)
    return phone


def in_front(component: str) -> str:
    """What Android 14's `dumpsys activity activities` says of an activity in front."""
    return (
        "ACTIVITY MANAGER ACTIVITIES (dumpsys activity activities)\n"
        f"    topResumedActivity=ActivityRecord{{77b3dc7 u0 {component} t90}}\n"
        f"  ResumedActivity: ActivityRecord{{77b3dc7 u0 {component} t90}}\n"
    )
