"""The hub of a home, played: rooms have temperatures, devices have states. Python's own modules only.

python3 hub.py                serves http://127.0.0.1:8123 until Ctrl-C
python3 hub.py attic=31.5     says what the sensor of a room measures from now on
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

PORT = int(os.environ.get("HUB_PORT", "8123"))
TOKEN = os.environ.get("HUB_TOKEN", "please")
HOME = {"rooms": {"attic": {"celsius": 21.0}}, "devices": {"fan": {"state": False}}}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(self.found())

    def do_PUT(self):
        found = self.found()
        if found is not None:
            found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer(found)

    def found(self):
        """What /rooms/NAME or /devices/NAME is."""
        kind, _, name = self.path.strip("/").partition("/")
        return HOME.get(kind, {}).get(name)

    def answer(self, found):
        status = 404 if found is None else 200
        if self.headers["Authorization"] != TOKEN:
            status, found = 401, None
        body = json.dumps(found or {"error": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Hub)
    sys.stderr.write(f"the hub listens on http://127.0.0.1:{PORT}\n")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


def say(sensor):
    room, _, celsius = sensor.partition("=")
    body = json.dumps({"celsius": float(celsius)}).encode()
    asked = Request(f"http://127.0.0.1:{PORT}/rooms/{room}", body, {"Authorization": TOKEN}, method="PUT")
    sys.stdout.write(urlopen(asked, timeout=5).read().decode() + "\n")


if __name__ == "__main__":
    say(sys.argv[1]) if len(sys.argv) > 1 else serve()
