"""The machines of `reports`: how many predictions are met, that each miss is explained, and that the page says so."""

import reports


def test_most_reports_are_met_and_the_others_explained() -> None:
    met = [report.number for report in reports.REPORTS if reports.is_met(report)]
    assert [report.number for report in reports.REPORTS] == list(range(1, 45))
    assert len(met) >= 31, met
    assert all(report.number in met or report.why for report in reports.REPORTS)
    assert not any(report.why for report in reports.REPORTS if report.number in met), "an explained miss that is none"


def test_the_page_is_current() -> None:
    text = reports.PAGE.read_text(encoding="utf-8")
    assert reports.BEGIN in text and reports.END in text
    assert reports.page(text) == text, "run: python tests/plan/reports.py --write"
