from __future__ import annotations

import pytest

from etdeploy.profile.calls import Names, calls_of, kind_of, shares_of
from tests.support.traces import TRACE


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::copy_", "copy_"),
        ("aten::copy.out", "copy_"),
        ("aten::index_put_", "index_put"),
        ("aten::index_put.out", "index_put"),
        ("aten::slice_copy.Tensor_out", "views"),
        ("aten::permute_copy.out", "views"),
        ("dim_order_ops::_clone_dim_order.out", "views"),
        ("executorch_prim::et_view.default", "views"),
        ("aten::_to_copy.out", "rest"),
        ("aten::mean.out", "rest"),
        ("mine::copy_cat.out", "rest"),
        ("mean.out", "rest"),
    ],
)
def test_the_kind_of_a_kernel_follows_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_shares_of_an_inference_add_up() -> None:
    shares = shares_of(calls_of(TRACE, Names((), ())), 10.0)
    assert shares == pytest.approx(
        {"XnnpackBackend": 0.6, "copy_": 0, "index_put": 0, "views": 0.2, "rest": 0.1}
        | {"runtime": 0.1}
    )
