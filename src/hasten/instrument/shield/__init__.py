"""Keeps a trial from costing the user anything: files, processes, logged experiments.

`launch` is the parent's side and `redirect` the script's; `keeper` runs in between. `overlay` and
`landlock` with `mirror` are the two ways of keeping writes away from the user's files.
"""
