"""The numbers on the pages are those of the results."""

from benchmarks import pages


def test_pages_show_the_current_results(capsys):
    assert pages.main(check=True) == 0, capsys.readouterr().out
