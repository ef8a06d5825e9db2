"""Files of the package, checked when they are read."""

import hashlib
from importlib.resources import files


def read_checked(name: str, sha256: str) -> bytes:
    """The bytes of a bundled file.

    Args:
        name: the file's name.
        sha256: what its checksum must be.

    Raises:
        ValueError: where the file is missing or not the one that the package was made with;
            numbers computed from it would be compared with numbers computed from another.
    """
    try:
        content = files("relbo.data").joinpath(name).read_bytes()
    except OSError as error:
        raise ValueError(
            f"relbo's data file {name} cannot be read ({error.strerror}); install relbo again"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"relbo's data file {name} is damaged or was changed: its checksum is {found}, "
            f"expected {sha256}; install relbo again"
        )
    return content
