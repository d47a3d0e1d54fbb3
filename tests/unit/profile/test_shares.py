from __future__ import annotations

import pytest

from etdeploy.profile.calls import kind_of


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
