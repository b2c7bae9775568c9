from __future__ import annotations

import json
from typing import Any

import pytest

import coli
from coli.errors import BackendRefused, BudgetError, CheckpointError


def test_text_goes_to_stdout_and_everything_else_to_stderr(run: Any, model: Any) -> None:
    done = run("run", "m", "Hello")
    assert (done.code, done.out) == (0, "It rains.\n")
    assert "[coli] backend=libcoli_cpu_x86_64_v4.so (cpu-x86-64-v4) device=cpu why=best" in done.err
    assert "deepseek_v4" in done.err and "5MiB of 12GiB" in done.err
    assert "prompt 11 tokens in 0.50 s; answer 9 tokens in 0.25 s, 32.0 tokens/s; ended by length" in done.err
    assert model.closed == 1


def test_prompt_is_one_user_turn(run: Any, model: Any) -> None:
    run("run", "m", "Hello")
    assert model.rendered == [([{"role": "user", "content": "Hello"}], {"thinking": False})]
    assert bytes(model.calls[0]["ids"]) == b"<user>Hello"


def test_system_and_thinking_reach_the_chat_format(run: Any, model: Any) -> None:
    run("run", "m", "Hello", "--system", "Be brief", "--thinking")
    messages, options = model.rendered[0]
    assert messages[0] == {"role": "system", "content": "Be brief"}
    assert options == {"thinking": True}


def test_raw_sends_the_text_as_it_is(run: Any, model: Any) -> None:
    run("run", "m", "Hello", "--raw")
    assert not model.rendered
    assert bytes(model.calls[0]["ids"]) == b"Hello"


def test_ids_are_sent_as_they_are(run: Any, model: Any) -> None:
    run("run", "m", "--ids", "0,5,7")
    assert model.calls[0]["ids"] == [0, 5, 7]


def test_prompt_from_a_pipe(run: Any, model: Any) -> None:
    run("run", "m", "--raw", stdin="Grüße")
    run("run", "m", "-", "--raw", stdin="Grüße")
    assert [bytes(call["ids"]).decode() for call in model.calls] == ["Grüße", "Grüße"]


def test_sampling_that_was_not_given_is_left_to_the_model(run: Any, model: Any) -> None:
    run("run", "m", "x")
    run("run", "m", "x", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.05", "--seed", "9")
    run("run", "m", "x", "--temperature", "0")
    assert model.calls[0]["sampling"] == {"seed": 0}
    assert model.calls[1]["sampling"] == {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 9}
    assert model.calls[2]["sampling"] == {"temperature": 0.0, "seed": 0}


def test_stop_and_length(run: Any, model: Any) -> None:
    run("run", "m", "x", "--stop", "a,b", "--stop", "c", "--max-tokens", "3")
    assert model.calls[0]["stop"] == ("a,b", "c")
    assert model.calls[0]["max_tokens"] == 3


def test_engine_settings_reach_open(run: Any, model: Any) -> None:
    run(
        *("run", "m", "x", "--threads", "2", "--ctx", "99", "--ram", "2GiB", "--vram", "1GiB"),
        *("--io", "direct", "--backend", "cpu-portable"),
    )
    path, options = model.opened[0]
    search = options.pop("search")
    del options["progress"], options["tell"]
    assert path == "m"
    assert options == {
        "threads": 2,
        "context": 99,
        "prefill_chunk": 128,
        "io": "direct",
        "ram": 2 << 30,
        "vram": 1 << 30,
        "backend": "cpu-portable",
        "plugins": None,
        "text": True,
    }
    assert (search.selection, search.selection_origin) == ("cpu-portable", "--backend")


def test_backend_of_the_variable_is_searched_in_its_name(run: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_DSV4_DLL", "cpu-portable")
    monkeypatch.setenv("COLI_BACKEND_PATH", "/a:/b")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/c")
    run("run", "m", "x")
    search = model.opened[0][1]["search"]
    assert (search.selection, search.selection_origin) == ("cpu-portable", "COLI_DSV4_DLL")
    assert [str(folder) for folder in (*search.path, *search.library_path)] == ["/a", "/b", "/c"]


def test_fallbacks_are_told(run: Any, model: Any) -> None:
    from coli.backends.dispatch import Fallback

    real = model.open
    vars(coli)["open"] = lambda path, **options: (options["tell"](Fallback("rope", "cuda", "shape")), real(path))[1]
    assert "fallback: rope: cuda declined: shape" in run("run", "m", "x").err


def test_sampling_in_force_is_printed(run: Any, model: Any) -> None:
    line = "sampling: temperature 0.7 (generation_config.json), top_p 0.5, seed 3"
    assert line in run("run", "m", "x", "--top-p", "0.5", "--seed", "3").err
    assert "greedy" in run("run", "m", "x", "--temperature", "0").err


def test_json_is_one_document_with_the_documented_keys(run: Any, model: Any) -> None:
    done = run("run", "m", "--ids", "1,2", "--json")
    document = json.loads(done.out)
    assert set(document) == {
        "schema",
        "prompt_ids",
        "token_ids",
        "text",
        "finish_reason",
        "backend",
        "stages",
        "timing",
        "memory",
    }
    assert document["schema"] == "coli.run/1"
    assert document["prompt_ids"] == [1, 2]
    assert document["text"] == "It rains."
    assert document["stages"][0]["fallbacks"] == [{"backend": "cuda-generic", "reason": "shape", "count": 2}]
    assert document["timing"]["prefill_s"] == 0.5


def test_explain_shows_every_fallback(run: Any, model: Any) -> None:
    done = run("run", "m", "x", "--explain", "--ascii")
    assert "matmul: cuda-generic declined 2x: shape" in done.err
    assert "75%" in done.err
    assert done.err.isascii()
    assert done.out == "It rains.\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("run",), "MODEL: is missing"),
        (("run", "m"), "PROMPT: is missing"),
        (("run", "m", "x", "--ids", "1"), "--ids: cannot be combined with a prompt"),
        (("run", "m", "--ids", "1", "--thinking"), "--ids: cannot be combined with --system or --thinking"),
        (("run", "m", "x", "--raw", "--system", "y"), "--raw: cannot be combined with --system or --thinking"),
        (("run", "m", "--ids", "1,x"), "--ids: is not a whole number"),
        (("run", "m", "--ids", "-1"), "--ids: is out of range"),
        (("run", "m", "x", "--threads", "0"), "--threads: is out of range"),
        (("run", "m", "x", "--temperature", "nan"), "--temperature: is out of range"),
        (("run", "m", "x", "--top-p", "1.5"), "--top-p: is out of range"),
        (("run", "m", "x", "--treads", "2"), "No such option '--treads'"),
        (("run", "m", "x", "y"), "Got unexpected extra argument"),
        (("run", "", "x"), "MODEL: is not a path"),
        (("run", "m", "x", "--backend", ""), "--backend: is not a path"),
        (("run", "m", "x", "--top-p", "0"), "--top-p: is out of range"),
        (("run", "m", "x", "--stop", ""), "--stop: is an empty text"),
        (("rum",), "Did you mean run?"),
    ],
)
def test_usage_errors(run: Any, model: Any, arguments: tuple[str, ...], reason: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert reason in done.err
    assert "Traceback" not in done.err
    assert not model.calls and done.out == ""


def test_misspelt_option_names_the_right_one(run: Any) -> None:
    assert "--threads" in run("run", "m", "x", "--treads", "2").err


def test_prompt_that_is_not_utf8(run: Any, model: Any) -> None:
    done = run("run", "m", "--raw", stdin=b"ab\xff")
    assert done.code == 2 and "byte 2" in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckpointError("m", "has no config.json", fix="name a checkpoint folder", code="checkpoint.config"), 1),
        (BudgetError("memory", "does not suffice", observed="1GiB", expected="2GiB"), 4),
        (BackendRefused("cpu-nope", "is not a backend"), 5),
        (KeyboardInterrupt(), 130),
        (RuntimeError("boom"), 1),
        (MemoryError(), 1),
    ],
)
def test_exit_codes(run: Any, model: Any, error: BaseException, code: int) -> None:
    model.open_error = error
    plain, as_json = run("run", "m", "x"), run("run", "m", "x", "--json")
    assert (plain.code, as_json.code) == (code, code)
    assert "Traceback" not in plain.err
    assert plain.out == ""
    assert len(plain.err.splitlines()) <= 4
    if code != 130:
        document = json.loads(as_json.out)
        assert document["schema"] == "coli.run/1"
        assert document["error"]["exit_code"] == code
    if isinstance(error, CheckpointError):
        assert document["error"]["code"] == "checkpoint.config"
        assert "fix:      name a checkpoint folder" in plain.err


def test_usage_error_in_json(run: Any) -> None:
    document = json.loads(run("run", "--json", "--treads", "1").out)
    assert document["schema"] == "coli.run/1"
    assert document["error"]["exit_code"] == 2
    assert "--treads" in document["error"]["rule"]


def test_json_after_dashes_is_a_prompt(run: Any, model: Any) -> None:
    model.open_error = RuntimeError("boom")
    assert run("run", "--raw", "m", "--", "--json").out == ""


def test_debug_shows_the_traceback(run: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_DEBUG", "1")
    model.open_error = RuntimeError("boom")
    done = run("run", "m", "x")
    assert done.code == 1 and "Traceback" in done.err


def test_interrupt_while_text_streams(run: Any, model: Any) -> None:
    model.pieces = ["It", KeyboardInterrupt()]
    done = run("run", "m", "x")
    assert (done.code, done.out) == (130, "It")
    assert model.closed == 1


def test_failure_while_collecting_prints_no_half_document(run: Any, model: Any) -> None:
    model.pieces = ["It", CheckpointError("shard", "is truncated")]
    done = run("run", "m", "x", "--json")
    assert done.code == 1
    assert set(json.loads(done.out)) == {"schema", "error"}


def test_model_from_the_variable(run: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLI_MODEL", "/models/flash")
    assert run("run", "--ids", "1").code == 0
    assert model.opened[0][0] == "/models/flash"


def test_model_without_a_tokenizer_answers_in_token_ids(run: Any, model: Any) -> None:
    model.has_text, model.pieces = False, []
    model.answer_ids = [7, 0, 9]
    assert run("run", "m", "--ids", "1").out == "7,0,9\n"
