"""ExecuTorch as a runner is built against it: the wheel's libraries, or a checkout."""

from __future__ import annotations

from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Value
from etdeploy.provider.checkout import Checkout
from etdeploy.provider.wheel import WheelRuntime
from etdeploy.provider.wheel import fingerprint as wheel_fingerprint


class Libraries(Value):
    """What the provider of a plan gives; exactly one of `wheel` and `checkout` is there.

    Attributes:
        wheel: For the provider `wheel`.
        checkout: For the provider `source`.
        notes: What to know of it, as sentences.
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
        """A digest of what they are, wherever they lie."""
        if self.wheel:
            return wheel_fingerprint(self.wheel)
        return digest_json([self.version, self.checkout.revision if self.checkout else None])
