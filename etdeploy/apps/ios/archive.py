"""An .ipa: a zip file with the built app in the folder Payload."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import write_atomic

# The oldest time that a zip file knows: equal apps give equal archives.
_TIME = (1980, 1, 1, 0, 0, 0)


def write_ipa(app: Path, ipa: Path) -> None:
    """Packs a built app; all of it or nothing.

    Args:
        app: The folder `NAME.app`.
        ipa: The file to write.

    Raises:
        BuildError: There is no app in that folder.
    """
    if not (app / "Info.plist").is_file():
        raise BuildError("this is not a built app: it has no Info.plist", place=str(app))
    from io import BytesIO

    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(app.rglob("*")):
            if path.is_symlink() or path.is_file():
                _add(archive, path, f"Payload/{app.name}/{path.relative_to(app).as_posix()}")
    write_atomic(ipa, packed.getvalue())


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, so that modes count
    if path.is_symlink():
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, path.readlink().as_posix())
    else:
        runs = path.stat().st_mode & 0o111
        info.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
        archive.writestr(info, path.read_bytes())
