"""What a CI does: announces a deployment by SeqPulse's own client, deploys, and fails if the verdict is bad.

SEQPULSE_API_KEY=accs_… python3 deploy.py 2
"""

import json
import os
import sys
import urllib.request

from seqpulse import create_ci_client

SHOP = f"http://127.0.0.1:{os.environ.get('SHOP_PORT', '8000')}"
GATEWAY = os.environ.get("SEQPULSE_BASE_URL", "http://127.0.0.1:8460")


def deploy(release: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{SHOP}/release/{release}", method="POST"), timeout=10).read()


def verdict(deployment: str) -> dict[str, object]:
    """Waits for it in one call (this is accsd's own addition)."""
    headers = {"X-API-Key": os.environ["SEQPULSE_API_KEY"], "Prefer": "wait=120"}
    asked = urllib.request.Request(f"{GATEWAY}/deployments/{deployment}", headers=headers)
    with urllib.request.urlopen(asked, timeout=150) as answer:
        return json.load(answer)["verdict"]


client = create_ci_client(base_url=GATEWAY, metrics_endpoint=f"{SHOP}/seqpulse-metrics", non_blocking=False)
begun = client.trigger(branch="main")
deploy(sys.argv[1])
client.finish(deployment_id=begun["deployment_id"], result="success")
found = verdict(begun["deployment_id"])
print(f"{found['verdict']}: {found['summary']}")
sys.exit(found["verdict"] == "rollback_recommended")
