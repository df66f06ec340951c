"""Whether an ordinary user's overlay is right for a folder.

In a user namespace only the user's own id and group exist, and the kernel copies nothing up that
belongs to others (EOVERFLOW): a log in a folder shared with a group could not be appended to.
"""

import os
from collections.abc import Iterator

_MOST_ENTRIES = 5000


def is_overlay_fit(folder: str, uid: int | None = None, gid: int | None = None) -> bool:
    """Whether all that the user may change in ``folder`` is the user's own.

    Args:
        folder: looked at down to some thousand entries.
        uid: the user, by default this process's; for root everything is fit.
        gid: the user's group, by default this process's.
    """
    uid = os.geteuid() if uid is None else uid
    gid = os.getegid() if gid is None else gid
    if uid == 0:
        return True
    for count, (path, found) in enumerate(_entries(folder)):
        if count > _MOST_ENTRIES:
            break
        if (found.st_uid, found.st_gid) != (uid, gid) and os.access(path, os.W_OK):
            return False
    return True


def _entries(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    yield folder, os.stat(folder)
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                try:
                    yield path, os.stat(path)
                except OSError:  # removed since it was listed
                    continue
