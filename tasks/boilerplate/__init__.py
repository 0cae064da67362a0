"""Removal of lines that many documents of a host share: menus, notices, calls to subscribe.

The step is off by default. It reads the extracted documents before cleaning, so that the filters see the text that is
left.

    boilerplate/part-00000.parquet            documents without these lines, schema unchanged
    boilerplate/rejected/part-00000.parquet   documents of which nothing is left: only_boilerplate
    boilerplate/lines/part-00000.parquet      removed lines with host and counts
"""
