"""One page of everything in a directory of results, made from its files alone."""

from relbo.report._page import write_report as write_report
from relbo.report._reading import ReportError as ReportError
