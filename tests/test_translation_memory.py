"""Ready translations from files, and what an argument may name as a translator."""

from __future__ import annotations

import csv
import json
import logging

import pytest

import dysem_st
from dysem_st import TranslationMemory, Translator
from dysem_st.translation import CallableTranslator, resolve_translator

ROWS = [
    {"eng_Latn": "A cat sleeps.", "deu_Latn": "Eine Katze schläft.", "jpn_Jpan": "猫が眠っている。"},
    {"eng_Latn": 'He said "no", twice.', "deu_Latn": "Er sagte zweimal „nein“.", "jpn_Jpan": "彼は二度断った。"},
]
CODES = list(ROWS[0])


def write_delimited(path, delimiter, header, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header, *rows])
    return path


def write_csv(path, header, *rows):
    return write_delimited(path, ",", header, rows)


def table_file(folder, kind):
    path = folder / f"memory.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n", encoding="utf-8")
    else:
        write_delimited(path, {"csv": ",", "tsv": "\t"}[kind], CODES, [list(row.values()) for row in ROWS])
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_file_answers_every_pair_of_its_languages(tmp_path, kind):
    memory = TranslationMemory.from_file(table_file(tmp_path, kind))
    for row in ROWS:
        for source in CODES:
            for target in set(CODES) - {source}:
                assert memory.translate([row[source]], source, target) == [row[target]]
    assert len(memory) == len(ROWS) * len(CODES)


def test_the_kinds_of_file_are_the_same_memory(tmp_path):
    identities = {TranslationMemory.from_file(table_file(tmp_path, kind)).identity for kind in ("csv", "tsv", "jsonl")}
    assert identities == {TranslationMemory(ROWS).identity}


def test_columns_may_have_any_name_of_their_language_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "memory.csv"
    path.write_text("en,German\nA cat sleeps.,Eine Katze schläft.\n", encoding="utf-8-sig")
    memory = TranslationMemory.from_file(path)
    assert memory.translate(["A cat sleeps."], "eng_Latn", "deu_Latn") == ["Eine Katze schläft."]


def test_a_byte_order_mark_is_no_part_of_a_jsonl_file(tmp_path):
    path = tmp_path / "memory.jsonl"
    path.write_text(json.dumps(ROWS[0]), encoding="utf-8-sig")
    memory = TranslationMemory.from_file(path)
    assert memory.translate(["A cat sleeps."], "eng_Latn", "deu_Latn") == ["Eine Katze schläft."]


def test_several_files_add_up(tmp_path):
    one = write_csv(tmp_path / "one.csv", ["eng_Latn", "deu_Latn"], ["One.", "Eins."])
    two = write_csv(tmp_path / "two.csv", ["eng_Latn", "fra_Latn"], ["One.", "Un."], ["Two.", "Deux."])
    memory = TranslationMemory.from_file(one, two)
    assert memory.translate(["One."], "eng_Latn", "deu_Latn") == ["Eins."]
    assert memory.translate(["One.", "Two."], "eng_Latn", "fra_Latn") == ["Un.", "Deux."]
    assert memory.translate(["Two."], "eng_Latn", "deu_Latn") == [None]


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_parallel_files_pair_their_rows_in_every_sentence_column(tmp_path, suffix, delimiter):
    english, german = tmp_path / f"en{suffix}", tmp_path / f"de{suffix}"
    write_delimited(english, delimiter, ["One.", "Two.", "5.0"], [["Three.", "Four.", "1.0"]])
    write_delimited(german, delimiter, ["Eins.", "Zwei.", "5.0"], [["Drei.", "Vier.", "1.0"]])
    memory = TranslationMemory.from_parallel_files({"en": english, "deu_Latn": german}, columns=(0, 1))
    asked = ["Four.", "One.", "Three.", "Two.", "5.0"]
    assert memory.translate(asked, "eng_Latn", "deu_Latn") == ["Vier.", "Eins.", "Drei.", "Zwei.", None]


def test_parallel_plain_text_has_one_sentence_a_line_commas_and_quotes_included(tmp_path):
    english, french = tmp_path / "en.txt", tmp_path / "fr.txt"
    english.write_text('One, "two".\nThree.\n', encoding="utf-8")
    french.write_text("Un, « deux ».\nTrois.", encoding="utf-8")
    memory = TranslationMemory.from_parallel_files({"en": english, "fr": french})
    assert memory.translate(['One, "two".', "Three."], "eng_Latn", "fra_Latn") == ["Un, « deux ».", "Trois."]


def test_the_first_of_two_translations_stands_and_the_others_are_counted(tmp_path, caplog):
    header = ["eng_Latn", "deu_Latn"]
    path = write_csv(tmp_path / "memory.csv", header, ["Hi.", "Hallo."], ["Hi.", "Moin."], ["Hi.", "Hallo."])
    with caplog.at_level(logging.INFO, logger="dysem_st"):
        memory = TranslationMemory.from_file(path)
    assert memory.translate(["Hi."], "eng_Latn", "deu_Latn") == ["Hallo."]
    assert memory.translate(["Moin."], "deu_Latn", "eng_Latn") == ["Hi."]
    assert memory.conflicts == 1
    assert "1 further" in caplog.text


def test_a_blank_cell_is_no_translation(tmp_path):
    header = ["eng_Latn", "deu_Latn", "fra_Latn"]
    memory = TranslationMemory.from_file(write_csv(tmp_path / "memory.csv", header, ["One.", "  ", "Un."]))
    assert memory.translate(["One."], "eng_Latn", "deu_Latn") == [None]
    assert memory.translate(["One."], "eng_Latn", "fra_Latn") == ["Un."]
    assert memory.translate([" "], "deu_Latn", "eng_Latn") == [None]


def test_null_in_a_json_line_is_no_translation():
    memory = TranslationMemory([{"eng_Latn": "One.", "deu_Latn": None}])
    assert memory.translate(["One."], "eng_Latn", "deu_Latn") == [None]


def test_ends_are_stripped_and_nothing_else_is():
    memory = TranslationMemory([{"eng_Latn": " A cat. ", "deu_Latn": "Eine Katze.\n"}])
    assert memory.translate(["A cat.\n", "a cat.", "A  cat."], "eng_Latn", "deu_Latn") == ["Eine Katze.", None, None]


def test_an_unknown_column_is_refused_by_name(tmp_path):
    path = write_csv(tmp_path / "memory.csv", ["eng_Latn", "score"], ["One.", "5.0"])
    with pytest.raises(ValueError, match="unknown language 'score'"):
        TranslationMemory.from_file(path)


def test_a_row_with_more_fields_than_the_header_is_refused_with_its_line(tmp_path):
    path = write_csv(tmp_path / "memory.csv", ["eng_Latn", "deu_Latn"], ["One.", "Eins."], ["Two", " three", "Zwei."])
    with pytest.raises(ValueError, match=r"memory\.csv, line 3: more fields"):
        TranslationMemory.from_file(path)


def test_a_row_with_fewer_fields_lacks_the_last_languages(tmp_path):
    path = write_csv(tmp_path / "memory.csv", ["eng_Latn", "deu_Latn", "fra_Latn"], ["One.", "Eins."])
    memory = TranslationMemory.from_file(path)
    assert memory.translate(["One."], "eng_Latn", "deu_Latn") == ["Eins."]
    assert memory.translate(["One."], "eng_Latn", "fra_Latn") == [None]


def test_one_language_under_two_names_is_refused(tmp_path):
    path = write_csv(tmp_path / "memory.csv", ["en", "eng_Latn", "deu_Latn"], ["One.", "Two.", "Eins."])
    with pytest.raises(ValueError, match="eng_Latn"):
        TranslationMemory.from_file(path)


def test_one_language_under_two_names_is_refused_in_parallel_files(tmp_path):
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    for path in paths:
        path.write_text("One.\n", encoding="utf-8")
    with pytest.raises(ValueError, match="eng_Latn"):
        TranslationMemory.from_parallel_files(dict(zip(["en", "eng_Latn", "de"], paths, strict=True)))


def test_parallel_files_of_different_lengths_are_refused_with_their_lengths(tmp_path):
    english, german = tmp_path / "en.txt", tmp_path / "de.txt"
    english.write_text("One.\nTwo.\n", encoding="utf-8")
    german.write_text("Eins.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"length.*'eng_Latn': 2.*'deu_Latn': 1"):
        TranslationMemory.from_parallel_files({"en": english, "de": german})


def test_a_parallel_row_without_the_column_is_refused_with_its_place(tmp_path):
    english, german = tmp_path / "en.csv", tmp_path / "de.csv"
    english.write_text("One.,Two.\nThree.,Four.\n", encoding="utf-8")
    german.write_text("Eins.,Zwei.\nDrei.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"de\.csv, row 2: no column 1"):
        TranslationMemory.from_parallel_files({"en": english, "de": german}, columns=(0, 1))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.csv"):
        TranslationMemory.from_file(tmp_path / "absent.csv")
    with pytest.raises(FileNotFoundError, match=r"absent\.txt"):
        TranslationMemory.from_parallel_files({"en": tmp_path / "absent.txt"})


def test_a_file_of_another_kind_is_refused_with_the_kinds_that_are_read(tmp_path):
    path = tmp_path / "memory.xlsx"
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"memory\.xlsx.*\.csv, \.tsv or \.jsonl"):
        TranslationMemory.from_file(path)


@pytest.mark.parametrize("line", ['["One.", "Eins."]', '{"eng_Latn": "One."'])
def test_a_malformed_json_line_is_refused_with_its_place(tmp_path, line):
    path = tmp_path / "memory.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"memory\.jsonl, line 2"):
        TranslationMemory.from_file(path)


def test_a_value_that_is_no_text_is_refused_with_its_row():
    with pytest.raises(TypeError, match="row 1 has 5.0 for deu_Latn"):
        TranslationMemory([ROWS[0], {"eng_Latn": "One.", "deu_Latn": 5.0}])


def test_identity_is_that_of_the_content(tmp_path):
    first = TranslationMemory(ROWS).identity
    assert TranslationMemory([dict(reversed(row.items())) for row in ROWS]).identity == first
    other = [{**ROWS[0], "deu_Latn": "Eine Katze schlief."}, ROWS[1]]
    others = [TranslationMemory(rows).identity for rows in (other, ROWS[:1], [])]
    assert len({first, *others}) == 4


def test_identity_follows_a_file_that_changes(tmp_path):
    path = write_csv(tmp_path / "memory.csv", ["eng_Latn", "deu_Latn"], ["One.", "Eins."])
    before = TranslationMemory.from_file(path)
    write_csv(path, ["eng_Latn", "deu_Latn"], ["One.", "Ein."])
    after = TranslationMemory.from_dict({key: value for key, value in before.to_dict().items() if key != "name"})
    assert after.identity != before.identity
    assert after.translate(["One."], "eng_Latn", "deu_Latn") == ["Ein."]


def test_a_memory_of_files_survives_its_saved_form(tmp_path, monkeypatch):
    write_csv(tmp_path / "memory.csv", ["eng_Latn", "deu_Latn"], ["One.", "Eins."])
    (tmp_path / "en.txt").write_text("Two.\n", encoding="utf-8")
    (tmp_path / "de.txt").write_text("Zwei.\n", encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    table = TranslationMemory.from_file("memory.csv")
    parallel = TranslationMemory.from_parallel_files({"en": "en.txt", "de": "de.txt"})
    # Relative paths are resolved when the memory is made, so the saved form holds in any working directory.
    monkeypatch.chdir(elsewhere)
    for memory, text, german in ((table, "One.", "Eins."), (parallel, "Two.", "Zwei.")):
        saved = json.loads(json.dumps(memory.to_dict()))
        rebuilt = resolve_translator(saved)
        assert rebuilt.identity == memory.identity
        assert rebuilt.to_dict() == memory.to_dict()
        assert rebuilt.translate([text], "eng_Latn", "deu_Latn") == [german]


def test_a_memory_of_rows_has_no_saved_form():
    assert TranslationMemory(ROWS).to_dict() is None


def test_an_empty_memory_knows_nothing():
    memory = TranslationMemory()
    assert len(memory) == 0
    assert memory.translate(["One."], "eng_Latn", "deu_Latn") == [None]


def test_a_memory_is_a_translator():
    memory = TranslationMemory(ROWS)
    assert isinstance(memory, Translator)
    assert resolve_translator(memory) is memory


def test_a_function_becomes_a_translator_that_carries_its_name():
    def shout(texts, source, target):
        return [f"{source}>{target}:{text.upper()}" for text in texts]

    translator = resolve_translator(shout)
    assert isinstance(translator, CallableTranslator)
    assert "shout" in translator.identity
    assert translator.translate(["a"], "eng_Latn", "deu_Latn") == ["eng_Latn>deu_Latn:A"]


def test_no_translator_is_none():
    assert resolve_translator(None) is None


@pytest.mark.parametrize("spec", ["memory.csv", 3, [1]])
def test_a_value_that_is_no_translator_is_refused_with_what_to_give(spec):
    with pytest.raises(TypeError) as error:
        resolve_translator(spec)
    assert repr(spec) in str(error.value)
    assert "translate(texts, source, target)" in str(error.value)


def test_a_translator_class_in_place_of_an_object_is_refused():
    with pytest.raises(TypeError, match="TranslationMemory"):
        resolve_translator(TranslationMemory)


@pytest.mark.parametrize("spec", [{"name": "memroy"}, {"files": []}])
def test_an_unknown_saved_translator_is_refused_with_the_choices(spec):
    with pytest.raises(ValueError) as error:
        resolve_translator(spec)
    assert repr(spec.get("name")) in str(error.value)
    assert "memory" in str(error.value).replace("memroy", "")


def test_a_model_reads_versions_from_its_memory(base):
    languages = {"languages": ["en", "de"], "prompt": "language-specific"}
    with_memory = dysem_st.build(base(), translator=TranslationMemory(ROWS), **languages)
    without = dysem_st.build(base(), **languages)
    given = [{code: row[code] for code in ("eng_Latn", "deu_Latn")} for row in ROWS]
    looked_up = with_memory.encode([row["eng_Latn"] for row in ROWS])
    assert (looked_up == without.encode(given)).all()


def test_real_parallel_files_load(shared):
    folder = shared / "data" / "stsb-multi-mt"
    memory = TranslationMemory.from_parallel_files(
        {"en": folder / "dev.en.csv", "de": folder / "dev.de.csv"}, columns=(0, 1)
    )
    assert memory.translate(["A woman is playing the flute."], "eng_Latn", "deu_Latn") == ["Eine Frau spielt Flöte."]
    with (folder / "dev.en.csv").open(encoding="utf-8", newline="") as file:
        english = [sentence for row in csv.reader(file) for sentence in row[:2]]
    assert len(english) == 3000
    with (folder / "dev.de.csv").open(encoding="utf-8", newline="") as file:
        german = [sentence for row in csv.reader(file) for sentence in row[:2]]
    first = {}
    for text, translation in zip(english, german, strict=True):
        first.setdefault(text.strip(), translation.strip())
    assert memory.translate(english, "eng_Latn", "deu_Latn") == [first[text.strip()] for text in english]
    assert memory.conflicts > 0


@pytest.mark.parametrize("result", [{"a": "b"}, "ab"])
def test_a_result_that_is_no_list_is_refused(result):
    from dysem_st.translation.base import CallableTranslator, translate_checked

    with pytest.raises(dysem_st.TranslationError, match="not a list"):
        translate_checked(CallableTranslator(lambda texts, source, target: result), ["a", "b"], "eng_Latn", "fra_Latn")


def test_a_header_that_repeats_a_column_is_refused(tmp_path):
    path = tmp_path / "memory.csv"
    path.write_text("en,fr,fr\na,b,c\n", encoding="utf-8")
    with pytest.raises(ValueError, match="repeats"):
        TranslationMemory.from_file(path)
