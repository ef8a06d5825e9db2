"""Makes one HTML page of a directory of results, from its files alone."""

from relbo_paper.report.page import write_report as write_report
from relbo_paper.report.results import ReportError as ReportError
