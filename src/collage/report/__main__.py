"""Print the JSON Schema of the report: ``python -m collage.report > docs/report.schema.json``."""

from __future__ import annotations

import json
import sys

from collage.report import report_schema

json.dump(report_schema(), sys.stdout, indent=1)
sys.stdout.write("\n")
