"""`python -m tests.support.without_spark online-ddl …`: the program's own command, but copy and verify without a JVM.

What must stay true: nothing is imported that the program does not need; a crash test starts hundreds of these.
"""

from __future__ import annotations

from tests.support import local_spark


def main() -> None:
    local_spark.install()
    from vreplication.__main__ import main as program

    program()


if __name__ == "__main__":
    main()
