"""Packs: several machines' plans in one artefact, the right one taken, and nothing believed that is not verified."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.runtime.conftest import assert_right, small_model

import collage
from collage._errors import ArtefactError, UsageError
from collage.cli._app import _main
from collage.runtime import Executable, _choice, machine_rows, opened, pack, unpack_plan, verify
from collage.runtime._made_on import Fit, MadeOn
from collage.runtime._pack import PACK
from collage.system.machine import this_machine
from collage.testing import executable_of
from collage.toolchains import registry

MODEL = "a" * 64
FLAGS = this_machine().flags
FEWER = [flag for flag in FLAGS if not flag.startswith(("avx", "amx"))]

Made = Callable[..., Path]


def of_model(executable: Executable, digest: str = MODEL) -> Executable:
    executable.recipe = replace(executable.recipe, model={"sha256": digest})
    return executable


@pytest.fixture(scope="module")
def mix(build: Callable[[], Executable], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_model(build()).save(tmp_path_factory.mktemp("mix") / "m.collage")


@pytest.fixture(scope="module", params=["marked", pytest.param("tvm", marks=pytest.mark.slow)])
def native(request: pytest.FixtureRequest, mix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact with native code: the library of a TVM kernel, or a kernel that says that it is such code."""
    path = tmp_path_factory.mktemp("native") / "m.collage"
    if request.param == "tvm":
        pytest.importorskip("tvm")
        return of_model(executable_of(small_model(), [([0, 1, 2], "onnxruntime"), ([3], "llvm")])).save(path)
    shutil.copytree(mix, path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["kernels"][2]["compiled"]["portable"] = False
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("single") / "m.collage"
    return of_model(executable_of(small_model(), "openvino")).save(path)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Copies of artefacts that say they were made on another machine."""

    def make(
        source: Path,
        fingerprint: str,
        *,
        system: str | None = None,
        flags: list[str] | None = None,
        cores: int | None = None,
        **changes: Any,
    ) -> Path:
        path = tmp_path / f"{fingerprint[:6]}.collage"
        shutil.copytree(source, path)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["fingerprint"]["digest"] = fingerprint
        if flags is not None:
            manifest["fingerprint"]["flags"] = flags
            manifest["machine"]["isa"] = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16]
        manifest["machine"]["system"] = system or manifest["machine"]["system"]
        manifest["processors"]["cores"] = cores or manifest["processors"]["cores"]
        (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        return path

    return make


def loaded(path: Path) -> tuple[Executable, list[str]]:
    """An executable and the warnings of loading it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        executable = collage.load(path, trusted=True)
    return executable, [str(warning.message) for warning in told if warning.category is RuntimeWarning]


def kernels_of(artefact: Path) -> list[dict[str, Any]]:
    return list(json.loads((artefact / "manifest.json").read_text())["kernels"])


def fingerprint_of(executable: Executable) -> str:
    manifest = json.loads((executable.workspace / "manifest.json").read_text())
    return str(manifest["fingerprint"]["digest"])


@pytest.mark.parametrize("name", ["p.collage", "p.zip"])
def test_the_plan_of_this_machine_is_taken(mix: Path, single: Path, made: Made, tmp_path: Path, name: str) -> None:
    others = [made(single, "b" * 16, flags=FEWER), made(single, "c" * 16, system="Linux aarch64")]
    path = tmp_path / name
    pack([others[0], mix, others[1]], path)
    executable, told = loaded(path)
    assert told == executable.notes == []
    assert len(executable.recipe.kernels) == 3
    assert_right(executable)


@pytest.mark.parametrize("name", ["p.collage", "p.zip"])
def test_equal_files_are_stored_once(mix: Path, made: Made, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    pack([mix, made(mix, "b" * 16, flags=FEWER), made(mix, "c" * 16, system="Linux aarch64")], path)
    names = zipfile.ZipFile(path).namelist() if path.is_file() else [e.name for e in path.iterdir()]
    assert len(names) == len(list(mix.iterdir())) - 1 + 3 + 1  # the files, three manifests, and pack.json
    for digest in set(names) - {PACK}:
        data = zipfile.ZipFile(path).read(digest) if path.is_file() else (path / digest).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")) == []


def test_native_code_of_a_smaller_machine_is_loaded(native: Path, made: Made, tmp_path: Path) -> None:
    smaller, tiny = made(native, "b" * 16, flags=FEWER), made(native, "c" * 16, flags=FEWER[:20])
    pack([tiny, smaller], tmp_path / "p")
    executable, told = loaded(tmp_path / "p")
    assert fingerprint_of(executable) == "b" * 16  # the nearest
    assert len(told) == 1 and "all instructions" in told[0] and "b" * 16 in told[0]
    assert executable.notes == told  # nothing was rebuilt
    assert_right(executable)


@pytest.mark.parametrize(
    "other",
    [
        {"system": "Linux aarch64", "flags": ["asimd", "fp"]},
        {"system": "Linux aarch64"},
        {"system": "Darwin x86_64"},
        {"flags": [*FLAGS, "avx1024"]},
    ],
    ids=["another architecture", "the same flags elsewhere", "another system", "more instructions"],
)
def test_native_code_of_another_machine_is_never_loaded(
    native: Path, made: Made, tmp_path: Path, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = {k["compiled"]["toolchain"] for k in kernels_of(native) if not k["compiled"]["portable"]}
    monkeypatch.setattr(type(registry().get(name)), "load", lambda *_: pytest.fail("native code was loaded"))
    pack([made(native, "b" * 16, **other)], tmp_path / "p")
    executable, told = loaded(tmp_path / "p")
    assert [kernel.target for kernel in executable.recipe.kernels] == ["llvm -compiler=onnxruntime"]
    assert len(told) == 1 and "the whole model runs on onnxruntime" in told[0]
    assert_right(executable)
    assert not [entry for entry in executable.workspace.iterdir() if entry.suffix == ".so"]


def test_a_machine_of_none_takes_a_portable_single_of_a_plan(
    native: Path, single: Path, made: Made, tmp_path: Path
) -> None:
    plans = [made(native, "b" * 16, system="Linux aarch64"), made(single, "c" * 16, system="Linux riscv64")]
    pack(plans, tmp_path / "p")
    executable, told = loaded(tmp_path / "p")
    assert fingerprint_of(executable) == "c" * 16
    assert len(told) == 1 and "one portable kernel on openvino" in told[0]
    assert_right(executable)


def test_cores_decide_between_machines_of_one_kind(mix: Path, made: Made, tmp_path: Path) -> None:
    here = this_machine().cores
    pack([made(mix, "b" * 16, cores=here * 32), made(mix, "c" * 16, cores=here * 2)], tmp_path / "p")
    executable, told = loaded(tmp_path / "p")
    assert fingerprint_of(executable) == "c" * 16
    assert "same instruction set" in told[0]


def test_a_plan_whose_toolchain_is_missing_is_left_out(mix: Path, single: Path, made: Made, tmp_path: Path) -> None:
    text = (mix / "manifest.json").read_text().replace("-compiler=host", "-compiler=elsewhere")
    path = made(mix, this_machine().fingerprint)
    (path / "manifest.json").write_text(text.replace('"toolchain": "host"', '"toolchain": "elsewhere"'))
    pack([path, made(single, "b" * 16, flags=FEWER)], tmp_path / "p")
    executable, told = loaded(tmp_path / "p")
    assert fingerprint_of(executable) == "b" * 16
    assert "elsewhere" in told[0]


def test_machines_that_differ_in_their_gpu_are_two(
    mix: Path, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One processor, two kinds of GPU: the builds of the toolchains for it tell them apart."""
    fingerprint = this_machine().fingerprint
    builds = json.loads((mix / "manifest.json").read_text())["toolchains"]
    one = made(mix, fingerprint, toolchains={**builds, "cuda:onnxruntime": "onnxruntime 1, NVIDIA A"})
    one.rename(tmp_path / "one")
    two = made(mix, fingerprint, toolchains={**builds, "cuda:onnxruntime": "onnxruntime 1, NVIDIA B"})
    plans = pack([tmp_path / "one", two], tmp_path / "p")
    assert "NVIDIA A" in str(plans[0]) and "NVIDIA B" in str(plans[1])
    for plan, gpu in zip(plans, "AB", strict=True):
        monkeypatch.setattr(
            _choice, "_devices_that_differ", lambda plan, _, gpu=gpu: [] if f"NVIDIA {gpu}" in str(plan) else ["other"]
        )
        assert _choice.choose(plans, registry()) == _choice.Choice(plan)
    monkeypatch.undo()
    executable, told = loaded(tmp_path / "p")
    assert len(told) == 1 and "another device" in told[0] and "NVIDIA A" in told[0]
    assert_right(executable)
    with pytest.raises(UsageError, match="2 plans"):
        unpack_plan(tmp_path / "p", tmp_path / "u", fingerprint)
    assert "NVIDIA B" in str(unpack_plan(tmp_path / "p", tmp_path / "u", plans[1].manifest[:12]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root links files of other users")
def test_the_pack_of_another_user_is_loaded(packed: Path) -> None:
    for entry in packed.iterdir():
        os.chown(entry, 12345, 12345)
    assert_right(collage.load(packed))


def test_packs_are_packed_and_unpacked(mix: Path, single: Path, made: Made, tmp_path: Path) -> None:
    other = made(single, "b" * 16, flags=FEWER)
    pack([other], tmp_path / "first.zip")
    pack([tmp_path / "first.zip", mix, mix], tmp_path / "second")  # One that is there twice is one.
    assert len(machine_rows(tmp_path / "second")["plans"]) == 2
    unpack_plan(tmp_path / "second", tmp_path / "out", "bbb")
    assert {e.name: e.read_bytes() for e in (tmp_path / "out").iterdir()} == {
        e.name: e.read_bytes() for e in other.iterdir()
    }
    for wrong in ("f" * 16, "", "x"):
        with pytest.raises(UsageError, match="fingerprint"):
            unpack_plan(tmp_path / "second", tmp_path / "out2", wrong)
    with pytest.raises(UsageError, match="not a pack"):
        unpack_plan(mix, tmp_path / "out2", "b")


def test_artefacts_that_do_not_belong_together_are_refused(
    mix: Path, single: Path, made: Made, tmp_path: Path, build: Callable[[], Executable]
) -> None:
    with pytest.raises(UsageError, match="two plans are for one machine"):
        pack([mix, made(single, this_machine().fingerprint)], tmp_path / "p")
    with pytest.raises(UsageError, match="another model"):
        pack([mix, made(single, "c" * 16, model={"sha256": "b" * 64})], tmp_path / "p")
    with pytest.raises(UsageError, match="does not say which model"):
        pack([mix, made(single, "d" * 16, model={})], tmp_path / "p")
    with pytest.raises(UsageError, match="nothing to pack"):
        pack([], tmp_path / "p")
    with pytest.raises(UsageError, match="does not exist"):
        pack([mix, tmp_path / "gone"], tmp_path / "p")
    assert not (tmp_path / "p").exists()
    (tmp_path / "p").mkdir()
    with pytest.raises(UsageError, match="exists and is not an artefact"):
        pack([mix], tmp_path / "p")


def test_a_damaged_artefact_is_not_packed(mix: Path, made: Made, tmp_path: Path) -> None:
    path = made(mix, "b" * 16)
    flip(path / "weights.bin", 5)
    with pytest.raises(ArtefactError, match="was changed"):
        pack([path], tmp_path / "p")


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def refused(path: Path) -> str:
    with pytest.raises(ArtefactError) as caught:
        collage.load(path, trusted=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def packed(mix: Path, single: Path, made: Made, tmp_path: Path) -> Path:
    pack([mix, made(single, "b" * 16, flags=FEWER)], tmp_path / "p")
    return tmp_path / "p"


def test_one_changed_byte_anywhere_is_found(packed: Path) -> None:
    for file in sorted(packed.iterdir()):
        good = file.read_bytes()
        for place in (0, len(good) // 2, len(good) - 1):
            flip(file, place)
            message = refused(packed)
            assert file.name in message or file.name == PACK or str(packed) in message
            file.write_bytes(good)
        file.write_bytes(good + b"\0")
        refused(packed)
        file.unlink()
        refused(packed)
        file.symlink_to("/etc/hostname")
        refused(packed)
        file.unlink()
        file.write_bytes(good)
    assert_right(loaded(packed)[0])


def test_files_that_belong_to_no_plan_are_refused(packed: Path) -> None:
    (packed / ("f" * 64)).write_bytes(b"")
    assert "belongs to none" in refused(packed)


PACKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a newer schema": lambda p: p.update(schema=2),
    "a schema that is a truth": lambda p: p.update(schema=True),
    "no schema": lambda p: p.pop("schema"),
    "no plans": lambda p: p.update(plans=[]),
    "plans that are a text": lambda p: p.update(plans="0" * 64),
    "a plan twice": lambda p: p.update(plans=[p["plans"][0]] * 2),
    "thousands of plans": lambda p: p.update(plans=[f"{i:064x}" for i in range(5000)]),
    "a plan above": lambda p: p["plans"].append("../manifest.json"),
    "a plan at the root": lambda p: p["plans"].append("/etc/passwd"),
    "a plan that is no text": lambda p: p["plans"].append(7),
    "a plan that is not there": lambda p: p["plans"].append("0" * 64),
    "no model": lambda p: p.pop("model"),
    "another model": lambda p: p.update(model="c" * 64),
    "a model that is no digest": lambda p: p.update(model="../x"),
    "a plan left out": lambda p: p["plans"].pop(),
}


@pytest.mark.parametrize("name", PACKS)
def test_hostile_lists_are_refused(packed: Path, name: str) -> None:
    told = json.loads((packed / PACK).read_text())
    PACKS[name](told)
    (packed / PACK).write_text(json.dumps(told))
    refused(packed)


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None], position: int = 1) -> None:
    """Changes a manifest in a pack as an attacker would, who sets its digest right again."""
    told = json.loads((folder / PACK).read_text())
    manifest = json.loads((folder / told["plans"][position]).read_text())
    change(manifest)
    (folder / told["plans"][position]).unlink()
    data = json.dumps(manifest).encode()
    told["plans"][position] = hashlib.sha256(data).hexdigest()
    (folder / told["plans"][position]).write_bytes(data)
    (folder / PACK).write_text(json.dumps(told))


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another model": lambda m: m["model"].update(sha256="b" * 64),
    "this machine again": lambda m: m["fingerprint"].update(digest=this_machine().fingerprint),
    "a file above": lambda m: m["files"].update({"../secret": m["files"]["model.onnx"]}),
    "a file at the root": lambda m: m["files"].update({"/tmp/secret": m["files"]["model.onnx"]}),
    "the manifest itself": lambda m: m["files"].update({"manifest.json": m["files"]["model.onnx"]}),
    "a digest that is a path": lambda m: m["files"]["model.onnx"].update(sha256="../../etc/passwd"),
    "another size": lambda m: m["files"]["model.onnx"].update(bytes=1 << 50),
    "a negative size": lambda m: m["files"]["model.onnx"].update(bytes=-1),
    "a file that is not there": lambda m: m["files"].update({"x": {"sha256": "0" * 64, "bytes": 1}}),
    "another input": lambda m: m["inputs"][0].update(shape=[7, 6]),
    "no kernels": lambda m: m.update(kernels=[]),
}


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", MANIFESTS)
def test_hostile_manifests_in_a_pack_are_refused(packed: Path, name: str, position: int) -> None:
    (packed.parent / "secret").write_text("secret")
    if name == "this machine again" and position == 0:
        rewritten(packed, lambda m: m["fingerprint"].update(digest="b" * 16), 0)
    else:
        rewritten(packed, MANIFESTS[name], position)
    assert "secret\n" not in refused(packed)


def test_a_zip_bomb_is_refused(packed: Path, tmp_path: Path) -> None:
    bomb, digest = tmp_path / "bomb.zip", "0" * 64
    with zipfile.ZipFile(bomb, "w") as writer:
        writer.write(packed / PACK, PACK)
        writer.writestr(digest, b"\0" * (64 << 20), zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(bomb)
    # A folder has holes in place of compression.
    name = next(entry for entry in packed.iterdir() if entry.name != PACK)
    with name.open("r+b") as file:
        file.truncate(1 << 40)
    refused(packed)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "C:x"])
def test_names_in_a_zip_that_lead_elsewhere_are_refused(packed: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as writer:
        for entry in packed.iterdir():
            writer.write(entry, entry.name)
        writer.writestr(name, b"")
    assert "only plain file names" in refused(path)


def test_what_a_pack_links_to_is_never_written_to(packed: Path, single: Path, mix: Path) -> None:
    before = {entry.name: entry.read_bytes() for entry in packed.iterdir()}
    executable = collage.load(packed, rebuild=True, trusted=True)
    assert_right(executable)
    assert {entry.name: entry.read_bytes() for entry in packed.iterdir()} == before
    workspace = executable.workspace
    del executable
    assert not workspace.exists()


def test_an_opened_pack_is_a_plain_artefact(packed: Path) -> None:
    with opened(packed) as found:
        recipe, _ = verify(found.folder)
        assert found.note is None and len(recipe.kernels) == 3
    assert not found.folder.exists()


def test_commands_say_which_machines_are_inside(
    packed: Path, mix: Path, single: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fingerprint = this_machine().fingerprint
    out = {}
    for command in ("inspect", "explain"):
        assert _main([command, str(packed)]) == 0
        out[command] = capsys.readouterr().out
        assert fingerprint in out[command] and "b" * 16 in out[command]
    assert "a pack of 2 plans" in out["inspect"] and "used here" in out["inspect"]
    assert _main(["inspect", str(packed), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["plans"]
    assert [(row["fingerprint"], row["used_here"], row["fit"]) for row in rows] == [
        (fingerprint, True, "same"),
        ("b" * 16, False, "smaller"),
    ]
    assert _main(["report", str(packed), "-o", str(tmp_path / "r.html")]) == 0
    assert "b" * 16 in (tmp_path / "r.html").read_text()
    assert _main(["inspect", str(mix)]) == 0
    assert "an artefact" in capsys.readouterr().out
    assert _main(["inspect", str(packed), "--coverage"]) == 2


def test_pack_and_unpack_on_the_command_line(
    mix: Path, single: Path, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = made(single, "b" * 16, flags=FEWER)
    assert _main(["pack", str(mix), str(other), "-o", str(tmp_path / "p.zip")]) == 0
    assert "2 plans written" in capsys.readouterr().out
    assert _main(["run", str(tmp_path / "p.zip"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    assert _main(["unpack", str(tmp_path / "p.zip"), "--machine", "bb", "-o", str(tmp_path / "u.collage")]) == 0
    assert _main(["run", str(tmp_path / "u.collage"), "--json"]) == 0
    capsys.readouterr()
    assert _main(["pack", str(mix), str(mix / "gone"), "-o", str(tmp_path / "q")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_facts_of_another_form_are_unknown() -> None:
    here = this_machine()
    good = {
        "machine": {"system": here.system, "isa": here.isa},
        "processors": {"cores": here.cores, "quota": here.quota},
        "fingerprint": {"digest": here.fingerprint, "cpu": here.cpu, "flags": list(here.flags)},
    }
    assert MadeOn.read(good).fit() is Fit.SAME
    for hostile in (None, 7, [], "x", {"digest": 7, "cpu": ["a"], "flags": "sse"}, {"flags": [1]}, {"cpu": "a\nb"}):
        assert MadeOn.read({**good, "fingerprint": hostile}).fit() is Fit.SAME_KIND
    assert MadeOn.read({**good, "machine": 3}).fit() is Fit.OTHER
    assert MadeOn.read({**good, "processors": {"cores": True, "quota": "2"}}).cores == 0
    flags = {"digest": "b" * 16, "flags": list(FEWER)}
    assert MadeOn.read({**good, "machine": {"system": here.system, "isa": "0" * 16}, "fingerprint": flags}).fit() is (
        Fit.OTHER  # The flags are not those of the digest.
    )


def test_what_the_kernel_counts_is_no_instruction() -> None:
    here = replace(this_machine(), flags=("avx2", "sse2"), isa="x" * 16)

    def made_on(*flags: str) -> MadeOn:
        return MadeOn(here.system, "y" * 16, flags=frozenset(flags))

    assert made_on("avx2", "hypervisor", "vmx", "sse2").fit(here) is Fit.SMALLER
    assert made_on("sse2").fit(here) is Fit.SMALLER
    assert made_on("avx2", "avx512f", "sse2").fit(here) is Fit.OTHER
    assert made_on().fit(here) is made_on("hypervisor").fit(here) is Fit.OTHER
    assert made_on("avx2", "sse2").distance(here) < made_on("sse2").distance(here) < made_on("new").distance(here)
