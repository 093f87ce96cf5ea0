"""What each of several processes runs for `test_processors`: all links and processors, measured with little."""

from __future__ import annotations

import json
import os
import sys

import weft
from weft.inspect.links import measured_links


def main() -> None:
    """All of it, on as many hosts as are asked for, which are pretended."""
    os.environ["GROUP_RANK"] = str(int(os.environ["RANK"]) % int(sys.argv[1]))
    weft.distributed.init(timeout=60)
    print(json.dumps(measured_links(1 << 18, 1).to_dict()))


if __name__ == "__main__":
    main()
