from __future__ import annotations

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.profile.calls import KERNEL
from etdeploy.profile.profiled import require_same_program
from tests.support.bench_values import make_run
from tests.support.traces import TRACE, make_node

_RUN = make_run(files={"record": "record.json", "etrecord": "etrecord.bin"})


def test_another_programs_record_is_refused() -> None:
    graph = {handle: (make_node("aten::convolution"),) for handle in (1, 2, 3, 4)}
    with pytest.raises(UsageError, match="of another program") as caught:
        require_same_program(_RUN, TRACE.model_copy(update={"graph": graph}))
    assert f"mv {_RUN.folder}/etrecord.bin {_RUN.folder}/etrecord.bin.other" in str(caught.value)


def test_a_few_operators_that_were_replaced_are_no_other_program() -> None:
    graph = {**(TRACE.graph or {}), 3: (make_node("aten::sum"),)}
    require_same_program(_RUN, TRACE.model_copy(update={"graph": graph}))


def test_operators_that_were_added_after_the_export_say_nothing() -> None:
    block = TRACE.blocks[0]
    kernels = [event for event in block if event.name.startswith(KERNEL)]
    added = tuple(event.model_copy(update={"handles": ()}) for event in kernels)
    blocks = ((*block, *added, *added, *added), *TRACE.blocks[1:])
    require_same_program(_RUN, TRACE.model_copy(update={"blocks": blocks}))
