"""A server of the built program, for tests and measurements."""
import json
import os
import re
import subprocess
import time
import urllib.request


class Server:
    """Starts `quatrain serve` on a free port; ends it at exit. `url` is where it listens."""

    def __init__(self, *options):
        command = [os.environ["QUATRAIN"], "serve", os.environ["QUATRAIN_MODEL"], "--port", "0", "--json",
                   "--name", "model", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        text = ""
        while not text.rstrip().endswith("}"):
            line = self.process.stdout.readline()
            assert line, "the server did not start"
            text += line
        self.url = json.loads(text)["url"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0, "the server did not end well"

    def metric(self, name):
        """The value of a metric by its full name."""
        text = urllib.request.urlopen(self.url + "/metrics").read().decode()
        found = re.search("^" + re.escape(name) + " (.*)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def quiet(self, seconds=30):
        """Waits until nothing runs or waits."""
        deadline = time.time() + seconds
        while self.metric("quatrain_requests_running") + self.metric("quatrain_requests_waiting") > 0:
            assert time.time() < deadline, "requests still run"
            time.sleep(0.1)
