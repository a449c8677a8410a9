"""How warm it is in `city`."""

import json
import sys

city = json.loads(sys.stdin.readline())["params"]["city"]
print(json.dumps({"type": "result", "results": {"city": city, "temperature": 31, "sky": "clear"}}))
