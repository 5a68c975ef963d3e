"""Imported by every Python process that a test starts: it looks for garbage more rarely.

Most of ours live for seconds and do little but import, where each such look goes through all that has been imported.
"""

import gc

gc.set_threshold(50_000, 20, 50)
