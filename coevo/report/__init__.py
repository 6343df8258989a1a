"""The HTML report: runs in, one self-contained page out."""

from coevo.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
