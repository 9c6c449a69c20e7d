"""Write the artefact of this version that later versions have to load: ``python tests/data/make.py``, before a release only.

It has a kernel of each of four toolchains, built here from the model in the artefact that is there.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

import collage

ARTEFACT = Path(__file__).with_name("0.1.0.collage")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = collage.load(ARTEFACT, rebuild=True).save(Path(folder) / ARTEFACT.name)
        data = np.load(ARTEFACT.with_name("0.1.0.npz"))
        np.testing.assert_allclose(collage.load(made).run({"x": data["x"]})["y"], data["y"], rtol=1e-5, atol=1e-6)
        shutil.rmtree(ARTEFACT)
        shutil.copytree(made, ARTEFACT)


if __name__ == "__main__":
    main()
