"""What of the backend qnn can be tried without Qualcomm's SDK."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.integration

# An adaptor as a pybind11 before 2.12 makes it.
_REFUSING = """
import sys, unittest.mock
adaptor = unittest.mock.MagicMock()
adaptor.TensorWrapper.side_effect = RuntimeError("Unable to cast Python instance\\nmore of it")
sys.modules["executorch.backends.qualcomm.python.PyQnnManagerAdaptor"] = adaptor
"""
_CHECK = """
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.qnn import check_adaptor
try:
    check_adaptor()
    print("taken")
except WorkerError as error:
    print(error.failure.message)
    print(error.failure.remedy)
"""


def _run(code: str) -> list[str]:
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return outcome.stdout.splitlines()


@pytest.mark.skipif(
    sys.platform != "linux" or find_spec("executorch") is None, reason="no adaptor in this wheel"
)
def test_the_wheels_adaptor_takes_arrays_of_the_installed_numpy() -> None:
    assert _run(_CHECK)[-1] == "taken"


@pytest.mark.skipif(find_spec("executorch") is None, reason="ExecuTorch is not installed")
def test_an_adaptor_that_takes_no_arrays_is_told() -> None:
    message, remedy = _run(_REFUSING + _CHECK)[-2:]
    assert message.startswith("ExecuTorch's adaptor to the QNN SDK takes no arrays of numpy ")
    assert message.endswith(": Unable to cast Python instance")
    assert remedy.startswith("pip install 'numpy<2'")
