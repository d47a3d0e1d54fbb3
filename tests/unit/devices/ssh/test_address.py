"""Which board a name means, and what names none."""

from __future__ import annotations

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.devices.ssh.connection import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address", "destination"),
    [
        ("board", Address("board", "board"), ("board",)),
        ("pi@board", Address("pi@board", "board", "pi"), ("pi@board",)),
        ("board:2222", Address("board:2222", "board", port=2222), ("-p", "2222", "board")),
        ("board:/mnt", Address("board:/mnt", "board", folder="/mnt"), ("board",)),
        ("board:/", Address("board:/", "board", folder="/"), ("board",)),
        (
            "pi@10.0.0.7:22:/mnt/my disk/",
            Address("pi@10.0.0.7:22:/mnt/my disk/", "10.0.0.7", "pi", 22, "/mnt/my disk"),
            ("-p", "22", "pi@10.0.0.7"),
        ),
        ("[fe80::1%eth0]", Address("[fe80::1%eth0]", "fe80::1%eth0"), ("fe80::1%eth0",)),
        ("me@realm@host", Address("me@realm@host", "host", "me@realm"), ("me@realm@host",)),
    ],
)
def test_names_of_boards(text: str, address: Address, destination: tuple[str, ...]) -> None:
    assert parse_address(text) == address
    assert address.destination == destination
    assert address.name == f"ssh:{text}"


@pytest.mark.parametrize(
    "text",
    [
        "", "-oProxyCommand=reboot", "-x@board", "board:0", "board:99999", "board:port", "a b",
        "board;reboot", "$(reboot)", "`reboot`", "us'er@board", "fe80::1", "board:22:33",
        "board:~/x", "@board", "board/", "new\nline",
    ],
)  # fmt: skip
def test_what_names_no_board(text: str) -> None:
    with pytest.raises(UsageError, match="does not name a board"):
        parse_address(text)


@pytest.mark.parametrize("folder", ["/a:b", "/a/../b", "/new\tline"])
def test_folders_that_cannot_be_used(folder: str) -> None:
    with pytest.raises(UsageError, match="cannot use the folder"):
        parse_address(f"board:{folder}")


def test_another_folder_or_port_of_the_same_board() -> None:
    assert parse_address("pi@board:22").in_folder("/tmp") == "ssh:pi@board:22:/tmp"
    assert parse_address("board:/mnt").in_folder("/tmp") == "ssh:board:/tmp"
    assert parse_address("[fe80::1]:22").with_port("PORT") == "ssh:[fe80::1]:PORT"
    assert parse_address("board:/mnt/").with_port("7") == "ssh:board:7:/mnt"
    assert parse_address("board:/mnt/").in_folder("/tmp") == "ssh:board:/tmp"
