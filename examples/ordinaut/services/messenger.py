"""Sends `text`: here into its log."""

import json
import sys

text = json.loads(sys.stdin.readline())["params"]["text"]
print(text)
print(json.dumps({"type": "result", "results": {"sent": True, "text": text}}))
