"""The ExecuTorch that a runner is built against: the wheel's libraries, or a checkout."""

from __future__ import annotations

from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Value
from etdeploy.provider.checkout import Checkout
from etdeploy.provider.wheel import WheelRuntime
from etdeploy.provider.wheel import fingerprint as wheel_fingerprint


class Libraries(Value):
    """What the provider of a plan supplies; exactly one of `wheel` and `checkout` is set.

    Attributes:
        wheel: For the provider `wheel`.
        checkout: For the provider `source`.
        notes: What to know about it, as sentences.
    """

    wheel: WheelRuntime | None = None
    checkout: Checkout | None = None
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The release of ExecuTorch."""
        source = self.wheel or self.checkout
        if source is None:
            raise ValueError("neither wheel nor checkout is given")
        return source.version

    @property
    def fingerprint(self) -> str:
        """A digest of their content, wherever they are stored."""
        if self.wheel:
            return wheel_fingerprint(self.wheel)
        return digest_json([self.version, self.checkout.revision if self.checkout else None])
