"""What a switch calls: writes into a file where the application has to write. `on_switch.py FILE < event`.

What must stay true: the file is replaced as a whole, so that nobody reads half of it; the standard library alone, so
that nobody waits for it. (docs/cut-over.md tells what the event is.)
"""

import json
import os
import sys


def main() -> None:
    event, file = json.load(sys.stdin), sys.argv[1]
    with open(f"{file}.new", "w", encoding="utf-8") as new:
        json.dump(event["to"], new)
    os.replace(f"{file}.new", file)


if __name__ == "__main__":
    main()
