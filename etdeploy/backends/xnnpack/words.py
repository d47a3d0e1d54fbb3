"""What a failed run on XNNPACK means."""

from __future__ import annotations

from etdeploy.backends.causes import NEW_FILE, Cause, Word

WORDS: tuple[Word, ...] = (
    (r"XNNPACKBackend\S* Failed to initialize", Cause(
        "XNNPACK could not start on this device, usually because it cannot read which CPU it "
        "has",
        "Check whether /proc/cpuinfo and /sys/devices/system/cpu can be read there; or run "
        "without XNNPACK: --set export.backend=portable",
        "Check whether /proc/cpuinfo and /sys/devices/system/cpu can be read there; or export "
        f"the model\nagain without XNNPACK, {NEW_FILE}.")),
)  # fmt: skip
