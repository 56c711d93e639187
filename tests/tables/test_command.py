"""`diffem impute`: files in, completed files and a report out."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from diffem.cli.commands import app
from diffem.core.errors import InputError
from diffem.tables.assessment import gap_auc, hide
from diffem.tables.files import read_table, warnings_about_names

TABLE = """age,city,children,member
34,Rome,0,True
,Oslo,2,False
51,,1,True
28,Oslo,,False
45,Rome,3,
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    lines = TABLE.splitlines()
    path.write_text("\n".join([lines[0], *lines[1:] * 12]))
    return path


def run(*words: object):
    return CliRunner().invoke(app, ["impute", *map(str, words)], catch_exceptions=False)


def test_a_file_is_completed_and_reported(table, tmp_path):
    out = tmp_path / "completed.csv"
    result = run(table, "-o", out, "--laps", 1, "--steps", 2, "--folds", 1, "--draws", 3, "--imputations", 1)
    assert result.exit_code == 0, result.output
    given, completed, drawn = (pd.read_csv(path) for path in (table, out, tmp_path / "completed-1.csv"))
    for frame in (completed, drawn):
        assert not frame.isna().any().any()
        assert list(frame.columns) == list(given.columns)
        assert set(frame["city"]) == {"Rome", "Oslo"}
        assert frame["age"].between(28, 51).all()
        assert ((frame == given) | given.isna()).all().all()
    assert "51.0" not in out.read_text()  # whole numbers are written as such
    page = (tmp_path / "completed.html").read_text()
    for words in ("60 × 4", "20.0 %", "children", "data:image/png"):
        assert words in page


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("table.csv", "a,a\n1,2\n3,4\n", "more than once: ['a']"),
        ("table.csv", "a,b\n", "0 rows"),
        ("table.csv", "", "cannot be read as a table"),
        ("table.txt", "a\n1\n", "ends in .csv, .tsv, .parquet"),
        ("table.csv", "a,b\n1,\n2,\n", "'b' has no observed value"),
        ("table.csv", "a;b\n1,5;2\n2,5;\n", "the first line 'a;b' seems to be separated by ';'"),
        ("table.tsv", "a,b\n1,2\n3,\n", "the first line 'a,b' seems to be separated by ','"),
        ("table.csv", "a,b\n1,2,3\n4,,6\n", "more fields than its first line has names, 2"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as error:
        run(tmp_path / name, "-o", tmp_path / "out.csv")
    assert words in str(error.value)
    assert not (tmp_path / "out.csv").exists()


def test_a_file_in_another_encoding_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "table.csv").write_bytes("größe\n1\n2\n".encode("latin-1"))
    with pytest.raises(InputError, match="it must be saved as UTF-8 text"):
        read_table(tmp_path / "table.csv")


def test_a_missing_file_and_a_bad_kind_are_refused(table, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        run(tmp_path / "none.csv", "-o", tmp_path / "out.csv")
    with pytest.raises(InputError, match="--kind needs COLUMN=KIND"):
        run(table, "-o", tmp_path / "out.csv", "--kind", "age")
    with pytest.raises(InputError, match="the kind must be one of"):
        run(table, "-o", tmp_path / "out.csv", "--kind", "age=ordinal")


def test_a_file_is_read_without_a_change_of_values(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,zip,mass,key\n1234567890123456789,00123,1e20,18446744073709551615\n,,3e22,\n-5,90210,,7\n")
    frame = read_table(path)
    assert frame["id"].dtype == "Int64"
    assert frame["id"].dropna().tolist() == [1234567890123456789, -5]
    assert frame["zip"].dropna().tolist() == ["00123", "90210"]
    assert frame["mass"].dropna().tolist() == [1e20, 3e22]
    assert frame.isna().to_numpy().sum(0).tolist() == [1, 1, 1, 1]


def test_an_empty_line_is_a_gap_if_there_is_one_column(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a\n1\n\n3\n")
    assert read_table(path)["a"].isna().tolist() == [False, True, False]
    path.write_text("a,b\n1,2\n\n3,4\n")
    assert read_table(path)["a"].tolist() == [1, 3]


def test_categories_with_dollar_signs_are_reported(tmp_path):
    path, out = tmp_path / "table.csv", tmp_path / "completed.csv"
    path.write_text("income,x\n" + "".join(f"{('$10_{-$20', '$20+', '')[k % 3]},{k}\n" for k in range(30)))
    assert run(path, "-o", out, "--laps", 1, "--steps", 2, "--folds", 1, "--draws", 2).exit_code == 0
    assert set(pd.read_csv(out)["income"]) == {"$10_{-$20", "$20+"}
    assert "data:image/png" in (tmp_path / "completed.html").read_text()


def test_a_seed_out_of_range_is_refused(table, tmp_path):
    with pytest.raises(InputError, match=r"random_state, the seed: .*; got -1"):
        run(table, "-o", tmp_path / "out.csv", "--seed", -1)


def test_first_lines_that_are_probably_mistakes_are_reported(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(",NA,2001\n0,1.5,2\n1,,3\n")  # the row numbers of pandas, and two unusual names
    (warning,) = warnings_about_names(path)
    assert "--skip 'Unnamed: 0'" in warning
    assert warnings_about_names(path, ["Unnamed: 0"]) == []
    assert list(read_table(path).columns) == ["Unnamed: 0", "NA", "2001"]
    path.write_text("1.5,Rome\n0.5,\n,Oslo\n")  # no line of names
    (warning,) = warnings_about_names(path)
    assert "insert a line with names" in warning
    result = run(path, "-o", tmp_path / "out.csv", "--laps", 1, "--steps", 1, "--draws", 2)
    assert f"warning: {warning}" in result.output


def test_skipped_columns_are_copied_as_they_are_written(tmp_path):
    written = ["1.50", "007", "NA", "", "9007199254740993"] * 4
    path, out = tmp_path / "table.csv", tmp_path / "completed.csv"
    path.write_text("a,kept\n" + "".join(f"{k if k % 5 else ''},{text}\n" for k, text in enumerate(written)))
    assert run(path, "-o", out, "--skip", "kept", "--laps", 1, "--steps", 2, "--draws", 2).exit_code == 0
    assert [line.split(",")[1] for line in out.read_text().splitlines()] == ["kept", *written]


def test_skipped_columns_are_copied(table, tmp_path):
    given = pd.read_csv(table)
    given.insert(1, "id", [f"person {i}" for i in range(len(given))])
    given.to_csv(tmp_path / "with-id.csv", index=False)
    out = tmp_path / "completed.csv"
    options = ("--laps", 1, "--steps", 2, "--folds", 1, "--draws", 2)
    with pytest.raises(InputError, match="diffem impute: --skip id"):
        run(tmp_path / "with-id.csv", "-o", out, *options)
    with pytest.raises(InputError, match=r"columns to skip must exist in .*, got \['name'\]"):
        run(tmp_path / "with-id.csv", "-o", out, "--skip", "name")
    assert run(tmp_path / "with-id.csv", "-o", out, "--skip", "id", *options).exit_code == 0
    completed = pd.read_csv(out)
    assert list(completed.columns) == list(given.columns)
    assert completed["id"].equals(given["id"])
    assert not completed.isna().any().any()


def test_what_cannot_be_written_is_refused_before_the_fit(table, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is the input table, which would be overwritten"):
        run(table, "-o", table)
    with pytest.raises(InputError, match=r"table-2.csv is the input table"):
        run(table.rename(tmp_path / "table-2.csv"), "-o", table, "--imputations", 2)
    (tmp_path / "table-2.csv").rename(table)
    monkeypatch.setattr("diffem.tables.files.find_spec", lambda name: None)
    for given, out in ((table, "completed.parquet"), (tmp_path / "table.parquet", "completed.csv")):
        with pytest.raises(InputError, match="Parquet files need the package pyarrow"):
            run(given, "-o", tmp_path / out)


def test_gaps_that_depend_on_other_columns_are_found():
    random = np.random.default_rng(0)
    others = random.standard_normal((1000, 3))
    depending = random.random(1000) < 1 / (1 + np.exp(-2 * others[:, 0]))
    auc, found = gap_auc(others, depending)
    assert found
    assert auc > 0.75
    auc, found = gap_auc(others, random.random(1000) < 0.3)
    assert not found
    assert abs(auc - 0.5) < 0.08  # four standard errors of 300 gaps
    assert gap_auc(others, np.arange(1000) < 5) == (None, False)


def test_hidden_values_are_observed_ones_and_never_all_of_a_row():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.random((500, 2))).mask(random.random((500, 2)) < 0.4)
    hidden = hide(frame, 0, share=0.5)
    assert 30 < hidden.sum() < 200  # of about 600 values, those of rows that would lose all stay
    assert frame.notna().to_numpy()[hidden].all()
    left = frame.mask(hidden).notna().any(axis=1)
    assert left[frame.notna().any(axis=1)].all()


def test_values_are_hidden_from_a_table_whose_gaps_were_made_with_the_same_seed():
    values = np.random.default_rng(0).random((200, 5))
    hidden = hide(pd.DataFrame(np.where(values < 0.3, np.nan, values)), 0)
    assert not (hidden & (values < 0.3)).any()
    # 5 % of about 700 values: 35, with a standard deviation of 6
    assert 10 < hidden.sum() < 60


def test_a_table_of_few_rows_is_completed_although_no_value_can_be_hidden(tmp_path):
    table, out = tmp_path / "table.csv", tmp_path / "completed.csv"
    table.write_text("a,b\n1,2\n2,\n3,5\n,7\n5,9\n")
    result = run(table, "-o", out, "--laps", 1, "--steps", 2, "--folds", 1, "--draws", 2)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "completed.html").exists()
