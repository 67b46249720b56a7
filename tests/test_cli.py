"""The command line, on a saved tiny model."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import dysem_st
from dysem_st.cli import main


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    dysem_st.build(base("llama"), languages=["en", "de"], prompt="source-text", k=8).save(str(path))
    return str(path)


@pytest.fixture(scope="module")
def translated_folder(base, tmp_path_factory):
    path = tmp_path_factory.mktemp("translated")
    dysem_st.build(base("llama"), languages=["en", "de"], prompt="language-specific", k=8).save(str(path))
    return str(path)


def run_json(capsys, *argv):
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_similarity_prints_what_the_model_scores(folder, capsys):
    texts = ["a man eats", "a woman plays the guitar"]
    result = run_json(capsys, "similarity", *texts, "--model", folder)
    model = dysem_st.load(folder)
    rows = model.encode(texts)
    assert result["score"] == pytest.approx(float(model.similarity_pairwise(rows[:1], rows[1:])), abs=1e-6)
    assert result["dimensions"] == int(dysem_st.joint_dimensions(rows[0], rows[1]))
    assert result["of"] == 32
    assert result["views"] == ["source text in the eng_Latn template", "source text in the deu_Latn template"]


def test_similarity_tells_people_the_views(folder, capsys):
    assert main(["similarity", "a", "b", "--model", folder]) == 0
    out = capsys.readouterr().out
    assert "joint cosine on" in out and "deu_Latn template" in out and "not calibrated" in out


def test_similarity_without_a_translator_says_what_to_do(translated_folder, capsys):
    assert main(["similarity", "a man", "a woman", "--model", translated_folder]) == 2
    error = capsys.readouterr().err
    assert "deu_Latn" in error and "'a woman'" in error and "translator" in error


def test_similarity_takes_translations_from_a_file(translated_folder, tmp_path, capsys):
    memory = tmp_path / "memory.csv"
    memory.write_text("en,de\na man,ein Mann\na woman,eine Frau\n", encoding="utf-8")
    argv = ["similarity", "a man", "a woman", "--model", translated_folder]
    result = run_json(capsys, *argv, "--translations", str(memory))
    rows = dysem_st.load(translated_folder).encode(
        [{"en": "a man", "de": "ein Mann"}, {"en": "a woman", "de": "eine Frau"}]
    )
    assert result["score"] == pytest.approx(float(dysem_st.joint_cosine(rows[0], rows[1])), abs=1e-6)
    dropped = run_json(capsys, *argv, "--missing", "drop")
    assert dropped["score"] != result["score"]


def test_encode_writes_one_row_a_line_in_order(folder, tmp_path, capsys):
    texts = ["the longest text of them all, by some way", "short", "", "a text"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    result = run_json(
        capsys, "encode", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "rows.npy"), "--model", folder
    )
    rows = np.load(tmp_path / "rows.npy")
    assert result["texts"] == 4 and rows.shape == (4, 64)
    np.testing.assert_allclose(rows, dysem_st.load(folder).encode(texts), atol=1e-5)


def test_encode_writes_vector_and_mask_of_ready_translations(translated_folder, tmp_path, capsys):
    lines = [{"en": "a man", "de": "ein Mann"}, {"en": "a woman", "de": "eine Frau"}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    run_json(
        capsys, "encode", str(tmp_path / "texts.jsonl"), "-o", str(tmp_path / "rows.npz"), "--model", translated_folder
    )
    stored = np.load(tmp_path / "rows.npz")
    vector, mask = dysem_st.unpack(dysem_st.load(translated_folder).encode(lines))
    np.testing.assert_allclose(stored["vector"], vector, atol=1e-5)
    assert (stored["mask"] == mask.numpy()).all() and stored["mask"].dtype == bool


def test_calibrate_saves_a_centred_model(folder, tmp_path, capsys):
    texts = ["a man eats", "a woman plays", "the guitar", "an apple and a man"]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    run_json(capsys, "calibrate", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out"), "--model", folder)
    expected = dysem_st.calibrate(dysem_st.load(folder), texts).encode(texts)
    np.testing.assert_allclose(dysem_st.load(tmp_path / "out").encode(texts), expected, atol=1e-5)


def test_export_writes_a_folder_and_says_how_to_load_it(tmp_path, capsys):
    assert main(["export", "qwen3-8b-lp", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert 'SentenceTransformer("dysem/qwen3-8b-lp", trust_remote_code=True)' in out
    assert (tmp_path / "dysem" / "qwen3-8b-lp" / "modules.json").is_file()


def test_presets_lists_every_name(capsys):
    from dysem_st.presets import presets

    assert {row["name"] for row in run_json(capsys, "presets")} == set(presets())
    assert main(["presets"]) == 0
    assert "dysem/llama3.1-8b-ep" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["similarity", "a", "b", "--model", "no-such-model"], 2, ["no-such-model", "Presets"]),
        (["encode", "missing.txt", "-o", "rows.npy"], 2, ["missing.txt"]),
        (["encode", "missing.txt", "-o", "rows.csv"], 2, [".npy", ".npz"]),
        (["export", "llama3.1-8", "somewhere"], 2, ["llama3.1-8b"]),
        (["push", "nowhere", "me/model"], 2, ["modules.json"]),
    ],
)
def test_wrong_input_ends_with_a_message_and_a_code(argv, code, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(word in captured.err for word in words)
    assert "Traceback" not in captured.err


def test_a_wrong_command_exits_with_two():
    with pytest.raises(SystemExit) as stopped:
        main(["similarity", "only one text"])
    assert stopped.value.code == 2


def test_help_teaches_with_examples_and_loads_no_torch():
    code = (
        "import sys; from dysem_st.cli import main\ntry: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("similarity", "encode", "calibrate", "export", "push", "presets", "demo", "exit codes"):
        assert command in done.stdout


def test_a_byte_order_mark_is_no_part_of_the_first_text(folder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a man\r\na woman\r\n", encoding="utf-8-sig", newline="")
    run_json(capsys, "encode", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "rows.npy"), "--model", folder)
    expected = dysem_st.load(folder).encode(["a man", "a woman"])
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "no texts"), ("caf\xe9".encode("latin-1"), "not UTF-8")], ids=["empty", "latin-1"]
)
def test_files_that_hold_no_texts_are_refused(folder, tmp_path, capsys, content, words):
    (tmp_path / "texts.txt").write_bytes(content)
    argv = ["encode", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "rows.npy"), "--model", folder]
    assert main(argv) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_named(folder, capsys):
    assert main(["similarity", "a", "b", "--model", folder, "--device", "cuda"]) == 2
    assert "--device cuda" in capsys.readouterr().err


def test_an_ascii_terminal_still_gets_the_numbers(folder):
    argv = [sys.executable, "-m", "dysem_st.cli", "similarity", "é", "ü", "--model", folder]
    done = subprocess.run(argv, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert b"joint cosine" in done.stdout


def test_push_uploads_a_model_folder_and_prints_where_it_is(folder, capsys, monkeypatch):
    calls = []

    class Api:  # the Hub's interface; what it does with the folder is its own matter
        def create_repo(self, repository, private, exist_ok):
            calls.append((repository, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            calls.append((repo_id, str(folder_path)))
            return "https://example.org/commit"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert main(["push", folder, "me/model", "--private"]) == 0
    assert calls == [("me/model", True, True), ("me/model", folder)]
    assert capsys.readouterr().out == "https://example.org/commit\n"


def test_calibrate_leaves_blank_lines_out_and_says_so(folder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a man eats\n\n \na woman plays\n", encoding="utf-8")
    argv = ["calibrate", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out"), "--model", folder, "--json"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["calibrated_on"] == 2
    assert "2 blank lines" in captured.err and "2 texts are few" in captured.err


def test_calibrate_writes_over_a_folder_only_when_told(folder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("a man eats\na woman plays\n", encoding="utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious", encoding="utf-8")
    argv = ["calibrate", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out"), "--model", folder]
    assert main(argv) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*argv, "--force"]) == 0


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_text_is_nothing_to_compare(folder, capsys, text):
    assert main(["similarity", text, "a man", "--model", folder]) == 2
    assert "no text to compare" in capsys.readouterr().err


def test_an_unknown_name_is_answered_at_once_with_near_ones(no_network, capsys):
    assert main(["similarity", "a", "b", "--model", "lama3.1-8b"]) == 2
    assert "dysem/llama3.1-8b" in capsys.readouterr().err
