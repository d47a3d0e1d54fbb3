from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")

from etdeploy.core.errors import UsageError
from etdeploy.farm.engine.settings import parse_address, require_safe, security_of
from etdeploy.farm.engine.wire import Versions, mismatch
from etdeploy.farm.spec.model import Tls

HERE = Versions(etdeploy="0.5.0", python="3.11", distributed="2026.8.0")
TLS = Tls(ca=Path("ca.pem"), cert=Path("a.pem"), key=Path("a-key.pem"))


@pytest.mark.parametrize(
    ("changes", "told", "remedy"),
    [
        ({"etdeploy": "0.4.0"}, "the host has etdeploy 0.4.0 (here 0.5.0)",
         "pip install 'etdeploy==0.5.0'"),
        ({"python": "3.12"}, "the host has Python 3.12 (here 3.11)",
         "set up a virtual environment with Python 3.11 on that host"),
        ({"etdeploy": "0.4.0", "distributed": "2026.9.0"},
         "the host has etdeploy 0.4.0 (here 0.5.0), distributed 2026.9.0 (here 2026.8.0)",
         "pip install 'etdeploy==0.5.0' 'distributed==2026.8.0'"),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_its_remedy(
    changes: dict[str, str], told: str, remedy: str
) -> None:
    assert mismatch(HERE.model_copy(update=changes), HERE) == (told, remedy)


@pytest.mark.parametrize(
    "text", ["farm:8786", "http://farm:1", "tls://farm", "tls://farm:99999", "tls://:1", "tls://a:1/b"]
)  # fmt: skip
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a scheduler address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("address", "tls", "told"),
    [
        ("tls://farm:1", None, "needs certificates"),
        ("tcp://127.0.0.1:1", TLS, "does not use them"),
        ("tcp://10.0.0.1:1", None, "has no TLS"),
        ("tcp://0.0.0.0:1", None, "has no TLS"),
        ("tcp://farm:1", None, "has no TLS"),
    ],
)
def test_what_others_could_reach_needs_tls(address: str, tls: Tls | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        require_safe(address, tls)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    wrong = tmp_path / "a.pem"
    wrong.write_text("x")
    with pytest.raises(UsageError, match=r"a\.pem.*no PEM file"):
        security_of(Tls(ca=wrong, cert=wrong, key=wrong))
    with pytest.raises(UsageError, match="cannot be read"):
        security_of(Tls(ca=tmp_path / "none", cert=wrong, key=wrong))
