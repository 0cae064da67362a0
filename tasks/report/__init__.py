"""The report of a run: what the manifests say, as one HTML page and as Markdown."""

from tasks.report.step import REPORT, ReportSettings, gather, report, summary

__all__ = ["REPORT", "ReportSettings", "gather", "report", "summary"]
