from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import _arguments
from benchmarks._arguments import chosen_models, make_parser


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that would have been built."""
    names: list[str] = []
    monkeypatch.setattr(_arguments, "build", lambda entry, out: names.append(entry.name))
    return names


def test_names_of_the_zoo_and_files_are_models(tmp_path: Path, built: list[str]) -> None:
    for folder, file in ((".", "mine.onnx"), ("called_so", "model.onnx")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / file).touch()
    names = f"dcgan,{tmp_path / 'mine.onnx'},{tmp_path / 'called_so' / 'model.onnx'}"
    options = make_parser("", models="").parse_args(["--models", names, "--zoo", str(tmp_path)])
    models = list(chosen_models(options))
    assert [model.name for model in models] == ["dcgan", "mine", "called_so"]
    assert models[0].path == tmp_path / "dcgan" / "model.onnx"
    assert built == ["dcgan"]


def test_models_are_built_when_their_turn_comes(tmp_path: Path, built: list[str]) -> None:
    options = make_parser("", models="").parse_args(["--zoo", str(tmp_path)])
    models = chosen_models(options)
    assert built == []
    assert [next(models).name, next(models).name] == built


@pytest.mark.parametrize("name", ["vgg", "missing.onnx"])
def test_an_unknown_model_ends_the_script_before_anything_is_built(name: str, built: list[str]) -> None:
    options = make_parser("", models="").parse_args(["--models", f"dcgan,{name}"])
    with pytest.raises(SystemExit, match=name):
        chosen_models(options)
    assert built == []


def test_only_what_a_script_asks_for_is_an_argument() -> None:
    asked = make_parser("", targets=("a", "b"), threads=3, rounds=7).parse_args([])
    assert vars(asked) == {"targets": "a,b", "threads": 3, "rounds": 7}


def test_the_models_of_the_paper_have_one_name(built: list[str]) -> None:
    options = make_parser("", models="").parse_args(["--models", "speech,paper"])
    names = ["speech", "bert", "dcgan", "nasnet", "resnet3d50", "resnext50"]
    assert [model.name for model in chosen_models(options)] == built == names
