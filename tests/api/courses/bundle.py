"""A small course on the disk, and the SDK of a person against the application in process."""

import json
from pathlib import Path

from tests.api.conftest import World
from tests.api.files.test_models import files
from tests.api.shapes import job_spec
from trainyard import Trainyard

COURSE = """\
format: 1
name: ml-lab
title: Training on several GPUs
zone: America/New_York
group: ml-students
people: people.csv
policy: policy.yaml
datasets: [{name: corpus, file: data/corpus.txt}]
models: [{name: tiny, folder: models/tiny}]
templates:
  - {file: templates/two.yaml}
  - {file: templates/program.yaml, code: code/program}
exercises:
  - name: two
    title: Two runs
    notes: notes/two.md
    template: two
    opens: day 1 09:00
    due: day 8 23:59
  - name: own
    title: Your program
    notes: notes/own.md
    template: program
    opens: day 3 09:00
    due: day 9 23:59
    hours: 2
"""
POLICY = """\
policy: {id: ml-lab, version: ${version}, zone: America/New_York}
classes: {box: {nodes: [box]}}
pools: {nodes: {nodes: [box], hours: [1, 2, 3]}}
windows: [{pool: nodes, usable: ["${day 1}T00:00", "${day 15}T00:00"], opens_at: now}]
who: {group: ml-students}
quotas:
  main: {period: window, one_of: [{name: short, slots: [{pool: nodes, hours: 2}]}]}
"""


def write_bundle(root: Path) -> Path:
    """The folder of a course with everything in it."""
    agenda = {
        "name": "two",
        "common": {
            name: part
            for name, part in job_spec(data={"dataset": "corpus", "sequence_length": 8}).items()
            if name != "name"
        },
        "jobs": [{"name": "first"}, {"name": "second"}],
    }
    program = {
        "name": "program",
        "script": {"entry": "main.py", "launcher": "python"},
        "inputs": [{"model": "tiny"}],
        "resources": {"ranks_per_node": 1, "wall_time": "5min"},
    }
    open_field = {"field": "common.training.learning_rate", "minimum": 1e-6, "maximum": 1.0}
    texts = {
        "course.yaml": COURSE,
        "people.csv": "name,email\nsam,sam@example.org\neve,eve@example.org\n",
        "policy.yaml": POLICY,
        "notes/two.md": "# Two runs\n\nDue ${day 8}. Which *rate* is better?\n",
        "notes/own.md": "Run it.\n",
        "data/corpus.txt": "a text to train on, long enough for a few samples\n" * 20,
        "code/program/main.py": "print('hello')\n",
        "templates/two.yaml": json.dumps({"name": "two", "spec": agenda, "open": [open_field]}),
        "templates/program.yaml": json.dumps({"name": "program", "spec": program}),
    }
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "models/tiny").mkdir(parents=True)
    for name, content in files().items():
        (root / "models/tiny" / name).write_bytes(content)
    return root


def sdk(world: World, name: str) -> Trainyard:
    """The SDK as this person, against the application in process."""
    return Trainyard("http://127.0.0.1:8471", world.tokens[name], transport=world.admin._transport)
