from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# The fake model's next token is the current one plus one, with logit 5 and 0 for all others.
IDS, GREEDY = [10, 11, 12], [13, 14, 15]


def expected_logits(tokens: list[int]) -> Any:
    rows = np.zeros((len(tokens), 256), np.float32)
    rows[np.arange(len(tokens)), tokens] = 5.0
    return rows


def write(folder: Path, prompt: dict[str, Any], **arrays: Any) -> str:
    (folder / "reference.json").write_text(json.dumps({"prompts": [{"name": "one", **prompt}]}))
    np.savez(folder / "reference.npz", **{f"one.{name}": array for name, array in arrays.items()})
    return str(folder)


@pytest.fixture
def oracle_form(tmp_path: Path) -> str:
    return write(
        tmp_path,
        {"ids": IDS, "top1": [11, 12, 13], "greedy": GREEDY},
        logits=expected_logits([12, 13]),
        greedy_logits=expected_logits(GREEDY),
    )


@pytest.fixture
def demo_form(tmp_path: Path) -> str:
    picks = np.array([[token, 0, 3, 4, 5] for token in GREEDY], np.int32)
    values = np.array([[5.0, 0, 0, 0, 0]] * 3, np.float32)
    return write(
        tmp_path,
        {"ids": IDS, "greedy": GREEDY, "first_eos": None},
        last_logits=expected_logits([13])[0],
        greedy_top5_ids=picks,
        greedy_top5_logits=values,
    )


@pytest.mark.parametrize("form", ["oracle_form", "demo_form"])
def test_same(run: Any, model: Any, form: str, request: pytest.FixtureRequest) -> None:
    done = run("verify", "m", "--reference", request.getfixturevalue(form))
    assert done.code == 0
    assert "PASS: 1 of 1 prompts, largest logit error 0.00e+00 (limit 1e-02)" in done.out
    assert "[1/1] one" in done.err


@pytest.mark.parametrize(("form", "compared"), [("oracle_form", 5 * 256), ("demo_form", 256 + 15)])
def test_largest_logit_error(run: Any, model: Any, form: str, compared: int, request: pytest.FixtureRequest) -> None:
    model.shift = 0.5
    done = run("verify", "m", "--json", "--reference", request.getfixturevalue(form))
    document = json.loads(done.out)
    assert done.code == 1
    assert document["passed"] is False
    assert document["logit_error"] == 0.5
    assert document["prompts"][0]["logits_compared"] == compared
    assert document["prompts"][0]["first_difference"] is None


def test_first_differing_token(run: Any, model: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, {"ids": IDS, "greedy": [13, 14, 77, 78]})
    done = run("verify", "m", "--reference", folder)
    assert done.code == 1
    assert "answer token 2: 15 instead of 77" in done.out
    assert "FAIL: 0 of 1 prompts, largest logit error none compared" in done.out


def test_prompt_position_that_differs(run: Any, model: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, {"ids": IDS, "top1": [11, 99, 13], "greedy": GREEDY})
    assert "position 1: 12 instead of 99" in run("verify", "m", "--reference", folder).out


def test_nan_fails_wherever_it_is(run: Any, model: Any, oracle_form: str) -> None:
    model.shift = float("nan")
    assert run("verify", "m", "--reference", oracle_form).code == 1


def test_nan_that_changes_no_token_fails(run: Any, model: Any, tmp_path: Path) -> None:
    model.shift, model.shift_rows = (
        float("nan"),
        slice(1, 2),
    )  # a prompt position whose most probable token is not known
    arrays = {"logits": expected_logits([12, 13]), "greedy_logits": expected_logits(GREEDY)}
    folder = write(tmp_path, {"ids": IDS, "greedy": GREEDY}, **arrays)
    done = run("verify", "m", "--json", "--reference", folder)
    document = json.loads(done.out)
    assert done.code == 1
    assert document["prompts"][0]["first_difference"] is None
    assert (document["passed"], document["logit_error"]) == (False, "nan")


def test_reference_of_another_vocabulary(run: Any, model: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, {"ids": IDS, "greedy": GREEDY}, last_logits=np.zeros(99, np.float32))
    done = run("verify", "m", "--reference", folder)
    assert done.code == 2 and "another vocabulary" in done.err


@pytest.mark.parametrize(
    ("prompt", "arrays"),
    [
        ({"ids": [], "greedy": GREEDY}, {}),
        ({"ids": IDS}, {}),
        ({"ids": IDS, "greedy": [-1]}, {}),
        ({"ids": [True], "greedy": GREEDY}, {}),
        ({"ids": IDS, "greedy": GREEDY, "top1": [1]}, {}),
        ({"ids": IDS, "greedy": GREEDY}, {"greedy_logits": np.zeros((4, 256), np.float32)}),
        ({"ids": IDS, "greedy": GREEDY}, {"greedy_logits": np.zeros((3, 256), np.float64)}),
        ({"ids": IDS, "greedy": GREEDY}, {"logits": np.zeros((4, 256), np.float32)}),
        ({"ids": IDS, "greedy": GREEDY}, {"greedy_top5_logits": np.zeros((3, 5), np.float32)}),
        ({"ids": IDS, "greedy": GREEDY}, {"last_logits": np.array([{}], object)}),
    ],
)
def test_bad_references(run: Any, model: Any, tmp_path: Path, prompt: dict[str, Any], arrays: dict[str, Any]) -> None:
    done = run("verify", "m", "--reference", write(tmp_path, prompt, **arrays))
    assert done.code == 2
    assert "internal" not in done.err and "unexpected" not in done.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"prompts": []}', '{"prompts": [1]}', "[" * 100000])
def test_json_that_is_no_reference(run: Any, model: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "reference.json").write_text(text)
    assert run("verify", "m", "--reference", str(tmp_path)).code == 2


def test_missing_and_broken_files(run: Any, model: Any, tmp_path: Path) -> None:
    assert "No such file" in run("verify", "m", "--reference", str(tmp_path)).err
    folder = write(tmp_path, {"ids": IDS, "greedy": GREEDY})
    (tmp_path / "reference.npz").write_bytes(b"PK\x03\x04 not a zip")
    assert run("verify", "m", "--reference", folder).code == 2


def test_array_file_that_claims_too_much(run: Any, model: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, {"ids": IDS, "greedy": GREEDY})
    with zipfile.ZipFile(tmp_path / "reference.npz", "w") as archive:
        entry = zipfile.ZipInfo("one.logits.npy")
        archive.writestr(entry, b"x")
        archive.filelist[0].file_size = (4 << 30) + 1  # what the directory says, not what is there
    done = run("verify", "m", "--reference", folder)
    assert done.code == 2 and "too large" in done.err


def test_reference_is_needed(run: Any, model: Any) -> None:
    assert "--reference: is missing" in run("verify", "m").err
