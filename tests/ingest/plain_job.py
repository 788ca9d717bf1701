"""A run of ingest whose samples have features by chance: `python -m tests.ingest.plain_job APP`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from streamlearn.apps import load_app
from streamlearn.ingest import SamplesJob, end_at_once
from streamlearn.replay import stop_on_signals
from tests.ingest.plain_maker import PlainMaker

if __name__ == "__main__":
    with stop_on_signals(end_at_once) as stop:
        print(json.dumps(asdict(SamplesJob(load_app(sys.argv[1]), PlainMaker).wait(stop))))
